from __future__ import annotations

from typing import Any

import pytest
import torch

from pyro_bnn import jobs
from pyro_bnn.data import Dataset, Split
from pyro_bnn.errors import DivergenceError, OptionError, ShapeError, UnknownNameError
from pyro_bnn.guides import AutoDelta, AutoLowRankMultivariateNormal, AutoNormal
from pyro_bnn.infer import NUTS, SVI
from pyro_bnn.likelihoods import Bernoulli, Categorical, Normal
from pyro_bnn.models import MLP
from pyro_bnn.registry import KINDS, entries

NUMBERS = {
    "num_steps": 7,
    "batch_size": 3,
    "num_chains": 2,
    "warmup_steps": 11,
    "num_samples": 13,
}


def split_of(x: Any, y: Any) -> Split:
    """The same rows for training and test, not standardised."""
    data = Dataset(x, y)
    task = "regression" if data.num_classes is None else "classification"
    return Split(data, data, task, "rows")  # type: ignore[arg-type]  # mypy widens the literal


def regression(num_rows: int = 6, num_targets: int | None = None) -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 2, generator=generator)
    shape = (num_rows,) if num_targets is None else (num_rows, num_targets)
    return split_of(x, torch.randn(*shape, generator=generator))


def classes(num_classes: int) -> Split:
    return split_of(torch.randn(12, 3), torch.arange(12) % num_classes)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("auto-normal", AutoNormal),
        ("AutoNormal", AutoNormal),
        ("auto-low-rank", AutoLowRankMultivariateNormal),
        ("AutoLowRankMultivariateNormal", AutoLowRankMultivariateNormal),
        ("nuts", NUTS),
        ("NUTS", NUTS),
    ],
)
def test_a_method_has_several_names(name: str, method: type) -> None:
    assert jobs.find_method(name) is method


def test_methods_are_all_guides_and_the_engines_that_need_none() -> None:
    known = jobs.known_methods()
    assert set(entries("guide")) < set(known)
    assert "nuts" in known
    assert "svi" not in known
    for name in known:
        jobs.find_method(name)


