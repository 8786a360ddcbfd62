from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pyro import poutine

from pyro_bnn import priors, registry
from pyro_bnn.cli import networks
from pyro_bnn.cli.methods import NamedMethod, find_methods
from pyro_bnn.cli.networks import NetworkSpec, build_models, describe, make_networks
from pyro_bnn.cli.options import DataOptions, NetworkOptions
from pyro_bnn.data import Dataset, Split, from_arrays
from pyro_bnn.data.split import holds_counts
from pyro_bnn.errors import OptionError, UnknownNameError
from pyro_bnn.guides import AutoNormal
from pyro_bnn.infer import NUTS
from pyro_bnn.likelihoods import (
    Bernoulli,
    Categorical,
    HeteroscedasticNormal,
    Likelihood,
    Normal,
    Poisson,
)
from pyro_bnn.models import MLP, Rank1MLP
from tests.rows import classes, regression, split_of

ONE = {"AutoNormal": NamedMethod(AutoNormal)}


def network(split: Split, **options: Any) -> NetworkSpec:
    """The network of one guide."""
    options = {"hidden": "4", **options}
    return make_networks(ONE, split, NetworkOptions(**options))["AutoNormal"]


def build(split: Split, **options: Any) -> Any:
    return network(split, **options).build()


class RankOne(AutoNormal):
    """A guide that is made for a model."""

    needs_model = "Rank1MLP"


# --- likelihoods ---------------------------------------------------------------------------------


def test_likelihood_follows_the_task() -> None:
    assert type(build(regression()).likelihood) is Normal
    assert type(build(classes(2)).likelihood) is Bernoulli
    likelihood = build(classes(3)).likelihood
    assert isinstance(likelihood, Categorical)
    assert likelihood.num_classes == 3


def test_counts_are_poisson_by_default_and_by_the_likelihood() -> None:
    x = torch.arange(40.0)[:, None]
    split = from_arrays(x, torch.arange(40) % 5, task="counts")
    assert type(build(split).likelihood) is Poisson
    assert split.train.target is None
    _, task, *_ = describe(split, {}, NetworkOptions())
    assert task == (
        "Task:  regression as counts, which stay as they are; inputs standardised by the training "
        "rows"
    )
    with pytest.raises(OptionError, match="Normal describes numbers, but the target holds counts"):
        network(split, likelihood="normal")


def test_a_target_is_of_counts_where_the_likelihood_is_and_no_task_is_said(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "".join(f"{i},{i % 5}\n" for i in range(40)))

    def is_of_counts(likelihood: str | None, task: Any = None) -> bool:
        rows = networks.load_rows(DataOptions(data=str(path), task=task), likelihood)
        return holds_counts(rows)

    assert is_of_counts("poisson")
    assert not is_of_counts("poisson", "regression")
    assert not is_of_counts("student-t")
    assert not is_of_counts(None)
    assert is_of_counts(None, "counts")


def test_another_likelihood_that_fits() -> None:
    assert type(build(regression(), likelihood="heteroscedastic-normal").likelihood) is (
        HeteroscedasticNormal
    )
    likelihood = build(classes(2), likelihood="Categorical").likelihood
    assert isinstance(likelihood, Categorical)
    assert likelihood.num_classes == 2


