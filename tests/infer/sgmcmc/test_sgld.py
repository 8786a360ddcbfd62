"""Langevin dynamics with a constant step: its known bias on the oracle, and where it diverges."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.infer import SGLD
from pyro_bnn.posterior import DrawsPosterior
from tests.oracle import LinearGaussian, linear_gaussian

CHAINS = 2_000


@pytest.fixture(scope="module")
def oracle() -> LinearGaussian:
    return linear_gaussian()


def last_draws(oracle: LinearGaussian, step_size: float) -> torch.Tensor:
    """One draw ``[C, P]`` of each of many chains, which forgot their start by a factor of 1e6."""
    slowest = float(torch.linalg.eigvalsh(oracle.precision)[0])
    steps = round(14 / (step_size * slowest))
    sgld = SGLD(num_chains=CHAINS, warmup_steps=steps, num_samples=1, thin=1, step_size=step_size)
    return sgld.run(oracle.model, (oracle.x, oracle.y), progress=False).stored[:, 0]


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize("share", [0.4, 0.7])
def test_draws_have_the_covariance_of_the_step(oracle: LinearGaussian, share: float) -> None:
    largest = float(torch.linalg.eigvalsh(oracle.precision)[-1])
    h = share * 2 / largest
    z = last_draws(oracle, h)
    covariance = (oracle.precision - h * oracle.precision @ oracle.precision / 2).inverse()
    error = covariance.diagonal().sqrt() / CHAINS**0.5
    assert float(((z.mean(0) - oracle.mean) / error).abs().max()) < 5
    variances = torch.outer(covariance.diagonal(), covariance.diagonal())
    error = ((variances + covariance.square()) / (CHAINS - 1)).sqrt()  # of Wishart's entries
    assert float(((z.mT.cov() - covariance) / error).abs().max()) < 5
    # so that the exact posterior's would not do
    assert float(((z.mT.cov() - oracle.covariance) / error).abs().max()) > 5


@pytest.mark.slow("a second or more")
def test_batches_leave_the_mean(oracle: LinearGaussian) -> None:
    values = torch.linalg.eigvalsh(oracle.precision)
    h = 0.2 * 2 / float(values[-1])
    thin = round(4 / (h * float(values[0])))  # after which a draw has forgotten the one before
    sgld = SGLD(
        num_chains=400,
        num_samples=20,
        warmup_steps=4 * thin,
        thin=thin,
        step_size=h,
        batch_size=5,
    )
    z = sgld.run(oracle.model, (oracle.x, oracle.y), progress=False).stored  # [C, S, P]
    means = z.mean(1)  # chains have batches of their own
    error = means.std(0) / len(means) ** 0.5
    assert float(((means.mean(0) - oracle.mean) / error).abs().max()) < 5


def test_too_large_a_step_diverges_and_keeps_finite_draws(oracle: LinearGaussian) -> None:
    h = 3 * 2 / float(torch.linalg.eigvalsh(oracle.precision)[-1])
    sgld = SGLD(num_chains=2, warmup_steps=0, num_samples=2_000, thin=1, step_size=h)
    with pytest.raises(
        DivergenceError, match=r"not finite at step \d+; .*Lower step_size"
    ) as found:
        sgld.run(oracle.model, (oracle.x, oracle.y), progress=False)
    kept = found.value.posterior
    assert isinstance(kept, DrawsPosterior)
    assert bool(kept.stored.isfinite().all())


def test_one_of_thin_draws_is_kept(oracle: LinearGaussian) -> None:
    def draws(thin: int, num_samples: int) -> torch.Tensor:
        sgld = SGLD(num_chains=3, warmup_steps=7, num_samples=num_samples, thin=thin)
        return sgld.run(oracle.model, (oracle.x, oracle.y), progress=False).stored

    torch.testing.assert_close(draws(4, 5), draws(1, 20)[:, 3::4], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_chains": 0}, "num_chains is an integer of at least 1"),
        ({"thin": 0}, "thin is an integer of at least 1"),
        ({"step_size": -1.0}, "step_size is a positive number"),
        ({"warmup_steps": -1}, "warmup_steps is an integer of at least 0"),
        ({"batch_size": 0}, "batch_size is an integer of at least 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        SGLD(**options)
