"""``--checkpoint`` and ``--resume``: commands that are stopped, and go on to the same end."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn.cli.saved_fit import SavedFit
from pyro_bnn.cli.saves import Saves
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.infer import NUTS
from pyro_bnn.infer.mcmc.sampling import Sampling
from pyro_bnn.infer.svi.fit_each import Together
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.report import Comparison
from tests.command_line import Result, run
from tests.saves import document_of

pytestmark = [
    pytest.mark.usefixtures("short_trajectories", "uncaptured"),
    pytest.mark.slow("whole commands, stopped and resumed"),
]

TINY = ("--data", "moons", "--hidden", "2", "--steps", "30")
SHORT = ("--chains", "2", "--warmup", "10", "--samples", "20")
ONE = ("compare", *TINY, "--methods", "auto-delta", "--quiet")
TWO = ("compare", *TINY, "--methods", "auto-normal,auto-delta", "--quiet")


@pytest.fixture(autouse=True)
def _process_is_given_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands set torch's threads for good; Ctrl-C is as in a foreground process; bare reports."""
    monkeypatch.setattr("pyro_bnn.report.output.html.render", lambda *args: "a report")
    monkeypatch.setattr(Comparison, "write_draws", lambda *args: None)
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)
    torch.set_num_threads(threads)


def count_steps(
    monkeypatch: pytest.MonkeyPatch, cls: type[Any] = Training, *, stop_after: int | None = None
) -> list[int]:
    """Steps of all runs from now on; in the one of this number comes Ctrl-C."""
    name = "_advance" if cls is Training else "go"
    step: Callable[..., None] = getattr(cls, name)
    made = [0]

    def counted(self: Any, *args: Any) -> None:
        step(self, *args)
        made[0] += 1
        if made[0] == stop_after:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(cls, name, counted)
    return made


def line_to_go_on(result: Result) -> list[str]:
    """The arguments that the one line of a command that was stopped names."""
    assert result.code == 130
    assert result.err.count("\n") == 1
    start = "pyro-bnn: interrupted; to go on: pyro-bnn "
    assert result.err.startswith(start)
    return shlex.split(result.err.removeprefix(start))


def table(folder: Path, name: str = "table.csv") -> pd.DataFrame:
    return pd.read_csv(folder / name).drop(columns="seconds", errors="ignore")


def is_complete(folder: Path) -> bool:
    return bool(document_of(folder)["is_complete"])


@pytest.mark.slow("samples chains")
def test_a_comparison_goes_on_in_the_middle_of_a_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("compare", *TINY, *SHORT, "--methods", "auto-normal,nuts")
    assert run(*command, "--out", tmp_path / "whole").code == 0
    saved, out = tmp_path / "my runs", tmp_path / "parts"
    with monkeypatch.context() as patch:
        steps = count_steps(patch, Sampling, stop_after=40)
        stopped = run(*command, "--out", out, "--checkpoint", saved)
    assert steps == [40]
    args = line_to_go_on(stopped)
    assert args == [*command, "--out", str(out), "--checkpoint", str(saved), "--resume"]
    assert "NUTS        interrupted, and saved at window " in stopped.out
    assert [path.name for path in out.rglob("*.*")] == ["auto-normal.safetensors"]  # it has ended
    assert is_complete(saved / "auto-normal")
    assert not is_complete(saved / "nuts")

    steps = count_steps(monkeypatch)
    code, said, err = run(*args)
    assert (code, err, steps) == (0, "", [0])
    assert "AutoNormal  resumed at the end" in said
    assert "NUTS        resumed at window " in said
    pd.testing.assert_frame_equal(table(out), table(tmp_path / "whole"), check_exact=True)


