"""Models as users of Pyro write them, against closed forms and sums over a grid of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.posterior import CallPosterior
from tests.plain_pyro import default_dtype

# torch draws a Wishart again where its own test of rank fails
pytestmark = pytest.mark.filterwarnings("ignore:Singular sample detected")


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with default_dtype(torch.float64):
        yield


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).double()


@dataclass(frozen=True)
class Case:
    """A model, its arguments, and the right mean and sd of a site and log evidence."""

    model: Callable[..., Any]
    call: Call
    site: str
    mean: Tensor
    sd: Tensor
    log_evidence: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)


def linear(
    x: Tensor, y: Tensor, prior: float | Tensor, noise: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and sd of weights ~ N(0, prior^2) of columns x, and log p(y): y = x w + noise."""
    prior = torch.as_tensor(prior).expand(x.shape[1])
    precision = (x.mT / noise**2) @ x + torch.diag(prior**-2)
    covariance = precision.inverse()
    mean = covariance @ (x.mT @ y) / noise**2
    whole = (x * prior**2) @ x.mT + noise**2 * torch.eye(len(y))
    log_evidence = dist.MultivariateNormal(torch.zeros(len(y)), whole).log_prob(y)
    return mean, covariance.diagonal().sqrt(), log_evidence


def on_grid(
    log_joint: Callable[[Tensor], Tensor], low: float, high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, sd and log of the integral of a density of one number, by midpoints."""
    width = (high - low) / 4_000
    at = low + width * (torch.arange(4_000) + 0.5).double()
    logs = torch.stack([log_joint(value) for value in at])
    p = logs.softmax(0)
    mean = (p * at).sum()
    return mean, (p * (at - mean) ** 2).sum().sqrt(), logs.logsumexp(0) + math.log(width)


X = normal(20)
Y = 1 + 2 * X + 0.5 * normal(20, 1)[:, 0]


def named_regression(data: dict[str, Any], *, scale: float = 5.0, **options: Any) -> None:
    """A dict, a default, keyword arguments, and f inside the plate of the rows."""
    weights = pyro.sample("weights", dist.Normal(torch.zeros(2), scale).to_event(1))
    with pyro.plate("rows", len(data["x"])):
        f = pyro.deterministic("f", weights[..., 0] + weights[..., 1] * data["x"])
        pyro.sample("y", dist.Normal(f, options["noise"]), obs=data.get("y"))


def regression_case() -> Case:
    mean, sd, evidence = linear(torch.stack([torch.ones(20), X], 1), Y, 5.0, 0.5)
    return Case(named_regression, Call({"x": X, "y": Y}, noise=0.5), "weights", mean, sd, evidence)


def mismeasured(x_seen: Tensor, y: Tensor) -> None:
    """The x of a row is seen with an error, and is a latent site of rows."""
    with pyro.plate("rows", len(y)):
        x = pyro.sample("x", dist.Normal(0.0, 2.0))
        pyro.sample("x_seen", dist.Normal(x, 0.3), obs=x_seen)
        pyro.sample("y", dist.Normal(2 * x, 0.5), obs=y)


def mismeasured_case() -> Case:
    """Each row is a line through two points: x_seen = 1 x, y = 2 x."""
    rows = []
    for pair in zip(X, Y, strict=True):
        scaled = torch.stack(pair) / torch.tensor([0.3, 0.5])
        rows.append(linear(torch.tensor([[1 / 0.3], [2 / 0.5]]), scaled, 2.0, 1.0))
    mean, sd, evidence = (torch.stack([row[k] for row in rows]) for k in range(3))
    evidence = evidence.sum() - len(rows) * math.log(0.3 * 0.5)  # in the units of x and y
    return Case(mismeasured, Call(X, Y), "x", mean[:, 0], sd[:, 0], evidence)


def nested(y: Tensor) -> None:
    """Means of groups, of their subgroups and of rows: plates in plates."""
    with pyro.plate("groups", 3, dim=-1):
        group = pyro.sample("group", dist.Normal(0.0, 2.0))
        with pyro.plate("subgroups", 2, dim=-2):
            level = pyro.sample("level", dist.Normal(group, 1.0))
            with pyro.plate("rows", 4, dim=-3):
                pyro.sample("y", dist.Normal(level, 0.5), obs=y)


def nested_case() -> Case:
    """A subgroup's mean of 4 rows has variance 1 + .25 / 4 about its group."""
    y = 1 + normal(4, 2, 3)
    means, variance = y.mean(0), 1 + 0.25 / 4
    posterior = 1 / (1 / 4 + 2 / variance)
    return Case(
        nested,
        Call(y),
        "group",
        posterior * means.sum(0) / variance,
        torch.full((3,), posterior).sqrt(),
    )


class Recurrent(PyroModule):
    """Weights on the last state of a recurrent network that is held."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 3, batch_first=True)
        for number, value in enumerate(self.rnn.parameters()):
            value.requires_grad = False
            value.copy_(normal(*value.shape, *[1] * number).reshape(value.shape))
        self.w = PyroSample(dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    def states(self, x: Tensor) -> Tensor:
        states: Tensor = self.rnn(x[..., None])[0][:, -1]
        return states

    def forward(self, x: Tensor, y: Tensor) -> None:
        w: Any = self.w
        f = self.states(x) @ w
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(f, 0.2), obs=y)


def recurrent_case() -> Case:
    model, x = Recurrent(), normal(12, 2)
    y = x.sum(-1) / 3
    mean, sd, evidence = linear(model.states(x), y, 1.0, 0.2)
    return Case(model, Call(x, y), "w", mean, sd, evidence)


def second_order(y: Tensor) -> None:
    """An autoregression of two steps, by a loop over time."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    for t in range(2, len(y)):
        at = a[..., 0] * y[t - 1] + a[..., 1] * y[t - 2]
        pyro.sample(f"y_{t}", dist.Normal(at, 0.5), obs=y[t])


def second_order_case() -> Case:
    y = normal(9)
    mean, sd, evidence = linear(torch.stack([y[1:-1], y[:-2]], 1), y[2:], 1.0, 0.5)
    return Case(second_order, Call(y), "a", mean, sd, evidence)


def filled(x: Tensor, y: Tensor) -> None:
    """A level that a loop writes into a series of its own."""
    drift = pyro.sample("drift", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    level = torch.zeros(len(y))
    level[0] = drift[0]
    for t in range(1, len(y)):
        level[t] = level[t - 1] + drift[1] * x[t]
    with pyro.plate("times", len(y)):
        pyro.sample("y", dist.Normal(level, 0.5), obs=y)


def filled_case() -> Case:
    steps = torch.stack([torch.ones(6), torch.cat([torch.zeros(1), X[1:6]]).cumsum(0)], 1)
    mean, sd, evidence = linear(steps, Y[:6], 1.0, 0.5)
    return Case(filled, Call(X[:6], Y[:6]), "drift", mean, sd, evidence)


GAUSSIAN = (
    regression_case,
    mismeasured_case,
    nested_case,
    recurrent_case,
    second_order_case,
    filled_case,
)


@pytest.mark.parametrize("make", GAUSSIAN, ids=lambda make: make.__name__)
def test_laplace_is_exact_where_the_posterior_is_a_gaussian(
    make: Callable[[], Case], tmp_path: Path
) -> None:
    case = make()
    posterior: Any = bnn.Laplace(curvature="hessian", compile=False).run(
        case.model, case.call, progress=False
    )
    draws = posterior.sample(4_000)[case.site]
    error = case.sd / math.sqrt(4_000)
    assert ((draws.mean(0) - case.mean).abs() < 5 * error).all()
    assert ((draws.std(0) / case.sd - 1).abs() < 5 / math.sqrt(2 * 4_000)).all()
    if case.log_evidence is not None:
        assert_close(posterior.log_evidence, float(case.log_evidence), rtol=1e-6, atol=0)
    posterior.save(tmp_path / "fit.st")
    loaded = CallPosterior.load(tmp_path / "fit.st", case.model)
    assert_close(loaded.sample(9)[case.site], posterior.sample(9)[case.site], rtol=0, atol=0)


COUNTS = torch.tensor([3.0, 1.0, 4.0, 2.0]).double()
MEASURED = torch.tensor([5.0, 4.0, 6.5]).double()


def two_sites(counts: Tensor, measured: Tensor) -> None:
    """A count, in a site called obs, and a measurement of one rate."""
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("counts", len(counts)):
        pyro.sample("obs", dist.Poisson(rate), obs=counts)
    with pyro.plate("measurements", len(measured)):
        pyro.sample("measured", dist.Normal(2 * rate, 1.0), obs=measured)


def two_sites_case() -> Case:
    def log_joint(rate: Tensor) -> Tensor:
        log_p = rate.log() - rate + (COUNTS * rate.log() - rate - (COUNTS + 1).lgamma()).sum()
        return log_p - ((MEASURED - 2 * rate) ** 2 / 2 + math.log(2 * math.pi) / 2).sum()

    found = on_grid(log_joint, 0, 12)
    return Case(two_sites, Call(COUNTS, MEASURED), "rate", *found)


OUTCOMES = torch.tensor([[3.0, 5, 0], [4, 3, 1], [1, 7, 0]]).double()


def outcomes(counts: Tensor) -> None:
    p = pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])))
    with pyro.plate("rows", len(counts)):
        pyro.sample("counts", dist.Multinomial(8, p), obs=counts)


