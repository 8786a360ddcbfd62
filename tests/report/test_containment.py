"""Families within families: declared by every method, and true of the guides themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from pyro_bnn import (
    CAVI,
    IVON,
    SLANG,
    SWAG,
    VOGN,
    VON,
    Exact,
    Laplace,
    Vadam,
    guides,
    likelihoods,
    models,
)
from pyro_bnn.guides.low_rank_precision import AutoLowRankPrecision
from pyro_bnn.registry import entries
from pyro_bnn.report import compare
from pyro_bnn.report.evaluation.fit_record import FitRecord
from pyro_bnn.report.verdicts.containment import contains, family_of, special_cases
from tests.guides.exact import moments
from tests.laws import made, problem
from tests.oracle import linear_gaussian
from tests.report.conjugate import LinearPosterior, regression_split

OF_A_GUIDE: dict[str, Any] = {
    "VON": VON(num_steps=1),
    "VON, full": VON(num_steps=1, covariance="full"),
    "VOGN": VOGN(num_steps=1),
    "Vadam": Vadam(num_steps=1),
    "IVON": IVON(num_steps=1),
    "SLANG": SLANG(num_steps=1, rank=2),
    "SWAG": SWAG(num_steps=1, num_iterates=2, rank=2),
    "CAVI": CAVI(),
    "Exact": Exact(),
    "Laplace": Laplace(num_steps=9),
    "Laplace, kron": Laplace(num_steps=9, structure="kron"),
    "Laplace, last layer": Laplace(num_steps=9, subset="last_layer"),
    "Laplace, entries": Laplace(num_steps=9, subset=2),
    "Laplace, diagonal": Laplace(num_steps=9, structure="diagonal"),
    "Laplace, low rank": Laplace(num_steps=9, structure="low_rank"),
}
WITHOUT_FAMILY = {
    "svi": "its method is the guide",
    "nuts": "draws of the posterior itself",
    "baoab": "draws of no family",
    "ensemble": "points of equal weight",
    "cyclical": "draws of no family",
    "psgld": "draws of no family",
    "sghmc": "draws of no family",
    "sgld": "draws of no family",
    "sgnht": "draws of no family",
    "smc": "draws of the posterior itself",
    "subspace": "draws of no family",
    "hmc": "draws of the posterior itself",
    "mams": "draws of the posterior itself",
    "mc-dropout": "its method is the guide",
    "mclmc": "draws of no family",
    "mile": "draws of no family",
}
ALONE = {
    "auto-composite": "of the families of its parts, which are options",
    "auto-delta": "a point, whose objective is no ELBO",
    "auto-dropout": "of its kind, an option: only the Gaussian one has a density",
    "auto-radial": "draws on spheres, of which no other family is a limit",
    "auto-rank1-mixture": "of factors of a model of its own",
    "batch-ensemble": "points, of a model of its own",
}
PAIRS = [
    (larger, smaller)
    for larger in sorted(guides.Guide.known)
    for smaller in sorted(special_cases(larger))
]
SPLIT = regression_split()


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize("name", OF_A_GUIDE)
def test_an_engine_that_makes_a_guide_says_which(name: str) -> None:
    oracle = linear_gaussian()
    model = models.LinearRegression(3, likelihood=likelihoods.Normal(0.5)).double()
    posterior = OF_A_GUIDE[name].run(model, (oracle.x, oracle.y), progress=False)
    assert family_of(FitRecord.of(posterior)) == type(posterior.guide).__name__


def test_every_method_has_a_family_or_a_reason_not_to() -> None:
    makers = {type(engine) for engine in OF_A_GUIDE.values()}
    others = {name for name, cls in entries("engine").items() if cls not in makers}
    assert others == set(WITHOUT_FAMILY)
    in_pairs = {name for pair in PAIRS for name in pair}
    assert in_pairs <= set(guides.Guide.known)
    # a guide that is new stands alone until it or another says what it contains
    alone = {name for name, cls in entries("guide").items() if cls.__name__ not in in_pairs}
    assert set(ALONE) <= alone


def test_special_cases_of_special_cases_are_found() -> None:
    mean_field = {"AutoNormal", "AutoKTiedNormal"}
    low_rank = {"AutoLowRankMultivariateNormal", "AutoLowRankPrecision"}
    expected = {
        "AutoNormal": {"AutoKTiedNormal"},
        **dict.fromkeys((*low_rank, "AutoFlow", "AutoNormalMixture"), mean_field),
        "AutoMultivariateNormal": {*mean_field, *low_rank, "AutoMatrixNormal"},
    }
    found = {name: special_cases(name) for name in (*guides.Guide.known, "NUTS", "of nobody")}
    assert {name: cases for name, cases in found.items() if cases} == expected


def guide_called(name: str) -> type[guides.Guide]:
    """The class of a name, also the one of an engine, which is not exported."""
    if name == "AutoLowRankPrecision":
        return AutoLowRankPrecision
    found: type[guides.Guide] = getattr(guides, name)
    return found


def set_to(larger: Any, mean: torch.Tensor, covariance: torch.Tensor) -> None:
    """Make a guide the Gaussian of a mean and covariance, each family its own way."""
    sds = covariance.diagonal().sqrt()
    if isinstance(larger, guides.AutoNormalMixture):
        K = larger.num_components
        larger.set_components(mean.expand(K, -1), sds.expand(K, -1), torch.ones(K).double())
        return
    if isinstance(larger, guides.AutoMultivariateNormal):
        larger.set_moments(mean, covariance)
        return
    with torch.no_grad():
        larger.loc.copy_(mean)
    if isinstance(larger, guides.AutoLowRankMultivariateNormal):
        larger.set_sds(sds)
    elif isinstance(larger, AutoLowRankPrecision):
        with torch.no_grad():
            larger.prec_factor.zero_()
        larger.scale = sds
    else:  # AutoNormal, and a flow, which is the identity at its start
        larger.scale = sds


@pytest.mark.parametrize(("larger", "smaller"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_a_guide_can_be_its_special_cases(larger: str, smaller: str) -> None:
    """A Gaussian of random parameters, and the larger family set to it: one density."""
    given = problem("matrix")
    inner = made(guide_called(smaller), given, noise=0.3)
    outer = made(guide_called(larger), given, noise=0.0)
    with torch.no_grad():
        set_to(outer, *moments(inner))
        z = inner.sample(20, seed=1)
        assert_close(outer.log_prob(z), inner.log_prob(z), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("guide", "engine", "options", "expected"),
    [
        ("AutoMultivariateNormal", "VOGN", {}, True),
        ("AutoMultivariateNormal", "SLANG", {}, True),
        ("AutoMultivariateNormal", "VON", {"covariance": "full"}, True),
        ("AutoMultivariateNormal", "Exact", {}, True),
        ("AutoFlow", "Vadam", {}, True),
        ("AutoFlow", "SLANG", {}, False),
        ("AutoNormalMixture", "CAVI", {}, True),
        ("AutoLowRankMultivariateNormal", "IVON", {}, True),
        ("AutoLowRankMultivariateNormal", "SLANG", {}, False),  # of the precision, not this
        ("AutoNormal", "VON", {}, True),
        ("AutoNormal", "VON", {"covariance": "diagonal"}, True),
        ("AutoNormal", "VON", {"covariance": "full"}, False),
        ("AutoNormal", "NUTS", {}, False),
        ("AutoDelta", "VOGN", {}, False),
        ("AutoNormal", "SGLD of another package", {}, False),
    ],
    ids=str,
)
def test_a_guide_contains_what_engines_find_in_its_family(
    guide: str, engine: str, options: dict[str, Any], expected: bool
) -> None:
    fitted = LinearPosterior(SPLIT, guide)
    found = LinearPosterior(SPLIT, engine, engine, options=options)
    own, other = FitRecord.of(fitted), FitRecord.of(found)
    assert contains(own, other) is expected
    assert not contains(other, own)  # whatever an engine with a bias ends at is no fault of it
    assert contains(own, FitRecord.of(fitted))  # another fit of the same guide
    assert not contains(other, FitRecord.of(found))


@pytest.mark.parametrize(
    ("guide", "own", "engine", "options", "expected"),
    [
        ("AutoLowRankMultivariateNormal", {"rank": 20}, "SWAG", {"rank": 20}, True),
        ("AutoLowRankMultivariateNormal", {"rank": 21}, "SWAG", {"rank": 20}, True),
        ("AutoLowRankMultivariateNormal", {"rank": 5}, "SWAG", {"rank": 20}, False),
        ("AutoLowRankMultivariateNormal", {"rank": 20, "block": "layer"}, "SWAG", {"rank": 20},
         False),
        ("AutoLowRankMultivariateNormal", {"rank": 1}, "VOGN", {}, True),  # of rank 0
        ("AutoNormal", {"init_scale": 0.1}, "VOGN", {}, True),
        ("AutoComposite", {"parts": {"2.*": "AutoNormal"}}, "Laplace", {"subset": "last_layer"},
         False),  # its parts are other guides
    ],
    ids=str,
)  # fmt: skip
def test_a_guide_contains_an_engines_find_of_its_size_alone(
    guide: str, own: dict[str, Any], engine: str, options: dict[str, Any], expected: bool
) -> None:
    fitted = FitRecord.of(LinearPosterior(SPLIT, guide, options=own))
    found = FitRecord.of(LinearPosterior(SPLIT, engine, engine, options=options))
    assert contains(fitted, found) is expected


def test_of_several_special_cases_the_best_is_named() -> None:
    posteriors = {
        "full": LinearPosterior(SPLIT, "AutoMultivariateNormal", spread=0.4),
        "some": LinearPosterior(SPLIT, "VOGN", "VOGN", spread=0.6),
        "best": LinearPosterior(SPLIT, "SLANG", "SLANG", spread=0.9),
    }
    found = [f.text for f in compare(posteriors, SPLIT).findings if f.kind == "containment"]
    (text,) = found
    assert text.startswith("full: not converged")
    assert "below that of best, which" in text


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("engine", ["VOGN", "SLANG"])
def test_a_guide_below_a_natural_gradient_of_its_family_is_not_converged(engine: str) -> None:
    def texts(**spreads: float) -> list[str]:
        posteriors = {
            "guide": LinearPosterior(SPLIT, spread=spreads["guide"]),
            "found": LinearPosterior(SPLIT, engine, engine, spread=spreads["found"]),
        }
        findings = compare(posteriors, SPLIT).findings
        return [finding.text for finding in findings if finding.kind == "containment"]

    (text,) = texts(guide=0.4, found=0.9)
    assert text.startswith("guide: not converged, its ELBO is ")
    assert "below that of found, which it contains as a special case" in text
    assert texts(guide=0.9, found=0.4) == []