def test_runs_over_splits_and_seeds_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (*ONE, "--splits", "0-1", "--seeds", "3,5")
    assert run(*command, "--out", tmp_path / "whole").code == 0
    saved, out = tmp_path / "saved", tmp_path / "parts"
    with monkeypatch.context() as patch:
        count_steps(patch, stop_after=30 + 7)
        args = line_to_go_on(run(*command, "--out", out, f"--checkpoint={saved}"))
    folders = [saved / f"split-0-seed-{seed}" / "auto-delta" for seed in (3, 5)]
    assert sorted(saved.glob("*/*")) == folders
    assert [is_complete(folder) for folder in folders] == [True, False]
    with monkeypatch.context() as patch:
        count_steps(patch, stop_after=40)  # stopped again
        assert line_to_go_on(run(*args)) == args
    steps = count_steps(monkeypatch)
    assert run(*args).code == 0
    assert steps == [4 * 30 - 30 - 7 - 40]
    for name in ("table.csv", "runs.csv"):
        pd.testing.assert_frame_equal(
            table(out, name), table(tmp_path / "whole", name), check_exact=True
        )


def test_a_fit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("fit", *TINY, "--method", "auto-normal", "--batch-size", "50")
    assert run(*command, "--out", tmp_path / "whole").code == 0
    saved = tmp_path / "saved"
    with monkeypatch.context() as patch:
        count_steps(patch, stop_after=11)
        stopped = run(*command, "--out", tmp_path / "parts", "--checkpoint", saved)
    assert "AutoNormal  interrupted, and saved at step 11 of 30" in stopped.out
    assert not is_complete(saved)
    code, out, _ = run(*line_to_go_on(stopped))
    assert code == 0
    assert "AutoNormal  resumed at step 11 of 30" in out
    whole, parts = (SavedFit.load(tmp_path / name).posterior for name in ("whole", "parts"))
    assert torch.equal(whole.unconstrained(5)[0], parts.unconstrained(5)[0])
    np.testing.assert_array_equal(whole.losses, parts.losses)


def test_a_page_of_several_seeds_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_bnn.report.beyond.page.render", lambda *args: "a page")
    command = (
        *("trust", "--data", "digits", "--max-rows", "60", "--hidden", "2", "--steps", "20"),
        *("--methods", "auto-delta", "--seeds", "0,1", "--draws", "4", "--quiet"),
    )
    assert run(*command, "--out", tmp_path / "whole").code == 0
    saved, out = tmp_path / "saved", tmp_path / "parts"
    with monkeypatch.context() as patch:
        count_steps(patch, stop_after=20 + 7)
        args = line_to_go_on(run(*command, "--out", out, "--checkpoint", saved))
    folders = [saved / f"seed-{seed}" / "auto-delta" for seed in (0, 1)]
    assert [is_complete(folder) for folder in folders] == [True, False]
    assert [path.name for path in out.rglob("*.*")] == ["seed-0-auto-delta.safetensors"]
    steps = count_steps(monkeypatch)
    assert run(*args).code == 0
    assert steps == [20 - 7]
    assert {path.name for path in out.iterdir()} == {"index.html", "table.csv"}
    pd.testing.assert_frame_equal(table(out), table(tmp_path / "whole"), check_exact=True)
    assert run(*args[:-1]).code == 2  # without --resume


