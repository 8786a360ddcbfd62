"""The report in headless Chromium: sorting, enlarging, widths, appearance, print."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.output.html import render
from tests.report.browser import Browser, find_programs, start
from tests.report.conjugate import LinearPosterior, losses, regression_split

pytestmark = pytest.mark.slow("whole pages in a browser")

WIDTHS = (390, 768, 1180)
FIRST = "side-by-side"  # the table that is not folded
UNFOLD = "for (const it of document.querySelectorAll('details')) it.open = true"
KINDS = ("regression", "one_input", "classes", "nine")
TO_THE_BEST, SD_RATIO = 1, 5  # its columns


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    programs = find_programs()
    if programs is None:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    with start(programs, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="session")
def nine() -> Comparison:
    """As many methods as reports have, with their long names, of two models; of few rows."""
    split = regression_split(num_rows=80)
    guides = ("AutoNormal", "AutoLowRankMultivariateNormal", "AutoMultivariateNormal")
    posteriors = {"AutoDelta": LinearPosterior(split, "AutoDelta", spread=0.0)}
    for suffix, model in (("", "narrow"), (" @ HalfCauchyScale", "hierarchy")):
        for seed, guide in enumerate(guides):
            posteriors[guide + suffix] = LinearPosterior(
                split, guide, spread=0.8, losses=losses(seed=seed), model=model
            )
        posteriors["NUTS" + suffix] = LinearPosterior(
            split, "NUTS", "NUTS", stored=1_200, num_chains=4, model=model
        )
    return compare(posteriors, split, reference="NUTS", num_samples=200)


@pytest.fixture(scope="session")
def pages(
    regression: Comparison,
    one_input: Comparison,
    classes: Comparison,
    nine: Comparison,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    comparisons = (regression, one_input, classes, nine)
    for kind, comparison in zip(KINDS, comparisons, strict=True):
        found[kind] = folder / f"{kind}.html"
        found[kind].write_text(render(comparison, command="pyro-bnn compare " + 30 * "--data x "))
    return found


# Every page


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_reported_to_the_console(
    browser: Browser, pages: dict[str, Path], kind: str
) -> None:
    browser.open(pages[kind])
    browser.run("document.querySelectorAll('button').forEach((button) => button.click())")
    assert browser.log() == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_never_scrolls_sideways(
    browser: Browser, pages: dict[str, Path], kind: str
) -> None:
    """Opened on the narrowest screen, and as its window grows."""
    browser.open(pages[kind], WIDTHS[0])
    browser.run(UNFOLD)
    for width in WIDTHS:
        browser.resize(width)
        assert browser.run("return innerWidth") == width
        wide = browser.run("return document.scrollingElement.scrollWidth")
        assert wide <= width


@pytest.mark.parametrize("kind", KINDS)
def test_every_picture_loads_and_has_words(
    browser: Browser, pages: dict[str, Path], kind: str
) -> None:
    browser.open(pages[kind])
    browser.run(UNFOLD)
    pictures = browser.run(
        """return [...document.querySelectorAll(".picture")].map((it) =>
            [it.ariaLabel.trim(), it.clientWidth, it.clientHeight])"""
    )
    assert pictures
    for words, width, height in pictures:
        assert len(words) > 40
        assert re.search(r"\d", words)
        assert width > 300
        assert height > 100


def test_text_of_figures_stays_legible(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["nine"], WIDTHS[0])
    browser.run(UNFOLD)
    for width in WIDTHS:
        browser.resize(width)
        sizes = browser.run(
            """return [...document.querySelectorAll("figure .picture")].map((it) =>
                it.getBoundingClientRect().width / it.style.getPropertyValue("--inches"))"""
        )
        assert min(sizes) * 11 / 72 > 10.5, width  # pixels of text of 11 points


# Sorting


def shown(browser: Browser, table: str, column: int) -> list[tuple[str, float | None]]:
    """Names and sort values of a table's rows, from top to bottom; None for a blank."""
    rows = browser.run(
        """return [...document.querySelectorAll(arguments[0])].map((row) =>
            [row.cells[0].dataset.value, row.cells[arguments[1]].dataset.value ?? ""])""",
        f"[aria-labelledby={table}] tbody tr",
        column,
    )
    return [(name, float(value) if value else None) for name, value in rows]


def heading(table: str, column: int) -> str:
    """Selector of the button of a column."""
    return f"[aria-labelledby={table}] thead th:nth-child({column + 1}) button"


def direction(browser: Browser, selector: str) -> str | None:
    found = browser.run(
        "return document.querySelector(arguments[0]).parentElement.getAttribute('aria-sort')",
        selector,
    )
    return None if found is None else str(found)


