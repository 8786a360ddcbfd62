"""What is said of temperatures, and that chains with a bias judge nobody."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from pyro_bnn.report import Comparison, compare
from tests.report.conjugate import LinearPosterior, regression_split

SPLIT = regression_split()
CHAINS, DRAWS = 4, 300


def compared(kinetic: float = 1.0, configurational: float = 1.0, **options: Any) -> Comparison:
    """A guide beside right chains with these temperatures."""
    noise = 0.02 * np.random.default_rng(0).normal(size=(CHAINS, DRAWS))
    stats = {
        "kinetic_temperature": kinetic + noise,
        "configurational_temperature": configurational + noise,
    }
    chains = LinearPosterior(
        SPLIT,
        "BAOAB",
        "BAOAB",
        stored=CHAINS * DRAWS,
        num_chains=CHAINS,
        stats=stats,
        options=options,
    )
    narrow = LinearPosterior(SPLIT, spread=0.3)
    return compare({"narrow": narrow, "BAOAB": chains}, SPLIT, reference="BAOAB", num_samples=400)


def texts(comparison: Comparison, kind: str) -> list[str]:
    return [f.text.replace("\xa0", " ") for f in comparison.findings if f.kind == kind]


def test_right_temperatures_are_not_spoken_of() -> None:
    assert texts(compared(), "temperature") == []
    assert texts(compared(temperature=1.0), "temperature") == []


@pytest.mark.parametrize(
    ("temperature", "written", "how"),
    [(0.1, "0.100", "colder, so too sure"), (2.0, "2.00", "hotter, so not sure enough")],
)
def test_another_temperature_is_not_the_posterior(
    temperature: float, written: str, how: str
) -> None:
    comparison = compared(temperature, temperature, temperature=temperature)
    (text,) = texts(comparison, "temperature")
    assert text == (
        f"BAOAB: run at temperature {written}, not 1: what it gives is not the posterior but "
        f"{how}; set temperature=1."
    )


def test_draws_that_are_too_hot_or_too_cold_are_named_with_their_number() -> None:
    (text,) = texts(compared(configurational=1.3), "temperature")
    assert re.match(r"BAOAB: configurational temperature 1\.(29|30)\d* ± ", text)
    assert (
        "for 1.00, off by more than 10 % and 3 standard errors: its draws are too wide, by its"
        in text
    )
    (text,) = texts(compared(kinetic=0.8), "temperature")
    assert re.search(r"BAOAB: kinetic temperature 0\.(79|80)\d* ± ", text)
    assert "too narrow: on Gaussians steps and batches only heat, so its chains may not" in text


def test_chains_with_a_bias_judge_nobody() -> None:
    comparison = compared()
    (reference,) = texts(comparison, "reference")
    assert reference.startswith(
        "The reference BAOAB is a biased sampler, whose chains do not converge to the posterior: "
        "distances"
    )
    assert texts(comparison, "sd ratio") == []  # though 0.3 is far too small
