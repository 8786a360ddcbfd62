"""What Pyro users do with guides: plates of particles, subsampled and enumerated sites, lists.

Beside models whose ELBO is known, the laws are that a vectorised estimate is the mean of those of
its draws, one at a time, and that estimates from the blocks of a partition average to the whole.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    SVI,
    JitTrace_ELBO,
    Predictive,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    config_enumerate,
)
from pyro.infer.autoguide import AutoDiscreteParallel, AutoGuideList
from pyro.infer.autoguide import AutoNormal as StockNormal
from pyro.infer.importance import vectorized_importance_weights
from pyro.optim import Adam  # type: ignore[attr-defined]  # made at import time
from torch import Tensor
from torch.distributions import constraints
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import likelihoods, models, priors
from pyro_bnn.errors import ModelError, OptionError, SiteError
from pyro_bnn.guides import (
    AutoDelta,
    AutoMultivariateNormal,
    AutoNormal,
    AutoNormalMixture,
    Guide,
)
from pyro_bnn.priors.hierarchy import Hierarchy
from pyro_bnn.program import Program
from tests import laws, plain_pyro
from tests.collection import EVERY_KIND, OF_ENGINES
from tests.laws import MakeGuide, one
from tests.oracle import linear_gaussian
from tests.test_laws import MODELS, RANK1, SMALL

NUM_PARTICLES = 3
Model = Callable[..., Any]

# of no matrices, in these models
ON_VECTORS = {
    name: SMALL.get(name, make)
    for name, make in {**EVERY_KIND, **OF_ENGINES}.items()
    if name not in MODELS and "dropout" not in name
}


def columns(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A model that broadcasts: a matrix, sites of many supports, and a plate of two groups.

    f is x w' summed over the rows of w, plus numbers of the other sites.
    """
    w = pyro.sample("w", dist.Laplace(one(0.0), one(1.0)).expand([2, 3]).to_event(2))
    noise = pyro.sample("noise", dist.HalfNormal(one(1.0)))
    mixing = pyro.sample("mixing", dist.Dirichlet(torch.ones(3, dtype=torch.float64) * 2))
    with pyro.plate("groups", 2, dim=-1):
        gain = pyro.sample("gain", dist.LogNormal(one(-0.5), one(0.3)))
        simplex = pyro.sample("simplex", dist.Dirichlet(torch.ones(2, 3, dtype=torch.float64)))
    f = torch.einsum("...oi,ni->...n", w, x)  # [K, 1, N] of K particles
    f = f.squeeze(-2) if f.ndim > 1 else f
    f = f + mixing[..., 0] + (gain * simplex[..., 0]).sum(-1, keepdim=True)
    with pyro.plate("data", len(x), dim=-1):
        sampled: Tensor = pyro.sample("y", dist.Normal(f, noise), obs=y)
    return sampled


def one_by_one(model: Model, guide: Guide, drawn: Any, *args: Tensor) -> Tensor:
    """Minus the ELBO's terms ``[K]`` of a guide's K draws, each by itself."""
    first: Any = poutine.trace(guide).get_trace(*args).nodes
    nodes: Mapping[str, Any] = drawn.nodes
    losses = []
    for k in range(NUM_PARTICLES):
        values = {}
        for name in drawn.stochastic_nodes:
            value, fn = nodes[name]["value"], nodes[name]["fn"]
            if type(fn).__name__ != "_Subsample" and not isinstance(fn, dist.Delta):
                values[name] = value.reshape(NUM_PARTICLES, *first[name]["value"].shape)[k]
        single = poutine.trace(poutine.condition(guide, data=values)).get_trace(*args)
        at: Any = {name: node["value"] for name, node in single.nodes.items() if "value" in node}
        joint = poutine.trace(poutine.condition(model, data=at)).get_trace(*args)
        losses.append(torch.as_tensor(single.log_prob_sum() - joint.log_prob_sum()))
    return torch.stack(losses)


