r"""Variational calibration of every guide with a density, on a correlated posterior that is known.

Whatever the data, a weight lies around its posterior mean m by N(0, C_jj). A guide of this mean,
as all are but dropout, whose variances follow the means,
whose marginals have the distribution function F then gives it the probability

.. math:: p = F(\theta - m), \qquad \theta - m \sim \mathcal N(0, C_{jj})

uniform where F is that of the posterior. Of a Gaussian of variance v the normal scores of p have
the standard deviation :math:`r = \sqrt{C_{jj} / v}`; the best independent Gaussians have
:math:`v = 1 / \Lambda_{jj} < C_{jj}`. The problem and its fits are symmetric in the sign of y, and
so is p around 1/2, for every guide.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_bnn import SVI, guides, likelihoods, models, priors
from pyro_bnn.diagnostics import SimulationProbabilities, variational_calibration
from pyro_bnn.posterior import GuidePosterior
from tests.collection import DENSITIES, GUIDES, dear_in_soak
from tests.diagnostics.linear_matrix import (
    CORRELATED,
    COVARIANCE,
    DENSE,
    EXACT,
    MEAN_FIELD,
    LinearMatrix,
)
from tests.diagnostics.made_engines import simulating_once
from tests.guides.exact import moments

INDEPENDENT = ("auto-k-tied-normal", "auto-normal")  # the k-tied sds are here any four
RATIO = float((COVARIANCE.diagonal() / MEAN_FIELD).sqrt()[0])  # of sds, of every weight
NUM_SIMULATIONS = 200
MODEL = LinearMatrix()
DEAR = (  # in `make soak`: others of their kind stay here, and so does a new guide
    "auto-composite",
    "auto-flow",
    "auto-k-tied-normal",
    "auto-multivariate-normal",
    "low rank by layer",
    "low-rank precision",
)
WEIGHTS = [f"w[{i},{j}]" for i in range(2) for j in range(2)]


@functools.cache
def calibrated(guide: str) -> SimulationProbabilities:
    steps = 2_000 if guide in DENSE else 800
    svi = SVI(DENSITIES[guide], num_steps=steps, learning_rate=0.05)
    with simulating_once():
        return variational_calibration(
            MODEL,
            CORRELATED,
            svi,
            num_simulations=NUM_SIMULATIONS,
            weights=True,
            progress=False,
        )


def column(found: SimulationProbabilities, name: str) -> np.ndarray:
    return found.probabilities[:, found.names.index(name)]


def assert_scores(p: np.ndarray, sd: float) -> None:
    """The normal scores of p are Gaussian, of mean 0 and this standard deviation."""
    assert stats.kstest(stats.norm.ppf(p), stats.norm(0, sd).cdf).pvalue > 0.001


def sd_of_scores(found: SimulationProbabilities) -> tuple[float, float]:
    """Standard deviation of the normal scores of all weights, at most 6, and its standard error."""
    p = np.stack([column(found, name) for name in WEIGHTS], 1).clip(1e-9, 1 - 1e-9)
    squares = (stats.norm.ppf(p) ** 2).mean(1)  # of a simulation, whose weights are correlated
    sd = float(np.sqrt(squares.mean()))
    return sd, float(squares.std() / np.sqrt(len(squares))) / (2 * sd)


@pytest.mark.slow("fits of 200 data sets")
@pytest.mark.parametrize("guide", dear_in_soak(DENSITIES, DEAR))
def test_every_guide_is_asked_and_none_is_biased(guide: str) -> None:
    found = calibrated(guide)
    assert found.names == ("f(x[0])", "f(x[1])", "f(x[2])", "f(x[3])", *WEIGHTS)
    assert (found.num_simulations, found.num_failed) == (NUM_SIMULATIONS, 0)
    assert ((found.probabilities >= 0) & (found.probabilities <= 1)).all()
    assert [name for name in found.names if not found.is_symmetric(name)] == []


@pytest.mark.slow("fits of 200 data sets")
@pytest.mark.parametrize("guide", dear_in_soak(EXACT, DEAR))
def test_a_family_that_holds_the_posterior_is_calibrated(guide: str) -> None:
    found = calibrated(guide)
    assert found.is_calibrated
    for name in found.names:
        assert_scores(column(found, name), 1.0)


@pytest.mark.slow("fits of 200 data sets")
@pytest.mark.parametrize("guide", dear_in_soak(INDEPENDENT, DEAR))
def test_independent_gaussians_are_too_narrow_by_the_known_ratio(guide: str) -> None:
    found = calibrated(guide)
    assert RATIO > 1.6
    for name in WEIGHTS:
        assert found.shape_of(name) == "too narrow"
        assert_scores(column(found, name), RATIO)
    for row, x in enumerate(CORRELATED):  # sums of a row's entries and differences, in turn
        ratio = float((x @ COVARIANCE @ x / (x.square() * MEAN_FIELD).sum()).sqrt())
        assert_scores(column(found, f"f(x[{row}])"), ratio)
        assert (ratio > 2) == (row % 2 == 1)
        assert (found.shape_of(f"f(x[{row}])") == "too narrow") == (ratio > 2)


@pytest.mark.slow("fits of 200 data sets")
def test_the_radial_guide_has_the_law_of_its_own_marginals() -> None:
    """Its best sds are those of independent Gaussians, in a shape with a sharper peak."""
    found = calibrated("auto-radial")
    generator = np.random.default_rng(0)
    direction = generator.normal(size=(400_000, 4))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    marginal = 2 * direction[:, 0] * generator.normal(size=400_000)  # of variance 4 / 4 = 1
    truths = generator.normal(0, RATIO, size=20_000)
    expected = np.searchsorted(np.sort(marginal), truths) / len(marginal)
    for name in WEIGHTS:
        assert stats.ks_2samp(column(found, name), expected).pvalue > 0.001
        assert found.shape_of(name) == "too narrow"


@pytest.mark.slow("fits of 200 data sets")
@pytest.mark.parametrize("guide", dear_in_soak(["auto-flow", "auto-normal-mixture"], DEAR))
def test_families_around_independent_gaussians_are_not_narrower(guide: str) -> None:
    sd, error = sd_of_scores(calibrated(guide))
    assert 1 - 4 * error < sd < RATIO + 4 * error


@pytest.mark.slow("fits of 200 data sets")
def test_gaussian_dropout_is_narrower_than_independent_gaussians() -> None:
    r"""Its sds go by the sizes of the weights, :math:`\sqrt\alpha |\theta_j|`.

    At the best :math:`\alpha` the mean over j of :math:`v_j \Lambda_{jj}` is 1 as it is of
    independent Gaussians, so that the mean of :math:`1 / v_j` is larger, by Jensen.
    """
    found = calibrated("gaussian dropout")
    sd, error = sd_of_scores(found)
    assert sd > RATIO + 4 * error
    assert all(found.shape_of(name) == "too narrow" for name in WEIGHTS)


@pytest.mark.slow("a whole fit")
def test_gaussian_dropout_ends_at_its_best_rate() -> None:
    y = CORRELATED @ torch.tensor([[0.8], [-1.1], [0.6], [1.4]], dtype=torch.float64)
    make = DENSITIES["gaussian dropout"]
    svi = SVI(make, num_steps=3_000, learning_rate=0.01, num_particles=4)
    posterior = svi.run(LinearMatrix(), (CORRELATED, y), progress=False)
    assert isinstance(posterior, GuidePosterior)
    with torch.no_grad():
        _, covariance = moments(posterior.guide)
    mean = float((covariance.diagonal() / MEAN_FIELD).mean())
    assert mean == pytest.approx(1, rel=0.05)  # of steps with noise


# --- the guide of one kind of model ---------------------------------------------------------------


def rank1_layer() -> models.Rank1MLP:
    """F = (x1 s1 + x2 s2) r with factors of prior N(1, 0.1), and a noise far below them."""
    model = models.Rank1MLP(
        2,
        hidden=(),
        prior=priors.Normal(loc=1.0, scale=0.1),
        weight_prior=None,
        likelihood=likelihoods.Normal(scale=0.02),
    ).double()
    (layer,) = model.layers
    del layer.weight, layer.bias  # which are held fixed here
    layer.register_buffer("weight", torch.ones(1, 2, dtype=torch.float64))
    layer.register_buffer("bias", torch.zeros(1, dtype=torch.float64))
    return model


@pytest.mark.slow("fits of 200 data sets")
def test_components_of_rank_one_miss_what_the_data_leave_open() -> None:
    r"""The data tell r s_1 and r s_2: r alone is known by the prior, which no component follows.

    At factors of 1, :math:`\delta f_i = \delta s_i + \delta r`: the design is [1, 0, 1], [0, 1, 1]
    in (s_1, s_2, r), to first order.
    """
    x = torch.eye(2, dtype=torch.float64)
    one = functools.partial(guides.AutoRank1Mixture, num_components=1)
    svi = SVI(one, num_steps=1_500, learning_rate=0.02)
    found = variational_calibration(
        rank1_layer(), x, svi, num_simulations=NUM_SIMULATIONS, weights=True, progress=False
    )
    assert found.num_failed == 0
    assert found.shape_of("layers.0.r") == "too narrow"
    design = torch.tensor([[1.0, 0, 1], [0, 1, 1]]) / 0.02
    precision = design.mT @ design + 100 * torch.eye(3)
    ratio = float((precision[2, 2] * precision.inverse()[2, 2]).sqrt())
    assert ratio > 4
    # half of the scores of r lie within 0.6745 sds; how many is a binomial number
    p = column(found, "layers.0.r")
    within = np.abs(stats.norm.ppf(p)) < stats.norm.ppf(0.75) * ratio
    assert abs(within.mean() - 0.5) < 4 * 0.5 / NUM_SIMULATIONS**0.5


@pytest.mark.slow("about a second")
def test_a_mixture_of_rank_one_networks_is_asked_too() -> None:
    svi = SVI(guides.AutoRank1Mixture, num_steps=300, learning_rate=0.02, schedule="cosine")
    found = variational_calibration(
        rank1_layer(), torch.eye(2, dtype=torch.float64), svi, num_simulations=20, progress=False
    )
    assert found.num_failed == 0
    assert ((found.probabilities > 0) & (found.probabilities < 1)).all()


def test_no_guide_with_a_density_is_left_out() -> None:
    densities = {name for name, cls in GUIDES.items() if cls.has_log_prob}
    assert densities - set(DENSITIES) == {"auto-rank1-mixture"}
    assert {*EXACT, *INDEPENDENT} < set(DENSITIES)