def outcomes_case() -> Case:
    """Dirichlet again, and its constant by log-gamma functions."""
    before, after = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([9.0, 17.0, 4.0])
    total = after.sum()
    sd = (after * (total - after) / (total**2 * (total + 1))).sqrt()

    def log_constant(a: Tensor) -> Tensor:
        return a.lgamma().sum() - a.sum().lgamma()

    ways = ((OUTCOMES.sum(1) + 1).lgamma() - (OUTCOMES + 1).lgamma().sum(1)).sum()
    evidence = log_constant(after) - log_constant(before) + ways
    return Case(outcomes, Call(OUTCOMES), "p", after / total, sd, evidence)


GRADES, AT = (
    torch.tensor([0, 2, 1, 0, 2, 2]),
    torch.tensor([-1.0, 0.5, 0.2, -0.4, 1.0, 2.0]).double(),
)
LIMITS = torch.tensor([-0.7, 0.9]).double()


def graded(at: Tensor, grades: Tensor) -> None:
    """Grades by limits of a logistic number, whose probabilities Pyro writes into a tensor."""
    slope = pyro.sample("slope", dist.Normal(0.0, 2.0))
    with pyro.plate("rows", len(at)):
        pyro.sample("grades", dist.OrderedLogistic(slope * at, LIMITS), obs=grades)


