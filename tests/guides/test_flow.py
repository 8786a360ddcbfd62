r"""AutoFlow against Jacobians, quadrature and exact posteriors.

The curved posterior in two dimensions is that of a and b in

.. math:: y_n \sim \mathcal N(a + b^2, \sigma^2), \qquad a, b \sim \mathcal N(0, 1)

whose log joint is a polynomial of degree 4: its expectation under a Gaussian is exact by a few
nodes of Gauss and Hermite, and its evidence a sum over a grid.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from pyro_bnn import SVI, likelihoods, models, priors
from pyro_bnn.errors import OptionError, SiteError, UnknownNameError
from pyro_bnn.guides import AutoFlow, AutoNormal
from pyro_bnn.guides.flow import FlowName
from pyro_bnn.guides.parts.flow_layers import KINDS, Flows
from pyro_bnn.posterior import GuidePosterior, Posterior
from tests import laws
from tests.collection import rest_in_soak
from tests.guides.exact import at, expected_elbo
from tests.laws import assert_mean, made, one, problem
from tests.oracle import LinearGaussian, linear_gaussian

AUTOREGRESSIVE: FlowName = "affine_autoregressive"
FLOWS = [cast(FlowName, name) for name in KINDS]
NOISE = 0.3  # of y about the curve


def some_flow(flow: FlowName, *, model: str = "linear", **options: Any) -> AutoFlow:
    """A guide with parameters moved off their start by unit noise."""
    return cast(AutoFlow, made(functools.partial(AutoFlow, flow=flow, **options), problem(model)))


def some_noise(*shape: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def jacobian(fn: Callable[[Tensor], Tensor], row: Tensor) -> Tensor:
    """d fn_i / d row_j, row by row of autograd."""
    found: Any = torch.autograd.functional.jacobian(fn, row)
    return cast(Tensor, found)


# Densities


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("on", ["all", "last_layer"])
def test_log_prob_of_a_draw_is_that_of_its_noise_less_the_log_determinant(
    flow: FlowName, on: str
) -> None:
    guide = layered_guide(flow=flow, num_flows=3) if on == "last_layer" else some_flow(flow)
    noise = some_noise(5, 4)
    normal = torch.distributions.Normal(one(0.0), one(1.0))
    log_dets = [torch.linalg.slogdet(jacobian(guide.transport, row)).logabsdet for row in noise]
    expected = normal.log_prob(noise).sum(-1) - torch.stack(log_dets)
    with torch.no_grad():
        torch.testing.assert_close(guide.log_q(noise), expected, rtol=1e-9, atol=1e-9)
        log_prob = guide.log_prob(guide.transport(noise))
        torch.testing.assert_close(log_prob, expected, rtol=1e-9, atol=1e-9)
        terms = guide.make_terms(noise, density=True)
    torch.testing.assert_close(terms.log_prob, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(terms.z, guide.transport(noise).detach(), rtol=0, atol=0)


@pytest.mark.parametrize("flow", FLOWS)
def test_the_inverse_finds_the_noise_of_any_z(flow: FlowName) -> None:
    guide = some_flow(flow, num_flows=3)
    noise = some_noise(6, 7, 4, scale=3.0)  # splines end within
    with torch.no_grad():
        z = guide.transport(noise)
        torch.testing.assert_close(guide.noise_of(z), noise, rtol=1e-6, atol=1e-6)
        moved_by = (z - guide.loc) / guide.scale - noise
        assert float(moved_by.abs().max()) > 0.5  # not the identity


@pytest.mark.parametrize("flow", ["affine_autoregressive", "planar"])  # inverted by our own code
def test_the_gradient_of_the_density_at_any_z_is_that_of_finite_differences(flow: FlowName) -> None:
    guide = some_flow(flow, num_flows=2)
    loc, scale = guide.loc.detach(), guide.scale.detach()
    u = ((guide.sample(1) - loc) / scale).requires_grad_()  # a step of the differences fits all
    assert torch.autograd.gradcheck(
        lambda u: guide.log_prob(loc + scale * u), (u,), rtol=1e-5, atol=1e-5
    )


# of splines, with kinks, on grids sixteen times as fine; their densities against Jacobians above
@pytest.mark.parametrize(
    "flow", rest_in_soak([(f,) for f in FLOWS], [(f,) for f in FLOWS if "spline" not in f])
)
def test_the_density_integrates_to_one(flow: FlowName) -> None:
    guide = moved(AutoFlow(Curved(), flow=flow, num_flows=2), noise=0.3)
    z = guide.sample(1_000)
    middle, reach = z.mean(0), 8 * z.std(0)
    has_kinks = "spline" in flow  # the sum is exact where the density is smooth
    steps = torch.linspace(-1, 1, 1_001 if has_kinks else 251, dtype=torch.float64)
    total = 0.0
    with torch.no_grad():
        for rows in steps.split(100):
            grid = middle + reach * torch.cartesian_prod(rows, steps)
            total += float(guide.log_prob(grid).exp().sum())
    cell = (steps[1] - steps[0]) ** 2 * reach.prod()
    assert total * float(cell) == pytest.approx(1, abs=5e-5 if has_kinks else 1e-9)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("on", ["all", "last_layer"])
def test_it_starts_as_auto_normal(flow: FlowName, on: str) -> None:
    model, x = layered().model, torch.zeros(1, 3, dtype=torch.float64)
    normal = AutoNormal(model, init_scale=0.2)
    guide = AutoFlow(model, init_scale=0.2, flow=flow, on=cast(Any, on))
    for each in (normal, guide):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            each.setup(x)
        each.to(torch.float64)
    noise = some_noise(20, 4)
    tolerance = 2e-3 if "spline" in flow else 1e-6  # rounding of the start to single precision
    with torch.no_grad():
        z = normal.transport(noise)
        difference = (guide.transport(noise) - z) / normal.scale
        assert float(difference.abs().max()) < tolerance
        log_probs = guide.log_q(noise), guide.log_prob(z)
        for log_prob in log_probs:
            torch.testing.assert_close(log_prob, normal.log_prob(z), rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize(
    "law",
    [
        laws.density_has_a_batch_axis,
        laws.pyro_trace_has_the_same_density,
        laws.captured_elbo_equals_uncaptured,
        laws.state_goes_through_a_file,
        laws.options_make_the_same_kind,
        laws.copies_are_independent,
        laws.dtype_moves,
        laws.noise_of_one_draw_is_a_row,
    ],
    ids=lambda law: law.__name__,
)
def test_laws(flow: FlowName, law: Callable[..., None]) -> None:
    law(functools.partial(AutoFlow, flow=flow, num_flows=1), problem("linear"))


def test_the_kl_needs_no_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = some_flow(AUTOREGRESSIVE)
    with torch.no_grad():
        expected = guide.log_prob(guide.sample(100, seed=1)).mean()
        log_prior = problem("linear").log_prior(guide.sample(100, seed=1)).mean()
    monkeypatch.setattr(Flows, "inverse", None)
    value, exact = guide.kl(num_draws=100, seed=1)
    assert not exact
    assert value == pytest.approx(float(expected - log_prior), rel=1e-10)


# Without traces


@pytest.mark.parametrize("flow", FLOWS)
def test_no_tensor_of_a_call_is_left_on_a_transform(flow: FlowName) -> None:
    guide = some_flow(flow)
    before = {k: set(m.__dict__) for k, m in guide.flows.named_modules()}
    z, log_prob = guide._push(some_noise(4))
    guide.log_prob(z.detach())
    for name, module in guide.flows.named_modules():
        left = {k: v for k, v in vars(module).items() if k not in before[name] and v is not None}
        assert left == {}
        assert not [k for k, v in vars(module).items() if isinstance(v, Tensor) and v.grad_fn]
        assert getattr(module, "_cached_x_y", (None, None)) == (None, None)
    copied = copy.deepcopy(guide)  # fails on tensors with a graph
    (z.sum() + log_prob.sum()).backward()
    torch.testing.assert_close(copied.sample(3), guide.sample(3), rtol=0, atol=0)


@pytest.mark.parametrize("flow", [name for name in FLOWS if "spline" not in name])
def test_draws_and_densities_under_vmap(flow: FlowName) -> None:
    guide = some_flow(flow)
    noise = some_noise(6, 4)
    with torch.no_grad():
        z = torch.func.vmap(guide.transport)(noise)
        torch.testing.assert_close(z, guide.transport(noise), rtol=1e-12, atol=1e-12)
        each = torch.func.vmap(guide.log_prob)(z)
        torch.testing.assert_close(each, guide.log_prob(z), rtol=1e-9, atol=1e-9)


# Pyro's splines pick entries by a mask, whose number the device "meta" does not have
@pytest.mark.parametrize("flow", [name for name in FLOWS if "spline" not in name])
def test_everything_is_made_on_the_device_of_the_parameters(flow: FlowName) -> None:
    guide = some_flow(flow)
    noise = torch.zeros(5, 4, dtype=torch.float64, device="meta")
    guide.to(device="meta")
    for value in (guide.transport(noise), guide.log_q(noise), guide.log_prob(noise)):
        assert value.device.type == "meta"


# A curved posterior


class Curved(PyroModule):
    """Sites ``a`` [1] and ``b`` [1] with f = x (a + b^2)."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        prior = dist.Normal(one(0.0), one(1.0)).expand([1]).to_event(1)
        a, b = pyro.sample("a", prior), pyro.sample("b", prior)
        f = pyro.deterministic("f", x * (a + b.square()))
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, one(NOISE)).to_event(1), obs=y)
        return sampled


