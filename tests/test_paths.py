"""Compiled, captured and plain Pyro: the same values and gradients on the same noise.

Plain Pyro is the model under Pyro's own handlers, a draw at a time; KL terms in closed form are
those of ``torch.distributions``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import likelihoods, models, priors
from pyro_bnn.capture import Captured, value_and_grad
from pyro_bnn.errors import SiteError
from pyro_bnn.guides import (
    AutoDropout,
    AutoFlow,
    AutoNormalMixture,
    AutoRadial,
    AutoRank1Mixture,
    Guide,
)
from pyro_bnn.program import Batch, Program
from pyro_bnn.sites import Site
from tests.collection import EVERY_KIND, cover, rest_in_soak
from tests.plain_pyro import CASES, NORMAL, Case, conditioned, data, default_dtype, mlp
from tests.test_laws import RANK1, mixture

NUM_ROWS = 6  # of a batch, of 12
NUM_PARTICLES = 2
EULER_LOG = 0.5772156649015329 + math.log(2)  # -2 E log|r| of a standard normal r
Make = Callable[..., Guide]


def rank1(**options: Any) -> Case:
    return Case(lambda: models.Rank1MLP(3, hidden=(4,), activation="tanh", **options))


HIERARCHIES: Mapping[str, Case] = {
    "prior-cauchy": Case(mlp(NORMAL, prior=priors.Cauchy)),
    "half-cauchy-scale": Case(mlp(NORMAL, prior=priors.HalfCauchyScale)),
    "half-cauchy-scale-centred": Case(
        mlp(
            likelihoods.Bernoulli,
            prior=lambda: priors.HalfCauchyScale(per="unit", centred=True),
        ),
        "binary",
    ),
    "horseshoe": Case(mlp(NORMAL, prior=lambda: priors.Horseshoe(slab_scale=2.0))),
    "horseshoe-classes": Case(
        mlp(lambda: likelihoods.Categorical(3), prior=priors.Horseshoe), "classes"
    ),
}
RANK1_MODELS: Mapping[str, Case] = {
    "rank-1": rank1(),
    "rank-1-cauchy": rank1(prior=priors.Cauchy(scale=0.1, loc=1.0)),
    "rank-1-half-cauchy-scale": rank1(prior=priors.HalfCauchyScale(loc=1.0)),
    "rank-1-log-normal": rank1(prior=priors.LogNormal(0.1), weight_prior=None),
}
MODELS: Mapping[str, Case] = {**CASES, **HIERARCHIES, **RANK1_MODELS}

cauchy = functools.partial(mixture, family="cauchy")
MIXTURES: Mapping[str, Make] = {
    **RANK1,
    "log-mixture": functools.partial(mixture, objective="log_mixture"),
    "averaged-kl": functools.partial(mixture, objective="log_mixture_averaged_kl"),
    "delta": functools.partial(mixture, family="delta"),
    "cauchy": cauchy,
    "cauchy-mixture": functools.partial(cauchy, objective="mixture", separate_biases=False),
}
GUIDES: Mapping[str, Make] = {**EVERY_KIND, **MIXTURES}
DROPOUTS = [name for name in EVERY_KIND if "dropout" in name]


def suits(model: str, guide: str) -> bool:
    """Whether a mixture goes with a model; of other guides, whether a guide is not a mixture."""
    if guide not in MIXTURES:
        return True
    return model in RANK1_MODELS and ("cauchy" not in guide or model == "rank-1-cauchy")


PAIRS = [(model, guide) for model in MODELS for guide in GUIDES if suits(model, guide)]

DEAR = ("bayesian-transformer", "bayesian-gru-cell")  # ten times as long as others
COVERED = cover(MODELS, GUIDES, once=DEAR, suits=suits)
# one of each kind of graph: closed forms; mixtures, masks of channels, a factor, groups, a flow
COMPILED = [("normal-learned", "auto-normal")]
RECORDED = [  # as for the compiler, which takes longest for them
    ("rank-1-cauchy", "cauchy-mixture"),
    ("bayesian-conv", "concrete dropout"),
    ("half-cauchy-scale", "auto-matrix-normal"),
    ("user-module", "auto-flow"),
]
SINGLE = [
    ("bernoulli", "auto-multivariate-normal"),
    ("normal-learned", "auto-normal"),
    ("rank-1", "own biases"),
]


@dataclass
class Values:
    """What a path gives: the objective's loss, densities at z ``[S, P]``, and gradients.

    The gradients are those of the loss plus the sum of the log joints, by name of the parameter;
    ``"z"`` for those of the log joint.
    """

    loss: Tensor
    log_joint: Tensor  # [S]
    log_likelihood: Tensor  # [S, B]
    function: Tensor  # [S, B, F]
    gradients: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Pair:
    """A model, a guide moved off its start, a batch of half the rows, noise, and points z."""

    program: Program
    guide: Guide
    batch: Batch
    noise: Tensor  # [S, M]
    z: Tensor  # [S, P]

    @property
    def scale(self) -> float:
        return self.program.num_data / len(self.batch.x)


def pair(case: Case, make: Make) -> Pair:
    x, y = data(case.target)
    model = case.build()
    program = Program(model, x, y)
    guide = make(model)
    guide.setup(x[:1])
    guide.to(program.dtype)
    program.prepare(guide)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    noise = guide.draw_noise(NUM_PARTICLES, generator)
    z = 0.3 * torch.randn(NUM_PARTICLES + 1, program.num_latents, generator=generator)
    batch = program.batch(x, y)
    return Pair(program, guide, Batch(batch.x[:NUM_ROWS], batch.y[:NUM_ROWS]), noise, z)


# The library


def by_library(given: Pair, *, compiled: bool) -> Values:
    """All of it by one graph, compiled or not."""
    program, guide = given.program, given.guide
    named: dict[str, Tensor] = {f"guide.{k}": value for k, value in guide.named_parameters()}
    named |= {f"model.{name}": value for name, value in program.params.items()}
    names = [*named, "z"]

    def fn(
        variables: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        *parameters, z = variables
        noise, *rows = rest
        batch = Batch(*rows)
        params = dict(zip(named, parameters, strict=True))
        terms = program.elbo(guide, params, noise, batch)
        loss = terms.kl - terms.expected_log_likelihood
        if terms.log_factors is not None:
            loss = loss - terms.log_factors
        own = {name: params[f"model.{name}"] for name in program.params}
        log_joint = program.log_joint(z, batch, own)
        log_likelihood = program.log_likelihood(z, batch, own)
        function = program.function(z, batch.x, own)
        return loss + log_joint.sum(), (loss, log_joint, log_likelihood, function)

    step = Captured(value_and_grad(fn, len(names)), "step", compiled=compiled, strict=True)
    out = step(*named.values(), given.z, given.noise, *given.batch)
    assert step.is_captured
    assert step.is_compiled == compiled
    loss, log_joint, log_likelihood, function = out[1:5]
    gradients = dict(zip(names, out[5:], strict=True))
    return Values(loss, log_joint, log_likelihood, function, gradients)


# Plain Pyro


class PlainPyro:
    """A model's terms at a z by Pyro's traces, with the leaves to differentiate by.

    The model's own parameters are leaves; of a plain function, whose parameters Pyro makes anew,
    those of each trace.
    """

    def __init__(self, given: Pair) -> None:
        self.model, self.batch = given.program.model, given.batch
        own = dict(self.model.named_parameters()) if isinstance(self.model, nn.Module) else {}
        self.leaves = {name: [own[name]] if name in own else [] for name in given.program.params}
        self._made_anew = self.leaves.keys() - own.keys()

    def at(self, z: Tensor) -> tuple[Mapping[str, Any], Tensor]:
        """Nodes of the trace at z, and the log Jacobian."""
        trace, log_det = conditioned(self.model, z, *self.batch)
        for name in self._made_anew:
            self.leaves[name].append(trace.nodes[name]["value"].unconstrained())
        return trace.nodes, log_det

    def gradients(self, total: Tensor, leaves: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
        """By name ``[leaves, ...]``, by one pass."""
        flat = [leaf for own in leaves.values() for leaf in own]
        found = iter(torch.autograd.grad(total, flat, allow_unused=True, materialize_grads=True))
        return {name: torch.stack([next(found) for _ in own]) for name, own in leaves.items()}


def latents(given: Pair, nodes: Mapping[str, Any]) -> Iterator[tuple[Site, Any]]:
    return ((site, nodes[site.name]) for site in given.program.sites)


def log_factors(nodes: Mapping[str, Any]) -> Tensor | float:
    total: Tensor | float = 0.0
    for node in nodes.values():
        if node["type"] == "sample" and type(node["fn"]).__name__ == "Unit":
            total = total + node["log_prob_sum"]
    return total


def base(fn: Any) -> Any:
    while type(fn).__name__ in ("Independent", "ExpandedDistribution", "MaskedDistribution"):
        fn = fn.base_dist
    return fn


def expected_log_prob(node: Any, q: Any) -> Tensor | None:
    """E_q log p ``[...]`` where torch has the KL of this pair, the prior being constant."""
    prior = base(node["fn"])
    kinds: tuple[type, ...] = (dist.Normal, dist.Laplace)
    if isinstance(q, torch.distributions.Cauchy):
        kinds = (dist.Cauchy,)
    if type(prior) not in kinds or prior.loc.requires_grad or prior.scale.requires_grad:
        return None
    family = getattr(torch.distributions, type(prior).__name__)
    kl = torch.distributions.kl_divergence(q, family(prior.loc, prior.scale))
    total: Tensor = -(kl + q.entropy()).sum()
    return total


def components_of(guide: Guide) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Loc, scale ``[P]`` and entropy ``[]`` of each component of a guide with a density."""
    if isinstance(guide, AutoRank1Mixture):
        heavy = guide.cauchy_entries
        found = []
        for loc, scale in zip(guide.loc, guide.scale, strict=True):
            normal = torch.distributions.Normal(loc, scale).entropy()
            cauchy = torch.distributions.Cauchy(loc, scale).entropy()
            found.append((loc, scale, torch.where(heavy, cauchy, normal).sum()))
        return found
    if isinstance(guide, AutoNormalMixture):
        normals = torch.distributions.Normal(guide.loc, guide.scale)
        return list(zip(guide.loc, guide.scale, normals.entropy().sum(-1), strict=True))
    if isinstance(guide, AutoRadial):
        sizes = [length for _, _, length in guide._shapes]
        entropy = guide.scale.log().sum() + sum(D / 2 * math.log(D) for D in sizes)
        for D in sizes:  # of the radius, and of the direction on the sphere
            entropy = entropy + 0.5 + 0.5 * math.log(math.pi / 2) - (D - 1) * EULER_LOG / 2
            entropy = entropy + math.log(2) + D / 2 * math.log(math.pi) - math.lgamma(D / 2)
        return [(guide.loc, guide.scale, entropy)]
    if has_masks(guide):
        return [moments_of_masks(guide)]
    # a linear map of the noise: its columns are where the unit vectors go
    origin = torch.zeros(guide.noise_dim, dtype=next(guide.parameters()).dtype)
    loc = guide.transport(origin)
    columns = guide.transport(torch.eye(guide.noise_dim, dtype=loc.dtype)) - loc  # [M, P]
    e = torch.linspace(-1, 2, guide.noise_dim, dtype=loc.dtype)
    assert_close(
        guide.transport(e),
        loc + e @ columns,
        msg=lambda text: f"no linear map of its noise: say its entropy here, by hand: {text}",
    )
    covariance = columns.T @ columns
    q = torch.distributions.MultivariateNormal(loc, covariance)
    return [(loc, covariance.diagonal().sqrt(), q.entropy())]


