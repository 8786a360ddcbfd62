"""What is said of islands of particles, and of evidences."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import constraints

from pyro_bnn import SMC, Exact, Laplace, likelihoods, models, priors
from pyro_bnn.data import Standardiser, from_arrays
from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.evaluation.fit_record import evidence_rows
from tests.report.conjugate import LinearPosterior, regression_split

SPLIT = regression_split()
ISLANDS, DRAWS = 4, 300
KINDS = {"rhat", "ess", "short chains", "evidence spread", "ancestors", "slow moves", "evidence"}


def islands(model: object = "linear", draws: int = DRAWS, **changes: Any) -> LinearPosterior:
    """A posterior of four islands without a fault, but for these changes of what they tell."""
    fields = {field.name for field in dataclasses.fields(LinearPosterior)}
    own = {name: changes.pop(name) for name in list(changes) if name in fields}
    options = {
        "num_islands": ISLANDS,
        "log_evidence": -300.0,
        "log_evidence_error": 0.1,
        "log_evidences": [-300.0, -300.1, -299.9, -300.2],
        "ancestors": [20, 10, 10, 10],
        "num_temperatures": [10] * ISLANDS,
        "slow_temperatures": 4,
        "largest_correlation": 0.3,
        **changes,
    }
    stats = {"ancestor": np.zeros((ISLANDS, draws), np.int64)}
    return LinearPosterior(
        SPLIT, "SMC", "SMC", stored=ISLANDS * draws, num_chains=ISLANDS, stats=stats,
        options=options, model=model, **own,
    )  # fmt: skip


def compared(**posteriors: LinearPosterior) -> Comparison:
    return compare(posteriors, SPLIT, num_samples=600)


def texts(comparison: Comparison, kind: str) -> list[str]:
    found = [finding for finding in comparison.findings if finding.kind == kind]
    return [finding.text.replace("\xa0", " ") for finding in found]


def test_good_islands_have_their_evidence_in_the_table_and_nothing_is_said_of_them() -> None:
    comparison = compared(SMC=islands())
    assert KINDS.isdisjoint(finding.kind for finding in comparison.findings)
    row = comparison.table.loc["SMC"]
    assert (row["log_evidence"], row["log_evidence_error"]) == (-300, 0.1)
    assert "E-BFMI" not in row["notes"]


def test_a_method_without_evidence_has_none_in_the_table() -> None:
    row = compared(SMC=islands(), guide=LinearPosterior(SPLIT)).table.loc["guide"]
    assert np.isnan(row["log_evidence"])
    assert np.isnan(row["log_evidence_error"])


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("evidence spread", {"log_evidence_error": 0.51}, "300.00 ± 0.51 nats, its error above"),
        ("ancestors", {"ancestors": [19, 10, 10, 10]}, "49 draws of the prior (10 in the worst"),
        ("slow moves", {"slow_temperatures": 5}, "at 5 of 40 temperatures"),
    ],
)
def test_what_islands_lack(kind: str, changes: dict[str, Any], words: str) -> None:
    comparison = compared(SMC=islands(**changes))
    (text,) = texts(comparison, kind)
    assert words in text
    assert KINDS & {finding.kind for finding in comparison.findings} == {kind}


def test_advice_names_options_that_islands_have() -> None:
    """Not a warm-up, which they have not."""
    comparison = compared(SMC=islands(chain_shift=3.0), short=islands(draws=6))
    (rhat,), (short,) = texts(comparison, "rhat"), texts(comparison, "short chains")
    assert rhat.startswith("SMC: R-hat")
    assert rhat.endswith("; raise num_particles.")
    assert short.endswith("; raise num_particles.")


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (-303.2, 0.2, "A has 3.20 ± 0.22 nats more log evidence than B"),
        (-303.2, 1.7, "do not tell their models apart: 3.2 ± 1.7 nats"),
        (-300.9, 0.01, "do not tell their models apart: 0.90 ± 0.10 nats"),
    ],
)
def test_models_are_compared_by_their_evidences(value: float, error: float, words: str) -> None:
    other = islands("other", log_evidence=value, log_evidence_error=error)
    comparison = compared(A=islands(), B=other)
    (text,) = texts(comparison, "evidence")
    assert words in text
    assert text.endswith(".")
    (found,) = (finding for finding in comparison.findings if finding.kind == "evidence")
    assert not found.is_warning


def test_one_model_is_not_compared_with_itself_nor_what_has_no_error() -> None:
    other = islands(log_evidence=-310.0)
    assert texts(compared(A=islands(), B=other), "evidence") == []
    laplace = LinearPosterior(SPLIT, options={"log_evidence": -310.0}, model="other")
    assert texts(compared(A=islands(), laplace=laplace), "evidence") == []
    trained = islands("other", log_evidence=-310.0, params={"w": torch.ones(1)})
    assert texts(compared(A=islands(), trained=trained), "evidence") == []


class Normal:
    """Of a family of densities."""

    support = constraints.real


class Poisson:
    """Of a family of masses."""

    support = constraints.nonnegative_integer


def fitted(scale: float | None = 2.0, rows: int = 9, family: type = Normal) -> Any:
    """What is known of the rows of a fit."""
    units = None if scale is None else Standardiser(torch.zeros(1), torch.tensor([scale]))
    return SimpleNamespace(
        program=SimpleNamespace(num_data=rows, likelihood_family=family),
        provenance=SimpleNamespace(target=units),
    )


def test_evidences_of_other_units_rows_or_kinds_do_not_compare() -> None:
    assert evidence_rows(fitted()) == evidence_rows(fitted())
    counts = fitted(None, family=Poisson)
    assert evidence_rows(counts) == evidence_rows(fitted(None, family=Poisson))
    for other in (fitted(3.0), fitted(None), fitted(rows=8), fitted(family=Poisson)):
        assert evidence_rows(fitted()) != evidence_rows(other)
    assert evidence_rows(LinearPosterior(SPLIT)) == ""  # compared before


def test_real_fits_of_two_priors() -> None:
    """Of linear models, whose evidences are known; the wide prior wastes its mass."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    split = from_arrays(x, x @ np.array([1.0, -0.5]) + 0.3 * rng.normal(size=60))

    def model(scale: float) -> models.LinearRegression:
        prior, likelihood = priors.Normal(scale), likelihoods.Normal(0.3)
        return models.LinearRegression(2, prior=prior, likelihood=likelihood)

    narrow, wide = model(1.0), model(100.0)
    smc = SMC(num_particles=50, num_steps=4, compile=False)
    fits = {
        "narrow": smc.run(narrow, split.train, progress=False),
        "wide": Exact().run(wide, split.train, progress=False),
        "Laplace": Laplace(num_steps=100).run(narrow, split.train, progress=False),
    }
    comparison = compare(fits, split, num_samples=100)
    gap = narrow.log_evidence(split.train) - wide.log_evidence(split.train)
    (text,) = texts(comparison, "evidence")
    assert text.startswith("narrow has ")
    told, error = (
        float(word) for word in text.removeprefix("narrow has ").split(" nats")[0].split(" ± ")
    )
    assert abs(told - gap) < 4 * error
    table = comparison.table["log_evidence"]
    exact = wide.log_evidence(split.train)
    assert table["wide"] == pytest.approx(exact, abs=1e-3)
    assert table["Laplace"] == pytest.approx(narrow.log_evidence(split.train), abs=1e-2)