def moved(guide: AutoFlow, noise: float = 1.0) -> AutoFlow:
    """A guide set up on its model, with Gaussian noise on its parameters."""
    given = dataclasses.replace(problem("linear"), model=guide.model)
    return cast(AutoFlow, made(lambda _: guide, given, noise=noise))


CURVED_X = torch.ones(4, 1, dtype=torch.float64)
CURVED_Y = torch.tensor([[0.8], [1.1], [1.2], [0.9]], dtype=torch.float64)


def curved_log_joint(z: Tensor) -> Tensor:
    """Log p(y, a, b) ``[...]`` of (a, b) ``[..., 2]``."""
    normal = torch.distributions.Normal(one(0.0), one(1.0))
    f = z[..., :1] + z[..., 1:].square()  # [..., 1]
    rows = torch.distributions.Normal(f, one(NOISE)).log_prob(CURVED_Y[:, 0])  # [..., N]
    return cast(Tensor, normal.log_prob(z).sum(-1) + rows.sum(-1))


def curved_log_evidence() -> float:
    steps = torch.linspace(-8, 8, 2_001, dtype=torch.float64)
    log_joint = curved_log_joint(torch.cartesian_prod(steps, steps))
    return float(log_joint.logsumexp(0) + 2 * (steps[1] - steps[0]).log())


