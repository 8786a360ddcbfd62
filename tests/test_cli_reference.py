"""``pyro-bnn compare --reference auto``: a reference that no method of the command is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pyro_bnn.cli import runs as running
from pyro_bnn.cli.methods import Auto, find_methods, find_reference
from pyro_bnn.errors import DivergenceError, OptionError, SiteError
from pyro_bnn.infer import NUTS
from pyro_bnn.report.ladder.rungs import Rung
from pyro_bnn.report.output.names import FITS
from tests.command_line import run

QUICK = ("compare", "--data", "diabetes", "--max-rows", "40", "--hidden", "2", "--steps", "50")
SHORT = NUTS(warmup_steps=50, num_samples=16, compile=True)


@pytest.fixture(autouse=True)
def _threads_are_given_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def short_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rung, whose draws are too few to pass."""
    rung = Rung(engine=SHORT)
    monkeypatch.setattr("pyro_bnn.report.ladder.reference.climb", lambda: iter([rung]))


@pytest.mark.slow("a whole comparison")
@pytest.mark.usefixtures("no_pictures", "short_ladder")
def test_it_takes_part_under_the_name_of_its_engine_and_says_what_was_tried(
    tmp_path: Path,
) -> None:
    options = ("--methods", "auto-normal", "--reference", "auto:seconds=60", "--out", tmp_path)
    code, out, err = run(*QUICK, *options)
    assert (code, err) == (0, "")
    table = pd.read_csv(tmp_path / "table.csv", index_col=0)
    assert set(table.index) == {"AutoNormal", "NUTS"}
    assert table.loc["AutoNormal", "distance"] > 0
    assert f"Reference, rung 1: {Rung(engine=SHORT).name} from draws of the prior failed by " in out
    text = " ".join(out.split())
    assert "The reference NUTS was looked for in " in text
    assert "of at most 60.0 s" in text
    assert "None passed: rung 1 is taken" in text
    assert "What its chains agree on: R-hat " in text
    document = json.loads((tmp_path / "verdicts.json").read_text("utf-8"))
    assert document["reference"] == "NUTS"
    (said,) = (one for one in document["verdicts"] if one["kind"] == "climb")
    assert said["is_warning"]
    again = run("report", tmp_path / "auto-normal.nc", tmp_path / "nuts.nc", "--out", tmp_path)
    assert "The reference NUTS was looked for in " in " ".join(again.out.split())


@pytest.mark.slow("a whole comparison")
@pytest.mark.usefixtures("no_pictures", "short_ladder")
def test_beside_a_method_of_its_engine_it_has_a_name_of_its_own(tmp_path: Path) -> None:
    of_nuts = ("--warmup", "20", "--samples", "20")
    options = ("--methods", "nuts,auto-delta", *of_nuts, "--reference", "auto", "--out", tmp_path)
    code, _, err = run(*QUICK, *options)
    assert (code, err) == (0, "")
    document = json.loads((tmp_path / "verdicts.json").read_text("utf-8"))
    assert document["reference"] == "NUTS (reference)"
    assert {path.name for path in tmp_path.glob("*.nc")} == {
        "nuts.nc", "auto-delta.nc", "nuts-reference.nc",
    }  # fmt: skip


@pytest.mark.slow("a whole comparison")
@pytest.mark.usefixtures("no_pictures")
def test_where_no_engine_has_draws_the_other_methods_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any, **__: Any) -> None:
        raise DivergenceError("no rung of the ladder has draws: NUTS: none")

    monkeypatch.setattr(running, "reference", none)
    options = ("--methods", "auto-normal", "--reference", "auto", "--out", tmp_path)
    code, out, err = run(*QUICK, *options)
    assert code == 1
    assert "reference: no rung of the ladder has draws: NUTS: none" in err
    assert "No reference: no rung of the ladder has draws" in out
    assert list(pd.read_csv(tmp_path / "table.csv", index_col=0).index) == ["AutoNormal"]


