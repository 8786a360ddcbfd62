"""Simulation-based calibration, of engines that sample a closed-form posterior right and wrong."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from pyro_bnn import guides
from pyro_bnn.diagnostics import simulation_based_calibration
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.infer import SVI
from tests.diagnostics.made_engines import LINEAR, NAMES, Conjugate, OneByOne, X, calibrate

pytestmark = pytest.mark.usefixtures("uncaptured")

# --- right and wrong posteriors -------------------------------------------------------------------


@pytest.mark.slow("a second or more")
def test_ranks_of_the_exact_posterior_are_uniform() -> None:
    found = calibrate(Conjugate(), num_simulations=200)
    assert found.names == NAMES
    assert found.ranks.shape == (200, 8)
    assert found.ranks.min() == 0  # of 1,600 ranks, each the smallest once in 100
    assert found.ranks.max() == 99
    assert (found.p_values > 0.001).all()
    assert found.is_calibrated
    z = [(u.bias, u.width) for u in found.uniformities.values()]
    assert np.abs(z).max() < 4
    assert all("consistent with uniform ranks" in verdict for verdict in found.verdicts[:8])
    assert found.verdicts[8].startswith("Threshold: 0.01 over two tests of 8 quantities")
    assert len(found.verdicts) == 9


@pytest.mark.parametrize(
    ("engine", "wrong"),
    [
        (Conjugate(width=0.6), {"f(x[0])": "too narrow", "b": "too narrow", "w": "too narrow"}),
        (Conjugate(width=2.0), {"f(x[0])": "too wide", "b": "too wide", "w": "too wide"}),
        (Conjugate(shift=0.7), {"f(x[2])": "biased high", "b": "biased high"}),
        (Conjugate(shift=-0.7), {"f(x[2])": "biased low", "b": "biased low"}),
        # the truth fits the data better than draws of the prior, whose own ranks are uniform
        (Conjugate(from_prior=True), {"log likelihood": "biased low"}),
    ],
)
def test_a_wrong_posterior_is_named(engine: Conjugate, wrong: dict[str, str]) -> None:
    found = calibrate(engine)
    assert not found.is_calibrated
    for name, word in wrong.items():
        assert word in found.shape_of(name)
        verdict = found.verdicts[NAMES.index(name)]
        assert re.match(rf"{re.escape(name)}: .*{word}.* p = \S+ < 0\.0006\d: ", verdict)
    if engine.shift:
        assert found.shape_of("w") == "uniform"  # the other is right
    if engine.from_prior:
        assert {found.shape_of(name) for name in ("f(x[0])", "w", "b")} == {"uniform"}


@pytest.mark.slow("about a second")
def test_mean_field_is_too_narrow_on_a_correlated_posterior() -> None:
    x = X + 3  # far from 0, slope and offset trade off: correlation near -1
    found = simulation_based_calibration(
        LINEAR, x, Conjugate(mean_field=True), num_simulations=60, progress=False
    )
    assert found.shape_of("w").startswith("too narrow")
    assert found.shape_of("b").startswith("too narrow")


# --- draws of guides and chains -------------------------------------------------------------------


def test_draws_of_a_guide_are_independent() -> None:
    svi = SVI(guides.AutoDelta, num_steps=1, compile=False)
    found = simulation_based_calibration(
        LINEAR, X, svi, num_simulations=20, num_draws=19, progress=False
    )
    assert found.method == "AutoDelta"
    assert math.isnan(found.ess)
    assert not any("autocorrelated" in verdict for verdict in found.verdicts)


@pytest.mark.slow("a second or more")
def test_autocorrelated_draws_are_said_to_be_so() -> None:
    found = calibrate(Conjugate(correlation=0.95))
    # an AR(1) chain of 99 draws holds 99 (1 - 0.95)/(1 + 0.95) = 2.5 effective ones, of z; the log
    # joint, quadratic in z, forgets with 0.95 squared: 5; short chains estimate both poorly
    assert 2 < found.ess < 25
    assert "too narrow" in found.shape_of("b")
    (verdict,) = [line for line in found.verdicts if line.startswith("Draws are autocorrelated")]
    assert f"hold {found.ess:.0f} effective draws" in verdict
    assert "fewer than the 99 that are ranked" in verdict


@pytest.mark.slow("a second or more")
def test_thinning_makes_draws_independent() -> None:
    engine = Conjugate(correlation=0.9, num_samples=99 * 40)
    found = calibrate(engine)
    # the log joint forgets with 0.9 squared: 3960 * (1 - 0.81)/(1 + 0.81) = 416 effective draws
    assert 340 < found.ess < 490
    assert found.is_calibrated
    assert not any("autocorrelated" in verdict for verdict in found.verdicts)


@pytest.mark.slow("a second or more")
def test_engines_of_one_data_set_at_a_time_see_the_same_simulations() -> None:
    each = calibrate(Conjugate(), num_simulations=60, seed=5)
    one = calibrate(OneByOne(Conjugate()), num_simulations=60, seed=5)
    assert one.is_calibrated
    # ranks of one truth among two sets of 99 exact draws differ by chance alone
    for name in ("w", "b"):
        column = NAMES.index(name)
        correlation = np.corrcoef(each.ranks[:, column], one.ranks[:, column])[0, 1]
        assert correlation > 0.95
    assert (each.method, one.method) == ("Conjugate", "Conjugate")
    assert 60 < one.ess < 130  # of 99 independent ones


@pytest.mark.slow("about a second")
def test_a_seed_repeats_and_the_random_state_stays() -> None:
    state = torch.get_rng_state()
    first, again = (calibrate(Conjugate(), num_simulations=20, seed=3) for _ in range(2))
    other = calibrate(Conjugate(), num_simulations=20, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(first.ranks, again.ranks)
    assert (first.ranks != other.ranks).any()


# --- divergences, failures and refusals -----------------------------------------------------------


@pytest.mark.parametrize(
    "engine", [Conjugate(num_diverging=2), OneByOne(Conjugate(num_diverging=2))]
)
def test_divergences_are_counted(engine: Any) -> None:
    found = calibrate(engine, num_simulations=20)
    assert found.num_diverging == (2,) * 20
    assert found.verdicts[-1].startswith("40 draws diverge, in 20 of 20 simulations: ")


@pytest.mark.slow("a second or more")
def test_failures_are_counted_and_left_out() -> None:
    at_once = calibrate(Conjugate(limit=1.0), num_simulations=60)
    one_by_one = calibrate(OneByOne(Conjugate(limit=1.0)), num_simulations=60)
    # the mean of y has variance 1.3^2 + 0.5^2/8 = 1.72: 22 % are above 1, 13.4 +- 3.2
    assert 3 < at_once.num_failed < 25
    assert one_by_one.num_failed == at_once.num_failed
    assert one_by_one.num_simulations == 60 - one_by_one.num_failed
    for found in (at_once, one_by_one):
        assert found.is_calibrated  # chosen by the data alone
        expected = f"Conjugate failed on {found.num_failed} of 60 simulated data sets"
        assert any(verdict.startswith(expected) for verdict in found.verdicts)
    with pytest.raises(DivergenceError, match=r"OneByOne failed on 20 of 20 .* 20 are needed"):
        calibrate(OneByOne(Conjugate(limit=-99)), num_simulations=20)


@pytest.mark.slow("about a second")
def test_options_out_of_range() -> None:
    with pytest.raises(OptionError, match="num_simulations=10 is too few"):
        calibrate(Conjugate(), num_simulations=10)
    with pytest.raises(OptionError, match="take num_draws=99"):
        calibrate(Conjugate(), num_draws=100)
    with pytest.raises(OptionError, match="seed is an integer of at least 0"):
        calibrate(Conjugate(), seed=-1)
    with pytest.raises(OptionError, match="keeps 50 draws, fewer than the num_draws=99"):
        calibrate(Conjugate(num_samples=50))
    with pytest.raises(OptionError, match="quantity 'b' is there already"):
        calibrate(Conjugate(), quantities={"b": lambda sites: sites["b"][:, 0]})
    with pytest.raises(ValueError, match=r"quantity 'both' has shape \[100, 1\] at 100 draws"):
        calibrate(Conjugate(), quantities={"both": lambda sites: sites["b"]})