def law_of_particles(model: Model, guide: Guide, x: Tensor, y: Tensor) -> None:
    """The vectorised loss is the mean of those of its draws, which are not all the same."""
    elbo = Trace_ELBO(num_particles=NUM_PARTICLES, vectorize_particles=True, max_plate_nesting=1)
    with torch.no_grad():
        torch.manual_seed(1)
        loss = elbo.loss(model, guide, x, y)
        torch.manual_seed(1)
        with poutine.trace() as tracer, pyro.plate("particles", NUM_PARTICLES, dim=-2):
            guide(x, y)
        losses = one_by_one(model, guide, tracer.trace, x, y)
    assert_close(torch.tensor(loss, dtype=losses.dtype), losses.mean())
    assert (losses.std() > 1e-6) == (guide.noise_dim > 0)


# --- draws at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*EVERY_KIND, *OF_ENGINES])
def test_particles_at_once_are_those_one_by_one(name: str) -> None:
    make: MakeGuide = SMALL.get(name) or {**EVERY_KIND, **OF_ENGINES}[name]
    oracle = linear_gaussian()
    given = laws.Problem("columns", columns, oracle.x, oracle.y, lambda z: z)  # type: ignore[arg-type]
    guide = laws.made(make, given, noise=0.3)
    law_of_particles(columns, guide, oracle.x, oracle.y)


@pytest.mark.parametrize("name", ["one component", "mixture"])
def test_particles_of_rank1_mixtures_are_those_one_by_one(name: str) -> None:
    given = laws.problem("rank-1")
    law_of_particles(given.model, laws.made(RANK1[name], given), given.x, given.y)


OURS = [name for name in plain_pyro.CASES if name not in ("user-module", "plain-function", "flat")]
LIKELIHOODS: dict[str, Callable[[], Any]] = {
    "poisson": likelihoods.Poisson,
    "student-t": lambda: likelihoods.StudentT(df=dist.Gamma(2.0, 0.1)),
}


@pytest.mark.parametrize("name", OURS)
def test_particles_of_our_models_are_those_one_by_one(name: str) -> None:
    case = plain_pyro.CASES[name]
    with plain_pyro.default_dtype(torch.float64):
        model, (x, y) = case.build(), plain_pyro.data(case.target)
        law_of_particles(model, made(AutoMultivariateNormal, model, x), x, y)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("num_outputs", [1, 2])
def test_particles_of_our_likelihoods_are_those_one_by_one(
    likelihood: str, num_outputs: int
) -> None:
    with plain_pyro.default_dtype(torch.float64):
        model = plain_pyro.mlp(LIKELIHOODS[likelihood], num_outputs)()
        x, y = plain_pyro.data(num_outputs)
        law_of_particles(model, made(AutoNormal, model, x), x, y.abs().round())