def best_gaussian_elbo() -> float:
    """The largest ELBO of a Gaussian, by exact expectations from several starts."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    noise = torch.from_numpy(np.array(list(itertools.product(nodes, nodes))))  # [36, 2]
    share = torch.from_numpy(np.outer(weights, weights).ravel() / weights.sum() ** 2)
    best = -math.inf
    for seed in range(8):
        start = torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        values = start.requires_grad_()
        optimizer = torch.optim.LBFGS([values], max_iter=300, line_search_fn="strong_wolfe")

        def minus_elbo(values: Tensor = values) -> Tensor:
            scale, below = values[2:4].exp(), values[4]
            first, second = noise.unbind(-1)
            z = values[:2] + torch.stack([scale[0] * first, below * first + scale[1] * second], -1)
            entropy = values[2:4].sum() + 1 + math.log(2 * math.pi)
            return -(share @ curved_log_joint(z)) - entropy

        def closure(optimizer: Any = optimizer, fn: Any = minus_elbo) -> float:
            optimizer.zero_grad()
            loss = fn()
            loss.backward()
            return float(loss.detach())

        optimizer.step(closure)
        best = max(best, -float(minus_elbo().detach()))
    return best


@pytest.fixture(scope="module")
def curved_fit() -> GuidePosterior:
    engine = SVI(AutoFlow, num_steps=4_000, num_particles=16)
    posterior = engine.run(Curved(), (CURVED_X, CURVED_Y), progress=False)
    assert isinstance(posterior, GuidePosterior)
    return posterior


@pytest.mark.slow("whole fits")
def test_a_curved_posterior_is_nearer_than_to_any_gaussian(curved_fit: GuidePosterior) -> None:
    elbo, error = curved_fit.elbo((CURVED_X, CURVED_Y), num_samples=20_000)
    evidence, gaussian = curved_log_evidence(), best_gaussian_elbo()
    assert gaussian < evidence - 0.3
    assert elbo < evidence + 4 * error
    assert evidence - elbo < 0.1 * (evidence - gaussian)


# The linear-Gaussian oracle, and layers


class Layered(PyroModule):
    """The linear-Gaussian model with a module for each site: ``first.b`` [1], ``last.w`` [I, 1]."""

    def __init__(self, oracle: LinearGaussian) -> None:
        super().__init__()
        self.noise = oracle.noise
        prior = dist.Normal(one(0.0), one(oracle.prior_scale))
        self.last, self.first = PyroModule(), PyroModule()  # their order says nothing
        self.first.b = PyroSample(prior.expand([1]).to_event(1))
        self.last.w = PyroSample(prior.expand([oracle.x.shape[1], 1]).to_event(2))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        b = self.first.b
        f = pyro.deterministic("f", x @ self.last.w + b)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, one(self.noise)).to_event(1), obs=y)
        return sampled


def layered() -> LinearGaussian:
    """The oracle with z = (b, w)."""
    oracle = linear_gaussian()
    order = torch.tensor([3, 0, 1, 2])
    return dataclasses.replace(
        oracle,
        model=cast(Any, Layered(oracle)),
        precision=oracle.precision[order][:, order],
        covariance=oracle.covariance[order][:, order],
        mean=oracle.mean[order],
    )


def layered_guide(**options: Any) -> AutoFlow:
    return moved(AutoFlow(layered().model, on="last_layer", **options))


def set_gaussian(guide: AutoFlow, mean: Tensor, covariance: Tensor, entries: slice) -> None:
    """Make one autoregressive layer the Cholesky factor of some entries' covariance."""
    tril = torch.linalg.cholesky(covariance)
    scale = tril.diagonal()
    guide.scale = scale
    net = cast(Any, guide.flows.layers[0]).arn
    below = torch.tril(tril / scale.unsqueeze(-1), -1)[entries, entries]
    with torch.no_grad():
        guide.loc.copy_(mean)
        net.net.skip_layer.weight[: len(below)] = below * net.divisor


