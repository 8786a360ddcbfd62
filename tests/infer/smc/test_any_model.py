"""SMC on a ``Call``: evidences and moments in closed form, files, resumed runs, refusals."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.posterior import CallParticles, CallPosterior
from tests.infer.test_any_model_svi import CALL, EFFECTS, ERRORS, exact, schools
from tests.plain_pyro import default_dtype


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64):
        yield


@pytest.fixture(scope="module")
def posterior() -> CallParticles:
    with default_dtype(torch.float64):
        found = bnn.SMC(num_islands=6, num_particles=512).run(schools, CALL, progress=False)
    assert isinstance(found, CallParticles)
    return found


def test_evidence_and_moments_are_those_of_the_gaussian(posterior: CallParticles) -> None:
    mean, covariance, evidence = exact()
    assert posterior.log_evidence_error < 0.03
    assert abs(posterior.log_evidence - evidence) < 5 * posterior.log_evidence_error
    table, sd = posterior.summary(), covariance.diagonal().sqrt()
    ess = torch.tensor(table["ess_bulk"].to_list())
    found, spread = (torch.tensor(table[name].to_list()) for name in ("mean", "sd"))
    assert ((found - mean).abs() < 5 * sd / ess.sqrt()).all()
    assert ((spread / sd - 1).abs() < 5 / (2 * ess).sqrt()).all()
    assert posterior.num_chains == 6
    assert posterior.options["compiled"]
    assert_close(posterior.log_joint().numpy(), posterior.sample_stats["lp"].reshape(-1))


def coins(heads: Tensor) -> None:
    """A mixture over a bounded site, with a factor: beta-binomial."""
    p = pyro.sample("p", dist.Beta(2.0, 3.0))
    pyro.factor("heads", heads * p.log() + (20.0 - heads) * (1 - p).log())


def test_evidence_of_a_beta_binomial() -> None:
    """The integral of p^14 (1 - p)^6 under Beta(2, 3) is B(16, 9) / B(2, 3)."""
    posterior: Any = bnn.SMC(num_islands=8).run(coins, Call(torch.tensor(14.0)), progress=False)
    expected = math.lgamma(16) + math.lgamma(9) - math.lgamma(25) + math.lgamma(5) - math.lgamma(3)
    assert posterior.log_evidence_error < 0.05
    assert abs(posterior.log_evidence - expected) < 5 * posterior.log_evidence_error
    p = posterior.sample()["p"]
    assert abs(float(p.mean()) - 16 / 25) < 0.01


def modes(y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 5.0))
    pyro.sample("y", dist.Normal(w.abs(), 0.2), obs=y)


def test_both_modes_are_found() -> None:
    """Of w and -w alike; the evidence is twice that of one: 2 N(4 | 0, 25.04), but for e^-200."""
    posterior: Any = bnn.SMC(num_islands=8).run(modes, Call(torch.tensor(4.0)), progress=False)
    share = float((posterior.sample()["w"] > 0).double().mean())
    assert abs(share - 0.5) < 0.15
    one = dist.Normal(0.0, math.sqrt(25.04)).log_prob(torch.tensor(4.0))
    expected = math.log(2) + float(one)
    assert abs(posterior.log_evidence - expected) < 5 * posterior.log_evidence_error


def test_a_support_that_depends_on_a_site() -> None:
    def within(y: Tensor) -> None:
        high = pyro.sample("high", dist.Uniform(1.0, 3.0))
        low = pyro.sample("low", dist.Uniform(0.0, high))
        pyro.sample("y", dist.Normal(low, 1.0), obs=y)

    smc = bnn.SMC(num_islands=6, num_particles=256)
    posterior: Any = smc.run(within, Call(torch.tensor(1.0)), progress=False)
    high = torch.linspace(1, 3, 20_001)
    width = torch.special.ndtr(high - 1) - torch.special.ndtr(torch.tensor(-1.0))
    expected = math.log(float(torch.trapezoid(width / high, high) / 2))
    assert abs(posterior.log_evidence - expected) < 5 * posterior.log_evidence_error
    draws = posterior.sample()
    assert (draws["low"] < draws["high"]).all()


def test_what_condition_holds_is_observed() -> None:
    """The same model, its data given by ``pyro.condition`` in place of an argument."""
    held = pyro.condition(schools, {"effect": EFFECTS})
    smc = bnn.SMC(num_islands=6, num_particles=128)
    posterior: Any = smc.run(held, Call(ERRORS), progress=False)
    _, _, evidence = exact()
    assert abs(posterior.log_evidence - evidence) < 5 * posterior.log_evidence_error


def test_copies_and_files_have_the_same_particles(posterior: CallParticles, tmp_path: Path) -> None:
    posterior.save(tmp_path / "schools.st")
    read = CallPosterior.load(tmp_path / "schools.st", schools)
    for other in (read, pickle.loads(pickle.dumps(posterior))):
        assert isinstance(other, CallParticles)
        assert_close(other.draws(100), posterior.draws(100), rtol=0, atol=0)
        assert other.log_evidence == posterior.log_evidence
        assert (other.stages["ess"] == posterior.stages["ess"]).all()
    tree: Any = posterior.to_arviz(60)
    assert tree["sample_stats/lp"].shape == (6, 10)


class _StopError(Exception):
    pass


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path) -> None:
    smc = bnn.SMC(num_islands=2, num_particles=64)
    whole: Any = smc.run(schools, CALL, progress=False)
    calls = 0

    def stop(_: Any) -> None:
        nonlocal calls
        calls += 1
        raise _StopError

    with pytest.raises(_StopError):
        bnn.SMC(num_islands=2, num_particles=64).run(
            schools, CALL, progress=False, checkpoint=tmp_path, on_step=stop
        )
    again: Any = smc.run(schools, CALL, progress=False, checkpoint=tmp_path, resume=True)
    assert calls == 1
    assert_close(again.stored, whole.stored, rtol=0, atol=0)


def _flat(y: Tensor) -> None:
    w = pyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), ()))
    pyro.sample("y", dist.Normal(w, 1.0), obs=y)


def _scaled(y: Tensor) -> None:
    with poutine.scale(scale=0.5):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(w, 1.0), obs=y)


def _masked(y: Tensor) -> None:
    none: Any = torch.zeros((), dtype=torch.bool)
    with poutine.mask(mask=none):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(w, 1.0), obs=y)


def _masks_itself(y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).mask(mask=False))
    pyro.sample("y", dist.Normal(w, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_flat, "none can be made from the flat one of w"),
        (_scaled, "the density of w is another one under poutine.scale or poutine.mask"),
        (_masked, "the density of w is another one"),
        (_masks_itself, "the density of w is another one"),
    ],
)
def test_priors_without_draws_are_refused(model: Any, message: str) -> None:
    with pytest.raises(SiteError, match=message):
        bnn.SMC().run(model, Call(torch.tensor(1.0)), progress=False)


def test_a_start_is_refused() -> None:
    with pytest.raises(OptionError, match="init would have no effect on SMC"):
        bnn.SMC().run(schools, CALL, init={"mu": torch.tensor(0.0)}, progress=False)
