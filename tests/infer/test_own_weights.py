"""Fits of ``bayesian(net)`` start at the weights of a trained network: at least as good as it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal as PyroAutoNormal
from pyro.infer.autoguide import init_to_value
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import SVI, bayesian, guides, infer, likelihoods, priors
from pyro_bnn.data import Dataset
from pyro_bnn.errors import OptionError
from pyro_bnn.infer.own_weights import OwnWeights, chosen_init, for_members, tell_order
from pyro_bnn.infer.starting_points import own_start
from pyro_bnn.infer.steps.starts import NEAR, _candidates
from pyro_bnn.models import MLP, BayesianModule
from pyro_bnn.posterior import Posterior
from pyro_bnn.program import Program
from tests.collection import GENERAL
from tests.infer.test_starts import X, start_points

pytestmark = pytest.mark.usefixtures("uncaptured")

HIDDEN, CLASSES = 16, 3
ERRORS = 3.0  # standard errors of a paired difference that count as none
LINE = "of the network itself"


class Trained(NamedTuple):
    """A network that was trained, and rows that it has not seen."""

    net: nn.Sequential
    train: tuple[Tensor, Tensor]
    x: Tensor
    y: Tensor

    def model(self) -> BayesianModule:
        """The body as it is, and a prior over the head."""
        prior = {"2.*": priors.Normal(1.0)}
        return bayesian(self.net, prior, likelihoods.Categorical(CLASSES))

    def own_nll(self) -> Tensor:
        """Of each row ``[N]``, by the network."""
        with torch.no_grad():
            return nn.functional.cross_entropy(self.net(self.x), self.y, reduction="none")

    def gain_of(self, posterior: Posterior) -> Tensor:
        """How much better a posterior predicts each row ``[N]``, nats."""
        return self.own_nll() + posterior.predict(
            self.x, posterior.num_stored_draws or 200
        ).log_prob(self.y)


@functools.cache
def trained() -> Trained:
    """Three rings of classes in the plane, which a fit of 30 steps from a draw does not tell."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(460, 2, generator=generator)
    noise = 0.2 * torch.randn(460, generator=generator)
    y = (x.norm(dim=-1) + noise > 0.8).long() + (x.norm(dim=-1) + noise > 1.5).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    adam = torch.optim.AdamW(net.parameters(), lr=0.03, weight_decay=0.1)
    for _ in range(300):
        adam.zero_grad()
        nn.functional.cross_entropy(net(x[:160]), y[:160]).backward()
        adam.step()
    net.requires_grad_(requires_grad=False)
    return Trained(net, (x[:160], y[:160]), x[160:], y[160:])


# The law


CHAINS: dict[str, Any] = {"num_chains": 2, "warmup_steps": 10, "num_samples": 10}
LONGER = CHAINS | {"warmup_steps": 20}
STEPS: dict[str, Any] = {"num_steps": 30, "learning_rate": 1e-3}
ENGINES: dict[str, Callable[..., Any]] = {
    "BAOAB": functools.partial(infer.BAOAB, **LONGER),
    "Cyclical": lambda: infer.Cyclical(infer.BAOAB(**LONGER), exploration=0.0),
    "Ensemble": functools.partial(infer.Ensemble, num_members=3, num_steps=300, learning_rate=0.03),
    "HMC": functools.partial(infer.HMC, **CHAINS),
    "IVON": functools.partial(infer.IVON, num_steps=30),
    "Laplace": functools.partial(infer.Laplace, num_steps=30, learning_rate=1e-3),
    "MAMS": functools.partial(infer.MAMS, **CHAINS),
    "MCDropout": functools.partial(infer.MCDropout, **STEPS),
    "MCLMC": functools.partial(infer.MCLMC, **CHAINS),
    "MILE": functools.partial(infer.MILE, num_members=2, warmup_steps=10, num_samples=10),
    "NUTS": functools.partial(infer.NUTS, max_tree_depth=4, **CHAINS),
    "PSGLD": functools.partial(infer.PSGLD, **LONGER),
    "SGHMC": functools.partial(infer.SGHMC, **LONGER),
    "SGLD": functools.partial(infer.SGLD, **LONGER),
    "SGNHT": functools.partial(infer.SGNHT, **LONGER),
    "SLANG": functools.partial(infer.SLANG, num_steps=30),
    "SVI": functools.partial(SVI, guides.AutoNormal, **STEPS),
    "SWAG": functools.partial(infer.SWAG, num_steps=30, num_iterates=4, rank=2),
    "Subspace": lambda: infer.Subspace(
        infer.NUTS(**LONGER, max_tree_depth=3),
        rank=2,
        around=infer.SWAG(num_steps=300, num_iterates=20, rank=2),
    ),
    "VOGN": functools.partial(infer.VOGN, num_steps=30),
    "VON": functools.partial(infer.VON, num_steps=30),
    "Vadam": functools.partial(infer.Vadam, num_steps=30),
}
WITHOUT_START = {"CAVI", "Exact", "SMC"}
METHODS: dict[str, Callable[..., Any]] = {
    **{name: functools.partial(SVI, cls, **STEPS) for name, cls in GENERAL.items()},
    **ENGINES,
}


