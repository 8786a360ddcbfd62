"""Laplace on a ``Call``: modes, curvatures and evidences in closed form, files, refusals."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.errors import DivergenceError, OptionError, SiteError
from pyro_bnn.posterior import CallLaplace, CallPosterior
from tests.infer.test_any_model_svi import CALL, exact, schools
from tests.plain_pyro import default_dtype


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64):
        yield


def laplace(**options: Any) -> bnn.Laplace:
    return bnn.Laplace(curvature="hessian", num_steps=500, **options)


@pytest.fixture(scope="module")
def posterior() -> CallLaplace:
    with default_dtype(torch.float64):
        found = laplace().run(schools, CALL, progress=False)
    assert isinstance(found, CallLaplace)
    return found


def test_a_gaussian_is_found_exactly(posterior: CallLaplace) -> None:
    mean, covariance, evidence = exact()
    guide: Any = posterior.guide
    tril = (guide.scale_tril * guide.scale.unsqueeze(-1)).detach()
    assert_close(guide.loc.detach(), mean)
    assert_close(tril @ tril.mT, covariance)
    assert posterior.log_evidence == pytest.approx(evidence, abs=1e-9)
    elbo, error = posterior.elbo(50)
    assert elbo == pytest.approx(evidence, abs=1e-9)
    assert error < 1e-9
    assert posterior.newton_decrement < 1e-9
    assert posterior.objective == "log joint"
    nature = posterior.nature
    assert nature is not None
    assert nature.is_around_a_mode
    assert not nature.is_linearised


def test_a_diagonal_has_the_curvatures_of_each_number() -> None:
    mean, covariance, _ = exact()
    posterior: Any = laplace(structure="diagonal").run(schools, CALL, progress=False)
    loc, scale = posterior.guide.marginals()
    precision = torch.linalg.inv(covariance).diagonal()
    assert_close(loc.detach(), mean)
    assert_close(scale.detach(), precision**-0.5)


def test_a_subset_is_held_elsewhere() -> None:
    mean, covariance, _ = exact()
    posterior: Any = laplace(subset="theta").run(schools, CALL, progress=False)
    z = posterior.unconstrained(20_000)
    assert_close(z[:, 0], mean[0].expand(20_000))
    given = torch.linalg.inv(torch.linalg.inv(covariance)[1:, 1:])
    assert (z[:, 1:].std(0) / given.diagonal().sqrt() - 1).abs().max() < 5 / math.sqrt(40_000)
    assert math.isnan(posterior.log_evidence)


def counts(heads: Tensor, events: Tensor) -> None:
    """A bounded site with a factor, and a positive one: Beta(16, 9) and Gamma(7, 3)."""
    p = pyro.sample("p", dist.Beta(2.0, 3.0))
    pyro.factor("heads", heads * p.log() + (20.0 - heads) * (1 - p).log())
    rate = pyro.sample("rate", dist.Gamma(3.0, 2.0))
    pyro.sample("events", dist.Poisson(rate), obs=events)


def test_modes_are_those_of_unconstrained_numbers() -> None:
    r"""With p = sigmoid(a) and rate = e^b the log joint is, but for constants,

    .. math:: 16 \log p + 9 \log(1 - p) + 7 b - 3 e^b

    of modes 16/25 and 7/3, and curvatures 25 p (1 - p) and 7.
    """
    call = Call(torch.tensor(14.0), torch.tensor(4.0))
    posterior: Any = laplace().run(counts, call, progress=False)
    at = posterior.guide.centre()
    assert_close(at[0].sigmoid(), torch.tensor(16 / 25))
    assert_close(at[1].exp(), torch.tensor(7 / 3))
    curvature = 25 * 16 / 25 * 9 / 25, 7.0
    sd = posterior.guide.marginals()[1].detach()
    assert_close(sd, torch.tensor(curvature) ** -0.5)
    of_p = 16 * math.log(16 / 25) + 9 * math.log(9 / 25)
    of_p -= math.lgamma(2) + math.lgamma(3) - math.lgamma(5)
    of_rate = 7 * math.log(7 / 3) - 7 + 3 * math.log(2) - math.lgamma(3) - math.lgamma(5)
    volume = math.log(2 * math.pi) - 0.5 * math.log(curvature[0] * curvature[1])
    assert posterior.log_evidence == pytest.approx(of_p + of_rate + volume, abs=1e-8)
    assert posterior.sample(10)["p"].shape == (10,)


def test_a_model_that_cannot_be_batched_has_its_mode() -> None:
    """The branch is taken by a number of Python."""

    def branches(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        loc = w if w.item() > 0 else 2 * w
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    start = {"w": torch.tensor(0.5)}
    posterior: Any = bnn.Laplace(curvature="hessian", num_steps=20).run(
        branches, Call(torch.tensor(3.0)), init=start, progress=False
    )
    assert_close(posterior.guide.centre(), torch.tensor([1.5]))
    assert_close(posterior.guide.marginals()[1].detach(), torch.tensor([0.5**0.5]))


def test_copies_and_files_have_the_same_gaussian(posterior: CallLaplace, tmp_path: Path) -> None:
    posterior.save(tmp_path / "schools.st")
    read = CallPosterior.load(tmp_path / "schools.st", schools)
    for other in (read, pickle.loads(pickle.dumps(posterior))):
        assert isinstance(other, CallLaplace)
        assert_close(other.draws(50), posterior.draws(50), rtol=0, atol=0)
        assert other.log_evidence == posterior.log_evidence
    assert posterior.summary(100).shape[0] == 9


class _StopError(Exception):
    pass


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path) -> None:
    engine = laplace()
    whole: Any = engine.run(schools, CALL, progress=False)

    def stop(at: Any) -> None:
        if at.step >= 200:
            raise _StopError

    with pytest.raises(_StopError):
        engine.run(schools, CALL, progress=False, checkpoint=tmp_path, on_step=stop)
    again: Any = engine.run(schools, CALL, progress=False, checkpoint=tmp_path, resume=True)
    assert_close(again.draws(20), whole.draws(20), rtol=0, atol=0)
    assert list(again.losses) == list(whole.losses)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r'"ggn" is made of the rows of a network.*Laplace\(curvature="hessian"\)'),
        ({"curvature": "hessian", "prior_scales": "evidence"}, 'leave it at "model" on a Call'),
        ({"curvature": "hessian", "subset": "last_layer"}, 'subset="last_layer" needs a network'),
        ({"curvature": "hessian", "batch_size": 2}, "batch_size=2 needs rows"),
        ({"curvature": "hessian", "subset": 10}, "at most 9 here"),
    ],
)
def test_what_needs_a_network_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        bnn.Laplace(**options).run(schools, CALL, progress=False)
    with pytest.raises(SiteError, match="subset='slope' takes no site"):
        laplace(subset="slope").run(schools, CALL, progress=False)


def test_a_density_without_bound_has_no_mode() -> None:
    def centred(y: Tensor) -> None:
        tau = pyro.sample("tau", dist.HalfCauchy(5.0))
        with pyro.plate("groups", len(y)):
            theta = pyro.sample("theta", dist.Normal(0.0, tau))
            pyro.sample("y", dist.Normal(theta, 10.0), obs=y)

    with pytest.raises(DivergenceError, match="Laplace found no mode"):
        laplace().run(centred, Call(torch.tensor([1.0, -2.0, 0.5])), progress=False)


def test_a_matrix_of_too_many_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_bnn.infer.laplace.curvature.DENSE", 8)
    with pytest.raises(OptionError, match='is a matrix of 9 x 9 numbers: take "diagonal", or a'):
        laplace().run(schools, CALL, progress=False)