def test_one_autoregressive_layer_holds_the_exact_gaussian_posterior() -> None:
    oracle = linear_gaussian()
    guide = AutoFlow(oracle.model, flow=AUTOREGRESSIVE, num_flows=1)
    at(guide, oracle)
    set_gaussian(guide, oracle.mean, oracle.covariance, slice(None))
    elbo, gradients = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.log_evidence, rel=1e-12)
    for (name, _), gradient in zip(guide.named_parameters(), gradients, strict=True):
        if name in ("loc", "scale_unconstrained") or "skip" in name:
            n = len(gradient) // 2 if "skip" in name else len(gradient)  # those of the shifts
            torch.testing.assert_close(
                gradient[:n], torch.zeros_like(gradient[:n]), rtol=0, atol=1e-9
            )
    exact = torch.distributions.MultivariateNormal(oracle.mean, oracle.covariance)
    z = some_noise(9, 4)
    torch.testing.assert_close(guide.log_prob(z).detach(), exact.log_prob(z))


@pytest.mark.slow("a whole fit")
def test_svi_of_an_autoregressive_flow_reaches_the_evidence() -> None:
    oracle = linear_gaussian()
    engine = SVI(
        functools.partial(AutoFlow, flow=AUTOREGRESSIVE, num_flows=1),
        num_steps=1_000,
        learning_rate=0.02,
        num_particles=16,
        compile=False,
    )
    posterior = engine.run(oracle.model, (oracle.x, oracle.y), progress=False)
    elbo, error = posterior.elbo((oracle.x, oracle.y), num_samples=20_000)
    assert oracle.log_evidence - 0.02 < elbo < oracle.log_evidence + 4 * error
    assert oracle.mean_field_gap > 0.2  # which independent weights cannot reach