def graded_case() -> Case:
    def log_joint(slope: Tensor) -> Tensor:
        below = (LIMITS - slope * AT[:, None]).sigmoid()
        edges = torch.cat([torch.zeros(len(AT), 1), below, torch.ones(len(AT), 1)], 1)
        p = edges.diff(dim=1)[torch.arange(len(AT)), GRADES]
        return p.log().sum() - slope**2 / 8 - math.log(2 * math.pi * 4) / 2

    return Case(graded, Call(AT, GRADES), "slope", *on_grid(log_joint, -8, 16))


TIMES = torch.linspace(0, 2, 5).double()
LEFT = torch.tensor([1.02, 0.71, 0.45, 0.33, 0.21]).double()


def decay(left: Tensor, solve: Callable[[Callable[..., Tensor]], Tensor]) -> None:
    """A differential equation of one rate, seen with noise."""
    rate = pyro.sample("rate", dist.LogNormal(0.0, 0.5))
    u = solve(lambda _, u: -rate * u)
    pyro.sample("left", dist.Normal(u, 0.05).to_event(1), obs=left)


def by_loop(slope: Callable[..., Tensor]) -> Tensor:
    """Runge and Kutta's four slopes, in steps of .25, by hand."""
    u, step, found = torch.tensor(1.0), 0.25, []
    for number in range(9):
        if number % 2 == 0:
            found.append(u)
        a = slope(0.0, u)
        b = slope(0.0, u + step / 2 * a)
        c = slope(0.0, u + step / 2 * b)
        u = u + step / 6 * (a + 2 * b + 2 * c + slope(0.0, u + step * c))
    return torch.stack(found)