@pytest.mark.parametrize(
    ("split", "name", "message"),
    [
        (classes(3), "bernoulli", "Bernoulli describes 2 classes, but the target holds 3 classes"),
        (classes(3), "normal", "Normal describes numbers, but the target holds 3 classes"),
        (regression(), "bernoulli", "Bernoulli describes 2 classes, but the target holds numbers"),
        (regression(), "categorical", "leave --likelihood out for Normal"),
        (classes(3), "normal", "leave --likelihood out for Categorical"),
        (classes(2), "normal", "leave --likelihood out for Bernoulli"),
    ],
)
def test_a_likelihood_that_does_not_fit(split: Split, name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        network(split, likelihood=name)


class Counts(Likelihood):
    """Poisson counts."""

    def distribution(self, f: torch.Tensor) -> Any:
        import pyro.distributions as dist

        return dist.Poisson(f.exp()).to_event(1)


class Needy(Normal):
    """A likelihood that the command line cannot make."""

    def __init__(self, df: float, scale: float) -> None:
        super().__init__(scale)


def test_counts_do_not_fit_standardised_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (networks, registry):
        monkeypatch.setattr(module, "lookup", lambda kind, name: Counts)
    with pytest.raises(
        OptionError,
        match=r"Counts describes counts, but the target holds numbers: .*or say --task counts",
    ):
        networks._likelihood_name("counts", regression(), 1)


def test_a_class_without_defaults_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (networks, registry):
        monkeypatch.setattr(module, "lookup", lambda kind, name: Needy)
    expected = "the likelihood Needy needs df and scale, which its name does not set: take another"
    with pytest.raises(OptionError, match=expected):
        networks._likelihood_name("needy", regression(), 1)


# --- models and priors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "num_outputs"), [(regression(), 1), (regression(num_targets=2), 2), (classes(3), 3)]
)
def test_layers_have_the_sizes_of_the_data(split: Split, num_outputs: int) -> None:
    model = build(split, hidden=" 4, 5")
    assert model.num_inputs == split.train.x.shape[1]
    assert [layer.num_outputs for layer in model.layers] == [4, 5, num_outputs]


@pytest.mark.parametrize("hidden", ["", "x", "4,x", "0", "-4", "4.5", "1_0", "4,", "²"])
def test_hidden_layers_are_positive_integers(hidden: str) -> None:
    with pytest.raises(OptionError, match=f"^hidden layers are positive .*50,50, not '{hidden}'$"):
        network(regression(), hidden=hidden)


def test_images_are_refused_by_a_model_of_rows() -> None:
    images = split_of(torch.randn(6, 1, 4, 4), torch.arange(6) % 2)
    with pytest.raises(OptionError, match=r"rows: inputs have shape \[6, 1, 4, 4\], but the netw"):
        network(images, model="mlp")


def test_images_get_a_model_of_images_and_rows_one_of_rows() -> None:
    labels = torch.arange(6) % 2
    assert network(split_of(torch.randn(6, 1, 4, 4), labels)).model == "LeNet"
    assert network(split_of(torch.randn(6, 16), labels)).model == "MLP"


def test_a_model_of_images_takes_images_and_square_rows() -> None:
    labels = torch.arange(6) % 3
    for x in (torch.randn(6, 1, 4, 4), torch.randn(6, 16)):
        plan = network(split_of(x, labels), model="le-net", activation="tanh")
        assert (plan.image_shape, plan.num_inputs, plan.hidden) == ((1, 4, 4), 16, ())
        model: Any = plan.build()
        assert model.image_shape == (1, 4, 4)
        assert model.activation is torch.tanh
        assert model(x).shape == (6,)
    found = lines(split_of(torch.randn(6, 3, 4, 4), labels), model="res-net", hidden="50")
    assert found[0].endswith("6 training and 6 held-out rows, inputs of 3 x 4 x 4")
    assert found[3].startswith("Model: ResNet 3x4x4, Normal(fan_in)")


def test_depth_and_width_are_each_that_asked_for() -> None:
    split = split_of(torch.randn(6, 1, 4, 4), torch.arange(6) % 2)
    plan = network(split, model="res-net", hidden="50", depth=14, width=3)
    assert (plan.depth, plan.width) == (14, 3)
    model: Any = plan.build()
    assert (model.depth, model.width) == (14, 3)
    rows = network(regression(), depth=14, width=3)  # of an MLP, which has neither
    assert (rows.depth, rows.width) == (None, None)


@pytest.mark.parametrize("shape", [(6, 15), (6, 4, 4)])
def test_rows_that_are_no_images_are_refused(shape: tuple[int, ...]) -> None:
    split = split_of(torch.randn(shape), torch.arange(6) % 2)
    with pytest.raises(
        OptionError, match=r"rows: inputs have shape .* but LeNet takes images \[N, C"
    ):
        network(split, model="le-net")