@pytest.mark.parametrize("name", ["svi", "SVI", "auto", "guide", "mlp"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown method '{name}'.*known are auto-delta"):
        jobs.find_method(name)


def test_the_nearest_method_is_suggested_from_guides_and_samplers() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'nuts'"):
        jobs.find_method("nutz")
    with pytest.raises(UnknownNameError, match="did you mean 'auto-normal'"):
        jobs.find_method("autonormal")


def test_methods_keep_their_order() -> None:
    found = jobs.find_methods("nuts, auto-delta ,AutoNormal")
    assert found == {"NUTS": NUTS, "AutoDelta": AutoDelta, "AutoNormal": AutoNormal}
    assert list(found) == ["NUTS", "AutoDelta", "AutoNormal"]


def test_a_method_is_named_once() -> None:
    with pytest.raises(OptionError, match="AutoNormal is named twice in the methods 'auto-norm"):
        jobs.find_methods("auto-normal,nuts,AutoNormal")


@pytest.mark.parametrize("names", ["", " ", ",", "nuts,", "nuts,,auto-delta"])
def test_an_empty_name_is_refused(names: str) -> None:
    with pytest.raises(OptionError, match=f"^methods are names separated by .*, not '{names}'$"):
        jobs.find_methods(names)


def test_reference_is_nuts_unless_it_is_named() -> None:
    methods = jobs.find_methods("auto-normal,nuts")
    assert jobs.find_reference(None, methods) == "NUTS"
    assert jobs.find_reference("auto-normal", methods) == "AutoNormal"
    assert jobs.find_reference(None, {"AutoNormal": AutoNormal}) is None
    assert jobs.find_reference(None, {"NUTS": NUTS}) is None  # there is nothing to measure


def test_reference_is_among_the_methods() -> None:
    with pytest.raises(OptionError, match="reference NUTS is not among the methods AutoNormal"):
        jobs.find_reference("nuts", {"AutoNormal": AutoNormal})
    with pytest.raises(UnknownNameError, match="did you mean 'nuts'"):
        jobs.find_reference("nust", {"AutoNormal": AutoNormal})


# --- engines -------------------------------------------------------------------------------------


def test_each_engine_takes_the_options_it_has() -> None:
    engines = jobs.make_engines(jobs.find_methods("auto-normal,nuts"), NUMBERS)
    assert engines == {
        "AutoNormal": SVI(AutoNormal, num_steps=7, batch_size=3),
        "NUTS": NUTS(num_chains=2, warmup_steps=11, num_samples=13),
    }


def test_options_of_every_engine_are_spelled_as_the_engine_spells_them() -> None:
    for option in jobs.OPTION_WORDS:
        assert jobs.takes(SVI, option) or jobs.takes(NUTS, option), option


def test_engines_check_their_options() -> None:
    with pytest.raises(OptionError, match="num_steps is an integer of at least 1, not 0"):
        jobs.make_engines({"AutoNormal": AutoNormal}, NUMBERS | {"num_steps": 0})


# --- models --------------------------------------------------------------------------------------


def test_likelihood_follows_the_task() -> None:
    assert type(jobs.make_model(regression(), "4").likelihood) is Normal
    assert type(jobs.make_model(classes(2), "4").likelihood) is Bernoulli
    likelihood = jobs.make_model(classes(3), "4").likelihood
    assert isinstance(likelihood, Categorical)
    assert likelihood.num_classes == 3


@pytest.mark.parametrize(
    ("split", "num_outputs"), [(regression(), 1), (regression(num_targets=2), 2), (classes(3), 3)]
)
def test_layers_have_the_sizes_of_the_data(split: Split, num_outputs: int) -> None:
    model = jobs.make_model(split, " 4, 5")
    assert model.num_inputs == split.train.x.shape[1]
    assert [layer.num_outputs for layer in model.layers] == [4, 5, num_outputs]


@pytest.mark.parametrize("hidden", ["", "x", "4,x", "0", "-4", "4.5", "1_0", "4,", "²"])
def test_hidden_layers_are_positive_integers(hidden: str) -> None:
    with pytest.raises(OptionError, match=f"^hidden layers are positive .*50,50, not '{hidden}'$"):
        jobs.make_model(regression(), hidden)


def test_images_are_refused() -> None:
    images = split_of(torch.randn(6, 1, 4, 4), torch.arange(6) % 2)
    with pytest.raises(ShapeError, match=r"rows: inputs have shape \[6, 1, 4, 4\], but the netw"):
        jobs.make_model(images, "4")


def test_description_of_a_regression() -> None:
    data = Dataset(torch.randn(5, 2), torch.randn(5), target_name="height (m)")
    split = Split(data, data.rows([0, 1]), "regression", "trees", 3)
    assert list(jobs.describe(split, jobs.make_model(split, "4,6"))) == [
        "Data:  trees, split 3: 5 training and 2 held-out rows, 2 inputs",
        "Task:  regression of 'height (m)'; standardised by the training rows",
        "Model: network 2-4-6-1, relu, fan-in Normal prior, likelihood Normal of learned scale",
    ]


@pytest.mark.parametrize(("num_classes", "name"), [(2, "Bernoulli"), (3, "Categorical")])
def test_description_of_a_classification(num_classes: int, name: str) -> None:
    split = classes(num_classes)
    _, task, model = jobs.describe(split, jobs.make_model(split, "4"))
    assert task.startswith(f"Task:  classification, {num_classes} classes; ")
    assert model.endswith(f", likelihood {name}")


def test_describing_a_model_draws_nothing() -> None:
    split = regression()
    model = jobs.make_model(split, "4")
    before = torch.get_rng_state()
    list(jobs.describe(split, model))
    torch.testing.assert_close(torch.get_rng_state(), before)


# --- fits ----------------------------------------------------------------------------------------


class Diverging:
    """An engine whose every run diverges."""

    def run(self, model: Any, data: Any, *, seed: int = 0, progress: bool = True) -> Any:
        raise DivergenceError(f"the loss is not finite at step 5, seed {seed}")


def fit(engines: dict[str, Any], **options: Any) -> tuple[dict[str, Any], list[str], list[str]]:
    said: list[str] = []
    split = regression()
    model = MLP(2, hidden=(3,))
    posteriors, diverged = jobs.fit_all(
        engines, model, split, seed=4, progress=False, say=said.append, **options
    )
    assert all(posterior.model is model for posterior in posteriors.values())
    return posteriors, diverged, said


def test_all_methods_fit_the_same_model_with_the_same_seed() -> None:
    methods = jobs.find_methods("auto-delta,auto-normal")
    posteriors, diverged, said = fit(jobs.make_engines(methods, NUMBERS))
    assert [posterior.method for posterior in posteriors.values()] == ["AutoDelta", "AutoNormal"]
    assert {posterior.seed for posterior in posteriors.values()} == {4}
    assert diverged == []
    assert [line.split()[0] for line in said] == ["AutoDelta", "AutoNormal"]
    assert all(line.endswith(" s  (SVI, 7 steps, 3 rows a step)") for line in said)


def test_a_method_that_diverges_leaves_the_others() -> None:
    engines = {"Bad": Diverging(), "AutoDelta": SVI(AutoDelta, num_steps=2)}
    posteriors, diverged, said = fit(engines)
    assert list(posteriors) == ["AutoDelta"]
    assert diverged == ["Bad: the loss is not finite at step 5, seed 4"]
    assert said[0] == "Bad        diverged: the loss is not finite at step 5, seed 4"


def test_where_all_diverge_there_is_nothing_to_return() -> None:
    with pytest.raises(DivergenceError, match=r"^A: the loss .* seed 4; B: the loss .* seed 4$"):
        fit({"A": Diverging(), "B": Diverging()})


# --- the catalogue -------------------------------------------------------------------------------


def test_the_catalogue_holds_every_entry_and_data_set_with_a_sentence() -> None:
    from pyro_bnn.data import names

    found = jobs.catalogue()
    for kind in KINDS:
        assert list(found[f"{kind}s"]) == list(entries(kind))
    assert sorted(found["data sets"]) == names()
    sentences = [sentence for group in found.values() for sentence in group.values()]
    assert all(sentence.endswith(".") for sentence in sentences)
    assert not any(mark in sentence for sentence in sentences for mark in (":math:", "`", "\\"))


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("One. Two.", "One."),
        ("One,\n    still one.\n\n    Two.", "One, still one."),
        ("See, e.g. Bayes. Two.", "See, e.g. Bayes."),
        ("A scale of 0.2; 2 classes.", "A scale of 0.2; 2 classes."),
        ("Normal, :math:`p(w)` for all. Two.", "Normal."),
        ("The ``y``.", "The y."),
        ("", ""),
    ],
)
def test_first_sentence(docstring: str, sentence: str) -> None:
    assert jobs.first_sentence(docstring) == sentence
