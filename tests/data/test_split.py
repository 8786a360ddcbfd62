"""Splits: the published protocol, standardising by the training rows, labels."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import KFold
from torch.testing import assert_close

from pyro_bnn.data import Dataset, from_frame
from pyro_bnn.data.split import (
    Split,
    Table,
    check_index,
    from_arrays,
    holds_counts,
    make_split,
    published_rows,
)
from pyro_bnn.errors import BNNWarning, DataError, OptionError, ShapeError
from pyro_bnn.sklearn import BNNClassifier, BNNRegressor


def regression(num_rows: int = 40) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    return rng.normal(50.0, 9.0, (num_rows, 3)), rng.gamma(2.0, 30.0, num_rows)


def both(split: Split) -> Iterator[tuple[Any, Any]]:
    yield split.train, split.train_rows
    yield split.test, split.test_rows


# --- the published protocol ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_rows", "num_train", "first"),  # sizes and first training rows as published
    [
        (506, 455, [307, 343]),
        (1030, 927, [339, 244]),
        (308, 277, [73, 304]),
        (768, 691, [285, 101]),
    ],
)
def test_first_published_split(num_rows: int, num_train: int, first: list[int]) -> None:
    train, test = published_rows(num_rows, 0)
    assert (len(train), len(test)) == (num_train, num_rows - num_train)
    assert train[:2].tolist() == first


def test_published_splits_follow_their_recipe() -> None:
    num_rows = 117
    r = np.random.RandomState(1)
    for k in range(4):
        p = r.choice(range(num_rows), num_rows, replace=False)
        train, test = published_rows(num_rows, k)
        assert train.tolist() == p[: round(0.9 * num_rows)].tolist()
        assert test.tolist() == p[round(0.9 * num_rows) :].tolist()


def test_too_few_rows_for_a_test_row_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"mine\.csv: 4 rows are too few for 90 % training and 10 % "
    ):
        published_rows(4, 0, "mine.csv")
    with pytest.raises(
        DataError, match=r"the data: 1 row is too few .* at least 5 rows are needed"
    ):
        published_rows(1, 0)
    assert [len(rows) for rows in published_rows(5, 0)] == [4, 1]


@pytest.mark.parametrize("index", [-1, 5, 1.0, True, "0", None])
def test_the_number_of_a_split_is_checked(index: Any) -> None:
    check_index(np.int64(4), 5, "protein")  # type: ignore[arg-type]
    expected = f"split of protein must be a whole number 0 .. 4, got {index!r}"
    with pytest.raises(OptionError, match=re.escape(expected)):
        check_index(index, 5, "protein")


def test_the_only_split_is_called_so() -> None:
    with pytest.raises(OptionError, match="split of it must be 0, the only one, got 1"):
        check_index(1, 1, "it")


# --- standardising -------------------------------------------------------------------------------


def test_both_parts_are_standardised_by_the_training_rows() -> None:
    x, y = regression()
    split = from_arrays(torch.tensor(x), torch.tensor(y), test_fraction=0.25, seed=1)
    assert split.train_rows is not None
    rows = split.train_rows.numpy()
    loc, scale = x[rows].mean(0), x[rows].std(0)
    for part, part_rows in both(split):
        expected = (x[part_rows.numpy()] - loc) / scale
        assert_close(part.x, torch.tensor(expected), rtol=1e-10, atol=1e-12)
        expected = (y[part_rows.numpy()] - y[rows].mean()) / y[rows].std()
        assert_close(part.y, torch.tensor(expected), rtol=1e-10, atol=1e-12)
    assert (len(split.train), len(split.test)) == (30, 10)


def test_raw_gives_the_rows_of_the_source() -> None:
    x, y = regression()
    split = from_arrays(torch.tensor(x), torch.tensor(y)[:, None])
    for part, rows in both(split):
        raw_x, raw_y = part.raw()
        assert_close(raw_x, torch.tensor(x[rows.numpy()]), rtol=1e-12, atol=0)
        assert_close(raw_y, torch.tensor(y[rows.numpy(), None]), rtol=1e-12, atol=0)


def test_the_first_rows_keep_the_units_of_the_whole() -> None:
    x, y = regression()
    split = from_arrays(x, y, test_fraction=0.25)
    first = split.first(15)
    assert (len(first.train), len(first.test)) == (15, 10)  # there are ten test rows
    for part, rows in both(first):
        raw_x, raw_y = part.raw()
        assert_close(raw_x, torch.tensor(x)[rows])
        assert_close(raw_y, torch.tensor(y)[rows])
    assert torch.equal(first.train.x, split.train.x[:15])
    assert torch.equal(split.first(5).test.x, split.test.x[:5])
    assert first.note == "The first 15 of 30 training and 10 of 10 test rows."
    for number, message in (
        (30, "the first 30 rows of arrays are all: it has 30 training and 10 test rows"),
        (0, "num_rows is an integer of at least 1, not 0"),
        (True, "num_rows is an integer of at least 1, not True"),
    ):
        with pytest.raises(OptionError, match=message):
            split.first(number)


def test_names_of_several_targets_come_from_the_frame() -> None:
    x, y = regression()
    frame = pd.DataFrame({"a": y, "b": 2 * y})
    split = from_arrays(x, frame)
    assert split.train.target_names == ("a", "b")
    assert split.test.rows([0]).target_names == ("a", "b")
    assert from_arrays(x, frame[["a"]]).train.target_names is None
    frame["b"] = 1.0
    with pytest.warns(BNNWarning, match="the target 'b' has one value in all"):
        from_arrays(x, frame)
    with pytest.raises(ShapeError, match="y has 2 columns, but 3 target_names"):
        Dataset(x, torch.tensor(frame.to_numpy()), target_names=("a", "b", "c"))


def test_a_column_constant_in_training_only_keeps_its_differences() -> None:
    x = torch.tensor([[7.0], [7.0], [7.0], [9.5]])
    table = Table(Dataset(x, torch.arange(4.0)), "regression", "t")
    split = make_split(table, torch.tensor([0, 1, 2]), torch.tensor([3]))
    assert_close(split.train.x, torch.zeros(3, 1))
    assert_close(split.test.x, torch.tensor([[2.5]]))


def test_standardising_survives_a_large_offset_in_float32() -> None:
    values = 1e6 + np.arange(8.0)  # float32 would round the differences to 1/16
    split = from_arrays(values[:, None], np.arange(8.0), test_fraction=0.25)
    assert split.train_rows is not None
    kept = split.train_rows.numpy()
    expected = (kept - kept.mean()) / kept.std()
    assert split.train.x.dtype == torch.float32
    assert_close(split.train.x[:, 0], torch.tensor(expected, dtype=torch.float32))


def test_images_are_standardised_by_channel() -> None:
    x = torch.tensor([0.0, 2.0, 0.0, 2.0])[:, None, None, None].expand(4, 1, 3, 3)
    x = torch.cat([x, torch.full((4, 1, 3, 3), 5.0)], dim=1)
    split = from_arrays(x, torch.arange(4.0), test_fraction=0.25)
    assert split.train.inputs is not None
    assert split.train.inputs.loc.shape == (2, 1, 1)
    assert_close(split.train.x[:, 1], torch.zeros(3, 3, 3))


def test_the_dtype_is_float32_unless_tensors_say_otherwise() -> None:
    x, y = regression()
    split = from_arrays(x, y)
    assert split.train.x.dtype == split.test.y.dtype == torch.float32
    assert split.train.target is not None
    assert split.train.target.loc.dtype == torch.float64  # the units lose nothing
    assert from_arrays(torch.tensor(x), y).train.y.dtype == torch.float64


# --- from arrays ---------------------------------------------------------------------------------


def test_names_travel_from_pandas() -> None:
    x, y = regression()
    split = from_arrays(pd.DataFrame(x, columns=["a", "b", "c"]), pd.Series(y, name="cost"))
    assert split.test.input_names == ("a", "b", "c")
    assert split.test.target_name == "cost"
    assert (split.name, split.task, split.index) == ("arrays", "regression", 0)


def test_labels_stay_labels() -> None:
    x, _ = regression()
    y = np.arange(40) % 4
    split = from_arrays(x, y)
    assert split.task == "classification"
    assert split.test.num_classes == 4  # whatever classes the 4 test rows hold
    assert split.train.target is None
    assert split.train_rows is not None
    assert_close(split.train.y, torch.tensor(y)[split.train_rows])


def test_text_is_coded() -> None:
    x, _ = regression()
    split = from_arrays(x, np.where(np.arange(40) % 2 == 0, "yes", "no"))
    assert split.train.class_names == ("no", "yes")
    assert split.train_rows is not None
    assert_close(split.train.y, 1 - split.train_rows % 2)


def test_task_overrides_the_dtype() -> None:
    x, _ = regression()
    split = from_arrays(x, np.arange(3, 43), task="regression")
    assert split.task == "regression"
    assert split.train.y.dtype == torch.float32
    split = from_arrays(x, (np.arange(40) % 2).astype(float), task="classification")
    assert split.train.y.dtype == torch.int64


def test_rows_of_a_splitter_are_the_parts() -> None:
    """Each row is tested once, in the order given, in the units of its own training rows."""
    x, y = regression(23)
    tested = []
    for train, test in KFold(4, shuffle=True, random_state=0).split(x):
        split = from_arrays(torch.tensor(x), torch.tensor(y), rows=(train, test[::-1]), seed=9)
        for part, numbers in ((split.train, train), (split.test, test[::-1])):
            expected = (x[numbers] - x[train].mean(0)) / x[train].std(0)
            assert_close(part.x, torch.tensor(expected), rtol=1e-10, atol=1e-12)
        assert split.test_rows is not None
        tested += split.test_rows.tolist()
    assert sorted(tested) == list(range(23))


@pytest.mark.parametrize(
    "rows",
    [
        ([0, 1, 2], [2, 3]),  # a row in both
        ([0, 1, 1], [3]),
        ([0, 1], [23]),
        ([0, -1], [3]),
        ([0, 1], []),
        ([[0, 1]], [2]),
        ([0.0, 1.0], [2.0]),
        ([0, 1], [True]),
        ([0, 1],),
        ([0, 1], [2], [3]),
        ([0, [1]], [2]),
        7,
        KFold(3).split(range(23)),  # all its parts
        (np.arange(23) < 20, np.arange(23) >= 20),  # masks
    ],
)
def test_rows_that_are_no_parts_are_refused(rows: Any) -> None:
    expected = r"rows is \(train, test\), each with whole numbers 0 .. 22 and no row twice"
    with pytest.raises(OptionError, match=expected):
        from_arrays(*regression(23), rows=rows)


def test_the_seed_decides_the_rows() -> None:
    x, y = regression()
    rows = [from_arrays(x, y, seed=seed).test_rows for seed in (0, 0, 1)]
    assert_close(rows[0], rows[1])
    assert rows[0] is not None
    assert rows[2] is not None
    assert rows[0].tolist() != rows[2].tolist()


X10 = [[float(i)] for i in range(10)]
Y10 = [float(i) for i in range(10)]


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (X10, [1, 2] * 5, DataError, "y: class labels must be 0 .. C-1"),
        (X10, [0] * 10, DataError, "y holds one class only, '0', in all 10 rows"),
        (X10, [*Y10[:9], float("inf")], DataError, "y holds NaN or infinity in 1 row of 10"),
        ([*X10[:9], [float("nan")]], Y10, DataError, "x holds NaN or infinity in column 0 (1 row)"),
        (X10, Y10[:9], ShapeError, "x [10, 1] and y [9]"),
        (np.zeros((0, 1)), np.zeros(0), DataError, "the data are empty"),
        (X10, [[[v]] for v in Y10], ShapeError, "y must be [N] or [N, O], got [10, 1, 1]"),
        (X10, [[0, 2]] * 10, ShapeError, "y: class labels must be [N], got [10, 2]; several"),
        (X10, [[0, 1], [1, 0]] * 5, DataError, "y: each row of [10, 2] has a single 1: of classes"),
        (X10, [1e160 * v for v in Y10], DataError, "whose square torch.float64 cannot hold"),
    ],
)
def test_arrays_that_cannot_be_used(x: Any, y: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        from_arrays(x, y)


@pytest.mark.parametrize("unit", [1e151, 1e-151])
def test_squares_of_targets_ten_thousand_sds_out_are_to_be_finite(unit: float) -> None:
    """In float64 squares end at 1.8e308, and those of 1e4 sds at sds of 1.3e150."""
    expected = r"square torch.float64 cannot hold; .* between 7e-151 and 1e\+150"
    with pytest.raises(DataError, match=expected):
        from_arrays(X10, [unit * value for value in Y10])
    inside = unit ** (149 / 151)
    split = from_arrays(X10, [inside * value for value in Y10])
    assert split.train.target is not None
    assert split.train_rows is not None
    assert split.train.target.scale / inside == pytest.approx(split.train_rows.numpy().std())


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="test_fraction must be between 0 and 1, both excluded"):
        from_arrays(X10, Y10, test_fraction=1.0)
    with pytest.raises(OptionError, match="task must be"):
        from_arrays(X10, Y10, task="ranking")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="seed must be a whole number >= 0, got -3"):
        from_arrays(X10, Y10, seed=-3)
    with pytest.raises(DataError, match=r"test_fraction=0\.01 of 10 rows leaves 10 and 0 rows"):
        from_arrays(X10, Y10, test_fraction=0.01)


def classes(labels: list[int]) -> Table:
    y = torch.tensor(labels)
    names = tuple("abc"[: int(y.max()) + 1])
    x = torch.arange(float(len(labels)))[:, None]
    return Table(Dataset(x, y, class_names=names), "classification", "t")


def test_training_rows_of_one_class_are_refused() -> None:
    with pytest.raises(DataError, match="t: the training rows hold one class only, 'b'"):
        make_split(classes([1, 1, 0]), torch.tensor([0, 1]), torch.tensor([2]))


def test_a_class_without_training_rows_is_told() -> None:
    with pytest.warns(BNNWarning, match="t: no training row of class 'c'"):
        make_split(classes([0, 1, 2]), torch.tensor([0, 1]), torch.tensor([2]))


def test_a_target_that_is_constant_in_the_training_rows_is_told() -> None:
    x, train, test = torch.arange(3.0)[:, None], torch.tensor([0, 1]), torch.tensor([2])
    costs = Dataset(x, torch.tensor([7.0, 7, 9]), target_name="cost")
    flat = Table(costs, "regression", "t")
    expected = "t: the target 'cost' has one value in all 2 training rows: there is nothing to lea"
    with pytest.warns(BNNWarning, match=expected):
        split = make_split(flat, train, test)
    assert_close(split.test.y, torch.tensor([2.0]))
    pairs = Table(Dataset(x, torch.tensor([[1.0, 4], [2, 4], [3, 5]])), "regression", "t")
    with pytest.warns(BNNWarning, match=r"target y, column 1 \(from 0\), has one value in all 2 t"):
        make_split(pairs, train, test)


def test_to_and_repr() -> None:
    split = from_arrays(X10, Y10).to(dtype=torch.float64)
    assert split.train.x.dtype == split.test.y.dtype == torch.float64
    assert repr(split).startswith("Split('arrays', regression, index=0, train=Dataset(x [9, 1] ")


def test_counts_stay_as_they_are() -> None:
    x, y = torch.arange(20.0)[:, None], torch.arange(20) % 4
    split = from_arrays(x, y, task="counts")
    assert (split.task, split.train.target, split.train.num_classes) == ("regression", None, None)
    assert split.train.y.dtype == torch.float32
    assert split.train_rows is not None
    assert split.test_rows is not None
    rows = torch.cat([split.train_rows, split.test_rows])
    torch.testing.assert_close(torch.cat([split.train.y, split.test.y]), y[rows].float())


@pytest.mark.parametrize("bad", [-1.0, 0.5])
def test_what_is_no_count_is_refused(bad: float) -> None:
    y = torch.cat([torch.ones(9), torch.tensor([bad])])
    with pytest.raises(DataError, match=rf"counts are whole numbers from 0, got {bad} in row 9"):
        from_arrays(torch.arange(10.0)[:, None], y, task="counts")


@pytest.mark.parametrize("convert", [np.array, torch.tensor, list, pd.DataFrame])
@pytest.mark.parametrize("kind", [bool, int])
def test_several_binary_targets_are_taken(convert: Any, kind: type) -> None:
    y = [[kind(i % 2), kind(i % 3 == 0)] for i in range(10)]
    split = from_arrays(X10, convert(y))
    assert split.task == "regression"
    assert split.train.target is None
    assert split.train_rows is not None
    assert_close(split.train.y, torch.tensor(y).float()[split.train_rows])
    assert holds_counts(split)


def test_classes_of_test_rows_are_those_of_the_training_rows() -> None:
    train = Dataset(X10, ["ill", "odd", "well"] * 3 + ["ill"])
    test = Dataset(X10[:2], ["well", "odd"])  # which it codes 1, 0
    with pytest.raises(DataError, match="the test rows have the classes 'odd', 'well', but those"):
        Split(train, test, "classification", "mine")
    test = Dataset(X10[:2], ["well", "odd"], class_names=train.class_names)
    assert Split(train, test, "classification", "mine").test.y.tolist() == [2, 1]


def test_numbers_that_lost_their_differences_are_refused_wherever_they_come_from() -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    lost = 10 * x[:, 0] + 1e17  # of float64 there is one number in 16
    assert len(np.unique(lost)) == 3
    frame = pd.DataFrame({"a": x[:, 0], "b": lost})
    makers: list[tuple[Callable[[], object], str]] = [
        (lambda: from_arrays(x, lost), "arrays: the target holds numbers near 1e+17"),
        (lambda: from_arrays(frame, x[:, 0]), "arrays: x, 'b', holds numbers near 1e+17"),
        (lambda: from_arrays(x, frame), "arrays: the target, 'b', holds"),
        (lambda: from_frame(frame, target="b"), "the data frame: the target holds"),
        (lambda: BNNRegressor(num_steps=1).fit(x, lost), "the data: the target holds"),
        (lambda: BNNClassifier(num_steps=1).fit(frame, x[:, 0] > 0), "the data: x, 'b', holds"),
    ]
    for make, message in makers:
        with pytest.raises(DataError, match=re.escape(message)):
            make()