@pytest.mark.parametrize(
    ("options", "cls", "stop_after", "name"),
    [
        (("auto-normal", "--steps", "50"), Together, 20, "probabilities.csv"),  # of all at once
        (("auto-delta", "--steps", "20"), Training, 100, "ranks.csv"),  # one after the other
        (("nuts", "--samples", "20", "--warmup", "10"), Sampling, 30, "ranks.csv"),
    ],
)
def test_a_calibration_goes_on(
    options: tuple[str, ...],
    cls: type[Any],
    stop_after: int,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = (
        *("sbc", "--data", "moons", "--hidden", "2", "--rows", "8", "--simulations", "20"),
        *("--draws", "19", "--quiet", "--method", *options),
    )
    with monkeypatch.context() as patch:
        made = count_steps(patch, cls)
        assert run(*command, "--out", tmp_path / "whole").code == 0
        (num_steps,) = made
    saved, out = tmp_path / "saved", tmp_path / "parts"
    with monkeypatch.context() as patch:
        stopped = count_steps(patch, cls, stop_after=stop_after)
        args = line_to_go_on(run(*command, "--out", out, "--checkpoint", saved))
    assert stopped == [stop_after]
    steps = count_steps(monkeypatch, cls)
    assert run(*args).code == 0
    assert steps[0] + stop_after == num_steps
    assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (out / "table.csv").read_bytes() == (tmp_path / "whole" / "table.csv").read_bytes()
    code, said, err = run(*args[:-1])
    assert (code, said) == (2, "")
    assert "holds a checkpoint already: add --resume to go on from it" in err


def test_an_error_of_one_method_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise OptionError("no sampler today")

    monkeypatch.setattr(NUTS, "run", refuse)
    saved = tmp_path / "saved"
    command = ("compare", *TINY, *SHORT, "--methods", "auto-normal,nuts", "--out", tmp_path)
    code, _, err = run(*command, "--checkpoint", saved)
    assert (code, err) == (1, "pyro-bnn: NUTS: no sampler today\n")
    assert is_complete(saved / "auto-normal")
    assert table(tmp_path)["method"].tolist() == ["AutoNormal"]


def test_a_checkpoint_of_another_run_ends_the_command(tmp_path: Path) -> None:
    """Also where an error of the data would lose one run of several."""
    data, saved = tmp_path / "own.csv", ("--checkpoint", tmp_path / "saved", "--out", tmp_path)
    x = np.random.default_rng(0).normal(size=(40, 2))
    pd.DataFrame(x, columns=["a", "b"]).to_csv(data, index=False)
    command = (*ONE, "--data", data, "--seeds", "0,1", *saved)
    assert run(*command).code == 0
    assert run(*command, "--resume", "--steps", "40") == (
        2,
        "",
        f"pyro-bnn: the checkpoint {tmp_path}/saved/split-0-seed-0/auto-delta is of a run with "
        "num_steps=30 where this run has 40: run it with the same options, or pass another "
        "folder\n",
    )
    pd.DataFrame(x + 1e-3 * x**2, columns=["a", "b"]).to_csv(data, index=False)
    code, out, err = run(*command, "--resume")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"pyro-bnn: the checkpoint {tmp_path}/saved/split-0-seed-0/auto-delta is")
    assert "of a run on other data" in err


def test_a_checkpoint_of_another_run_is_refused_before_others_are_written(tmp_path: Path) -> None:
    """Whichever method it is of."""
    saved = ("--checkpoint", tmp_path / "saved", "--out", tmp_path, "--jobs", "1")
    assert run(*ONE, *saved).code == 0
    code, out, err = run(*TWO, *saved, "--resume", "--hidden", "3")
    assert (code, out) == (2, "")
    assert "saved/auto-delta is of a" in err
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["auto-delta"]
    assert run(*TWO, *saved, "--resume").code == 0
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "auto-delta",
        "auto-normal",
    ]


@pytest.mark.parametrize("resume", [False, True])
def test_an_error_of_the_data_of_a_run_that_begins_stays_one(tmp_path: Path, resume: bool) -> None:
    """So that it loses one run of several, and not all of them."""
    error = DataError("a column is constant")

    def refuse(**options: Any) -> Any:
        assert options == {"checkpoint": tmp_path, "resume": False}
        raise error

    with pytest.raises(DataError, match="a column is constant") as caught:
        Saves(checkpoint=tmp_path, resume=resume).run(refuse, pytest.fail, "")
    assert caught.value is error


def test_a_run_without_a_checkpoint_begins(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    code, _, err = run(*ONE, "--out", tmp_path, "--checkpoint", saved, "--resume")
    assert (code, err) == (
        0,
        f"pyro-bnn: note: {saved} holds no checkpoint: all starts at the beginning\n",
    )
    code, _, err = run(*TWO, "--out", tmp_path, "--checkpoint", saved, "--resume")
    assert (code, err) == (0, "")  # a method more is no surprise
