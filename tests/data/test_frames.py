"""Data frames: the same table as its CSV, refused in the same words, predicted by name."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.data import Split, from_frame
from pyro_bnn.data.frames import encoded
from pyro_bnn.errors import DataError, OptionError, UnknownNameError
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.sklearn import BNNRegressor
from tests.rows import read_csv

NUM_ROWS = 40


@pytest.fixture
def frame() -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "area": random.normal(80, 20, NUM_ROWS),
            "town": random.choice(["Oslo", "Rome", "a=b"], NUM_ROWS),
            "rooms": pd.array(random.integers(1, 6, NUM_ROWS), dtype="Int64"),
            "old": random.random(NUM_ROWS) < 0.5,
            "size=m": random.normal(size=NUM_ROWS).astype(np.float32),
            "rent": random.normal(1_000, 100, NUM_ROWS),
        },
        index=[f"flat {i}" for i in range(NUM_ROWS)],
    )


@pytest.mark.parametrize("target", ["rent", "town", "old", "rooms,rent"])
def test_a_frame_is_the_table_of_its_csv(frame: pd.DataFrame, target: str, tmp_path: Path) -> None:
    frame["size=m"] = frame["size=m"].astype(np.float64)  # a CSV has the digits of float32 alone
    frame.to_csv(tmp_path / "flats.csv", index=False)
    table = read_csv(tmp_path / "flats.csv", target)
    split = from_frame(frame, target=target, test_fraction=0.25, seed=3)
    assert (len(split.train), len(split.test)) == (30, 10)
    assert split.task == table.task
    for name in ("input_names", "target_name", "target_names", "class_names"):
        assert getattr(split.train, name) == getattr(table.data, name)
    for part, rows in ((split.train, split.train_rows), (split.test, split.test_rows)):
        assert rows is not None
        x, y = part.raw()
        assert_close(x, table.data.x[rows].to(x), rtol=1e-5, atol=1e-5)
        assert_close(y, table.data.y[rows].to(y), rtol=1e-5, atol=1e-5)


def test_numbers_come_back_whole(frame: pd.DataFrame) -> None:
    towns = ("town=Oslo", "town=Rome", "town=a=b")
    x = encoded(frame.drop(columns="rent"), ["size=m", "area", "rooms", "old", *towns])
    assert x.dtype == torch.float64
    for place, name in enumerate(["size=m", "area", "rooms", "old"]):
        assert x[:, place].tolist() == frame[name].astype(float).tolist()


def test_rows_of_a_frame_are_by_position(frame: pd.DataFrame) -> None:
    train, test = np.arange(10, 40), np.arange(10)
    split = from_frame(frame, target="rent", rows=(train, test))
    _, rent = split.test.raw()
    expected = torch.tensor(frame["rent"].iloc[test].to_numpy())
    assert_close(rent, expected.to(rent.dtype), rtol=1e-5, atol=0)  # in float32


def test_columns_of_text_are_found_by_name_in_any_order(frame: pd.DataFrame) -> None:
    inputs = frame.drop(columns="rent").iloc[:, ::-1]
    names = from_frame(frame, target="rent").train.input_names
    x = encoded(inputs, names)
    assert names == ("area", "town=Oslo", "town=Rome", "town=a=b", "rooms", "old", "size=m")
    for place, town in enumerate(["Oslo", "Rome", "a=b"], start=1):
        assert x[:, place].tolist() == (frame["town"] == town).astype(float).tolist()
    plain = pd.DataFrame(x.numpy(), columns=list(names))
    assert encoded(plain, names) is plain  # encoded already
    assert encoded(x, names) is x
    assert encoded(inputs, None) is inputs


def test_what_a_csv_refuses_a_frame_refuses(frame: pd.DataFrame) -> None:
    for missing in (None, np.nan, "", "NA"):
        bad = frame.astype({"town": object})
        bad.loc["flat 3", "town"] = missing
        expected = "the data frame has missing values: 'town' in 1 row of 40, first in row 'flat 3'"
        with pytest.raises(DataError, match=re.escape(expected)):
            from_frame(bad, target="rent")
    dates = pd.Series(pd.to_datetime(["2020-01-01", None] * 20), index=frame.index)
    for column in (dates, dates.dt.to_period("M"), dates - dates.iloc[0], dates.astype(object)):
        with pytest.raises(DataError, match="'built' in 20 rows of 40, first in row 'flat 1'"):
            from_frame(frame.assign(built=column), target="rent")
    bad = frame.astype({"rooms": "Float64"})
    bad.loc["flat 5", "rooms"] = pd.NA
    with pytest.raises(DataError, match="'rooms' in 1 row of 40, first in row 'flat 5'"):
        from_frame(bad, target="rent")
    bad = frame.copy()
    bad.loc["flat 7", "area"] = np.inf
    with pytest.raises(DataError, match="column 'area' holds something else than finite numbers"):
        from_frame(bad, target="rent")
    with pytest.raises(DataError, match="column 'name' is text with 40 different values in 40"):
        from_frame(frame.assign(name=list(frame.index)), target="rent")
    with pytest.raises(UnknownNameError, match="unknown target column of the data frame 'rentt'"):
        from_frame(frame, target="rentt")
    with pytest.raises(OptionError, match="target names each column once"):
        from_frame(frame, target=["rent", "rent"])
    with pytest.raises(DataError, match="the data frame has a header but no rows"):
        from_frame(frame.iloc[:0], target="rent")
    with pytest.raises(DataError, match="columns whose names are no text, such as 0"):
        from_frame(pd.DataFrame(np.zeros((3, 2))), target="rent")
    with pytest.raises(DataError, match="expected a data frame of pandas, got ndarray"):
        from_frame(np.zeros((3, 2)), target="rent")


@pytest.mark.parametrize("levels", [[10, 9, 8], [0.5, 1.5, 2.5], ["x", "b", "c"], [True, False]])
def test_a_column_of_dtype_category_is_of_categories(levels: list[Any]) -> None:
    codes = np.random.default_rng(0).permutation(np.arange(30) % len(levels))
    kind = pd.Categorical.from_codes(codes, pd.Index([*levels, 99]))  # 99 does not occur
    frame = pd.DataFrame({"kind": kind, "a": np.linspace(0, 1, 30), "y": np.arange(30.0)})
    names = tuple(f"kind={level}" for level in levels)
    split = from_frame(frame, target="y")
    assert split.train.input_names == (*names, "a")
    x = encoded(frame[["a", "kind"]], split.train.input_names)
    assert_close(x[:, :-1], torch.eye(len(levels), dtype=torch.float64)[torch.tensor(codes)])
    split = from_frame(frame, target="kind")
    arrays = bnn.data.from_arrays(frame[["a", "y"]], frame["kind"])
    whole = bnn.data.Dataset(frame[["a", "y"]], frame["kind"])
    assert whole.y.tolist() == codes.tolist()
    again = bnn.data.Dataset(frame[["a", "y"]], frame["kind"], class_names=whole.class_names)
    assert again.y.tolist() == codes.tolist()
    for part, rows in ((split, split.train_rows), (arrays, arrays.train_rows)):
        assert rows is not None
        assert part.task == "classification"
        assert part.train.class_names == whole.class_names == tuple(map(str, levels))
        assert part.train.y.tolist() == codes[rows.numpy()].tolist()
    with pytest.raises(DataError, match="target 'kind' of the data frame is of dtype category"):
        from_frame(frame, target="kind", task="regression")
    with pytest.raises(DataError, match="column 'kind' is of dtype category, not of numbers"):
        BNNRegressor().fit(frame[["kind", "a"]], frame["y"])
    missing = frame["kind"].where(frame.index != 3)
    with pytest.raises(DataError, match="y has 1 missing of 30 values, first in row 3"):
        bnn.data.from_arrays(frame[["a"]], missing)
    with pytest.raises(DataError, match=r"holds one class only, .* in all 30 rows"):
        from_frame(frame.assign(kind=kind[[0] * 30]), target="kind")


@pytest.fixture
def split(frame: pd.DataFrame) -> Split:
    return from_frame(frame, target="rent")


@pytest.fixture
def posterior(split: Split) -> Posterior:
    model = bnn.models.MLP(split.train.x.shape[1], hidden=(4,))
    svi = bnn.SVI(bnn.guides.AutoNormal, num_steps=5, compile=False)
    return svi.run(model, split.train, progress=False)


def test_a_posterior_predicts_frames_with_text(
    frame: pd.DataFrame, split: Split, posterior: Posterior, tmp_path: Path
) -> None:
    assert split.test_rows is not None
    new = frame.iloc[split.test_rows.tolist()].drop(columns="rent")
    expected = posterior.predict(split.test.raw()[0], raw=True).to_frame()
    posterior.save(tmp_path / "fit.safetensors")
    model = bnn.models.MLP(split.train.x.shape[1], hidden=(4,))
    for each in (posterior, Posterior.load(tmp_path / "fit.safetensors", model)):
        found = each.predict(new.iloc[:, ::-1], raw=True).to_frame()
        assert list(found.index) == list(new.index)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    with pytest.raises(DataError, match="'town' holds values that the fit has not seen, in 4 rows"):
        posterior.predict(new.assign(town="Paris"), raw=True)
    with pytest.raises(DataError, match="unknown are 'rent'"):
        posterior.predict(frame, raw=True)
    with pytest.raises(DataError, match="missing are 'area'"):
        posterior.predict(new.drop(columns="area"), raw=True)
    with pytest.raises(DataError, match="missing values: 'town' in 4 rows of 4, first in row"):
        posterior.predict(new.assign(town=None), raw=True)
    with pytest.raises(DataError, match="but the fit was to 'area', 'town=Oslo'"):
        posterior.predict(new)  # x is in the units of the model
