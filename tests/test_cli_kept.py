"""A fit that has ended is on disk, and what fails later, or beside it, loses nothing else."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import joblib
import pandas as pd
import pytest
import torch

from pyro_bnn.cli.kept import PREFIX, locked_folder, write_or_rescue
from pyro_bnn.cli.runs import _fit_one
from pyro_bnn.cli.saved_fit import SavedFit
from pyro_bnn.cli.saves import Saves
from pyro_bnn.errors import DataError, ModelError, OptionError, OutputError
from pyro_bnn.files import atomic
from pyro_bnn.infer import NUTS, SVI
from pyro_bnn.likelihoods import Bernoulli
from pyro_bnn.memory import is_exceeded
from pyro_bnn.models import MLP
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.report import Comparison
from pyro_bnn.report.output.names import FITS
from tests.command_line import run

pytestmark = [
    pytest.mark.usefixtures("short_trajectories", "uncaptured"),
    pytest.mark.slow("whole commands"),
]

MOONS = ("--data", "moons", "--hidden", "2", "--quiet")
TWO = ("compare", *MOONS, "--steps", "20", "--methods", "auto-normal,auto-delta")
SHORT = ("--chains", "2", "--warmup", "5", "--samples", "5")
NUTS_TOO = (*TWO[:-1], "auto-normal,nuts", *SHORT)
TORCHS = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands set torch's threads for good; reports without pictures."""
    monkeypatch.setattr("pyro_bnn.report.output.html.render", lambda *args: "a report")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comparison, "write_draws", lambda self, name, path: path.touch())


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        raise error

    return call


def methods_of(folder: Path) -> list[str]:
    return [str(name) for name in pd.read_csv(folder / "table.csv")["method"]]


def lost_in(folder: Path) -> list[str]:
    found = json.loads((folder / "verdicts.json").read_text())["verdicts"]
    return [one["text"] for one in found if one["kind"] == "lost"]


# One method less


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (MemoryError(), "there is not enough memory: fewer rows a step (--batch-size)"),
        (RuntimeError(TORCHS), "there is not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "there is not enough memory"),
        (DataError("no such rows"), "no such rows"),
        (OutputError("no room"), "no room"),
    ],
)
@pytest.mark.usefixtures("no_draws")
def test_a_method_that_fails_is_one_less(
    error: Exception, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NUTS, "run", raises(error))
    code, out, err = run(*NUTS_TOO, "--out", tmp_path)
    assert code == 1
    assert err.startswith(f"pyro-bnn: NUTS: {why}")
    assert err.count("\n") == 1
    assert methods_of(tmp_path) == ["AutoNormal"]
    (text,) = lost_in(tmp_path)
    assert text.startswith(f"NUTS has no row: {why}")
    assert "! NUTS has no row: " in out


