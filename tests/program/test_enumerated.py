"""Models whose discrete sites are summed out, against sums by hand and Pyro's own evaluation."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.infer.mcmc.util import initialize_model
from pyro.infer.reparam import LocScaleReparam
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn.capture.captured import Captured
from pyro_bnn.errors import DataError, ModelError, SiteError
from pyro_bnn.infer.steps.potentials import of_call
from pyro_bnn.program import EnumeratedJoint, Joint, discrete_draws, joint_of, log_einsum
from pyro_bnn.program.random_state import isolated
from tests.plain_pyro import default_dtype

Y = torch.tensor([0.3, -1.0, 2.0, 4.0, -0.2], dtype=torch.float64)
SERIES = torch.tensor(
    [[0.2, 1.1, 0.9, -0.4], [2.0, 1.5, 0.3, 0.0], [-1.0, 0.4, 0.0, 0.0]], dtype=torch.float64
)
LENGTHS = torch.tensor([4, 3, 2])


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64):
        yield


@config_enumerate
def mixture(y: Tensor) -> None:
    weights = pyro.sample("weights", dist.Dirichlet(torch.tensor([2.0, 3.0])))
    with pyro.plate("components", 2):
        loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(y)):
        kind = pyro.sample("kind", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(loc[kind], scale), obs=y)


def cast_any(value: Any) -> Any:
    return value


def responsibilities(values: Mapping[str, Tensor], y: Tensor) -> Tensor:
    """Log p(kind = k, y_n) ``[N, 2]``."""
    likelihood = dist.Normal(values["loc"], values["scale"]).log_prob(y[:, None])
    joint: Tensor = likelihood + values["weights"].log()
    return joint


def of_mixture(values: Mapping[str, Tensor]) -> Tensor:
    return responsibilities(values, Y).logsumexp(-1).sum()


@config_enumerate
def markov(y: Tensor) -> None:
    """A hidden Markov model of three states, whose first state is 0."""
    with pyro.plate("from", 3):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(3)))
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
    state: Any = 0
    for t in pyro.markov(range(len(y))):
        state = pyro.sample(f"x_{t}", dist.Categorical(rows[state]))
        pyro.sample(f"y_{t}", dist.Normal(loc[state], 0.7), obs=y[t])


def forward_algorithm(values: Mapping[str, Tensor], y: Tensor) -> Tensor:
    log_rows = values["rows"].log()
    alpha = log_rows[0]
    for t, value in enumerate(y):
        if t:
            alpha = (alpha[:, None] + log_rows).logsumexp(0)
        alpha = alpha + dist.Normal(values["loc"], 0.7).log_prob(value)
    return alpha.logsumexp(0)


@config_enumerate
def sequences(series: Tensor, lengths: Tensor) -> None:
    """Pyro's tutorial: hidden Markov models of several lengths at once."""
    with pyro.plate("from", 3):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(3)))
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
    with pyro.plate("sequences", len(series), dim=-1):
        state: Any = 0
        for t in pyro.markov(range(int(lengths.max()))):
            with poutine.mask(mask=cast_any(t < lengths)):
                state = pyro.sample(f"x_{t}", dist.Categorical(rows[state]))
                pyro.sample(f"y_{t}", dist.Normal(loc[state], 0.7), obs=series[:, t])


def of_sequences(values: Mapping[str, Tensor]) -> Tensor:
    parts = [forward_algorithm(values, y[:n]) for y, n in zip(SERIES, LENGTHS, strict=True)]
    return torch.stack(parts).sum()


def two_sites(y: Tensor) -> None:
    """A switch, and a number of successes given it; the second decides the scale too."""
    bias = pyro.sample("bias", dist.Normal(0.0, 1.0))
    log_scale = pyro.sample("log_scale", dist.Normal(0.0, 1.0))
    marked: Any = {"enumerate": "parallel"}
    on = pyro.sample("on", dist.Bernoulli(logits=bias), infer=marked)
    number = pyro.sample("number", dist.Binomial(3, 0.2 + 0.5 * on), infer=marked)
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(number - on, (log_scale + 0.3 * number).exp()), obs=y)


