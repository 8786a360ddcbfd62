"""The joint density of plain Pyro models, of any arguments and sites, against Pyro's own traces."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer.mcmc.util import initialize_model
from pyro.infer.reparam import DiscreteCosineReparam, LocScaleReparam, TransformReparam
from pyro.nn import PyroModule, PyroSample
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn.errors import SiteError
from pyro_bnn.guides import AutoNormal
from pyro_bnn.infer.steps.potentials import potential_of
from pyro_bnn.program import Batch, Joint, Program
from pyro_bnn.program.elbo import elbo
from pyro_bnn.sites import bijection
from tests.plain_pyro import default_dtype

# torch asks the wrong way round whether a Wishart's draw is singular, and warns of good ones
pytestmark = pytest.mark.filterwarnings("ignore:Singular sample detected:UserWarning")

EFFECTS = torch.tensor([28, 8, -3, 7, -1, 1, 18, 12], dtype=torch.float64)
ERRORS = torch.tensor([15, 10, 16, 11, 9, 11, 10, 18], dtype=torch.float64)


def eight_schools(num_schools: int, errors: Tensor, effects: Tensor | None = None) -> Any:
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", num_schools):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        return pyro.sample("effect", dist.Normal(theta, errors), obs=effects)


def two_outcomes(x: Tensor, y: Tensor, *, counts: Tensor) -> None:
    """A regression that observes numbers and counts of the same rows, whose slopes are tied."""
    slope = pyro.sample("slope", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    offset = pyro.sample("offset", dist.Laplace(0.0, 1.0))
    noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
    f = pyro.deterministic("f", x @ slope)  # [N], a network's in a Program alone
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, noise), obs=y)
        pyro.sample("count", dist.Poisson((f + offset).exp()), obs=counts)
    pyro.factor("tied", -(slope[0] - slope[1]).square())


def simplex(counts: Tensor) -> None:
    shares = pyro.sample("shares", dist.Dirichlet(torch.tensor([1.0, 2.0, 0.5, 3.0])))
    pyro.sample("counts", dist.Multinomial(int(counts.sum()), shares), obs=counts)


def ordered(scores: Tensor) -> None:
    base = dist.Normal(torch.zeros(3), 2.0).to_event(1)
    transform: Any = dist.transforms.OrderedTransform()
    cuts = pyro.sample("cuts", dist.TransformedDistribution(base, transform))
    with pyro.plate("rows", len(scores)):
        pyro.sample("score", dist.OrderedLogistic(torch.tensor(0.3), cuts), obs=scores)


def cholesky(y: Tensor) -> None:
    scales = pyro.sample("scales", dist.HalfNormal(1.0).expand([3]).to_event(1))
    factor = pyro.sample("factor", dist.LKJCholesky(3, 2.0))
    with pyro.plate("rows", len(y)):
        tril = scales.diag() @ factor
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(3), scale_tril=tril), obs=y)


def nested(y: Tensor) -> None:
    """Plates in plates, a mask of some rows, a weight of all, a bounded site."""
    rate = pyro.sample("rate", dist.Uniform(0.5, 3.0))
    with pyro.plate("groups", 2, dim=-1):
        level = pyro.sample("level", dist.Gamma(2.0, rate))
        with (
            pyro.plate("repeats", 3, dim=-2),
            poutine.mask(mask=cast(torch.BoolTensor, y > 0)),
            poutine.scale(scale=0.5),
        ):
            pyro.sample("y", dist.Exponential(level), obs=y.clamp(min=0.1))


def time_series(y: Tensor) -> None:
    """A latent walk, whose steps are sites of their own."""
    at = pyro.sample("z_0", dist.Normal(0.0, 1.0))
    for t, value in enumerate(y):
        at = pyro.sample(f"z_{t + 1}", dist.Normal(0.9 * at, 0.3))
        pyro.sample(f"y_{t}", dist.StudentT(4.0, at, 0.5), obs=value)


def garch(y: Tensor, scale: Tensor) -> None:
    """GARCH(1, 1) of Stan's manual and of posteriordb: beta1 is below 1 - alpha1."""
    mu = pyro.sample("mu", flat(constraints.real))
    alpha0 = pyro.sample("alpha0", flat(constraints.positive))
    alpha1 = pyro.sample("alpha1", dist.Uniform(0.0, 1.0))
    beta1 = pyro.sample("beta1", flat(constraints.interval(0.0, 1 - alpha1)))
    for t, value in enumerate(y):
        if t:
            scale = (alpha0 + alpha1 * (y[t - 1] - mu).square() + beta1 * scale.square()).sqrt()
        pyro.sample(f"y_{t}", dist.Normal(mu, scale), obs=value)


