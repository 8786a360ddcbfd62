"""Any network as a Bayesian model: sites, point estimates, ties."""

from __future__ import annotations

import copy
import functools
import re
import warnings
from collections.abc import Callable
from typing import Any, cast

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import init_to_value
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.testing import assert_close

from pyro_bnn import SVI, bayesian, bayesian_dropout, guides, likelihoods, priors
from pyro_bnn.errors import ModelError, OptionError, SiteError
from pyro_bnn.models import MLP
from pyro_bnn.program import Program
from tests.plain_pyro import RecurrentNet, TiedNet, conv_net, linear_net, transformer_net


def nodes_of(model: Any, *args: Any) -> Any:
    return poutine.trace(model).get_trace(*args).nodes


@pytest.mark.parametrize("build", [linear_net, conv_net, TiedNet, transformer_net])
def test_f_is_the_networks_output_at_the_sampled_parameters(build: Any) -> None:
    net = build()
    model = bayesian(net, likelihood=likelihoods.Normal(0.1))
    x = torch.randn(5, 3)
    nodes = nodes_of(model, x)
    assert model.sites == tuple(name for name, _ in net.named_parameters())
    assert model.point_estimates == ()
    assert not list(model.parameters())
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(nodes[name]["value"])
        assert_close(nodes["f"]["value"], twin(x))