NETWORKS: dict[str, Callable[[], Any]] = {
    "linear regression": lambda: models.LinearRegression(3),
    "deep linear": lambda: models.DeepLinear(3, hidden=(2,)),
    "scales of a hierarchy": lambda: models.MLP(3, hidden=(2,), prior=priors.HalfCauchyScale()),
    "horseshoe": lambda: models.MLP(3, hidden=(2,), prior=priors.Horseshoe()),
    "hierarchy of any network": lambda: models.bayesian(
        plain_pyro.linear_net(), priors.HalfCauchyScale()
    ),
    "dropout": lambda: models.bayesian_dropout(
        torch.nn.Sequential(plain_pyro.linear_net(), torch.nn.Dropout(0.3))
    ),
    "point estimates": lambda: models.bayesian(plain_pyro.linear_net(), {"2.*": priors.Normal()}),
    "held noise": lambda: pyro.condition(
        models.MLP(3, hidden=(2,)), data={"likelihood.scale": one(0.4)}
    ),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_particles_of_our_networks_are_those_one_by_one(network: str) -> None:
    with plain_pyro.default_dtype(torch.float64):
        model, (x, y) = NETWORKS[network](), plain_pyro.data()
        law_of_particles(model, made(AutoNormal, model, x), x, y)


def made(make: MakeGuide, model: Any, x: Tensor) -> Guide:
    guide = make(model)
    guide.setup(x[:1])
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return guide


@pytest.mark.parametrize("name", ["heteroscedastic", "categorical", "bayesian-conv"])
def test_predictions_at_once_are_those_one_by_one(name: str) -> None:
    case = plain_pyro.CASES[name]
    with plain_pyro.default_dtype(torch.float64):
        model, (x, y) = case.build(), plain_pyro.data(case.target)
        guide = made(AutoMultivariateNormal, model, x)
        draws = Predictive(guide, num_samples=4, parallel=True)(x)
        sites = {n: v for n, v in draws.items() if not n.startswith("AutoMultivariateNormal")}
        program = Program(model, x, y)
        assert {n: v.shape for n, v in sites.items()} == {
            site.name: (4, *site.shape) for site in program.sites
        }
        f = {}
        for parallel in (False, True):
            found = Predictive(model, sites, return_sites=("f", "y"), parallel=parallel)(x)
            f[parallel] = found["f"]
            assert found["f"].shape == (4, 1, *program.function(program.initial, x).shape)
            assert found["y"].shape[:2] == (4, 12)
        assert_close(f[True], f[False])
        z = program.unconstrain({site.name: sites[site.name] for site in program.sites})
        assert_close(f[True].squeeze(1), program.function(z, x))
        whole = Predictive(model, guide=guide, num_samples=5, parallel=True)(x)
        assert whole["f"].shape == (5, 1, 12, f[True].shape[-1])
        assert bool((whole["f"][0] != whole["f"][1]).any())


def test_predictions_of_several_targets_have_a_noise_each() -> None:
    model, (x, y) = plain_pyro.CASES["normal-two-targets"].build(), plain_pyro.data(2)
    sites = {s.name: torch.zeros(2_000, *s.shape) for s in Program(model, x, y).sites}
    sites["likelihood.scale"] = torch.tensor([0.1, 3.0]).expand(2_000, 2)
    drawn = Predictive(model, sites, return_sites=("y",), parallel=True)(x)["y"]
    assert drawn.shape == (2_000, 12, 2)
    assert_close(drawn.std((0, 1)), torch.tensor([0.1, 3.0]), rtol=0.05, atol=0)


def test_importance_weights_of_an_exact_posterior_are_the_evidence() -> None:
    oracle = linear_gaussian()
    model = models.LinearRegression(
        3, prior=priors.Normal(1.3), likelihood=likelihoods.Normal(0.5)
    ).double()
    guide = AutoMultivariateNormal(model)
    guide.setup(oracle.x)
    guide.to(torch.float64)
    guide.set_moments(oracle.mean, oracle.covariance)
    weights, _, _ = vectorized_importance_weights(
        model, guide, oracle.x, oracle.y, num_samples=7, max_plate_nesting=1
    )
    assert_close(weights.double(), torch.full((7,), oracle.log_evidence).double())


@pytest.mark.slow("about a second")
def test_a_fit_by_particles_at_once() -> None:
    """Pyro's own optimiser and 50 particles: medians and quantiles of the prior are found."""

    def model() -> None:
        pyro.sample("x", dist.Normal(one(1.0), one(2.0)))
        pyro.sample("y", dist.LogNormal(one(0.5), one(1.0)))

    for make in (AutoNormal, AutoMultivariateNormal):
        guide = make(model)
        elbo = Trace_ELBO(num_particles=50, vectorize_particles=True)
        svi = SVI(model, guide, Adam({"lr": 0.1}), elbo)
        for _ in range(150):
            svi.step()
        levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        normal = torch.distributions.Normal(one(0.0), one(1.0)).icdf(levels)
        found = guide.quantiles([0.1, 0.5, 0.9])
        assert_close(found["x"], 1 + 2 * normal, rtol=0, atol=0.3)
        assert_close(found["y"].log(), 0.5 + normal, rtol=0, atol=0.2)
        assert_close(guide.median()["y"], found["y"][1])


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO, JitTrace_ELBO])
def test_elbos_train_the_parameters_of_model_and_guide_by_particles(elbo: Any) -> None:
    with plain_pyro.default_dtype(torch.float64):
        model: Any = models.MLP(3, hidden=(2,))
        if elbo is not JitTrace_ELBO:  # under which torch calls no network with other weights
            model = models.bayesian(plain_pyro.linear_net(), {"2.*": priors.Normal()})
        x, y = plain_pyro.data()
        guide = made(AutoNormal, model, x)
        before = [p.detach().clone() for p in (*model.parameters(), *guide.parameters())]
        loss = elbo(num_particles=2, vectorize_particles=True, max_plate_nesting=1)
        with jit_warnings_left_out():
            SVI(model, guide, Adam({"lr": 0.01}), loss).step(x, y)
        for parameter, value in zip(
            (*model.parameters(), *guide.parameters()), before, strict=True
        ):
            assert bool((parameter.detach() != value).all())


