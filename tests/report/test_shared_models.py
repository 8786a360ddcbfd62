"""Which methods share a model, which ELBOs bound one evidence, and what verdicts make of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from pyro_bnn import guides
from pyro_bnn.data import from_arrays
from pyro_bnn.infer import SVI
from pyro_bnn.models import MLP, bayesian
from pyro_bnn.priors import Normal
from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.evaluation.fit_record import FitRecord, ModelRecord
from pyro_bnn.report.evaluation.shared_models import SharedModel, shared_evidences, shared_models
from tests.report.conjugate import LinearPosterior, regression_split

SPLIT = regression_split()


class Linear:
    """Stands for a model of its own."""


def _compare(reference: str | None = None, **posteriors: LinearPosterior) -> Comparison:
    return compare(posteriors, SPLIT, reference=reference)


def _it(**changes: Any) -> LinearPosterior:
    return LinearPosterior(SPLIT, **changes)


def _fits(posteriors: Mapping[str, Any]) -> dict[str, FitRecord]:
    """What a report says of fits, with one record for each object of a model."""
    records: dict[Any, ModelRecord] = {}
    return {name: FitRecord.of(own, records) for name, own in posteriors.items()}


def _texts(comparison: Comparison, kind: str = "models") -> list[str]:
    return [f.text.replace("\xa0", " ") for f in comparison.findings if f.kind == kind]


# --- groups --------------------------------------------------------------------------------------


def test_methods_are_grouped_by_the_object_of_their_model() -> None:
    one, other = Linear(), Linear()
    posteriors = {"a": _it(model=one), "b": _it(model=other), "c": _it(model=one)}
    assert shared_models(_fits(posteriors)) == [
        SharedModel("Linear (object 1 of 2)", ["a", "c"]),
        SharedModel("Linear (object 2 of 2)", ["b"]),
    ]
    assert shared_evidences(_fits(posteriors)) == [["a", "c"], ["b"]]


def test_words_that_stand_for_a_model_are_compared_as_words() -> None:
    words = [bytes("MLP 10-5-1", "ascii").decode() for _ in range(2)]
    assert words[0] is not words[1]
    posteriors = {"a": _it(model=words[0]), "b": _it(model=words[1]), "c": _it(model="MLP 10-9-1")}
    assert shared_models(_fits(posteriors)) == [("MLP 10-5-1", ["a", "b"]), ("MLP 10-9-1", ["c"])]


def test_one_evidence_needs_equal_point_estimates() -> None:
    W = torch.arange(6.0).reshape(2, 3)
    posteriors = {
        "svi": _it(params={"W": W}),
        "own": _it(params={"W": W + 1}),
        "nuts": _it(params={"W": W.clone().requires_grad_()}),
        "renamed": _it(params={"V": W}),
        "none": _it(),
    }
    assert shared_evidences(_fits(posteriors)) == [["svi", "nuts"], ["own"], ["renamed"], ["none"]]
    assert len(shared_models(_fits(posteriors))) == 1


def test_fits_of_one_network_share_it_and_their_trained_weights_do_not() -> None:
    x = torch.linspace(-1, 1, 40)[:, None]
    split = from_arrays(x, x[:, 0] ** 2)
    net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    model = bayesian(net, prior={"2.*": Normal()})
    whole = MLP(1, hidden=(3,))
    engine = SVI(guides.AutoNormal, num_steps=3)
    fits = {
        f"{name} {seed}": engine.run(it, split.train, seed=seed, progress=False)
        for name, it in (("partial", model), ("whole", whole))
        for seed in (0, 1)
    }
    assert [names for _, names in shared_models(_fits(fits))] == [
        ["partial 0", "partial 1"],
        ["whole 0", "whole 1"],
    ]
    assert shared_evidences(_fits(fits)) == [["partial 0"], ["partial 1"], ["whole 0", "whole 1"]]


# --- the comparison ------------------------------------------------------------------------------


def test_one_model_needs_no_words() -> None:
    comparison = _compare(a=_it(), b=_it(spread=0.9))
    assert comparison.models == [("linear", ["a", "b"])]
    assert comparison.shares_model
    assert _texts(comparison) == []
    assert comparison.table["model"].tolist() == ["linear", "linear"]
    assert comparison.table["model_number"].isna().all()


@pytest.mark.slow("about a second")
def test_several_models_are_named_with_their_methods() -> None:
    comparison = _compare(a=_it(), b=_it(spread=0.9, model=Linear()), c=_it())
    assert comparison.models == [("linear", ["a", "c"]), ("Linear", ["b"])]
    assert comparison.evidences == [["a", "c"], ["b"]]
    assert not comparison.shares_model
    assert _texts(comparison) == [
        "The methods answer under 2 models. Model 1, linear: a, c; 2, Linear: b. Held-out "
        "scores compare them all; ELBOs, and whether a guide did worse than one it contains, only "
        "within a model."
    ]
    assert not any(f.is_warning for f in comparison.findings if f.kind == "models")
    table = comparison.table
    assert table["model_number"].to_dict() == {"a": 1, "c": 1, "b": 2}
    assert table["evidence"].to_dict() == {"a": 1, "c": 1, "b": 2}


def test_elbos_at_trained_point_estimates_are_said_not_to_compare() -> None:
    W = torch.ones(2)
    comparison = _compare(
        a=_it(params={"layers.0.weight": W}), b=_it(params={"layers.0.weight": 2 * W})
    )
    (text,) = _texts(comparison)
    assert text == (
        "The ELBOs of a and of b bound different evidences: each is conditional on its own trained "
        "values of layers.0.weight, which are point estimates. They are shown and not compared."
    )
    many = {f"w{i}": W for i in range(5)}
    (text,) = _texts(
        _compare(
            a=_it(params=many),
            b=_it(params=many),
            c=_it(params={**many, "w4": 2 * W}),
            point=_it(params={**many, "w4": 3 * W}, spread=0.0),  # no ELBO
        )
    )
    assert text.startswith("The ELBOs of a and b and of c bound different evidences")
    assert "its own trained values of w0, w1, w2 and 2 more, which" in text


def test_a_guide_is_not_held_against_one_at_other_point_estimates() -> None:
    def found(W: torch.Tensor) -> list[str]:
        return _texts(
            _compare(
                full=_it(method="AutoMultivariateNormal", spread=0.4, params={"W": torch.ones(2)}),
                mean_field=_it(method="AutoNormal", spread=0.9, params={"W": W}),
            ),
            "containment",
        )

    assert len(found(torch.ones(2))) == 1
    assert found(torch.zeros(2)) == []


# --- the reference -------------------------------------------------------------------------------

NUTS: dict[str, Any] = {"method": "NUTS", "engine": "NUTS", "stored": 1_200, "num_chains": 4}


@pytest.mark.slow("about a second")
@pytest.mark.parametrize(
    ("change", "under", "cause"),
    [
        ({"model": Linear()}, "answers under another model", "the prior or the network"),
        (
            {"params": {"W": torch.ones(1)}},
            "holds other values of the point estimates",
            "those values",
        ),
        (
            {"options": {"found_scales": {"w": 2.0}}},
            "answers under other scales of the priors",
            "these scales",
        ),
    ],
)
def test_a_reference_of_another_model_is_shown_and_does_not_judge(
    change: dict[str, Any], under: str, cause: str
) -> None:
    comparison = _compare(
        "NUTS",
        narrow=_it(spread=0.5),
        far_narrow=_it(spread=0.5, **change),
        far_wide=_it(spread=2.0, **change),
        NUTS=_it(**NUTS),
    )
    (ratio,) = _texts(comparison, "sd ratio")
    assert "each by more than 3 standard errors of the draws: narrow at 60 of 60 test rows" in ratio
    assert "far_narrow" not in ratio
    assert _texts(comparison, "too wide") == []
    assert (
        f"Distances and sd ratios of far_narrow, far_wide are to NUTS, which {under}: a difference "
        f"may come from {cause} and not from the guide. They are shown and not judged."
    ) in _texts(comparison)
    table = comparison.table
    assert table["reference_model"].to_dict() == {
        "narrow": "same",
        "far_narrow": "other",
        "far_wide": "other",
        "NUTS": "",
    }
    assert math.isfinite(table.loc["far_narrow", "sd_ratio"])
    from pyro_bnn.report.tables.table import sections

    columns = sections(comparison.units, "regression")["Against the reference"]
    rows = dict(zip(table.index, table.to_dict("records"), strict=True))
    for column in columns:
        if column.title in ("distance", "epistemic sd ratio"):
            assert column.cell(rows["far_narrow"]).endswith(" (other model)")
            assert "other" not in column.cell(rows["narrow"])
            assert column.cell(rows["NUTS"]) == ""


def test_narrow_intervals_of_two_models_are_laid_to_the_model_of_the_reference() -> None:
    comparison = _compare("NUTS", it=_it(spread=0.9, model=Linear()), NUTS=_it(**NUTS))
    (text,) = _texts(comparison, "coverage")
    assert "The reference is among them, so look at its model" in text
