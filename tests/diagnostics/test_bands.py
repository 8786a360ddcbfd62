"""Bands of simulated data: exact by exchangeability, and kept by exact posteriors."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from benchmarks.verdict_rates.coverage import (
    EXACT,
    SETTINGS,
    Fault,
    Linear,
    classes,
    finite,
    linear,
    verdicts_on_numbers,
)
from pyro_bnn.diagnostics.bands import central_band, simulated_pit, simultaneous_band, upper_limit
from pyro_bnn.diagnostics.calibration import (
    coverage,
    covered_share,
    pit,
    pit_difference,
    pit_histogram,
    reliability_curve,
    simulated_ece,
)
from pyro_bnn.errors import ShapeError
from pyro_bnn.likelihoods import (
    Bernoulli,
    Categorical,
    HeteroscedasticNormal,
    Likelihood,
    Normal,
    Poisson,
    StudentT,
)

NUM_DRAWS = 199  # the fewest that give a band


def most_of(num_simulated: int, rate: float = 0.01) -> int:
    """A count that chance exceeds once in ten thousand at this rate."""
    return int(stats.binom.ppf(1 - 1e-4, num_simulated, rate))


# --- an exact posterior --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(it, id=str(it), marks=[pytest.mark.soak] if it.num_test == 2_000 else [])
        for k, it in enumerate(SETTINGS)
    ],
)
def test_an_exact_posterior_is_called_wrong_at_the_stated_rate(setting: Linear) -> None:
    rng, count = np.random.default_rng(0), 200
    found = [
        verdicts_on_numbers(*linear(setting, EXACT, NUM_DRAWS, rng), seed) for seed in range(count)
    ]
    for kind in ("coverage", "pit"):
        assert sum(kind in verdicts for verdicts in found) <= most_of(count), kind


def test_rows_that_share_a_draw_vary_more_than_a_binomial_count() -> None:
    """The binomial band of the same PIT values: the error that this replaces."""
    rng, setting = np.random.default_rng(0), Linear(10, 0.3, 200)
    flagged = sum(
        not coverage(pit(*linear(setting, EXACT, 99, rng), seed=seed)).consistent
        for seed in range(100)
    )
    assert flagged > 3 * most_of(100)


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize(
    ("likelihood", "num_outputs"),
    [
        (Normal(0.5), 1),
        (StudentT(3.0, 0.5), 1),
        (HeteroscedasticNormal(), 2),
        (Poisson(), 1),
    ],
    ids=lambda it: type(it).__name__,
)
def test_an_exact_posterior_of_every_likelihood_of_numbers_keeps_its_bands(
    likelihood: Likelihood, num_outputs: int
) -> None:
    count = 150
    found = []
    for seed in range(count):
        draws, y, _ = finite(
            likelihood, num_outputs, num_train=5, num_test=60, num_draws=NUM_DRAWS, seed=seed
        )
        found.append(verdicts_on_numbers(draws, y, seed))
    for kind in ("coverage", "pit"):
        assert sum(kind in verdicts for verdicts in found) <= most_of(count), kind


@pytest.mark.parametrize(("likelihood", "num_outputs"), [(Bernoulli(), 1), (Categorical(3), 3)])
def test_an_exact_posterior_of_classes_keeps_its_bands(
    likelihood: Likelihood, num_outputs: int
) -> None:
    count, above, outside, bins = 150, 0, 0, 0
    for seed in range(count):
        labels, y, f = finite(
            likelihood, num_outputs, num_train=10, num_test=100, num_draws=NUM_DRAWS, seed=seed
        )
        p = f.sigmoid() if num_outputs == 1 else f.softmax(-1)
        probs = p.mean(0).double().numpy()
        probs = np.concatenate([1 - probs, probs], 1) if num_outputs == 1 else probs
        curve = reliability_curve(probs, y.astype(int), simulated=labels)
        outside += int(((curve.accuracy < curve.low) | (curve.accuracy > curve.high)).sum())
        bins += int((curve.count > 0).sum())
        own = float(simulated_ece(probs, y[None])[0])
        above += own > upper_limit(simulated_ece(probs, labels))
    assert above <= most_of(count)
    assert 0 < outside <= 2 * most_of(bins)  # bins of one report are not independent


def test_a_posterior_that_is_too_sure_of_classes_is_seen() -> None:
    assert sum(classes(10, 200, NUM_DRAWS, 4.0, seed) for seed in range(20)) > most_of(20)


@pytest.mark.parametrize(
    ("fault", "kind", "least"),
    [
        (Fault(spread=0.0), "coverage", 0.8),
        (Fault(spread=4.0), "pit", 0.5),
        (Fault(shift=3.0), "coverage", 0.9),
    ],
)
def test_a_posterior_too_narrow_too_wide_or_moved_is_seen(
    fault: Fault, kind: str, least: float
) -> None:
    rng = np.random.default_rng(1)
    found = [
        verdicts_on_numbers(*linear(Linear(10, 0.3, 200), fault, NUM_DRAWS, rng), seed)
        for seed in range(40)
    ]
    assert sum(kind in verdicts for verdicts in found) >= least * 40


# --- the ranks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["normal", "poisson"])
def test_simulated_pit_is_the_pit_of_a_draw_among_the_others_and_y(kind: str) -> None:
    rng = np.random.default_rng(0)
    pool = rng.normal(size=(12, 40)) if kind == "normal" else rng.poisson(2.0, size=(12, 40))
    pool = pool.astype(float)
    found = simulated_pit(pool[:-1], pool[-1])
    for s in range(11):
        others = np.delete(pool, s, axis=0)
        below, ties = (others < pool[s]).sum(0), (others == pool[s]).sum(0)
        assert (12 * found[s] >= below - 1e-4).all()
        assert (12 * found[s] <= below + ties + 1 + 1e-4).all()
    assert stats.kstest(simulated_pit(pool[:-1], pool[-1], seed=3).ravel(), "uniform").pvalue > 1e-3


def test_ranks_within_ties_are_by_lot_and_apart_from_those_of_the_observations() -> None:
    y, draws = np.zeros(1_000), np.zeros((1, 1_000))
    own, other = pit(draws, y, seed=5), simulated_pit(draws, y, seed=5)[0]
    assert stats.kstest(other, "uniform").pvalue > 1e-3
    assert abs(stats.pearsonr(own, other).statistic) < 5 / np.sqrt(1_000)


def test_blocks_of_rows_make_no_difference_to_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    draws, y = rng.normal(size=(30, 50)), rng.normal(size=50)
    whole = (31 * simulated_pit(draws, y)).astype(int)
    monkeypatch.setattr("pyro_bnn.diagnostics.bands.NUMBERS_AT_ONCE", 31 * 7)
    assert_array_equal((31 * simulated_pit(draws, y)).astype(int), whole)


# --- the bands: each of S + 1 exchangeable values is left out in turn ----------------------------


def test_the_central_band_leaves_out_one_value_of_200_at_each_end() -> None:
    pool = np.random.default_rng(0).permutation(200.0 + np.arange(200))
    outside = [
        (pool[i] < low, pool[i] > high)
        for i in range(200)
        for low, high in [central_band(np.delete(pool, i))]
    ]
    assert np.sum(outside, axis=0).tolist() == [1, 1]
    for num_simulated in (198, 1):
        assert np.isnan(central_band(pool[:num_simulated])).all()


def test_the_upper_limit_is_exceeded_by_one_value_of_100() -> None:
    pool = np.random.default_rng(0).permutation(np.arange(100.0))
    assert sum(pool[i] > upper_limit(np.delete(pool, i)) for i in range(100)) == 1
    assert np.isnan(upper_limit(pool[:98]))


def test_the_simultaneous_band_is_left_by_four_of_400_however_many_bars() -> None:
    pool = np.random.default_rng(0).gamma(1.0, size=(400, 6)) * np.arange(1, 7)
    outside = 0
    for i in range(400):
        low, high = simultaneous_band(pool[i], np.delete(pool, i, axis=0))
        outside += bool(((pool[i] < low) | (pool[i] > high)).any())
    assert outside == 4


def test_a_bar_that_is_the_same_in_all_data_does_not_widen_the_band() -> None:
    rng = np.random.default_rng(0)
    simulated = np.column_stack([np.full(199, 3.0), rng.normal(size=199)])
    low, high = simultaneous_band(np.array([3.0, 0.0]), simulated)
    assert (low[0], high[0]) == (3.0, 3.0)
    expected = simultaneous_band(np.zeros(1), simulated[:, 1:])
    assert_allclose([low[1], high[1]], np.ravel(expected))


# --- what they are of ----------------------------------------------------------------------------


def test_the_histogram_counts_every_value_and_its_band_is_that_of_the_simulated_counts() -> None:
    rng = np.random.default_rng(0)
    values, simulated = rng.uniform(size=100), rng.uniform(size=(299, 100))
    values[0] = 1.0
    found = pit_histogram(values, simulated)
    assert_array_equal(found.counts, np.histogram(values, 12, (0, 1))[0])
    counts = np.stack([np.histogram(row, 12, (0, 1))[0] for row in simulated])
    low, high = simultaneous_band(found.counts, counts)
    assert_allclose([found.low, found.high], [low, high])
    assert not found.outside.any()
    found = pit_histogram(np.full(100, 0.99), simulated)
    assert_array_equal(found.outside, [False] * 11 + [True])


def test_the_distribution_function_of_pit_values_against_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    values, simulated = rng.beta(0.5, 0.5, 400), rng.uniform(size=(299, 400))
    found = pit_difference(values, simulated)
    assert_allclose(found.at, np.linspace(0, 1, 51)[1:-1])
    expected = stats.ecdf(values).cdf.evaluate(found.at) - found.at
    assert_allclose(found.difference, expected)
    # too many values near both ends: above zero, then below, and out of the band
    assert found.outside[:10].all()
    assert found.outside[-10:].all()
    assert (found.difference[:10] > 0).all()
    assert (found.difference[-10:] < 0).all()
    shifted = np.stack([stats.ecdf(row).cdf.evaluate(found.at) for row in simulated]) - found.at
    assert_allclose([found.low, found.high], simultaneous_band(found.difference, shifted))
    assert not pit_difference(rng.uniform(size=400), simulated).outside.any()
    with pytest.raises(ShapeError, match=r"simulated must have shape \[S, 400\] to match pit"):
        pit_difference(values, simulated[:, 1:])


def test_the_band_of_coverage_is_the_central_one_of_the_shares() -> None:
    simulated = np.random.default_rng(0).uniform(size=(399, 50))
    shares = ((simulated >= 0.05) & (simulated <= 0.95)).mean(1)
    assert_allclose(covered_share(simulated, 0.9), shares)
    result = coverage(np.full(50, 0.5), 0.9, shares)
    assert (result.low, result.high) == (np.sort(shares)[1], np.sort(shares)[-2])
    unknown = coverage(np.full(50, 0.01), 0.9, shares[:100])
    assert np.isnan([unknown.low, unknown.high]).all()
    assert unknown.consistent


def test_ece_of_several_sets_of_classes_by_hand() -> None:
    probs = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    sets = np.array([[0, 0, 1], [0, 1, 1], [1, 1, 0]])
    expected = [(2 * 0.1 + 0.4) / 3, (2 * 0.4 + 0.4) / 3, (2 * 0.9 + 0.6) / 3]
    assert_allclose(simulated_ece(probs, sets), expected)


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"y must have shape \[3\] to match draws"):
        simulated_pit(np.zeros((5, 3)), np.zeros(2))
    with pytest.raises(ShapeError, match=r"simulated must have shape \[S, 3\] to match pit"):
        pit_histogram(np.zeros(3), np.zeros((5, 2)))
    with pytest.raises(ShapeError, match=r"observed must have shape \[2\] to match simulated"):
        simultaneous_band(np.zeros(3), np.zeros((5, 2)))
