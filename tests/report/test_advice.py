"""Advice can be followed: its options exist for the method, and following it mends the fault."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from pyro_bnn import guides, infer, likelihoods, models, registry
from pyro_bnn.data import Split, from_arrays
from pyro_bnn.errors import FileFormatError
from pyro_bnn.guides import Guide
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import Run
from pyro_bnn.posterior import DrawsPosterior, Nature, Posterior, Provenance
from pyro_bnn.posterior.nature import Fault
from pyro_bnn.report import compare, compare_files
from pyro_bnn.report.evaluation.natures import is_biased_sampler, is_exact_sampler, nature_of
from pyro_bnn.report.verdicts.advice import WORDS, advice, together
from pyro_bnn.report.verdicts.verdicts import RULES
from tests.report.conjugate import LinearPosterior, losses, regression_split

SPLIT = regression_split()
FAULTS: tuple[Fault, ...] = get_args(Fault)
ENGINES: dict[str, Any] = registry.entries("engine")
EVERY_GUIDE = dict(Guide.known)
# Options with which a method was run, beside its defaults, that change what it is told
VARIANTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "svi": ({"patience": 100}, {"optimizer": "SGD"}),
    "von": ({"covariance": "full"},),
    "laplace": ({"structure": "kron"}, {"subset": "last_layer"}),
    "ensemble": ({"kind": "rto"}, {"batch_size": 10}, {"member": "AutoNormal"}),
    "mc-dropout": ({"num_steps": 0},),
    "subspace": ({"kind": "curve"},),
    **dict.fromkeys(("baoab", "psgld", "sghmc", "sgld", "sgnht"), ({"batch_size": 10},)),
}
OF_CHAINS: tuple[Fault, ...] = ("settling", "few draws")
OF_FITS: tuple[Fault, ...] = ("unfinished", "optimum", "narrow", "poor family")
CAN_HAVE: Mapping[str, tuple[Fault, ...]] = {  # beside those of every method of their kind
    **dict.fromkeys(("nuts", "hmc", "mams"), ("divergent",)),
    **dict.fromkeys(("mclmc", "mile"), ("divergent", "step bias")),
    **dict.fromkeys(
        ("baoab", "cyclical", "psgld", "sghmc", "sgld", "sgnht"),
        ("asked temperature", "heat", "cold"),
    ),
    **dict.fromkeys(("ivon", "slang", "vadam", "vogn", "von"), ("asked temperature",)),
    "subspace": (*OF_CHAINS, "narrow"),
}
"""Which faults the rules find in an engine, by the statistics that its draws have."""


def defaults(engine: Any) -> dict[str, Any]:
    """Options of an engine as a posterior tells them; those of the engine inside it beside them."""
    found: dict[str, Any] = {}
    if (inner := getattr(engine, "inner", None)) is not None:
        found = defaults(inner)
    for field in dataclasses.fields(engine):
        value = field.default
        found[field.name] = None if value is dataclasses.MISSING else value
    return found


def natures() -> Iterator[Any]:
    """Every engine with every set of options, and SVI with every guide."""
    for name, engine in ENGINES.items():
        for more in ({}, *VARIANTS.get(name, ())):
            nature = engine.nature({**defaults(engine), **more})
            label = f"{name} {more or ''}".strip()
            families = EVERY_GUIDE if engine is infer.SVI else {nature.family: None}
            for family in families:
                cls = EVERY_GUIDE.get(str(family))
                whole = nature if cls is None else nature.of_guide(cls)
                yield pytest.param(name, cls, whole, id=f"{label} {family or ''}".strip())


NATURES = list(natures())


def options_named(text: str) -> list[str]:
    """Options that an advice names."""
    told = re.findall(r"\b(?:raise|lower|double|set) ([a-z_]+)", text)
    return [*told, *re.findall(r"\b([a-z]+(?:_[a-z]+)+)\b", text), *re.findall(r"([a-z_]+)=", text)]


def takes(engine: Any, guide: type[Guide] | None) -> set[str]:
    """Options of a method: fields of the engine, of the one inside it, and those of the guide."""
    inner = getattr(engine, "inner", None)
    own = {field.name for field in dataclasses.fields(engine)}
    of_inner = takes(inner, None) if inner is not None else set()
    of_guide = set() if guide is None else set(inspect.signature(guide.__init__).parameters)
    return own | of_inner | (of_guide if engine is infer.SVI else set())


@pytest.mark.parametrize(("name", "guide", "nature"), NATURES)
def test_an_advice_names_options_and_methods_that_exist(
    name: str, guide: type[Guide] | None, nature: Nature
) -> None:
    engine = ENGINES[name]
    for fault in FAULTS:
        text = advice(nature, fault)
        named = options_named(text)
        assert set(named) <= takes(engine, guide), (fault, text)
        methods = re.findall(r"\b(?:Auto[A-Z]\w+|[A-Z]{3,}\w*|[A-Z][a-z]+[A-Z]\w+)\b", text)
        known = {*guides.__all__, *infer.__all__}
        assert set(methods) <= known, (fault, text)
        own = {guide.__name__} if guide is not None and engine is infer.SVI else {engine.__name__}
        if fault in nature.remedies:
            assert not own & set(methods), (fault, text)  # it is that already


@pytest.mark.parametrize(("name", "guide", "nature"), NATURES)
def test_an_advice_that_gives_a_value_gives_one_that_is_taken(
    name: str, guide: type[Guide] | None, nature: Nature
) -> None:
    engine: Any = ENGINES[name]
    del guide
    for fault in FAULTS:
        for option, value in re.findall(r"""([a-z_]+)=["']?(\w+)""", advice(nature, fault)):
            cls = engine
            if option not in {field.name for field in dataclasses.fields(cls)}:
                cls = engine.inner
            given = {option: type(defaults(cls)[option] or "")(value)}
            assert getattr(cls(**given), option) == given[option]


