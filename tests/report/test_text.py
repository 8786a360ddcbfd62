"""The summary for a terminal."""

import pytest

from pyro_bnn.report import Comparison, text
from pyro_bnn.report.table import sections


def test_the_summary_fits_the_terminal_and_holds_table_and_verdicts(regression: Comparison) -> None:
    lines = repr(regression).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == (
        "arrays: 5 methods on 60 held-out rows (180 for training), 1,000 draws each"
    )
    assert lines[2].split() == ["Held-out", "scores", "log", "score", "to", "the", "best", "RMSE",
                                "CRPS", "95", "%", "coverage"]  # fmt: skip
    assert lines[4].startswith("NUTS ")
    assert lines[5].startswith("AutoLowRankMultivariate… ")
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
