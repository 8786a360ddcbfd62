"""Guides and NUTS on hierarchical priors; files, ArviZ trees and trained networks with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from pyro.optim import Adam  # type: ignore[attr-defined]  # made at import time
from scipy import stats
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import NUTS, SVI, Posterior, arviz_io, models, priors, registry
from pyro_bnn.data import Dataset
from pyro_bnn.errors import SiteError
from pyro_bnn.infer.starting_points import starting_points
from pyro_bnn.posterior import DrawsPosterior
from pyro_bnn.priors import HalfCauchyScale, Horseshoe, assign_prior, value_of
from pyro_bnn.program import Program
from tests.collection import cover, rest_in_soak
from tests.priors.laws import Cdf, horseshoe_cdf
from tests.priors.test_hierarchy import HIERARCHIES

every = pytest.mark.parametrize("name", HIERARCHIES)

# these span rank-1 factors and refuse any other model
RANK1 = {"auto-rank1-mixture", "batch-ensemble"}
GUIDES = [name for name in registry.entries("guide") if name not in RANK1]
ALL = [(guide, name) for guide in GUIDES for name in HIERARCHIES]


def data() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, 16).reshape(8, 2)
    return x, (2 * x[:, :1]).sin() + 0.1


def mlp(prior: Any) -> models.MLP:
    return models.MLP(2, hidden=(3,), activation="tanh", prior=prior)


# --- variational ---------------------------------------------------------------------------------


@pytest.mark.slow("fits")
@pytest.mark.parametrize(("guide", "name"), rest_in_soak(ALL, cover(GUIDES, HIERARCHIES)))
@pytest.mark.usefixtures("uncaptured")
def test_every_guide_learns(guide: str, name: str) -> None:
    cls = registry.lookup("guide", guide)
    engine = SVI(cls, num_steps=20, learning_rate=0.1, compile=False)
    posterior = engine.run(mlp(HIERARCHIES[name]), data(), progress=False)
    assert bool(np.isfinite(posterior.losses).all())
    assert posterior.losses[-10:].mean() < posterior.losses[:10].mean()
    assert bool(posterior.function_draws(data()[0], 5).isfinite().all())


@pytest.mark.slow("fits")
@every
def test_stock_pyro_fits_it(name: str) -> None:
    model, (x, y) = mlp(HIERARCHIES[name]), data()
    with pyro.get_param_store().scope(), torch.random.fork_rng():
        torch.manual_seed(0)
        svi = pyro.infer.SVI(model, AutoNormal(model), Adam({"lr": 0.05}), Trace_ELBO())
        losses = np.array([svi.step(x, y) for _ in range(24)])
    assert bool(np.isfinite(losses).all())
    assert losses[-10:].mean() < losses[:10].mean()


# --- files and trees -----------------------------------------------------------------------------


def mixed(horseshoe: Horseshoe, half_cauchy: HalfCauchyScale) -> models.MLP:
    return mlp({"*.weight": horseshoe, "*": half_cauchy})


@pytest.fixture(scope="module")
def fitted() -> Posterior:
    engine = SVI(registry.lookup("guide", "auto-normal"), num_steps=20)
    model = mixed(Horseshoe(slab_scale=2.0), HalfCauchyScale())
    return engine.run(model, data(), progress=False)


def test_a_saved_posterior_comes_back_and_another_prior_is_told(
    fitted: Posterior, tmp_path: Path
) -> None:
    path = tmp_path / "fit.pt"
    fitted.save(path)
    again = Posterior.load(path, mixed(Horseshoe(slab_scale=2.0), HalfCauchyScale()))
    x, _ = data()
    assert_close(again.function_draws(x, 4), fitted.function_draws(x, 4), rtol=0, atol=0)
    for other in (
        mixed(Horseshoe(slab_scale=2.5), HalfCauchyScale()),
        mixed(Horseshoe(slab_scale=2.0, slab_df=5.0), HalfCauchyScale()),
        mixed(Horseshoe(slab_scale=2.0, loc=0.1), HalfCauchyScale()),
        mixed(Horseshoe(slab_scale=2.0), HalfCauchyScale(0.9)),
    ):
        with pytest.raises(SiteError, match="its sites are the same, but not its densities"):
            Posterior.load(path, other)
    with pytest.raises(SiteError, match=r"layers\.0\.weight\.raw \(3, 2\)"):
        Posterior.load(path, mlp(priors.Normal()))


@pytest.mark.slow("about a second")
def test_the_tree_has_scales_as_they_are_and_norms_of_raw_values(fitted: Posterior) -> None:
    num_draws = 20
    tree = fitted.to_arviz(Dataset(*data()), num_samples=num_draws)
    z = fitted.unconstrained(num_draws)
    values = fitted.program.constrain(z)
    group: Any = tree["posterior"]
    for name in ("layers.0.weight.global", "layers.0.weight.slab", "layers.1.bias.scale"):
        np.testing.assert_array_equal(group[name].values[0], values[name].numpy())
    assert group["layers.0.weight.local"].shape == (1, num_draws, 3, 2)
    norms = values["layers.0.weight.raw"].flatten(1).norm(dim=1)
    np.testing.assert_allclose(group["norm layers.0.weight.raw"].values[0], norms, rtol=1e-6)
    assert "layers.0.weight.raw" not in group


# --- a trained network ---------------------------------------------------------------------------


@every
@pytest.mark.parametrize("kind", ["mlp", "bayesian"])
def test_a_trained_network_is_where_a_fit_starts(name: str, kind: str) -> None:
    x, y = data()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        trained = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    prior = HIERARCHIES[name]
    model = mlp(prior) if kind == "mlp" else models.bayesian(trained, {"0.*": prior})
    program = Program(model, x, y)
    z = starting_points(program, trained, 2, seed=0)
    expected = trained(x).detach()
    assert_close(program.function(z, x), expected.expand(2, -1, -1))


def test_a_network_of_another_shape_is_refused_by_the_weights_name() -> None:
    program = Program(mlp(Horseshoe()), *data())
    trained = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    with pytest.raises(SiteError, match=r"neither by name nor by order: it has 0\.weight \(4, 2\)"):
        starting_points(program, trained, 1, seed=0)


# --- NUTS on the prior alone ---------------------------------------------------------------------


class Alone(PyroModule):
    """A weight that no data see."""

    def __init__(self, prior: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        assign_prior(self, "w", prior, torch.Size(shape))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        value_of(self.w)
        f = pyro.deterministic("f", x)
        with pyro.plate("data", len(x)):
            out: Tensor = pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
        return out


def alone(prior: Any, shape: tuple[int, ...], nuts: NUTS) -> tuple[DrawsPosterior, dict[str, Any]]:
    """NUTS on a weight that no data see, and its draws by last name, ``[C, S, *shape]``."""
    x = torch.zeros(2, 1, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOKY_MAX_CPU_COUNT", "1")
        posterior = nuts.run(Alone(prior, shape).double(), (x, x[:, 0]), progress=False)
    num_draws = nuts.num_chains * nuts.num_samples
    draws = posterior.sample(num_draws, group_by_chain=True)
    return posterior, {name.removeprefix("w."): value.numpy() for name, value in draws.items()}


def z_scores(values: Any, cdf: Cdf) -> Any:
    """Errors of five probabilities that a law states, in Monte Carlo standard errors."""
    u = cdf(values).reshape(*values.shape[:2], -1)  # uniform on [0, 1]
    levels = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
    below = (u[..., None] < levels).astype(float)  # [C, S, n, 5]
    below = below.reshape(*u.shape[:2], -1)
    assert arviz_io.ess(below).min() > 100  # the standard errors are small ones
    expected = np.tile(levels, u.shape[-1])
    return np.abs(below.mean((0, 1)) - expected) / arviz_io.mcse_mean(below)


@pytest.mark.slow("samples chains")
def test_nuts_returns_the_prior_of_the_scales() -> None:
    nuts = NUTS(num_chains=10, warmup_steps=100, num_samples=100, compile=True)
    posterior, draws = alone(HalfCauchyScale(0.5, per="unit", loc=1.0), (2, 2), nuts)
    assert posterior.sample_stats["diverging"].sum() == 0
    assert z_scores(draws["scale"], stats.halfcauchy(scale=0.5).cdf).max() < 5
    assert z_scores(draws["raw"], stats.norm.cdf).max() < 5
    assert z_scores(2.0 * draws["scale"] * draws["raw"], horseshoe_cdf).max() < 5


@pytest.mark.slow("whole fits")
def test_nuts_returns_the_prior_of_the_horseshoe() -> None:
    nuts = NUTS(num_chains=10, warmup_steps=100, num_samples=100, compile=True)
    _, draws = alone(Horseshoe(slab_scale=2.0), (2,), nuts)
    assert z_scores(draws["global"], stats.halfcauchy.cdf).max() < 5
    assert z_scores(draws["local"], stats.halfcauchy.cdf).max() < 5
    assert z_scores(draws["slab"], stats.invgamma(2.0, scale=8.0).cdf).max() < 5
    assert z_scores(draws["raw"], stats.norm.cdf).max() < 5


@pytest.mark.parametrize("centred", [False, True])
def test_the_neck_of_the_funnel_is_that_of_centred_weights(centred: bool) -> None:
    """Of curvature 1 / scale^2 in a centred weight, and 1 in a raw value, whatever the scale."""
    prior = HalfCauchyScale(centred=centred)
    x = torch.zeros(2, 1, dtype=torch.float64)
    program = Program(Alone(prior, (3,)).double(), x, x[:, 0])
    scale_site, weight_site = program.sites
    for scale in (1.0, 0.01):
        z = program.unconstrain(
            {
                scale_site.name: torch.tensor(scale, dtype=torch.float64),
                weight_site.name: torch.tensor([0.3, -0.1, 0.0], dtype=torch.float64),
            }
        )
        curvature = -torch.autograd.functional.hessian(lambda z: program.log_prior(z, x), z)[1:, 1:]
        expected = torch.eye(3, dtype=torch.float64) / (scale**2 if centred else 1.0)
        assert_close(curvature, expected)


@pytest.mark.soak
def test_centred_weights_are_a_funnel_where_data_say_nothing() -> None:
    """Twenty funnels: with small scales steps are too long, and scales are hardly explored.

    With seeds 0 to 3 two to eight draws of the centred ones diverge, and none of the others.
    """
    nuts = NUTS(
        num_chains=2,
        warmup_steps=60,
        num_samples=150,
        target_accept=0.6,
        max_tree_depth=5,
        compile=False,
    )
    divergences, smallest_ess = [], []
    for centred in (True, False):
        prior = HalfCauchyScale(per="unit", centred=centred)
        posterior, draws = alone(prior, (20, 10), nuts)
        divergences.append(int(posterior.sample_stats["diverging"].sum()))
        log_scales = np.log(draws["scale"]).reshape(2, 150, 20)
        smallest_ess.append(float(arviz_io.ess(log_scales).min()))
    assert divergences[0] > 0
    assert divergences[1] == 0
    assert smallest_ess[0] < 10
    assert smallest_ess[1] > 100
