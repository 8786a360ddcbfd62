from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_bnn.cli.uncertainty import Uncertainty, epistemic
from pyro_bnn.guides import AutoDelta, AutoNormal
from pyro_bnn.infer import SVI
from pyro_bnn.likelihoods import Categorical
from pyro_bnn.models import MLP
from pyro_bnn.posterior import Posterior
from pyro_bnn.predictive.prediction import Prediction
from tests.rows import classes, regression

ROWS = regression(num_rows=7)


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    return SVI(AutoNormal, num_steps=20).run(MLP(2, hidden=(3,)), ROWS.train, progress=False)


def prediction_of(f: torch.Tensor) -> Prediction:
    return Prediction(f, f, None, None, None, lambda y: y)


def test_yardstick_is_the_median_row_and_the_largest(posterior: Posterior) -> None:
    found = Uncertainty.of(posterior, ROWS.train, seed=3)
    sd = np.sort(posterior.function_draws(ROWS.train.x, seed=3)[..., 0].numpy().std(0))
    assert found.measure == "sd of the function"
    assert found.median == pytest.approx(sd[3], rel=1e-5)
    assert found.maximum == pytest.approx(sd[-1], rel=1e-5)


def test_the_median_of_an_even_number_of_rows_is_that_between_two(posterior: Posterior) -> None:
    rows = ROWS.train.rows(range(4))
    sd = posterior.function_draws(rows.x)[..., 0].double().numpy().std(0)
    assert Uncertainty.of(posterior, rows, seed=0).median == pytest.approx(np.median(sd), rel=1e-5)


def test_a_point_estimate_has_no_yardstick() -> None:
    posterior = SVI(AutoDelta, num_steps=5).run(MLP(2, hidden=(3,)), ROWS.train, progress=False)
    found = Uncertainty.of(posterior, ROWS.train, seed=0)
    assert (found.median, found.maximum) == (None, None)


def test_classes_are_measured_by_mutual_information() -> None:
    rows = classes(3).train
    model = MLP(3, hidden=(3,), likelihood=Categorical(3))
    posterior = SVI(AutoNormal, num_steps=20).run(model, rows, progress=False)
    found = Uncertainty.of(posterior, rows, seed=0)
    probs = posterior.function_draws(rows.x).softmax(-1).double().numpy()
    information = stats.entropy(probs.mean(0), axis=-1) - stats.entropy(probs, axis=-1).mean(0)
    assert found.measure == "mutual information"
    assert found.maximum == pytest.approx(information.max(), rel=0, abs=1e-6)  # float32


def test_where_draws_have_no_sd_a_range_of_quantiles_serves(
    posterior: Posterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(posterior), "has_moments", property(lambda self: False))
    assert Uncertainty.of(posterior, ROWS.train, seed=0).measure == "half range of the function"


def test_half_the_central_range_is_one_sd_of_a_gaussian_and_one_point_eight_of_a_cauchy() -> None:
    levels = torch.linspace(0, 1, 200_003, dtype=torch.float64)[1:-1]
    draws = torch.stack(
        [torch.tensor(law.ppf(levels)) for law in (stats.norm(3, 2), stats.cauchy(-1, 2))], dim=-1
    )
    found = epistemic(prediction_of(draws.unsqueeze(-1)), "half range of the function")
    half_range = stats.cauchy.ppf(stats.norm.cdf(1))
    expected = torch.tensor([2.0, 2 * half_range], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=5e-5, atol=0)


def test_the_location_alone_is_measured() -> None:
    f = torch.stack([torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [50.0]])], dim=-1)
    found = epistemic(prediction_of(f), "sd of the function")
    torch.testing.assert_close(found, torch.ones(1, dtype=torch.float64))  # of 1 and 3


def test_several_targets_are_measured_by_their_root_mean_square() -> None:
    f = torch.tensor([[[7.0, 0.0, 50.0]], [[13.0, 8.0, -50.0]]])  # [S, N, columns]
    found = epistemic(prediction_of(f), "sd of the function", num_targets=2)  # of sds 3 and 4
    torch.testing.assert_close(found, torch.tensor([12.5**0.5], dtype=torch.float64))
