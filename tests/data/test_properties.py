"""Properties of the data layer, over arrays, splits and files that hypothesis makes up."""

from __future__ import annotations

import io
import math
import re
import statistics
import warnings
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pyro_bnn.data import Dataset, Split, Standardiser, from_arrays, load
from pyro_bnn.data.split import published_rows
from pyro_bnn.errors import BNNError, BNNWarning, DataError, ShapeError

pytestmark = pytest.mark.filterwarnings("ignore::pyro_bnn.errors.BNNWarning")
reproducible = settings(derandomize=True, deadline=None, max_examples=60)
finite = st.floats(allow_nan=False, allow_infinity=False)
MEGA = 2**20


def rows_of(split: Split) -> tuple[list[int], list[int]]:
    assert split.train_rows is not None
    assert split.test_rows is not None
    return split.train_rows.tolist(), split.test_rows.tolist()


def split_or_reason(x: Any, y: Any, test_fraction: float = 0.5) -> Split | str:
    """The split of arrays, or why there is none; any other error or warning fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", BNNWarning)
        try:
            return from_arrays(x, y, test_fraction=test_fraction)
        except (DataError, ShapeError) as error:
            return str(error)


# Splits


@pytest.mark.slow("about a second")
@reproducible
@given(
    num_rows=st.integers(1, 60),
    fraction=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=st.integers(0, 2**64),
)
def test_training_and_test_rows_are_all_rows_once(
    num_rows: int, fraction: float, seed: int
) -> None:
    y = np.arange(num_rows, dtype=float)
    if not 0 < round(fraction * num_rows) < num_rows:
        with pytest.raises(DataError, match="both parts need at least one"):
            from_arrays(y[:, None], y, test_fraction=fraction, seed=seed)
        return
    split = from_arrays(y[:, None], y, test_fraction=fraction, seed=seed)
    train, test = rows_of(split)
    assert sorted(train + test) == list(range(num_rows))
    assert len(test) == len(split.test) == round(fraction * num_rows)
    for part, rows in ((split.train, train), (split.test, test)):
        assert part.raw()[1].round().tolist() == rows


@reproducible
@given(num_rows=st.integers(0, 400), index=st.integers(0, 6))
def test_published_splits_are_all_rows_once(num_rows: int, index: int) -> None:
    if not 0 < round(0.9 * num_rows) < num_rows:
        with pytest.raises(DataError, match="at least 5 rows are needed"):
            published_rows(num_rows, index)
        return
    train, test = published_rows(num_rows, index)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(num_rows))


# Units


@reproducible
@given(st.lists(finite, min_size=2, max_size=8))
@example([1e9 - 1, 1e9, 1e9 + 1])
@example([1e308, -1e308, 1e307])
@example([3e-200, 1e-200, -1e-200])
@example([0.3, 0.1 + 0.2])
def test_mean_and_sd_are_those_of_exact_fractions(values: list[float]) -> None:
    sd = statistics.pstdev(values)
    mean = float(sum(map(Fraction, values)) / len(values))
    largest = max(map(abs, values))
    constant = max(values) / 2 - min(values) / 2 <= 2**-52 * largest  # two roundings, halved
    assume(constant or sd > 1e-300)
    units = Standardiser.fit(torch.tensor(values, dtype=torch.float64)[:, None])
    expected = (1.0 if max(values) == min(values) else max(1.0, largest)) if constant else sd
    assert units.scale.item() == pytest.approx(expected, rel=1e-12)
    assert units.loc.item() == pytest.approx(mean, rel=1e-15, abs=1e-13 * sd)


@reproducible
@given(
    noise=st.lists(st.floats(-8, 8), min_size=3, max_size=30, unique=True),
    loc=st.floats(-1e12, 1e12),
    power=st.integers(-140, 140),
    fraction=st.floats(0.1, 0.9),
)
def test_raw_values_come_back(noise: list[float], loc: float, power: int, fraction: float) -> None:
    scale = 10.0**power
    y = scale * np.array(noise) + loc * scale
    assume(0 < round(fraction * len(y)) < len(y))
    split = split_or_reason(y[:, None], y, fraction)
    if isinstance(split, str):  # a spread of 1e-150 and less, or a test row far off the others
        assert "cannot hold" in split or "does not fit" in split
        return
    for part, rows in zip((split.train, split.test), rows_of(split), strict=True):
        for back, given_ in zip(part.raw(), (y[rows][:, None], y[rows]), strict=True):
            units = part.target
            assert units is not None
            atol = 1e-6 * float(units.scale)
            assert_close(back, torch.tensor(given_), rtol=1e-6, atol=atol)


# Arrays of every kind


def read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "float64": lambda a: a,
    "float32": lambda a: a.astype("f4"),
    "float16": lambda a: a.astype("f2"),
    "longdouble": lambda a: a.astype(np.longdouble),
    "big-endian": lambda a: a.astype(">f8"),
    "int8": lambda a: a.astype("i1"),
    "objects": lambda a: a.astype(object),
    "read-only": read_only,
    "column-major": lambda a: a.copy("F"),
    "reversed twice": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "every second": lambda a: np.repeat(a, 2, 0)[::2],
    "list": lambda a: a.tolist(),
    "list of tensors": lambda a: [torch.tensor(row, requires_grad=True) for row in a],
    "data frame": pd.DataFrame,
    "tensor": lambda a: torch.tensor(a, dtype=torch.float32),
    "half tensor": lambda a: torch.tensor(a).half(),
    "bfloat16 tensor": lambda a: torch.tensor(a).bfloat16(),
    "tensor with graph": lambda a: torch.tensor(a, dtype=torch.float32, requires_grad=True) * 1,
    "transposed tensor": lambda a: torch.tensor(a.T.copy(), dtype=torch.float32).T,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dtype_and_layout_change_no_number(layout: str) -> None:
    whole = np.random.default_rng(0).integers(-100, 100, (12, 3)).astype(float)  # bfloat16 has them
    plain = from_arrays(whole, whole[:, 0])
    given_x = LAYOUTS[layout](whole)
    split = from_arrays(given_x, whole[:, 0])
    for mine, theirs in ((split.train, plain.train), (split.test, plain.test)):
        assert mine.x.dtype == torch.float32
        assert_close(mine.x, theirs.x, rtol=0, atol=0)
        assert mine.inputs is not None
        assert_close(mine.inputs.inverse(mine.x), theirs.raw()[0], rtol=0, atol=0)


@reproducible
@given(st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), min_size=4))
def test_half_precision_is_widened_without_loss(values: list[float]) -> None:
    half = torch.tensor(values, dtype=torch.float16)
    data = Dataset(half[:, None], half)
    assert data.x.dtype == data.y.dtype == torch.float32
    assert data.y.tolist() == values


# What is refused, and how

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@reproducible
@given(x=shapes, y=shapes, kind=st.sampled_from(["f4", "i8", "?", "c8", "U1", "M8[s]", "O"]))
@example(x=(20, 3), y=(1, 20), kind="f4")
@example(x=(4,), y=(4,), kind="f4")
def test_arrays_of_any_shape_work_or_are_refused_with_a_reason(
    x: tuple[int, ...], y: tuple[int, ...], kind: str
) -> None:
    inputs = np.random.default_rng(0).normal(size=x)
    target = np.arange(math.prod(y)).reshape(y).astype(kind)
    split = split_or_reason(inputs, target)
    if isinstance(split, str):
        assert len(split) > 20
        return
    assert len(x) >= 2
    assert x[0] == y[0] == len(split.train) + len(split.test)
    assert kind not in ("c8", "M8[s]")


anything = st.recursive(
    st.none() | st.text(max_size=3) | finite | st.complex_numbers() | st.binary(max_size=3)
    | st.dates() | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.slow("a second or more")
@reproducible
@given(x=anything, y=anything)
def test_objects_of_any_kind_work_or_are_refused(x: Any, y: Any) -> None:
    for found in (split_or_reason(x, y), split_or_reason(x, [0.0, 1.0, 3.0, 4.0])):
        assert isinstance(found, Split) or len(found) > 20


MASKED: Any = np.ma.MaskedArray(np.arange(4.0)[:, None], [[True], [True], [False], [False]])
NUMBERS = [
    (np.ones((4, 1), dtype=np.uint64) * np.uint64(2**63), "beyond 2^53, such as 92233720368"),
    (torch.full((4, 1), 2**63, dtype=torch.uint64), "beyond 2^53, such as 9223372036854"),
    (pd.DataFrame({"a": np.full(4, 2**63, dtype=np.uint64)}), "whole numbers beyond 2^53"),
    ([[2**53 + i] for i in range(4)], "whole numbers beyond 2^53, such as 9007199254740995: fl"),
    (np.array([[10**30 + 1]] * 4, dtype=object), "beyond 2^53, such as 1000000000000000000000"),
    (pd.DataFrame({"a": [2**53 + 1] * 4, "b": [0.5] * 4}), "beyond 2^53, such as 90071992547409"),
    (MASKED, "has 2 masked values of 4; fill these values"),
    (torch.eye(4).to_sparse(), "is a tensor of torch.float32, torch.sparse_coo, on cpu; expected"),
    (torch.zeros(4, 1, device="meta"), "a tensor of torch.float32, torch.strided, on meta; expec"),
]  # fmt: skip


@pytest.mark.parametrize(("x", "message"), NUMBERS, ids=[message for _, message in NUMBERS])
def test_numbers_that_would_be_rounded_or_lost_are_refused(x: Any, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        from_arrays(x, [0.0, 1.0, 3.0, 4.0], test_fraction=0.5)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.arange(8).astype("M8[D]"), "classes are text, truth values or whole numbers, all of "),
        (np.array(["a", 1.0] * 4, dtype=object), "all of one kind, got float and str, for instan"),
        (np.array([b"\xff", b"a"] * 4), "holds bytes that are no UTF-8 text"),
        (np.array([0, 1] * 4) * 1e300, "class labels must be whole numbers, got 1e.300 in row 1"),
        (np.array([1j] * 8), "class labels must be whole numbers, got 1j in row 0"),
    ],
)
def test_targets_that_are_no_classes(y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays(np.eye(8), y, task="classification", test_fraction=0.5)


def test_targets_are_taken_for_what_they_are() -> None:
    x, y = np.eye(8), np.array([0.5, 1.5] * 4)
    for given_y in (y.astype(object), pd.DataFrame({"dose": y})):
        assert from_arrays(x, given_y).task == "regression"
    assert from_arrays(x, pd.DataFrame({"dose": y})).train.target_name == "dose"
    assert from_arrays(x, np.array([b"ill", b"well"] * 4)).train.class_names == ("ill", "well")
    with pytest.raises(DataError, match="y must hold real numbers, got dtype complex"):
        from_arrays(x, torch.tensor(y + 1j))


# Files


def loads(path: Path) -> bool:
    """Whether a file is a data set; any other error than ours fails the test."""
    try:
        split = load(path)
    except BNNError:
        return False
    return bool(torch.isfinite(split.train.x).all())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.mark.slow("a second or more")
@reproducible
@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
    | st.text('0123456789.,;-\n\r" \tabNAe_', max_size=300).map(str.encode)
)
def test_any_bytes_are_a_table_or_are_refused(folder: Path, content: bytes) -> None:
    path = folder / "rows.csv"
    path.write_bytes(content)
    loads(path)
    path.write_bytes(
        b"a,b,y\n" + b"\n".join(b"%d,%d,%d" % (i, i % 3, i) for i in range(9)) + content
    )
    loads(path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("start", ["", "\N{BYTE ORDER MARK}", "\n\n"])
def test_marks_line_ends_quotes_and_empty_lines_change_no_number(
    folder: Path, start: str, end: str
) -> None:
    lines = [f'{i},"{i * i}",{i / 4}' for i in range(9)]
    path = folder / "dialect.csv"
    path.write_bytes((start + end.join(['a,"b, c",y', "", *lines, ""])).encode())
    data = load(path).train
    assert data.input_names == ("a", "b, c")
    x, y = data.raw()
    assert_close(x[:, 1], x[:, 0] ** 2, rtol=1e-6, atol=1e-5)
    assert_close(y, x[:, 0] / 4, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([str(2**53 + i) for i in range(9)], "in 8 rows, first '9007199254740993' in line 3; diff"),
        ([str(-(2**53) - i) for i in range(9)], "does not all have, in 8 rows, first '-90071"),
        ([str(2**70 + i) for i in range(9)], "in 9 rows, first '1180591620717411303424' in line 2"),
        (["1_000", *"12345678"], "holds numbers with '_', in 1 row, first '1_000' in line 2"),
    ],
)
def test_numbers_of_a_csv_never_become_categories(
    folder: Path, column: list[str], message: str
) -> None:
    path = folder / "ids.csv"
    path.write_text("id,y\n" + "\n".join(f"{field},{i}" for i, field in enumerate(column)))
    with pytest.raises(DataError, match=message):
        load(path)


def test_a_line_without_end_is_refused_before_it_is_read(folder: Path) -> None:
    path = folder / "line.csv"
    with path.open("wb") as file:
        file.truncate(2**33)  # 8 GiB of zero bytes that take no room
    with pytest.raises(DataError, match=r"line of more than 67,108,864 bytes"):
        load(path)
    path.unlink()


def archive(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # its stubs take keywords for flags
    return buffer.getvalue()


GOOD = archive(x=np.arange(40.0).reshape(20, 2), y=np.arange(20.0))


@settings(reproducible, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=5))
def test_damaged_archives_are_refused(folder: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(GOOD)
    for place, byte in changes:
        content[place] = byte
    path = folder / "damaged.npz"
    path.write_bytes(content)
    assert loads(path) or changes


def declared(shape: tuple[int, ...], dtype: str = "<f8", data: bytes = b"") -> bytes:
    """An array of an archive whose header says anything."""
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (declared((10**6, 10**6)), "never unpickled: "),
        (declared((2**62, 2**62)), "never unpickled: "),
        (declared((-1, 3)), "never unpickled: "),
        (declared((20,), "<U500000000"), "never unpickled: "),
        (declared((10**18,), "<U0"), "GiB of memory, and this machine has"),
        (declared((20,), "|O", b"cos\nabort\n(tR."), "never unpickled: Object arrays cannot be"),
        (
            declared((20, 1), data=bytes(320)),
            "never unpickled: an array has more bytes than it says",
        ),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f", "never unpickled: EOF"),
        (b"\x93NUMPY\x01\x00\x88\x13" + b"(" * 5000, "never unpickled: "),
    ],
    ids=["huge", "overflow", "negative", "text", "flat", "pickle", "more", "header", "brackets"],
)
def test_declared_sizes_are_believed_only_when_they_are_there(
    folder: Path, x: bytes, message: str
) -> None:
    path = folder / "declared.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", x)
        file.writestr("y.npy", declared((20,), data=bytes(160)))
    with pytest.raises(DataError) as caught:
        load(path)
    assert message in str(caught.value)


def test_an_archive_beyond_the_memory_is_refused_before_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "large.npz"
    again = np.resize(np.random.default_rng(0).normal(size=3_000), 4 * MEGA)  # packs by 100
    path.write_bytes(archive(x=np.stack([again, again], 1), y=again))  # 96 MiB in 1
    sizes = {"SC_PHYS_PAGES": 64 * 1024, "SC_PAGE_SIZE": 4096}  # 256 MiB
    monkeypatch.setattr("os.sysconf", sizes.__getitem__)
    with pytest.raises(
        DataError, match=r"needs about 0\.3 GiB of memory, and this machine has 0\.2"
    ):
        load(path)


def test_text_for_training_and_numbers_for_the_test_are_refused(folder: Path) -> None:
    path = folder / "mixed.npz"
    path.write_bytes(
        archive(
            x_train=np.eye(4), y_train=np.array(["a", "b"] * 2), x_test=np.eye(4), y_test=np.ones(4)
        )
    )
    with pytest.raises(
        DataError, match="training rows hold <U1 and test rows float64; expected numbers"
    ):
        load(path)