def decay_case(solve: Callable[[Callable[..., Tensor]], Tensor] = by_loop) -> Case:
    """Against the solution exp(-rate t)."""

    def log_joint(rate: Tensor) -> Tensor:
        error = (LEFT - (-rate * TIMES).exp()) / 0.05
        log_p = -(error**2 + math.log(2 * math.pi)).sum() / 2 - len(LEFT) * math.log(0.05)
        log_rate = rate.log()
        return log_p - log_rate**2 / 0.5 - log_rate - math.log(2 * math.pi * 0.25) / 2

    return Case(decay, Call(LEFT, solve), "rate", *on_grid(log_joint, 0, 4))


SEEN = torch.tensor([0.4, 1.1, 2.0, 0.3, 1.7]).double()
CENSORED = torch.tensor([2.5, 2.5]).double()


def survival(seen: Tensor, censored: Tensor, way: str) -> None:
    """Times that were seen, and times after which nobody looked: by a factor, or by a mask."""
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    if way == "factor":
        with pyro.plate("seen", len(seen)):
            pyro.sample("time", dist.Exponential(rate), obs=seen)
        pyro.factor("censored", -(rate * censored).sum())
        return
    times = torch.cat([seen, censored])
    is_seen: Any = torch.arange(len(times)) < len(seen)
    with pyro.plate("all", len(times)):
        with poutine.mask(mask=is_seen):
            pyro.sample("time", dist.Exponential(rate), obs=times)
        with poutine.mask(mask=~is_seen):
            pyro.sample("later", dist.Bernoulli((-rate * times).exp()), obs=torch.ones(len(times)))


def survival_case(way: str) -> Case:
    """Gamma(2 + deaths, 1 + all time)."""
    shape, rate = torch.tensor(2.0 + len(SEEN)), 1 + SEEN.sum() + CENSORED.sum()
    evidence = shape.lgamma() - shape * rate.log()  # Gamma(2, 1) has the constant 1
    call = Call(SEEN, CENSORED, way=way)
    return Case(survival, call, "rate", shape / rate, shape.sqrt() / rate, evidence)


PAIRS = torch.tensor([[0.5, 0.9], [-1.2, -0.4], [0.3, 0.1], [1.5, 0.6], [-0.2, -1.0]]).double()


def log_of_pairs(r: Tensor) -> Tensor:
    """Log density of pairs with variances 1 and covariance r."""
    x, y = PAIRS.T
    square = (x * x - 2 * r * x * y + y * y) / (1 - r * r)
    logs: Tensor = -(square + (1 - r * r).log()).sum() / 2
    return logs - len(PAIRS) * math.log(2 * math.pi)


def correlated(pairs: Tensor) -> None:
    factor = pyro.sample("factor", dist.LKJCholesky(2, 2.0))
    pyro.deterministic("r", factor[..., 1, 0])
    with pyro.plate("rows", len(pairs)):
        pyro.sample("pairs", dist.MultivariateNormal(torch.zeros(2), scale_tril=factor), obs=pairs)


def correlated_case() -> Case:
    """Two correlated numbers: p(r) = 3 (1 - r^2) / 4."""
    found = on_grid(lambda r: log_of_pairs(r) + (0.75 * (1 - r * r)).log(), -1, 1)
    return Case(correlated, Call(PAIRS), "r", *found)


def precision(pairs: Tensor) -> None:
    """A precision matrix is Wishart, and the posterior is: conjugate."""
    matrix = pyro.sample("precision", dist.Wishart(torch.tensor(4.0), torch.eye(2)))
    with pyro.plate("rows", len(pairs)):
        seen = dist.MultivariateNormal(torch.zeros(2), precision_matrix=matrix)
        pyro.sample("pairs", seen, obs=pairs)


