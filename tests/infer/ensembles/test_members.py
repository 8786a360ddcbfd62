"""Ensembles of guides and of engines: an equal mixture of fits that are made one by one."""

from __future__ import annotations

import functools
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as bnn
from pyro_bnn import NUTS, SVI, SWAG, VON, Ensemble, Laplace, Subspace, guides, likelihoods, models
from pyro_bnn.errors import OptionError, UnknownNameError
from pyro_bnn.guides.guide_mixture import AutoGuideMixture
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.posterior import Posterior

X = torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(15, 2)
Y = X[:, 0].sin() - X[:, 1].square()
SMALL_SWAG = SWAG(num_steps=20, num_iterates=4, rank=3, batch_size=5, held_out=0.2, compile=False)
SMALL: dict[str, Any] = {"num_steps": 40, "compile": False}


def network() -> models.MLP:
    return models.MLP(2, hidden=(3,), likelihood=likelihoods.Normal(0.2)).double()


def fit(member: Any, num_members: int = 3, seed: int = 4, **options: Any) -> Any:
    engine = Ensemble(num_members=num_members, member=member, **options)
    return engine.run(network(), (X, Y), seed=seed, progress=False)


def parts(posterior: Any) -> list[Any]:
    return list(posterior.guide.members)


# --- the mixture ----------------------------------------------------------------------------------


def test_its_density_is_that_of_an_equal_mixture() -> None:
    posterior = fit(guides.AutoNormal, **SMALL)
    locs, scales = (
        torch.stack([getattr(part, name).detach() for part in parts(posterior)])
        for name in ("loc", "scale")
    )
    expected = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(3).double()),
        torch.distributions.Independent(torch.distributions.Normal(locs, scales), 1),
    )
    z = posterior.unconstrained(20)
    assert_close(posterior.guide.log_prob(z).detach(), expected.log_prob(z))


def test_its_moments_are_those_of_a_mixture() -> None:
    posterior = fit(guides.AutoMultivariateNormal, **SMALL)
    n = 20_000
    z = posterior.unconstrained(n)
    normals = [part.get_posterior() for part in parts(posterior)]
    means = torch.stack([normal.mean.detach() for normal in normals])
    within = torch.stack([normal.covariance_matrix.detach() for normal in normals]).mean(0)
    between = torch.cov(means.T, correction=0)
    assert (between.diagonal() > within.diagonal()).any()  # else it would say nothing
    mean, covariance = means.mean(0), within + between
    error = (covariance.diagonal() / n).sqrt()
    assert ((z.mean(0) - mean).abs() < 5 * error).all()
    deviations = z - mean
    squares = deviations.unsqueeze(-1) * deviations.unsqueeze(-2)
    errors = squares.flatten(1).std(0).reshape(covariance.shape) / math.sqrt(n)
    assert ((squares.mean(0) - covariance).abs() < 5 * errors).all()


def test_its_elbo_is_above_the_mean_of_its_members() -> None:
    """KL is convex in q, and log K is all that a mixture can gain."""
    posterior = fit(guides.AutoNormal, num_members=2, **SMALL)
    program, rows = posterior.program, (X, Y)
    elbos = []
    for part in parts(posterior):
        alone = bnn.posterior.GuidePosterior(program, part, posterior.provenance)
        elbos.append(alone.elbo(rows, 4_000))
    mixed, error = posterior.elbo(rows, 4_000)
    mean = sum(value for value, _ in elbos) / 2
    error = 5 * math.hypot(error, *(e / 2 for _, e in elbos))
    assert mean - error < mixed < mean + math.log(2) + error
    assert mixed > mean + math.log(2) / 2  # modes apart


def test_points_are_atoms_of_equal_weight() -> None:
    posterior = fit(guides.AutoDelta, **SMALL)
    assert posterior.num_atoms == 3
    assert not posterior.has_log_prob
    f = torch.stack([posterior.program.function(p.loc.detach(), X) for p in parts(posterior)])
    assert_close(posterior.predict(X, 30).mean, f.mean(0))


# --- the members ----------------------------------------------------------------------------------


@pytest.mark.slow("a second or more")
def test_the_first_member_is_the_single_fit() -> None:
    options: dict[str, Any] = {**SMALL, "batch_size": 4}
    several = fit(guides.AutoNormal, num_members=2, **options)
    one = fit(guides.AutoNormal, num_members=1, **options)
    alone: Any = SVI(guides.AutoNormal, **options).run(network(), (X, Y), seed=4, progress=False)
    for name, value in alone.guide.named_parameters():
        for found in (several, one):
            assert_close(dict(parts(found)[0].named_parameters())[name], value)
    assert not torch.allclose(parts(several)[0].loc, parts(several)[1].loc)
    assert_close(one.losses, alone.losses)