def flat(support: Any, *shape: int) -> Any:
    return cast(Any, dist.ImproperUniform)(support, (), shape)


def chain() -> None:
    """Each bound is the site before, below or above, of one number or of two."""
    a = pyro.sample("a", dist.Uniform(0.0, 1.0))
    b = pyro.sample("b", dist.Uniform(a, 2.0))
    c = pyro.sample("c", dist.Uniform(b, torch.tensor([3.0, 4.0])).to_event(1))
    d = pyro.sample("d", dist.Pareto(c[0], 2.0))
    pyro.sample("y", dist.Normal(d, 1.0), obs=torch.tensor(2.0))


def bounds_in_a_plate(y: Tensor) -> None:
    high = pyro.sample("high", dist.Gamma(2.0, 1.0))
    with pyro.plate("rows", len(y)):
        x = pyro.sample("x", dist.Uniform(0.0, high))
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)


def bounds_of_data(y: Tensor) -> None:
    """Bounds that are numbers, of the data or not, are the same at every run."""
    top = pyro.sample("top", dist.Pareto(y.max(), 3.0))
    low = pyro.sample("low", dist.Uniform(torch.tensor([-9.0, -5.0]), y.min()).to_event(1))
    pyro.sample("y", dist.Normal(top + low.sum(), 1.0).expand([len(y)]).to_event(1), obs=y)


def trained_bound(y: Tensor) -> None:
    high = pyro.param("high", torch.tensor(2.0), constraint=constraints.positive)
    x = pyro.sample("x", dist.Uniform(0.0, high))
    pyro.sample("y", dist.Normal(x, 1.0).expand([len(y)]).to_event(1), obs=y)


