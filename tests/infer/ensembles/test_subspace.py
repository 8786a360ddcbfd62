"""Subspaces: of full dimension the posterior itself; directions by their definitions."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import (
    BAOAB,
    HMC,
    MCLMC,
    NUTS,
    SVI,
    SWAG,
    VON,
    Ensemble,
    Subspace,
    guides,
    likelihoods,
    models,
)
from pyro_bnn.errors import FileFormatError, OptionError
from pyro_bnn.files.tensors import pour, read_tensors
from pyro_bnn.infer.ensembles.subspace_model import SubspaceModel
from pyro_bnn.program.program import Program
from tests.oracle import linear_gaussian

X = torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(15, 2)
Y = X[:, 0].sin() - X[:, 1].square()
AROUND = SWAG(num_steps=60, num_iterates=8, rank=6, batch_size=5, compile=False)
CHAINS: dict[str, Any] = {
    "num_chains": 2,
    "warmup_steps": 20,
    "num_samples": 15,
    "compile": False,
}
SHORT_NUTS = NUTS(**CHAINS, max_tree_depth=3)  # trees would be long after so short a warm-up


def network() -> models.MLP:
    return models.MLP(2, hidden=(3,)).double()  # its noise is learned, a positive site


@functools.cache
def around() -> Any:
    """The posterior of SWAG that a plane of seed 3 is laid through."""
    return SWAG(**{**vars(AROUND), "scale": 1.0}).run(network(), (X, Y), seed=3, progress=False)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def restricted(
    model: Any, x: Tensor, y: Tensor, num_directions: int | None, prior: float | None = None
) -> tuple[Program, Program, Tensor, Tensor]:
    """The program of a model, that of t, and its plane, random or of all directions."""
    program = Program(model, x, y)
    p = program.num_latents
    origin, basis = normal(p, seed=0), normal(p, num_directions or p, seed=1)
    inside = Program(SubspaceModel(program, origin, basis, prior), x, y)
    return program, inside, origin, basis


# --- the density ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_directions", [2, None], ids=["two", "all"])
def test_its_density_is_the_models_at_the_points_of_the_plane(num_directions: int | None) -> None:
    program, inside, origin, basis = restricted(network(), X, Y, num_directions)
    assert [site.name for site in inside.sites] == ["t"]
    t = normal(5, basis.shape[1], seed=2)
    z = origin + t @ basis.mT
    rows = program.batch(X, Y)
    assert_close(inside.log_joint(t, rows), program.log_joint(z, rows))
    assert_close(inside.function(t, X), program.function(z, X))
    assert_close(inside.log_likelihood(t, rows), program.log_likelihood(z, rows))


def test_with_gaussians_over_t_it_has_their_density() -> None:
    program, inside, origin, basis = restricted(network(), X, Y, 2, 0.7)
    t = normal(5, 2, seed=2)
    rows = program.batch(X, Y)
    likelihood = program.log_likelihood(origin + t @ basis.mT, rows).sum(-1)
    prior = torch.distributions.Normal(0.0, 0.7).log_prob(t).sum(-1)
    assert_close(inside.log_joint(t, rows), likelihood + prior)


def test_gaussians_whose_covariance_is_the_priors_give_the_posterior() -> None:
    """z_0 the prior's mean and s^2 A A^T its covariance: densities differ by |A| alone."""
    oracle = linear_gaussian()
    program = Program(oracle.model, oracle.x, oracle.y)
    p = program.num_latents
    turn, _ = torch.linalg.qr(normal(p, p, seed=3))
    basis = 2 * turn
    model = SubspaceModel(program, torch.zeros(p).double(), basis, oracle.prior_scale / 2)
    inside = Program(model, oracle.x, oracle.y)
    t = normal(4, p, seed=4)
    rows = program.batch(oracle.x, oracle.y)
    expected = program.log_joint(t @ basis.mT, rows) + p * math.log(2)
    assert_close(inside.log_joint(t, rows), expected)