def evaluates(monkeypatch: pytest.MonkeyPatch, before: Callable[[str], object]) -> None:
    """Something happens before each evaluation."""
    module = import_module("pyro_bnn.report.compare")  # whose name in the package is a function's
    evaluate: Any = module.evaluate

    def call(name: str, *args: Any, **options: Any) -> Any:
        before(name)
        return evaluate(name, *args, **options)

    monkeypatch.setattr(module, "evaluate", call)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (MemoryError(), "there is not enough memory: fewer rows a step (--batch-size)"),
        (ModelError("no such site"), "no such site"),
        (RuntimeError("a matrix\nis singular"), "RuntimeError: a matrix is singular"),
    ],
)
@pytest.mark.usefixtures("no_draws")
@pytest.mark.parametrize("failing", ["AutoNormal", "NUTS"])
def test_a_method_whose_fit_cannot_be_evaluated_is_one_less(
    failing: str, error: Exception, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the reference, without which the others are compared all the same."""

    def fail(name: str) -> None:
        if name == failing:
            raise error

    evaluates(monkeypatch, fail)
    code, _, err = run(*NUTS_TOO, "--out", tmp_path)
    assert code == 1
    why = f"its fit cannot be evaluated: {why}"
    assert err.splitlines()[-1].startswith(f"pyro-bnn: {failing}: {why}")
    assert ("RuntimeError: a matrix\nis singular\n" in err) is isinstance(error, RuntimeError)
    (other,) = {"AutoNormal", "NUTS"} - {failing}
    assert methods_of(tmp_path) == [other]
    (text,) = lost_in(tmp_path)
    assert text.startswith(f"{failing} has no row: {why}")
    names = {"AutoNormal": "auto-normal", "NUTS": "nuts"}
    assert [path.stem for path in (tmp_path / FITS).iterdir()] == [names[failing]]


@pytest.mark.usefixtures("no_draws")
def test_a_fit_is_evaluated_before_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference, which the others are measured against, is the last to be fitted here."""
    events: list[str] = []
    for engine in (SVI, NUTS):
        fit: Any = engine.run

        def note(self: Any, *args: Any, fit: Any = fit, **options: Any) -> Any:
            events.append(f"fits {type(self).__name__}")
            return fit(self, *args, **options)

        monkeypatch.setattr(engine, "run", note)
    evaluates(monkeypatch, lambda name: events.append(f"evaluates {name}"))
    assert run(*NUTS_TOO, "--out", tmp_path).code == 0
    assert events == ["fits SVI", "evaluates AutoNormal", "fits NUTS", "evaluates NUTS"]


def test_ctrl_c_in_an_evaluation_leaves_the_fits_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(name: str) -> None:
        if name == "AutoDelta":
            raise KeyboardInterrupt

    evaluates(monkeypatch, stop)
    code, _, err = run(*TWO, "--out", tmp_path)
    assert (code, err.splitlines()) == (
        130,
        [
            f"pyro-bnn: note: fits that have ended are in the folder '{tmp_path / FITS}'",
            "pyro-bnn: interrupted; with --checkpoint FOLDER a run can go on",
        ],
    )
    model = MLP(2, hidden=(2,), likelihood=Bernoulli())
    names = {"auto-normal.safetensors", "auto-delta.safetensors"}
    found = {path.name: Posterior.load(path, model) for path in (tmp_path / FITS).iterdir()}
    assert found.keys() == names


def fit_and_end(*args: Any) -> Any:
    """One fit of several, in whose evaluation the process ends, as where memory is short."""
    with mock.patch("pyro_bnn.cli.runs.evaluate_now", side_effect=lambda *args: os._exit(3)):
        return _fit_one(*args)


def fit_beside(plan: Any, rows: Any, seed: int, name: str, *args: Any) -> Any:
    """One fit of several; that of AutoDelta ends so."""
    fit = fit_and_end if name == "AutoDelta" else _fit_one
    return fit(plan, rows, seed, name, *args)


@pytest.mark.skipif(joblib.cpu_count() < 2, reason="two processes need two cores")
@pytest.mark.usefixtures("no_draws")
def test_a_process_that_is_killed_in_an_evaluation_leaves_its_fit_and_the_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_bnn.cli.runs._fit_one", fit_beside)
    code, _, err = run(*TWO, "--jobs", "2", "--out", tmp_path)
    assert code == 1
    assert err.splitlines()[-1].startswith("pyro-bnn: AutoDelta: a process ended by itself")
    assert methods_of(tmp_path) == ["AutoNormal"]
    (text,) = lost_in(tmp_path)
    assert text.startswith("AutoDelta has no row: a process ended by itself")
    assert [path.name for path in (tmp_path / FITS).iterdir()] == ["auto-delta.safetensors"]


@pytest.mark.usefixtures("no_draws")
def test_an_error_that_was_not_foreseen_is_shown_whole_and_the_method_is_one_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NUTS, "run", raises(ZeroDivisionError("a mistake")))
    code, _, err = run(*NUTS_TOO, "--out", tmp_path)
    note, where, *_, error, line = err.splitlines()
    assert note == "pyro-bnn: note: this error was not foreseen; please report it:"
    assert where == "Traceback (most recent call last):"
    assert error == "ZeroDivisionError: a mistake"
    assert (code, line) == (1, "pyro-bnn: NUTS: ZeroDivisionError: a mistake")
    assert methods_of(tmp_path) == ["AutoNormal"]
    assert lost_in(tmp_path) == ["NUTS has no row: ZeroDivisionError: a mistake."]


def test_the_only_method_that_runs_out_of_memory_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NUTS, "run", raises(MemoryError()))
    code, _, err = run("fit", *MOONS, "--method", "nuts", *SHORT, "--out", tmp_path / "fit")
    assert code == 1
    assert err.startswith("pyro-bnn: there is not enough memory")
    assert not (tmp_path / "fit").exists()


@pytest.mark.usefixtures("no_draws")
def test_memory_that_ends_after_the_fits_is_told_in_one_line_and_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Comparison, "save", raises(RuntimeError(TORCHS)))
    code, _, err = run(*TWO, "--out", tmp_path)
    assert code == 1
    note, line = err.splitlines()
    assert note == f"pyro-bnn: note: fits that have ended are in the folder '{tmp_path / FITS}'"
    assert line.startswith("pyro-bnn: there is not enough memory: fewer rows a step")
    names = {"auto-normal.safetensors", "auto-delta.safetensors"}
    assert {path.name for path in (tmp_path / FITS).iterdir()} == names


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError(TORCHS), True),
        (RuntimeError("std::bad_alloc"), True),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), True),
        (ImportError("libtiff.so: failed to map segment from shared object"), True),
        (ImportError("No module named 'libtiff'"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), False),
    ],
)
def test_what_says_that_memory_is_exceeded(error: Exception, expected: bool) -> None:
    assert is_exceeded(error) is expected