def has_masks(guide: Guide) -> TypeGuard[AutoDropout]:
    """Whether a guide is a dropout of units: the Gaussian kind is a Gaussian as others are."""
    return isinstance(guide, AutoDropout) and guide.kind != "gaussian"


def moments_of_masks(guide: AutoDropout) -> tuple[Tensor, Tensor, Tensor]:
    """Means and sds ``[P]`` of weights under inverted dropout, and the entropy of the masks."""
    p = torch.full((len(guide.rates()),), guide.rate)
    if guide.kind == "concrete":
        p = guide.logit_rate.exp() / (1 + guide.logit_rate.exp())
    rates = dict(zip(guide.rates(), p, strict=True))
    ratios, entropy = [], torch.zeros(())  # of sd to mean
    for name, shape, length in guide._shapes:
        ratio = torch.zeros(())
        if name in rates:
            ratio = (rates[name] / (1 - rates[name])).sqrt()
            entropy = entropy + shape[1] * torch.distributions.Bernoulli(rates[name]).entropy()
        ratios.append(ratio.expand(length))
    return guide.loc, guide.loc * torch.cat(ratios), entropy


def log_density(guide: Guide, z: Tensor) -> Tensor:
    """Log q of a mixture at z ``[P]``, by torch's distributions."""
    assert isinstance(guide, AutoRank1Mixture)
    normal = torch.distributions.Normal(guide.loc, guide.scale).log_prob(z)
    cauchy = torch.distributions.Cauchy(guide.loc, guide.scale).log_prob(z)
    rows = torch.where(guide.cauchy_entries, cauchy, normal).sum(-1)
    return rows.logsumexp(0) - math.log(len(rows))