@pytest.mark.slow("a second or more")
def test_in_all_directions_its_draws_are_of_the_posterior() -> None:
    oracle = linear_gaussian()
    p = len(oracle.mean)
    nuts = NUTS(num_chains=4, warmup_steps=60, num_samples=100, compile=True)
    around = SWAG(num_steps=200, num_iterates=4, rank=2, compile=False)
    engine = Subspace(engine=nuts, kind="random", rank=p, around=around)
    posterior = engine.run(oracle.model, (oracle.x, oracle.y), seed=1, progress=False)
    z = posterior.unconstrained(400)
    white = (z - oracle.mean) @ torch.linalg.cholesky(oracle.precision)  # N(0, I)
    effective = 200  # draws, at the least
    assert (white.mean(0).abs() < 5 / math.sqrt(effective)).all()
    assert ((white.square().mean(0) - 1).abs() < 5 * math.sqrt(2 / effective)).all()


# --- directions -----------------------------------------------------------------------------------


def run(engine: Any, *, init: Any = None, **options: Any) -> Any:
    return Subspace(engine=engine, around=AROUND, **options).run(
        network(), (X, Y), init=init, seed=3, progress=False
    )


def directions(posterior: Any) -> Tensor:
    """An orthonormal basis of where draws differ."""
    z = posterior.unconstrained()
    _, lengths, right = torch.linalg.svd(z - z.mean(0), full_matrices=False)
    assert (lengths[posterior.num_parameters :] < 1e-8 * lengths[0]).all()
    found: Tensor = right[: posterior.num_parameters]
    return found


@pytest.mark.slow("a second or more")
def test_principal_directions_are_those_of_the_deviations() -> None:
    posterior = run(SHORT_NUTS, rank=3)
    guide = around().guide
    factor = guide.scale.unsqueeze(-1) * guide.cov_factor
    values, vectors = torch.linalg.eigh(factor @ factor.mT)
    largest = vectors[:, -3:].detach()
    found = directions(posterior)
    assert_close((found @ largest).square().sum(), torch.tensor(3.0).double(), rtol=1e-6, atol=0)
    plane = Subspace(rank=3, around=AROUND)._plane(problem_of())
    assert_close(plane.basis.square().sum(0), values.detach().flip(0)[:3])  # each as long as its sd
    assert_close(plane.origin, guide.centre())


def problem_of() -> Any:
    from pyro_bnn.data import Dataset
    from pyro_bnn.infer.problem import Problem

    return Problem(network(), (X, Y), Dataset(X, Y), None, 3, "Subspace")


def test_random_directions_are_orthonormal() -> None:
    basis = Subspace(kind="random", around=AROUND)._plane(problem_of()).basis
    assert_close(basis.mT @ basis, torch.eye(5).double())


@pytest.mark.slow("a second or more")
def test_a_curve_bends_away_from_what_lies_between_two_modes() -> None:
    """The plane holds both modes at (-1, 0) and (1, 0), and the curve is below the chord in U."""
    problem = problem_of()
    plane = Subspace(kind="curve", rank=2, around=AROUND)._plane(problem)
    first, last = plane.origin - plane.basis[:, 0], plane.origin + plane.basis[:, 0]
    assert_close((plane.basis[:, 0] * plane.basis[:, 1]).sum(), torch.tensor(0.0).double())
    assert_close(first, around().guide.centre())
    control = Subspace(kind="curve", rank=2, around=AROUND)._control_point(problem, first, last)
    s = torch.linspace(0, 1, 41).double().unsqueeze(-1)

    def mean_of(middle: Tensor) -> float:
        z = (1 - s) ** 2 * first + 2 * s * (1 - s) * middle + s**2 * last
        return -float(problem.program.log_joint(z, problem.rows).mean())

    assert mean_of(control) < mean_of((first + last) / 2) - 1


@pytest.mark.slow("a second or more")
def test_a_posterior_of_swag_takes_the_place_of_its_run() -> None:
    around: Any = AROUND.run(network(), (X, Y), seed=8, progress=False)
    posterior = Subspace(engine=SHORT_NUTS, rank=2, around=AROUND).run(
        network(), (X, Y), init=around, progress=False
    )
    apart = posterior.unconstrained()[0] - around.guide.centre()
    inside = directions(posterior)
    assert_close(inside.mT @ (inside @ apart), apart, rtol=1e-6, atol=1e-6)
    with pytest.raises(OptionError, match="rank=8 directions of the 6 deviations of init"):
        Subspace(rank=8, engine=SHORT_NUTS).run(network(), (X, Y), init=around, progress=False)


