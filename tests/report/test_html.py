"""The page is self-contained, complete and safe."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.output.html import render
from tests.report.conjugate import LinearPosterior, losses

LINKS = ("src", "href", "xlink:href", "srcset")
VOID = {"meta", "img", "source", "wbr", "br", "link"}


class _Checker(HTMLParser):
    """Collects addresses, alternative texts and headings, and checks that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.alternatives: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attrs)
        self.addresses += [values[k] or "" for k in LINKS if k in values]
        if values.get("class") == "picture":
            self.alternatives.append(values.get("aria-label") or "")
        if "id" in values:
            self.ids.append(values["id"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def illustrated(regression: Comparison) -> str:
    return render(regression, command="pyro-bnn compare --data <arrays>")


@pytest.fixture
def page(regression: Comparison, no_pictures: None) -> str:
    return render(regression, command="pyro-bnn compare --data <arrays>")


@pytest.mark.slow("a whole page")
def test_the_page_is_well_formed_and_loads_nothing(illustrated: str) -> None:
    checker = _Checker()
    checker.feed(illustrated)
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert checker.addresses
    assert {address.removeprefix("#") for address in checker.addresses} <= set(checker.ids)
    assert "://" not in re.sub(r' xmlns(:\w+)?="[^"]*"', "", illustrated)  # names of formats
    assert "@import" not in illustrated
    assert "url(" not in illustrated.replace("url(#", "")


@pytest.mark.slow("a whole page")
def test_every_figure_is_there_with_words_for_it(illustrated: str, regression: Comparison) -> None:
    checker = _Checker()
    checker.feed(illustrated)
    assert len(set(checker.alternatives)) == len(checker.alternatives) == len(regression.figures)
    assert illustrated.count("<svg") == len(regression.figures)
    assert all(len(text) > 60 for text in checker.alternatives)


def test_the_answer_comes_before_the_table_and_that_before_verdicts_and_details(page: str) -> None:
    order = [
        page.index(f'id="{name}"')
        for name in ("answer", "side-by-side", "verdicts", "held-out-scores", "figures", "again")
    ]
    assert order == sorted(order)
    assert order[2] < page.index("NUTS has the highest held-out log score") < order[3]


def test_it_says_how_to_get_it_again(page: str) -> None:
    assert "pyro-bnn compare --data &lt;arrays&gt;" in page
    for part in ("torch 2", "arviz ", "seed 0", "180 training and 60 held-out rows"):
        assert part in page


def test_units_and_reasons_are_stated(page: str) -> None:
    assert "nats per row" in page
    assert "no PSIS-LOO: a point has no importance weights" in page
    assert "What the columns mean" in page


@pytest.mark.slow("about a second")
def test_names_cannot_break_the_page(regression: Comparison) -> None:
    name = "<script>alert('x')</script>"
    comparison = compare({name: LinearPosterior(regression.split, spread=0.9)}, regression.split)
    page = render(comparison)
    assert page.count("<script>") == 1
    assert "&lt;script&gt;" in page
    checker = _Checker()
    checker.feed(page)
    assert checker.open == []


def test_only_the_pages_own_script_may_run(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert policy
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    directives = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == f"'sha256-{digest}'"
    assert not re.search(r"\son\w+=", page)  # handlers in tags are refused


def test_numbers_behind_cells_are_those_of_the_table(page: str, regression: Comparison) -> None:
    section = page[page.index('id="cost"') : page.index('id="figures"')]
    rows = re.findall(r"<tr>(.*?)</tr>", section, re.DOTALL)[1:]
    for row, (name, record) in zip(rows, regression.table.iterrows(), strict=True):
        values = re.findall(r'data-value="(.*?)"', row)
        assert values[0] == name
        numbers = [float(value) for value in values[1:]]
        assert numbers == [record[key] for key in ("seconds", "parameters", "draws")]
    assert "The same for all: threads 2, processes 1." in section


def test_blank_cells_have_no_number(page: str, regression: Comparison) -> None:
    blanks = re.findall(r"<td([^>]*)>–</td>", page)
    assert len(blanks) > 3
    assert set(blanks) == {""}


def test_the_first_table_says_what_it_is_sorted_by(page: str) -> None:
    assert len(re.findall("<th[^>]* aria-sort=", page)) == 1
    assert '<th scope="col" aria-sort="descending">to the best<' in page


def test_one_model_is_named_once(page: str, regression: Comparison) -> None:
    (model,) = regression.models
    assert f"All methods are posteriors of one model: {model.label}." in page


@pytest.mark.usefixtures("no_pictures")
def test_methods_are_listed_by_their_model(regression: Comparison, page: str) -> None:
    posteriors = {
        name: LinearPosterior(regression.split, model=model)
        for name, model in (("a", "plain"), ("b @ wide", "wide"), ("c", "plain"))
    }
    own = render(compare(posteriors, regression.split))
    section = own[own.index('id="models"') : own.index('id="again"')]
    rows = [
        re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", row)).strip()
        for row in re.findall(r"<tr>(.*?)</tr>", section, re.DOTALL)[1:]
    ]
    assert rows == ["1: plaina, c", "2: wideb @ wide"]
    assert "ELBOs of different models bound different evidences" in section
    assert "bound different evidences" not in page


@pytest.mark.usefixtures("no_pictures")
def test_point_estimates_of_their_own_make_evidences_of_their_own(regression: Comparison) -> None:
    posteriors = {name: LinearPosterior(regression.split) for name in ("a", "b", "c")}
    for value, posterior in enumerate(posteriors.values()):
        vars(posterior)["params"] = {"W": np.array([value // 2])}
    page = render(compare(posteriors, regression.split))
    assert "do not compare them: a, b; c." in page


@pytest.mark.usefixtures("no_pictures")
def test_without_a_warning_it_says_so(regression: Comparison) -> None:
    posterior = LinearPosterior(regression.split, spread=3.5, losses=losses())
    comparison = compare({"it": posterior}, regression.split)
    assert all(not finding.is_warning for finding in comparison.findings if finding.kind != "khat")
    quiet = "No check found anything to mend."
    assert (quiet in render(comparison)) is (not any(f.is_warning for f in comparison.findings))


@pytest.mark.usefixtures("no_pictures")
def test_what_to_know_of_the_data_is_passed_on(regression: Comparison) -> None:
    split = dataclasses.replace(regression.split, note="two rows were dropped at the source")
    page = render(compare({"it": LinearPosterior(split, spread=0.9)}, split))
    assert "two rows were dropped at the source" in page


@pytest.mark.usefixtures("no_pictures")
def test_a_package_that_is_missing_does_not_stop_the_report(
    one_input: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_bnn.report.output.page.PACKAGES", ("no-such-package-here",))
    assert "no-such-package-here not installed" in render(one_input)