def test_names_that_are_not_known() -> None:
    for option, message in {
        "model": "unknown model 'mpl': did you mean 'mlp'?",
        "prior": "unknown prior 'horseshu': did you mean 'horseshoe'?",
        "likelihood": "unknown likelihood 'normul': did you mean 'normal'?",
        "activation": "unknown activation 'rely': did you mean 'relu'?",
    }.items():
        wrong = re.search("'(.*?)'", message)
        assert wrong is not None
        with pytest.raises(UnknownNameError, match=re.escape(message)):
            network(regression(), **{option: wrong[1]})


def test_activation_and_model_are_those_asked_for() -> None:
    model = build(regression(), activation="tanh", model="rank1-mlp")
    assert isinstance(model, Rank1MLP)
    assert model.activation is torch.tanh
    assert isinstance(build(regression()), MLP)


def sites(model: Any, num_inputs: int = 2) -> set[str]:
    trace = poutine.trace(model).get_trace(torch.zeros(1, num_inputs))
    return {name for name, site in trace.nodes.items() if site["type"] == "sample"}


def test_a_prior_by_name_has_its_defaults() -> None:
    for name in ("half-cauchy-scale", "HalfCauchyScale"):
        model = build(regression(), prior=name)
        assert sites(model) == sites(MLP(2, hidden=(4,), prior=priors.HalfCauchyScale()))
    assert sites(build(regression())) != sites(build(regression(), prior="half-cauchy-scale"))


def test_priors_over_factors_are_around_one() -> None:
    model = build(regression(), model="rank1-mlp", prior="cauchy")
    trace = poutine.trace(model).get_trace(torch.zeros(1, 2))
    base = trace.nodes["layers.0.s"]["fn"].base_dist
    assert float(base.loc.unique()) == 1.0
    torch.testing.assert_close(base.scale.unique(), torch.tensor([0.1]))
    trace = poutine.trace(build(regression(), prior="cauchy")).get_trace(torch.zeros(1, 2))
    assert float(trace.nodes["layers.0.weight"]["fn"].base_dist.loc.unique()) == 0.0


@pytest.mark.parametrize("prior", ["laplace", "student-t", "scale-mixture"])
def test_factors_stay_near_one(prior: str) -> None:
    trace = poutine.trace(build(regression(), model="rank1-mlp", prior=prior)).get_trace(
        torch.zeros(1, 2)
    )
    base = trace.nodes["layers.0.s"]["fn"].base_dist
    assert float(base.mean.unique()) == 1.0
    assert float(base.variance.max()) <= 2.001 * 0.1**2


MADE_OF_A_FIT = {"from-posterior": "posterior", "pretrained": "net"}  # with the argument it needs


@pytest.mark.slow("a second or more")
def test_every_prior_makes_every_model() -> None:
    from pyro_bnn.registry import entries

    split = split_of(torch.randn(6, 25), torch.randn(6))  # images of 5 x 5 too
    for prior in entries("prior").keys() - MADE_OF_A_FIT:
        for name in entries("model"):
            model = build(split, model=name, prior=prior)
            assert sites(model, 25) - {"y"}, (name, prior)


@pytest.mark.parametrize(("prior", "needed"), MADE_OF_A_FIT.items())
def test_priors_made_of_a_fit_are_for_python(prior: str, needed: str) -> None:
    with pytest.raises(OptionError, match=f"needs {needed}, which its name does not set"):
        build(regression(), prior=prior)


def test_a_guide_may_need_a_model() -> None:
    methods = {"RankOne": NamedMethod(RankOne), "AutoNormal": NamedMethod(AutoNormal)}
    found = make_networks(methods, regression(), NetworkOptions())
    assert {name: plan.model for name, plan in found.items()} == {
        "RankOne": "Rank1MLP",
        "AutoNormal": "MLP",
    }
    found = make_networks(methods, regression(), NetworkOptions(model="rank1-mlp"))
    assert found["RankOne"] == found["AutoNormal"]
    expected = "RankOne needs the model Rank1MLP, not MLP: leave --model out"
    with pytest.raises(OptionError, match=expected):
        make_networks(methods, regression(), NetworkOptions(model="mlp"))