@pytest.mark.slow("several runs")
@pytest.mark.parametrize("engine", [SHORT_NUTS, SVI(guides.AutoNormal, num_steps=20)])
def test_a_run_goes_on_in_its_own_plane_whatever_it_is_given_to_start_at(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = (AROUND.run(network(), (X, Y), seed=s, progress=False) for s in (8, 9))

    def fit(**options: Any) -> Tensor:
        subspace = Subspace(engine, rank=2, around=AROUND)
        found: Any = subspace.run(network(), (X, Y), progress=False, **options)
        return found.unconstrained()  # type: ignore[no-any-return]

    def stop(at: Any) -> None:
        if at.step >= 8:
            raise RuntimeError("enough")

    whole = fit(init=first)
    monkeypatch.setattr("pyro_bnn.infer.run.WINDOW", 8)
    monkeypatch.setattr("pyro_bnn.infer.checkpoints.checkpoint.SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="enough"):
        fit(init=first, checkpoint=tmp_path, on_step=stop)
    monkeypatch.setattr(SWAG, "run", None)  # the plane is not looked for again
    for init in (other, None):
        assert_close(fit(init=init, checkpoint=tmp_path, resume=True), whole, rtol=0, atol=0)


def test_a_plane_of_another_size_is_no_state_of_the_run(tmp_path: Path) -> None:
    engine = Subspace(SVI(guides.AutoNormal, num_steps=1), kind="random", rank=2, around=AROUND)
    engine.run(network(), (X, Y), progress=False, checkpoint=tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    document = read_tensors(path)
    document["state"]["plane"]["basis"] = torch.zeros(14, 3).double()
    with path.open("wb") as file:
        pour(document, file)
    with pytest.raises(FileFormatError, match=r"a plane of shapes \[\(14,\), \(14, 3\)\]"):
        engine.run(network(), (X, Y), progress=False, checkpoint=tmp_path, resume=True)


# --- engines --------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"num_steps": 20, "compile": False}
ENGINES = [
    SHORT_NUTS,
    HMC(**CHAINS, num_steps=3),
    MCLMC(**CHAINS),
    BAOAB(**CHAINS, batch_size=5),
    SVI(guides.AutoNormal, **SMALL),
    SVI(guides.AutoMultivariateNormal, **SMALL),
    SVI(guides.AutoFlow, **SMALL),
    SWAG(num_steps=20, num_iterates=4, rank=2, scale=1.0, compile=False),
    Ensemble(num_members=3, **SMALL),
]


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
def test_every_engine_runs_in_it(engine: Any) -> None:
    posterior = run(engine, rank=2, init=around())
    assert posterior.num_parameters == 2
    assert posterior.unconstrained(10).shape == (10, posterior.program.num_latents)
    directions(posterior)
    assert posterior.options["engine"] == type(engine).__name__
    assert posterior.options["prior"] == "model"
    assert bool(posterior.predict(X, 20).mean.isfinite().all())
    has_chains = isinstance(engine, NUTS | HMC | MCLMC | BAOAB)
    assert posterior.num_chains == (2 if has_chains else 1)
    assert bool(posterior.sample_stats) is has_chains


def test_natural_gradients_run_under_gaussians_over_t() -> None:
    posterior = run(VON(num_steps=5), init=around(), rank=2, prior=3.0)
    assert posterior.options["prior"] == 3.0


# --- what is refused ------------------------------------------------------------------------------


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="engine is an engine"):
        Subspace(engine=guides.AutoNormal)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="around is a SWAG"):
        Subspace(around=NUTS())  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="kind is one of"):
        Subspace(kind="plane")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="rank is 2, not 5"):
        Subspace(kind="curve")
    with pytest.raises(OptionError, match="rank=30 directions of 20 deviations"):
        Subspace(rank=30)
    with pytest.raises(OptionError, match="prior is a positive number or 'model'"):
        Subspace(prior=0.0)


def test_there_are_no_more_directions_than_weights() -> None:
    with pytest.raises(OptionError, match="rank=15 directions of z, which has 14"):
        Subspace(kind="random", rank=15, around=AROUND).run(network(), (X, Y), progress=False)


def test_point_estimated_parameters_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    prior = {"2.*": bnn.priors.Normal()}
    model = bnn.bayesian(net, prior=prior, likelihood=likelihoods.Normal(0.2))
    with pytest.raises(OptionError, match=r"net\.0\.weight"):
        Subspace(SHORT_NUTS, rank=2, around=AROUND).run(model, (X, Y), progress=False)
