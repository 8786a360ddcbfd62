"""Variational simulation-based calibration, where the law of the probabilities is known.

On the linear-Gaussian model a Gaussian q with the right means has normal scores of p of standard
deviation r, the posterior's sd over that of q, so that p has the distribution function
Phi(Phi^-1(p) / r); means that are too high by b sds of q shift the scores by -b.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_bnn import NUTS, SVI, guides, models
from pyro_bnn.diagnostics import SimulationProbabilities, variational_calibration
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.posterior import GuidePosterior, Posterior, Provenance
from pyro_bnn.program import Program
from pyro_bnn.program.handlers import Model
from tests.diagnostics.made_engines import LINEAR, X, simulating_once
from tests.oracle import design

FAR = X + 2  # where slope and offset trade off


@dataclass(frozen=True)
class Gaussian:
    """The exact posterior of `LINEAR` as a guide, or a Gaussian that is wrong in a known way."""

    width: float = 1.0
    shift: float = 0.0  # of b, in its sds
    limit: float = np.inf  # of the mean of y, beyond which it fails

    def run(
        self, model: Model, data: tuple[Tensor, Tensor], *, seed: int = 0, progress: bool = True
    ) -> Posterior:
        x, y = data
        if float(y.mean()) > self.limit:
            raise DivergenceError("made to fail")
        covariance = exact_covariance(x)
        program, guide = set_up(model, x)
        mean = covariance @ design(x).T @ y.flatten() / LINEAR.noise**2
        mean[1] += self.shift * self.width * covariance[1, 1].sqrt()
        guide.set_moments(mean, self.width**2 * covariance)
        return GuidePosterior(program, guide, Provenance("Gaussian", "made up"))


@functools.cache  # by identity, as tensors are hashed
def set_up(model: Model, x: Tensor) -> tuple[Program, guides.AutoMultivariateNormal]:
    guide = guides.AutoMultivariateNormal(model)
    guide.setup(x[:1])
    return Program(model, x, x), guide.double()


def exact_covariance(x: Tensor) -> Tensor:
    a, eye = design(x), torch.eye(2, dtype=torch.float64)
    precision = a.T @ a / LINEAR.noise**2 + eye / LINEAR.prior_scale**2
    return precision.inverse()


def calibrate(engine: Any, num_simulations: int = 200, **options: Any) -> SimulationProbabilities:
    with simulating_once():
        return variational_calibration(
            LINEAR,
            options.pop("x", X),
            engine,
            num_simulations=num_simulations,
            progress=False,
            **options,
        )


def column(found: SimulationProbabilities, name: str) -> np.ndarray:
    return found.probabilities[:, found.names.index(name)]


def assert_law(p: np.ndarray, ratio: float = 1.0, shift: float = 0.0) -> None:
    """P has normal scores of this standard deviation, shifted by minus so many of their own."""
    result = stats.kstest(stats.norm.ppf(p), stats.norm(-shift, ratio).cdf)
    assert result.pvalue > 0.001


# --- right and wrong approximations ---------------------------------------------------------------


@pytest.fixture(scope="module")
def right() -> SimulationProbabilities:
    return calibrate(Gaussian())


def test_probabilities_of_the_exact_posterior_are_uniform(right: SimulationProbabilities) -> None:
    assert right.names == ("f(x[0])", "f(x[2])", "f(x[5])", "f(x[7])", "w", "b")
    assert right.exact == {"w", "b"}
    for name in right.names:
        assert_law(column(right, name))
        assert right.findings[name].symmetry > 0.001
    assert right.is_calibrated
    assert right.method == "Gaussian"
    assert "- no error found in 6 quantities, smallest p = " in right.summary()
    assert all("consistent with a right q" in verdict for verdict in right.verdicts[:6])


@pytest.mark.slow("a second or more")
def test_half_the_variance_makes_a_u_that_is_symmetric() -> None:
    found = calibrate(Gaussian(width=np.sqrt(0.5)))
    for name in found.names:
        assert_law(column(found, name), ratio=np.sqrt(2))
        assert found.shape_of(name) == "too narrow"
        assert found.is_symmetric(name)
        counts = found.uniformities[name].counts
        assert counts[[0, -1]].sum() > 2 * counts[9:11].sum()
    (verdict,) = (line for line in found.verdicts if line.startswith("w: "))
    assert "too narrow, symmetry p = " in verdict
    assert verdict.endswith(": a U: the true value lies outside of most of q too often.")


@pytest.mark.slow("a second or more")
def test_a_larger_variance_makes_a_hump() -> None:
    found = calibrate(Gaussian(width=1.5))
    assert_law(column(found, "w"), ratio=1 / 1.5)
    assert {found.shape_of(name) for name in found.names} == {"too wide"}


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize(("shift", "word"), [(0.6, "biased high"), (-0.6, "biased low")])
def test_a_shift_makes_it_asymmetric(shift: float, word: str) -> None:
    found = calibrate(Gaussian(shift=shift))
    assert_law(column(found, "b"), shift=shift)
    assert found.shape_of("b") == word
    assert found.shape_of("w") == "uniform"
    assert not found.is_symmetric("b")
    assert not found.is_calibrated


@pytest.mark.slow("a second or more")
def test_a_bias_is_seen_beside_a_wrong_width() -> None:
    found = calibrate(Gaussian(width=0.5, shift=0.8))
    assert_law(column(found, "b"), ratio=2.0, shift=0.8)
    assert found.shape_of("b") == "biased high and too narrow"
    assert found.shape_of("w") == "too narrow"


# --- fits -----------------------------------------------------------------------------------------


@pytest.mark.slow("fits of 200 data sets")
def test_mean_field_fits_are_too_narrow_by_the_known_ratio_and_unbiased() -> None:
    svi = SVI(guides.AutoNormal, num_steps=800, learning_rate=0.05)
    found = calibrate(svi, x=FAR)
    covariance = exact_covariance(FAR)
    variances = torch.linalg.inv(covariance).diagonal().reciprocal()  # of the best factorised q
    ratios = (covariance.diagonal() / variances).sqrt()
    assert float(ratios.min()) > 1.5
    for name, ratio in zip(("w", "b"), ratios, strict=True):
        assert_law(column(found, name), ratio=float(ratio))
        assert found.shape_of(name) == "too narrow"
        assert found.is_symmetric(name)
    a = design(FAR)[0]
    ratio = float((a @ covariance @ a / (a.square() * variances).sum()).sqrt())
    assert_law(column(found, "f(x[0])"), ratio=ratio)  # of draws, too wide or narrow by its place


@pytest.mark.slow("fits of 200 data sets")
def test_fits_with_the_right_family_are_calibrated() -> None:
    svi = SVI(guides.AutoMultivariateNormal, num_steps=1_000, learning_rate=0.05)
    found = calibrate(svi, x=X + 0.7)
    assert found.is_calibrated
    for name in found.names:
        assert_law(column(found, name))


def test_weights_of_larger_sites_on_request_and_own_quantities() -> None:
    model = models.MLP(1, hidden=(2,))
    svi = SVI(guides.AutoNormal, num_steps=2, compile=False)
    found = variational_calibration(
        model,
        X,
        svi,
        num_simulations=20,
        weights=True,
        quantities={"first": lambda sites: sites["layers.0.weight"][:, 0, 0]},
        progress=False,
    )
    assert found.names[4:] == (
        *("layers.1.bias", "likelihood.scale", "first"),
        *("layers.0.weight[0,0]", "layers.0.weight[1,0]", "layers.0.bias[0]", "layers.0.bias[1]"),
        *("layers.1.weight[0,0]", "layers.1.weight[0,1]"),
    )
    assert found.exact == {*found.names[4:]} - {"first"}
    # the same scalar, by 999 draws and in closed form
    p, drawn = column(found, "layers.0.weight[0,0]"), column(found, "first")
    error = np.sqrt(p * (1 - p) / 999) + 1 / 1000
    assert (np.abs(drawn - p) < 4 * error).all()


# --- options, failures, output --------------------------------------------------------------------


def test_a_seed_repeats() -> None:
    first, again = (calibrate(Gaussian(), num_simulations=20, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.probabilities, again.probabilities)


@pytest.mark.slow("about a second")
def test_failures_are_counted_and_left_out() -> None:
    found = calibrate(Gaussian(limit=1.0), num_simulations=60)
    # the mean of y has variance 1.3^2 + 0.5^2/8 = 1.72: 22 % are above 1, 13.4 +- 3.2
    assert 3 < found.num_failed < 25
    assert found.num_simulations == 60 - found.num_failed
    assert f"failed on {found.num_failed} of 60 simulated data sets" in found.verdicts[-1]
    with pytest.raises(DivergenceError, match=r"Gaussian failed on 20 of 20 .* 20 are needed"):
        calibrate(Gaussian(limit=-99), num_simulations=20)


@pytest.mark.slow("about a second")
def test_fits_after_one_that_failed_are_held_against_their_own_truth() -> None:
    whole, some = (calibrate(Gaussian(limit=limit), 60, num_draws=9) for limit in (np.inf, 1.0))
    assert some.num_failed
    left = np.isin(column(whole, "w"), column(some, "w"))  # in closed form, so the same numbers
    assert left.sum() == some.num_simulations
    np.testing.assert_array_equal(column(some, "b"), column(whole, "b")[left])


@pytest.mark.slow("about a second")
def test_what_has_no_density_is_refused() -> None:
    with pytest.raises(OptionError, match="AutoDelta has no density, and puts all probability on"):
        calibrate(SVI(guides.AutoDelta, num_steps=1, compile=False), num_simulations=20)
    nuts = NUTS(num_chains=1, warmup_steps=10, num_samples=10, compile=False)
    with pytest.raises(OptionError, match="NUTS is no guide with a density"):
        calibrate(nuts, num_simulations=20)
    with pytest.raises(OptionError, match="num_simulations=19 is too few"):
        calibrate(Gaussian(), num_simulations=19)


@pytest.mark.slow("about a second")
def test_the_errors_said_to_be_found_are_found_at_least_four_times_in_five() -> None:
    generator = np.random.default_rng(0)
    claim = SimulationProbabilities(
        probabilities=np.full((200, 1), 0.5),
        names=("h",),
        exact=frozenset(),
        num_draws=9,
        method="q",
    )
    bias, width = claim.smallest_errors
    shares = []
    for shift, ratio in ((bias, 1.0), (0.0, 1 / (1 - width))):
        p = stats.norm.cdf(ratio * generator.normal(size=(400, 200)) - shift)
        found = [replace(claim, probabilities=column[:, None]) for column in p]
        passes = [f.is_symmetric("h") if shift else f.is_uniform("h") for f in found]
        shares.append(1 - np.mean(passes))
    assert min(shares) > 0.8  # the farthest point of a walk lies beyond its end
    assert max(shares) < 0.95


def test_so_few_simulations_that_no_bias_is_found_are_said_to_be_too_few() -> None:
    few = SimulationProbabilities(
        probabilities=np.full((20, 6), 0.5),
        names=tuple("abcdef"),
        exact=frozenset(),
        num_draws=9,
        method="q",
    )
    assert few.smallest_errors[0] == np.inf
    said = " ".join(few.summary().split())
    assert "20 simulations are too few to find a bias, however large; they find an sd that" in said


@pytest.mark.slow("about a second")
def test_files_and_summary(right: SimulationProbabilities, tmp_path: Path) -> None:
    paths = right.save(tmp_path / "vsbc")
    assert [path.name for path in paths] == ["probabilities.png", "probabilities.csv", "table.csv"]
    values = pd.read_csv(paths[1], index_col="simulation")
    np.testing.assert_allclose(values.to_numpy(), right.probabilities, rtol=1e-12)
    assert list(pd.read_csv(paths[2])["verdict"]) == ["uniform"] * 6
    assert paths[0].read_bytes()[:4] == b"\x89PNG"
    lines = right.summary().splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == ("Gaussian: 200 simulated data sets, probabilities of true values under q")
    titles = [ax.get_title(loc="left").splitlines()[0] for ax in right.figure.axes[:6]]
    assert titles == list(right.names)
