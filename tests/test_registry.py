"""Names of everything, from the exports."""

from __future__ import annotations

import pytest

from pyro_bnn import (
    CAVI,
    HMC,
    NUTS,
    SGLD,
    SVI,
    Exact,
    guides,
    infer,
    likelihoods,
    models,
    priors,
    registry,
)
from pyro_bnn.errors import UnknownNameError


@pytest.mark.parametrize(
    ("name", "kebab"),
    [
        ("AutoNormal", "auto-normal"),
        ("AutoLowRankMultivariateNormal", "auto-low-rank-multivariate-normal"),
        ("AutoRank1Mixture", "auto-rank1-mixture"),
        ("SVI", "svi"),
        ("NUTS", "nuts"),
        ("HMC", "hmc"),
        ("CyclicalSGLD", "cyclical-sgld"),
        ("MLP", "mlp"),
        ("auto-normal", "auto-normal"),
    ],
)
def test_names_on_the_command_line(name: str, kebab: str) -> None:
    assert registry.kebab_case(name) == kebab


def test_every_exported_class_is_an_entry_but_the_bases() -> None:
    guide_entries = registry.entries("guide")
    assert set(guide_entries.values()) == {
        getattr(guides, name) for name in guides.__all__ if name != "Guide"
    }
    assert guide_entries["auto-normal"] is guides.AutoNormal
    assert registry.entries("engine") == {
        "baoab": infer.BAOAB,
        "cavi": CAVI,
        "cyclical": infer.Cyclical,
        "ensemble": infer.Ensemble,
        "exact": Exact,
        "hmc": HMC,
        "ivon": infer.IVON,
        "laplace": infer.Laplace,
        "mams": infer.MAMS,
        "mc-dropout": infer.MCDropout,
        "mclmc": infer.MCLMC,
        "mile": infer.MILE,
        "nuts": NUTS,
        "psgld": infer.PSGLD,
        "sghmc": infer.SGHMC,
        "sgld": SGLD,
        "sgnht": infer.SGNHT,
        "slang": infer.SLANG,
        "smc": infer.SMC,
        "subspace": infer.Subspace,
        "svi": SVI,
        "swag": infer.SWAG,
        "vadam": infer.Vadam,
        "vogn": infer.VOGN,
        "von": infer.VON,
    }
    assert set(registry.entries("engine").values()) == {
        getattr(infer, name) for name in infer.__all__
    }
    assert {"normal", "flat"} <= set(registry.entries("prior"))
    assert registry.entries("prior")["normal"] is priors.Normal
    assert "likelihood" not in registry.entries("likelihood")
    assert registry.entries("likelihood")["categorical"] is likelihoods.Categorical
    assert registry.entries("model") == {  # bayesian(net) is a function
        "deep-linear": models.DeepLinear,
        "le-net": models.LeNet,
        "linear-regression": models.LinearRegression,
        "mlp": models.MLP,
        "rank1-mlp": models.Rank1MLP,
        "rank1-res-net": models.Rank1ResNet,
        "res-net": models.ResNet,
    }


@pytest.mark.parametrize(
    "name", ["auto-low-rank-multivariate-normal", "AutoLowRankMultivariateNormal", "auto-low-rank"]
)
def test_look_up_by_kebab_case_class_name_or_prefix(name: str) -> None:
    assert registry.lookup("guide", name) is guides.AutoLowRankMultivariateNormal


def test_a_prefix_that_fits_several_is_no_name() -> None:
    with pytest.raises(UnknownNameError, match="unknown guide 'auto'"):
        registry.lookup("guide", "auto")


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown guide 'auto-nrmal': did you mean 'auto-n"):
        registry.lookup("guide", "auto-nrmal")
    with pytest.raises(UnknownNameError, match="unknown kind 'guides': did you mean 'guide'"):
        registry.entries("guides")


@pytest.mark.parametrize(
    ("kind", "base"), [("guide", guides.Guide), ("likelihood", likelihoods.Likelihood)]
)
def test_exports_are_of_the_kind_of_their_package(kind: str, base: type) -> None:
    assert [name for name, cls in registry.entries(kind).items() if not issubclass(cls, base)] == []
