"""Checks of fits where the answers are known."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from pyro_bnn.errors import DataError
from pyro_bnn.posterior import Nature
from pyro_bnn.report.evaluation.fit_checks import (
    FitChecks,
    fit_checks,
    function_chains,
    learning_rates,
)
from tests.report.conjugate import NOISE, LinearPosterior, losses, regression_split


def _checks(posterior: LinearPosterior, num_draws: int = 1_000) -> FitChecks:
    return fit_checks(posterior, posterior.split, num_draws, 0, is_point=posterior.spread == 0)


def test_the_elbo_of_the_exact_posterior_is_the_log_evidence() -> None:
    posterior = LinearPosterior(regression_split())
    checks = _checks(posterior)
    x = torch.cat([posterior.split.train.x.double(), torch.ones(len(posterior.split.train), 1)], 1)
    covariance = x @ x.T + NOISE**2 * torch.eye(len(x), dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), covariance)
    expected = float(evidence.log_prob(posterior.split.train.y.double()))
    assert_allclose(checks.elbo, expected, rtol=1e-9)
    assert checks.elbo_error < 1e-6


@pytest.mark.slow("about a second")
def test_a_narrow_guide_has_a_lower_elbo_and_a_larger_khat() -> None:
    split = regression_split()
    narrow, good = (
        _checks(LinearPosterior(split, spread=0.4)),
        _checks(LinearPosterior(split, spread=0.9)),
    )
    assert narrow.elbo < good.elbo
    assert narrow.khat > 0.5 > good.khat


@pytest.mark.slow("about a second")
def test_loo_is_shown_where_draws_can_be_reweighted() -> None:
    split = regression_split()
    exact = _checks(LinearPosterior(split, "NUTS", stored=1_000, num_chains=4))
    close = _checks(LinearPosterior(split, spread=0.9))
    assert exact.loo is not None
    assert close.loo is not None
    assert abs(exact.loo.elpd - close.loo.elpd) < 1.0  # both estimate the exact posterior's


def test_a_linearised_network_has_no_loo_and_says_what_its_khat_is_of() -> None:
    checks = _checks(LinearPosterior(regression_split(), nature=Nature(is_linearised=True)))
    assert checks.khat < checks.khat_limit  # of the weights, which could be reweighted
    assert checks.loo is None
    assert checks.notes[-2:] == (
        "predicts by the linearised network; ELBO and k-hat are of the network itself at draws of "
        "the weights",
        "no PSIS-LOO: rows have the likelihood of the linearised network",
    )


def test_steps_to_a_mode_that_is_found_afterwards_have_no_trend() -> None:
    rising = 100.0 - 0.01 * np.arange(4_000.0)
    at_a_kink = {"newton_decrement": 38.0, "polish_gain": 4e-3}
    for more, is_rising in (
        ({}, True),
        ({"newton_decrement": 1e-6, "polish_gain": 4e-3}, False),
        (at_a_kink, False),
        (at_a_kink | {"polish_gain": 0.6}, True),  # of which a warning was given
    ):
        checks = _checks(LinearPosterior(regression_split(), losses=rising, options=more))
        assert (checks.trend is not None and checks.trend.is_rising) is is_rising
        assert not checks.unchecked


def test_loo_is_blank_with_the_reason_elsewhere() -> None:
    split = regression_split()
    far = _checks(LinearPosterior(split, shift=6.0))
    assert far.loo is None
    assert f"no PSIS-LOO: k-hat {far.khat:.2f}, not below 0.67" in far.notes[-1]
    point = _checks(LinearPosterior(split, "AutoDelta", spread=0.0))
    assert point.loo is None
    assert point.notes == (
        "a point estimate: one draw of the function",
        "convergence not judged: it has no trace of its objective",
        "no PSIS-LOO: a point has no importance weights",
    )
    sampler = _checks(LinearPosterior(split, "SGLD", stored=100))
    assert sampler.loo is None
    assert "no PSIS-LOO: no log density" in sampler.notes[-1]


def test_few_draws_have_no_khat_and_say_so() -> None:
    checks = _checks(LinearPosterior(regression_split()), num_draws=24)
    assert np.isnan(checks.khat)
    assert checks.notes[0] == "no k-hat from 24 draws (at least 25)"
    reason = "no PSIS-LOO: no k-hat, so its draws cannot be reweighted to the posterior"
    assert checks.notes[-1] == reason  # it has a density


def test_undefined_densities_become_a_note_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = LinearPosterior(regression_split())
    bad = torch.full((1_000,), float("nan"))
    monkeypatch.setattr(posterior, "elbo", lambda *_, **__: (1.0, 0.1))
    monkeypatch.setattr(posterior, "densities", lambda *_, **__: (bad, bad))
    checks = _checks(posterior)
    assert np.isnan(checks.khat)
    assert checks.notes[0].startswith("no k-hat: 1000 of 1000 importance ratios")


def test_samplers_have_chains_and_divergences_and_no_elbo() -> None:
    posterior = LinearPosterior(
        regression_split(), "NUTS", stored=400, num_chains=4, num_divergent=7
    )
    checks = _checks(posterior)
    assert checks.num_divergent == 7
    assert checks.chains is not None
    assert checks.chains.shape == (4, 100, 60, 1)
    assert checks.convergence is not None
    assert checks.convergence.worst_rhat < 1.05
    assert np.isnan(checks.elbo)
    assert checks.trend is None


def test_chains_are_judged_at_no_more_than_200_rows() -> None:
    posterior = LinearPosterior(regression_split(1_200), "NUTS", stored=40, num_chains=4)
    chains = function_chains(posterior, posterior.split, 0)
    assert chains is not None
    assert chains.shape == (4, 10, 200, 1)


def test_rows_that_chains_are_judged_at_are_spread_over_all() -> None:
    posterior = LinearPosterior(regression_split(1_596), "NUTS", stored=40, num_chains=4)
    x = posterior.split.test.x
    assert len(x) == 399  # every second one is among the 200
    chains = function_chains(posterior, posterior.split, 0)
    assert chains is not None
    assert_allclose(chains, posterior.function_draws(x[::2], 40, group_by_chain=True), rtol=1e-12)


def test_too_short_chains_and_approximations_are_not_judged() -> None:
    split = regression_split()
    short = LinearPosterior(split, "NUTS", stored=28, num_chains=4)
    assert function_chains(short, split, 0) is None
    assert function_chains(LinearPosterior(split), split, 0) is None


def test_the_trend_allows_for_the_cosine_schedule() -> None:
    split = regression_split()
    cosine = LinearPosterior(split, options={"schedule": "cosine", "num_steps": 4_000})
    rates = learning_rates(cosine, 4_000)
    assert rates is not None
    assert_allclose(rates[[0, 2_000]], [1.0, 0.5])
    cosine.losses = 100.0 + 50.0 * rates + 0.1 * losses(seed=0)  # the drop that the schedule brings
    flat = _checks(cosine).trend
    cosine.options = {}
    naive = _checks(cosine).trend
    assert flat is not None
    assert naive is not None
    assert flat.gain < 2 * flat.standard_error + 1
    assert naive.gain > 2 * naive.standard_error + 1


def test_an_early_stop_has_used_only_the_first_learning_rates() -> None:
    posterior = LinearPosterior(regression_split())
    posterior.options = {"schedule": "cosine", "num_steps": 1_000}
    rates = learning_rates(posterior, 501)
    assert rates is not None
    assert_allclose(rates[-1], 0.5)
    posterior.options = {"schedule": "constant"}
    assert learning_rates(posterior, 501) is None
    posterior.options = {"schedule": "power"}
    rates = learning_rates(posterior, 501)
    assert rates is not None
    assert_allclose(rates[[0, 31]], [1.0, 32**-0.55])  # as of SLANG's authors


def test_a_loo_that_fails_becomes_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise DataError("log_likelihood holds infinities")

    posterior = LinearPosterior(regression_split(), "NUTS", stored=100)
    monkeypatch.setattr(posterior, "to_arviz", broken)
    checks = _checks(posterior, num_draws=100)
    assert checks.loo is None
    assert checks.notes[-1] == "no PSIS-LOO: log_likelihood holds infinities"


def test_loo_is_blank_where_parameters_were_fitted_to_every_row() -> None:
    split = regression_split()
    close = LinearPosterior(split, spread=0.9)
    sampler = LinearPosterior(split, "NUTS", stored=1_000, num_chains=4)
    for posterior in (close, sampler):
        posterior.params = {"layers.0.weight": torch.zeros(3)}
    fitted = _checks(close)
    assert fitted.loo is None
    assert fitted.notes[-1] == (
        "no PSIS-LOO: layers.0.weight were fitted to every row, so no row is left out of them"
    )
    given = _checks(sampler)
    assert given.loo is not None
    assert "PSIS-LOO is given layers.0.weight: too high if their values were" in given.notes[-1]
