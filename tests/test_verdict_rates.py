"""The page of false alarms and power, and the simulations behind it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import verdicts
from benchmarks.verdict_rates import spread
from benchmarks.verdict_rates._rate import Rate
from pyro_bnn.report.verdicts.doubts import FOUND
from pyro_bnn.report.verdicts.verdicts import RULES


@pytest.mark.slow("a second or more")
def test_the_page_is_that_of_the_rates_that_were_counted() -> None:
    counted = json.loads((verdicts.FOLDER / "rates.json").read_text())
    assert (verdicts.FOLDER / "README.md").read_text() == verdicts.page(counted)


def test_every_rule_of_the_report_has_a_rate_or_a_reason_not_to() -> None:
    counted = json.loads((verdicts.FOLDER / "rates.json").read_text())
    with_rate = {row["verdict"] for rows in counted.values() for row in rows}
    kinds = {rule.kind for rule in RULES}
    assert kinds - with_rate == set(verdicts.WITHOUT_RATE)
    # what is no rule: the ranking, and the mark of new rows in predictions
    assert with_rate - kinds == {"behind", "behind, over splits", "new rows"}


def test_what_the_answer_says_of_more_rows_is_what_the_ranking_finds() -> None:
    """Nine of ten, where rows are many."""
    words = f"behind by {FOUND:g} standard errors of a paired difference"
    counted = json.loads((verdicts.FOLDER / "rates.json").read_text())["ranking"]
    rates = [row for row in counted if row["verdict"] == "behind" and words in row["setting"]]
    many = [row for row in rates if "200 rows" in row["setting"] or "2000 rows" in row["setting"]]
    shares = [row["given"] / row["simulated"] for row in many]
    assert len(shares) == 5
    assert min(shares) > 0.89


def test_a_share_has_the_interval_of_clopper_and_pearson() -> None:
    """0 of 20: 1 - 0.025^(1 / 20) is 16.8 %."""
    rate = Rate("a", "b", "c", "d", is_true=False, given=0, simulated=20, seed=0)
    assert verdicts.share(rate) == "0.0 % (0.0 to 16.8 %) of 20"


@pytest.mark.slow("a second or more")
def test_a_subject_that_is_counted_again_leaves_the_others(tmp_path: Path) -> None:
    kept = [
        {"verdict": "x", "measures": "m", "threshold": "t", "setting": "s"}
        | {"is_true": True, "given": 3, "simulated": 4, "seed": 1}
    ]
    again = "temperature"
    others = {name: kept for name in verdicts.SUBJECTS if name != again}
    (tmp_path / "rates.json").write_text(json.dumps(others))
    verdicts.main([again, "--quick", "--out", str(tmp_path)])
    counted = json.loads((tmp_path / "rates.json").read_text())
    assert counted == {**counted, **others}
    assert counted[again]


@pytest.mark.slow("a few simulations of every case")
@pytest.mark.parametrize("subject", verdicts.SUBJECTS)
def test_every_subject_simulates(subject: str) -> None:
    rates = [Rate(**row) for row in verdicts.count([subject], quick=True)[subject]]
    assert rates
    for rate in rates:
        assert 0 <= rate.given <= rate.simulated
        assert rate.simulated > 0
    assert {rate.is_true for rate in rates} == {False, True}


def test_mean_field_is_too_wide_at_the_data_and_too_narrow_off_it() -> None:
    """Foong et al. 2020: the reason for probes."""
    rng = np.random.default_rng(1)
    found = [spread.mean_field(1_000, 500, rng) for _ in range(5)]
    assert all("too wide" in rows and "sd ratio" not in rows for rows, _ in found)
    assert all("sd ratio" in probes for _, probes in found)