@pytest.mark.parametrize("bayes", [bayesian, bayesian_dropout])
def test_a_compiled_network_is_the_network_itself(
    bayes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch.compile switches it off for the process
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def net(compiled: Any) -> Any:
        twice = compiled(nn.Linear(4, 4))
        inner = nn.Sequential(twice, nn.Tanh(), twice)
        layers = nn.Linear(3, 4), compiled(inner), nn.Dropout(0.1), nn.Linear(4, 1)
        return compiled(nn.Sequential(*layers))

    given = net(functools.partial(torch.compile, backend="eager"))
    model, plain = bayes(given), bayes(net(lambda module: module))
    assert str(model.net) == str(plain.net)
    assert model.net.state_dict().keys() == plain.net.state_dict().keys()
    assert model(torch.zeros(5, 3)).shape == (5, 1)
    assert "OptimizedModule" in str(given)  # the user's own is left as it is


def test_the_users_network_is_left_as_it_is() -> None:
    net = TiedNet()
    before = copy.deepcopy(net.state_dict())
    model = bayesian(net)
    model.double()
    model(torch.zeros(2, 3, dtype=torch.float64))
    assert len(list(net.parameters())) == 5
    assert net.a.weight is net.b.weight
    for name, value in net.state_dict().items():
        assert_close(value, before[name], rtol=0, atol=0)


def test_fan_in_of_a_convolution_counts_channels_and_kernel() -> None:
    net = nn.Sequential(nn.Conv2d(4, 2, (3, 5)), nn.Flatten(), nn.Linear(2, 1))
    nodes = nodes_of(bayesian(net), torch.zeros(1, 4, 3, 5))
    assert nodes["0.weight"]["fn"].variance.unique().item() == pytest.approx(1 / 60)
    assert nodes["0.bias"]["fn"].variance.unique().item() == 1.0


def test_parameters_that_no_pattern_matches_are_listed_and_stay() -> None:
    net = linear_net()
    model = bayesian(net, {"*.weight": priors.Normal()})
    assert model.sites == ("0.weight", "2.weight")
    assert model.point_estimates == ("0.bias", "2.bias")
    assert [name for name, _ in model.named_parameters()] == ["net.0.bias", "net.2.bias"]
    for name in model.point_estimates:
        own, users = model.net.get_parameter(name), net.get_parameter(name)
        assert own is not users
        assert_close(own, users)


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(
        SiteError,
        match=r"pattern 'head.\*' matches no parameter; there are 0.weight, 0.bias, 2.weight, 2.bi",
    ):
        bayesian(linear_net(), {"head.*": priors.Normal()})


def test_a_pattern_of_a_tied_weight_leads_to_its_first_name() -> None:
    net = nn.ModuleDict({"emb": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    net["head"].weight = net["emb"].weight
    words = r"'head\.\*' matches no parameter of its own: head\.weight is .* as emb\.weight; name"
    with pytest.raises(SiteError, match=words):
        bayesian(net, {"head.*": priors.Normal()})
    assert bayesian(net, {"emb.weight": priors.Normal(1.0)}).sites == ("emb.weight",)


@pytest.mark.parametrize("double", [False, True])
def test_a_tied_weight_is_one_site_in_two_places(double: bool) -> None:
    model = bayesian(TiedNet(), likelihood=likelihoods.Normal(0.1))
    x = torch.randn(4, 3)
    if double:
        model, x = model.double(), x.double()
    nodes = nodes_of(model, x)
    assert "b.weight" not in nodes
    v = {name: nodes[name]["value"] for name in model.sites}
    h = torch.tanh(x @ v["a.weight"].T + v["a.bias"])
    h = torch.tanh(h @ v["a.weight"].T + v["b.bias"])
    assert_close(nodes["f"]["value"], h @ v["out.weight"].T + v["out.bias"])


@pytest.mark.parametrize("double", [False, True])
def test_a_tied_point_estimate_stays_tied(double: bool) -> None:
    model = bayesian(TiedNet(), {"*.bias": priors.Normal(), "out.*": priors.Normal()})
    if double:
        model = model.double()
    net: Any = model.net
    assert model.point_estimates == ("a.weight",)
    assert net.a.weight is net.b.weight
    assert len(list(model.parameters())) == 1


def test_two_models_of_one_network_prior_and_likelihood_share_nothing() -> None:
    net, likelihood = linear_net(), likelihoods.Normal(0.5)
    prior = dist.Normal(torch.tensor(0.0), torch.tensor(1.0))
    first, second = (bayesian(net, {"0.*": prior}, likelihood) for _ in range(2))
    first.double()
    with torch.no_grad():
        first.likelihood.scale.fill_(3.0)
        for parameter in first.parameters():
            parameter.fill_(7.0)
    assert float(second.likelihood.scale) == float(likelihood.scale) == 0.5
    assert second(torch.zeros(2, 3)).dtype == torch.float32
    assert not any((parameter == 7.0).any() for parameter in second.parameters())


def test_buffers_of_the_network_are_kept() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()
    net.get_buffer("1.running_mean").fill_(2.5)
    model = bayesian(net, likelihood=likelihoods.Normal(0.1))
    assert_close(model.net.get_buffer("1.running_mean"), torch.full((4,), 2.5))


@pytest.mark.parametrize(
    ("net", "error", "message"),
    [
        (lambda x: x, OptionError, "net is a torch.nn.Module, not <function"),
        (MLP(3), OptionError, "net is a MLP, a Pyro model already: pass it to an engine as it is"),
        (nn.ReLU(), ModelError, "ReLU has no parameters to put a prior on"),
    ],
)
def test_what_is_no_network_is_refused(net: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bayesian(net)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten(0)), r"\(10,\)"),
        (nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Linear(1, 2)), r"\(5, 3, 2\)"),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten(0), nn.Unflatten(0, (2, 5))), r"\(2, 5\)"),
    ],
)
def test_an_output_that_is_not_rows_of_f_is_refused(net: nn.Module, shape: str) -> None:
    model = bayesian(net)
    with pytest.raises(
        ModelError,
        match=rf"the network maps x of shape \(5, 3\) to {shape}, but f is \[N, F\], one row for "
        r"each row of x, or \[N\]; end the network with torch.nn.Flatten\(\)",
    ):
        model(torch.zeros(5, 3))