def test_on_the_last_layer_the_best_gaussian_is_exact_there_and_mean_field_elsewhere() -> None:
    oracle = layered()
    guide = AutoFlow(oracle.model, flow=AUTOREGRESSIVE, num_flows=1, on="last_layer")
    at(guide, oracle)
    assert guide.flow_sites == ("last.w",)
    blocks = torch.block_diag(oracle.precision[:1, :1], oracle.precision[1:, 1:])
    best = torch.linalg.inv(blocks)  # of all q(b) q(w)
    set_gaussian(guide, oracle.mean, best, slice(1, None))
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(oracle.mean, best), rel=1e-12)
    assert oracle.log_evidence - oracle.mean_field_gap < elbo - 0.1
    z = guide.sample(20_000) - oracle.mean
    products = (z.unsqueeze(-1) * z.unsqueeze(-2)).flatten(1)
    assert_mean(products, best.flatten())


@pytest.mark.parametrize("flow", FLOWS)
def test_on_the_last_layer_no_other_entry_meets_another(flow: FlowName) -> None:
    model = models.MLP(3, hidden=(3,)).double()
    guide = moved(AutoFlow(model, flow=flow, num_flows=3, on="last_layer"))
    names = [name for name, _, length in guide._shapes for _ in range(length)]
    inside = torch.tensor([name in guide.flow_sites for name in names])
    assert 0 < int(inside.sum()) < len(inside)
    found = jacobian(guide.transport, some_noise(len(names)))
    others = found[~inside]
    scale = guide.scale.detach()
    torch.testing.assert_close(others, scale.diag()[~inside], rtol=1e-12, atol=1e-12)
    assert float(found[inside][:, ~inside].abs().max()) == 0
    correlated = found[inside][:, inside]
    assert float((correlated - correlated.diag().diag()).abs().max()) > 1e-3 * float(scale.mean())


# Which layer is the last


def last_sites(model: nn.Module, num_inputs: int = 3) -> tuple[str, ...]:
    guide = AutoFlow(model, on="last_layer")
    guide.setup(torch.zeros(1, num_inputs))
    return guide.flow_sites