def precision_case() -> Case:
    r"""Wishart(nu + N, (I + S)^-1): means nu v_ij, variances nu (v_ij^2 + v_ii v_jj)."""
    count, scatter = len(PAIRS), PAIRS.T @ PAIRS
    v, nu = (torch.eye(2) + scatter).inverse(), torch.tensor(4.0 + len(PAIRS))
    sd = (nu * (v**2 + v.diagonal().outer(v.diagonal()))).sqrt()
    evidence = (
        (nu / 2).mvlgamma(2)
        - torch.tensor(2.0).mvlgamma(2)
        + nu / 2 * v.logdet()
        - count * math.log(math.pi)
    )
    return Case(precision, Call(PAIRS), "precision", nu * v, sd, evidence)


def variances(pairs: Tensor) -> None:
    """Variances on a diagonal that ``torch.diag_embed`` fills."""
    v = pyro.sample("v", dist.InverseGamma(3.0, 2.0).expand([2]).to_event(1))
    covariance = torch.diag_embed(v)
    with pyro.plate("rows", len(pairs)):
        seen = dist.MultivariateNormal(torch.zeros(2), covariance_matrix=covariance)
        pyro.sample("pairs", seen, obs=pairs)


def variances_case() -> Case:
    """Inverse gamma (3 + N / 2, 2 + S / 2) of each."""
    shape, rate = torch.tensor(3.0 + len(PAIRS) / 2), 2 + PAIRS.square().sum(0) / 2
    mean = rate / (shape - 1)
    evidence = (
        shape.lgamma()
        - torch.tensor(3.0).lgamma()
        + 3 * math.log(2)
        - shape * rate.log()
        - len(PAIRS) / 2 * math.log(2 * math.pi)
    ).sum()
    return Case(variances, Call(PAIRS), "v", mean, mean / (shape - 2).sqrt(), evidence)


def indefinite(pairs: Tensor) -> None:
    """A covariance without a Cholesky factor at half of what the prior draws."""
    r = pyro.sample("r", dist.Uniform(-2.0, 2.0))
    row = torch.stack([torch.ones_like(r), r], -1)
    covariance = torch.stack([row, row.flip(-1)], -2)
    factor = torch.linalg.cholesky(covariance)
    with pyro.plate("rows", len(pairs)):
        pyro.sample("pairs", dist.MultivariateNormal(torch.zeros(2), scale_tril=factor), obs=pairs)


def indefinite_case() -> Case:
    found = on_grid(lambda r: log_of_pairs(r) - math.log(4), -1, 1)
    return Case(indefinite, Call(PAIRS), "r", *found)


def zeros(y: Tensor) -> None:
    gate = pyro.sample("gate", dist.Beta(2.0, 3.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.ZeroInflatedPoisson(2.0, gate=gate), obs=y)


def zeros_case() -> Case:
    """A row is zero with g + (1 - g) e^-2, else Poisson with (1 - g)."""
    y = torch.tensor([0.0, 0, 0, 2, 3, 0, 1, 0])
    counts = y[y > 0]

    def log_joint(gate: Tensor) -> Tensor:
        log_p = math.log(12) + gate.log() + 2 * (1 - gate).log()
        log_p = log_p + (y == 0).sum() * (gate + (1 - gate) * math.exp(-2)).log()
        poisson = counts * math.log(2) - 2 - (counts + 1).lgamma()
        return log_p + ((1 - gate).log() + poisson).sum()

    return Case(zeros, Call(y), "gate", *on_grid(log_joint, 0, 1))


MODELS: dict[str, Callable[[], Case]] = {
    "a count and a measurement": two_sites_case,
    "censored by a factor": lambda: survival_case("factor"),
    "censored by a mask": lambda: survival_case("mask"),
    "LKJ and MultivariateNormal": correlated_case,
    "a covariance that is none": indefinite_case,
    "zero-inflated": zeros_case,
    "counts of outcomes": outcomes_case,
    "grades": graded_case,
    "a Wishart precision": precision_case,
    "variances on a diagonal": variances_case,
}


@pytest.mark.parametrize("name", MODELS)
def test_smc_has_the_moments_and_the_evidence(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = MODELS[name]()
    particles: Any = bnn.SMC(num_particles=500, compile=False).run(
        case.model, case.call, progress=False
    )
    draws = particles.sample(500)[case.site]
    error = 5 * case.sd / math.sqrt(100)  # a fifth of the particles count as independent
    assert ((draws.mean(0) - case.mean).abs() < error).all()
    assert case.log_evidence is not None
    difference = particles.log_evidence - float(case.log_evidence)
    assert abs(difference) < 5 * particles.log_evidence_error
    assert "cannot be batched" not in caplog.text


def flat(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.ImproperUniform(constraints.real, (), ()))
    sd = pyro.sample("sd", dist.ImproperUniform(constraints.positive, (), ()))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mean, sd), obs=y)


