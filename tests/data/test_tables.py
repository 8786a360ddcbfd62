"""Text tables: numbers exactly, faults with their line."""

import io
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from pyro_bnn.data.tables import read_rows, read_table, read_text
from pyro_bnn.errors import DataError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.txt"


def test_any_white_space_and_blank_lines(path: Path) -> None:
    path.write_text("  1.5  2\t-3e1 \n\n4 5 6\t\n\n")
    np.testing.assert_array_equal(read_table(path), [[1.5, 2.0, -30.0], [4.0, 5.0, 6.0]])


def test_one_row_and_one_column_stay_matrices(path: Path) -> None:
    path.write_text("1 2\n")
    assert read_table(path).shape == (1, 2)
    path.write_text("1\n2\n")
    assert read_table(path).shape == (2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1 2 3\n\n4 5 6\n7 8\n",
            "line 4: expected 3 columns as in the lines above, got 2; is the",
        ),
        ("1 2\n3 4 5\n", "line 2: expected 2 columns as in the lines above, got 3"),
        ("1 2\n3 x4\n", "line 2: 'x4' is not a number"),
        ("1 2 # note\n", "line 1: '#' is not a number"),
        ("1_000 2\n", "line 1: '1_000' is not a number"),
        (" \n\n", "is empty"),
    ],
)
def test_faults_are_named_by_line(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_table(path)
    assert str(path) in str(caught.value)


def test_missing_and_binary_files(path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"no file {str(path)!r}; check the path")):
        read_text(path)
    path.write_bytes(b"1 2\n\xff\xfe")
    with pytest.raises(DataError, match=r"is not UTF-8 text \(byte 4\)"):
        read_text(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_and_standard_input_are_read_where_once_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that needs the text twice would wait for a second writer, so it refuses a pipe."""
    pipe, text = tmp_path / "pipe", "größe\n1\n"
    os.mkfifo(pipe)
    for path in (pipe, Path("-")):
        with pytest.raises(DataError, match=f"no file '{path}'"):
            read_text(path)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"\xef\xbb\xbf" + text.encode(),))
    writer.start()
    assert read_text(pipe, once=True) == text
    writer.join()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), "latin-1"))
    assert read_text(Path("-"), once=True) == text
    with pytest.raises(DataError, match="'-' is empty"):
        read_text(Path("-"), once=True)


def test_a_file_that_cannot_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("1")

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        read_text(path)


def test_a_byte_order_mark_is_no_part_of_the_text(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf1 2\n")
    assert read_text(path) == "1 2\n"


def test_row_numbers(path: Path) -> None:
    path.write_text("3\n0\n 2.0\n")
    assert read_rows(path).tolist() == [3, 0, 2]
    assert read_rows(path).dtype == np.int64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n-2\n", "must hold whole numbers from 0, got -2 (number 2)"),
        ("1.5\n", "must hold whole numbers from 0, got 1.5 (number 1)"),
        ("nan\n", "must hold whole numbers from 0, got nan (number 1)"),
        ("9007199254740991\n9007199254740994\n", "got 9007199254740994 (number 2)"),  # 2^53 + 2
        ("1e300\n", "must hold whole numbers from 0, got 1.0000000000000001e+300 (number 1)"),
    ],
)
def test_what_is_no_row_number(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        read_rows(path)