def after_an_if(y: Tensor) -> None:
    """The sign of a site decides by which family, and so of which support, the next one is."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    family: Any = dist.HalfNormal(1.0) if bool(a > 0) else dist.Normal(0.0, 1.0)
    b = pyro.sample("b", family)
    c = pyro.sample("c", dist.Normal(b, 1.0))
    pyro.sample("y", dist.Normal(c, 1.0).expand([len(y)]).to_event(1), obs=y)


def improper(y: Tensor) -> None:
    with pyro.plate("groups", 2):
        real = pyro.sample("real", flat(constraints.real))
    shares = pyro.sample("shares", flat(constraints.simplex, 3))
    cuts = pyro.sample("cuts", flat(constraints.ordered_vector, 3))
    tril = pyro.sample("tril", flat(constraints.corr_cholesky, 3, 3))
    f = real.sum() + (tril @ (shares * cuts)).sum()
    pyro.sample("y", dist.Normal(f, 1.0).expand([len(y)]).to_event(1), obs=y)


def matrices(y: Tensor) -> None:
    """Covariances, correlations and triangles, with a prior or flat."""
    wishart = pyro.sample("wishart", dist.Wishart(torch.tensor(5.0), 0.2 * torch.eye(3)))
    corr = pyro.sample("corr", dist.LKJ(3, 2.0))
    tril = pyro.sample("tril", flat(constraints.lower_cholesky, 2, 2))
    square = pyro.sample("square", flat(constraints.positive_definite, 3, 3))
    f = (wishart + corr @ square).sum() + (tril @ tril.mT).logdet()
    pyro.sample("y", dist.Normal(f, 1.0).expand([len(y)]).to_event(1), obs=y)


def mixture(y: Tensor) -> None:
    parts = dist.Categorical(torch.tensor([0.3, 0.7]))
    of_time = dist.Gamma(torch.tensor([2.0, 5.0]), 1.0)
    time = pyro.sample("time", dist.MixtureSameFamily(parts, of_time))
    of_loc = dist.Normal(torch.tensor([-1.0, 1.0]), 0.5)
    loc = pyro.sample("loc", dist.MixtureSameFamily(parts, of_loc).expand([2]).to_event(1))
    pyro.sample("y", dist.Normal(loc.sum(), time).expand([len(y)]).to_event(1), obs=y)


def masked_mixture(y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    parts = dist.Normal(w, 1.0).expand([2]), dist.StudentT(3.0, w, 1.0).expand([2])
    either: Any = dist.MaskedMixture(torch.tensor([True, False]), *parts)
    v = pyro.sample("v", either.to_event(1))
    pyro.factor("tied", -(v - w).square().sum())
    pyro.sample("y", dist.Normal(v.sum(), 1.0).expand([len(y)]).to_event(1), obs=y)


def loops(y: Tensor) -> None:
    for i in cast(Any, pyro.plate("groups", len(y))):
        rate = pyro.sample(f"rate_{i}", dist.Gamma(2.0, 1.0))
        pyro.sample(f"y_{i}", dist.Poisson(rate), obs=y[i])


def in_three_plates(y: Tensor) -> None:
    with pyro.plate("a", 2, dim=-1):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("b", 3, dim=-2):
            scale = pyro.sample("scale", dist.Gamma(2.0, loc.exp()))
            with pyro.plate("c", 4, dim=-3):
                pyro.sample("y", dist.Normal(loc, scale), obs=y)


def families(y: Tensor) -> None:
    share = pyro.sample("share", dist.Kumaraswamy(2.0, 1.5))
    loc = pyro.sample("loc", dist.LogNormal(1.0, share))
    walk = pyro.sample("walk", dist.Normal(torch.zeros(4), loc).to_event(1))
    skewed = pyro.sample("skewed", dist.AsymmetricLaplace(loc, 1.0, 2.0))
    tails = pyro.sample("tails", dist.MultivariateStudentT(4.0, torch.zeros(2), torch.eye(2)))
    scale = pyro.sample("scale", dist.InverseGamma(2.0, 1.0))
    folded = pyro.sample("folded", cast(Any, dist.FoldedDistribution)(dist.Normal(0.0, 1.0)))
    f = walk.sum() + skewed + tails.sum() + folded
    pyro.sample("y", dist.Normal(f, scale).expand([len(y)]).to_event(1), obs=y)


def some_rows_hidden(y: Tensor) -> None:
    """Rows that obs_mask leaves out are latent."""
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    seen = torch.arange(len(y)) < 4
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y, obs_mask=cast(Any, seen))


class OnlyDensity(dist.TorchDistribution):
    """An exponential distribution of a user who wrote down its density alone."""

    arg_constraints: ClassVar = {"rate": constraints.positive}
    support = constraints.positive

    def __init__(self, rate: Tensor) -> None:
        self.rate = rate
        super().__init__(rate.shape, torch.Size())

    def expand(self, batch_shape: Any, _instance: Any = None) -> OnlyDensity:
        return OnlyDensity(self.rate.expand(batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.rate.log() - self.rate * value


def density_alone(y: Tensor) -> None:
    times = pyro.sample("times", cast(Any, OnlyDensity(torch.tensor([0.5, 2.0]))).to_event(1))
    pyro.sample("y", dist.Exponential(times.sum()).expand([len(y)]).to_event(1), obs=y)


class Regression(PyroModule):
    """A module with a point-estimated bias, which observes a site of a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight: Any = PyroSample(dist.Normal(torch.zeros(3), 1.0).to_event(1))
        self.bias = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor, rents: Tensor) -> None:
        f = x @ self.weight + self.bias
        with pyro.plate("flats", len(x)):
            pyro.sample("rent", dist.Normal(f, 0.5), obs=rents)


