"""A number is one entry: its source, its columns, its cells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from pyro_bnn.plotting.numbers import with_error
from pyro_bnn.report.tables import metrics
from pyro_bnn.report.tables.metric import Metric, value_of


def test_an_error_is_declared_and_not_guessed_from_its_name() -> None:
    for metric in metrics.METRICS:
        assert metric.error in ("", *metric.more)
    places = {"rate": [0.111, 0.222], "rate_seen": [1.0, 2.0]}
    metric = Metric(
        "rate", more={"rate_seen": "seen"}, text=lambda rate, _, *, decimals: str(decimals)
    )
    assert metric.aligned(pd.DataFrame(places)).decimals == 3


def test_every_number_stands_once() -> None:
    keys = [metric.key for metric in metrics.METRICS if metric.key != "model_number"]
    assert len(keys) == len(set(keys))


def test_a_value_is_none_where_an_attribute_on_the_way_is() -> None:
    chains: Any = SimpleNamespace(checks=SimpleNamespace(sampling=None))
    assert value_of("checks.sampling.worst_rhat", chains) is None
    with pytest.raises(AttributeError, match="samplings"):
        value_of("checks.samplings", chains)
    assert pd.isna(Metric("rhat", "checks.sampling.worst_rhat").numbers(chains)["rhat"])


def test_keyword_only_arguments_of_a_text_are_cells_of_the_row() -> None:
    def text(value: float, *, se: float, tied: bool, decimals: int | None) -> str:
        return with_error(value, se, decimals=decimals) + " tied" * tied

    metric = Metric("score", text=text, more={"score_se": "se"}, error="score_se")
    row = {"score": 1.234, "score_se": 0.1, "tied": True}
    with pytest.raises(TypeError):  # what belongs to it comes first
        metric.cell(row)
    alone = Metric("score", text=text)
    assert alone.cell(row).replace("\xa0", " ") == "1.23 ± 0.10 tied"
    numbers = pd.DataFrame([row, {"score": 10.0, "score_se": 12.0, "tied": False}])
    shared = Metric("score", text=text, error="score_se").aligned(numbers)
    assert shared.cell(row).replace("\xa0", " ") == "1.2 ± 0.1 tied"