class Squeezed(nn.Linear):
    """A network of one output that ends as many do; one row becomes a number."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


@pytest.mark.parametrize("make", [bayesian, bayesian_dropout])
def test_a_network_of_one_output_may_drop_the_column(make: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kept = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1))
    dropped = copy.deepcopy(kept)
    dropped[1] = Squeezed(3, 1)
    dropped.load_state_dict(kept.state_dict())
    x = torch.linspace(-1, 1, 15).reshape(5, 3)
    if make is bayesian:
        kept, dropped = kept.eval(), dropped.eval()
    found = []
    for net in (kept, dropped):
        program = Program(make(net, likelihood=likelihoods.Normal(0.1)), x, x[:, 0])
        z = torch.linspace(-1, 1, program.num_latents)
        rows = program.log_likelihood(z, program.batch(x, x[:, 0]))
        found.append((program.function(z, x), program.function(z, x[:1]), rows))
    torch.testing.assert_close(found[1], found[0])
    assert found[1][0].shape == (5, 1)


def test_priors_and_likelihood_take_the_dtype_of_the_network() -> None:
    model = bayesian(linear_net().double())
    nodes = nodes_of(model, torch.randn(5, 3, dtype=torch.float64))
    assert {nodes[name]["value"].dtype for name in model.sites} == {torch.float64}
    assert nodes["likelihood.scale"]["value"].dtype == torch.float64
    assert nodes["y"]["value"].dtype == torch.float64


# --- hierarchical priors -------------------------------------------------------------------------


@pytest.mark.parametrize("centred", [False, True])
def test_a_tied_weight_with_a_hierarchy_stays_tied(centred: bool) -> None:
    prior = priors.Horseshoe(slab_scale=2.0, centred=centred)
    model = bayesian(TiedNet(), prior, likelihoods.Normal(0.1))
    x = torch.randn(4, 3)
    nodes = nodes_of(model, x)
    assert not [name for name in nodes if name.startswith("b.weight")]
    v = {name: nodes[name]["value"] for name in model.sites}
    h = torch.tanh(x @ v["a.weight"].T + v["a.bias"])
    h = torch.tanh(h @ v["a.weight"].T + v["b.bias"])
    assert_close(nodes["f"]["value"], h @ v["out.weight"].T + v["out.bias"])


def test_hierarchies_by_pattern_in_a_partially_bayesian_net() -> None:
    net = linear_net().double()
    patterns: Any = {"0.weight": priors.HalfCauchyScale(per="input"), "0.*": priors.Normal()}
    model = bayesian(net, patterns, likelihoods.Normal(0.1))
    assert model.sites == ("0.weight", "0.bias")
    assert model.point_estimates == ("2.weight", "2.bias")
    nodes = nodes_of(model, torch.randn(5, 3, dtype=torch.float64))
    sampled = [name for name, node in nodes.items() if node["type"] == "sample"]
    assert sampled[:4] == ["0.weight.scale", "0.weight.raw", "0.weight", "0.bias"]
    assert nodes["0.weight.scale"]["value"].shape == (1, 3)
    assert {nodes[name]["value"].dtype for name in sampled[:4]} == {torch.float64}


@pytest.mark.parametrize("prior", [None, priors.Normal(0.3), priors.Cauchy(0.5)])
def test_normalisations_start_as_the_identity_and_weights_at_draws(prior: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))
    x, y = torch.randn(20, 3), torch.randn(20)
    model = bayesian(net, prior)
    program, guide = Program(model, x, y), guides.AutoNormal(model)
    guide.setup(x, y)
    for start in (program.initial, guide.loc.detach()):
        values = program.constrain(start)
        assert_close(values["1.weight"], torch.ones(8))
        assert_close(values["1.bias"], torch.zeros(8))
        assert values["0.weight"].std() > 0.1
    drawn = program.constrain(program.prior_draws(500, x, 0))  # the prior is as it was
    assert drawn["1.weight"].std() > 0.2
    assert drawn["1.bias"].std() > 0.2


def test_gains_of_priors_of_their_own_start_at_draws_of_these() -> None:
    norm = nn.LayerNorm(8)
    nn.init.constant_(norm.weight, 0.2)
    nn.init.constant_(norm.bias, 2.0)
    net = nn.Sequential(nn.Linear(3, 8), norm, nn.Tanh(), nn.Linear(8, 1))
    x, y = torch.randn(20, 3), torch.randn(20)
    trained = Program(bayesian(net, priors.Pretrained(net, scale=0.01)), x, y)
    values = trained.constrain(trained.initial)
    assert_close(values["1.weight"], torch.full((8,), 0.2), atol=0.05, rtol=0)
    assert_close(values["1.bias"], torch.full((8,), 2.0), atol=0.05, rtol=0)
    positive = dist.HalfNormal(1.0).expand([8]).to_event(1)  # whose support has 0, at infinity
    own = bayesian(
        net, {"1.weight": priors.Normal(0.01, loc=3.0), "1.bias": positive, "*": priors.Normal()}
    )
    program = Program(own, x, y)
    assert program.initial.isfinite().all()
    assert_close(
        program.constrain(program.initial)["1.weight"], torch.full((8,), 3.0), atol=0.05, rtol=0
    )


def test_a_guides_own_start_is_that_of_normalisations_too() -> None:
    model = bayesian(nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 1)))
    guide = guides.AutoNormal(
        model, init_loc_fn=init_to_value(values={"1.weight": torch.arange(8.0)})
    )
    guide.setup(torch.randn(20, 3), torch.randn(20))
    median = guide.median(torch.randn(20, 3), torch.randn(20))
    assert_close(median["1.weight"], torch.arange(8.0))


# --- networks as users have them ------------------------------------------------------------------


def between(layer: nn.Module) -> nn.Sequential:
    """A network with this layer in the middle."""
    return nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 1))


def pruned() -> nn.Module:
    net = between(nn.Linear(4, 4))
    prune.random_unstructured(net[1], "weight", amount=0.5)
    return net


def older_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="deprecated"):
        return between(nn.utils.weight_norm(nn.Linear(4, 4)))


USABLE: dict[str, Callable[[], nn.Module]] = {
    "weight_norm of inputs": lambda: between(parametrizations.weight_norm(nn.Linear(4, 4), dim=1)),
    "weight_norm of all": lambda: between(parametrizations.weight_norm(nn.Linear(4, 4), dim=-1)),
    "weight_norm": lambda: between(parametrizations.weight_norm(nn.Linear(4, 4))),
    "older weight_norm": older_weight_norm,
    "spectral_norm": lambda: between(parametrizations.spectral_norm(nn.Linear(4, 4))).eval(),
    "older spectral_norm": lambda: between(nn.utils.spectral_norm(nn.Linear(4, 4))).eval(),
    "pruned": pruned,
    "PReLU": lambda: between(nn.PReLU(4)),
    "a slope for all": lambda: between(nn.PReLU()),
    "GRUCell": RecurrentNet,
    "DataParallel": lambda: nn.DataParallel(between(nn.DataParallel(nn.Linear(4, 4)))),
}


@pytest.mark.parametrize("kind", USABLE)
def test_draws_and_derivatives_are_those_of_the_users_own_network(kind: str) -> None:
    """Draws, and rows of draws, at once beside torch, a draw at a time; Laplace needs them all."""
    net = USABLE[kind]().double()
    x = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)
    model = bayesian(net, priors.Normal(1.0), likelihoods.Normal(0.1))
    program = Program(model, x, x[:, 0])
    z = torch.linspace(-1, 1, 3 * program.num_latents, dtype=torch.float64).sin().reshape(3, -1)
    f = program.function(z, x)
    inner = net.module if isinstance(net, nn.DataParallel) else net
    own = dict(inner.named_parameters())
    for f_of_draw, draw in zip(f, z, strict=True):
        values = program.constrain(draw)
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(values[name.replace("1.module.", "1.")])
            assert_close(f_of_draw, inner(x))
    slope = torch.func.jacrev(lambda z, row: program.function(z, row[None])[0])
    slopes = torch.func.vmap(torch.func.vmap(slope, (None, 0)), (0, None))(z, x)
    _, along = cast(
        tuple[Tensor, Tensor],
        torch.func.jvp(lambda z: program.function(z, x), (z[0],), (z[1],)),
    )
    steps = [program.function(z[0] + step * z[1], x) for step in (-1e-6, 1e-6)]
    assert_close(along, (steps[1] - steps[0]) / 2e-6, rtol=1e-6, atol=1e-6)
    assert_close(slopes[0] @ z[1], along)
    copy.deepcopy(model)  # holds nothing of the draws


class Cached(nn.Linear):
    """Its weight is doubled outside of forward."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.doubled = self.weight * 2

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.doubled)