@pytest.mark.parametrize(("name", "guide", "nature"), NATURES)
def test_no_method_of_the_package_is_told_general_words(
    name: str, guide: type[Guide] | None, nature: Nature
) -> None:
    """For a fault that it can have it says itself what mends it."""
    is_chain = nature.kind in ("chains", "biased chains") or name == "mile"
    faults = CAN_HAVE.get(name, ()) + (OF_CHAINS if is_chain else ())
    if nature.kind in ("approximation", "members") and name not in ("mile", "subspace"):
        faults += OF_FITS
    if name == "cavi":  # which climbs to the one optimum that there is
        faults = tuple(fault for fault in faults if fault != "optimum")
    assert bool(faults) is (name != "exact")
    for fault in faults:
        assert fault in nature.remedies, (fault, guide)
    if name == "nuts":
        assert "saturated" in nature.remedies


def test_every_engine_declares_what_it_gives() -> None:
    kinds = {name: cls.nature(defaults(cls)).kind for name, cls in ENGINES.items()}
    assert "undeclared" not in kinds.values()
    assert {name for name, kind in kinds.items() if kind == "chains"} == {
        "hmc",
        "mams",
        "nuts",
        "smc",
    }
    assert {n for n, cls in ENGINES.items() if cls.is_exact} == {"hmc", "mams", "nuts", "smc"}
    assert kinds["exact"] == "exact"
    assert kinds["mile"] == kinds["ensemble"] == "members"


def test_every_fault_has_words_and_every_rule_a_fault_of_these() -> None:
    assert set(WORDS) == set(FAULTS)
    assert {rule.fault for rule in RULES} - {None} <= set(FAULTS)


def test_correlations_are_declared_as_guides_have_them() -> None:
    declared = {name: cls.has_correlations for name, cls in EVERY_GUIDE.items()}
    without = {"AutoDelta", "AutoNormal", "AutoKTiedNormal", "AutoRadial"}
    assert {name for name, has in declared.items() if has is False} == without
    # their parts, or a model of its own, decide
    unsaid = {"AutoComposite", "AutoDropout", "AutoGuideMixture", "AutoRank1Mixture"}
    assert {name for name, has in declared.items() if has is None} == {*unsaid, "BatchEnsemble"}
    mixed = guides.AutoComposite(
        models.MLP(1, hidden=(2,)), {"layers.0.*": guides.AutoMultivariateNormal}, guides.AutoNormal
    )
    assert mixed.has_correlations is True
    plain = guides.AutoComposite(
        models.MLP(1, hidden=(2,)), {"layers.0.*": guides.AutoNormal}, guides.AutoDelta
    )
    assert plain.has_correlations is False


# --- what is said --------------------------------------------------------------------------------


