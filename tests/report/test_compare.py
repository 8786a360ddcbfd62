"""The comparison as a user calls it."""

from __future__ import annotations

import dataclasses
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from pyro_bnn import arviz_io
from pyro_bnn.errors import BNNWarning, DataError, OptionError, OutputError, UnknownNameError
from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.compare import Alone, common_draws, compare_all, evaluate_alone
from tests.report.conjugate import LinearPosterior, regression_split


class Atom(LinearPosterior):
    """One function, which it says it is."""

    @property
    def num_atoms(self) -> int:  # type: ignore[override]
        return 1


class Undefined(LinearPosterior):
    """Its densities are no numbers."""

    def predict(self, x: Tensor, *args: Any, **options: Any) -> Any:
        found = super().predict(x, *args, **options)
        found.log_prob = lambda y: torch.full([len(y)], torch.nan)
        return found


def test_the_same_posterior_twice_is_tied_and_at_distance_zero_of_itself() -> None:
    split = regression_split()
    comparison = compare({"a": LinearPosterior(split), "b": LinearPosterior(split)}, split)
    assert comparison.table["rank"].tolist() == [1, 1]
    assert comparison.table["difference"].tolist() == [0.0, 0.0]


def test_every_method_gets_the_same_number_of_draws_but_points_get_one(
    regression: Comparison,
) -> None:
    assert regression.num_draws == 1_000
    draws = regression.table["draws"]
    assert draws["MAP"] == 1
    assert set(draws.drop("MAP")) == {1_000}


@pytest.mark.parametrize(
    ("stored", "chains", "asked", "expected"),
    [(1_200, 4, 1_000, 1_000), (640, 4, 1_000, 640), (999, 3, 1_000, 999), (1_200, 4, 999, 996),
     (32, 16, 10, 10)],
)  # fmt: skip
def test_the_number_of_draws_is_what_all_chains_can_give(
    stored: int, chains: int, asked: int, expected: int
) -> None:
    split = regression_split()
    sampler = LinearPosterior(split, stored=stored, num_chains=chains)
    assert common_draws([LinearPosterior(split), sampler], asked) == expected


def test_the_table_has_the_draws_that_were_taken() -> None:
    """Ten draws are no multiple of 12: four chains give two each, three give three."""
    split = regression_split()
    posteriors = {
        f"{count} chains": LinearPosterior(split, "NUTS", "NUTS", stored=120, num_chains=count)
        for count in (4, 3)
    }
    comparison = compare(posteriors, split, num_samples=10)
    assert comparison.table["draws"].to_dict() == {"4 chains": 8, "3 chains": 9}
    assert "8 to 9 draws each" in comparison.summary()


@pytest.mark.parametrize("before", [600, 1_000])
def test_posteriors_that_were_evaluated_before_have_the_numbers_of_all_at_once(before: int) -> None:
    """With the draws that all have in common, 600, or with others; the reference comes last."""
    split = regression_split()
    posteriors = {
        "a": LinearPosterior(split, spread=0.7),
        "MAP": LinearPosterior(split, "AutoDelta", spread=0.0),
        "cauchy": LinearPosterior(split, moments="none"),
        "NUTS": LinearPosterior(split, "NUTS", "NUTS", stored=600, num_chains=3),
    }
    alone: dict[str, Alone] = {}
    for name, posterior in posteriors.items():
        own = evaluate_alone(name, posterior, split, num_draws=before, seed=3)
        alone[name] = pickle.loads(pickle.dumps(own))  # as of a process
    first = compare_all(posteriors, split, {}, reference="NUTS", seed=3, alone=alone)
    assert alone == {}
    whole = compare(posteriors, split, reference="NUTS", seed=3)
    assert set(whole.table["draws"]) == {1, 600}
    pd.testing.assert_frame_equal(first.table, whole.table, check_exact=True)
    assert first.verdicts == whole.verdicts


def test_posteriors_that_were_evaluated_before_are_not_evaluated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = regression_split()
    posterior = LinearPosterior(split)
    alone = {"a": evaluate_alone("a", posterior, split, num_draws=1_000, seed=0)}
    monkeypatch.setattr(import_module("pyro_bnn.report.compare"), "evaluate", None)
    assert compare_all({"a": posterior}, split, {}, alone=alone).num_draws == 1_000


def test_the_verdicts_are_text(regression: Comparison) -> None:
    assert regression.verdicts == [finding.text for finding in regression.findings]
    assert regression.shares_model