def test_every_engine_is_here() -> None:
    assert {*ENGINES} | WITHOUT_START == {*infer.__all__}


def test_a_fit_that_ends_by_itself_has_one_start() -> None:
    """Others would be draws of the prior, of which the best goes on."""
    given = trained()
    fit = SVI(guides.AutoNormal, max_steps=8_000)
    posterior = fit.run(given.model(), given.train, progress=False)
    assert posterior.options["num_starts"] == 1
    elsewhere = fit.run(given.model(), given.train, init="prior", progress=False)
    assert elsewhere.options["num_starts"] == 4


@pytest.mark.parametrize("name", METHODS)
def test_a_short_fit_predicts_as_well_as_the_network(name: str) -> None:
    given = trained()
    posterior = METHODS[name]().run(given.model(), given.train, progress=False)
    gain = given.gain_of(posterior)
    assert float(gain.mean()) >= -ERRORS * float(gain.std()) / len(gain) ** 0.5


def test_the_same_fit_from_a_draw_does_not() -> None:
    given = trained()
    posterior = METHODS["auto-normal"]().run(given.model(), given.train, init="prior")
    assert float(given.gain_of(posterior).mean()) < -0.5


# Where each begins


STILL: dict[str, Any] = {"num_steps": 1, "learning_rate": 1e-13, "compile": False}


def still(model: Any, guide: Any = guides.AutoDelta, **options: Any) -> Any:
    """The fit of a guide that does not move."""
    return SVI(guide, **STILL).run(model, (X, X[:, 0]), progress=False, **options)


def head(z: Tensor) -> Tensor:
    """Weights and biases of the head, in the order of sites ``[51]``, out of z."""
    return z[..., : HIDDEN * CLASSES + CLASSES]


def own_head() -> Tensor:
    return torch.cat([p.detach().flatten() for p in trained().net[2].parameters()])


