"""The table holds the numbers of the evaluations in the order of the ranking."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose

from pyro_bnn.report import Comparison
from pyro_bnn.report.evaluation.units import Units
from pyro_bnn.report.output.page import sort_key
from pyro_bnn.report.tables.cells import largest, largest_khat
from pyro_bnn.report.tables.metric import Metric
from pyro_bnn.report.tables.table import sections


def _cells(comparison: Comparison, title: str) -> list[str]:
    columns = [
        column
        for group in sections(comparison.units, comparison.split.task).values()
        for column in group
        if column.title == title
    ]
    (column,) = columns
    rows: list[dict[Any, Any]] = comparison.table.to_dict("records")
    return [column.cell(row).replace("\xa0", " ") for row in rows]


def test_rows_are_ranked_by_the_log_score_alone(regression: Comparison) -> None:
    table = regression.table
    assert (table["log_score"].diff().dropna() <= 0).all()
    assert table["rank"].tolist() == [1, 1, 1, 1, 5]
    assert table.index.name == "method"
    for name, entry in regression.evaluations.items():
        assert_allclose(table.loc[name, "log_score"], entry.held_out.log_score.mean(), rtol=1e-12)
        assert_allclose(table.loc[name, "rmse"], entry.held_out.rmse)


def test_errors_hold_those_of_the_rows_and_of_the_draws(regression: Comparison) -> None:
    held_out = {name: entry.held_out for name, entry in regression.evaluations.items()}
    best = held_out[regression.ranking[0].name]
    for name, row in regression.table.iloc[1:].iterrows():
        own = held_out[str(name)]
        of_rows = (own.log_score - best.log_score).std(ddof=1) / np.sqrt(60)
        of_draws = np.hypot(own.log_score_error, best.log_score_error)
        assert_allclose(row["difference_draws_se"], of_draws, rtol=1e-12)
        assert_allclose(row["difference_se"], np.hypot(of_rows, of_draws), rtol=1e-12)
        own_rows = own.log_score.std(ddof=1) / np.sqrt(60)
        assert_allclose(row["log_score_se"], np.hypot(own_rows, own.log_score_error), rtol=1e-12)
    errors = regression.table["log_score_draws_se"]
    assert errors["MAP"] == 0
    assert (errors.drop("MAP") > 0).all()


def test_units_are_named(regression: Comparison, classes: Comparison) -> None:
    assert regression.table["units"].unique().tolist() == [
        "log scores: nats per test row, densities of y; rmse, crps: units of y"
    ]
    assert "rmse" not in classes.table
    assert classes.table["units"].iloc[0] == "log scores: nats per test row"


def test_what_does_not_apply_is_blank(regression: Comparison) -> None:
    table = regression.table
    assert table["elbo"].isna().tolist() == table.index.isin(["MAP", "NUTS"]).tolist()
    assert table["rhat"].notna().tolist() == (table.index == "NUTS").tolist()
    assert table["distance"].isna().tolist() == (table.index == "NUTS").tolist()
    assert table.loc["MAP", "draws"] == 1
    assert np.isnan(table.loc["shifted", "loo"])
    assert "k-hat" in table.loc["shifted", "notes"]


def test_values_of_khat_above_1_all_read_alike_and_sort_alike(regression: Comparison) -> None:
    khat = regression.table["khat"]
    cells = dict(zip(khat.index, _cells(regression, "k-hat"), strict=True))
    beyond, below = khat.index[khat > 1], khat.index[khat <= 1]
    assert len(beyond)
    assert len(below)
    for name in beyond:
        assert cells[name] == "above 1"
        assert sort_key(cells[name], khat[name]) == "Infinity"
    for name in below:
        assert "±" in cells[name]
        assert sort_key(cells[name], khat[name]) == repr(float(khat[name]))
    assert largest_khat(4.8) == "above 1"
    assert largest(4.8) == "4.80"


def test_loo_is_in_the_units_of_the_held_out_score(regression: Comparison) -> None:
    loo = regression.evaluations["NUTS"].checks.loo
    assert loo is not None
    expected = loo.elpd / 180 - np.log(regression.units.scale[0])
    assert_allclose(regression.table.loc["NUTS", "loo"], expected, rtol=1e-12)
    assert abs(regression.table.loc["NUTS", "loo"] - regression.table.loc["NUTS", "log_score"]) < 1


def test_the_table_reads_back_from_csv(regression: Comparison) -> None:
    back = pd.read_csv(io.StringIO(regression.table.to_csv()), index_col="method")
    assert_allclose(back["log_score"], regression.table["log_score"])
    assert back["tied"].tolist() == regression.table["tied"].tolist()


def test_cells_show_values_with_their_errors(regression: Comparison, classes: Comparison) -> None:
    assert _cells(regression, "log score")[0] == "−5.14 ± 0.19"
    assert _cells(regression, "to the best")[0] == "best"
    assert _cells(regression, "to the best")[1].endswith("(tied)")
    assert "tied" not in _cells(regression, "to the best")[-1]
    assert _cells(regression, "95 % coverage")[0] == "85 % (87 to 100 %)"
    assert _cells(regression, "epistemic sd ratio")[0] == ""
    assert _cells(regression, "divergent")[0] == "3"
    best = classes.ranked[0].held_out
    assert _cells(classes, "ECE (if exact)")[0] == (
        f"{best.ece:.3f} ({best.ece_floor:.3f}, up to {best.ece_high:.3f})"
    )
    assert _cells(classes, "worst R-hat").count("") == 2


def _cell(title: str, **row: Any) -> str:
    """A cell of a row of a regression with one target."""
    units = Units(np.zeros(1), np.ones(1), "y")
    columns = {column.title: column for group in sections(units, "regression").values()
               for column in group}  # fmt: skip
    return columns[title].cell(row).replace("\xa0", " ")


def test_rhat_has_the_digits_that_its_limit_needs() -> None:
    cells = [_cell("worst R-hat", rhat=r, biased=False) for r in (1.01, 1.0512)]
    assert cells == ["1.010", "1.051"]


def test_a_number_that_is_blank_is_of_no_other_model() -> None:
    row = {"sd_ratio_se": 0.1, "sd_ratio_low": 0.3, "sd_ratio_high": 1, "reference_model": "other"}
    expected = "0.50 ± 0.10 (0.30 to 1.00) (other model)"
    assert _cell("epistemic sd ratio", sd_ratio=0.5, **row) == expected
    assert _cell("epistemic sd ratio", sd_ratio=np.nan, **row) == ""


def test_numbers_against_the_reference_are_quantiles_over_rows_and_probes(
    regression: Comparison,
) -> None:
    entry, table = regression.evaluations["narrow"], regression.table
    assert entry.off_data is not None
    assert entry.at_rows is not None
    for at, suffix in ((entry.at_rows, ""), (entry.off_data, "_off_data")):
        ends = table.loc["narrow", [f"sd_ratio_{end}{suffix}" for end in ("low", "high")]]
        assert_allclose(ends.astype(float), np.quantile(at.sd_ratio.values, [0.05, 0.95]))
        shift = np.median(at.mean_shift.values)
        assert_allclose(float(table.loc["narrow", f"mean_shift{suffix}"]), shift)
    cells = _cells(regression, "epistemic sd ratio off data")
    assert sum(map(bool, cells)) == 4  # all but the reference


def test_a_tie_at_the_same_mean_is_not_called_best() -> None:
    row = {"difference": 0.0, "difference_draws_se": 0.0, "tied": True, "p_value": 1.0}
    assert _cell("to the best", difference_se=0.0, **row) == "best"
    assert _cell("to the best", difference_se=0.3, **row) == "0.00 ± 0.30 (tied)"


def test_loo_with_bad_rows_says_so(regression: Comparison) -> None:
    bad = {
        name: entry.checks.loo.num_bad
        for name, entry in regression.evaluations.items()
        if entry.checks.loo is not None
    }
    cells = dict(zip(regression.table.index, _cells(regression, "PSIS-LOO"), strict=True))
    assert any(bad.values())
    for name, count in bad.items():
        assert cells[name].endswith(f"({count} bad)") is (count > 0)


def test_every_column_has_a_meaning_and_keys_of_the_table(
    regression: Comparison, classes: Comparison
) -> None:
    for comparison in (regression, classes):
        groups = sections(comparison.units, comparison.split.task).values()
        columns: list[Metric] = [column for group in groups for column in group]
        for column in columns:
            assert column.meaning.endswith(".")
            assert column.key in comparison.table
