"""Several runs put together: averages by hand, pairing, lost runs, counted verdicts, the files."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from pyro_bnn.data import from_arrays
from pyro_bnn.errors import BNNWarning, DataError, OptionError, OutputError
from pyro_bnn.report import RepeatedComparison, SplitRun, compare, compare_runs
from pyro_bnn.report.splits.table import run_sections
from pyro_bnn.report.verdicts.verdict import Verdict
from pyro_bnn.report.verdicts.verdicts import RULES
from tests.report.conjugate import LinearPosterior, regression_split

COLUMNS = ("crps", "coverage_95", "gaussian_log_score", "distance", "sd_ratio", "seconds", "rhat",
           "khat", "threads", "processes")  # fmt: skip
NUM_TRAIN, NUM_TEST = 90, 10


def run(split: int, seed: int, scores: Mapping[str, float], **changes: Any) -> SplitRun:
    """A run with these log scores; RMSE is twice the score less one."""
    names = sorted(scores, key=lambda name: -scores[name])
    table = pd.DataFrame(
        {
            "log_score": [scores[name] for name in names],
            "log_score_se": 0.1,
            "rmse": [2 * scores[name] - 1 for name in names],
            **dict.fromkeys(COLUMNS, np.nan),
        },
        index=pd.Index(names, name="method"),
    )
    for column, values in changes.pop("columns", {}).items():
        table[column] = pd.Series(values)
    about: dict[str, Any] = {
        "data_name": "rows",
        "task": "regression",
        "units": "y",
        "num_train": NUM_TRAIN,
        "num_test": NUM_TEST,
        "test_rows": None,
        **changes,
    }
    return SplitRun(split=split, seed=seed, _table=table if names else None, **about)


def texts(repeated: RepeatedComparison, kind: str) -> list[str]:
    return [f.text.replace("\xa0", " ") for f in repeated.findings if f.kind == kind]


A = {(0, 0): 1.0, (0, 1): 3.0, (1, 0): 4.0, (1, 1): 6.0, (2, 0): 7.0, (2, 1): 9.0}
B = {(0, 0): 0.5, (0, 1): 2.0, (1, 0): 3.5, (1, 1): 4.0, (2, 0): 7.5, (2, 1): 7.0}


def three_splits() -> RepeatedComparison:
    return compare_runs(run(*key, {"B": B[key], "A": A[key]}) for key in reversed(A))


# --- averages ------------------------------------------------------------------------------------


def test_means_and_errors_are_over_splits_of_means_over_seeds() -> None:
    table = three_splits().table
    assert table.index.tolist() == ["A", "B"]
    splits = {"A": np.array([2.0, 5.0, 8.0]), "B": np.array([1.25, 3.75, 7.25])}
    for name, values in splits.items():
        assert_allclose(table.loc[name, "log_score"], values.mean(), rtol=1e-14)
        se = np.std(values, ddof=1) / np.sqrt(3)
        assert_allclose(table.loc[name, "log_score_se"], se, rtol=1e-14)
        assert_allclose(table.loc[name, "rmse"], 2 * values.mean() - 1, rtol=1e-14)
        assert_allclose(table.loc[name, "rmse_se"], 2 * se, rtol=1e-14)
    assert table["log_score_sd"].isna().all()
    assert table["crps"].isna().all()


def test_differences_are_paired_and_corrected() -> None:
    table = three_splits().table
    d = np.array([-0.75, -1.25, -0.75])  # of the splits; unpaired errors would be near 2.4
    assert_allclose(table.loc["B", "difference"], d.mean(), rtol=1e-14)
    expected = np.std(d, ddof=1) * np.sqrt(1 / 3 + NUM_TEST / NUM_TRAIN)
    assert_allclose(table.loc["B", "difference_se"], expected, rtol=1e-14)
    assert table.loc["A", ["difference", "difference_se"]].tolist() == [0.0, 0.0]
    assert table["rank"].tolist() == [1, 2]
    assert table["tied"].tolist() == [True, False]
    assert table["best_in"].tolist() == [5, 1]
    assert table["splits"].tolist() == [3, 3]


def test_the_correction_is_the_mean_share_of_test_rows() -> None:
    runs = [
        run(k, 0, {"A": float(k), "B": k - (1.0, 1.2, 0.7)[k]}, num_test=9 + k) for k in (0, 1, 2)
    ]
    d = -np.array([1.0, 1.2, 0.7])
    expected = np.std(d, ddof=1) * np.sqrt(1 / 3 + 10 / NUM_TRAIN)
    assert_allclose(compare_runs(runs).table.loc["B", "difference_se"], expected, rtol=1e-12)


def test_a_small_difference_is_a_tie_and_shares_the_rank() -> None:
    gaps = {"B": (0.3, -0.2, 0.1), "C": (1.0, 1.1, 0.9)}
    runs = [
        run(k, 0, {"A": 0.0, **{name: -gap[k] for name, gap in gaps.items()}}) for k in range(3)
    ]
    repeated = compare_runs(runs)
    assert repeated.table["rank"].to_dict() == {"A": 1, "B": 1, "C": 3}
    assert [place.name for place in repeated.standings] == ["A", "B", "C"]
    (tied,) = texts(repeated, "tied")
    assert tied.startswith("Tied with A, no method is shown to be better: B (")
    assert tied.endswith("These splits do not separate them.")
    best, behind = texts(repeated, "scores")
    assert best.startswith("A has the highest mean held-out log score over 3 splits, 0")
    assert behind.startswith("Behind, with the difference to A: C (−1.000 ± 0.067, p 0.01")
    assert "over all pairs of the 3 methods" in behind
    assert "2 degrees of freedom" in behind
    assert "behind of which none is better at 5 % or below" in behind
    assert repeated.table["tied"].to_dict() == {"A": True, "B": True, "C": False}
    assert texts(repeated, "wins") == [
        "Highest held-out log score of a run, of 3 runs: A in 2, B in 1."
    ]


def test_an_infinite_score_is_behind_and_never_tied() -> None:
    runs = [run(k, 0, {"A": 0.1 * k, "B": -math.inf if k else 5.0}) for k in range(3)]
    table = compare_runs(runs).table
    assert table["rank"].to_dict() == {"A": 1, "B": 2}
    assert table.loc["B", "difference"] == -math.inf


def test_closed_form_posteriors_over_splits() -> None:
    x = np.random.default_rng(0).normal(size=(120, 2))
    y = x[:, 0] + 0.5 * np.random.default_rng(1).normal(size=120)
    comparisons = []
    for k in range(3):
        split = dataclasses.replace(from_arrays(x, y, test_fraction=0.1, seed=k), index=k)
        posteriors = {
            "exact": LinearPosterior(split),
            "far": LinearPosterior(split, "AutoNormal", shift=20.0),
        }
        comparisons.append(compare(posteriors, split, num_samples=200))
    repeated = compare_runs(comparisons)
    rows = [c.evaluations for c in comparisons]
    means = [row["exact"].held_out.log_score.mean() for row in rows]
    assert_allclose(repeated.table.loc["exact", "log_score"], np.mean(means), rtol=1e-12)
    d = [r["far"].held_out.log_score.mean() - r["exact"].held_out.log_score.mean() for r in rows]
    expected = np.std(d, ddof=1) * np.sqrt(1 / 3 + 12 / 108)
    assert_allclose(repeated.table.loc["far", "difference_se"], expected, rtol=1e-10)
    assert repeated.table["rank"].tolist() == [1, 2]
    (khat,) = texts(repeated, "khat")
    assert khat.startswith("k-hat at or above its limit: far in 3 of 3 runs.")
    assert repeated.all_rows.shape[0] == 6
    assert_allclose(repeated.all_rows.loc[(1, 0, "exact"), "log_score"], means[1])


# --- few splits ----------------------------------------------------------------------------------


def test_two_splits_have_no_error_and_no_ranking() -> None:
    repeated = compare_runs(run(k, 0, {"A": 2.0 + k, "B": 1.0 + k}) for k in range(2))
    table = repeated.table
    assert table["log_score"].tolist() == [2.5, 1.5]
    assert table[["log_score_se", "log_score_sd", "difference_se", "rank"]].isna().all(axis=None)
    assert not table.loc["B", "tied"]
    (text,) = texts(repeated, "scores")
    assert text == (
        "No ranking: 2 splits give no standard error over splits, 3 do. Mean held-out log scores "
        "in nats per test row: A 2.50, B 1.50."
    )
    assert texts(repeated, "tied") == []
    assert texts(repeated, "splits") == []
    row = next(line for line in repeated.summary().splitlines() if line.startswith("A "))
    assert "highest mean" in row


def test_seeds_on_one_split_are_called_a_spread_over_seeds() -> None:
    scores = {0: (1.0, 0.5), 1: (2.0, 0.0), 2: (6.0, 4.0)}
    repeated = compare_runs(run(4, s, {"A": a, "B": b}) for s, (a, b) in scores.items())
    table = repeated.table
    assert table["log_score_se"].isna().all()
    assert_allclose(table.loc["A", "log_score_sd"], np.std([1.0, 2.0, 6.0], ddof=1), rtol=1e-14)
    assert_allclose(table.loc["B", "difference_sd"], np.std([-0.5, -2.0, -2.0], ddof=1), rtol=1e-14)
    assert table["rank"].isna().all()
    (text,) = texts(repeated, "splits")
    assert text.startswith("± is the standard deviation over 3 seeds on the same rows")
    assert "no error over data" in text
    assert texts(repeated, "scores")[0].startswith("No ranking: 1 split gives no standard error")
    assert "(split 4; seeds 0 to 2)" in repeated.headline


# --- what the errors mean ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{0, 1}, {1, 2}, {3}], "Test sets of these splits share rows, and so do training sets"),
        ([{0, 1}, {2}, {3}], "Training sets of these splits share rows"),
        ([{0, 1}, None, {3}], "Splits of one data set share rows"),
    ],
)
def test_the_correction_is_said_with_its_source(rows: list[set[int] | None], said: str) -> None:
    runs = [
        run(k, 0, {"A": float(k)}, test_rows=None if r is None else frozenset(r))
        for k, r in enumerate(rows)
    ]
    (text,) = texts(compare_runs(runs), "splits")
    assert said in text
    assert "1/J + n_test/n_train = 0.444 in place of 1/J = 0.333 (Nadeau & Bengio 2003)" in text


def test_rows_of_one_split_in_two_seeds_are_not_shared_rows_of_splits() -> None:
    runs = [
        run(k, s, {"A": float(k)}, test_rows=frozenset({k})) for k in range(3) for s in range(2)
    ]
    (text,) = texts(compare_runs(runs), "splits")
    assert "Training sets of these splits share rows" in text


# --- lost runs -----------------------------------------------------------------------------------


def test_averages_are_over_the_runs_that_all_have() -> None:
    runs = [run(k, 0, {"A": 1.0 * k, "B": 1.0 * k - 1 - 0.1 * k}) for k in range(3)]
    runs.append(run(3, 0, {"A": 100.0}, lost={"B": "the loss is not finite at step 5"}))
    repeated = compare_runs(runs)
    table = repeated.table
    assert table.loc["A", "log_score"] == 1.0  # without the run that B lost
    assert table["runs"].to_dict() == {"A": 4, "B": 3}
    assert table["common_runs"].tolist() == [3, 3]
    assert texts(repeated, "lost") == [
        "B has 3 of 4 runs (split 3, seed 0: the loss is not finite at step 5). Averages are over "
        "the 3 runs that all methods have."
    ]
    assert [f.is_warning for f in repeated.findings if f.kind == "lost"] == [True]
    assert "3 of 4" in repeated.summary()


def test_a_method_without_any_run_is_left_out_of_the_averages() -> None:
    lost = {"B": "the loss is not finite."}  # of a sentence, whose stop is not the list's
    repeated = compare_runs(run(k, 0, {"A": 1.0 * k}, lost=lost) for k in range(5))
    assert repeated.table.index.tolist() == ["A", "B"]
    assert repeated.table.loc["A", "log_score"] == 2.0
    assert math.isnan(repeated.table.loc["B", "log_score"])
    (text,) = texts(repeated, "lost")
    assert text.startswith("B has 0 of 5 runs (split 0, seed 0: the loss is not finite; split 1,")
    assert text.endswith("; and 2 more). It is left out of the averages.")
    assert texts(repeated, "wins") == []


def test_no_common_run_is_said_and_no_crash() -> None:
    runs = [
        run(0, 0, {"A": 1.0}, lost={"B": "diverged"}),
        run(1, 0, {"B": 1.0}, lost={"A": "diverged"}),
        run(2, 0, {}, lost={"A": "diverged", "B": "diverged"}),
    ]
    repeated = compare_runs(runs)
    assert repeated.table["log_score"].isna().all()
    assert repeated.table["rank"].isna().all()
    (text,) = texts(repeated, "scores")
    assert text.startswith("No run has all methods, so there is nothing to average")
    assert "A has 1 of 3 runs" in repeated.summary()


# --- verdicts of the single runs -----------------------------------------------------------------


def test_warnings_of_the_runs_are_counted_by_method() -> None:
    rhat = Verdict("NUTS: R-hat ...", "rhat", methods=("NUTS",))
    khat = Verdict("k-hat ...", "khat", methods=("A", "B"))
    fine = Verdict("...", "scores", is_warning=False, methods=("A",))
    scores = {"A": 0.0, "B": 0.0, "NUTS": 1.0}
    runs = [
        run(k, 0, scores, findings=((), (rhat, fine), (rhat, khat), (khat,), (rhat,))[k])
        for k in range(5)
    ]
    runs[0] = dataclasses.replace(runs[0], findings=(Verdict("k", "khat", methods=("B",)),))
    repeated = compare_runs(runs)
    assert texts(repeated, "rhat") == [
        "R-hat above 1.01: NUTS in 3 of 5 runs. Raise warmup_steps and num_samples; "
        "numbers stand in the single reports, for example of split 1, seed 0."
    ]
    (text,) = texts(repeated, "khat")
    assert text.startswith(
        "k-hat at or above its limit: B in 3 of 5 runs, A in 2 of 5 runs. Judge by"
    )


def test_models_are_said_once() -> None:
    models = Verdict("The methods answer under 2 models.", "models", is_warning=False)
    repeated = compare_runs(run(k, 0, {"A": 0.0}, findings=(models,)) for k in range(3))
    assert texts(repeated, "models") == ["The methods answer under 2 models."]


def test_every_rule_is_counted_over_runs_in_the_order_of_the_rules() -> None:
    kinds = [rule.kind for rule in RULES]
    assert len(set(kinds)) == len(kinds)
    found = tuple(Verdict("A: ...", kind, methods=("A",)) for kind in kinds[::-1])
    repeated = compare_runs(run(k, 0, {"A": 0.0}, findings=found) for k in range(2))
    counted = [finding for finding in repeated.findings if finding.is_warning]
    assert [finding.kind for finding in counted] == kinds
    for finding, rule in zip(counted, RULES, strict=True):
        assert finding.text.startswith(f"{rule.what}: A in 2 of 2 runs. ")
        assert f"{rule.step[1:]}; numbers stand in the single reports" in finding.text


# --- putting together ----------------------------------------------------------------------------


def test_nothing_to_put_together_is_refused() -> None:
    with pytest.raises(OptionError, match="nothing to put together: give at least one comparison"):
        compare_runs([])
    with pytest.raises(OptionError, match="nothing to put together"):
        compare_runs([run(0, 0, {}, lost={"A": "diverged"})])


def test_a_run_given_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="split 1, seed 2 is there twice: give every split and"):
        compare_runs([run(1, 2, {"A": 0.0}), run(1, 2, {"A": 1.0})])


def test_runs_of_different_data_are_refused() -> None:
    with pytest.raises(DataError, match=r"of different data: other \(regression, y\), rows \(reg"):
        compare_runs([run(0, 0, {"A": 0.0}), run(1, 0, {"A": 1.0}, data_name="other")])


def test_runs_of_different_units_are_refused() -> None:
    with pytest.raises(DataError, match=r"rows \(regression, g\), rows \(regression, kg\); put th"):
        compare_runs([run(0, 0, {"A": 0.0}, units="kg"), run(1, 0, {"A": 0.0}, units="g")])


def test_a_run_keeps_numbers_and_no_draws() -> None:
    split = regression_split()
    comparison = compare({"a": LinearPosterior(split)}, split, num_samples=100, seed=7)
    kept = SplitRun.of(comparison, {"b": "diverged"})
    assert (kept.split, kept.seed, kept.folder) == (0, 7, "split-0-seed-7")
    assert (kept.num_train, kept.num_test, kept.methods) == (180, 60, ["a"])
    assert kept.lost == {"b": "diverged"}
    assert kept.test_rows is not None
    assert len(kept.test_rows) == 60
    assert kept.table is comparison.table
    assert not any(value is comparison for value in vars(kept).values())
    lost = SplitRun.without_posteriors(split, 7, {"a": "diverged"})
    assert (lost.methods, lost.table.shape) == ([], (0, 0))


def test_advice_is_in_the_order_of_the_methods_in_every_process() -> None:
    names = tuple("fbdaec")
    steps = {name: f"do {name}" for name in names}
    finding = Verdict("not converged", "trend", methods=names, steps=steps)
    runs = [run(0, 0, dict.fromkeys(names, 0.0), findings=(finding,))]
    (text,) = (one.text for one in compare_runs(runs).findings if one.kind == "trend")
    assert "For f do f; for b do b; for d do d; for a do a; for e do e; for c do c;" in text


def test_the_name_of_before_is_that_of_a_run() -> None:
    from pyro_bnn import report

    assert report.Run is SplitRun
    with pytest.raises(AttributeError, match="no attribute 'Runs'"):
        report.Runs  # noqa: B018


# --- terminal and files --------------------------------------------------------------------------


def test_the_summary_fits_the_terminal() -> None:
    repeated = three_splits()
    lines = repr(repeated).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("rows: 2 methods in 6 runs (splits 0 to 2; seeds 0, 1), 10 held-out")
    assert lines[0].endswith("rows (90 for training) each")
    assert "5.0 ± 1.7" in repeated.summary().replace("\xa0", " ")
    flat = " ".join(line[2:] for line in lines if line[:2] in ("- ", "! ", "  "))
    for verdict in repeated.verdicts:
        assert verdict in flat


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_columns_have_a_meaning_and_keys_of_the_table(task: str) -> None:
    names = ("accuracy", "brier", "ece", "ece_floor", "rejection_area", "distance", "rhat")
    columns = {k: dict.fromkeys("AB", 0.5) for k in names}
    runs = [run(k, 0, {"A": 0.0, "B": 1.0}, task=task, columns=columns) for k in range(3)]
    repeated = compare_runs(runs)
    rows = repeated.table.to_dict("records")
    for group in run_sections(task, "y").values():
        for column in group:
            assert column.meaning.endswith(".")
            assert column.key in repeated.table
            assert all(isinstance(column.cell(row), str) for row in rows)
    cells = {c.title: c.cell(rows[0]).replace("\xa0", " ")
             for group in run_sections(task, "y").values() for c in group}  # fmt: skip
    assert cells["to the best"] == "best"
    assert cells["worst R-hat"] == "0.500"
    assert cells["best in"] == "3 of 3"
    if task == "classification":
        assert cells["accuracy"] == "50.0 % ± 0.0 %"
        assert "RMSE" not in cells


def test_calibration_and_rejection_of_classes_have_means_and_errors_over_splits() -> None:
    names = ("accuracy", "brier", "ece", "ece_floor", "rejection_area")
    values = np.array([0.7, 0.8, 0.96])
    runs = [
        run(k, 0, {"A": 0.0}, task="classification",
            columns={name: {"A": value / 2 if name == "ece" else value} for name in names})
        for k, value in enumerate(values)
    ]  # fmt: skip
    table = compare_runs(runs).table
    for name, by in (("ece", 0.5), ("ece_floor", 1.0), ("rejection_area", 1.0)):
        assert_allclose(table.loc["A", name], by * values.mean(), rtol=1e-14)
        error = by * np.std(values, ddof=1) / np.sqrt(3)
        assert_allclose(table.loc["A", f"{name}_se"], error, rtol=1e-14)
    summary = repr(compare_runs(runs)).replace("\xa0", " ")
    assert "82.0 % ± 7.6 %" in summary  # of the mean 0.82 and sd 0.131 / sqrt 3
    assert "rejection area" in summary


def test_saving_writes_page_and_tables_and_links_what_is_there(tmp_path: Path) -> None:
    repeated = three_splits()
    own = tmp_path / "out" / "split-1-seed-0"
    own.mkdir(parents=True)
    (own / "index.html").write_text("a report", "utf-8")
    folder = repeated.save(tmp_path / "out", command="pyro-bnn compare --splits 0-2 <&>")
    assert {path.name for path in folder.iterdir()} == {
        "index.html", "table.csv", "runs.csv", "split-1-seed-0",
    }  # fmt: skip
    page = (folder / "index.html").read_text("utf-8")
    assert re.findall(r'href="([^"]*)"', page) == ["split-1-seed-0/index.html"]
    assert "pyro-bnn compare --splits 0-2 &lt;&amp;&gt;" in page
    assert page.count("<h1>") == 1
    assert "Nadeau &amp; Bengio 2003" in page
    assert "split 2, seed 1" in page
    assert "Runs have reports of their own, linked below." in page
    alone = (repeated.save(tmp_path / "alone") / "index.html").read_text("utf-8")
    assert "linked below" not in alone
    table = pd.read_csv(folder / "table.csv", index_col="method")
    assert_allclose(table["log_score"], repeated.table["log_score"])
    every = pd.read_csv(folder / "runs.csv", index_col=["split", "seed", "method"])
    assert {key: every.loc[(*key, "A"), "log_score"] for key in A} == A


def test_an_old_report_of_a_lost_run_is_named_and_not_linked(tmp_path: Path) -> None:
    for name in ("split-0-seed-0", "split-1-seed-0", "split-7-seed-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text("a report", "utf-8")
    repeated = compare_runs(
        [run(0, 0, {"A": 0.0}), run(1, 0, {}, lost={"A": "diverged at step 3"})]
    )
    with pytest.warns(BNNWarning, match="also holds split-1-seed-0, split-7-seed-0, which this"):
        repeated.save(tmp_path)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert re.findall(r'href="([^"]*)"', page) == ["split-0-seed-0/index.html"]
    assert "diverged at step 3" in page


def test_names_and_reasons_cannot_break_the_page(tmp_path: Path) -> None:
    bad = "<script>alert('x')</script>"
    runs = [run(k, 0, {"A": 0.0}, lost={bad: bad}, data_name=bad) for k in range(3)]
    page = (compare_runs(runs).save(tmp_path) / "index.html").read_text("utf-8")
    assert "<script>alert" not in page


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(OutputError, match="cannot write to the folder"):
        three_splits().save(tmp_path / "file")
