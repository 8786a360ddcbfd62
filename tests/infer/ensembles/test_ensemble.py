"""Ensembles: members are those of single fits; other kinds by their closed forms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import SVI, Ensemble, guides, likelihoods, models, priors
from pyro_bnn.data import Dataset
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides.ensemble import AutoEnsemble
from pyro_bnn.infer.ensembles.pushes import (
    _stein_push,
    pull_of_anchors,
    pull_of_targets,
    repulsion,
    stein,
)
from pyro_bnn.infer.inputs import set_up
from pyro_bnn.infer.problem import Problem
from pyro_bnn.posterior import Posterior
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated
from tests.oracle import LinearGaussian, design, linear_gaussian

X = torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(15, 2)
Y = X[:, 0].sin() - X[:, 1].square()
STEPS = 60


def network() -> models.MLP:
    return models.MLP(2, hidden=(4,), likelihood=likelihoods.Normal(0.2)).double()


def starts(model: Any, num_members: int, seed: int) -> Tensor:
    """Where the members of a seed begin."""
    with isolated(seed):
        guide = AutoEnsemble(model, num_members=num_members)
        set_up(guide, Program(model, X, Y))
    return guide.loc.detach()


def test_one_member_is_a_point_estimate() -> None:
    options: dict[str, Any] = {"num_steps": STEPS, "batch_size": 6, "compile": False}
    one = Ensemble(num_members=1, **options).run(network(), (X, Y), seed=3, progress=False)
    delta = SVI(guides.AutoDelta, **options).run(network(), (X, Y), seed=3, progress=False)
    assert_close(one.unconstrained(1), delta.unconstrained(1), rtol=1e-12, atol=1e-12)
    assert_close(one.losses, delta.losses, rtol=1e-12, atol=0)


@pytest.mark.parametrize("batch_size", [None, 6])
def test_members_are_those_of_single_fits(batch_size: int | None) -> None:
    options: dict[str, Any] = {"num_steps": STEPS, "batch_size": batch_size, "compile": False}
    posterior = Ensemble(num_members=3, **options).run(network(), (X, Y), seed=5, progress=False)
    assert posterior.options["schedule"] == "rounds"  # by which the report judges its end
    begun = starts(network(), 3, seed=5)
    assert begun.unique(dim=0).shape == begun.shape  # each at a draw of its own
    program = Program(network(), X, Y)
    for start, end in zip(begun, posterior.guide.loc.detach(), strict=True):
        alone = SVI(guides.AutoDelta, **options).run(
            network(), (X, Y), seed=5, init=program.constrain(start), progress=False
        )
        assert_close(end, alone.unconstrained(1)[0], rtol=1e-6, atol=1e-6)


def test_point_estimated_parameters_have_values_of_each_member() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    model = bnn.bayesian(net, prior={"2.*": priors.Normal()}, likelihood=likelihoods.Normal(0.2))
    options: dict[str, Any] = {"num_steps": STEPS, "compile": False}
    posterior = Ensemble(num_members=2, **options).run(model, (X, Y), seed=1, progress=False)
    begun, program = starts(model, 2, seed=1), Program(model, X, Y)
    f = posterior.function_draws(X, 2)
    alone = [
        SVI(guides.AutoDelta, **options)
        .run(model, (X, Y), seed=1, init=program.constrain(start), progress=False)
        .function_draws(X, 1)[0]
        for start in begun
    ]
    assert not torch.allclose(alone[0], alone[1])
    in_order = sorted(f, key=lambda values: float(values.sum()))
    for found, expected in zip(in_order, sorted(alone, key=lambda v: float(v.sum())), strict=True):
        assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_inputs_by_keyword_give_each_member_a_start_of_its_own() -> None:
    made = [AutoEnsemble(network(), num_members=3) for _ in range(2)]
    with isolated(0):
        made[0].setup(X[:1])
    with isolated(0):
        made[1].setup(x=X[:1])
    assert_close(made[1].loc, made[0].loc, rtol=0, atol=0)
    assert bool((made[1].loc.detach().std(0) > 0).all())


def test_predictions_are_means_over_members() -> None:
    engine = Ensemble(num_members=3, num_steps=STEPS, compile=False)
    posterior = engine.run(network(), (X, Y), progress=False)
    program = posterior.program
    f = program.function(posterior.guide.loc.detach(), X)  # [K, N, 1]
    found = posterior.predict(X, 30)
    assert posterior.num_atoms == 3
    assert_close(found.mean, f.mean(0))
    assert_close(found.sd_epistemic, f.std(0, correction=0))
    each = torch.distributions.Normal(f[..., 0], 0.2).log_prob(Y)
    assert_close(found.log_prob(Y), each.logsumexp(0) - math.log(3))
    assert not posterior.has_log_prob
    assert posterior.elbo_kind == "none"


def test_it_is_saved_and_read(tmp_path: Path) -> None:
    engine = Ensemble(num_members=2, num_steps=5, compile=False)
    posterior = engine.run(network(), (X, Y), progress=False)
    posterior.save(tmp_path / "ensemble")
    read = Posterior.load(tmp_path / "ensemble", network())
    assert_close(read.draws(4), posterior.draws(4), rtol=0, atol=0)
    assert read.options["kind"] == "independent"


# --- closed forms on a linear model ---------------------------------------------------------------


def linear(oracle: LinearGaussian, kind: Any, num_members: int) -> Tensor:
    """Members ``[K, P]`` at their optima."""
    engine = Ensemble(
        num_members=num_members, kind=kind, num_steps=1_000, learning_rate=0.1, compile=False
    )
    posterior = engine.run(oracle.model, (oracle.x, oracle.y), seed=7, progress=False)
    found: Tensor = posterior.guide.loc.detach()
    return found


@pytest.mark.slow("a second or more")
def test_anchored_members_are_the_optima_of_moved_priors() -> None:
    oracle = linear_gaussian()
    found = linear(oracle, "anchored", 4)
    pull = pull_of_anchors(Program(oracle.model, oracle.x, oracle.y), 4, seed=7)
    a = design(oracle.x)
    right = a.T @ oracle.y / oracle.noise**2 + pull  # [K, P]
    assert_close(found, right @ oracle.covariance, rtol=1e-5, atol=1e-5)


def test_the_covariance_of_anchored_members_is_less_than_the_posteriors() -> None:
    r""":math:`P^{-1} P_0 P^{-1}`, by the optima at 20,000 anchors."""
    oracle = linear_gaussian()
    pull = pull_of_anchors(Program(oracle.model, oracle.x, oracle.y), 20_000, seed=0)
    prior = oracle.prior_scale**-2
    members = pull @ oracle.covariance
    expected = oracle.covariance @ oracle.covariance * prior
    error = expected.diagonal() * math.sqrt(2 / 20_000)
    assert ((members.var(0) - expected.diagonal()).abs() < 5 * error).all()
    assert (expected.diagonal() < 0.2 * oracle.covariance.diagonal()).all()


@pytest.mark.slow("a second or more")
def test_randomised_members_are_draws_of_the_posterior() -> None:
    oracle = linear_gaussian()
    members = linear(oracle, "rto", 400)
    deviations = (members - oracle.mean) @ torch.linalg.cholesky(oracle.precision)  # N(0, I)
    n = len(members)
    assert (deviations.mean(0).abs() < 5 / math.sqrt(n)).all()
    covariance = deviations.T @ deviations / n
    errors = torch.full_like(covariance, math.sqrt(1 / n)) * (1 + torch.eye(4) * (2**0.5 - 1))
    assert ((covariance - torch.eye(4)).abs() < 5 * errors).all()


def test_the_pull_of_targets_has_the_precision_of_a_likelihood_that_is_scaled_and_masked() -> None:
    r"""Members of a linear model have the covariance :math:`P^{-1} (P_0 + A^T V A) P^{-1}`.

    That is the posterior's where the variances V of the pull are the precisions of y.
    """

    def scale_and_mask(x: Tensor) -> tuple[Tensor, Tensor]:
        return 0.25 + x[:, 0].square(), x[:, 1] > 0

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=X.dtype), 1.0).to_event(1))
        f = pyro.deterministic("f", x @ w)
        scale, seen = scale_and_mask(x)
        with (
            pyro.plate("data", len(x)),
            poutine.mask(mask=cast(Any, seen)),
            poutine.scale(scale=scale),
        ):
            return pyro.sample("y", dist.Normal(f, 0.5), obs=y)

    problem = Problem(model, (X, Y), Dataset(X, Y), None, 0, "Ensemble")
    found = pull_of_targets(problem, 20_000).square().mean(0)
    scale, seen = scale_and_mask(X)
    assert 0 < int(seen.sum()) < len(X)
    assert_close(found, seen * scale / 0.5**2, rtol=5 * math.sqrt(2 / 20_000), atol=0)


def test_members_repel_each_other_by_the_gradient_of_their_kernel_density() -> None:
    f = torch.tensor([[0.0, 1.0], [0.5, 0.0], [2.0, -1.0]], dtype=torch.float64).requires_grad_()
    (found,) = torch.autograd.grad(repulsion(f.unsqueeze(-1)).sum(), f)
    points = f.detach()
    square = torch.cdist(points, points).square()
    width = torch.tensor([square[0, 1], square[0, 2], square[1, 2]]).median() / math.log(3)
    kernel = (-square / width).exp()
    apart = points.unsqueeze(1) - points  # [i, j, :]
    slope = -2 / width * (kernel.unsqueeze(-1) * apart).sum(1)
    assert_close(found, slope / kernel.sum(1, keepdim=True))


@pytest.mark.slow("a second or more")
def test_repulsive_members_stand_farther_apart() -> None:
    """One weight, all members in one mode: independent ones meet there, others cannot."""
    oracle = linear_gaussian(num_rows=6, num_inputs=1)
    alike, apart = (linear(oracle, kind, 5) for kind in ("independent", "repulsive"))
    assert_close(alike, oracle.mean.expand_as(alike), rtol=1e-4, atol=1e-4)
    spread = apart.var(0) / oracle.covariance.diagonal()
    assert (spread > 0.1).all()
    assert (spread < 2).all()


def test_one_repulsive_member_is_a_point_estimate() -> None:
    options: dict[str, Any] = {"num_members": 1, "num_steps": 20, "compile": False}
    found = [
        Ensemble(kind=kind, **options).run(network(), (X, Y), progress=False).guide.loc
        for kind in ("independent", "repulsive", "svgd")
    ]
    assert_close(found[0], found[1])
    assert_close(found[0], found[2])


# --- Stein variational gradient descent -----------------------------------------------------------


def test_with_a_linear_kernel_stein_points_have_the_moments_of_a_gaussian() -> None:
    """More points than dimensions: mean and covariance, over n, are exact."""
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    precision = 0.3 * root @ root.mT + torch.eye(3, dtype=torch.float64)
    mean = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64)
    points = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    for _ in range(200):
        slopes = (points - mean) @ precision
        points = points - 0.2 * stein(points, slopes, lambda x, y: x @ y.mT + 1)
    assert_close(points.mean(0), mean, rtol=1e-13, atol=1e-14)
    assert_close(points.mT.cov(correction=0), torch.linalg.inv(precision), rtol=1e-13, atol=1e-14)


def test_the_force_on_functions_is_steins_pulled_back_to_weights() -> None:
    oracle = linear_gaussian()
    program = Program(oracle.model, oracle.x, oracle.y)
    rows, A = program.batch(oracle.x, oracle.y), design(oracle.x)
    z = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z.requires_grad_()
    (found,) = torch.autograd.grad(_stein_push(program, z, rows, program.params), z)
    f = z.detach() @ A.mT
    own = (f - oracle.y) / oracle.noise**2
    squares = torch.cdist(f, f).square()
    width = squares[[0, 0, 1], [1, 2, 2]].median() / math.log(3)
    for i in range(3):
        phi, total = torch.zeros_like(f[0]), torch.tensor(0.0, dtype=torch.float64)
        for j in range(3):
            k = (-(f[j] - f[i]).square().sum() / width).exp()
            phi += -k * own[j] - 2 * k * (f[j] - f[i]) / width
            total += k
        assert_close(found[i], A.mT @ (-phi / total - own[i]) / 3, rtol=1e-9, atol=1e-9)


def test_many_members_of_svgd_are_near_the_posterior_of_a_linear_model() -> None:
    """Mean within a third of the exact sds of f, and sds within a third of them.

    With 1/K in place of the sum of the kernel the prior outweighs the data: 0.47 sds off.
    """
    oracle = linear_gaussian()
    engine = Ensemble(num_members=50, kind="svgd", num_steps=1_000)
    posterior = engine.run(oracle.model, (oracle.x, oracle.y), progress=False)
    f, A = posterior.function_draws(oracle.x, 50)[..., 0], design(oracle.x)
    mean, sd = A @ oracle.mean, ((A @ oracle.covariance) * A).sum(-1).sqrt()
    assert ((f.mean(0) - mean) / sd).abs().median() < 1 / 3
    assert (f.std(0) / sd).median().log().abs() < math.log(4 / 3)


# --- what is refused ------------------------------------------------------------------------------


def test_randomised_targets_need_a_gaussian_of_fixed_scale() -> None:
    engine = Ensemble(kind="rto", num_steps=5)
    with pytest.raises(OptionError, match="Gaussian likelihood of fixed scale"):
        engine.run(models.MLP(2, hidden=(3,)), (X.float(), Y.float()), progress=False)
    with pytest.raises(OptionError, match="leave batch_size at None"):
        Ensemble(kind="rto", batch_size=5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=5)
    with pytest.raises(OptionError, match="pass the data set itself"):
        engine.run(network(), loader, progress=False)


def test_anchors_need_gaussian_priors() -> None:
    model = models.MLP(2, hidden=(3,), prior=priors.Cauchy(), likelihood=likelihoods.Normal(0.2))
    with pytest.raises(SiteError, match="anchors are draws of Gaussian priors"):
        Ensemble(kind="anchored", num_steps=5).run(model, (X.float(), Y.float()), progress=False)


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="num_members"):
        Ensemble(num_members=0)
    with pytest.raises(OptionError, match="kind is one of"):
        Ensemble(kind="other")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="num_members"):
        AutoEnsemble(network(), num_members=0)
