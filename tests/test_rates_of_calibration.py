"""The simulations of verdicts on calibration and spread run, and give each verdict its cases."""

from __future__ import annotations

import numpy as np

from benchmarks.verdict_rates import coverage, spread


def test_rates_of_calibration() -> None:
    rates = list(coverage.rows(quick=True))
    assert {rate.verdict for rate in rates} == {"coverage", "pit", "ece"}
    for rate in rates:
        assert 0 <= rate.given <= rate.simulated == 2
        assert rate.is_true is ("exact" not in rate.setting)


def test_rates_of_spread() -> None:
    rates = list(spread.rows(quick=True))
    for kind in ("mean", "sd ratio", "too wide", "distance"):
        cases = [rate for rate in rates if rate.verdict == kind]
        assert {rate.is_true for rate in cases} == {True, False}
        assert all(rate.given <= rate.simulated == 2 for rate in cases)
    exact = [rate for rate in rates if rate.setting.endswith("; exact")]
    assert [rate.given for rate in exact] == [0] * len(exact)


def test_mean_field_is_too_wide_at_the_data_and_too_narrow_off_it() -> None:
    """Foong et al. 2020: the reason for probes."""
    rng = np.random.default_rng(1)
    found = [spread.mean_field(1_000, 500, rng) for _ in range(5)]
    assert all("too wide" in rows and "sd ratio" not in rows for rows, _ in found)
    assert all("sd ratio" in probes for _, probes in found)