def of_two_sites(values: Mapping[str, Tensor]) -> Tensor:
    terms = []
    for on, number in itertools.product((0.0, 1.0), (0.0, 1.0, 2.0, 3.0)):
        prior = dist.Bernoulli(logits=values["bias"]).log_prob(torch.tensor(on))
        p = 0.2 + 0.5 * on
        count = math.log(math.comb(3, int(number)) * p**number * (1 - p) ** (3 - number))
        scale = (values["log_scale"] + 0.3 * number).exp()
        terms.append(prior + count + dist.Normal(number - on, scale).log_prob(Y).sum())
    return torch.stack(terms).logsumexp(0)


@config_enumerate
def nested(y: Tensor) -> None:
    """A kind of each group, and one of each entry in it."""
    shares = pyro.sample("shares", dist.Beta(torch.tensor([2.0, 1.0]), 3.0).to_event(1))
    level = pyro.sample("level", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
    with pyro.plate("groups", 3, dim=-1):
        group = pyro.sample("group", dist.Bernoulli(0.3)).long()
        with pyro.plate("entries", 2, dim=-2):
            entry = pyro.sample("entry", dist.Bernoulli(shares[group])).long()
            pyro.sample("y", dist.Normal(level[group, entry], 0.5), obs=y)


PAIRS = torch.tensor([[0.1, 1.0, -0.3], [0.5, -1.0, 2.0]], dtype=torch.float64)


def of_nested(values: Mapping[str, Tensor]) -> Tensor:
    total = torch.zeros(())
    for column in PAIRS.T:
        groups = []
        for g in (0, 1):
            share, level = values["shares"][g], values["level"][g]
            weights = torch.stack([1 - share, share]).log()
            entries = (weights + dist.Normal(level, 0.5).log_prob(column[:, None])).logsumexp(-1)
            groups.append(math.log((0.7, 0.3)[g]) + entries.sum())
        total = total + torch.stack(groups).logsumexp(0)
    return total


@config_enumerate
def spike_and_slab(y: Tensor) -> None:
    """Weights whose prior is a mixture: continuous sites given discrete ones."""
    slab = pyro.sample("slab", dist.HalfNormal(2.0))
    with pyro.plate("weights", 2):
        used = pyro.sample("used", dist.Bernoulli(0.4))
        w = pyro.sample("w", dist.Normal(0.0, torch.where(used > 0, slab, torch.tensor(0.1))))
    pyro.deterministic("product", w.prod())
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)


def prior_of_weights(values: Mapping[str, Tensor]) -> Tensor:
    w = values["w"]
    used = math.log(0.4) + dist.Normal(0.0, values["slab"]).log_prob(w)
    unused = math.log(0.6) + dist.Normal(0.0, 0.1).log_prob(w)
    return torch.logaddexp(used, unused).sum()


def of_weights(values: Mapping[str, Tensor]) -> Tensor:
    likelihood: Tensor = dist.Normal(values["w"].sum(-1), 1.0).log_prob(Y).sum()
    return likelihood + prior_of_weights(values)


class Case(NamedTuple):
    model: Callable[..., Any]
    args: tuple[Any, ...]
    expected: Callable[[Mapping[str, Tensor]], Tensor]
    """Log density of the data, and of sites that depend on discrete ones, at values of sites."""
    of_pyro: float = 0.0
    """What Pyro counts besides: log 3 for each of the states that a mask hides."""


CASES = {
    "mixture": Case(mixture, (Y,), of_mixture),
    "markov": Case(markov, (Y,), lambda values: forward_algorithm(values, Y)),
    "sequences": Case(sequences, (SERIES, LENGTHS), of_sequences, 3 * math.log(3)),
    "two sites": Case(two_sites, (Y,), of_two_sites),
    "nested": Case(nested, (PAIRS,), of_nested),
    "spike and slab": Case(spike_and_slab, (Y,), of_weights),
}
NAMES = tuple(CASES)


def of_case(name: str) -> tuple[EnumeratedJoint, Tensor]:
    """The joint density of a model, and some z ``[3, P]``."""
    joint = joint_of(CASES[name].model, CASES[name].args)
    assert isinstance(joint, EnumeratedJoint)
    noise = torch.randn(3, joint.num_latents, generator=torch.Generator().manual_seed(1))
    return joint, 0.7 * noise


