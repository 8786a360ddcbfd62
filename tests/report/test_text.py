"""The summary for a terminal."""

import pytest

from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.output import text
from pyro_bnn.report.tables.table import sections
from tests.report.conjugate import LinearPosterior


def test_the_summary_fits_the_terminal_and_holds_table_and_verdicts(regression: Comparison) -> None:
    lines = repr(regression).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == (
        "arrays: 5 methods on 60 held-out rows (180 for training), 1,000 draws each"
    )
    assert lines[1] == "Model of all methods: linear"
    assert lines[3].split() == ["Held-out", "scores", "log", "score", "to", "the", "best", "RMSE",
                                "CRPS", "95", "%", "coverage"]  # fmt: skip
    assert lines[5].startswith("NUTS ")
    assert lines[6].startswith("AutoLowRankMultivariate… ")
    flat = " ".join(line[2:] for line in lines if line[:2] in ("- ", "! ", "  "))
    for verdict in regression.verdicts:
        assert verdict in flat


def test_warnings_are_marked(regression: Comparison) -> None:
    text = regression.summary()
    assert "\n- NUTS has the highest" in text
    assert "\n! NUTS: 3 of 1200 draws diverged" in text


def test_sections_without_numbers_are_left_out(one_input: Comparison) -> None:
    assert "Against the reference" not in one_input.summary()
    assert "divergent" not in one_input.summary()


def test_columns_that_do_not_fit_go_on_below(
    regression: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    def titles(summary: str) -> set[str]:
        known = (c.title for cs in sections(regression.units, "regression").values() for c in cs)
        return {title for title in known if title in summary}

    wide = titles(regression.summary())
    monkeypatch.setattr(text, "WIDTH", 70)
    narrow = regression.summary()
    assert max(map(len, narrow.splitlines())) <= 70
    assert titles(narrow) == wide
    assert len(wide) > 8


@pytest.mark.slow("about a second")
def test_the_models_are_named_first(one_input: Comparison) -> None:
    posteriors = {
        "a": LinearPosterior(one_input.split, model="MLP 1-5-1, Cauchy prior"),
        "b": LinearPosterior(one_input.split, model="MLP 1-5-1, Normal prior"),
        "c": LinearPosterior(one_input.split, model="MLP 1-5-1, Cauchy prior"),
    }
    lines = compare(posteriors, one_input.split).summary().splitlines()
    assert lines[1:3] == [
        "Model 1: MLP 1-5-1, Cauchy prior; of a, c",
        "Model 2: MLP 1-5-1, Normal prior; of b",
    ]
    heads = [line for line in lines if line.startswith(("Held-out scores", "Checks of fits"))]
    assert {head[:8]: "model" in head.split() for head in heads[::-1]} == {  # the first of each
        "Held-out": True,
        "Checks o": True,
    }
    alone = compare({"a": posteriors["a"]}, one_input.split).summary().splitlines()
    assert alone[1] == "Model: MLP 1-5-1, Cauchy prior"
    assert not any("model" in line.split() for line in alone if line.startswith("Held-out"))