def information(guide: AutoNormalMixture, draws: Tensor, weights: Tensor) -> Tensor:
    """E log q_k(z) / q(z) ``[]`` over a component k and z, out of draws ``[S, K, P]``."""
    normals = torch.distributions.Normal(guide.loc, guide.scale)
    log_prob = normals.log_prob(draws.unsqueeze(-2)).sum(-1)  # [S, K, K]
    log_q = (log_prob + weights.log()).logsumexp(-1)
    total: Tensor = (log_prob.diagonal(dim1=1, dim2=2) - log_q).mean(0) @ weights
    return total


def log_q_by_jacobian(guide: AutoFlow, noise: Tensor) -> Tensor:
    """Log q ``[]`` of the draw of noise ``[P]``, by the determinant of the draw's derivatives."""
    derivatives = torch.autograd.functional.jacobian(guide.transport, noise, create_graph=True)
    normal = torch.distributions.Normal(torch.zeros_like(noise), torch.ones_like(noise))
    total: Tensor = normal.log_prob(noise).sum() - torch.linalg.slogdet(derivatives).logabsdet
    return total


def by_plain_pyro(given: Pair) -> Values:
    """All of it by Pyro's traces, at one z after another."""
    plain, guide = PlainPyro(given), given.guide
    z = given.z.clone().requires_grad_()
    joints, rows, functions = [], [], []
    for point in z:
        nodes, log_det = plain.at(point)
        rows.append(nodes["y"]["log_prob"])
        functions.append(nodes["f"]["value"])
        prior = sum(node["log_prob_sum"] for _, node in latents(given, nodes))
        joints.append(given.scale * rows[-1].sum() + prior + log_det)
    own_biases: dict[str, list[Tensor]] = {}
    loss = minus_objective(given, plain, own_biases)
    total = loss + torch.stack(joints).sum()
    leaves: dict[str, Sequence[Tensor]] = {
        f"guide.{name}": [value] for name, value in guide.named_parameters()
    }
    leaves |= {f"model.{name}": own for name, own in plain.leaves.items()}
    leaves |= {f"biases.{name}": own for name, own in own_biases.items()}
    found = plain.gradients(total, {**leaves, "z": [z]})
    by_layer = [found.pop(f"biases.{name}") for name in own_biases]  # [K, H]
    gradients = {name: value.sum(0) for name, value in found.items()}
    if by_layer:
        gradients["guide.biases"] = torch.cat(by_layer, -1)
    tensors = loss, torch.stack(joints), torch.stack(rows), torch.stack(functions)
    loss, log_joint, log_likelihood, function = (value.detach() for value in tensors)
    return Values(loss, log_joint, log_likelihood, function, gradients)


