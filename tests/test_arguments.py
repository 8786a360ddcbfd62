"""Arguments of a model in files: arrays of NumPy and frames of pandas come back as they were."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.errors import FileFormatError, OutputError
from pyro_bnn.files.tensors import read_tensors, write_tensors
from pyro_bnn.posterior import CallPosterior
from pyro_bnn.posterior.arguments import packed, unpacked

X = np.linspace(0.0, 2.0, 6)
FRAME = pd.DataFrame(
    {
        "x": X,
        "count": np.arange(6, dtype=np.int16),
        "is_new": X > 1,
        "town": [*list("aabbc"), None],
        "kind": pd.Categorical(list("uvuvvu"), categories=["v", "u"], ordered=True),
        "day": pd.date_range("2020-01-01", periods=6),
        "maybe": pd.array([1, 2, 3, 4, 5, 6], dtype="Int64"),
    },
    index=pd.Index(list("pqrstu"), name="row"),
)
ZONED = pd.date_range("2020-01-01", periods=6, tz="Europe/Paris")
MONTHS = pd.period_range("2020-01", periods=6, freq="M")
ARRAYS: dict[str, Any] = {
    "numbers": X,
    "single": X.astype(np.float32).reshape(2, 3),
    "backwards": X[::-1],
    "of another order": X.astype(">f8"),
    "none": np.zeros((0, 3)),
    "whole": np.arange(4, dtype=np.uint32),
    "flags": X > 1,
    "words": np.array([["a", "bc"], ["d", ""]]),
    "objects": np.array(["a", None, float("nan")], dtype=object),
    "times": np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
}


def through_a_file(value: Any, path: Path) -> Any:
    write_tensors({"it": packed(value, "it")}, path)
    return unpacked(read_tensors(path)["it"])


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back(name: str, tmp_path: Path) -> None:
    array: Any = ARRAYS[name]
    found = through_a_file(array, tmp_path / "it")
    if array.dtype == object:  # nan is not equal to itself there
        assert (found.dtype, repr(found.tolist())) == (array.dtype, repr(array.tolist()))
    else:
        np.testing.assert_array_equal(found, array, strict=True)


def test_frames_come_back(tmp_path: Path) -> None:
    pd.testing.assert_frame_equal(through_a_file(FRAME, tmp_path / "it"), FRAME, check_freq=False)
    for label in FRAME:
        column = through_a_file(FRAME[label], tmp_path / "it")
        pd.testing.assert_series_equal(column, FRAME[label], check_freq=False)
    index = through_a_file(FRAME.index, tmp_path / "it")
    pd.testing.assert_index_equal(index, FRAME.index)


def test_what_a_refusal_of_zones_and_periods_advises_is_held(tmp_path: Path) -> None:
    frame = pd.DataFrame({"day": ZONED, "month": MONTHS})
    plain = pd.DataFrame(
        {"day": frame["day"].dt.tz_localize(None), "month": frame["month"].dt.to_timestamp()}
    )
    pd.testing.assert_frame_equal(through_a_file(plain, tmp_path / "it"), plain, check_freq=False)


def test_containers_and_numbers_come_back(tmp_path: Path) -> None:
    value = {"x": [X, (np.int64(3), np.float32(0.5))], "y": torch.zeros(2), "n": None, 4: "four"}
    found = through_a_file(value, tmp_path / "it")
    assert found.keys() == value.keys()
    np.testing.assert_array_equal(found["x"][0], X)
    assert found["x"][1] == (3, 0.5)
    assert [type(number) for number in found["x"][1]] == [np.int64, np.float32]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([1, "a", X], dtype=object), "it is an array of object, which the file cannot"),
        (X.astype(complex), "it is an array of complex128"),
        (FRAME.set_index(["town", "kind"]), "it has an index of several levels.*reset_index"),
        (FRAME[["x", "x", "count"]], r"it has several columns of the name 'x', which.*set_axis"),
        (
            FRAME.assign(day=ZONED),
            r"it\['day'\] is datetime64\[.s, Europe/Paris\], .* by .dt.tz_localize\(None\)",
        ),
        (pd.Series(ZONED).shift(), r"it is datetime64.* plain times, by .dt.tz_localize\(None\)"),
        (pd.Series(MONTHS), r"it is period\[M\], .* plain times, by .dt.to_timestamp\(\)"),
        (FRAME.set_index(ZONED), r"it is datetime64.* plain times, by .tz_localize\(None\)"),
        (
            pd.Series(pd.Categorical(MONTHS)),
            r"it is period\[M\], .* plain times, by .to_timestamp\(\)",
        ),
        (pd.DataFrame({1.5: X}), "labels that are neither strings nor whole numbers"),
        (pd.Series([1, None], dtype="Int64", name="n"), r"it\['n'\] is Int64 with missing values"),
    ],
)
def test_what_a_file_cannot_hold_is_named(value: Any, message: str) -> None:
    with pytest.raises(OutputError, match=message):
        packed(value, "it")


@pytest.mark.parametrize(
    "damaged",
    [
        {"$array": {"dtype": "<f8", "shape": [7], "numbers": torch.zeros(2)}},
        {"$array": {"dtype": "|O", "shape": [1], "strings": [3]}},
        {"$array": {"dtype": "|V8", "shape": [1], "numbers": torch.zeros(1)}},
        {"$frame": {"columns": [["x", {}]], "index": {}}},
        {"$scalar": 3, "$array": 4},
    ],
)
def test_damage_is_told(damaged: Any) -> None:
    with pytest.raises(FileFormatError, match="an argument that was saved is damaged"):
        unpacked(damaged)


def on_arrays(frame: pd.DataFrame, *, noise: Any, towns: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    x = torch.tensor(frame["x"].to_numpy(), dtype=torch.float32)
    scale = torch.tensor(noise, dtype=torch.float32)
    with pyro.plate("rows", len(frame)):
        pyro.sample("y", dist.Normal(w * x, scale), obs=2 * x)


def test_posteriors_of_arrays_are_saved_and_pickled(tmp_path: Path) -> None:
    call = Call(FRAME, noise=np.full(6, 0.5), towns=FRAME["town"].to_numpy())
    posterior = bnn.Laplace(curvature="hessian").run(on_arrays, call, progress=False)
    posterior.save(tmp_path / "fit.st")
    read = CallPosterior.load(tmp_path / "fit.st", on_arrays)
    for other in (read, pickle.loads(pickle.dumps(posterior))):
        assert_close(other.sample(9)["w"], posterior.sample(9)["w"], rtol=0, atol=0)
    tree: Any = read.to_arviz(9)
    assert set(tree["constant_data"].data_vars) == {"noise"}  # no frame, no words
    np.testing.assert_array_equal(tree["constant_data/noise"], np.full(6, 0.5))


def test_a_frame_of_two_columns_of_one_name_is_refused_by_save(tmp_path: Path) -> None:
    call = Call(FRAME.assign(again=1.0).rename(columns={"again": "count"}), noise=0.5)
    posterior = bnn.Laplace(curvature="hessian").run(on_arrays, call, progress=False)
    with pytest.raises(OutputError, match="argument 1 has several columns of the name 'count'"):
        posterior.save(tmp_path / "fit.st")
    assert not [*tmp_path.iterdir()]


def test_an_argument_that_no_file_holds_is_named(tmp_path: Path) -> None:
    call = Call(FRAME.assign(town=[[1]] * 6), noise=0.5)
    posterior = bnn.Laplace(curvature="hessian").run(on_arrays, call, progress=False)
    with pytest.raises(OutputError, match=r"argument 1\['town'\] is an array of object"):
        posterior.save(tmp_path / "fit.st")
