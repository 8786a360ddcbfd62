from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from pyro_bnn.cli import fits
from pyro_bnn.cli.methods import (
    NamedMethod,
    find_method,
    find_methods,
    find_one,
    find_reference,
    make_engines,
    takes,
)
from pyro_bnn.cli.options import OF_ENGINES
from pyro_bnn.errors import DivergenceError, OptionError, UnknownNameError
from pyro_bnn.guides import AutoDelta, AutoLowRankMultivariateNormal, AutoNormal
from pyro_bnn.infer import NUTS, SVI
from pyro_bnn.models import MLP, Rank1MLP
from pyro_bnn.registry import entries, known_methods
from tests.rows import regression

NUMBERS = {
    "num_steps": 7,
    "batch_size": 3,
    "num_chains": 2,
    "warmup_steps": 11,
    "num_samples": 13,
}


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
    assert find_method(name) is method


def test_methods_are_all_guides_and_the_engines_that_need_none() -> None:
    known = known_methods()
    assert set(entries("guide")) < set(known)
    assert "nuts" in known
    assert "svi" not in known
    for name in known:
        find_method(name)


@pytest.mark.parametrize("name", ["svi", "SVI", "auto", "guide", "mlp"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown method '{name}'.*known are auto-"):
        find_method(name)


def test_the_nearest_method_is_suggested_from_guides_and_samplers() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'nuts'"):
        find_method("nutz")
    with pytest.raises(UnknownNameError, match="did you mean 'auto-normal'"):
        find_method("autonormal")


def test_methods_keep_their_order() -> None:
    found = find_methods("nuts, auto-delta ,AutoNormal")
    assert {name: method.cls for name, method in found.items()} == {
        "NUTS": NUTS,
        "AutoDelta": AutoDelta,
        "AutoNormal": AutoNormal,
    }
    assert {method.prior for method in found.values()} == {None}
    assert list(found) == ["NUTS", "AutoDelta", "AutoNormal"]


def test_a_method_is_named_once() -> None:
    with pytest.raises(OptionError, match="AutoNormal is named twice in the methods 'auto-norm"):
        find_methods("auto-normal,nuts,AutoNormal")


@pytest.mark.parametrize("names", ["", " ", ",", "nuts,", "nuts,,auto-delta"])
def test_an_empty_name_is_refused(names: str) -> None:
    with pytest.raises(OptionError, match=f"^methods are names separated by .*, not '{names}'$"):
        find_methods(names)


def test_a_method_may_bring_a_prior() -> None:
    found = find_methods("nuts@half-cauchy-scale, auto-normal @ HalfCauchyScale,nuts")
    assert found == {
        "NUTS @ HalfCauchyScale": NamedMethod(NUTS, "HalfCauchyScale"),
        "AutoNormal @ HalfCauchyScale": NamedMethod(AutoNormal, "HalfCauchyScale"),
        "NUTS": NamedMethod(NUTS),
    }
    assert [method.name for method in found.values()] == list(found)
    assert find_reference("nuts@half-cauchy-scale", found) == "NUTS @ HalfCauchyScale"
    assert find_reference(None, found) == "NUTS"
    with pytest.raises(
        OptionError, match="reference NUTS @ Normal is not among the methods NUTS @"
    ):
        find_reference("nuts@normal", found)


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ("nuts@", OptionError, "a prior follows the @, as in nuts@half-cauchy-scale, not 'nuts@'"),
        ("nuts@normul", UnknownNameError, "unknown prior 'normul': did you mean 'normal'?"),
        ("nuts@a@b", UnknownNameError, "unknown prior 'a@b'"),
        ("@normal", UnknownNameError, "unknown method ''"),
        ("nuts@normal,NUTS@Normal", OptionError, "NUTS @ Normal is named twice"),
    ],
)
def test_a_prior_that_cannot_be_read(names: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        find_methods(names)


def test_one_method_is_one() -> None:
    assert find_one("auto-normal@cauchy") == {
        "AutoNormal @ Cauchy": NamedMethod(AutoNormal, "Cauchy")
    }
    expected = "one method is fitted, not AutoNormal, NUTS: choose one, or run 'pyro-bnn compare'"
    with pytest.raises(OptionError, match=expected):
        find_one("auto-normal,nuts")


def test_reference_is_nuts_unless_it_is_named() -> None:
    methods = find_methods("auto-normal,nuts")
    assert find_reference(None, methods) == "NUTS"
    assert find_reference("auto-normal", methods) == "AutoNormal"
    assert find_reference(None, {"AutoNormal": NamedMethod(AutoNormal)}) is None
    assert find_reference(None, {"NUTS": NamedMethod(NUTS)}) is None  # there is nothing to measure


def test_reference_is_among_the_methods() -> None:
    with pytest.raises(OptionError, match="reference NUTS is not among the methods AutoNormal"):
        find_reference("nuts", {"AutoNormal": NamedMethod(AutoNormal)})
    with pytest.raises(UnknownNameError, match="did you mean 'nuts'"):
        find_reference("nust", {"AutoNormal": NamedMethod(AutoNormal)})


# --- engines -------------------------------------------------------------------------------------


def test_each_engine_takes_the_options_it_has() -> None:
    engines = make_engines(find_methods("auto-normal,nuts"), NUMBERS)
    assert engines == {
        "AutoNormal": SVI(AutoNormal, num_steps=7, batch_size=3),
        "NUTS": NUTS(num_chains=2, warmup_steps=11, num_samples=13),
    }


def test_an_estimator_goes_to_the_guides_that_it_serves() -> None:
    methods = find_methods("auto-delta,auto-normal,nuts")
    engines = make_engines(methods, {}, "local-reparameterization")
    assert engines == {
        "AutoDelta": SVI(AutoDelta),
        "AutoNormal": SVI(AutoNormal, estimator="local_reparameterization"),
        "NUTS": NUTS(),
    }
    for names, estimator, needed in (
        ("auto-delta,nuts", "flipout", "weights that are independent Gaussians"),
        ("auto-normal,nuts", "last_layer", "a Gaussian part over the last layer"),
        ("nuts", "weight_sampling", "guides"),
    ):
        message = f"--estimator {estimator} does nothing for .*NUTS: it takes {needed}"
        with pytest.raises(OptionError, match=message):
            make_engines(find_methods(names), {}, estimator)
    with pytest.raises(UnknownNameError, match="unknown estimator 'flip_out': did you mean 'flip"):
        make_engines(methods, {}, "flip-out")


def test_options_of_every_engine_are_spelled_as_the_engine_spells_them() -> None:
    for option in OF_ENGINES:
        assert takes(SVI, option) or takes(NUTS, option), option


def test_engines_check_their_options() -> None:
    with pytest.raises(OptionError, match="num_steps is an integer of at least 1, not 0"):
        make_engines({"AutoNormal": NamedMethod(AutoNormal)}, NUMBERS | {"num_steps": 0})


# --- fits ----------------------------------------------------------------------------------------


class Diverging:
    """An engine whose every run diverges."""

    def run(self, model: Any, data: Any, *, seed: int = 0, progress: bool = True) -> Any:
        raise DivergenceError(f"the loss is not finite at step 5, seed {seed}")


def fit(
    engines: dict[str, Any], **options: Any
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    said: list[str] = []
    model = options.pop("model", None) or MLP(2, hidden=(3,))
    posteriors, diverged = fits.fit_all(
        engines,
        dict.fromkeys(engines, model),
        regression(),
        seed=4,
        progress=False,
        say=said.append,
        **options,
    )
    assert all(posterior.model is model for posterior in posteriors.values())
    return posteriors, diverged, said


def test_a_step_has_no_more_rows_than_there_are() -> None:
    methods = find_methods("auto-normal")
    _, _, said = fit(make_engines(methods, {**NUMBERS, "batch_size": 10_000}))
    assert said[-1].endswith(f", {len(regression().train)} rows a step)")


def test_all_methods_fit_the_same_model_with_the_same_seed() -> None:
    methods = find_methods("auto-delta,auto-normal")
    posteriors, diverged, said = fit(make_engines(methods, NUMBERS))
    assert [posterior.method for posterior in posteriors.values()] == ["AutoDelta", "AutoNormal"]
    assert {posterior.seed for posterior in posteriors.values()} == {4}
    assert diverged == {}
    assert [line.split()[0] for line in said] == ["AutoDelta", "AutoNormal"]
    assert all(line.endswith(" s  (SVI, 7 steps, 3 rows a step)") for line in said)


def test_a_method_that_diverges_leaves_the_others() -> None:
    engines = {"Bad": Diverging(), "AutoDelta": SVI(AutoDelta, num_steps=2)}
    posteriors, diverged, said = fit(engines)
    assert list(posteriors) == ["AutoDelta"]
    assert diverged == {"Bad": "the loss is not finite at step 5, seed 4"}
    assert said[0] == "Bad        diverged: the loss is not finite at step 5, seed 4"


def test_where_all_diverge_there_is_nothing_to_return() -> None:
    with pytest.raises(DivergenceError, match=r"^A: the loss .* seed 4; B: the loss .* seed 4$"):
        fit({"A": Diverging(), "B": Diverging()})


# --- samplers on weights that others train -------------------------------------------------------


def rank1_engines(*names: str) -> dict[str, Any]:
    numbers = {"num_steps": 5, "num_chains": 1, "warmup_steps": 2, "num_samples": 3}
    return make_engines(find_methods(",".join(names)), numbers)


@pytest.mark.slow("about a second")
def test_a_sampler_takes_point_estimates_from_the_first_fit_of_its_model() -> None:
    engines = rank1_engines("auto-normal", "auto-delta", "nuts")
    model, rows = Rank1MLP(2, hidden=(3,)), regression().train
    fits.check_starts(engines, dict.fromkeys(engines, model), rows)
    posteriors, diverged, said = fit(engines, model=model)
    assert diverged == {}
    assert "NUTS        starts from AutoNormal, whose point estimates it holds fixed" in said
    weights = {name: posterior.params for name, posterior in posteriors.items()}
    torch.testing.assert_close(weights["NUTS"], weights["AutoNormal"], rtol=0, atol=0)
    name = "layers.0.weight"
    assert not torch.equal(weights["AutoDelta"][name], weights["AutoNormal"][name])
    own = dict(model.named_parameters())[name]  # the model keeps its own
    assert not torch.equal(own, weights["NUTS"][name])


def test_a_sampler_needs_a_fit_of_its_own_model_before_it() -> None:
    model, other = Rank1MLP(2, hidden=(3,)), Rank1MLP(2, hidden=(3,))
    rows = regression().train
    expected = "NUTS holds the weights of Rank1MLP fixed: name a guide of the same network before"
    for names in (("nuts",), ("nuts", "auto-normal")):
        engines = rank1_engines(*names)
        with pytest.raises(OptionError, match=expected):
            fits.check_starts(engines, dict.fromkeys(engines, model), rows)
    engines = rank1_engines("auto-normal", "nuts")
    with pytest.raises(OptionError, match=expected):
        fits.check_starts(engines, {"AutoNormal": other, "NUTS": model}, rows)
    # an MLP has no such weights
    fits.check_starts(engines, {"AutoNormal": other, "NUTS": MLP(2)}, rows)


def test_a_sampler_whose_weights_were_not_trained_is_left_out() -> None:
    class DivergingGuide(SVI):
        def run(self, *args: Any, **options: Any) -> Any:
            raise DivergenceError("the loss is not finite")

    engines = {"AutoNormal": DivergingGuide(AutoNormal), **rank1_engines("nuts")}
    engines["Again"] = SVI(AutoDelta, num_steps=2)
    posteriors, diverged, said = fit(engines, model=Rank1MLP(2, hidden=(3,)))
    assert list(posteriors) == ["Again"]
    assert diverged["NUTS"] == "no fit of its network is left to take weights from"
    assert said[1] == "NUTS        failed: no fit of its network is left to take weights from"
