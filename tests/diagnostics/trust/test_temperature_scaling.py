"""Temperature scaling: its minimum, its scale, and where there is none."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, special

from pyro_bnn.diagnostics import temperature_scaling
from pyro_bnn.errors import DataError


def rows(num_rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(num_rows, 3))
    probs = special.softmax(logits, 1)
    return logits, (rng.uniform(size=(num_rows, 1)) > probs.cumsum(1)).sum(1)


def test_it_is_the_least_negative_log_likelihood() -> None:
    logits, y = rows()

    def nll(temperature: float) -> float:
        return float(-special.log_softmax(logits / temperature, 1)[np.arange(len(y)), y].mean())

    found = temperature_scaling(logits, y)
    best = optimize.minimize_scalar(nll, bounds=(0.2, 5), method="bounded", options={"xatol": 1e-9})
    assert_allclose(found.temperature, best.x, rtol=1e-6)
    assert_allclose([found.nll, found.scaled_nll], [nll(1.0), best.fun], rtol=1e-12)
    assert_allclose(found.apply(logits), special.softmax(logits / best.x, 1), rtol=1e-6)


def test_logits_times_a_number_have_a_temperature_as_many_times() -> None:
    logits, y = rows()
    once = temperature_scaling(logits, y).temperature
    assert_allclose(temperature_scaling(7 * logits, y).temperature, 7 * once, rtol=1e-9)
    shifted = logits + np.arange(len(y))[:, None]
    assert_allclose(temperature_scaling(shifted, y).temperature, once, rtol=1e-9)


def test_two_classes_by_hand() -> None:
    """Three of four right at log odds of 5: the best ones are log 3."""
    logits, y = np.array([[5.0, 0.0]] * 4), np.array([0, 0, 0, 1])
    assert_allclose(temperature_scaling(logits, y).temperature, 5 / np.log(3), rtol=1e-9)


def test_no_temperature_is_best_of_rows_that_are_all_right_or_say_nothing() -> None:
    logits, y = np.eye(3), np.arange(3)
    with pytest.raises(DataError, match="right in every row"):
        temperature_scaling(logits, y)
    with pytest.raises(DataError, match="no more of the classes than chance"):
        temperature_scaling(-logits, y)


def test_a_class_of_probability_0_has_no_weight() -> None:
    # a class that no row can be does not change what the others say, at any temperature
    logits, y = rows()
    with_one_more = np.column_stack([logits, np.full(len(y), -np.inf)])
    found, expected = temperature_scaling(with_one_more, y), temperature_scaling(logits, y)
    assert_allclose(found.temperature, expected.temperature, rtol=1e-12)
    assert_allclose(found.error, expected.error, rtol=1e-12)
    assert_allclose([found.nll, found.scaled_nll], [expected.nll, expected.scaled_nll], rtol=1e-12)
    assert_allclose(found.apply(with_one_more)[:, :3], expected.apply(logits), rtol=1e-12)


def test_an_observed_class_of_probability_0_has_no_best_temperature() -> None:
    logits = np.array([[0.0, -np.inf], [0.0, -1.0], [0.0, -1.0]])
    with pytest.raises(DataError, match=r"1 of 3 rows have probability 0: .* at every temperature"):
        temperature_scaling(logits, np.array([1, 0, 0]))


def test_the_error_of_a_temperature_by_hand() -> None:
    # 1 / T = log(p / (1 - p)) / a, and the log odds of a share p of n rows have the variance
    # 1 / (n p (1 - p))
    a, num_rows, p = 2.0, 200, 0.75
    y = (np.arange(num_rows) >= p * num_rows).astype(int)
    found = temperature_scaling(np.tile([a, 0.0], (num_rows, 1)), y)
    inverse = np.log(p / (1 - p)) / a
    expected = 1 / (a * np.sqrt(num_rows * p * (1 - p))) / inverse**2
    assert_allclose(found.error, expected, rtol=1e-9)


def test_the_error_of_a_temperature_is_its_spread_over_data_sets() -> None:
    # relative error of a standard deviation of R values: 1 / sqrt(2 (R - 1)) = 0.07
    rng = np.random.default_rng(1)
    found = []
    for _ in range(100):
        logits = 2 * rng.normal(size=(300, 4))
        probs = special.softmax(logits / 1.7, 1)  # the temperature is not that of the fit
        y = (rng.uniform(size=(300, 1)) > probs.cumsum(1)).sum(1)
        found.append(temperature_scaling(logits, y))
    spread = np.std([one.temperature for one in found], ddof=1)
    assert_allclose(np.mean([one.error for one in found]), spread, rtol=0.25)