class Case(NamedTuple):
    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


def cases() -> dict[str, Case]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, generator=generator)
    schools = poutine.condition(eight_schools, {"effect": EFFECTS})
    y = torch.randn(6, generator=generator)
    counts = torch.tensor([0.0, 2.0, 1.0, 0.0, 3.0, 1.0])
    return {
        "eight schools": Case(eight_schools, (8, ERRORS), {"effects": EFFECTS}),
        "conditioned": Case(schools, (8, ERRORS)),
        "a school's effect known": Case(
            poutine.condition(eight_schools, {"mu": torch.tensor(4.0)}), (8, ERRORS, EFFECTS)
        ),
        "an effect set by do": Case(
            poutine.do(eight_schools, {"tau": torch.tensor(2.0)}), (8, ERRORS, EFFECTS)
        ),
        "decentred": Case(
            poutine.reparam(eight_schools, {"theta": LocScaleReparam(0.0)}), (8, ERRORS, EFFECTS)
        ),
        "two outcomes": Case(two_outcomes, (x, y), {"counts": counts}),
        "simplex": Case(simplex, (torch.tensor([3.0, 0.0, 2.0, 7.0]),)),
        "ordered": Case(ordered, (torch.tensor([0, 3, 1, 2, 1]),)),
        "cholesky": Case(cholesky, (torch.randn(5, 3, generator=generator),)),
        "nested": Case(nested, (torch.tensor([[1.0, 2.0], [0.0, 0.3], [0.7, 0.0]]),)),
        "time series": Case(time_series, (y[:4],)),
        "garch": Case(garch, (y, torch.tensor(0.5))),
        "bounds in a chain": Case(chain),
        "bounds in a plate": Case(bounds_in_a_plate, (y,)),
        "bounds that are data": Case(bounds_of_data, (y,)),
        "a bound that is trained": Case(trained_bound, (y,)),
        "after an if": Case(after_an_if, (y,)),
        "improper": Case(improper, (y,)),
        "density alone": Case(density_alone, (y.abs(),)),
        "matrices": Case(matrices, (y,)),
        "a mixture": Case(mixture, (y,)),
        "a masked mixture": Case(masked_mixture, (y,)),
        "loops of a plate": Case(loops, (counts,)),
        "in three plates": Case(in_three_plates, (torch.ones(4, 3, 2),)),
        "as a noise": Case(
            poutine.reparam(families, {"loc": TransformReparam(), "walk": DiscreteCosineReparam()}),
            (y,),
        ),
        "many families": Case(families, (y,)),
        "scaled and masked": Case(
            poutine.scale(poutine.mask(families, mask=cast(Any, torch.ones(()) < 0)), 0.3), (y,)
        ),
        "some rows hidden": Case(some_rows_hidden, (y,)),
        "module": Case(Regression(), (torch.randn(6, 3, generator=generator), y)),
    }


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64):
        yield


def of_case(name: str) -> tuple[Case, Joint, Tensor]:
    """A model, its joint density, and some z ``[3, P]``."""
    case = cases()[name]
    joint = Joint(case.model, case.args, case.kwargs)
    noise = torch.randn(3, joint.num_latents, generator=torch.Generator().manual_seed(1))
    return case, joint, joint.initial + 0.3 * noise