def minus_objective(given: Pair, plain: PlainPyro, own_biases: dict[str, list[Tensor]]) -> Tensor:
    """KL less the expected log likelihood, less the model's factors.

    Args:
        given: The pair.
        plain: Its model.
        own_biases: Receives leaves for each component's own biases, by layer.
    """
    guide = given.guide
    is_mixture = isinstance(guide, AutoRank1Mixture)
    has_members = is_mixture or isinstance(guide, AutoNormalMixture)
    draws = guide.members(given.noise) if has_members else guide.transport(given.noise)[:, None]
    num_members = draws.shape[1]  # draws are [S, K, P]
    weights = torch.full((num_members,), 1 / num_members)
    if isinstance(guide, AutoNormalMixture):
        weights = guide.logits.exp() / guide.logits.exp().sum()
    has_components = guide.has_log_prob and not isinstance(guide, AutoFlow)
    has_components = has_components or has_masks(guide)
    components = components_of(guide) if has_components else []
    log_likelihoods, sampled, factors = [], [], []
    expected: Tensor | float = 0.0
    for k in range(num_members):
        with_own = owning(given, k, own_biases)
        for draw in draws[:, k]:
            nodes, log_det = plain.at(draw)
            log_likelihoods.append(nodes["y"]["log_prob"])
            factors.append(log_factors(nodes))
            rest: Tensor | float = log_det if guide.has_log_prob else 0.0
            for site, node in latents(given, nodes):
                if not components or closed_form(given, site, node, components[k]) is None:
                    rest = rest + node["log_prob_sum"]
            sampled.append(rest * weights[k] / len(draws))
        for site, node in latents(given, nodes) if components else ():
            value = closed_form(given, site, node, components[k])
            if value is not None:
                expected = expected + value * weights[k]
        for layer, bias in with_own.items():
            layer._parameters["bias"] = bias
    kl = -expected - sum(sampled)
    if is_mixture and guide.objective_kind == "mixture" and num_members > 1:
        kl = kl + torch.stack([log_density(guide, z) for z in draws.flatten(0, 1)]).mean()
    elif components:
        kl = kl - weights @ torch.stack([entropy for _, _, entropy in components])
    if isinstance(guide, AutoNormalMixture):
        kl = kl - information(guide, draws, weights)
    if isinstance(guide, AutoFlow):
        kl = kl + torch.stack([log_q_by_jacobian(guide, row) for row in given.noise]).mean()
    rows = torch.stack(log_likelihoods).unflatten(0, (num_members, -1))  # [K, S, B]
    objective = guide.objective_kind if is_mixture else "average"
    log_k = math.log(num_members)
    if objective == "log_mixture":
        likelihood = ((given.scale * rows.sum(-1)).logsumexp(0) - log_k).mean()
        kl = num_members * kl
    elif objective == "log_mixture_averaged_kl":
        likelihood = given.scale * (rows.logsumexp(0) - log_k).sum(-1).mean()
    else:
        likelihood = given.scale * (rows.sum(-1).mean(-1) @ weights)
    total: Tensor = kl - likelihood - sum(factors) / len(factors)
    return total


