"""What a model says of a row is the row's own, its sites have a gradient, and it may write to x."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_bnn import likelihoods, models, priors
from pyro_bnn.errors import BNNWarning, ModelError
from pyro_bnn.program.program import Program

Function = Callable[[Tensor, Tensor], Tensor]


WEIGHTS = dist.Normal(torch.zeros(2), 1.0).to_event(1)


def linear(function: Function) -> Any:
    def model(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        f = pyro.deterministic("f", function(x, w))
        with pyro.plate("data", x.shape[0]):
            return pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    return model


def rows() -> tuple[Tensor, Tensor]:
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    return x, x[:, 0].clone()


def under_no_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        return x @ w


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x @ w).detach(),
        lambda x, w: torch.from_numpy(x.numpy() @ w.detach().numpy()),
        under_no_grad,
        lambda x, w: x @ w.round(),
        lambda x, w: x @ w.sign(),
        lambda x, w: (x @ w).floor(),
        lambda x, w: x @ (w.detach() + 0 * w),
        lambda x, w: x @ (w + (w.round() - w).detach()),
        lambda x, w: x @ (w + (w.sign() - w).detach()),
    ],
    ids=[
        "detach",
        "numpy",
        "no_grad",
        "round",
        "sign",
        "floor",
        "times 0",
        "straight-through",
        "binary",
    ],
)
def test_a_likelihood_without_a_gradient_is_refused_by_the_site(function: Function) -> None:
    with pytest.raises(ModelError, match="depends on 'w' and has no gradient"):
        Program(linear(function), *rows())


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x - x.mean(0)) @ w,
        lambda x, w: x.sort(-2).values @ w,
        lambda x, w: x @ w + torch.arange(len(x)),
        lambda x, w: x @ w if len(x) > 5 else -x @ w,
        lambda x, w: x.softmax(0) @ w,
        lambda x, w: x @ w * (2 if len(x) > 20 else 1),
    ],
    ids=["mean", "sort", "number", "branch", "softmax", "branch at 20"],
)
def test_a_row_that_depends_on_others_is_refused(function: Function) -> None:
    with pytest.raises(ModelError, match="depends on other rows"):
        Program(linear(function), *rows())


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x @ w / x[:, 0].max(),
        lambda x, w: w[x[:, 1].unique(return_inverse=True)[1]],
    ],
    ids=["largest at both ends", "groups without a number"],
)
def test_a_row_that_depends_on_a_few_others_is_refused(function: Function) -> None:
    """The first row has the largest number and the first group: alone it is as among others."""
    x, y = rows()
    x[:, 0], x[:, 1] = 1.0, torch.arange(30) % 2
    x[0, 0] = x[-1, 0] = 4.0
    with pytest.raises(ModelError, match="depends on other rows"):
        Program(linear(function), x, y)


def test_a_model_that_knows_a_thousand_rows_from_fewer_is_refused() -> None:
    x = torch.randn(5_000, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ModelError, match="depends on other rows"):
        Program(linear(lambda x, w: x @ w * (2 if len(x) > 1_000 else 1)), x, x[:, 0].clone())


def test_a_scale_by_the_number_of_rows_is_refused_and_that_of_the_plate_is_not() -> None:
    """Programs scale minibatches themselves, so that N / len(x) would count twice."""

    def model(x: Tensor, y: Tensor | None = None, *, by_hand: bool = True) -> Any:
        f = pyro.deterministic("f", x @ pyro.sample("w", WEIGHTS))
        with (
            pyro.plate("data", len(x) if by_hand else 30, None if by_hand else len(x)),
            pyro.poutine.scale(scale=30 / len(x) if by_hand else 0.5),
        ):
            return pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    with pytest.raises(ModelError, match="depends on other rows"):
        Program(model, *rows())
    Program(functools.partial(model, by_hand=False), *rows())


def of_two(site: Any, function: Function, likelihood: Any = None) -> Any:
    """A model of one site, and f of x and its values."""

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        f = pyro.deterministic("f", function(x, pyro.sample("w", site)))
        fn = dist.Normal(f, 0.1) if likelihood is None else likelihood(f)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", fn, obs=y)

    return model


def recurrent(x: Tensor, w: Tensor) -> Tensor:
    """A map of 32 units, so far from contracting that roundings grow to their size."""
    h = x.new_zeros(len(x), 32)
    for _ in range(200):
        h = torch.tanh(h @ w[:32] + x @ w[32:])
    return h.sum(-1)


def nearly_singular(x: Tensor, w: Tensor) -> Tensor:
    """A smooth function by 30 of its values, whose covariance has a condition number of 1e7."""
    points = torch.linspace(-2, 2, 30)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * (a[:, None] - b).square())

    noise = 1e-6 * torch.eye(30)
    values: Tensor = torch.linalg.solve(kernel(points, points) + noise, w)
    return kernel(x[:, 0], points) @ values


def log_odds(x: Tensor, w: Tensor) -> Tensor:
    return x @ (w.log() - (-w).log1p())[:2]


@pytest.mark.parametrize(
    ("site", "function"),
    [
        (dist.Normal(torch.zeros(34, 32), 1.0).to_event(2), recurrent),
        (dist.Normal(torch.zeros(30), 1.0).to_event(1), nearly_singular),
        (dist.Beta(torch.full((2,), 0.02), 0.02).to_event(1), log_odds),
        (dist.Dirichlet(torch.full((6,), 0.05)), lambda x, w: x @ w.log()[:2]),
        (dist.Normal(1e3 * torch.ones(2), 1e-3).to_event(1), lambda x, w: (x @ w - 1e3) * 1e3),
    ],
    ids=["recurrent", "singular", "odds", "simplex", "difference"],
)
@pytest.mark.parametrize("seed", range(3))
def test_rows_whose_f_differs_by_rounding_alone_are_apart(
    site: Any, function: Function, seed: int
) -> None:
    """f of a row is of this row; sums in another order, or of values at the edge, may differ."""
    pyro.set_rng_seed(seed)
    Program(of_two(site, function), *rows())


def near_1e6(x: Tensor, w: Tensor) -> Tensor:
    """Which float32 has in steps of 1/16."""
    return 1e6 + x @ w


@pytest.mark.parametrize(
    ("site", "function", "likelihood"),
    [
        (dist.Normal(-5 * torch.ones(2), 0.1).to_event(1), lambda x, w: x @ w.relu(), None),
        (WEIGHTS, lambda x, w: (1e5 * (x @ w)).clamp(-1, 1), None),
        (WEIGHTS, lambda x, w: x @ torch.nn.functional.softshrink(w, 0.9), None),
        (WEIGHTS, near_1e6, None),
        (WEIGHTS, lambda x, w: x @ w, lambda f: dist.Uniform(f - 3, f + 3)),
        (WEIGHTS, lambda x, w: 1e-8 * (x @ w), lambda f: dist.Normal(f, 1e-8)),
        (WEIGHTS, lambda x, w: 0 * (x @ w), None),
    ],
    ids=["off", "steep", "shrunk", "far from 0", "bounded", "small", "times 0"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_gradient_of_zero_and_one_of_which_rounding_shows_nothing_are_no_fault(
    site: Any, function: Function, likelihood: Any, seed: int
) -> None:
    """Densities are continuous in w, or jump to 0: what changes them has a gradient somewhere."""
    pyro.set_rng_seed(seed)
    Program(of_two(site, function, likelihood), *rows())


@pytest.mark.parametrize(
    "function",
    [lambda x, w: x.clamp_(-0.5, 0.5) @ w, lambda x, w: x.sub_(0.3) @ w],
    ids=["clamp", "minus"],
)
def test_a_network_that_works_in_place_leaves_the_rows_as_they_were(function: Function) -> None:
    x, y = rows()
    before = x.clone()
    program = Program(linear(function), x, y)
    z = torch.tensor([0.5, -1.0])
    expected = function(before.clone(), z)
    torch.testing.assert_close(program.function(z, x)[:, 0], expected)
    program.log_joint(z, program.batch(x, y))
    torch.testing.assert_close(x, before, rtol=0, atol=0)


def classifier(last: nn.Module, outputs: int, likelihood: Any) -> Any:
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs), last)
    return models.bayesian(net, priors.Normal(), likelihood)


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 1, 0, 2])
POINTS = torch.linspace(-1, 1, 18).reshape(9, 2)


@pytest.mark.parametrize(
    ("model", "y", "layer"),
    [
        (classifier(nn.Softmax(-1), 3, likelihoods.Categorical(3)), LABELS, "Softmax"),
        (classifier(nn.Sigmoid(), 1, likelihoods.Bernoulli()), (LABELS > 0).long(), "Sigmoid"),
        (classifier(nn.Sigmoid(), 3, likelihoods.Categorical(3)), LABELS, "Sigmoid"),
    ],
)
def test_probabilities_that_are_taken_for_logits_are_warned_of(
    model: Any, y: Tensor, layer: str
) -> None:
    with pytest.warns(BNNWarning, match=f"f are probabilities already, as behind a {layer}, and"):
        Program(model, POINTS, y)


CLASSES = dist.Normal(torch.zeros(2, 3), 1.0).to_event(2)


def sigmoid(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sigmoid()


def softmax(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).softmax(-1)


def small(x: Tensor, w: Tensor) -> Tensor:
    """Logits that are within 0 and 1 at most draws, and not below 0 at any."""
    return 0.3 * (x @ w).relu()


def with_probs(x: Tensor, y: Tensor | None = None) -> Any:
    w = pyro.sample("w", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    f = pyro.deterministic("f", (x @ w).softmax(-1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Categorical(probs=f), obs=y)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (with_probs, LABELS),
        (classifier(nn.Identity(), 3, likelihoods.Categorical(3)), LABELS),
        (classifier(nn.LogSoftmax(-1), 3, likelihoods.Categorical(3)), LABELS),
        (classifier(nn.ReLU6(), 3, likelihoods.Categorical(3)), LABELS),
        (classifier(nn.Identity(), 1, likelihoods.Bernoulli()), (LABELS > 0).long()),
        (classifier(nn.Sigmoid(), 1, likelihoods.Normal(0.1)), POINTS[:, 0]),
        (of_two(WEIGHTS, sigmoid, lambda f: dist.Bernoulli(0.01 + 0.98 * f)), (LABELS > 0) * 1.0),
        (of_two(CLASSES, softmax, lambda f: dist.Categorical(0.97 * f + 0.01)), LABELS),
        (of_two(CLASSES, softmax, lambda f: dist.Categorical(logits=2 * f.log())), LABELS),
        (of_two(WEIGHTS, small, lambda f: dist.Bernoulli(logits=f)), (LABELS > 0) * 1.0),
        (
            of_two(WEIGHTS, lambda x, w: 0 * (x @ w), lambda f: dist.Bernoulli(logits=f)),
            (LABELS > 0) * 1.0,
        ),
    ],
)
def test_what_is_no_probability_or_is_taken_for_one_is_not_warned_of(model: Any, y: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", BNNWarning)
        Program(model, POINTS, y)


class Sequences(nn.Module):
    """A layer of torch for sequences, in front of a linear one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(4, 1)
        self.eval()

    def forward(self, x: Tensor) -> Any:
        if isinstance(self.layer, nn.MultiheadAttention):
            h = self.layer(x, x, x)[0]
        elif isinstance(self.layer, nn.TransformerDecoderLayer | nn.Transformer):
            h = self.layer(x, x)
        elif isinstance(self.layer, nn.RNNBase):
            h = self.layer(x)[0]
        else:
            h = self.layer(x)
        return self.head(h.mean(1) if h.ndim == 3 else h)