@pytest.mark.parametrize("name", GENERAL)
def test_the_centre_of_a_guide_is_at_the_weights(name: str) -> None:
    given = trained()
    engine: Any = SVI(GENERAL[name], **STILL)
    posterior = engine.run(given.model(), given.train, progress=False)
    assert_close(head(posterior.guide.centre()), own_head(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "prior",
    [
        priors.Normal(),
        priors.StudentT(),
        priors.Horseshoe(),
        priors.HalfCauchyScale(),
        priors.HalfCauchyScale(centred=True),
    ],
    ids=repr,
)
def test_the_outputs_at_the_start_are_those_of_the_network(prior: Any) -> None:
    given = trained()
    model = bayesian(given.net, prior, likelihoods.Categorical(CLASSES))
    program = Program(model, *given.train)
    z, known = own_start(program, chosen_init(model, None))
    assert bool(known.all())
    with torch.no_grad():
        assert_close(program.function(z, given.x), given.net(given.x), rtol=1e-4, atol=1e-4)


def regression() -> BayesianModule:
    """A trained network of one input, and a noise scale that is to be learned."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2.0)
    return bayesian(net)


def test_the_first_chain_starts_at_the_weights_and_the_others_near_them() -> None:
    model, num_chains = regression(), 200
    program, z = start_points(model, chosen_init(model, None), num_chains)
    values = program.constrain(z)
    for name, own in model.own_weights().items():
        off = (values[name] - own).flatten(1)
        assert float(off[0].detach().abs().max()) < 1e-6
        scores = off[1:] / (NEAR * own.square().mean().sqrt())
        count = scores.numel()
        assert abs(float(scores.mean())) < 5 / count**0.5
        assert abs(float(scores.square().mean()) - 1) < 5 * (2 / count) ** 0.5
    noise = values["likelihood.scale"]
    assert len(noise.unique()) == 1  # at the median, as without a start


def test_all_chains_start_elsewhere_after_a_start_without_density() -> None:
    model = regression()
    init = chosen_init(model, None)
    first = start_points(model, init, 2)[1]
    program = Program(model, torch.zeros(3, 1), torch.zeros(3))
    prior = program.prior_draws(2, seed=0)
    later = _candidates(program, init, prior, 1, is_first=False)
    assert not torch.equal(first[0], later[0])


def members_of(engine: Any, model: Any, **options: Any) -> Tensor:
    posterior = engine.run(model, (X, X[:, 0]), progress=False, **options)
    return torch.as_tensor(posterior.guide.atoms()).detach()


def test_the_first_member_starts_at_the_weights_and_the_others_at_draws() -> None:
    model = regression()
    engine = infer.Ensemble(num_members=3, num_steps=1, learning_rate=1e-13, compile=False)
    found, drawn = (members_of(engine, model, init=init) for init in (None, "prior"))
    own = torch.cat([v.flatten() for v in model.own_weights().values()])
    assert_close(found[0, : len(own)], own, rtol=1e-5, atol=1e-6)
    assert_close(found[1:], drawn[1:], rtol=0, atol=0)
    assert not torch.equal(drawn[0], found[0])


def test_the_same_of_members_that_are_guides() -> None:
    model = regression()
    engine = infer.Ensemble(num_members=2, member=SVI(guides.AutoNormal, **STILL))
    found, drawn = (
        engine.run(model, (X, X[:, 0]), init=init, progress=False).guide for init in (None, "prior")
    )
    own = torch.cat([v.flatten() for v in model.own_weights().values()])
    first, second = ([each.centre() for each in guide._guides] for guide in (found, drawn))
    assert_close(first[0][: len(own)], own, rtol=1e-5, atol=1e-6)
    assert_close(first[1], second[1], rtol=0, atol=0)


def test_all_members_of_mile_but_the_first_start_at_draws() -> None:
    model = regression()
    init = for_members(chosen_init(model, None))
    found, drawn = (start_points(model, start, 3)[1] for start in (init, None))
    own = torch.cat([v.flatten() for v in model.own_weights().values()])
    assert_close(found[0, : len(own)], own, rtol=1e-5, atol=1e-6)
    assert_close(found[1:], drawn[1:], rtol=0, atol=0)


def test_the_gaussian_of_a_natural_gradient_starts_at_the_weights() -> None:
    given = trained()
    engine = infer.VON(num_steps=1, learning_rate=1e-13, descent_steps=0)
    posterior = engine.run(given.model(), given.train, progress=False)
    assert_close(head(posterior.guide.centre()), own_head(), rtol=1e-5, atol=1e-6)


# What comes before it, and what has no start


def test_what_is_given_as_init_comes_first() -> None:
    model, init = regression(), {"2.bias": torch.tensor([7.0])}
    posterior = still(model, init=init)
    values = posterior.program.constrain(posterior.guide.centre())
    assert float(values["2.bias"].detach()) == pytest.approx(7.0)
    assert not torch.allclose(values["0.weight"], model.own_weights()["0.weight"])


def test_so_does_what_the_guide_says() -> None:
    model, zeros = regression(), torch.zeros(1)
    guide = functools.partial(guides.AutoDelta, init_loc_fn=init_to_value(values={"2.bias": zeros}))
    posterior = still(model, guide)
    values = posterior.program.constrain(posterior.guide.centre())
    assert abs(float(values["2.bias"].detach())) < 1e-6


def test_a_guide_goes_on_from_where_it_was() -> None:
    model = regression()
    guide = guides.AutoDelta(model)
    SVI(guide, num_steps=5, learning_rate=0.1, compile=False).run(model, (X, X[:, 0]))
    before = guide.centre().detach().clone()
    still(model, guide)
    assert_close(guide.centre().detach(), before, rtol=0, atol=1e-6)


def test_a_site_without_the_weights_in_its_support_starts_at_its_prior() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Linear(30, 1)
    prior = {"weight": dist.HalfNormal(1.0).expand([1, 30]).to_event(2), "bias": priors.Normal()}
    with torch.no_grad():
        net.bias.fill_(3.0)
    model = bayesian(net, prior)
    x = torch.ones(4, 30)
    program = Program(model, x, x[:, 0])
    init = chosen_init(model, None)
    assert isinstance(init, OwnWeights)
    _, known = own_start(program, init)
    told = {site.name: bool(known[site.start : site.stop].all()) for site in program.sites}
    assert told == {"weight": False, "bias": True, "likelihood.scale": False}


def test_a_site_that_is_conditioned_on_is_left_out() -> None:
    model = regression()
    conditioned = pyro.condition(model, {"2.bias": torch.zeros(1)})
    posterior = still(conditioned)
    values = posterior.program.constrain(posterior.guide.centre())
    assert "2.bias" not in values
    assert_close(values["0.weight"], model.own_weights()["0.weight"], rtol=1e-5, atol=1e-6)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if LINE in message]


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (SVI(guides.AutoNormal, **STILL), "The fit starts"),
        (infer.VON(num_steps=2), "The fit starts"),
        (infer.NUTS(**CHAINS, max_tree_depth=2), "The first chain starts"),
        (infer.NUTS(**{**CHAINS, "num_chains": 1}, max_tree_depth=2), "The chain starts"),
        (infer.Ensemble(num_members=2, num_steps=2), "The first member starts"),
        (infer.Ensemble(num_members=2, member=SVI(guides.AutoNormal, **STILL)), "The first member"),
        (ENGINES["MILE"](), "The first member starts"),
    ],
)
def test_it_is_told_in_one_line(engine: Any, words: str, caplog: pytest.LogCaptureFixture) -> None:
    given = trained()
    model = given.model()
    engine.run(model, given.train)
    (line,) = lines(caplog)
    assert line.startswith(words)
    assert 'init="prior"' in line
    caplog.clear()
    engine.run(model, given.train, init="prior")
    assert lines(caplog) == []


def test_a_run_without_a_bar_tells_those_who_listen(caplog: pytest.LogCaptureFixture) -> None:
    still(regression())
    assert lines(caplog) == []
    with caplog.at_level(logging.INFO, "pyro_bnn"):
        still(regression())
    assert len(lines(caplog)) == 1


def orders(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if "have to be in this order" in record.message]


def test_the_order_of_named_classes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    given = trained()
    x, y = given.train
    text = np.array(["sun", "moon", "earth"])[y.numpy()]  # sorted, "earth" is 0
    svi = SVI(guides.AutoNormal, **STILL)
    svi.run(given.model(), (x, text), progress=False)
    (record,) = orders(caplog)
    assert record.levelno == logging.INFO  # without a bar, as the line on the start
    assert record.message.startswith("class 0 is 'earth', 1 is 'moon', 2 is 'sun': the outputs of")
    caplog.clear()
    infer.Ensemble(num_members=2, num_steps=2).run(given.model(), (x, text), progress=False)
    assert len(orders(caplog)) == 1
    caplog.clear()
    svi.run(given.model(), (x, y), progress=False)
    digits = Dataset(x, y, class_names=("0", "1", "2"))
    svi.run(given.model(), digits, progress=False)
    svi.run(given.model(), (x, text), init="prior", progress=False)
    assert orders(caplog) == []


def test_of_many_classes_the_first_and_the_last_are_told(caplog: pytest.LogCaptureFixture) -> None:
    tell_order([f"c{label}" for label in range(1_000)], logging.WARNING)
    assert "18 is 'c18', ..., 999 is 'c999': the outputs" in caplog.messages[0]


@pytest.mark.parametrize(
    "engine",
    [
        infer.SMC(num_islands=1, num_particles=20),
        SVI(PyroAutoNormal, **{**STILL, "compile": "auto"}),
    ],
)
def test_what_starts_elsewhere_does_not_say_so(
    engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine.run(regression(), (X, X[:, 0]))
    assert lines(caplog) == []


def test_an_untrained_network_starts_at_the_prior(caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    model = bayesian(net)
    assert chosen_init(model, None) is None
    found, drawn = (still(model, init=init) for init in (None, "prior"))
    assert_close(found.guide.centre(), drawn.guide.centre(), rtol=0, atol=0)
    assert lines(caplog) == []


def test_models_of_no_network_have_no_such_start() -> None:
    assert chosen_init(MLP(1, hidden=(4,)), None) is None


def test_another_word_is_refused() -> None:
    with pytest.raises(OptionError, match='init="net" is no start: take "prior", a posterior'):
        still(regression(), init="net")
