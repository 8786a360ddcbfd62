"""How fields are written: marks of numbers, dates and codes, refused or told by their column."""

import re
import time
from pathlib import Path

import pandas as pd
import pytest

from pyro_bnn.data import from_frame, load
from pyro_bnn.data.frames import encoded
from pyro_bnn.data.new_rows import read_new_rows
from pyro_bnn.data.split import Column
from pyro_bnn.data.written import are_dates, marks, padded_codes
from pyro_bnn.errors import DataError
from tests.rows import read_csv

MARKS = {
    "%": ["5%", "7 %", "10%"],
    "‰": ["5‰", "7‰", "1.5 ‰"],
    "$": ["$5", "-$7", "$ 1,500"],
    "€": ["5 €", "7€", "1.500,50 €"],
    "US$": ["US$5", "US$7.50", "-US$1"],
    "EUR": ["5 EUR", "EUR 7", "1.5EUR"],
    "kg": ["5 kg", "7 kg", "1.5 kg"],
    "g": ["5 g", "7\u00a0g", "8g"],
    "-": ["5-", "7-", "1.5-"],
    "+": ["5+", "7+", "9+"],
    "m²": ["5 m²", "7 m²", "8 m²"],
    "m2": ["5 m2", "7m2", "8 m2"],
    "kg/m2": ["5 kg/m2", "7 kg/m2", "8 kg/m2"],
    "cmH2O": ["5 cmH2O", "7 cmH2O", "8 cmH2O"],
    "s": ["5s", "7s", "19s"],
    "°": ["5°", "7°", "-3°"],
    "°C": ["5°C", "7 °C", "-3.5°C"],
    "℃": ["5℃", "7 ℃", "-3.5℃"],
    '"': ['5"', '7"', '9.5"'],
    " ": ["5 000", "7 000", "12 345.5"],
    "\u00a0": ["5\u00a0000", "7\u00a0000", "1\u00a0234\u00a0567"],
    "\u202f": ["5\u202f000", "7\u202f000", "9\u202f000"],
    "'": ["5'000", "7'000", "1'000'000"],
    "’": ["5’000", "7’000", "8’000"],
    "_": ["5_000", "7_000", "8_000"],
    ".": ["1.000.000", "2.500.000", "3.000.000,5"],
    "\u2212": ["\u22125", "\u22127", "\u22121.5"],
    "–": ["–5", "–7", "–1.5"],
    "()": ["(5)", "(7)", "(1,500)"],
    "<": ["<5", "< 7", "<0.1"],
    "≥": ["≥5", "≥7", "≥9"],
}
CATEGORIES = [
    ["1st", "2nd", "3rd"],
    ["<18", "18-30", ">30"],
    ["<=50K", ">50K", "<=50K"],
    ["2WD", "4WD", "AWD"],
    ['55"', '65"', "larger"],
    ["1A", "1B", "2A"],
    ["Jan", "Feb", "Mar"],
    ["v1.2.3", "v1.2.4", "v1.3.0"],
    ["A1", "B2", "C3"],
    ["a-b", "()", "<>"],
    ["4th", "5th", "6th"],
    ["1º", "2º", "3º"],
    ["2e", "3e", "4e"],
    ["1980s", "1990s", "2000s"],
    ["1Q24", "2Q24", "3Q24"],
    ["2023Q1", "2024Q1", "2025Q1"],
    ["2x4", "3x4", "4x4"],
    ["2005/06", "2006/07", "2007/08"],
    ["2009-10", "2010-11", "2011-12"],
]
DATES = [
    ["2024-01-31", "2024-02-28", "2024-03-01"],
    ["31.01.2024", "28.02.2024", "1.3.2024"],
    ["01/31/2024", "02/28/2024", "03/13/2024"],
    ["31/01/24", "28/02/24", "01/03/24"],
    ["2024-01-31T10:30:00Z", "2024-02-28T10:30:00+02:00", "2024-03-01 10:30"],
    ["31 Jan 2024", "Feb 28, 2024", "1 March 2024"],
    ["10:30", "23:59:59", "7:05 pm"],
    ["2024-01", "2024-02", "2024-03"],
    ["0 days 01:00:00", "1 days 00:30:00", "-1 days +23:00:00"],
]


