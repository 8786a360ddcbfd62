"""One method against a reference, on closed forms."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from pyro_bnn.report import compare
from pyro_bnn.report.evaluation.distances import reference_draws, with_distances
from pyro_bnn.report.evaluation.evaluate import Evaluation, evaluate
from tests.report.conjugate import LinearPosterior, class_split, regression_split


def _against_exact(posterior: LinearPosterior) -> Evaluation:
    reference = LinearPosterior(posterior.split, "NUTS", stored=2_000, num_chains=4)
    own = evaluate("reference", reference, posterior.split, num_draws=2_000, seed=0)
    draws = reference_draws(own, reference, posterior.split, num_draws=2_000, seed=0)
    assert draws.rows.shape[:2] == (4, 500)
    alone = evaluate("it", posterior, posterior.split, num_draws=1_000, seed=0)
    return with_distances(alone, draws, posterior.split, 1_000)


def test_the_sd_ratio_of_a_scaled_posterior_is_its_scale() -> None:
    entry = _against_exact(LinearPosterior(regression_split(), spread=0.5))
    assert entry.at_rows is not None
    assert abs(entry.at_rows.sd_ratio.value - 0.5) < 5 * entry.at_rows.sd_ratio.standard_error
    assert entry.num_draws == 1_000


def test_the_exact_posterior_is_at_the_floor() -> None:
    entry = _against_exact(LinearPosterior(regression_split()))
    assert entry.at_rows is not None
    assert entry.at_rows.distance.value < 2 * entry.at_rows.distance.floor


def test_a_point_estimate_is_one_draw_without_spread() -> None:
    entry = _against_exact(LinearPosterior(regression_split(), "AutoDelta", spread=0.0))
    assert entry.num_draws == 1
    assert entry.at_rows is not None
    assert (entry.at_rows.sd_ratio.value, entry.at_rows.sd_ratio.standard_error) == (0.0, 0.0)


def test_rounding_between_rows_of_a_batch_is_no_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = LinearPosterior(regression_split(), "AutoDelta", spread=0.0)
    exactly = posterior.function_draws

    def rounded(
        x: Tensor, num_samples: int = 1000, seed: int = 0, group_by_chain: bool = False
    ) -> Tensor:
        f = exactly(x, num_samples, seed, group_by_chain)
        return f + 1e-8 * torch.arange(len(f))[:, None, None]

    monkeypatch.setattr(posterior, "function_draws", rounded)
    entry = _against_exact(posterior)
    assert entry.at_rows is not None
    assert entry.at_rows.sd_ratio.value == 0.0


def test_distances_are_in_sds_of_y() -> None:
    split = regression_split()
    shifted = _against_exact(LinearPosterior(split, shift=40.0))
    exact, moved = LinearPosterior(split), LinearPosterior(split, shift=40.0)
    gap = (moved.function_draws(split.test.x, 500) - exact.function_draws(split.test.x, 500)).mean(
        0
    )
    assert shifted.at_rows is not None
    assert_allclose(shifted.at_rows.distance.value, np.abs(gap.numpy()).mean(), rtol=0.02)


def test_classes_are_compared_as_probabilities() -> None:
    entry = _against_exact(LinearPosterior(class_split(), spread=30.0))
    assert entry.at_rows is not None
    assert 0.05 < entry.at_rows.distance.value < 1


def test_fewer_stored_draws_than_asked_for_are_all_used_once() -> None:
    split = regression_split()
    entry = evaluate(
        "it",
        LinearPosterior(split, "NUTS", stored=80, num_chains=4),
        split,
        num_draws=1_000,
        seed=0,
    )
    assert entry.num_draws == 80
    assert entry.at_rows is None


def test_a_spread_without_moments_is_not_held_against_the_reference() -> None:
    split = regression_split()
    posteriors = {
        "cauchy": LinearPosterior(split, moments="none"),
        "NUTS": LinearPosterior(split, "NUTS", "NUTS", stored=400, num_chains=4),
    }
    comparison = compare(posteriors, split, reference="NUTS")
    entry = comparison.evaluations["cauchy"]
    assert entry.at_rows is None
    assert entry.off_data is None
    notes = comparison.table.loc["cauchy", "notes"]
    assert "RMSE is that of the predictive median" in notes
    assert "no distance and no sd ratio: its spread has no finite mean or sd" in notes
    assert np.isnan(comparison.table.loc["cauchy", "sd_ratio"])


def test_a_reference_without_moments_measures_nothing() -> None:
    split = regression_split()
    posteriors = {
        "it": LinearPosterior(split),
        "cauchy": LinearPosterior(split, moments="none", stored=400, num_chains=4),
    }
    comparison = compare(posteriors, split, reference="cauchy")
    assert list(comparison.evaluations) == ["it", "cauchy"]
    assert comparison.table["distance"].isna().all()
    assert "no distances to it: its spread has no" in comparison.table.loc["cauchy", "notes"]