def test_a_click_sorts_by_the_number_and_another_the_other_way(
    browser: Browser, pages: dict[str, Path], regression: Comparison
) -> None:
    browser.open(pages["regression"])
    scores = regression.table["log_score"].to_dict()
    best_first = sorted(scores, key=lambda name: -scores[name])
    button = heading(FIRST, TO_THE_BEST)
    assert [name for name, _ in shown(browser, FIRST, TO_THE_BEST)] == best_first
    assert direction(browser, button) == "descending"
    browser.click(button)
    assert [name for name, _ in shown(browser, FIRST, TO_THE_BEST)] == best_first[::-1]
    assert direction(browser, button) == "ascending"
    browser.click(button)
    assert [name for name, _ in shown(browser, FIRST, TO_THE_BEST)] == best_first
    assert direction(browser, button) == "descending"


def test_numbers_are_sorted_as_numbers_and_blanks_come_last(
    browser: Browser, pages: dict[str, Path], regression: Comparison
) -> None:
    browser.open(pages["regression"])
    ratios = regression.table["sd_ratio"].dropna().to_dict()
    blank = [name for name in regression.table.index if name not in ratios]  # order of the page
    button = heading(FIRST, SD_RATIO)
    for sign in (1, -1):
        browser.click(button)
        rows = shown(browser, FIRST, SD_RATIO)
        expected = sorted(ratios, key=lambda name: sign * ratios[name])
        assert [name for name, _ in rows] == expected + blank
        assert [value for _, value in rows] == [*(ratios[name] for name in expected), None]


def test_numbers_whose_texts_sort_otherwise(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["regression"])
    values = ["10", "9", "-1e-3", "-Infinity", "9", "1200"]
    browser.run(
        """const body = document.querySelector("table.sortable").tBodies[0];
        const row = body.rows[0];
        body.replaceChildren(...arguments[0].map((value, place) => {
            const copy = row.cloneNode(true);
            copy.cells[0].dataset.value = `row ${place}`;
            copy.cells[2].dataset.value = value;
            return copy;
        }))""",
        values,
    )
    browser.click(heading(FIRST, 2))
    assert [name for name, _ in shown(browser, FIRST, 2)] == [
        "row 3", "row 2", "row 1", "row 4", "row 0", "row 5",
    ]  # fmt: skip
    browser.click(heading(FIRST, 2))  # equal numbers keep the order they have
    assert [name for name, _ in shown(browser, FIRST, 2)] == [
        "row 5", "row 0", "row 1", "row 4", "row 2", "row 3",
    ]  # fmt: skip


def test_a_row_keeps_its_cells_and_its_tie_when_it_moves(
    browser: Browser, pages: dict[str, Path]
) -> None:
    def rows() -> list[str]:
        found: list[str] = browser.run(
            """return [...document.querySelector("table.sortable").tBodies[0].rows].map(
                (row) => row.innerText)"""
        )
        return found

    browser.open(pages["regression"])
    before = rows()
    assert sum("(tied)" in row for row in before) == 3
    browser.click(heading(FIRST, 0))
    after = rows()
    assert after != before
    assert sorted(after) == sorted(before)
    names = [name.lower() for name, _ in shown(browser, FIRST, 1)]
    assert names == sorted(names)


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_headings_work_from_the_keyboard(
    browser: Browser, pages: dict[str, Path], key: str
) -> None:
    browser.open(pages["regression"])
    before = shown(browser, FIRST, TO_THE_BEST)
    browser.focus(heading(FIRST, TO_THE_BEST - 1))
    browser.press("Tab")
    assert browser.run("return document.activeElement.innerText").startswith("to the best")
    browser.press(key)
    assert shown(browser, FIRST, TO_THE_BEST) == before[::-1]


# Figures


def test_a_figure_enlarges_and_escape_closes_it(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["regression"])
    small = browser.run("return document.querySelector('figure .picture').clientWidth")
    browser.focus("figure button.enlarge")
    browser.press("Enter")
    assert browser.run("return document.querySelector('dialog').open")
    words, large = browser.run(
        "const picture = document.querySelector('dialog .picture');"
        "return [picture.ariaLabel, picture.clientWidth]"
    )
    assert words == browser.run("return document.querySelector('figure .picture').ariaLabel")
    assert large > 1.2 * small
    browser.press("Escape")
    assert not browser.run("return document.querySelector('dialog').open")
    assert browser.run(
        "return document.activeElement === document.querySelector('figure button.enlarge')"
    )


