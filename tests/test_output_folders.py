"""A link that somebody left in an output folder is replaced: what it leads to stays as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from pyro_bnn.cli.saved_fit import SavedFit
from tests.command_line import run
from tests.rows import houses

pytestmark = pytest.mark.usefixtures("uncaptured")

FITS = ("--data", "houses.csv", "--hidden", "2", "--steps", "3")
TWO = "auto-delta,auto-normal"
PAGE = ("index.html", "table.csv", "verdicts.json")
COMMANDS = {  # and all files that each writes
    "compare": (("--methods", "auto-delta", *FITS), (*PAGE, "auto-delta.nc")),
    "compare side by side": (
        ("--methods", TWO, "--jobs", "2", *FITS),
        (*PAGE, "auto-delta.nc", "auto-normal.nc"),
    ),
    "compare runs": (
        ("--methods", "auto-delta", "--splits", "0,1", *FITS),
        (
            *("index.html", "table.csv", "runs.csv"),
            *(f"split-{k}-seed-0/{name}" for k in (0, 1) for name in (*PAGE, "auto-delta.nc")),
        ),
    ),
    "fit": (
        ("--method", "auto-delta", *FITS),
        ("fit.json", "posterior.safetensors", "training.safetensors"),
    ),
    "sbc": (
        (*("--method", "auto-delta", "--simulations", "20", "--draws", "19", "--rows", "8"), *FITS),
        ("ranks.png", "ranks.csv", "table.csv"),
    ),
    "trust": (
        (
            *("--data", "digits", "--max-rows", "60", "--hidden", "4", "--methods", "auto-delta"),
            *("--steps", "3", "--corrupt", "1", "--kinds", "inverse", "--draws", "4"),
        ),
        ("index.html", "table.csv", "shifted.csv", "conditions.csv"),
    ),
}


@pytest.mark.slow("runs whole commands")
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_follows_a_link_in_its_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pyro_bnn.report.beyond.page.PLOTS", {})
    houses().to_csv("houses.csv", index=False)
    options, files = COMMANDS[name]
    for number, file in enumerate(files):
        path, victim = Path("out", file), Path(f"victim {number}").absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        victim.write_text("of somebody else")
        path.symlink_to(victim)
    threads = torch.get_num_threads()
    assert run(name.split(maxsplit=1)[0], *options, "--out", "out").code == 0
    torch.set_num_threads(threads)
    found = {str(path.relative_to("out")) for path in Path("out").rglob("*") if path.is_file()}
    assert found == set(files)
    for number, file in enumerate(files):
        assert not Path("out", file).is_symlink()
        assert Path("out", file).stat().st_size > 40
        assert Path(f"victim {number}").read_text() == "of somebody else"


@pytest.mark.slow("runs whole commands")
@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes there")
@pytest.mark.parametrize("command", ["compare", "fit"])
def test_folders_and_files_whose_names_are_no_text(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    """The command is written into pages and fits; after all fits that ended in a traceback."""
    monkeypatch.chdir(tmp_path)
    data, out = "houses \udcff.csv", "out %20 é \udcff"
    houses().to_csv(data, index=False)
    options, files = COMMANDS[command]
    done = run(command, *options, "--data", data, "--out", out)
    assert done.code == 0, done.err
    assert sorted(path.name for path in Path(out).iterdir()) == sorted(files)
    if command == "fit":
        loaded = SavedFit.load(out)
        assert loaded.command.endswith(out + "'")
        return
    page = Path(out, "index.html").read_text(encoding="utf-8")
    assert "out %20 é \\udcff" in page


@pytest.mark.parametrize(
    "args",
    [
        ("compare", "--methods", "auto-delta", "--data"),
        ("compare", "--methods", "auto-delta", *FITS, "--out"),
        ("compare", "--methods", "auto-delta", *FITS, "--out", "out", "--checkpoint"),
        ("predict", "houses.csv", "--posterior"),
        ("report",),
    ],
    ids=" ".join,
)
def test_a_path_that_is_too_long_is_one_line(
    args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    houses().to_csv("houses.csv", index=False)
    done = run(*args, "x" * 300)
    assert done.code == 1
    assert "File name too long; ch" in done.err
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