def by_hand(name: str, joint: Joint, z: Tensor) -> Tensor:
    """Log p(z, D) ``[]``: the sum over discrete values, the other priors and the Jacobians."""
    values = joint.constrain(z)
    drawn = poutine.trace(poutine.condition(CASES[name].model, values)).get_trace(*CASES[name].args)
    total = CASES[name].expected(values)
    for site in joint.sites:
        if site.name != "w":  # whose density is in the sum
            total = total + cast_any(drawn.nodes[site.name]["fn"]).log_prob(values[site.name]).sum()
        total = total + site.log_abs_det_jacobian(z)
    return total


@pytest.mark.parametrize("name", NAMES)
def test_the_log_joint_is_the_sum_over_discrete_values(name: str) -> None:
    joint, z = of_case(name)
    expected = torch.stack([by_hand(name, joint, row) for row in z])
    assert_close(joint.log_joint(z), expected, rtol=1e-10, atol=1e-10)
    assert joint.is_batched
    assert_close(joint.log_joint(z[1]), expected[1], rtol=1e-10, atol=1e-10)
    likelihood, prior = joint.log_densities(z)
    assert_close(likelihood + prior, expected, rtol=1e-10, atol=1e-10)
    assert_close(joint.log_prior(z), prior)
    values = [joint.constrain(row) for row in z]
    weights = [prior_of_weights(v) if name == "spike and slab" else torch.zeros(()) for v in values]
    of_data = [CASES[name].expected(v) - w for v, w in zip(values, weights, strict=True)]
    assert_close(likelihood, torch.stack(of_data), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_sum_one_by_one_and_batched(name: str) -> None:
    joint, z = of_case(name)
    at = z.clone().requires_grad_()
    hand = torch.stack([by_hand(name, joint, row) for row in at]).sum()
    (expected,) = torch.autograd.grad(hand, at)
    (batched,) = torch.autograd.grad(joint.log_joint(at).sum(), at)
    assert_close(batched, expected, rtol=1e-9, atol=1e-9)
    (single,) = torch.autograd.grad(joint.log_joint(at[0]), at)
    assert_close(single[0], expected[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "spike and slab"])
def test_the_log_joint_is_minus_pyros_potential(name: str) -> None:
    """Spike and slab has none in Pyro, which takes w to be a value for each value of used."""
    joint, z = of_case(name)
    case = CASES[name]
    with isolated(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, potential, transforms, _ = initialize_model(case.model, case.args)
    for row in z:
        values = joint.constrain(row)
        at = {site: transforms[site](value) for site, value in values.items()}
        assert_close(joint.log_joint(row) + case.of_pyro, -potential(at), rtol=1e-10, atol=1e-10)


def test_log_likelihoods_are_those_of_rows_with_their_kinds_summed_out() -> None:
    joint, z = of_case("mixture")
    rows = [responsibilities(joint.constrain(row), Y).logsumexp(-1) for row in z]
    assert_close(joint.log_likelihoods(z), {"y": torch.stack(rows)})
    assert joint.without_log_likelihood == ()
    joint, z = of_case("spike and slab")  # the data depend on the weights alone
    w = joint.constrain(z)["w"].sum(-1, keepdim=True)
    assert_close(joint.log_likelihoods(z), {"y": dist.Normal(w, 1.0).log_prob(Y)})


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("markov", tuple(f"y_{t}" for t in range(5))),
        ("sequences", tuple(f"y_{t}" for t in range(4))),
        ("two sites", ("y",)),
        ("nested", ("y",)),
    ],
)
def test_observed_entries_that_discrete_sites_tie_have_no_log_likelihood_each(
    name: str, tied: tuple[str, ...]
) -> None:
    joint, z = of_case(name)
    assert joint.without_log_likelihood == tied
    assert joint.log_likelihoods(z) == {}


