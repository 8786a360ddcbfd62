"""The command `trust`: a page of fits of a few steps, and what is refused before the first one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from pyro_bnn.report.beyond import estimate
from tests.command_line import Result, run


def trust(*options: str | Path) -> Result:
    threads = torch.get_num_threads()
    found = run("trust", "--data", "digits", "--max-rows", "60", "--hidden", "4", *options)
    torch.set_num_threads(threads)
    return found


@pytest.mark.slow("fits four times and writes a page")
def test_a_page_of_two_methods_and_two_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its pictures and its standard errors nothing is looked at here."""
    monkeypatch.setattr("pyro_bnn.report.beyond.page.PLOTS", {})
    monkeypatch.setattr(estimate, "RESAMPLES", 10)
    monkeypatch.setattr(estimate, "resamples", estimate.resamples.__wrapped__)  # not the kept ones
    out = tmp_path / "page"
    asked = ("--ood", "digits", "--corrupt", "1,3", "--kinds", "rotate,inverse", "--attack", "0.1")
    small = ("--steps", "20", "--rows", "10", "--draws", "4", "--seeds", "0,1")
    near = ("--reference", "auto-normal")
    found = trust("--methods", "auto-delta,auto-normal", *asked, *small, *near, "--out", out)
    assert (found.code, found.err) == (0, "")
    assert f"Wrote {out / 'index.html'}" in found.out
    table = pd.read_csv(out / "table.csv", index_col="method")
    assert set(table.index) == {"AutoDelta", "AutoNormal"}
    assert table["fits"].tolist() == [2, 2]
    assert table.loc["AutoDelta", "total_variation"] > 0
    conditions = pd.read_csv(out / "conditions.csv")
    assert set(zip(conditions["kind"], conditions["severity"], strict=True)) == {
        ("rotate", 1), ("rotate", 3), ("inverse", 1), ("inverse", 3),
    }  # fmt: skip
    assert (out / "attacked.csv").exists()
    assert "pyro-bnn trust --data digits" in (out / "index.html").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--corrupt", "6"), "severity is 1, 2, 3, 4 or 5"),
        (("--corrupt", "1", "--kinds", "fog"), "there is no corruption 'fog'"),
        (("--corrupt", "x"), "--corrupt"),
        (("--ood", "moons"), "images [N, K, H, W]"),
        (("--attack", "-1"), "attack is a step > 0"),
        (("--reference", "nuts"), "the reference 'NUTS' is none of the methods"),
        (("--kinds", "rotate"), "give their severities as well"),
        (
            ("--draws", "100001"),
            "'--draws': Input should be less than or equal to 100000",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused_before_the_first_fit(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    out = tmp_path / "page"
    found = trust("--methods", "auto-delta", *options, "--out", out)
    assert found.code == (1 if "--ood" in options else 2)  # of the data, of what was asked for
    assert words in found.err
    assert "AutoDelta" not in found.out
    assert not out.exists()


def test_numbers_are_refused() -> None:
    found = run("trust", "--data", "diabetes", "--methods", "auto-delta")
    assert (found.code, "diabetes is a regression set" in found.err) == (1, True)