@pytest.mark.slow("a second or more")
def test_members_of_swag_are_swags() -> None:
    posterior = fit(SMALL_SWAG)
    assert all(isinstance(p, guides.AutoLowRankMultivariateNormal) for p in parts(posterior))
    alone: Any = SMALL_SWAG.run(network(), (X, Y), seed=4, progress=False)
    assert_close(parts(posterior)[0].cov_factor, alone.guide.cov_factor)
    assert posterior.options["member"] == "SWAG"
    assert posterior.options["scale_tuned_on"] == 3
    sizes = posterior.options["step_size"]  # of each member its own
    assert len(set(sizes)) == 3
    assert posterior.program.num_data == 15
    assert math.isfinite(posterior.elbo((X, Y))[0])


def test_members_of_a_natural_gradient_have_its_guide() -> None:
    posterior = fit(VON(num_steps=5), num_members=2)
    assert posterior.options["member"] == "VON"
    assert posterior.has_log_prob


def test_it_is_saved_and_read(tmp_path: Path) -> None:
    low_rank = functools.partial(guides.AutoLowRankMultivariateNormal, rank=2)
    posterior = fit(low_rank, num_members=2, **SMALL)
    posterior.save(tmp_path / "mixture")
    read = Posterior.load(tmp_path / "mixture", network())
    assert_close(read.draws(6), posterior.draws(6), rtol=0, atol=0)
    assert_close(read.log_q(6), posterior.log_q(6))


def test_batches_of_a_loader_serve_all_members() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=len(X))
    engine = Ensemble(num_members=2, member=guides.AutoNormal, **SMALL)
    by_loader = engine.run(network(), loader, seed=4, progress=False)
    assert_close(by_loader.draws(4), fit(guides.AutoNormal, 2, **SMALL).draws(4))
    with pytest.raises(OptionError, match="batch_size=5 would have no effect"):
        Ensemble(member=SMALL_SWAG).run(network(), loader, progress=False)


@pytest.mark.parametrize("member", [guides.AutoNormal, SMALL_SWAG], ids=["guide", "SWAG"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    member: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    options = SMALL if member is guides.AutoNormal else {}
    engine = Ensemble(num_members=2, member=member, **options)
    step, count = Checkpoint.step, 0

    def counted(self: Checkpoint, run: Any) -> None:
        nonlocal count
        count += 1
        if count == 25:
            signal.raise_signal(signal.SIGINT)
        step(self, run)

    whole = engine.run(network(), (X, Y), progress=False)
    monkeypatch.setattr(Checkpoint, "step", counted)
    try:
        with pytest.raises(Interrupted) as stopped:
            engine.run(network(), (X, Y), progress=False, checkpoint=tmp_path / "run")
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(stopped.value.posterior, Posterior)
    again = engine.run(network(), (X, Y), progress=False, checkpoint=tmp_path / "run", resume=True)
    assert_close(again.draws(8), whole.draws(8), rtol=0, atol=0)


# --- what is refused ------------------------------------------------------------------------------


def test_options_that_have_no_effect_are_refused() -> None:
    with pytest.raises(OptionError, match="num_steps would have no effect"):
        Ensemble(member=SMALL_SWAG, num_steps=5)
    with pytest.raises(OptionError, match='kind="anchored" is built for points'):
        Ensemble(member=guides.AutoNormal, kind="anchored")


def test_members_are_guides() -> None:
    with pytest.raises(OptionError, match="whose chains are several already"):
        fit(NUTS(num_chains=2))
    for engine in (Ensemble(member=Laplace()), Subspace(Laplace(), rank=2)):
        with pytest.raises(OptionError, match="Laplace predicts by a linearised network"):
            engine.run(network(), (X, Y), progress=False)
    guide = guides.AutoNormal(network())
    for member in (guide, SVI(guide), network, "AutoNormal"):
        with pytest.raises(OptionError, match="a member is a guide class"):
            Ensemble(member=member)  # type: ignore[arg-type]


def test_point_estimated_parameters_have_one_value() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    prior = {"2.*": bnn.priors.Normal()}
    model = bnn.bayesian(net, prior=prior, likelihood=likelihoods.Normal(0.2))
    engine = Ensemble(num_members=2, member=guides.AutoNormal, **SMALL)
    with pytest.raises(OptionError, match=r"each member would train net\.0\.weight"):
        engine.run(model, (X, Y), progress=False)


def test_a_mixture_is_of_known_guides() -> None:
    with pytest.raises(OptionError, match="one guide or more"):
        AutoGuideMixture(network())
    with pytest.raises(UnknownNameError, match="Auto"):
        AutoGuideMixture(network(), members=[{"guide": "AutoNorml"}])