def test_comparing_twice_gives_the_same_numbers() -> None:
    split = regression_split()
    tables = [
        compare(
            {"a": LinearPosterior(split, spread=0.7), "MAP": LinearPosterior(split, spread=0.0)},
            split,
            seed=3,
        ).table
        for _ in range(2)
    ]
    assert tables[0].equals(tables[1])


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("no_pictures")
def test_saving_writes_page_table_and_a_netcdf_file_a_method(
    regression: Comparison, tmp_path: Path
) -> None:
    folder = regression.save(tmp_path / "new" / "report", command="make report")
    assert sorted(path.name for path in folder.iterdir()) == [
        "auto-low-rank-multivariate-normal.nc",
        "index.html",
        "map.nc",
        "narrow.nc",
        "nuts.nc",
        "shifted.nc",
        "table.csv",
        "verdicts.json",
    ]
    assert "make report" in (folder / "index.html").read_text(encoding="utf-8")
    tree = arviz_io.load_netcdf(folder / "nuts.nc")
    assert tree["log_likelihood"]["y"].shape == (4, 300, 180)


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("no_pictures")
def test_posteriors_of_an_earlier_comparison_stay_and_are_named(
    one_input: Comparison, tmp_path: Path
) -> None:
    one_input.save(tmp_path)
    one_input.save(tmp_path)  # the same files again: nothing to say
    (tmp_path / "nuts.nc").write_text("an earlier one")
    with pytest.warns(BNNWarning, match="also holds nuts.nc, which this run did not write"):
        one_input.save(tmp_path)
    assert (tmp_path / "nuts.nc").read_text() == "an earlier one"


@pytest.mark.usefixtures("no_pictures")
def test_the_page_alone_can_be_written_anywhere(one_input: Comparison, tmp_path: Path) -> None:
    path = one_input.to_html(tmp_path / "deep" / "page.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_path_that_cannot_be_written_is_refused(one_input: Comparison, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write to the folder"):
        one_input.to_html(tmp_path / "file" / "index.html")
    with pytest.raises(OutputError, match="cannot write to the folder"):
        one_input.save(tmp_path / "file")


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(OptionError, match="nothing to compare: give posteriors by name"):
        compare({}, regression_split())
    with pytest.raises(OptionError, match="'nuts' is no posterior, but NoneType: pass what engine"):
        compare({"nuts": None}, regression_split())  # type: ignore[dict-item]


@pytest.mark.parametrize("data", [regression_split().train, (torch.zeros(2, 1), torch.zeros(2))])
def test_data_without_held_out_rows_are_refused(data: Any) -> None:
    with pytest.raises(DataError, match=r"are a pyro_bnn.data.Split, such as data.from_arrays"):
        compare({"exact": LinearPosterior(regression_split())}, data)


def test_an_unknown_reference_suggests_the_nearest() -> None:
    split = regression_split()
    with pytest.raises(UnknownNameError, match="unknown reference 'exat': did you mean 'exact'"):
        compare({"exact": LinearPosterior(split)}, split, reference="exat")


def test_no_draws_are_refused() -> None:
    split = regression_split()
    with pytest.raises(OptionError, match="num_samples must be at least 1, got 0"):
        compare({"a": LinearPosterior(split)}, split, num_samples=0)


def test_names_are_text() -> None:
    posteriors: Any = {5: LinearPosterior(regression_split())}
    with pytest.raises(OptionError, match="name of a posterior is text, not 5: take '5'"):
        compare(posteriors, posteriors[5].split)


def test_one_draw_is_taken_of_point_estimates_alone() -> None:
    """One draw of a posterior with spread would be called a point estimate."""
    split = regression_split()
    point = LinearPosterior(split, spread=0.0)
    for stored, asked in ((None, 1), (1, 1_000)):
        posteriors = {"point": point, "wide": LinearPosterior(split, stored=stored)}
        with pytest.raises(OptionError, match="one draw does not tell a spread from a point"):
            compare(posteriors, split, num_samples=asked)
    entry = compare({"point": Atom(split, spread=0.0)}, split, num_samples=1).evaluations["point"]
    assert entry.held_out.is_point


def test_an_undefined_score_of_one_method_is_one_row_less() -> None:
    split = regression_split()
    posteriors = {"bad": Undefined(split), "good": LinearPosterior(split)}
    lost: dict[str, str] = {}
    found = compare_all(posteriors, split, lost, reason_of=str)
    assert list(found.evaluations) == ["good"]
    assert list(lost) == ["bad"]
    assert lost["bad"].startswith(
        "its fit cannot be evaluated: the scores of 'bad' hold 60 NaN of 60: its log-likelihood is"
    )
    with pytest.raises(DataError, match="the scores of 'bad' hold 60 NaN of 60"):
        compare(posteriors, split)


def test_an_undefined_score_is_refused_by_name() -> None:
    split = regression_split()
    posteriors = {"bad": LinearPosterior(split)}
    entry = compare(posteriors, split).evaluations["bad"]
    scores = dataclasses.replace(entry.held_out, log_score=np.full(60, np.nan))
    with pytest.raises(DataError, match="the scores of 'bad' hold 60 NaN of 60"):
        Comparison(
            {"bad": dataclasses.replace(entry, held_out=scores)},
            split,
            reference=None,
            num_draws=1_000,
            seed=0,
        )