@pytest.mark.slow("whole comparisons")
@pytest.mark.usefixtures("no_pictures")
def test_where_the_search_fails_the_other_methods_are_reported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not where its checkpoint is of another run: that is told before anything is written."""
    options = ("--methods", "auto-delta", "--reference", "auto", "--out", tmp_path / "out")
    found: list[str] = []
    for error in (MemoryError(), SiteError("no engine serves the model"), RuntimeError("no")):

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(running, "reference", fail)
        code, _, err = run(*QUICK, *options)
        assert code == 1
        assert list(pd.read_csv(tmp_path / "out" / "table.csv")["method"]) == ["AutoDelta"]
        found.append(err.splitlines()[-1].removeprefix("pyro-bnn: reference: "))
    assert found[0].startswith("there is not enough memory")
    assert found[1:] == ["no engine serves the model", "RuntimeError: no"]
    code, *_ = run(*QUICK, *options, "--checkpoint", tmp_path / "saved")
    assert code == 1

    def other(*_: Any, **__: Any) -> None:
        raise OptionError("the checkpoint is of another run")

    monkeypatch.setattr(running, "reference", other)
    code, _, err = run(*QUICK, *options, "--checkpoint", tmp_path / "saved", "--resume")
    assert code == 2
    assert err.endswith("pyro-bnn: the checkpoint is of another run\n")


@pytest.mark.slow("a whole comparison")
@pytest.mark.usefixtures("no_pictures", "short_ladder")
def test_a_reference_that_was_found_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "compare_all", fail)
    of_nuts = ("--warmup", "20", "--samples", "20")
    options = ("--methods", "nuts,auto-delta", *of_nuts, "--reference", "auto", "--out", tmp_path)
    assert run(*QUICK, *options).code == 130
    assert {path.name for path in (tmp_path / FITS).iterdir()} == {
        "nuts.safetensors", "auto-delta.safetensors", "nuts-reference.safetensors",
    }  # fmt: skip


@pytest.mark.slow("whole comparisons")
@pytest.mark.usefixtures("no_pictures", "short_ladder")
def test_each_split_has_a_reference_of_its_own(tmp_path: Path) -> None:
    options = ("--methods", "auto-delta", "--reference", "auto", "--splits", "0-1", "--jobs", "1")
    code, _, err = run(*QUICK, *options, "--out", tmp_path)
    assert (code, err) == (0, "")
    for split in (0, 1):
        file = tmp_path / f"split-{split}-seed-0" / "verdicts.json"
        assert json.loads(file.read_text("utf-8"))["reference"] == "NUTS"


@pytest.mark.slow("processes")
@pytest.mark.usefixtures("no_pictures", "short_ladder")
def test_methods_that_are_fitted_side_by_side_have_one_too(tmp_path: Path) -> None:
    options = ("--methods", "auto-normal,auto-delta", "--reference", "auto", "--jobs", "2")
    code, _, err = run(*QUICK, *options, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert {path.stem for path in tmp_path.glob("*.nc")} == {"auto-normal", "auto-delta", "nuts"}


def test_the_bound_of_time_is_read() -> None:
    methods = find_methods("auto-normal")
    assert find_reference("auto", methods) == Auto(seconds=600.0)
    assert find_reference(" AUTO : seconds = 1.5 ", methods) == Auto(seconds=1.5)
    assert find_reference("auto-normal", methods) == "AutoNormal"


@pytest.mark.parametrize("text", ["auto:", "auto:seconds", "auto:seconds=0", "auto:minutes=3",
                                  "auto:seconds=inf", "auto:seconds=ten"])  # fmt: skip
def test_another_bound_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--reference auto takes a positive number of seconds"):
        find_reference(text, find_methods("auto-normal"))


def test_a_network_with_trained_weights_is_refused_before_the_first_fit(tmp_path: Path) -> None:
    options = ("--methods", "auto-rank1-mixture", "--model", "rank1-mlp", "--reference", "auto")
    code, out, err = run(*QUICK, *options, "--out", tmp_path)
    assert code == 2
    assert "--reference auto draws all weights, and Rank1MLP has some that a fit trains" in err
    assert "Comparing" not in out