@pytest.mark.parametrize("make", [bayesian, bayesian_dropout])
@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(1)), "0 is a LazyLinear whose shapes are not known"),
        (lambda: torch.jit.trace(nn.Linear(3, 1), torch.zeros(2, 3)), "of torch.jit"),
        (lambda: between(torch.jit.trace(nn.Tanh(), torch.zeros(2, 4))), "1 is a TopLevelTraced"),
        (Cached, r"net is a Cached whose doubled is computed .*: compute it in forward"),
    ],
)
def test_modules_without_parameters_to_draw_are_refused_by_name(
    make: Any, net: Any, message: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, lazy modules are new
        made = net()
    with pytest.raises(ModelError, match=message):
        make(made)


class Returns(nn.Linear):
    """A network that returns its output in something."""

    def __init__(self, wrap: Any) -> None:
        super().__init__(3, 1)
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(super().forward(x))


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda f: (f, f), r"returns a tuple, but f is one tensor .*, as in net\(x\)\[0\]"),
        (lambda f: {"logits": f}, r"returns a dict, .*, as in net\(x\)\['logits'\]"),
        (lambda f: None, "returns a NoneType, but .* whose forward returns one$"),
    ],
)
def test_outputs_in_a_tuple_or_dict_are_refused(wrap: Any, message: str) -> None:
    model = bayesian(Returns(wrap))
    with pytest.raises(ModelError) as raised:
        Program(model, torch.zeros(5, 3), torch.zeros(5))
    assert re.search(message, str(raised.value), re.MULTILINE)


