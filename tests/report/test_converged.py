"""What the report says of a fit by what the second half of its steps gained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.report import compare
from pyro_bnn.report.verdicts.verdict import Verdict
from tests.report.conjugate import LinearPosterior, losses, regression_split

SPLIT = regression_split()
FLAT = losses()


def findings(**doublings: Doubling) -> Sequence[Verdict]:
    """Verdicts on fits of which each has gained so much."""
    posteriors: dict[str, Any] = {}
    for name, doubling in doublings.items():
        posteriors[name] = LinearPosterior(SPLIT, losses=FLAT)
        posteriors[name].doubling = doubling
    return compare(posteriors, SPLIT).findings


def texts(found: Sequence[Verdict], kind: str) -> list[str]:
    return [one.text.replace("\xa0", " ") for one in found if one.kind == kind]


@pytest.mark.slow("comparisons")
def test_every_fit_has_a_line_on_whether_it_converged() -> None:
    found = findings(
        done=Doubling(0.21, 0.1, 8_000),
        back=Doubling(-0.4, 0.2, 4_000),
        short=Doubling(5.2, 1.1, 500),
        wide=Doubling(2.0, 3.0, 2_000),
    )
    (converged,) = (one for one in found if one.kind == "converged")
    assert not converged.is_warning
    assert converged.methods == ("done", "back")
    assert "done 0.21 ± 0.10 in 8,000 steps" in converged.text.replace("\xa0", " ")
    (short,) = (one for one in found if one.kind == "trend")
    assert short.methods == ("short",)
    assert short.is_warning
    text = short.text.replace("\xa0", " ")
    assert "the second half of its 500 steps gained 5.2 ± 1.1 nats" in text
    assert "threshold 2.2" in text  # two errors
    assert "to 1,000 (about " in text
    (wide,) = (one for one in found if one.kind == "unchecked")
    assert wide.methods == ("wide",)
    assert "its last 1,000 steps gained 2.0 ± 3.0 nats, an error above 1.5" in wide.text.replace(
        "\xa0", " "
    )


@pytest.mark.slow("a comparison")
def test_the_trend_of_the_loss_is_not_asked_where_halves_were_compared() -> None:
    rising = losses(slope=0.1)
    plain: Any = LinearPosterior(SPLIT, losses=rising)
    assert len(texts(compare({"it": plain}, SPLIT).findings, "trend")) == 1
    posterior: Any = LinearPosterior(SPLIT, losses=rising)
    posterior.doubling = Doubling(0.1, 0.1, len(rising))
    found = compare({"it": posterior}, SPLIT).findings
    assert texts(found, "trend") == []
    assert len(texts(found, "converged")) == 1