def _texts(posterior: Any, kind: str, name: str = "it") -> list[str]:
    judge = LinearPosterior(SPLIT, "NUTS", stored=1_200, num_chains=4)
    findings = compare({name: posterior, "NUTS": judge}, SPLIT, reference="NUTS").findings
    return [f.text.replace("\xa0", " ") for f in findings if f.kind == kind and name in f.methods]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("AutoNormal", "Try a guide with correlations, such as AutoLowRankMultivariateNormal"),
        ("AutoMultivariateNormal", "Try a guide of another shape, such as AutoFlow or AutoNormal"),
        ("AutoLowRankMultivariateNormal", "Raise rank, or try a guide of another shape, such as"),
        ("AutoFlow", "Raise num_flows, or try a guide of another shape, such as AutoNormalMixtu"),
    ],
)
def test_a_guide_that_is_too_sure_is_told_what_it_is_not_yet(method: str, said: str) -> None:
    (text,) = _texts(LinearPosterior(SPLIT, method, spread=0.3), "sd ratio")
    assert f". {said}" in text


def test_chains_that_are_too_sure_are_not_told_to_take_another_guide() -> None:
    chains = LinearPosterior(SPLIT, "BAOAB", "BAOAB", spread=0.3, stored=1_200, num_chains=4)
    (text,) = _texts(chains, "sd ratio")
    assert text.endswith("Raise warmup_steps and num_samples.")


def test_methods_of_several_kinds_are_each_told_their_own() -> None:
    posteriors = {
        "a": LinearPosterior(SPLIT, "AutoNormal", spread=0.3),
        "b": LinearPosterior(SPLIT, "BAOAB", "BAOAB", spread=0.3, stored=1_200, num_chains=4),
        "c": LinearPosterior(SPLIT, "AutoKTiedNormal", spread=0.3),
        "NUTS": LinearPosterior(SPLIT, "NUTS", stored=1_200, num_chains=4),
    }
    findings = compare(posteriors, SPLIT, reference="NUTS").findings
    (found,) = [f for f in findings if f.kind == "sd ratio"]
    assert ". For a try a guide with correlations, such as " in found.text
    assert "; for b raise warmup_steps and num_samples; for c raise rank, or try" in found.text
    assert found.steps["b"] == "raise warmup_steps and num_samples"
    assert together({"a": "x", "b": "x"}) == "x"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "against heat lower step_size"),
        ({"batch_size": 10}, 'lower step_size, raise batch_size or set control="svrg"'),
        ({"batch_size": 10, "control": "mode"}, "against heat lower step_size or raise batch_size"),
    ],
)
def test_heat_is_laid_to_what_the_run_has(options: dict[str, Any], said: str) -> None:
    """At temperature 1 it is not told to set that, nor without batches to make them larger."""
    hot = 1.5 + 0.01 * np.random.default_rng(0).normal(size=(4, 300))
    chains = LinearPosterior(
        SPLIT, "BAOAB", "BAOAB", stored=1_200, num_chains=4,
        stats={"configurational_temperature": hot}, options=options,
    )  # fmt: skip
    (text,) = _texts(chains, "temperature")
    assert text.endswith(f"{said}.")
    assert "temperature=1" not in text


def test_the_answer_says_to_each_what_it_can_do() -> None:
    posteriors = {
        "rising": LinearPosterior(SPLIT, losses=losses(slope=0.01)),
        "short": LinearPosterior(SPLIT, "NUTS", "NUTS", stored=20, num_chains=4),
        "cut": LinearPosterior(
            SPLIT, "CAVI", "CAVI", losses=np.zeros(10), options={"max_sweeps": 10}
        ),
    }
    answer = compare(posteriors, SPLIT).answer
    (again,) = [part.text for part in answer.statements if part.label == "Refit first"]
    assert "rising (objective not settled): double num_steps" in again
    assert "short (chains too short to be checked): raise num_samples" in again
    assert "cut (convergence not judged): raise max_sweeps" in again


# --- an engine of one's own ----------------------------------------------------------------------


class OneStep(Run[Posterior]):
    """A run of no step that gives made-up draws."""

    num_steps = 0

    def __init__(self, engine: Own) -> None:
        self.engine = engine

    def go(self) -> None:
        raise AssertionError

    def state(self) -> dict[str, Any]:
        return {"place": "its end", "compile_path": "eager"}

    def restore(self, state: Mapping[str, Any]) -> None:
        del state

    def posterior(self, problem: Problem, saves: Any) -> Posterior:
        program, own = problem.program, self.engine
        generator = torch.Generator().manual_seed(0)
        z = torch.randn(4, 50, program.num_latents, generator=generator).to(program.initial)
        stats = {"diverging": np.ones((4, 50), dtype=bool)} if own.has_chains else None
        if own.says_it_itself:
            provenance = problem.provenance(saves, method="Own", options={}, num_parameters=1)
        else:
            provenance = Provenance("Own", "Own")
        return DrawsPosterior(program, 0.01 * z, provenance, sample_stats=stats)


