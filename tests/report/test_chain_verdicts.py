"""What is said of Markov chains, and which of them may judge others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from pyro_bnn import arviz_io, infer, likelihoods, models, priors
from pyro_bnn.data import Dataset, Split
from pyro_bnn.report import Comparison, compare, compare_files
from pyro_bnn.report.evaluation.fit_checks import fit_checks
from tests.report.conjugate import LinearPosterior, class_split, regression_split

SPLIT = regression_split()
CHAINS, DRAWS = 4, 300
KINDS = {"rhat", "ess", "divergences", "saturated trees", "energy", "reference"}


def statistics(**changes: np.ndarray) -> dict[str, np.ndarray]:
    """Of NUTS without a fault: energies independent, trees far from their largest depth."""
    energy = np.random.default_rng(0).normal(size=(CHAINS, DRAWS))
    return {"energy": energy, "tree_depth": np.full((CHAINS, DRAWS), 5), **changes}


def judged(**changes: Any) -> Comparison:
    """A guide far too sure of itself, beside chains of the exact posterior with these changes."""
    given: dict[str, Any] = {
        "stored": CHAINS * DRAWS,
        "num_chains": CHAINS,
        "stats": statistics(),
        "options": {"max_tree_depth": 10},
    }
    posteriors = {
        "narrow": LinearPosterior(SPLIT, spread=0.3),
        "NUTS": LinearPosterior(SPLIT, "NUTS", "NUTS", **{**given, **changes}),
    }
    return compare(posteriors, SPLIT, reference="NUTS", num_samples=600)


def texts(comparison: Comparison, kind: str) -> Sequence[str]:
    found = [finding for finding in comparison.findings if finding.kind == kind]
    return [finding.text.replace("\xa0", " ") for finding in found]


def test_good_chains_judge_and_nothing_is_said_of_them() -> None:
    comparison = judged()
    assert KINDS.isdisjoint(finding.kind for finding in comparison.findings)
    assert len(texts(comparison, "sd ratio")) == 1
    row = comparison.table.loc["NUTS"]
    assert (row["saturated"], row["divergent"]) == (0, 0)
    assert row["ebfmi"] == pytest.approx(2, abs=0.3)
    assert row["ess_tail"] > 800


def drifting() -> torch.Tensor:
    """Draws of a scale in chains that climb by 1.7 of its sds, all alike."""
    noise = torch.randn(CHAINS, DRAWS, generator=torch.Generator().manual_seed(1))
    return (noise + torch.linspace(0, 2, DRAWS)).exp()


def slow_energies() -> np.ndarray:
    """Energies of autocorrelation 0.9, of which E-BFMI is 0.2."""
    energy = np.random.default_rng(2).normal(size=(CHAINS, DRAWS))
    for step in range(1, DRAWS):
        energy[:, step] = 0.9 * energy[:, step - 1] + np.sqrt(0.19) * energy[:, step]
    return energy


@pytest.mark.parametrize(
    ("changes", "kind", "said", "defect"),
    [
        (
            {"scales": {"noise": drifting()}},
            "rhat",
            "of noise, threshold 1.01: the chains have not settled",
            "of noise, above 1.01",
        ),
        (
            {"scales": {"lambdas": drifting()[..., None].expand(-1, -1, 3)}},
            "rhat",
            "of lambdas, threshold 1.01",
            "of lambdas, above 1.01",
        ),
        (
            {"scales": {"noise": torch.ones(CHAINS, DRAWS)}},
            "rhat",
            "R-hat undefined (all draws are equal) of noise",
            "R-hat undefined (all draws are equal) of noise, above 1.01",
        ),
        (
            {"stored": 4 * 80, "stats": {}},
            "ess",
            "threshold 400: its quantiles, sds and R-hat are not precise enough",
            "of f at the worst test row, below 400",
        ),
        (
            {"num_divergent": 2},
            "divergences",
            "2 of 1200 draws diverged, threshold 0",
            "0.17 % of draws divergent, above 0.1 %",
        ),
        (
            {"stats": statistics(tree_depth=np.full((CHAINS, DRAWS), 10))},
            "saturated trees",
            "100.0 % of trees as large as max_tree_depth allows, above 1 %",
            "100.0 % of trees as large as max_tree_depth allows, above 1 %",
        ),
        (
            {"stats": statistics(energy=slow_energies())},
            "energy",
            "of the worst chain, below 0.3: the chains move slowly between energies",
            "of the worst chain, below 0.3",
        ),
    ],
    ids=["scale", "scales", "stuck", "ess", "divergences", "trees", "energy"],
)
def test_a_reference_with_a_defect_judges_nobody(
    changes: Any, kind: str, said: str, defect: str
) -> None:
    comparison = judged(**changes)
    (own,) = texts(comparison, kind)
    assert own.startswith("NUTS: ")
    assert said in own
    (reference,) = texts(comparison, "reference")
    assert reference.startswith("The reference NUTS has defects (")
    assert defect in reference
    assert texts(comparison, "sd ratio") == []  # though 0.3 is far too small
    assert np.isfinite(comparison.table.loc["narrow", ["distance", "sd_ratio"]].astype(float)).all()


def test_one_divergence_in_a_thousand_draws_is_named_and_judges() -> None:
    comparison = judged(num_divergent=1)
    assert len(texts(comparison, "divergences")) == 1
    assert texts(comparison, "reference") == []
    assert len(texts(comparison, "sd ratio")) == 1


@pytest.mark.parametrize(
    ("num_chains", "stored", "why"),
    [(2, 1_200, "2 of at least 4 chains"), (4, 28, "fewer than 8 draws a chain, too few for R-h")],
)
def test_few_or_short_chains_judge_nobody(num_chains: int, stored: int, why: str) -> None:
    (reference,) = texts(judged(num_chains=num_chains, stored=stored, stats={}), "reference")
    assert why in reference


@pytest.mark.slow("about a second")
def test_what_could_not_be_judged_is_noted() -> None:
    notes = judged(stats={}).evaluations["NUTS"].notes
    assert "E-BFMI not judged: consecutive energies are not stored" in notes
    notes = judged(options={}).evaluations["NUTS"].notes
    assert "saturated trees not judged: the largest depth allowed is not known" in notes


@pytest.mark.slow("a second or more")
def test_a_shift_of_all_logits_which_the_data_cannot_see_is_no_defect() -> None:
    split = class_split()
    posterior = LinearPosterior(split, "NUTS", "NUTS", stored=CHAINS * DRAWS, num_chains=CHAINS)
    assert posterior.z is not None
    posterior.z[0] += 3.0 * posterior.z.std((0, 1))[:1]  # one shift for the logits of a row
    apart = posterior.function_draws(split.test.x, CHAINS * DRAWS, group_by_chain=True)
    assert arviz_io.rhat(apart.numpy()).max() > 1.3
    checks = fit_checks(posterior, split, 600, 0, is_point=False)
    assert checks.sampling is not None
    assert checks.sampling.worst_rhat < 1.01


# --- samplers that are biased --------------------------------------------------------------------


def beside_nuts(energy_variance: float, *, reference: str = "NUTS", **changes: Any) -> Comparison:
    """Chains of MCLMC whose steps have this energy variance, beside those of NUTS."""
    chains: dict[str, Any] = {"stored": CHAINS * DRAWS, "num_chains": CHAINS}
    values = np.full((CHAINS, DRAWS), energy_variance)
    values[0, :2] = np.inf  # of draws that diverged
    posteriors = {
        "MCLMC": LinearPosterior(
            SPLIT,
            changes.pop("method", "MCLMC"),
            "MCLMC",
            num_divergent=changes.pop("num_divergent", 2),
            stats={"energy_variance": values},
            **{**chains, **changes},
        ),
        "NUTS": LinearPosterior(
            SPLIT, "NUTS", "NUTS", stats=statistics(), options={"max_tree_depth": 10}, **chains
        ),
    }
    return compare(posteriors, SPLIT, reference=reference, num_samples=600)


def test_a_biased_sampler_shows_the_bias_that_its_energy_errors_imply() -> None:
    """4 r^3 / (1 + r)^2 at r of 20 % is 1 / 45."""
    comparison = beside_nuts(1 / 45)
    bias = comparison.table["sampler_bias"]
    assert bias["MCLMC"] == pytest.approx(0.2, rel=1e-6)
    assert np.isnan(bias["NUTS"])
    (text,) = texts(comparison, "sampler bias")
    assert "its energy errors imply variances off by 20 % (by 20 % at the median draw)" in text
    assert "threshold 10 %" in text


def test_a_small_bias_is_shown_and_not_blamed() -> None:
    comparison = beside_nuts(4 * 0.05**3 / 1.05**2)
    assert comparison.table.loc["MCLMC", "sampler_bias"] == pytest.approx(0.05, rel=1e-6)
    assert texts(comparison, "sampler bias") == []


def test_effective_draws_of_a_biased_sampler_do_not_stand_as_those_of_an_exact_one() -> None:
    text = beside_nuts(1e-4).summary()
    (ours,) = [line for line in text.splitlines() if "biased" in line and "MCLMC" in line]
    assert ours.count("(biased)") == 3  # R-hat, ESS, and that in the tails
    assert all("NUTS" not in line for line in text.splitlines() if "(biased)" in line)


def test_a_biased_sampler_judges_nobody_though_its_chains_agree() -> None:
    comparison = beside_nuts(1e-6, reference="MCLMC", num_divergent=0)
    (reference,) = texts(comparison, "reference")
    assert "The reference MCLMC is a biased sampler, whose chains do not converge" in reference
    assert "use chains of NUTS, HMC or MAMS as the reference" in reference
    (reference,) = texts(comparison, "reference")
    exact = beside_nuts(1e-6, reference="MCLMC", method="MAMS", num_divergent=0)
    assert texts(exact, "reference") == []


def test_r_hats_within_members_and_over_them_have_names_of_their_own() -> None:
    """Members three sds apart, each of independent draws."""
    comparison = beside_nuts(1e-6, method="MILE", options={"num_members": 4}, chain_shift=3.0)
    row = comparison.table.loc["MCLMC"]
    assert row["rhat"] > 1.1
    assert row["rhat_within"] < 1.03
    (text,) = texts(comparison, "members")
    assert "over members, R-hat" in text
    assert "Each member counts the same" in text
    assert all("NUTS" in text or "within members" in text for text in texts(comparison, "rhat"))


def test_members_that_differ_no_more_than_within_themselves_are_not_said_to_differ() -> None:
    """All drift alike, so that halves of each are farther apart than members are."""
    comparison = beside_nuts(1e-6, method="MILE", options={"num_members": 4}, drift=2.0)
    row = comparison.table.loc["MCLMC"]
    assert row["rhat_within"] > row["rhat"] > 1.01
    assert texts(comparison, "members") == []
    assert any("within members" in text for text in texts(comparison, "rhat"))


# --- of the package's own chains -----------------------------------------------------------------


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("files_in_memory")
def test_saturated_trees_of_nuts_are_said(tmp_path: Any) -> None:
    split = regression_split(num_rows=40)
    model = models.MLP(3, hidden=(2,), likelihood=likelihoods.Normal(0.5))
    nuts = infer.NUTS(warmup_steps=20, num_samples=30, max_tree_depth=2, compile=False)
    chains = nuts.run(model, split.train, progress=False)
    comparison = compare({"NUTS": chains}, split, reference="NUTS")
    (text,) = texts(comparison, "saturated trees")
    share = float((chains.sample_stats["tree_depth"] >= 2).mean())
    assert share > 0.9
    assert f"NUTS: {share:.1%} of trees".replace("%", " %") in text
    (reference,) = texts(comparison, "reference")
    assert "of trees as large as max_tree_depth allows" in reference
    comparison.write_draws("NUTS", tmp_path / "nuts.nc")
    again = compare_files([tmp_path / "nuts.nc"], reference="NUTS")
    assert texts(again, "saturated trees") == [text]


@pytest.mark.soak  # the same is judged of drawn chains above
def test_chains_that_miss_the_neck_of_a_funnel_judge_nobody() -> None:
    # 5 % of the posterior have log s below -5.55, by quadrature: none of these chains goes there
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(12, 8, generator=generator)
    y = 0.1 * x[:, 0] + 0.3 * torch.randn(12, generator=generator)
    test = Dataset(torch.randn(40, 8, generator=torch.Generator().manual_seed(5)), y.new_zeros(40))
    split = Split(Dataset(x, y), test, task="regression", name="funnel", index=0)
    prior: Any = {"*.weight": priors.HalfCauchyScale(centred=True), "*.bias": priors.Normal()}
    model = models.MLP(8, hidden=(), prior=prior, likelihood=likelihoods.Normal(scale=0.5))
    nuts = infer.NUTS(warmup_steps=200, num_samples=300, compile=False)
    chains = nuts.run(model, split.train, seed=0, progress=False)
    log_scale = chains.hyperparameters(1_200)["layers.0.weight.scale"].log()
    assert (log_scale < -5.55).float().mean() < 0.01
    checks = fit_checks(chains, split, 600, 0, is_point=False).sampling
    assert checks is not None
    assert checks.quantities["f"].worst_rhat < 1.05  # which passed, alone
    assert checks.quantities["layers.0.weight.scale"].worst_rhat > 1.05
    assert not checks.can_judge