@config_enumerate
def local(y: Tensor) -> None:
    """A continuous site of each row, whose prior depends on the row's kind, as y does."""
    rate = pyro.sample("rate", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        kind = pyro.sample("kind", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        w = pyro.sample("w", dist.Normal(1.0 * kind, 0.5))
        pyro.sample("y", dist.Normal(w + rate, 1.0 + kind), obs=y)
        pyro.deterministic("shifted", kind + w)
    pyro.deterministic("double", 2 * rate)


def of_local(values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Log p(w_n) and log p(y_n, w_n), ``[N]`` each."""
    kind, weights = torch.arange(3.0), torch.tensor([0.2, 0.3, 0.5])
    w = values["w"][:, None]
    prior = weights.log() + dist.Normal(kind, 0.5).log_prob(w)
    likelihood = dist.Normal(w + values["rate"], 1.0 + kind).log_prob(Y[:, None])
    return prior.logsumexp(-1), (prior + likelihood).logsumexp(-1)


def test_parts_of_a_row_whose_prior_and_likelihood_depend_on_its_kind() -> None:
    joint = joint_of(local, (Y,))
    assert isinstance(joint, EnumeratedJoint)
    assert joint.mixed == {"w"}
    z = torch.randn(2, joint.num_latents, generator=torch.Generator().manual_seed(0))
    for row in z:
        values = joint.constrain(row)
        of_w, of_both = of_local(values)
        of_rate = dist.Normal(0.0, 1.0).log_prob(values["rate"])
        assert_close(joint.log_prior(row), of_w.sum() + of_rate)
        assert_close(joint.log_densities(row)[0], (of_both - of_w).sum())
        assert_close(joint.log_likelihoods(row), {"y": of_both - of_w})
        assert_close(joint.log_joint(row), of_both.sum() + of_rate)
        assert_close(joint.log_joint(row, jacobian=False), of_both.sum() + of_rate)
    assert joint.given_discrete == {"shifted"}
    assert_close(joint.deterministics(z), {"double": 2 * joint.constrain(z)["rate"]})
    with pytest.raises(ModelError, match="the prior of 'w' depends on a discrete site"):
        joint.log_priors(z)


def test_prior_draws_of_a_site_whose_prior_is_a_mixture() -> None:
    """Its mean and variance are those of the mixture."""
    joint = joint_of(local, (Y,))
    w = joint.constrain(joint.prior_draws(2_000))["w"]
    mean, second = 0.3 + 2 * 0.5, 0.25 + 0.3 + 4 * 0.5
    sd = math.sqrt(second - mean**2)
    assert abs(float(w.mean()) - mean) < 5 * sd / math.sqrt(w.numel())
    assert abs(float((w**2).mean()) - second) < 5 * float((w**2).std()) / math.sqrt(w.numel())


def test_a_decentred_site_whose_location_is_discrete() -> None:
    """Its value is computed from the standardised one, and p(y) is a sum of two."""

    @config_enumerate
    def model(y: Tensor) -> None:
        on = pyro.sample("on", dist.Bernoulli(0.3))
        level = pyro.sample("level", dist.Normal(3.0 * on, 2.0))
        pyro.sample("y", dist.Normal(level, 1.0), obs=y)

    decentred = poutine.reparam(model, {"level": LocScaleReparam(0.0)})
    joint = joint_of(decentred, (Y[0],))
    z = torch.tensor([0.4])
    terms = [
        math.log(p) + dist.Normal(3.0 * on + 2.0 * z[0], 1.0).log_prob(Y[0])
        for on, p in ((0, 0.7), (1, 0.3))
    ]
    expected = torch.stack(terms).logsumexp(0) + dist.Normal(0.0, 1.0).log_prob(z[0])
    assert_close(joint.log_joint(z), expected)
    assert joint.deterministics(z) == {}


@pytest.mark.parametrize("by_distribution", [False, True])
def test_masked_rows_and_their_kinds_are_no_part_of_the_model(by_distribution: bool) -> None:
    mask: Any = torch.tensor([True, False, True, True, False])

    @config_enumerate
    def model(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            prior, noise = dist.Bernoulli(0.3), dist.Normal(loc, 1.0)
            if by_distribution:
                kind = pyro.sample("kind", prior.expand([5]).mask(mask))
                pyro.sample("y", dist.Normal(loc + kind, 1.0).mask(mask), obs=y)
            else:
                with poutine.mask(mask=mask):
                    kind = pyro.sample("kind", prior)
                    pyro.sample("y", dist.Normal(noise.loc + kind, 1.0), obs=y)

    joint, z = joint_of(model, (Y,)), torch.tensor([0.7])
    kinds = torch.tensor([0.0, 1.0])
    terms = torch.tensor([0.7, 0.3]).log() + dist.Normal(z + kinds, 1.0).log_prob(Y[:, None])
    rows = terms.logsumexp(-1) * mask
    assert_close(joint.log_likelihoods(z)["y"], rows)
    assert_close(joint.log_densities(z)[0], rows.sum())


def scaled(of_kind: float, of_y: Any) -> Callable[[Tensor], None]:
    def model(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            with poutine.scale(scale=of_kind):
                kind = pyro.sample("kind", dist.Bernoulli(0.3))
            with poutine.scale(scale=of_y):
                pyro.sample("y", dist.Normal(loc + kind, 1.0), obs=y)

    marked: Callable[[Tensor], None] = config_enumerate(model)
    return marked


def test_a_scale_counts_rows_several_times() -> None:
    z = torch.tensor([0.7])
    once, twice = (joint_of(scaled(s, s), (Y,)).log_densities(z)[0] for s in (1.0, 2.0))
    assert_close(twice, 2 * once)
    number = torch.tensor(2.0)
    assert_close(joint_of(scaled(cast_any(number), number), (Y,)).log_densities(z)[0], 2 * once)


@pytest.mark.parametrize("of_y", [2.0, torch.tensor(2.0), torch.ones(5)])
def test_scales_that_a_sum_cannot_have_are_refused(of_y: Any) -> None:
    with pytest.raises(ModelError, match="the sites 'kind', 'y', tied by discrete sites, have"):
        joint_of(scaled(1.0, of_y), (Y,))


def test_discrete_draws_have_the_frequencies_of_the_responsibilities() -> None:
    joint, _ = of_case("mixture")
    values = {"weights": (0.4, 0.6), "loc": (0.0, 2.0), "scale": 1.0}
    z = joint.unconstrain({name: torch.tensor(value) for name, value in values.items()})
    probs = responsibilities(joint.constrain(z), Y).softmax(-1)[:, 1]
    kinds = discrete_draws(joint, z.expand(2_000, -1), seed=3)["kind"]
    assert kinds.shape == (2_000, 5)
    error = (probs * (1 - probs) / 2_000).sqrt()
    assert bool(((kinds.double().mean(0) - probs).abs() < 5 * error).all())
    assert float(probs.min()) < 0.4  # frequencies that are not those of the other kind
    assert float(probs.max()) > 0.6


def test_discrete_draws_of_a_chain_have_the_smoothed_joint_frequencies() -> None:
    joint, z = of_case("markov")
    values, num_draws = joint.constrain(z[0]), 20_000
    states = torch.tensor([*itertools.product(range(3), repeat=5)])
    before = torch.cat([torch.zeros(len(states), 1, dtype=torch.long), states[:, :-1]], 1)
    log_path = values["rows"].log()[before, states] + dist.Normal(
        values["loc"][states], 0.7
    ).log_prob(Y)
    probs = log_path.sum(-1).softmax(0)
    draws = discrete_draws(joint, z[:1].expand(num_draws, -1), seed=1)
    path = torch.stack([draws[f"x_{t}"] for t in range(5)], -1)
    codes = (path * 3 ** torch.arange(4, -1, -1)).sum(-1)  # the rows of states are in this order
    found = torch.bincount(codes, minlength=len(states)) / num_draws
    error = (probs * (1 - probs) / num_draws).sqrt()
    often = probs * num_draws > 20
    assert int(often.sum()) > 50
    assert bool(((found - probs).abs() < 5 * error)[often].all())


@config_enumerate
def of_vectors(y: Tensor) -> None:
    """A kind of each row as an indicator vector, beside a site of one value."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        kind = pyro.sample("kind", dist.OneHotCategorical(torch.tensor([0.2, 0.3, 0.5])))
        only = pyro.sample("only", dist.Categorical(torch.ones(1)))
        pyro.sample("y", dist.Normal(w + only + kind @ torch.arange(3.0), 1.0), obs=y)


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("is_batched", [True, False])
def test_discrete_draws_that_are_vectors_or_have_one_value(num_rows: int, is_batched: bool) -> None:
    joint, z, y = joint_of(of_vectors, (Y[:num_rows],)), torch.tensor([0.4]), Y[:num_rows, None]
    assert isinstance(joint, EnumeratedJoint)
    terms = torch.tensor([0.2, 0.3, 0.5]).log() + dist.Normal(z + torch.arange(3.0), 1.0).log_prob(
        y
    )
    expected = terms.logsumexp(-1).sum() + dist.Normal(0.0, 1.0).log_prob(z[0])
    assert_close(joint.log_joint(z), expected)
    joint.is_batched = is_batched
    num_draws = 4_000 if is_batched else 200
    draws = discrete_draws(joint, z.expand(num_draws, 1), seed=2)
    assert draws["only"].shape == (num_draws, num_rows)
    assert not draws["only"].any()
    assert_close(draws["kind"].sum(-1), torch.ones(num_draws, num_rows))
    probs = terms.softmax(-1)
    error = (probs * (1 - probs) / num_draws).sqrt()
    assert bool(((draws["kind"].mean(0) - probs).abs() < 5 * error).all())


def test_discrete_draws_are_of_the_shape_of_z_and_of_their_seed() -> None:
    for name in NAMES:
        joint, z = of_case(name)
        before = torch.get_rng_state()
        draws = discrete_draws(joint, torch.stack([z, z]), seed=5)
        assert torch.equal(torch.get_rng_state(), before)
        drawn = poutine.trace(CASES[name].model).get_trace(*CASES[name].args)
        assert {k: v.shape[2:] for k, v in draws.items()} == {
            k: cast_any(drawn.nodes[k]["value"]).shape for k in joint.discrete
        }
        assert all(value.shape[:2] == (2, 3) for value in draws.values())
        assert_close(draws, discrete_draws(joint, torch.stack([z, z]), seed=5))


class Classifier(PyroModule):
    """A module with a trained bias and a stated parameter, whose labels are mostly unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight: Any = PyroSample(dist.Normal(0.0, 1.0))
        self.bias = nn.Parameter(torch.tensor(0.2))

    def forward(self, y: Tensor) -> None:
        gap = pyro.param("gap", torch.tensor(3.0), constraint=dist.constraints.positive)
        logits = self.weight + self.bias  # PyroSample draws one for each row inside the plate
        with pyro.plate("rows", len(y)):
            kind = pyro.sample(
                "kind", dist.Bernoulli(logits=logits), infer={"enumerate": "parallel"}
            )
            pyro.sample("y", dist.Normal(gap * kind, 1.0), obs=y)


def test_parameters_stand_in_for_those_of_the_model() -> None:
    joint = joint_of(Classifier(), (Y,))
    assert isinstance(joint, EnumeratedJoint)
    z, params = torch.tensor([0.3]), {"bias": torch.tensor(-0.5), "gap": torch.tensor(5.0).log()}

    def by_hand(bias: float, gap: float) -> Tensor:
        p = (z + bias).sigmoid()
        off = (1 - p).log() + dist.Normal(0.0, 1.0).log_prob(Y)
        return torch.stack([off, p.log() + dist.Normal(gap, 1.0).log_prob(Y)], -1)

    likelihood = joint.log_densities(z)[0]
    assert_close(likelihood, by_hand(0.2, 3.0).logsumexp(-1).sum())
    assert_close(joint.log_densities(z, params=params)[0], by_hand(-0.5, 5.0).logsumexp(-1).sum())
    assert joint.params["bias"].requires_grad
    for given, at in ((None, (0.2, 3.0)), (params, (-0.5, 5.0))):
        probs = by_hand(*at).softmax(-1)[:, 1]
        kinds = discrete_draws(joint, z.expand(4_000, 1), seed=1, params=given)["kind"]
        error = (probs * (1 - probs) / 4_000).sqrt() + 1e-9
        assert bool(((kinds.mean(0) - probs).abs() < 5 * error).all())


def test_names_of_a_network_mean_nothing_for_discrete_sites() -> None:
    @config_enumerate
    def model(x: Tensor) -> None:
        f = pyro.sample("f", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            y = pyro.sample("y", dist.Bernoulli(0.3))
            pyro.sample("x", dist.Normal(f + y, 1.0), obs=x)

    joint, z = joint_of(model, (Y,)), torch.tensor([0.4])
    kinds = torch.tensor([0.0, 1.0])
    terms = torch.tensor([0.7, 0.3]).log() + dist.Normal(z + kinds, 1.0).log_prob(Y[:, None])
    assert_close(joint.log_likelihoods(z), {"x": terms.logsumexp(-1)})
    assert joint.run({"f": None}).summed["y"]["value"].shape == (5,)


def test_a_model_without_discrete_sites_is_a_plain_joint() -> None:
    @config_enumerate
    def model(y: Tensor) -> None:
        pyro.sample("y", dist.Normal(pyro.sample("loc", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    assert type(joint_of(model, (Y[0],))) is Joint


def test_sites_of_a_batch_in_no_plate_beside_discrete_ones() -> None:
    """Their dimension is not taken for one of discrete values."""

    @config_enumerate
    def model(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0))
        on = pyro.sample("on", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(w.sum() + on, 1.0), obs=y)

    joint, z = joint_of(model, (Y[0],)), torch.tensor([0.3, -0.1, 0.5])
    kinds = torch.tensor([0.0, 1.0])
    terms = torch.tensor([0.7, 0.3]).log() + dist.Normal(z.sum() + kinds, 1.0).log_prob(Y[0])
    expected = terms.logsumexp(-1) + dist.Normal(0.0, 1.0).log_prob(z).sum()
    assert_close(joint.log_joint(z), expected)


def test_terms_that_are_finite_for_some_value_are_finite() -> None:
    def model(y: Tensor) -> None:
        width = pyro.sample("width", dist.LogNormal(0.0, 1.0))
        marked: Any = {"enumerate": "parallel"}
        on = pyro.sample("on", dist.Bernoulli(0.5), infer=marked)
        pyro.sample("y", dist.Uniform(0.0, width * (1 + on)), obs=y)

    joint = joint_of(model, (torch.tensor(1.5),))
    assert joint.non_finite_terms(torch.tensor([0.0])) == []
    assert joint.log_likelihoods(torch.tensor([0.0]))["y"].item() == pytest.approx(math.log(0.25))
    assert joint.non_finite_terms(torch.tensor([-1.0])) == ["y"]
    assert joint.non_finite_terms(torch.tensor([math.nan])) == ["width", "y"]


@pytest.mark.parametrize("name", NAMES)
def test_the_potential_is_captured_as_a_graph(name: str) -> None:
    joint, z = of_case(name)
    potential = of_call(joint).potential
    captured = Captured(potential, "the potential", strict=True)
    captured(z)
    assert captured.path == "captured"
    for found, expected in zip(captured(z + 0.3), potential(z + 0.3), strict=True):
        assert_close(found, expected)


def test_products_are_summed_in_log_space() -> None:
    a, b = torch.randn(4, 3), torch.randn(2, 3, 5)
    found = log_einsum.einsum("ij,kjl->lik", a, b)
    assert_close(found, torch.einsum("ij,kjl->lik", a.exp(), b.exp()).log())
    assert_close(log_einsum.tensordot(a, b, ((1,), (1,))), found.permute(1, 2, 0))
    assert_close(log_einsum.transpose(a, (1, 0)), a.T)
    assert_close(log_einsum.einsum("ij->ji", a), a.T)


def test_a_sum_of_factors_that_are_largest_at_different_values() -> None:
    a, b = torch.tensor([0.0, -2_000.0]), torch.tensor([-2_000.0, 0.0])
    assert float(log_einsum.einsum("i,i->", a, b)) == pytest.approx(math.log(2) - 2_000)


def sequential(_: Tensor) -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.sample("kind", dist.Bernoulli(0.3), infer={"enumerate": "sequential"})


def unmarked(_: Tensor) -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.sample("kind", dist.Bernoulli(0.3))


@config_enumerate
def infinite(_: Tensor) -> None:
    pyro.sample("number", dist.Poisson(pyro.sample("rate", dist.Gamma(2.0, 1.0))))


def marked_infinite(_: Tensor) -> None:
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    pyro.sample("number", dist.Poisson(rate), infer={"enumerate": "parallel"})


@config_enumerate
def joined(_: Tensor) -> None:
    p = pyro.sample("p", dist.Beta(1.0, 1.0))
    pyro.sample("kinds", dist.Bernoulli(p.expand(4)).to_event(1))


def drawn(_: Tensor) -> None:
    p = pyro.sample("p", dist.Beta(1.0, 1.0))
    pyro.sample("kind", dist.Bernoulli(p), infer={"enumerate": "parallel", "num_samples": 5})


def continuous(_: Tensor) -> None:
    pyro.sample("v", dist.Normal(0.0, 1.0))
    pyro.sample("w", dist.Normal(0.0, 1.0), infer={"enumerate": "parallel"})


@config_enumerate
def nothing_left(_: Tensor) -> None:
    pyro.sample("kind", dist.Bernoulli(0.3))


@config_enumerate
def moving(_: Tensor) -> None:
    kind = pyro.sample("kind", dist.Bernoulli(0.3))
    pyro.sample("within", dist.Uniform(0.0, 1.0 + kind))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (sequential, "'kind' is marked for sequential enumeration.*mark it infer="),
        (unmarked, "'kind' is discrete .Bernoulli., and is not marked.*config_enumerate above"),
        (infinite, "'number' is discrete .Poisson., and has no finite list of values"),
        (marked_infinite, "'number' is discrete .Poisson., and has no finite list of values"),
        (joined, "'kinds' is discrete .Bernoulli., and all combinations .* in a pyro.plate"),
        (drawn, "'kind' is marked with num_samples="),
        (continuous, "'w' is continuous .Normal., and marked for enumeration"),
        (nothing_left, "every latent site of the model, 'kind', is summed out"),
        (moving, "the support of the latent site 'within' depends on a discrete site"),
    ],
)
def test_sites_that_cannot_be_summed_out_are_refused(model: Any, message: str) -> None:
    with pytest.raises(SiteError, match=message):
        joint_of(model, (Y,))


@config_enumerate
def branching(y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    if pyro.sample("kind", dist.Bernoulli(0.3)):
        w = w + 1.0
    pyro.sample("y", dist.Normal(w, 1.0), obs=y[0])


@config_enumerate
def crossing(_: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    rows, columns = pyro.plate("rows", 2, dim=-1), pyro.plate("columns", 3, dim=-2)
    with rows:
        row = pyro.sample("row", dist.Bernoulli(0.3))
    with columns:
        column = pyro.sample("column", dist.Bernoulli(0.4))
    with rows, columns:
        pyro.sample("y", dist.Normal(w + row * column, 1.0), obs=torch.zeros(3, 2))


@config_enumerate
def in_no_plate(y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    on = pyro.sample("on", dist.Bernoulli(0.3))
    pyro.sample("y", dist.Normal(w + on, 1.0), obs=y)


@config_enumerate
def wrong_shape(y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        on = pyro.sample("on", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(w + on, 1.0), obs=y[:, None])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (branching, "branching under inferconfig reads a number out of a discrete site.*where"),
        (crossing, "summed out of 'row', 'column', 'y', which lie in plates that cross"),
        (
            in_no_plate,
            r"the density of 'y' has shape \(2, 5\), of which a dimension is in no plate",
        ),
        (wrong_shape, r"the value of 'y' has shape \(5, 1\), but its distribution"),
    ],
)
def test_models_that_cannot_be_summed_are_refused(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        joint_of(model, (Y,))


def test_an_observed_value_outside_of_the_support_is_refused() -> None:
    @config_enumerate
    def model(y: Tensor) -> None:
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        with pyro.plate("rows", len(y)):
            on = pyro.sample("on", dist.Bernoulli(0.3))
            pyro.sample("y", dist.Exponential(rate * (1 + on)), obs=y)

    with pytest.raises(DataError, match="the site 'y' observes -1"):
        joint_of(model, (Y,))