class FromZ(Messenger):
    """Give latent sites their values out of z as Pyro reaches them, by their supports there."""

    def __init__(self, z: Tensor) -> None:
        super().__init__()
        self.z, self.start, self.log_det = z, 0, torch.zeros(())

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is not None or type(msg["fn"]).__name__ == "_Subsample":
            return
        transform: Any = bijection(msg["fn"].support)  # torch's, but of matrices: see test_sites
        shape = torch.Size(transform.inverse_shape(msg["fn"].shape()))
        u = self.z[self.start : self.start + shape.numel()].reshape(shape)
        self.start += shape.numel()
        msg["value"] = transform(u)
        self.log_det = self.log_det + transform.log_abs_det_jacobian(u, msg["value"]).sum()


def by_pyro(case: Case, joint: Joint, z: Tensor) -> tuple[Tensor, Any]:
    """Log density of z by a trace of the model and the transforms of its sites, and the trace."""
    with pyro.get_param_store().scope(), FromZ(z) as of_z:
        trace = poutine.trace(case.model).get_trace(*case.args, **case.kwargs)
    assert of_z.start == joint.num_latents
    return trace.log_prob_sum() + of_z.log_det, trace


NAMES = tuple(cases())
LOOPED = ("after an if",)  # which torch does not batch over draws
DEPENDENT = {
    "garch": {"beta1"},
    "bounds in a chain": {"b", "c", "d"},
    "bounds in a plate": {"x"},
    "a bound that is trained": {"x"},
    "after an if": {"b", "c"},
}
WITHOUT_DRAWS = {
    "garch": {"mu", "alpha0", "beta1"},
    "improper": {"real", "shares", "cuts", "tril"},
    "density alone": {"times"},
    "matrices": {"tril", "square"},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_log_joint_is_pyros_with_the_jacobian(name: str) -> None:
    case, joint, z = of_case(name)
    expected = torch.stack([by_pyro(case, joint, row)[0] for row in z])
    assert_close(joint.log_joint(z), expected, rtol=1e-10, atol=1e-10)
    assert_close(joint.log_joint(z[1]), expected[1], rtol=1e-10, atol=1e-10)
    likelihood, prior = joint.log_densities(z)
    assert_close(likelihood + prior, expected, rtol=1e-10, atol=1e-10)
    assert_close(joint.log_prior(z), prior)
    assert joint.is_batched is (name not in LOOPED)


NOT_PYROS = {*DEPENDENT, *WITHOUT_DRAWS, "a mixture"}
"""Cases for whose bounds, starts or supports Pyro's own potential has no transforms."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_PYROS])
def test_the_log_joint_is_pyros_potential(name: str) -> None:
    case, joint, z = of_case(name)
    with pyro.get_param_store().scope(), torch.random.fork_rng():
        _, potential, *_ = initialize_model(case.model, case.args, dict(case.kwargs))
    for row in z:
        u = {site.name: site.unconstrained(row) for site in joint.sites}
        assert_close(-joint.log_joint(row), potential(u), rtol=1e-10, atol=1e-10)


def inner(fn: Any) -> Any:
    return inner(fn.base_dist) if hasattr(fn, "base_dist") else fn


@pytest.mark.parametrize("name", NAMES)
def test_what_the_model_computes_is_that_of_pyros_trace(name: str) -> None:
    case, joint, z = of_case(name)
    values = joint.deterministics(z)
    for number, row in enumerate(z):
        nodes = by_pyro(case, joint, row)[1].nodes
        computed = {k for k, node in nodes.items() if isinstance(inner(node.get("fn")), dist.Delta)}
        assert values.keys() == computed
        for site in values:
            assert_close(values[site][number], nodes[site]["value"])
    names = {"two outcomes": {"f"}, "decentred": {"theta"}, "as a noise": {"loc", "walk"}}
    assert values.keys() >= names.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_each_observed_site_has_its_log_likelihood(name: str) -> None:
    case, joint, z = of_case(name)
    trace = by_pyro(case, joint, z[0])[1]
    trace.compute_log_prob()
    found = joint.log_likelihoods(z)
    for site, values in found.items():
        node = trace.nodes[site]
        assert_close(values[0].sum() * node["scale"], node["log_prob_sum"])
    names = {
        "two outcomes": {"y", "count"},
        "a school's effect known": {"mu", "effect"},
        "decentred": {"effect"},  # theta is computed from its standardised site
    }
    assert found.keys() == names.get(name, found.keys())


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_pyros_density(name: str) -> None:
    case, joint, z = of_case(name)
    z = z[0].requires_grad_()
    (expected,) = torch.autograd.grad(by_pyro(case, joint, z)[0], z)
    (gradient,) = torch.autograd.grad(joint.log_joint(z), z)
    assert_close(gradient, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_values_and_draws_of_the_prior_are_in_the_support(name: str) -> None:
    case, joint, z = of_case(name)
    assert_close(joint.unconstrain(joint.constrain(z)), z, rtol=1e-6, atol=1e-6)
    draws = joint.prior_draws(5, seed=3)
    assert draws.shape == (5, joint.num_latents)
    assert_close(draws, joint.prior_draws(5, seed=3))
    values = joint.constrain(draws)
    for number, draw in enumerate(draws):
        nodes = by_pyro(case, joint, draw)[1].nodes
        for site in joint.sites:
            value = values[site.name][number]
            assert bool(nodes[site.name]["fn"].support.check(value).all())
            assert_close(value, nodes[site.name]["value"])
    assert {site.name for site in joint.latents.dependent} == DEPENDENT.get(name, set())
    assert joint.latents.without_draws == WITHOUT_DRAWS.get(name, set())
    assert joint.non_finite_terms(draws[0]) == []


def test_prior_draws_have_the_moments_of_the_prior() -> None:
    joint = Joint(eight_schools, (8, ERRORS, EFFECTS))
    values = joint.constrain(joint.prior_draws(4_000))
    assert abs(float(values["mu"].mean())) < 5 * 5 / math.sqrt(4_000)
    assert abs(float((values["tau"] < 5.0).double().mean()) - 0.5) < 5 * 0.5 / math.sqrt(4_000)
    z_scores = (values["theta"] - values["mu"][:, None]) / values["tau"][:, None]
    assert abs(float(z_scores.mean())) < 5 / math.sqrt(8 * 4_000)


def test_other_arguments_and_parameters_stand_in_for_the_first() -> None:
    case, joint, z = of_case("module")
    x, rents = case.args
    others = x + 1.0, rents.flip(0)
    moved = Joint(case.model, others)
    assert_close(joint.log_joint(z, others), moved.log_joint(z))
    bias = {"bias": torch.tensor(-2.0)}
    expected = by_hand(z[0], x, rents, -2.0)
    assert_close(joint.log_joint(z[0], params=bias), expected)
    assert joint.params["bias"].requires_grad


def by_hand(z: Tensor, x: Tensor, rents: Tensor, bias: float) -> Tensor:
    likelihood: Tensor = dist.Normal(x @ z + bias, 0.5).log_prob(rents).sum()
    prior: Tensor = dist.Normal(0.0, 1.0).log_prob(z).sum()
    return likelihood + prior


def test_a_program_is_the_joint_of_its_rows() -> None:
    def regression(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 1), 1.0).to_event(2))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, noise).to_event(1), obs=y)

    x, y = torch.randn(7, 2), torch.randn(7, 1)
    program, joint = Program(regression, x, y), Joint(regression, (x, y))
    z = program.prior_draws(4, x[:1])
    assert_close(program.log_joint(z, Batch(x, y)), joint.log_joint(z))
    value, gradient = potential_of(program)(z, x, y)
    at = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(-joint.log_joint(at).sum(), at)
    assert_close(value, -joint.log_joint(z))
    assert_close(gradient, expected)


@pytest.mark.parametrize("num_particles", [1, 3])
def test_the_elbo_of_a_plain_model_is_that_of_its_joint(num_particles: int) -> None:
    """Without a prior of a closed form it is the mean of log p(z, D) and the entropy of q."""

    def model(times: Tensor, count: Tensor) -> None:
        rate = pyro.sample("rate", dist.Gamma(2.0, 3.0).expand([2]).to_event(1))
        with pyro.plate("rows", 2):
            pyro.sample("time", dist.Exponential(rate), obs=times)
            pyro.sample("count", dist.Poisson(rate), obs=count)
        pyro.factor("tied", -(rate[0] - rate[1]).square())

    args = torch.tensor([0.4, 2.0]), torch.tensor([3.0, 1.0])
    joint, guide = Joint(model, args), AutoNormal(model).double()
    guide.setup(*args)
    loc, scale = torch.tensor([0.3, -0.4]), torch.tensor([0.2, 0.5])
    guide.move_to(loc)
    guide.scale = scale
    joint.prepare(guide)
    noise = torch.randn(num_particles, 2, generator=torch.Generator().manual_seed(0))
    params = {f"guide.{name}": value for name, value in guide.named_parameters()}
    terms = elbo(joint, guide, params, noise)
    z = loc + scale * noise
    log_joint = torch.stack([by_pyro(Case(model, args), joint, row)[0] for row in z])
    entropy = scale.log().sum() + 1 + math.log(2 * math.pi)
    assert_close(-terms.loss(1.0), log_joint.mean() + entropy, rtol=1e-10, atol=0)
    likelihood, _ = joint.log_densities(z)
    assert_close(terms.expected_log_likelihood, likelihood.mean(), rtol=1e-10, atol=0)


def test_names_of_a_network_mean_nothing() -> None:
    """``f`` and ``y`` may be latent sites, in a plate ``"data"`` too, and ``x`` is no argument."""

    def model(observed: Tensor) -> None:
        f = pyro.sample("f", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 3):
            y = pyro.sample("y", dist.Normal(f, 1.0))
            pyro.sample("obs", dist.Normal(y, 2.0), obs=observed)

    observed = torch.tensor([1.0, 2.0, 3.0])
    joint = Joint(model, (observed,))
    assert [site.name for site in joint.sites] == ["f", "y"]
    z = torch.tensor([0.3, -1.0, 0.0, 2.0])
    expected = by_pyro(Case(model, (observed,)), joint, z)[0]
    assert_close(joint.log_joint(z), expected)


def test_a_model_without_arguments_or_observations() -> None:
    joint = Joint(lambda: pyro.sample("a", dist.Gamma(2.0, 3.0)))
    z = torch.tensor([0.5])
    a = z.exp()
    assert_close(joint.log_joint(z), dist.Gamma(2.0, 3.0).log_prob(a).sum() + 0.5)
    assert_close(joint.log_joint(z, jacobian=False), dist.Gamma(2.0, 3.0).log_prob(a).sum())


def test_arguments_that_a_model_writes_to_stay_as_they_are() -> None:
    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("out", dist.Normal(w * x.add_(1.0).sum(), 1.0), obs=torch.tensor(0.5))

    x = torch.ones(2)
    joint = Joint(model, (x,))
    first, second = (float(joint.log_joint(torch.tensor([0.2]))) for _ in range(2))
    assert first == second
    assert x.tolist() == [1.0, 1.0]


def test_building_leaves_random_state_and_store() -> None:
    pyro.get_param_store().clear()
    before = torch.get_rng_state()

    def model() -> None:
        scale = pyro.param("scale", torch.tensor(2.0), constraint=constraints.positive)
        pyro.sample("a", dist.Normal(0.0, scale))

    joint = Joint(model)
    joint.prior_draws(3)
    assert torch.equal(before, torch.get_rng_state())
    assert list(pyro.get_param_store().keys()) == []
    assert_close(joint.params["scale"].detach(), torch.tensor(2.0).log())
    expected = dist.Normal(0.0, 3.0).log_prob(torch.tensor(1.0))
    assert_close(
        joint.log_joint(torch.tensor([1.0]), params={"scale": torch.tensor(3.0).log()}), expected
    )


def test_non_finite_terms_name_observed_sites() -> None:
    def model(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("rent", dist.Normal(0.0, w.exp()), obs=y)

    joint = Joint(model, (torch.tensor(1.0),))
    assert joint.non_finite_terms(torch.tensor([-2000.0])) == ["rent"]


def discrete(_: Tensor) -> None:
    pyro.sample("kind", dist.Categorical(torch.ones(2)))


def sized_by_a_site(_: Tensor) -> None:
    count = pyro.sample("count", dist.Uniform(0.0, 9.0), infer=cast(Any, {"start": 4.5}))
    pyro.sample("heights", dist.Normal(0.0, 1.0).expand([1 + int(count)]).to_event(1))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (discrete, "the latent site 'kind' is discrete"),
        (lambda x: pyro.sample("x", dist.Normal(0.0, 1.0), obs=x[0]), "no latent sample site"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(model: Any, message: str) -> None:
    with pytest.raises(SiteError, match=message):
        Joint(model, (torch.zeros(5),))


def test_a_site_whose_size_depends_on_another_is_refused_by_name() -> None:
    joint = Joint(sized_by_a_site, (torch.zeros(5),))
    message = "the site 'heights' has shape .* the number of unknowns depends on the value of a"
    assert joint.num_latents == 6
    assert bool(joint.log_joint(joint.initial).isfinite())
    with pytest.raises(SiteError, match=message):
        joint.log_joint(torch.full((6,), 2.0))
    with pytest.raises(SiteError, match=message):
        joint.prior_draws(20)


def test_values_of_a_dependent_site_need_a_run_of_the_model() -> None:
    joint = Joint(chain)
    z = joint.prior_draws(6).reshape(2, 3, -1)
    values = joint.constrain(z)
    assert [tuple(value.shape) for value in values.values()] == [(2, 3), (2, 3), (2, 3, 2), (2, 3)]
    assert bool((values["c"] > values["b"][..., None]).all())
    assert_close(joint.unconstrain(values), z)
    assert_close(joint.constrain(z[1, 2])["d"], values["d"][1, 2])
    a, b = joint.sites[:2]
    assert_close(a.value(z), values["a"])
    for method in (b.value, b.log_abs_det_jacobian):
        with pytest.raises(SiteError, match=r"'b' depends on other sites .* joint.constrain\(z\)"):
            method(z)
    with pytest.raises(SiteError, match="no value for the site 'd'"):
        joint.unconstrain({name: values[name] for name in "abc"})


def test_a_bound_follows_the_parameter_that_is_trained() -> None:
    joint = Joint(trained_bound, (torch.zeros(2),))
    z = torch.tensor([0.7])
    share = float(torch.sigmoid(z))
    for high in (2.0, 5.0):
        params = {"high": torch.tensor(high).log()}
        assert_close(joint.constrain(z, params=params)["x"], torch.tensor(high * share))
        # of x / high, which is uniform(0, 1) under any bound
        expected = torch.tensor(math.log(share * (1 - share)))
        assert_close(joint.log_prior(z, params=params), expected)


def test_improper_sites_start_as_in_stan_and_take_the_dtype_of_the_data() -> None:
    def model(y: Tensor) -> None:
        loc = pyro.sample("loc", flat(constraints.positive, 3))
        pyro.sample("y", dist.Normal(loc, 1.0).to_event(1), obs=y)

    with default_dtype(torch.float32):
        joint = Joint(model, (torch.zeros(3, dtype=torch.float64),))
    draws = joint.prior_draws(2_000)
    assert draws.dtype == torch.float64
    assert -2.0 <= float(draws.min()) < -1.99
    assert 1.99 < float(draws.max()) <= 2.0
    error = math.sqrt(16 / 12 / draws.numel())  # of the mean of uniform(-2, 2)
    assert abs(float(draws.mean())) < 5 * error
    assert joint.latents.improper == {"loc"}