SEQUENCES: dict[str, Callable[[bool], nn.Module]] = {
    "attention": lambda first: nn.MultiheadAttention(4, 2, batch_first=first),
    "encoder": lambda first: nn.TransformerEncoderLayer(4, 2, 8, batch_first=first),
    "decoder": lambda first: nn.TransformerDecoderLayer(4, 2, 8, batch_first=first),
    "transformer": lambda first: nn.Transformer(4, 2, 1, 1, 8, batch_first=first),
}
ROWS_FIRST = True  # batch_first of torch
PLAIN, PLACES = (torch.randn(12, *shape, generator=torch.Generator()) for shape in ((4,), (5, 4)))


def of_layer(layer: nn.Module, x: Tensor) -> Program:
    return Program(models.bayesian(Sequences(layer), priors.Normal()), x, x.flatten(1)[:, :1])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("layer", SEQUENCES.values(), ids=SEQUENCES)
def test_layers_of_sequences_are_refused_by_name_where_rows_are_places(
    layer: Callable[[bool], nn.Module],
) -> None:
    """Torch's default takes the first dimension for the places, and two dimensions for no rows."""
    for x in (PLAIN, PLACES):
        with pytest.raises(ModelError, match="depends on other rows") as caught:
            of_layer(layer(not ROWS_FIRST), x)
        assert caught.match(r"net\.layer\S* is a \w+ with batch_first=False, which takes the rows")
    with pytest.raises(ModelError, match="depends on other rows") as caught:
        of_layer(layer(ROWS_FIRST), PLAIN)
    assert caught.match(r"net\.layer\S* is a \w+, which takes two dimensions for one sequence: giv")


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("layer", SEQUENCES.values(), ids=SEQUENCES)
def test_layers_of_sequences_with_rows_first_say_of_a_row_what_torch_says(
    layer: Callable[[bool], nn.Module],
) -> None:
    net = Sequences(layer(ROWS_FIRST))
    program = Program(models.bayesian(net, priors.Normal()), PLACES, PLACES[:, 0, :1])
    f = program.function(program.initial, PLACES)
    values = program.constrain(program.initial)
    own = {name: values[name] for name, _ in net.named_parameters()}
    with torch.no_grad():
        expected = torch.func.functional_call(net, own, (PLACES,))
        alone = torch.cat([program.function(program.initial, row[None]) for row in PLACES])
    torch.testing.assert_close(f, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(f, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("first", [False, True])
def test_recurrent_layers_of_torch_are_refused_by_name(kind: Any, first: bool) -> None:
    for x in (PLAIN, PLACES):
        with pytest.raises(ModelError, match=rf"net\.layer is a {kind.__name__}, whose kernel"):
            of_layer(kind(4, 4, batch_first=first), x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x.log_softmax(0) @ w,
        lambda x, w: nn.functional.normalize(x, dim=0) @ w,
        lambda x, w: nn.functional.layer_norm(x, x.shape) @ w,
        lambda x, w: nn.Softmax(dim=0)(x) @ w,
        lambda x, w: x / x.abs().max() @ w,
        lambda x, w: x.cumsum(0) @ w,
        lambda x, w: x.roll(1, 0) @ w,
    ],
    ids=["log softmax", "normalize", "layer norm", "Softmax", "largest", "cumsum", "roll"],
)
def test_functions_over_the_rows_are_refused_with_the_dimension_to_take(function: Function) -> None:
    with pytest.raises(ModelError, match="depends on other rows") as caught:
        Program(linear(function), *rows())
    assert caught.match("take softmax, means and norms over dim=-1, as dim=0 is that of the rows")


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x.log_softmax(-1) @ w,
        lambda x, w: nn.functional.normalize(x, dim=-1) @ w,
        lambda x, w: nn.functional.layer_norm(x, x.shape[1:]) @ w,
    ],
)
def test_functions_within_a_row_are_taken(function: Function) -> None:
    program = Program(linear(function), *rows())
    x, z = rows()[0], torch.tensor([0.5, -1.0])
    torch.testing.assert_close(program.function(z, x)[:, 0], function(x, z))