@contextmanager
def jit_warnings_left_out() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Trac", category=Warning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def test_a_plate_of_draws_leaves_the_last_dimension_to_the_rows() -> None:
    model, (x, y) = models.MLP(3, hidden=(2,)), plain_pyro.data()
    refused = pytest.raises(ModelError, match='dimension -1, which is that of the plate "data"')
    with refused, pyro.plate("draws", 4, dim=-1):
        model(x, y)


def test_centred_hierarchies_are_refused_under_a_plate_of_draws() -> None:
    model = models.MLP(3, hidden=(2,), prior=priors.HalfCauchyScale(centred=True))
    x, y = plain_pyro.data()
    elbo = Trace_ELBO(num_particles=2, vectorize_particles=True)
    with pytest.raises(ModelError, match=r"prior of layers.0.weight.value .* as in a centred hier"):
        elbo.loss(model, AutoNormal(model), x, y)


class TwoLevels(Hierarchy):
    """A half-Cauchy scale as two inverse gammas, the second given the first."""

    def sample_scale(self, name: str) -> Tensor:
        rate = pyro.sample(f"{name}.rate", dist.InverseGamma(one(0.5), one(1.0)))
        return pyro.sample(f"{name}.variance", dist.InverseGamma(one(0.5), 1 / rate)).sqrt()


class OfTwoLevels:
    """Its prior."""

    def hierarchy(self, shape: torch.Size) -> Hierarchy:
        return TwoLevels(shape)


def test_priors_that_depend_on_another_site_are_refused_under_a_plate_of_draws() -> None:
    with plain_pyro.default_dtype(torch.float64):
        prior: Any = OfTwoLevels()
        model, (x, y) = models.MLP(3, hidden=(2,), prior=prior), plain_pyro.data()
        elbo = Trace_ELBO(num_particles=2, vectorize_particles=True)
        with pytest.raises(ModelError, match=r"prior of layers.0.weight.variance depends on anot"):
            elbo.loss(model, AutoNormal(model), x, y)


def test_priors_of_an_earlier_fit_under_a_plate_of_draws() -> None:
    with plain_pyro.default_dtype(torch.float64):
        model, (x, y) = models.MLP(3, hidden=(2,)), plain_pyro.data()
        engine = bnn.SVI(AutoNormal, num_steps=2, compile=False)
        earlier = engine.run(model, (x, y), progress=False)
        carried = models.MLP(3, hidden=(2,), prior={"*": priors.FromPosterior(earlier)})
        law_of_particles(carried, made(AutoNormal, carried, x), x, y)
        later = priors.continued(model, earlier)
        with pytest.raises(OptionError, match="outer plate of draws, leave vectorize_particles"):
            law_of_particles(later, made(AutoNormal, later, x), x, y)


# --- plates of the user's, subsampled -------------------------------------------------------------

NUM_ROWS, SIZE = 6, 2
ROWS = torch.linspace(-1.5, 2.0, NUM_ROWS, dtype=torch.float64)