def closed_form(
    given: Pair, site: Site, node: Any, q: tuple[Tensor, Tensor, Tensor]
) -> Tensor | None:
    """Expected log prior of a site ``[]`` under a component, or None; see above."""
    if not site.is_real:
        return None
    part = slice(site.start, site.stop)
    if isinstance(given.guide, AutoRadial) and type(base(node["fn"])) is not dist.Normal:
        return None
    if has_masks(given.guide):
        prior, (loc, scale) = base(node["fn"]), (v[part].reshape(site.shape) for v in q[:2])
        if type(prior) is not dist.Normal or prior.loc.requires_grad or prior.scale.requires_grad:
            return None
        second_moment = prior.log_prob(loc) - 0.5 * (scale / prior.scale).square()
        total: Tensor = second_moment.sum()
        return total
    is_cauchy = site.name in given.guide.cauchy_sites
    family = torch.distributions.Cauchy if is_cauchy else torch.distributions.Normal
    loc, scale = (value[part].reshape(site.shape) for value in q[:2])
    return expected_log_prob(node, family(loc, scale))


def owning(
    given: Pair, k: int, own_biases: dict[str, list[Tensor]]
) -> dict[nn.Module, nn.Parameter]:
    """Give the model the biases of component k; returns those to put back, by layer."""
    before: dict[nn.Module, nn.Parameter] = {}
    guide, start = given.guide, 0
    for name in guide.member_params:
        assert isinstance(given.program.model, nn.Module)
        layer = given.program.model.get_submodule(name.removesuffix(".bias"))
        bias = layer._parameters["bias"]
        assert bias is not None
        before[layer] = bias
        stop = start + bias.numel()
        leaf = nn.Parameter(guide.biases[k, start:stop].detach().clone())
        layer._parameters["bias"] = leaf
        own_biases.setdefault(name, []).append(leaf)
        start = stop
    return before


