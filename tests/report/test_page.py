"""What all pages share."""

import numpy as np
import pandas as pd
import pytest

from pyro_bnn.report.output.page import PageTable, render_page, sort_key, versions
from pyro_bnn.report.tables.metric import Metric
from pyro_bnn.report.verdicts.statement import USE
from pyro_bnn.report.verdicts.verdict import Verdict


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (0.1, "0.1"),
        (np.float64(2.0), "2.0"),
        (7, "7.0"),
        (-1e-12, "-1e-12"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (float("nan"), ""),
    ],
)
def test_cells_carry_their_number_as_scripts_read_it(value: float, key: str) -> None:
    assert sort_key("text", value) == key
    assert sort_key("", value) == ""  # shown as a dash, so sorted as one


def test_another_page_can_use_the_parts() -> None:
    column = Metric("wins", None, "wins", "Won.", unit="of 5", text=lambda wins: f"{wins:.0f}")
    numbers = pd.DataFrame({"wins": [3.0]}, index=["AutoNormal @ x"])
    table = PageTable("Over seeds", [column], numbers, tags={"AutoNormal @ x": [USE]})
    findings = [Verdict("good", "scores", is_warning=False), Verdict("odd", "scores")]
    page = render_page(
        "runs.html", data_name="boston", headline="one run", findings=findings, tables=[table],
        runs=[], command="pyro-bnn compare",
    )  # fmt: skip
    for part in (
        '<h2 id="over-seeds">Over seeds</h2>',
        '<td data-value="3.0">3</td>',
        "<dt>wins</dt><dd>Won.</dd>",
        '<span class="tag good">Use</span>',
        "<li>odd</li>",
        "<code>pyro-bnn compare</code>",
    ):
        assert part in page


def test_versions_name_python_first() -> None:
    names = [name for name, _ in versions()]
    assert names[0] == "Python"
    assert {"torch", "pyro-ppl", "arviz"} < set(names)