def test_a_click_on_the_figure_opens_it_and_the_button_closes_it(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["classes"])
    browser.run(UNFOLD)
    browser.click("#figure-reliability .picture")
    titles = browser.run(
        "return ['dialog h2', '#figure-reliability h3'].map("
        "(it) => document.querySelector(it).textContent)"
    )
    assert titles[0] == titles[1] == "Calibration: reliability diagrams"
    browser.click("dialog button")
    assert not browser.run("return document.querySelector('dialog').open")


# Light, dark, paper


def test_dark_follows_the_system(browser: Browser, pages: dict[str, Path]) -> None:
    brightness = {}
    for dark in (False, True):
        browser.open(pages["regression"], dark=dark)
        browser.run("document.querySelector('#figure-scores').scrollIntoView()")
        brightness[dark] = browser.picture().mean()
    assert brightness[False] > 200
    assert brightness[True] < 80


def test_the_reader_can_choose_the_other_appearance(
    browser: Browser, pages: dict[str, Path]
) -> None:
    for dark in (False, True):
        pictures = []
        browser.open(pages["regression"], dark=dark)
        for label in ("Light", "Dark") if dark else ("Dark", "Light"):
            button = browser.run("return document.getElementById('appearance').innerText")
            assert button == f"{label} colours"
            pictures.append(browser.picture(whole=True).mean())
            browser.click("#appearance")
        assert (pictures[0] < 80, pictures[1] < 80) == (dark, not dark)


AS_PIXELS = """for (const [place, svg] of document.querySelectorAll(".picture svg").entries()) {
    const [width, height] = [svg.clientWidth, svg.clientHeight];
    const canvas = Object.assign(document.createElement("canvas"), {width, height});
    canvas.style.cssText = "display: block; width: 100%; height: auto; max-height: 225mm";
    const context = canvas.getContext("2d");
    context.fillStyle = `rgb(200 100 ${place})`;
    context.fillRect(0, 0, width, height);
    svg.replaceWith(canvas);
}"""


@pytest.mark.parametrize("kind", KINDS)
def test_paper_is_light_and_no_figure_is_cut(
    browser: Browser, pages: dict[str, Path], kind: str
) -> None:
    browser.open(pages[kind], dark=True)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.protocol("Emulation.setEmulatedMedia", media="print", features=dark)
    assert browser.picture(whole=True).mean() > 150
    browser.protocol("Emulation.setEmulatedMedia", media="", features=dark)
    num_figures = browser.run("return document.querySelectorAll('figure').length")
    browser.run(AS_PIXELS)  # of which a PDF says on what page they are, as of lines it does not
    on_pages = Counter(pages_of_images(browser.pdf()))
    assert len(on_pages) == num_figures
    assert set(on_pages.values()) == {1}  # a picture that is cut is drawn on two pages


def pages_of_images(pdf: bytes) -> list[str]:
    """Images of a PDF by their contents, which a busy browser may write twice: each once a page."""
    objects = {
        int(number): body
        for number, body in re.findall(rb"(?:^|\n)(\d+) 0 obj\n(.*?)\nendobj", pdf, re.DOTALL)
    }
    names = {
        number: hashlib.sha256(zlib.decompress(body.split(b"stream\n", 1)[1])).hexdigest()
        for number, body in objects.items()
        if b"/Subtype /Image" in body and b"/DeviceGray" not in body  # a mask is grey
    }
    pages = [body for body in objects.values() if re.search(rb"/Type /Page\b(?!s)", body)]
    assert pages
    drawn = [{int(n) for n in re.findall(rb"/X\d+ (\d+) 0 R", page)} for page in pages]
    return [name for page in drawn for name in {names[n] for n in page & names.keys()}]


WITHOUT_BUTTONS = """document.querySelectorAll("button").forEach((it) =>
    it.closest("thead") ? it.replaceWith(...it.childNodes) : it.remove())"""


def test_without_its_script_the_page_is_complete(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    bare = tmp_path / "bare.html"
    page = pages["regression"].read_text()
    bare.write_text(re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL))
    texts = []
    for path in (pages["regression"], bare):
        browser.open(path)
        browser.run(WITHOUT_BUTTONS)
        texts.append(browser.run("return document.querySelector('main').innerText"))
    assert texts[0] == texts[1]
    assert "nats per row" in texts[1]


def test_a_script_put_into_the_page_does_not_run(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    spoilt = tmp_path / "spoilt.html"
    page = pages["one_input"].read_text()
    spoilt.write_text(page.replace("</main>", "<script>window.ran = true</script></main>"))
    browser.open(spoilt)
    assert browser.run("return window.ran ?? false") is False
    assert any("Content Security Policy" in message for message in browser.log())