def test_the_last_layer_is_the_module_of_the_last_real_site() -> None:
    net = models.MLP(3, hidden=(4, 4))
    assert last_sites(net) == ("layers.2.weight", "layers.2.bias")
    learned = likelihoods.Normal(scale=dist.HalfNormal(1.0))
    assert last_sites(models.MLP(3, hidden=(4,), likelihood=learned)) == (
        "layers.1.weight",
        "layers.1.bias",
    )
    torch_net = models.bayesian(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    assert last_sites(torch_net) == ("2.weight", "2.bias")


def test_the_scales_of_a_hierarchical_prior_are_of_the_layer_of_its_weight() -> None:
    model = models.MLP(3, hidden=(4,), prior=priors.HalfCauchyScale(per="unit"))
    found = last_sites(model)
    assert all(name.startswith("layers.1.") for name in found)
    assert len(found) > 2


def test_without_modules_the_last_layer_cannot_be_told() -> None:
    guide = AutoFlow(problem("linear").model, on="last_layer")
    with pytest.raises(SiteError, match=r'"layers\.1\.weight", .* there are w, b: take on="all"'):
        guide.setup(torch.zeros(1, 3, dtype=torch.float64))


# Options


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("size", [2, 5, 11])
def test_the_numbers_of_a_layer_are_counted_before_they_are_made(flow: FlowName, size: int) -> None:
    kind, hidden = KINDS[flow], 13
    made_layers = Flows(flow, size, 3, hidden)
    assert sum(p.numel() for p in made_layers.parameters()) == 3 * kind.numbers(size, hidden)


def test_an_autoregressive_flow_over_many_weights_is_refused_before_it_is_made() -> None:
    model = models.MLP(100, hidden=(200,))  # P = 20,402
    guide = AutoFlow(model, flow=AUTOREGRESSIVE)
    with pytest.raises(
        OptionError, match=r"over 20,402 entries of z would train 4,162,538,452"
    ) as told:
        guide.setup(torch.zeros(1, 100))
    assert 'take fewer layers, or flow="affine_coupling"' in str(told.value)
    assert str(told.value).endswith('"planar"; or on="last_layer"')
    last = AutoFlow(model, flow=AUTOREGRESSIVE, on="last_layer")
    last.setup(torch.zeros(1, 100))
    assert last.flows.orders.shape == (2, 201)


def test_orders_are_permutations_that_part_all_entries() -> None:
    orders = Flows("affine_coupling", 8, 8, 4).orders
    assert bool((orders.sort(-1).values == torch.arange(8)).all())
    kept = [set(order[:4].tolist()) for order in orders]
    for i, j in itertools.combinations(range(8), 2):  # some layer keeps one and changes the other
        assert any((i in half) != (j in half) for half in kept)


@pytest.mark.parametrize("flow", [name for name in FLOWS if name != "planar"])
def test_one_entry_is_refused(flow: FlowName) -> None:
    def single(x: Tensor) -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))

    guide = AutoFlow(single, flow=flow)
    with pytest.raises(SiteError, match="needs 2 entries of z, and there is 1"):
        guide.setup(torch.zeros(1, 1))
    planar = AutoFlow(single, flow="planar")
    planar.setup(torch.zeros(1, 1))
    assert planar.sample(2).shape == (2, 1)


def test_options_out_of_range() -> None:
    model = problem("linear").model
    for name in ("num_flows", "hidden"):
        for value in (0, 2.0, True):
            with pytest.raises(OptionError, match=f"{name} is an integer of at least 1"):
                AutoFlow(model, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="on is one of 'all', 'last_layer', not 'first'"):
        AutoFlow(model, on=cast(Any, "first"))
    with pytest.raises(OptionError, match="Pyro cannot invert flow='sylvester'"):
        AutoFlow(model, flow=cast(Any, "sylvester"))
    with pytest.raises(UnknownNameError, match="did you mean 'spline_coupling'"):
        AutoFlow(model, flow=cast(Any, "spline_couplings"))
    guide = AutoFlow(model, flow=AUTOREGRESSIVE, hidden=3)
    with pytest.raises(OptionError, match="over 4 entries of z needs as many units"):
        guide.setup(torch.zeros(1, 3, dtype=torch.float64))


# Runs


@pytest.mark.parametrize("flow", FLOWS)
def test_a_pickled_guide_is_the_same(flow: FlowName) -> None:
    guide = some_flow(flow)
    again = pickle.loads(pickle.dumps(guide))
    with torch.no_grad():
        z = guide.sample(3)
        torch.testing.assert_close(again.sample(3), z, rtol=0, atol=0)
        torch.testing.assert_close(again.log_prob(z), guide.log_prob(z), rtol=0, atol=0)


def test_a_fit_goes_through_a_file(tmp_path: Path) -> None:
    model = models.MLP(3, hidden=(4,), prior=priors.HalfCauchyScale())
    x = torch.linspace(-1, 1, 60).reshape(20, 3)
    guide = functools.partial(AutoFlow, flow=AUTOREGRESSIVE, on="last_layer", hidden=40)
    engine = SVI(guide, num_steps=5, batch_size=8, compile=False)
    posterior = engine.run(model, (x, x[:, 0]), progress=False)
    path = tmp_path / "fit.pt"
    posterior.save(path)
    again = Posterior.load(path, model)
    assert isinstance(again, GuidePosterior)
    assert isinstance(again.guide, AutoFlow)
    assert again.guide.flow_sites == cast(Any, posterior).guide.flow_sites
    torch.testing.assert_close(again.draws(7), posterior.draws(7), rtol=0, atol=0)
    torch.testing.assert_close(again.log_q(7), posterior.log_q(7), rtol=0, atol=0)
