"""Numbers carry the digits they have."""

import pytest

from pyro_bnn.plotting.numbers import decimals_of, number, percent, with_error


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (0.9996, "1.00"),
        (-1.5, "−1.50"),
        (1234567.0, "1,234,567"),
        (0.000123, "0.000123"),
        (float("nan"), ""),
        (float("inf"), "∞"),
        (float("-inf"), "−∞"),
        (-1.234e12, "−1.23e12"),
        (9.996e-101, "1.00e−100"),
        (5e-310, "5.00e−310"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (12.3456, 1.23, "12.3 ± 1.2"),
        (1234.5, 67.8, "1,234 ± 68"),
        (-0.0001, 0.02, "0.000 ± 0.020"),
        (5.0, 0.0996, "5.00 ± 0.10"),
        (float("nan"), 1.0, ""),
        (float("-inf"), 1.0, "−∞"),
        (3.14159, float("nan"), "3.14"),
        (-1.0742e24, 3.17e23, "(−1.07 ± 0.32)e24"),
        (2e-9, 5e-10, "(2.00 ± 0.50)e−9"),
    ],
)
def test_a_number_has_the_decimals_of_its_error(value: float, error: float, text: str) -> None:
    assert with_error(value, error).replace("\xa0", " ") == text


def test_percent() -> None:
    assert percent(0.8636) == "86.4\xa0%"
    assert percent(float("nan")) == ""


def test_a_column_has_one_number_of_decimals() -> None:
    values, errors = [-5.43, -5.439, -1200.0], [0.11, 0.0, 0.091]
    assert decimals_of(values, errors) == 2  # of 0.11, so that 0.091 reads 0.09
    assert decimals_of([31.4, 7.24, 140.1]) == 1
    assert decimals_of([float("nan")]) is None
    texts = [with_error(v, e, decimals=2) for v, e in zip(values[:2], errors[:2], strict=True)]
    assert [text.replace("\xa0", " ") for text in texts] == ["−5.43 ± 0.11", "−5.44"]
    assert number(1234.56, decimals=1) == "1,234.6"


def test_sizes_far_apart_keep_their_own_decimals() -> None:
    assert decimals_of([1.0, 1.0], [1e-4, 2.0]) is None
    assert decimals_of([1e12, 1.0]) is None
