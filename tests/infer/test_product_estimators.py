"""Local reparameterisation and Flipout: moments of what layers give out, in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import pyro
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from pyro_bnn import Program, guides, likelihoods, models, priors
from pyro_bnn.errors import ModelError, SiteError
from pyro_bnn.infer.svi.estimators.by_name import make_estimator
from pyro_bnn.infer.svi.estimators.estimator import Estimator, has_own_noise
from pyro_bnn.infer.svi.estimators.product_estimators import Flipout, LocalReparameterization
from pyro_bnn.program import Batch
from tests.oracle import linear_gaussian

NUM_DRAWS = 20_000
ESTIMATORS = (LocalReparameterization, Flipout)


class Setting(NamedTuple):
    """A model, a factorised Gaussian over its weights, and rows.

    Attributes:
        program: The model as tensor functions.
        guide: Of random means and standard deviations.
        batch: Rows, of targets 0.
    """

    program: Program
    guide: Any
    batch: Batch


def setting(model: Any, x: Tensor, *, sharp: str = "nothing") -> Setting:
    """All at random means; sites with ``sharp`` in their name have no spread."""
    y = torch.zeros_like(model(x))
    program = Program(model, x, y)
    guide = guides.AutoNormal(model)
    guide.setup(x[:1])
    guide.double()
    generator = torch.Generator().manual_seed(1)
    size = (program.num_latents,)
    with torch.no_grad():
        guide.loc.copy_(torch.randn(size, generator=generator, dtype=torch.float64))
        scale = 0.2 + 0.5 * torch.rand(size, generator=generator, dtype=torch.float64)
        for site in program.sites:
            if sharp in site.name:
                scale[site.start : site.stop] = 1e-9
        guide.scale = scale
    program.prepare(guide)
    return Setting(program, guide, program.batch(x, y))


def linear_net(num_outputs: int = 2) -> Any:
    likelihood = likelihoods.Normal(1.0)
    return models.MLP(3, num_outputs, hidden=(), likelihood=likelihood).double()


def network(*layers: nn.Module, prior: Any = None) -> Any:
    net = nn.Sequential(*layers).double()
    return models.bayesian(net, prior, likelihoods.Normal(1.0)).double()


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def outputs(
    kind: Callable[[Program], Estimator], given: Setting, monkeypatch: pytest.MonkeyPatch
) -> Tensor:
    """Draws ``[S, B, F]`` of f, as the estimator makes them; the rows' densities are left out."""
    program, guide, batch = given

    def functions(values: Any, batch: Any, params: Any) -> tuple[Tensor, float]:
        return program.run(values, (batch.x,), params).f, 1.0

    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        estimator = kind(program)
        noise = guide.draw_noise(NUM_DRAWS, generator)
        row_noise = estimator.row_noise(NUM_DRAWS, len(batch.x), generator)
        monkeypatch.setattr(program, "row_log_likelihood", functions)
        f, scale = estimator.rows(
            guide.make_terms(noise, density=True), (noise, row_noise), batch, {}, {}
        )
    assert scale == 1
    return f


def exact(given: Setting) -> tuple[Tensor, Tensor]:
    """Mean ``[B F]`` and covariance ``[B F, B F]`` of f where it is linear in z."""
    loc, scale = given.guide.loc.detach(), given.guide.scale.detach()

    def f(z: Tensor) -> Tensor:
        return given.program.function(z, given.batch.x).flatten()

    slope = cast(Tensor, torch.func.jacrev(f)(loc))  # [B F, P]
    return f(loc), (slope * scale.square()) @ slope.T


def scores(draws: Tensor, expected: Tensor) -> Tensor:
    """Absolute z-scores of means over draws ``[S, ...]``; 0 where nothing varies."""
    error = draws.std(0) / len(draws) ** 0.5
    difference = (draws.mean(0) - expected).abs()
    return torch.where(difference < 1e-12, 0.0, difference / error)


def bound(number: int) -> float:
    """What the largest of some absolute z-scores exceeds once in 10,000 times, if all is well."""
    return float(scipy.stats.norm.isf(0.5e-4 / number))