def local(x: Tensor, subsample: Tensor | None = None, *, full_size: int = NUM_ROWS) -> None:
    """A real number, a positive one and shares a row: x ~ N(z + log gain + share, 1)."""
    with pyro.plate("rows", full_size, subsample=subsample, dim=-1):
        z = pyro.sample("z", dist.Normal(one(0.0), one(1.0)))
        gain = pyro.sample("gain", dist.LogNormal(one(0.3), one(0.5)))
        share = pyro.sample("share", dist.Dirichlet(torch.ones(3, dtype=torch.float64)))
        pyro.sample("x", dist.Normal(z + gain.log() + share[..., 0], one(1.0)), obs=x)


def same_rows(_: Tensor, subsample: Tensor | None = None, *, full_size: int = NUM_ROWS) -> Any:
    return pyro.plate("rows", full_size, subsample=subsample, dim=-1)


PARTITION = torch.tensor([[4, 0], [1, 5], [3, 2]])


@pytest.mark.parametrize("name", [name for name in ON_VECTORS if name != "auto-normal"])
def test_blocks_of_rows_average_to_the_whole(name: str) -> None:
    """Of the same draw of all N rows, which a joint guide makes whatever block is looked at."""
    guide = ON_VECTORS[name](local)
    guide.create_plates = same_rows
    block = PARTITION[0]
    guide.setup(ROWS[block], block, full_size=NUM_ROWS)
    guide.to(torch.float64)
    assert guide.num_latents == (1 + 1 + 2) * NUM_ROWS
    assert guide.latents is not None
    start = guide.latents.constrain(guide.centre())
    assert {name: tuple(value.shape) for name, value in start.items()} == {
        "z": (6,),
        "gain": (6,),
        "share": (6, 3),
    }
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        state = torch.get_rng_state()

        def loss(rows: Tensor) -> Tensor:
            torch.set_rng_state(state)
            return torch.tensor(Trace_ELBO().loss(local, guide, ROWS[rows], rows))

        blocks = torch.stack([loss(rows) for rows in PARTITION])
        assert_close(blocks.mean(), loss(torch.arange(NUM_ROWS)), rtol=1e-6, atol=1e-6)
        assert float(blocks.std()) > 1e-3


def test_local_latents_have_the_closed_form_of_their_rows() -> None:
    """At the posterior of each row the estimate of every block is exact: N/B of its evidence."""

    def model(x: Tensor, subsample: Tensor) -> None:
        with pyro.plate("rows", NUM_ROWS, subsample=subsample, dim=-1):
            z = pyro.sample("z", dist.Normal(one(0.0), one(1.0)))
            pyro.sample("x", dist.Normal(z, one(1.0)), obs=x)

    guide = AutoNormal(
        model, create_plates=lambda _, rows: pyro.plate("rows", NUM_ROWS, subsample=rows, dim=-1)
    )
    guide.setup(ROWS[PARTITION[0]], PARTITION[0])
    guide.to(torch.float64)
    guide.move_to(ROWS / 2)
    guide.set_sds(torch.full_like(ROWS, 0.5**0.5))
    evidence = torch.distributions.Normal(one(0.0), one(2.0**0.5)).log_prob(ROWS)
    for rows in PARTITION:
        loss = Trace_ELBO(num_particles=2).loss(model, guide, ROWS[rows], rows)
        assert loss == pytest.approx(-float(evidence[rows].sum()) * NUM_ROWS / SIZE)
        pair = Trace_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1)
        assert pair.loss(model, guide, ROWS[rows], rows) == pytest.approx(loss)
    with pytest.raises(SiteError, match="the model subsamples latent sites"):
        guide.kl()


