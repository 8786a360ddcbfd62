"""Words of captions."""

from pyro_bnn.report import Comparison
from pyro_bnn.report.plots.panels import coverages, span

NAN = float("nan")


def test_a_span_names_its_ends() -> None:
    values = {"a": 0.2, "b": -1.5, "c": 3.0, "d": NAN}
    assert span(values) == "from −1.50 (b) to 3.00 (c)"
    assert span(values, lambda value: f"{value:.0f}!") == "from -2! (b) to 3! (c)"


def test_a_span_of_values_that_read_alike_is_one() -> None:
    assert span({"a": 1.0001, "b": 1.0002}) == "1.00 (all)"
    assert span({"a": NAN, "b": 1.0}) == "1.00 (b)"
    assert span({"a": NAN}) == ""


def test_coverages_are_those_of_the_table(regression: Comparison) -> None:
    shares = regression.table["coverage_95"]
    low, high = (f"{100 * share:.1f} %" for share in (shares.min(), shares.max()))
    expected = f"from {low} ({shares.idxmin()}) to {high} ({shares.idxmax()})"
    assert coverages(regression).replace("\xa0", " ") == expected