# The paths agree


def assert_same(actual: Values, expected: Values, rtol: float) -> None:
    assert set(actual.gradients) == set(expected.gradients)
    for name in ("loss", "log_joint", "log_likelihood", "function"):
        assert_same_tensor(getattr(actual, name), getattr(expected, name), rtol, name)
    for name, value in expected.gradients.items():
        assert_same_tensor(actual.gradients[name], value, rtol, name)


def assert_same_tensor(actual: Tensor, expected: Tensor, rtol: float, name: str) -> None:
    atol = rtol * float(expected.abs().max()) if expected.numel() else 0.0
    assert_close(
        actual, expected, rtol=rtol, atol=max(atol, 1e-14), msg=lambda text: f"{name}: {text}"
    )


def has_matrix(program: Program, *, filters: bool) -> bool:
    real = [site.shape for site in program.sites if site.is_real]
    if filters:
        return any(len(s) > 1 and min(s[0], s[1:].numel()) > 1 for s in real)
    return any(len(s) == 2 and min(s) > 1 for s in real)


def check(model: str, guide: str, *, compiled: bool, rtol: float) -> None:
    try:
        given = pair(MODELS[model], GUIDES[guide])
    except SiteError:  # of the guide
        x, y = data(MODELS[model].target)
        if guide in DROPOUTS:
            sites = Program(MODELS[model].build(), x, y).sites
            assert all(len(site.shape) < 2 for site in sites if site.is_real)
            return
        assert guide in ("auto-k-tied-normal", "auto-matrix-normal")
        filters = guide == "auto-k-tied-normal"
        assert not has_matrix(Program(MODELS[model].build(), x, y), filters=filters)
        return
    expected = by_plain_pyro(given)
    assert bool(expected.loss.isfinite())
    assert_same(by_library(given, compiled=compiled), expected, rtol)


@pytest.mark.parametrize(("model", "guide"), rest_in_soak(PAIRS, COVERED))
def test_captured_values_and_gradients_are_those_of_plain_pyro(model: str, guide: str) -> None:
    with default_dtype(torch.float64):
        check(model, guide, compiled=False, rtol=1e-10)


@pytest.mark.slow("compiles")
@pytest.mark.parametrize(("model", "guide"), rest_in_soak(PAIRS, COMPILED))
def test_compiled_values_and_gradients_are_those_of_plain_pyro(model: str, guide: str) -> None:
    with default_dtype(torch.float64):
        check(model, guide, compiled=True, rtol=1e-10)


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("model", "guide"), RECORDED)
def test_values_and_gradients_as_recorded_for_the_compiler_are_those_of_plain_pyro(
    model: str, guide: str
) -> None:
    with default_dtype(torch.float64):
        check(model, guide, compiled=True, rtol=1e-10)


@pytest.mark.slow("compiles")
@pytest.mark.parametrize(("model", "guide"), rest_in_soak(SINGLE, SINGLE[:1]))
def test_compiled_in_single_precision_they_agree_to_1e_5(model: str, guide: str) -> None:
    check(model, guide, compiled=True, rtol=1e-5)