@dataclass(frozen=True, kw_only=True)
class Own(Engine[Posterior]):
    """An engine that is not of this package, and declares nothing."""

    has_chains: bool = False
    says_it_itself: bool = True
    sweeps: int = 3

    def start(self, problem: Problem) -> Start:
        return Start(problem, {}, lambda saves: OneStep(self))


class Declared(Own):
    """The same, which says what it is."""

    is_exact = True

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        del options
        return {"divergent": "raise sweeps", "unfinished": "raise sweeps"}


def of_own(engine: Own) -> Posterior:
    split = regression_split(num_rows=60)
    model = models.LinearRegression(3, likelihood=likelihoods.Normal(0.5))
    return engine.run(model, split.train, progress=False)


@pytest.mark.parametrize("says_it_itself", [True, False])
def test_an_engine_of_ones_own_is_told_general_words_or_its_own(says_it_itself: bool) -> None:
    split = regression_split(num_rows=60)
    plain = of_own(Own(says_it_itself=says_it_itself))
    (text,) = [f.text for f in compare({"it": plain}, split).findings if f.kind == "unchecked"]
    assert text.endswith(". Run it longer, or compare with a longer run.")
    assert "guide" not in text
    assert nature_of(plain).kind == "approximation"
    told = of_own(Declared(says_it_itself=says_it_itself))
    (text,) = [f.text for f in compare({"it": told}, split).findings if f.kind == "unchecked"]
    assert text.endswith(". Raise sweeps, or compare with a longer run.")


def test_chains_of_ones_own_judge_where_they_are_declared_exact() -> None:
    split = regression_split(num_rows=60)
    for engine, is_exact in ((Own(has_chains=True), False), (Declared(has_chains=True), True)):
        chains = of_own(engine)
        assert is_exact_sampler(chains) is is_exact
        assert is_biased_sampler(chains) is not is_exact
        findings = compare({"it": chains}, split).findings
        (text,) = [f.text for f in findings if f.kind == "divergences"]
        words = "raise sweeps." if is_exact else "take shorter steps, or use a non-centred prior."
        assert text.endswith(words)


def test_what_is_declared_is_in_the_files(tmp_path: Path) -> None:
    split = regression_split(num_rows=60)
    told = of_own(Declared(has_chains=True))
    told.save(tmp_path / "it.bin")
    again = Posterior.load(tmp_path / "it.bin", told.model)
    assert again.nature == told.nature == nature_of(told)
    assert again.nature is not None
    assert again.nature.remedies["divergent"] == "raise sweeps"
    compare({"it": told}, split).write_draws("it", tmp_path / "it.nc")
    findings = compare_files({"it": tmp_path / "it.nc"}).findings
    (text,) = [f.text for f in findings if f.kind == "divergences"]
    assert text.endswith("raise sweeps.")


def test_a_kind_that_is_not_known_is_refused(tmp_path: Path) -> None:
    told = of_own(Own())
    told.provenance = dataclasses.replace(told.provenance, nature=Nature(kind="new"))  # type: ignore[arg-type]
    told.save(tmp_path / "it.bin")
    with pytest.raises(FileFormatError, match="kind 'new', which is not known"):
        Posterior.load(tmp_path / "it.bin", told.model)


@pytest.mark.parametrize(
    ("method", "engine", "kind"),
    [
        ("NUTS", "NUTS", "chains"),
        ("AutoNormal", "SVI", "approximation"),
        ("of nobody", "elsewhere", "undeclared"),
        ("a GP", "GaussianProcess", "limit"),
        ("MILE", "MILE", "members"),
    ],
)
def test_what_declares_nothing_is_known_by_its_names(method: str, engine: str, kind: str) -> None:
    """As posteriors of older files are."""
    assert nature_of(LinearPosterior(SPLIT, method, engine)).kind == kind


# --- following it mends --------------------------------------------------------------------------


def correlated() -> Split:
    """Two inputs of correlation 0.8, of which a family without correlations is too sure."""
    rng = np.random.default_rng(3)
    u, v = rng.normal(size=(2, 400))
    x = np.stack([u, 0.8 * u + 0.6 * v], 1)
    return from_arrays(x, x @ np.array([1.0, -0.5]) + 0.5 * rng.normal(size=400), test_fraction=0.5)