@pytest.mark.parametrize("mode", [True, False])
def test_batch_normalisation_without_statistics_is_refused_in_either_mode(*, mode: bool) -> None:
    net = between(nn.BatchNorm1d(4, track_running_stats=False)).train(mode)
    with pytest.raises(
        ModelError, match=r"net.1 is a BatchNorm1d without running statistics: .*Gr"
    ):
        Program(bayesian(net), torch.zeros(5, 3), torch.zeros(5))


@pytest.mark.parametrize(
    "norm", [parametrizations.spectral_norm, nn.utils.spectral_norm], ids=["newer", "older"]
)
def test_spectral_norm_in_training_mode_is_refused_by_name(norm: Any) -> None:
    with pytest.raises(ModelError, match=r"net.1 has spectral_norm in training mode, .*\.eval\(\)"):
        Program(bayesian(between(norm(nn.Linear(4, 4)))), torch.zeros(5, 3), torch.zeros(5))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("index", [-2, 7])
def test_an_index_beyond_an_embedding_is_named(kind: Any, index: int) -> None:
    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = kind(5, 2), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Any:
            return self.head(self.words(x.long()).reshape(len(x), 2))

    model = bayesian(Looked(), priors.Normal(1.0), likelihoods.Normal(0.1))
    x, y = torch.arange(5.0)[:, None], torch.zeros(5)
    beyond = x.clone()
    beyond[3] = index
    message = rf"the {kind.__name__} net.words has entries 0 to 4, but is asked for {index}: raise"
    with pytest.raises(ModelError, match=message):
        Program(model, beyond, y)
    posterior = SVI(guides.AutoNormal, num_steps=2).run(model, (x, y))
    with pytest.raises(ModelError, match=message):
        posterior.predict(beyond)