def flat_case() -> Case:
    """Mean ~ t: the variance is inverse gamma (N / 2 - 1, S / 2) under a flat sd."""
    sum_of_squares = ((Y - Y.mean()) ** 2).sum()
    variance = sum_of_squares / (len(Y) - 4) / len(Y)
    return Case(flat, Call(Y), "mean", Y.mean(), variance.sqrt())


@pytest.mark.parametrize(
    "make",
    [
        flat_case,
        outcomes_case,
        indefinite_case,
        graded_case,
        precision_case,
        variances_case,
        decay_case,
    ],
)
def test_nuts_has_the_moments(make: Callable[[], Case]) -> None:
    case = make()
    compiled = make is not indefinite_case
    nuts = bnn.NUTS(num_samples=300, warmup_steps=150, compile="auto" if compiled else False)
    posterior = nuts.run(case.model, case.call, progress=False)
    draws = posterior.sample(1_200)[case.site]
    table = posterior.summary(1_200)
    assert table["r_hat"].dropna().max() < 1.05
    ess = min(value for site, value in table["ess_bulk"].items() if str(site).startswith(case.site))
    assert ((draws.mean(0) - case.mean).abs() < 5 * case.sd / math.sqrt(ess)).all()


@pytest.mark.parametrize(
    "make",
    [outcomes_case, graded_case, filled_case, precision_case, variances_case, correlated_case],
)
def test_sticks_masks_and_parts_are_written_in_c(
    make: Callable[[], Case], caplog: pytest.LogCaptureFixture
) -> None:
    case = make()
    with caplog.at_level("DEBUG", logger="pyro_bnn"):
        nuts = bnn.NUTS(num_samples=20, warmup_steps=20, num_chains=1, compile=True)
        nuts.run(case.model, case.call, progress=False)
    assert "not written in C" not in caplog.text
    assert "cannot be batched" not in caplog.text


def test_torchdiffeq_is_a_solver_as_any_other() -> None:
    """Of fixed steps it is compiled, and of steps that it chooses it runs uncompiled."""
    torchdiffeq = pytest.importorskip("torchdiffeq", reason="torchdiffeq is not installed")

    def fixed(slope: Callable[..., Tensor]) -> Tensor:
        options = {"step_size": 0.25}
        u: Tensor = torchdiffeq.odeint(
            slope, torch.tensor(1.0), TIMES, method="rk4", options=options
        )
        return u

    def chosen(slope: Callable[..., Tensor]) -> Tensor:
        u: Tensor = torchdiffeq.odeint(slope, torch.tensor(1.0), TIMES)
        return u

    svi = bnn.SVI(bnn.guides.AutoNormal, num_steps=300, learning_rate=0.05)
    for solve in (fixed, chosen):
        case = decay_case(solve)
        posterior: Any = svi.run(case.model, case.call, progress=False)
        draws = posterior.sample(1_000)["rate"]
        assert abs(float(draws.mean() - case.mean)) < 0.3 * float(case.sd)
        assert abs(float(draws.std() / case.sd) - 1) < 0.2