NEWTON: dict[str, Any] = {
    "num_steps": 1, "learning_rate": 1.0, "precision_learning_rate": 1.0, "expectation": "mean",
    "descent_steps": 0,
}  # fmt: skip
SVI = functools.partial(infer.SVI, num_steps=3_000, learning_rate=0.02, compile=False)
MENDED: dict[str, tuple[Any, str, str, Any]] = {
    "mean field": (
        SVI(guides.AutoNormal), "sd ratio", "AutoMultivariateNormal",
        SVI(guides.AutoMultivariateNormal),
    ),
    "VON": (
        infer.VON(**NEWTON), "sd ratio", "set covariance='full'",
        infer.VON(covariance="full", **NEWTON),
    ),
    "CAVI, narrow": (infer.CAVI(), "sd ratio", "use Exact", infer.Exact()),
    "CAVI, cut": (infer.CAVI(max_sweeps=2), "unchecked", "raise max_sweeps", infer.CAVI()),
    "Laplace": (
        infer.Laplace(structure="diagonal", num_steps=200), "sd ratio", "set structure='full'",
        infer.Laplace(structure="full", num_steps=200),
    ),
    "ensemble": (
        infer.Ensemble(num_members=100, num_steps=600, learning_rate=0.03), "sd ratio",
        'kind="rto"',
        infer.Ensemble(num_members=100, num_steps=600, learning_rate=0.03, kind="rto"),
    ),
    "NUTS, few draws": (
        infer.NUTS(warmup_steps=100, num_samples=20, compile=False), "ess", "raise num_samples",
        infer.NUTS(warmup_steps=100, num_samples=400, compile=False),
    ),
    "NUTS, too few for R-hat": (
        infer.NUTS(warmup_steps=100, num_samples=5, compile=False), "short chains",
        "raise num_samples", infer.NUTS(warmup_steps=100, num_samples=400, compile=False),
    ),
    "NUTS, small trees": (
        infer.NUTS(warmup_steps=50, num_samples=50, max_tree_depth=1, compile=False),
        "saturated trees", "raise max_tree_depth",
        infer.NUTS(warmup_steps=50, num_samples=50, max_tree_depth=6, compile=False),
    ),
    "SGLD, long steps": (
        infer.SGLD(warmup_steps=500, num_samples=400, step_size=1e-3, thin=5, compile=False),
        "temperature", "lower step_size",
        infer.SGLD(warmup_steps=500, num_samples=400, step_size=5e-5, thin=40, compile=False),
    ),
    "BAOAB, cold": (
        infer.BAOAB(warmup_steps=500, num_samples=200, thin=5, temperature=0.1, compile=False),
        "temperature", "set temperature=1",
        infer.BAOAB(warmup_steps=500, num_samples=200, thin=5, compile=False),
    ),
    "MCLMC, long steps": (
        infer.MCLMC(warmup_steps=100, num_samples=200, energy_variance=1.0, compile=False),
        "sampler bias", "lower energy_variance",
        infer.MCLMC(warmup_steps=100, num_samples=200, energy_variance=5e-4, compile=False),
    ),
}  # fmt: skip


@pytest.mark.slow("fits of twelve methods")
@pytest.mark.parametrize("case", MENDED)
def test_following_the_advice_mends_the_fault(case: str) -> None:
    before, kind, words, after = MENDED[case]
    split = correlated()
    model = models.LinearRegression(2, likelihood=likelihoods.Normal(0.5))
    exact = infer.Exact().run(model, split.train, progress=False)

    def steps(engine: Engine[Any]) -> list[str]:
        found = engine.run(model, split.train, progress=False, seed=1)
        findings = compare({"it": found, "Exact": exact}, split, reference="Exact").findings
        return [f.steps["it"] for f in findings if f.kind == kind and "it" in f.methods]

    (step,) = steps(before)
    assert words in step
    assert steps(after) == []


def test_a_laplace_approximation_that_was_stopped_on_its_way_is_a_point_of_svi() -> None:
    """Its options are then those of the steps to the mode."""
    svi = infer.SVI(guides.AutoDelta, num_steps=1)
    reached = infer.Laplace.nature(svi.describe(guides.AutoDelta, 0.01))
    assert (reached.kind, reached.is_around_a_mode, reached.is_linearised) == (
        "approximation", False, False,
    )  # fmt: skip
    whole = infer.Laplace.nature(defaults(infer.Laplace))
    assert whole.is_around_a_mode
    assert whole.is_linearised