def test_methods_of_one_network_share_one_model() -> None:
    methods = find_methods("nuts,auto-normal,auto-delta@normal,auto-normal@cauchy,nuts@cauchy")
    models = build_models(make_networks(methods, regression(), NetworkOptions(hidden="3")))
    plain, cauchy = models["NUTS"], models["NUTS @ Cauchy"]
    assert plain is not cauchy
    assert models["AutoNormal"] is models["AutoDelta @ Normal"] is plain
    assert models["AutoNormal @ Cauchy"] is cauchy


def test_the_prior_of_a_method_goes_before_that_of_all() -> None:
    methods = find_methods("nuts,nuts@cauchy")
    found = make_networks(methods, regression(), NetworkOptions(prior="horseshoe"))
    assert [plan.prior for plan in found.values()] == ["Horseshoe", "Cauchy"]


def test_the_same_fit_twice_is_refused() -> None:
    methods = {"NUTS": NamedMethod(NUTS), "NUTS @ Normal": NamedMethod(NUTS, "Normal")}
    expected = "NUTS and NUTS @ Normal are the same fit of the same network"
    with pytest.raises(OptionError, match=expected):
        make_networks(methods, regression(), NetworkOptions())


def test_initial_weights_follow_the_seed_and_no_other_state() -> None:
    plan = network(regression(), model="rank1-mlp")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = plan.build()
    torch.testing.assert_close(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, other = plan.build(), dataclasses.replace(plan, seed=5).build()
    weights = [model.layers[0].weight for model in (first, second, other)]  # type: ignore[attr-defined]  # a Rank1MLP
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
    assert not torch.equal(weights[0], weights[2])


# --- words ---------------------------------------------------------------------------------------


def lines(split: Split, methods: str = "auto-normal", **options: Any) -> list[str]:
    choice = NetworkOptions(**{"hidden": "4,6", **options})
    models = build_models(make_networks(find_methods(methods), split, choice))
    return list(describe(split, models, choice))


def test_description_of_a_regression() -> None:
    data = Dataset(torch.randn(5, 2), torch.randn(5), target_name="height (m)")
    split = Split(data, data.rows([0, 1]), "regression", "trees", 3)
    first, task, noise, model = lines(split)
    assert first == "Data:  trees, split 3: 5 training and 2 held-out rows, 2 inputs"
    assert task == "Task:  regression of 'height (m)'; standardised by the training rows"
    assert noise == "Noise: likelihood Normal, chosen from the task; --likelihood takes another"
    assert model.startswith("Model: MLP 2-4-6-1 relu, ")
    assert "AutoNormal" not in model


def test_description_of_all_rows() -> None:
    split = regression()
    models = build_models(make_networks(ONE, split, NetworkOptions()))
    first = next(describe(split, models, NetworkOptions(), all_rows=True))
    assert first == "Data:  rows, all rows: 6 training and no held-out rows, 2 inputs"


@pytest.mark.parametrize(("num_classes", "name"), [(2, "Bernoulli"), (3, "Categorical")])
def test_description_of_a_classification(num_classes: int, name: str) -> None:
    _, task, noise, _ = lines(classes(num_classes))
    assert task.startswith(f"Task:  classification, {num_classes} classes; ")
    assert noise.startswith(f"Noise: likelihood {name}, chosen")


def test_a_likelihood_that_was_given_was_not_chosen() -> None:
    noise = lines(regression(), likelihood="heteroscedastic-normal")[2]
    assert noise == "Noise: likelihood HeteroscedasticNormal"


def test_several_models_name_their_methods() -> None:
    found = lines(regression(), "nuts,auto-delta@cauchy,auto-normal")[3:]
    assert len(found) == 2
    assert found[0].endswith("(NUTS, AutoNormal)")
    assert found[1].endswith("(AutoDelta @ Cauchy)")
    assert max(len(part) for line in found for part in line.splitlines()) <= 100


def test_describing_a_model_draws_nothing() -> None:
    before = torch.get_rng_state()
    lines(regression(), "auto-normal,auto-delta@cauchy", likelihood="normal")
    torch.testing.assert_close(torch.get_rng_state(), before)