def test_rows_drawn_by_the_guides_plate_are_those_of_the_model() -> None:
    def model(x: Tensor) -> None:
        with pyro.plate("rows", NUM_ROWS, subsample_size=SIZE, dim=-1) as rows:
            z = pyro.sample("z", dist.Normal(one(0.0), one(1.0)))
            pyro.sample("x", dist.Normal(z, one(1.0)), obs=x[rows])

    for make in (AutoDelta, AutoNormal, AutoMultivariateNormal):
        guide = make(model)
        seen: set[int] = set()
        for _ in range(20):
            drawn = poutine.trace(guide).get_trace(ROWS)
            nodes: Any = poutine.trace(poutine.replay(model, trace=drawn)).get_trace(ROWS).nodes
            rows = nodes["rows"]["value"]
            assert_close(nodes["x"]["value"], ROWS[rows])
            if make is AutoDelta:
                assert_close(nodes["z"]["value"], guide.loc.detach()[rows].to(ROWS))
            seen |= set(rows.tolist())
        assert seen == set(range(NUM_ROWS))


def test_plates_in_sequence() -> None:
    def model() -> None:
        for i in pyro.plate("rows", 3):
            pyro.sample(f"z{i}", dist.Normal(one(float(i)), one(1.0)))

    guide = AutoMultivariateNormal(model)
    guide.setup()
    guide.to(torch.float64)
    guide.set_moments(torch.arange(3.0, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    assert Trace_ELBO().loss(model, guide) == pytest.approx(0.0, abs=1e-9)


# --- lists of guides ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [AutoDelta, AutoNormal, AutoMultivariateNormal])
def test_a_guide_in_a_list_of_stock_pyros(make: type[Guide]) -> None:
    oracle = linear_gaussian()
    guide: Any = AutoGuideList(columns)
    rest = ["noise", "mixing", "gain", "simplex"]
    guide.append(make(poutine.block(columns, expose=["w"])))
    guide.append(AutoMultivariateNormal(poutine.block(columns, expose=["noise"])))
    guide.append(StockNormal(poutine.block(columns, hide=["w", "noise"])))
    drawn = poutine.trace(guide).get_trace(oracle.x, oracle.y)
    own = {*drawn.stochastic_nodes} & {"w", *rest}
    assert own == {"w", *rest}
    expected = torch.zeros((), dtype=torch.float64)
    nodes: Any = drawn.nodes
    if make is not AutoDelta:
        expected = expected + guide[0].log_prob(nodes["w"]["value"].reshape(-1))
    log_noise = nodes["noise"]["value"].log()
    expected = expected + guide[1].log_prob(log_noise.reshape(1)) - log_noise
    stock = drawn.copy()
    for name in [n for n in nodes if n == "w" or n == "noise" or "MultivariateNormal" in n]:
        stock.remove_node(name)
    for name in [n for n in stock.nodes if n.startswith("AutoGuideList.0")]:
        stock.remove_node(name)
    rest_of_it = stock.log_prob_sum(lambda name, _: name.split("_")[0] in rest)
    total = torch.as_tensor(drawn.log_prob_sum())
    assert_close(total.double(), (expected + rest_of_it).double())
    medians = guide.median(oracle.x, oracle.y)
    assert {*medians} == {"w", *rest}
    assert_close(medians["w"].reshape(-1), guide[0].centre())
    svi = SVI(columns, guide, Adam({"lr": 0.01}), Trace_ELBO())
    start = guide[0].centre()
    svi.step(oracle.x, oracle.y)
    assert bool((guide[0].centre() != start).all())


def test_a_guide_is_pickled_without_its_list() -> None:
    model, (x, _) = models.MLP(3, hidden=(2,)), plain_pyro.data()
    guide: Any = AutoGuideList(model)
    guide.append(AutoNormal(model))
    guide(x)
    assert guide[0].master() is guide
    part: AutoNormal = pickle.loads(pickle.dumps(guide[0]))
    assert part.master is None
    assert guide[0].model is not None
    assert_close(part.sample(3), guide[0].sample(3), rtol=0, atol=0)
    assert {*part(x)} == {*guide[0](x)}


def test_a_pickled_guide_shares_no_parameters_with_one_made_where_it_is_loaded() -> None:
    """Pyro's store would give it those of the guide that has its name."""
    model, (x, y) = models.MLP(3, hidden=(2,)), plain_pyro.data()
    saved, other = AutoNormal(model), AutoNormal(model, init_scale=0.5)
    for guide in (saved, other):
        guide.setup(x)
    stored = pickle.dumps(saved)
    other._pyro_name = saved._pyro_name  # as in another process, which counts from 0 again
    SVI(model, other, Adam({"lr": 0.01}), Trace_ELBO()).step(x, y)
    loaded: AutoNormal = pickle.loads(stored)
    loaded(x)
    assert_close(loaded.scale.detach(), saved.scale.detach(), rtol=0, atol=0)
    assert bool((other.scale.detach() > 0.4).all())


def test_a_list_shares_its_plates() -> None:
    guide: Any = AutoGuideList(local, create_plates=same_rows)
    guide.append(AutoNormal(poutine.block(local, expose=["z"])))
    guide.append(AutoMultivariateNormal(poutine.block(local, expose=["gain", "share"])))
    svi = SVI(local, guide, Adam({"lr": 0.01}), Trace_ELBO())
    for rows in PARTITION:  # the first step makes the parameters, too
        before = [value.detach().clone() for value in guide.parameters()]
        svi.step(ROWS[rows], rows)
        for value, after in zip(before, guide.parameters(), strict=bool(before)):
            assert bool((value != after).any())
        drawn: Any = poutine.trace(guide).get_trace(ROWS[rows], rows).nodes
        assert drawn["z"]["value"].shape == drawn["gain"]["value"].shape == (SIZE,)
        assert drawn["rows"]["value"].tolist() == rows.tolist()
    assert guide[0].num_latents == NUM_ROWS
    assert guide[1].num_latents == (1 + 2) * NUM_ROWS


def test_a_part_may_not_have_plates_of_its_own() -> None:
    guide = AutoGuideList(local)
    guide.append(AutoNormal(poutine.block(local, hide=["x"]), create_plates=same_rows))
    with pytest.raises(AssertionError, match="Cannot pass create_plates"):
        guide(ROWS)


# --- discrete sites -------------------------------------------------------------------------------

WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)


def clusters(x: Tensor) -> None:
    """A mixture of two Gaussians, its labels sites of their own."""
    loc = pyro.sample("loc", dist.Normal(one(0.0), one(2.0)).expand([2]).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(one(0.0), one(0.5)))
    with pyro.plate("data", len(x), dim=-1):
        label = pyro.sample("label", dist.Categorical(WEIGHTS), infer={"enumerate": "parallel"})
        at = loc[..., 0] + (loc[..., 1] - loc[..., 0]) * label  # loc[label] that broadcasts
        pyro.sample("x", dist.Normal(at, scale), obs=x)


def summed(x: Tensor) -> None:
    """The same without the labels."""
    loc = pyro.sample("loc", dist.Normal(one(0.0), one(2.0)).expand([2]).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(one(0.0), one(0.5)))
    with pyro.plate("data", len(x), dim=-1):
        each = dist.Normal(loc, scale.unsqueeze(-1))  # batch [..., 1, 2] of particles
        pyro.sample("x", dist.MixtureSameFamily(dist.Categorical(WEIGHTS), each), obs=x)


@pytest.mark.parametrize("name", ON_VECTORS)
def test_labels_are_summed_out(name: str) -> None:
    guides = [ON_VECTORS[name](model) for model in (clusters, summed)]
    for guide in guides:
        guide.setup(ROWS)
        guide.to(torch.float64)
    guides[1].load_state_dict(guides[0].state_dict())
    losses = []
    elbos: tuple[Any, ...] = (TraceEnum_ELBO, Trace_ELBO)
    for guide, elbo in zip(guides, elbos, strict=True):
        torch.manual_seed(0)
        loss = elbo(num_particles=2, max_plate_nesting=1)
        losses.append(loss.loss(guide.model, guide, ROWS))
        assert {*guide(ROWS)} == {"loc", "scale"}
    assert losses[0] == pytest.approx(losses[1])


def test_labels_are_summed_out_at_every_particle_at_once() -> None:
    guide = AutoMultivariateNormal(clusters)
    guide.setup(ROWS)
    guide.to(torch.float64)
    options: dict[str, Any] = {"num_particles": 4, "vectorize_particles": True}
    torch.manual_seed(0)
    loss = TraceEnum_ELBO(max_plate_nesting=1, **options).loss(clusters, guide, ROWS)
    torch.manual_seed(0)
    assert loss == pytest.approx(
        Trace_ELBO(max_plate_nesting=1, **options).loss(summed, guide, ROWS)
    )


def test_a_list_with_a_guide_of_the_labels() -> None:
    marked = config_enumerate(clusters)
    guide: Any = AutoGuideList(marked)
    guide.append(AutoMultivariateNormal(poutine.block(marked, hide=["label"])))
    guide.append(AutoDiscreteParallel(poutine.block(marked, expose=["label"])))
    loss = TraceEnum_ELBO(max_plate_nesting=1).loss_and_grads(marked, guide, ROWS)
    assert loss > 0
    assert guide[0].loc.grad is not None


def test_labels_that_are_not_marked_are_refused_with_the_way_out() -> None:
    def model(x: Tensor) -> None:
        label = pyro.sample("label", dist.Bernoulli(one(0.5)))
        pyro.sample("x", dist.Normal(label, one(1.0)), obs=x[0])

    expected = r"'label' is discrete \(Bernoulli\); sum it out.*TraceEnum_ELBO.*pyro.ai/examples"
    with pytest.raises(SiteError, match=expected):
        AutoNormal(model).setup(ROWS)


def test_engines_refuse_marked_labels_too() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        sign = pyro.sample("sign", dist.Bernoulli(one(0.5)), infer={"enumerate": "parallel"})
        w = pyro.sample("w", dist.Normal(one(0.0), one(1.0)))
        f = pyro.deterministic("f", (x * w * sign).unsqueeze(-1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, one(1.0)).to_event(1), obs=y)

    with pytest.raises(SiteError, match="'sign' is discrete"):
        Program(model, ROWS, ROWS)


# --- what cannot be -------------------------------------------------------------------------------


class NoMap(constraints.Constraint):
    """A set of numbers that no transform of torch leads to."""

    def check(self, value: Tensor) -> Tensor:
        return value == value


class Odd(dist.Normal):
    """A distribution on it."""

    support = NoMap()  # type: ignore[assignment]  # torch's is a constraint of another class


def test_supports_without_a_map_are_refused_by_name() -> None:
    def on_sphere() -> None:
        pyro.sample("d", dist.ProjectedNormal(torch.tensor([0.0, 0.0, 1.0])))

    def unknown() -> None:
        pyro.sample("c", Odd(0.0, 1.0))

    with pytest.raises(SiteError, match=r"'d' lies on a sphere \(ProjectedNormal\).*reparam"):
        AutoNormal(on_sphere).setup()
    with pytest.raises(SiteError, match=r"'c' \(Odd\) has the support .*no map from"):
        AutoNormal(unknown).setup()


def test_components_start_apart_where_the_model_has_no_arguments() -> None:
    def model() -> None:
        pyro.sample("x", dist.Normal(one(0.0), one(1.0)).expand([2]).to_event(1))

    guide = AutoNormalMixture(model, num_components=3)
    guide()
    assert len(guide.loc.detach().unique(dim=0)) == 3
    assert float(guide.loc.detach().std(0).min()) > 0.1  # draws of the prior, not jitter


def test_call_returns_a_tuple_as_the_tracer_asks() -> None:
    def model() -> None:
        pyro.sample("b", dist.LogNormal(one(0.0), one(1.0)))
        pyro.sample("a", dist.Normal(one(0.0), one(1.0)))

    guide: Any = AutoDelta(model)
    a, b = guide.call()
    at = guide()
    assert_close(a, at["a"])
    assert_close(b, at["b"])
    with jit_warnings_left_out():
        traced: Any = torch.jit.trace_module(guide, {"call": ()}, check_trace=False)
    assert_close(traced.call(), (a, b))