@pytest.mark.parametrize(
    ("command", "where", "advice"),
    [
        (
            TWO,
            "load_rows",
            "fewer rows a step (--batch-size), draws (--samples), chains (--chains), training rows "
            "(--max-rows), units (--hidden) or processes (--jobs) take less",
        ),
        (("prior",), "make_networks", "fewer draws (--draws) or units (--hidden) take less"),
        (("report", "x.nc"), "", "end other programs, or take a machine with more"),
    ],
)
def test_what_takes_less_memory_is_an_option_of_the_command(
    command: tuple[str, ...], where: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"pyro_bnn.cli.networks.{where}" if where else "pyro_bnn.report.compare_files"
    monkeypatch.setattr(place, raises(MemoryError()))
    monkeypatch.setattr("pyro_bnn.report.saved.compare_files.named_files", lambda files: {})
    code, _, err = run(*command)
    assert (code, err) == (1, f"pyro-bnn: there is not enough memory: {advice}\n")


def test_one_draw_is_refused_before_the_first_fit(tmp_path: Path) -> None:
    one = ("--chains", "1", "--warmup", "5", "--samples", "1")
    code, out, err = run(*TWO[:-1], "nuts", *one, "--out", tmp_path / "out")
    assert code == 2
    code, out, err = run("compare", *MOONS, "--methods", "nuts", *one, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "NUTS keeps one draw" in err
    assert "raise --samples or --chains" in err


def test_fewer_draws_than_are_ranked_are_refused_before_the_first_run(tmp_path: Path) -> None:
    command = ("sbc", *MOONS, "--method", "nuts", "--samples", "20", "--out", tmp_path / "out")
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    assert "--samples 20 keeps fewer draws than the 99 that the truth is ranked among" in err
    assert not (tmp_path / "out").exists()


# A folder that fails


@contextmanager
def full(folder: Path, monkeypatch: pytest.MonkeyPatch, *, but: str = "") -> Iterator[None]:
    """A disk that has no room left below a folder, but for names that match a pattern."""
    whole = atomic.whole

    @contextmanager
    def refuse(path: Path) -> Iterator[Path]:
        if folder in path.parents and not (but and re.fullmatch(but, path.name)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with whole(path) as partial:
            yield partial

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "whole", refuse)
        yield


def rescued(err: str, temporary: Path) -> Path:
    """The folder that the last line of a command names."""
    line = err.splitlines()[-1]
    assert "No space left on device" in line
    found = re.search(r"It is in the folder '(.+?)' instead", line)
    assert found is not None, line
    folder = Path(found[1])
    assert folder.parent == temporary
    assert folder.name.startswith(PREFIX)
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_comparison_on_a_full_disk_is_in_the_folder_that_is_named(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Comparison, "write_draws", lambda self, name, path: atomic.write_text(path, "draws")
    )
    with full(tmp_path / "out", monkeypatch):
        code, out, err = run(*TWO, "--out", tmp_path / "out")
    assert code == 1
    folder = rescued(err, temporary)
    names = {"index.html", "table.csv", "verdicts.json", "auto-normal.nc", "auto-delta.nc"}
    assert {path.name for path in folder.iterdir()} == names
    for name in names:
        assert f"Wrote {folder / name}\n" in out


def test_a_disk_that_fills_midway_has_the_page_and_the_fits(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Comparison, "write_draws", lambda self, name, path: atomic.write_text(path, "draws")
    )
    own = tmp_path / "out"
    with full(own, monkeypatch, but=r".*\.(csv|json|html|safetensors)|auto-delta.nc"):
        code, _, err = run(*TWO, "--out", own)
    assert code == 1
    assert {path.name for path in rescued(err, temporary).iterdir()} >= {"auto-normal.nc"}
    assert {path.name for path in own.iterdir()} == {
        *("index.html", "table.csv", "verdicts.json", "auto-delta.nc", FITS)
    }
    assert (own / FITS / "auto-normal.safetensors").exists()


def test_a_fit_on_a_full_disk_is_in_the_folder_that_is_named(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full(tmp_path / "out", monkeypatch):
        code, out, err = run(
            "fit", *MOONS, "--steps", "20", "--method", "auto-normal", "--out", tmp_path / "out"
        )
    assert code == 1
    assert "Held-out, 20 rows" in out
    assert SavedFit.load(rescued(err, temporary)).posterior.seed == 0


def test_ranks_on_a_full_disk_are_in_the_folder_that_is_named(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = ("--rows", "8", "--steps", "1", "--simulations", "20")
    with full(tmp_path / "out", monkeypatch):
        code, _, err = run(
            "sbc", *MOONS, "--method", "auto-normal", *tiny, "--out", tmp_path / "out"
        )
    assert code == 1
    assert {path.suffix for path in rescued(err, temporary).iterdir()} == {".csv", ".png"}


def test_a_report_of_files_on_a_full_disk_is_in_the_folder_that_is_named(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*TWO, "--out", tmp_path / "fits").code == 0
    files = [tmp_path / "fits" / f"{name}.nc" for name in ("auto-normal", "auto-delta")]
    with full(tmp_path / "out", monkeypatch, but="table.csv"):
        code, out, err = run("report", *files, "--out", tmp_path / "out")
    assert code == 1
    assert "2 methods on 20 held-out rows" in out
    names = {"index.html", "table.csv", "verdicts.json"}
    folder = rescued(err, temporary)
    assert {path.name for path in folder.iterdir()} == names
    assert all(f"Wrote {folder / name}\n" in out for name in names)


@pytest.mark.parametrize("is_link", [False, True])
def test_a_picture_on_a_full_disk_is_in_the_folder_that_is_named(
    is_link: bool, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "prior.png"
    if is_link:
        (tmp_path / "link.png").symlink_to(path)
    asked = ("prior", "--hidden", "2", "--draws", "400")
    with full(tmp_path / "out", monkeypatch):
        code, out, err = run(*asked, "--out", tmp_path / "link.png" if is_link else path)
    assert code == 1
    assert "f in the middle is within" in out
    picture = rescued(err, temporary) / "prior.png"
    assert f"Wrote {picture}\n" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_where_no_folder_can_be_written_to_the_result_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, why = write_or_rescue(tmp_path / "out", raises(OutputError("cannot write 'x'")))
    assert folder is None
    assert why == "cannot write 'x'. Folders for temporary files take it neither"


# Two commands, one folder


def test_a_folder_that_another_command_writes_to_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with locked_folder(out):
        for command in (TWO, ("fit", *MOONS, "--method", "auto-delta", "--steps", "20")):
            code, said, err = run(*command, "--out", out)
            assert (code, said) == (2, "")
            assert err == (
                f"pyro-bnn: another command is writing to the folder '{out}': wait for its end, or "
                "choose another --out\n"
            )
    assert not out.exists()


@pytest.mark.parametrize(
    "command",
    [
        TWO,
        ("trust", *MOONS, "--methods", "auto-delta", "--steps", "20"),
        ("sbc", *MOONS, "--method", "auto-normal", "--steps", "20", "--simulations", "20"),
    ],
    ids=lambda command: command[0],
)
def test_a_folder_of_checkpoints_that_another_command_saves_to_is_refused(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    saved, out = tmp_path / "saved", tmp_path / "out"
    with Saves(checkpoint=saved).alone():
        code, said, err = run(*command, "--out", out, "--checkpoint", saved)
    assert (code, said) == (2, "")
    assert err == (
        f"pyro-bnn: another command is saving to the folder '{saved}': wait for its end, or choose "
        "another --checkpoint\n"
    )
    assert not out.exists()
    assert not any(saved.iterdir())


def test_checkpoints_may_be_where_fits_are(tmp_path: Path) -> None:
    saved = tmp_path / "out" / FITS
    command = (*TWO, "--out", tmp_path / "out", "--checkpoint", saved)
    assert run(*command).code == 0
    assert run(*command, "--resume").code == 0
    assert {path.name for path in saved.iterdir()} == {"auto-normal", "auto-delta"}


HOLD = """
import sys, time
from pathlib import Path
from pyro_bnn.cli.kept import locked_folder
with locked_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(300)
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_the_lock_of_a_command_that_was_killed_does_not_hold(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            with (
                pytest.raises(OptionError, match="another command is writing to the folder"),
                locked_folder(out),
            ):
                pass
        finally:
            process.send_signal(signal.SIGKILL)
    partial = out / FITS / ".nuts.safetensors.01234567.tmp", out / ".nuts.nc.89abcdef.tmp"
    for path in partial:
        path.touch()  # as it leaves behind
    with locked_folder(out):
        assert not any(path.exists() for path in partial)
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]  # it was there before