def write(path: Path, values: list[str], others: int = 0) -> Path:
    """A column of these, and of plain numbers."""
    fields = [*values * 10, *map(str, range(others))]
    pd.DataFrame({"what": fields, "y": range(len(fields))}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("others", [0, 25, 50])
def test_numbers_with_a_mark_are_refused_by_it(tmp_path: Path, mark: str, others: int) -> None:
    path = write(tmp_path / "t.csv", MARKS[mark], others)
    for target in ("y", "what"):
        with pytest.raises(DataError) as caught:
            read_csv(path, target=target)
        first = f"column 'what' holds numbers with {mark!r}, in 30 rows, first {MARKS[mark][0]!r}"
        assert first in str(caught.value)
        assert "in line 2; write plain numbers" in str(caught.value)
    frame = pd.read_csv(path, dtype={"what": str})
    with pytest.raises(DataError, match=re.escape(f"holds numbers with {mark!r}, in 30 rows")):
        from_frame(frame, target="y")
    if not others:
        labels = read_csv(path, target="what", task="classification")
        assert labels.data.class_names == tuple(sorted(MARKS[mark]))


@pytest.mark.parametrize("values", CATEGORIES)
def test_categories_with_digits_stay_categories(tmp_path: Path, values: list[str]) -> None:
    path = write(tmp_path / "t.csv", values)
    assert read_csv(path, target="y").columns == (Column("what", tuple(sorted(set(values)))),)
    assert read_csv(path, target="what").data.class_names == tuple(sorted(set(values)))
    assert marks(set(values)) == {}
    assert not are_dates(values)


@pytest.mark.parametrize("values", DATES)
def test_dates_are_told_as_dates(tmp_path: Path, values: list[str]) -> None:
    for path in (write(tmp_path / "few.csv", values), tmp_path / "many.csv"):
        if path.stem == "many":
            days = pd.date_range("2024-01-01", periods=40)
            pd.DataFrame({"what": days, "y": range(40)}).to_csv(path, index=False)
        for target in ("y", "what"):
            with pytest.raises(
                DataError, match=r"'what' holds dates or times in .*; write numbers"
            ):
                read_csv(path, target=target)
    with pytest.raises(DataError, match="'what' holds dates or times in 40 rows"):
        from_frame(pd.DataFrame({"what": days, "y": range(40)}), target="y")
    labels = read_csv(tmp_path / "few.csv", target="what", task="classification")
    assert labels.data.class_names == tuple(sorted(values))


def test_codes_with_leading_zeros_are_categories_and_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ["01234", "99999", "00501"])
    table = read_csv(path)
    assert table.columns == (Column("what", ("00501", "01234", "99999")),)
    told = "Column 'what' is of codes with leading zeros, such as '00501': categories, not numbers."
    assert table.note.endswith(told)
    frame = pd.read_csv(path, dtype={"what": str})
    split = from_frame(frame, target="y")
    assert split.train.input_names == table.data.input_names
    assert split.note == told
    assert load(path).note.endswith(told)
    assert read_csv(path, target="what").task == "classification"
    x = encoded(frame[["what"]], split.train.input_names)
    assert x.argmax(1).tolist() == [1, 2, 0] * 10
    new = tmp_path / "new.csv"
    new.write_text("what\n99999 \n99999\n")  # no zeros in front: plain numbers
    assert read_new_rows(new, table.columns).x.tolist() == [[0, 0, 1]] * 2
    with pytest.raises(DataError, match="column 'what' holds codes with leading zeros in 20 rows"):
        read_new_rows(path, [Column("what")])
    many = [f"{i:03}" for i in range(60)]
    with pytest.raises(DataError, match="is of codes with leading zeros, such as '000', with 60 d"):
        read_csv(_single(tmp_path / "many.csv", many))


def _single(path: Path, values: list[str]) -> Path:
    pd.DataFrame({"what": values, "y": range(len(values))}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("values", [["0", "10", "20"], ["007", "1.5", "2"], ["0.5", "00.5", "1"]])
def test_zeros_that_numbers_have_are_no_codes(tmp_path: Path, values: list[str]) -> None:
    found = read_csv(_single(tmp_path / "t.csv", values), target="y").data.x[:, 0]
    assert found.tolist() == [float(value) for value in values]
    assert not padded_codes(values)


@pytest.mark.parametrize("blank", [" ", "  ", "\t", "\u00a0"])
def test_blanks_behind_text_make_no_other_class(tmp_path: Path, blank: str) -> None:
    path = tmp_path / "t.csv"
    rows = [f"ill{blank},1,Rome{blank}", "ill,2,Rome", f'"well{blank}",3,Oslo', "well,4 ,Oslo"]
    path.write_text("state,x,town\n" + "\n".join(rows) + "\n")
    table = read_csv(path, target="state")
    assert table.data.class_names == ("ill", "well")
    assert table.data.input_names == ("x", "town=Oslo", "town=Rome")
    frame = pd.DataFrame({"s": ["a", f"a{blank}", "b"] * 4, "x": range(12)})
    assert from_frame(frame, target="s").train.class_names == ("a", "b")
    path.write_text(f"a,b\n1,x\n2,NA{blank}\n3,{blank} \n4,y\n")
    with pytest.raises(DataError, match="missing values: 'b' in 2 rows of 4, first in line 3"):
        read_csv(path)


@pytest.mark.parametrize(
    "text", ["1152921504606846976.0", "9007199254740993.", "-9007199254740993.00", "+1" + "0" * 17]
)
def test_whole_numbers_that_float64_lacks_are_refused_however_written(
    tmp_path: Path, text: str
) -> None:
    path = _single(tmp_path / "t.csv", ["1", text, "2"])
    for target in ("y", "what"):
        with pytest.raises(DataError, match="column 'what' holds whole numbers beyond 2"):
            read_csv(path, target=target)


def test_large_floating_numbers_are_taken(tmp_path: Path) -> None:
    values = [1.0, 9.1e15, 2.0**60, 1e300]
    path = _single(tmp_path / "t.csv", ["1", "9.1e15", "1.152921504606846976e18", "1e300"])
    assert read_csv(path, target="y").data.x[:, 0].tolist() == values
    frame = pd.DataFrame({"a": values, "y": range(4)})
    assert encoded(frame[["a"]].assign(t="b"), ["a", "t=b"])[:, 0].tolist() == values


@pytest.mark.parametrize(
    "value", ["(" + " " * 30 + "{}x", "< - $" + " " * 25 + "{}", "1" * 30 + "{}!"]
)
def test_hostile_fields_are_looked_at_in_no_time(value: str) -> None:
    start = time.perf_counter()
    marks([value.format(i) for i in range(20_000)])
    are_dates([("1 2024 jan" * 3_000).replace("n", "n\n")])
    assert time.perf_counter() - start < 2