def assert_moments(draws: Tensor, mean: Tensor, covariance: Tensor) -> None:
    flat = draws.flatten(1)
    centred = flat - mean
    products = centred.unsqueeze(1) * centred.unsqueeze(2)
    found = torch.cat([scores(flat, mean), scores(products, covariance).flatten()])
    assert float(found.max()) < bound(len(found))


def within_rows(covariance: Tensor, num_rows: int) -> Tensor:
    """A covariance over rows and outputs without that of different rows."""
    size = len(covariance) // num_rows
    ones = covariance.new_ones(size, size)
    inside: Tensor = torch.block_diag(*[ones] * num_rows)
    return covariance * inside


# Moments


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_rows_of_a_layer_have_the_moments_of_drawn_weights_and_are_uncorrelated(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = setting(linear_net(), rows(4, 3))
    mean, covariance = exact(given)
    loc, scale = given.guide.loc.detach(), given.guide.scale.detach()
    weight, bias = loc[:6].reshape(2, 3), loc[6:]
    torch.testing.assert_close(mean, (given.batch.x @ weight.T + bias).flatten())
    variance = given.batch.x**2 @ (scale[:6] ** 2).reshape(2, 3).T + scale[6:] ** 2
    torch.testing.assert_close(covariance.diagonal(), variance.flatten())
    assert float((covariance - within_rows(covariance, 4)).abs().max()) > 0.1  # of drawn weights
    assert_moments(outputs(kind, given, monkeypatch), mean, within_rows(covariance, 4))


@pytest.mark.parametrize("block", [None, "layer"])
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_rows_share_the_factor_of_a_low_rank_guide_and_nothing_else(
    kind: Any, block: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = setting(linear_net(), rows(4, 3))
    guide = guides.AutoLowRankMultivariateNormal(given.program.model, rank=2, block=block)
    guide.setup(given.batch.x[:1])
    guide.double()
    with torch.no_grad():
        guide.loc.copy_(given.guide.loc)
        guide.scale = given.guide.scale
    given.program.prepare(guide)
    low_rank = given._replace(guide=guide)
    mean, of_own = exact(low_rank)

    def f(z: Tensor) -> Tensor:
        return given.program.function(z, given.batch.x).flatten()

    slope = cast(Tensor, torch.func.jacrev(f)(guide.loc.detach()))
    q = cast(Any, guide.get_posterior())
    shared = q.covariance_matrix.detach() - torch.diag(guide.scale.detach().square())
    of_shared = slope @ shared @ slope.T
    assert float(of_shared.abs().max()) > 0.1
    expected = of_shared + within_rows(of_own, 4)
    assert_moments(outputs(kind, low_rank, monkeypatch), mean, expected)


@pytest.mark.parametrize("guide", [guides.AutoMultivariateNormal, guides.AutoDelta])
def test_other_guides_keep_draws_of_the_weights(guide: Any) -> None:
    given = setting(linear_net(), rows(4, 3))
    for cls in (guide, guides.AutoNormal, guides.AutoLowRankMultivariateNormal):
        made = cls(given.program.model)
        made.setup(given.batch.x[:1])
        found = make_estimator("auto", given.program, made)
        assert (found is None) == (cls is guide)


def test_a_subclass_that_draws_in_another_way_keeps_draws_of_the_weights() -> None:
    class Wider(guides.AutoNormal):
        def transport(self, noise: Tensor) -> Tensor:
            return self.loc + self.scale * noise.tan()

    assert has_own_noise(guides.AutoNormal)
    assert not has_own_noise(Wider)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_row_of_zeros_has_a_gradient(kind: Any) -> None:
    net = nn.Linear(3, 1, bias=False)
    given = setting(network(net), torch.zeros(2, 3, dtype=torch.float64))
    program, guide, batch = given
    estimator = kind(program)
    generator = torch.Generator().manual_seed(0)
    noise = guide.draw_noise(1, generator)
    terms = guide.make_terms(noise, density=True)
    found, _ = estimator.rows(terms, (noise, estimator.row_noise(1, 2, generator)), batch, {}, {})
    for parameter in torch.autograd.grad(found.sum(), list(guide.parameters())):
        assert bool(parameter.isfinite().all())


def test_flipout_gives_each_row_the_weights_of_its_signs() -> None:
    given = setting(linear_net(), rows(4, 3))
    program, guide, batch = given
    estimator, generator = Flipout(program), torch.Generator().manual_seed(0)
    noise, signs = guide.draw_noise(1, generator), estimator.row_noise(1, 4, generator)
    assert signs.shape == (1, 4, 3 + 2 + 2)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    s, r, r_bias = signs[0].split([3, 2, 2], -1)
    loc, spread = guide.loc.detach(), (guide.scale * noise[0]).detach()
    outer = r.unsqueeze(-1) * s.unsqueeze(-2)  # [B, O, I]
    weight = loc[:6].reshape(2, 3) + spread[:6].reshape(2, 3) * outer
    f = torch.einsum("boi,bi->bo", weight, batch.x) + loc[6:] + spread[6:] * r_bias
    expected = torch.distributions.Normal(f, 1.0).log_prob(batch.y).sum(-1)
    found, scale = estimator.rows(
        guide.make_terms(noise, density=True), (noise, signs), batch, {}, {}
    )
    torch.testing.assert_close(found[0].detach(), expected)
    assert scale == 1


POSITIONS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "images": (lambda: network(nn.Conv2d(2, 4, 2, stride=2, groups=2), nn.Flatten()), (3, 2, 4, 4)),
    "series": (lambda: network(nn.Conv1d(1, 2, 2, padding=1), nn.Flatten()), (3, 1, 3)),
    "words": (lambda: network(nn.Linear(2, 2), nn.Flatten()), (3, 4, 2)),
}


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize("name", POSITIONS)
def test_positions_of_a_row_share_their_weights_under_flipout(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = POSITIONS[name]
    given = setting(make(), rows(*shape))
    mean, covariance = exact(given)
    inside = within_rows(covariance, shape[0])
    assert int((inside.triu(1).abs() > 0.01).sum()) > 10
    assert_moments(outputs(Flipout, given, monkeypatch), mean, inside)


def test_a_shared_weight_is_one_weight_under_flipout(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(3, 3, bias=False)
    given = setting(network(layer, layer), rows(4, 3))
    loc, scale = given.guide.loc.detach().reshape(3, 3), given.guide.scale.detach().reshape(3, 3)
    # w_ij w_jk are one entry, squared, at i = j = k
    expected = given.batch.x @ (loc @ loc + (scale**2).diagonal().diag()).T
    assert float((given.batch.x @ (scale**2).diagonal().diag()).abs().max()) > 0.1
    found = scores(outputs(Flipout, given, monkeypatch), expected)
    assert float(found.max()) < bound(found.numel())


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_weights_of_a_plain_pyro_model_are_found(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = setting(linear_gaussian().model, rows(4, 3))
    assert kind(given.program).sites == ("w",)  # b is added by itself, and drawn for all rows
    mean, covariance = exact(given)
    shared = given.guide.scale.detach()[3:].square()
    expected = within_rows(covariance - shared, 4) + shared
    assert_moments(outputs(kind, given, monkeypatch), mean, expected)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_weight_of_a_learned_scale_is_scaled_with_its_spread(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prior = priors.HalfCauchyScale(per="unit", loc=0.5)
    likelihood = likelihoods.Normal(1.0)
    model = models.MLP(3, 2, hidden=(), prior=prior, likelihood=likelihood).double()
    given = setting(model, rows(4, 3), sharp=".scale")
    assert {"layers.0.weight.raw", "layers.0.bias.raw"} >= set(kind(given.program).sites)
    mean, covariance = exact(given)
    assert_moments(outputs(kind, given, monkeypatch), mean, within_rows(covariance, 4))


def test_sites_outside_of_layers_are_drawn_for_all_rows() -> None:
    net = network(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1))
    program = setting(net, rows(4, 3)).program
    assert Flipout(program).sites == ("0.weight", "0.bias", "3.weight", "3.bias")


# Refusals


def spread_out(x: Tensor, y: Tensor | None = None) -> None:
    """Its layer is applied to the columns of x, one by one."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2, 1), 1.0).to_event(2))
    columns = nn.functional.linear(x.reshape(-1, 1), w)
    f = pyro.deterministic("f", columns.reshape(len(x), -1).sum(-1, keepdim=True))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)


def by_einsum(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(1, 3), 1.0).to_event(2))
    f = pyro.deterministic("f", torch.einsum("ni,oi->no", x, w))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)


def autoencoder(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    f = pyro.deterministic("f", ((x @ w).tanh() @ w.T)[:, :1])
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)


def broadcast(x: Tensor, y: Tensor | None = None) -> None:
    """Both outputs have the same row of weights."""
    row = pyro.sample("row", dist.Normal(torch.zeros(1, 3), 1.0).to_event(2))
    f = pyro.deterministic("f", nn.functional.linear(x, row * torch.ones(2, 1)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)


def refused(kind: Any, model: Any, x: Tensor, message: str) -> None:
    is_module = isinstance(model, nn.Module)
    x = x if is_module else x.float()
    program = Program(model, x, torch.zeros_like(model(x) if is_module else x[:, 0]))
    with pytest.raises(SiteError, match=message):
        kind(program)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_models_that_they_do_not_serve_are_refused_by_site(kind: Any) -> None:
    refused(kind, by_einsum, rows(4, 3), r"the site 'w' enters einsum\(\): use it as the weight of")
    message = "the layer of 'w' has 6 rows where x has 2: keep the rows of x as the first"
    refused(kind, spread_out, rows(4, 3), message)
    rank1 = models.Rank1MLP(3, hidden=(4,)).double()
    message = r"no effect: no site of the model enters a linear layer .* layers.0.s, layers.0.r,"
    refused(kind, rank1, rows(4, 3), message)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_an_entry_that_is_broadcast_is_not_taken_for_several(kind: Any) -> None:
    x = rows(4, 3).float()
    with pytest.raises(SiteError, match=r"the site 'row' enters mul\(\): use it as the weight of"):
        kind(Program(broadcast, x, torch.zeros(4, 2)))


def test_outputs_that_share_weights_are_not_drawn_one_by_one() -> None:
    image = network(nn.Conv2d(1, 2, 2), nn.Flatten())
    message = "'0.weight', '0.bias' enter at several positions of each row"
    refused(LocalReparameterization, image, rows(4, 1, 3, 3), message)
    words = network(nn.Linear(2, 2), nn.Flatten())
    refused(LocalReparameterization, words, rows(4, 3, 2), message)
    layer = nn.Linear(3, 3, bias=False)
    tied = network(layer, layer)
    message = "the site '0.weight' enters 2 products, whose outputs share it"
    refused(LocalReparameterization, tied, rows(4, 3), message)
    refused(Flipout, autoencoder, rows(4, 3), "'w' enters one product as it is and another one tra")


def test_several_particles_need_a_model_that_can_be_batched() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(1, 3), 1.0).to_event(2))
        f = nn.functional.linear(x, w)
        f = pyro.deterministic("f", f + 0 * float(f.detach().sum().numpy()))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)

    program = Program(model, torch.ones(4, 3), torch.zeros(4))
    guide = guides.AutoNormal(model)
    guide.setup(torch.ones(1, 3))
    estimator = Flipout(program)
    generator = torch.Generator().manual_seed(0)
    batch = program.batch(torch.ones(4, 3), torch.zeros(4))
    for particles in (1, 2):
        noise = guide.draw_noise(particles, generator)
        both = (noise, estimator.row_noise(particles, 4, generator))
        terms = guide.make_terms(noise, density=True)
        if particles == 1:
            assert estimator.rows(terms, both, batch, {}, {})[0].shape == (1, 4)
            continue
        with pytest.raises(ModelError, match="this one cannot: take num_particles=1"):
            estimator.rows(terms, both, batch, {}, {})
