"""What the report says of a fit by what the second half of its steps gained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.report import compare
from pyro_bnn.report.verdicts.statement import AGAIN, OPEN
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


@pytest.mark.slow("a comparison")
def test_what_a_fit_may_still_gain_decides_whether_it_is_to_be_refitted() -> None:
    num_rows = len(SPLIT.train)
    assert 1.2 < 0.01 * num_rows < 2.5
    posteriors: dict[str, Any] = {}
    for name, gain in {"done": 0.1, "little": 1.2, "much": 2.5, "lost": -3.0}.items():
        posteriors[name] = LinearPosterior(SPLIT, losses=FLAT)
        posteriors[name].doubling = Doubling(gain, 0.2, 64_000)
    answer = compare(posteriors, SPLIT).answer
    said = {part.label: part.text.replace("\xa0", " ") for part in answer.statements}
    refit = {name for name, status in answer.status.items() if status == AGAIN}
    assert refit == {"much", "lost"}
    assert "much (objective not settled): double num_steps, to 128,000" in said[AGAIN]
    assert "lost (objective not settled): lower learning_rate" in said[AGAIN]
    assert said[OPEN].startswith("little: its last doubling of steps gained 1.20 ± 0.20 nats, 0.00")
    assert "to see the rest double num_steps, to 128,000 (about" in said[OPEN]
    assert "done" not in said[OPEN]


def test_a_round_that_loses_is_no_end() -> None:
    lost = Doubling(-3.0, 0.2, 1_000)
    assert lost.is_falling
    assert lost.is_judged
    assert not lost.has_converged
    assert Doubling(-0.4, 0.2, 1_000).has_converged
    assert not Doubling(-3.0, 2.0, 1_000).is_falling  # within two errors
