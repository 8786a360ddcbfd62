"""What all pages share."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from pyro_bnn.plotting.theme import DARK, LIGHT, Theme, canvas
from pyro_bnn.report.output.page import DPI, Cell, Picture, Row, Table, render_page, versions
from pyro_bnn.report.tables.metrics import Column


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
        (None, ""),
    ],
)
def test_cells_carry_their_number_as_scripts_read_it(value: float | None, key: str) -> None:
    assert Cell("text", value).key == key
    assert Cell("", value).key == ""  # shown as a dash, so sorted as one


def test_a_picture_holds_the_figure_light_and_dark() -> None:
    def draw(theme: Theme) -> object:
        with canvas(theme, 3.0, 2.0) as (figure, _):
            return figure

    picture = Picture.of("a", "A", "one", "two", *(draw(theme) for theme in (LIGHT, DARK)))  # type: ignore[arg-type]
    assert picture.inches == 3.0
    for address, paper in ((picture.light, LIGHT.paper), (picture.dark, DARK.paper)):
        kind, data = address.split(",")
        assert kind == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            assert image.size == (3 * DPI, 2 * DPI)
            corner = np.asarray(image.convert("RGB"))[0, 0]
        assert "#" + "".join(f"{channel:02X}" for channel in corner) == paper


def test_another_page_can_use_the_parts() -> None:
    column = Column(title="wins", unit="of 5", cell=lambda row: "", meaning="Won.", key="wins")
    table = Table("Over seeds", [column], [Row("AutoNormal @ x", [Cell("3", 3.0)], ["best"])])
    page = render_page(
        "runs.html", data_name="boston", headline="one run", results=["good"], warnings=["odd"],
        tables=[table], runs=[], command="pyro-bnn compare",
    )  # fmt: skip
    for part in (
        '<h2 id="over-seeds">Over seeds</h2>',
        '<td data-value="3.0">3</td>',
        "<dt>wins</dt><dd>Won.</dd>",
        '<span class="tag">best</span>',
        "<li>odd</li>",
        "<code>pyro-bnn compare</code>",
    ):
        assert part in page


def test_versions_name_python_first() -> None:
    names = [name for name, _ in versions()]
    assert names[0] == "Python"
    assert {"torch", "pyro-ppl", "arviz"} < set(names)
