"""Trees, files, diagnostics, leave-one-out scores; under ArviZ 0.23 and 1.x, without torch."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import matplotlib.pyplot as plt
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm, rankdata
from xarray import DataTree

from pyro_bnn import arviz_io
from pyro_bnn.arviz_io import netcdf
from pyro_bnn.errors import (
    DataError,
    FileFormatError,
    OptionError,
    OutputError,
    ShapeError,
    SiteError,
    UnknownNameError,
)

Array = NDArray[np.float64]

C, S, N, T = 4, 100, 12, 7


def values_of(tree: DataTree, path: str) -> Array:
    """The array of a variable, such as ``posterior/f``."""
    return np.asarray(tree[path])


@pytest.fixture(autouse=True)
def _agg() -> Iterator[None]:
    """Figures without a display, closed after each test."""
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def full_tree(seed: int = 0) -> DataTree:
    """A tree with every group, as a posterior makes it."""
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(C, S, N, 1))
    y = rng.normal(size=N)
    groups: dict[str, dict[str, Any]] = {
        "posterior": {"scale": rng.gamma(2.0, size=(C, S)), "f": f.astype(np.float32)},
        "posterior_predictive": {"y": f[..., 0] + rng.normal(size=(C, S, N))},
        "log_likelihood": {"y": norm.logpdf(y, f[..., 0] / 5)},
        "observed_data": {"y": y},
        "constant_data": {"x": rng.normal(size=(N, 2))},
        "predictions": {"y": rng.normal(size=(C, S, T)), "f": rng.normal(size=(C, S, T, 1))},
        "log_likelihood_predictions": {"y": rng.normal(size=(C, S, T))},
        "predictions_constant_data": {"x": rng.normal(size=(T, 2))},
        "test_data": {"y": np.array(["a", "bc", "d", "e", "f", "g", "ä"])},
        "sample_stats": {
            "diverging": rng.random((C, S)) > 0.9,
            "tree_depth": rng.integers(1, 10, (C, S)),
            "lp": rng.normal(size=(C, S)),
        },
        "optimization": {"elbo": np.linspace(-9, -1, 50)},
        "log_prior": {"scale": rng.normal(size=(C, S))},
        "prior": {"scale": rng.gamma(2.0, size=(1, S))},
        "prior_predictive": {"y": rng.normal(size=(1, S, N))},
        "probes": {"f": rng.normal(size=(C, S, 3, 1))},
        "probes_constant_data": {"x": rng.normal(size=(3, 2))},
    }
    train, test = ["data", "output"], ["test", "output"]
    return arviz_io.datatree(
        groups,
        dims={
            "f": train,
            "y": train[:1],
            "x": ["data", "input"],
            "predictions": {"f": test, "y": test[:1]},
            "log_likelihood_predictions": {"y": test},  # no output axis: a log density has none
            "predictions_constant_data": {"x": ["test", "input"]},
            "test_data": {"y": ["test"]},
            "probes": {"f": ["probe", "output"]},
            "probes_constant_data": {"x": ["probe", "input"]},
        },
        coords={"input": ["age", "bmi"], "test": 10 * np.arange(T)},
        attrs={"engine": "NUTS", "compile": None, "nested": {"on": True}, "rate": 1e-2},
    )


# --- the tree ------------------------------------------------------------------------------------


def test_every_group_has_its_dims_and_labels() -> None:
    tree = full_tree()
    assert set(tree.children) == {*arviz_io.SAMPLE_GROUPS, *arviz_io.PLAIN_GROUPS}
    expected = {
        "posterior/scale": ("chain", "draw"),
        "posterior/f": ("chain", "draw", "data", "output"),
        "posterior_predictive/y": ("chain", "draw", "data"),
        "log_likelihood/y": ("chain", "draw", "data"),
        "observed_data/y": ("data",),
        "constant_data/x": ("data", "input"),
        "predictions/y": ("chain", "draw", "test"),
        "predictions/f": ("chain", "draw", "test", "output"),
        "log_likelihood_predictions/y": ("chain", "draw", "test"),
        "predictions_constant_data/x": ("test", "input"),
        "test_data/y": ("test",),
        "sample_stats/lp": ("chain", "draw"),
        "optimization/elbo": ("step",),
        "prior/scale": ("chain", "draw"),
        "prior_predictive/y": ("chain", "draw", "data"),
        "probes/f": ("chain", "draw", "probe", "output"),
        "probes_constant_data/x": ("probe", "input"),
    }
    assert {path: tree[path].dims for path in expected} == expected
    np.testing.assert_array_equal(tree["predictions/y"].coords["test"], 10 * np.arange(T))
    np.testing.assert_array_equal(tree["constant_data/x"].coords["input"], ["age", "bmi"])
    np.testing.assert_array_equal(tree["posterior/f"].coords["data"], np.arange(N))


def test_dtypes_and_values_are_kept() -> None:
    value = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    tree = arviz_io.datatree({"posterior": {"f": value}})
    assert tree["posterior/f"].dtype == np.float32
    assert tree["posterior/f"].dims == ("chain", "draw", "f_dim_0")
    np.testing.assert_array_equal(tree["posterior/f"], value)


def test_slashes_in_names_become_dots() -> None:
    tree = arviz_io.datatree({"posterior": {"net/w": np.ones((1, 2, 3))}}, dims={"net/w": ["unit"]})
    assert list(tree["posterior"].data_vars) == ["net.w"]
    assert tree["posterior/net.w"].dims == ("chain", "draw", "unit")


def test_options_come_back() -> None:
    attrs = {"a": None, "b": [1, 2.5], "c": {"d": True}, "e": np.float32(0.5), "f": np.arange(2)}
    tree = arviz_io.datatree({"posterior": {"z": np.ones((1, 2))}}, attrs=attrs)
    assert arviz_io.options(tree) == {
        "a": None,
        "b": [1, 2.5],
        "c": {"d": True},
        "e": 0.5,
        "f": [0, 1],
    }
    assert isinstance(tree.attrs["options"], str)


def test_further_options_replace_those_of_their_names() -> None:
    tree = full_tree()
    changed = arviz_io.with_options(tree, {"seed": 9, "name": "NUTS"})
    before = arviz_io.options(tree)
    assert arviz_io.options(changed) == before | {"seed": 9, "name": "NUTS"}
    assert "name" not in before
    assert set(changed.children) == set(tree.children)
    with pytest.raises(OptionError, match="attrs must hold numbers, strings"):
        arviz_io.with_options(tree, {"set": {1}})


@pytest.mark.parametrize("text", ["not JSON", "[1, 2]", 7])
def test_foreign_attributes_are_no_options(text: object) -> None:
    tree = DataTree.from_dict({"posterior": None})
    tree.attrs["options"] = text
    assert arviz_io.options(tree) == {}


def test_options_of_another_tree_are_empty() -> None:
    assert arviz_io.options(DataTree()) == {}


ONE = np.ones((2, 3, 4))


@pytest.mark.parametrize(
    ("groups", "settings", "error", "match"),
    [
        ({"posteriors": {"z": ONE}}, {}, UnknownNameError, "did you mean 'posterior'"),
        ({"posterior": {"z": np.ones(3)}}, {}, ShapeError, r"posterior/z must be \[C, S"),
        (
            {"posterior": {"z": ONE, "w": np.ones((2, 5))}},
            {},
            ShapeError,
            "sizes or names of posterior disagree: .*'draw'",
        ),
        (
            {"posterior": {"z": ONE}},
            {"dims": {"z": ["a"]}, "coords": {"a": range(3)}},
            ShapeError,
            "sizes or names of posterior disagree: .*'a'",
        ),
        (
            {"posterior": {"z": ONE}},
            {"coords": {"z_dim_0": range(3)}},
            ShapeError,
            "sizes or names of posterior disagree: .*'z_dim_0'",
        ),
        (
            {"posterior": {"z": ONE}},
            {"dims": {"z": ["a", "b"]}},
            ShapeError,
            r"posterior/z has 1 axes after chain and draw.*got \['a', 'b'\]",
        ),
        (
            {"posterior": {"z": ONE}},
            {"dims": {"z": "a"}},
            ShapeError,
            "at most 1 names that differ",
        ),
        (
            {"posterior": {"z": np.ones((2, 3, 4, 4))}},
            {"dims": {"z": ["a", "a"]}},
            ShapeError,
            "2 names that differ",
        ),
        (
            {"posterior": {"z": ONE}},
            {"dims": {"z": ["draw"]}},
            ShapeError,
            r"names that differ, from those two also, got \['draw'\]",
        ),
        (
            {"posterior": {"z": ONE, "w": ONE}},
            {"dims": {"z": ["w"]}},
            ShapeError,
            "sizes or names of posterior disagree: .*'w'",
        ),
        (
            {"posterior": {"a/b": ONE, "a.b": ONE}},
            {},
            DataError,
            "posterior has two variables called 'a.b'",
        ),
        (
            {"posterior": {"z": ONE.astype(complex)}},
            {},
            DataError,
            "must hold numbers, bools or strings, got complex128",
        ),
        (
            {"constant_data": {"x": np.array([None])}},
            {},
            DataError,
            "constant_data/x must hold numbers",
        ),
        ({"posterior": {"z": ONE}}, {"attrs": {"a": {1, 2}}}, OptionError, r"lists and dicts only"),
    ],
)
def test_bad_input_is_refused(
    groups: dict[str, dict[str, Array]],
    settings: dict[str, Any],
    error: type[Exception],
    match: str,
) -> None:
    with pytest.raises(error, match=match):
        arviz_io.datatree(groups, **settings)


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of `full_tree`, for tests of what comes after it was saved."""
    path = tmp_path_factory.mktemp("full") / "full.nc"
    arviz_io.save_netcdf(full_tree(), path)
    return path.read_bytes()


def test_netcdf_reads_back_identical(tmp_path: Path) -> None:
    tree = full_tree()
    path = tmp_path / "posterior.nc"
    arviz_io.save_netcdf(tree, path)
    back = arviz_io.load_netcdf(str(path))
    assert back.identical(tree)  # values, dims, coords and attributes of every node
    assert {node.path: dict(node.dataset.dtypes) for node in back.subtree} == {
        node.path: dict(node.dataset.dtypes) for node in tree.subtree
    }
    assert back["sample_stats/diverging"].dtype == bool
    assert back["test_data/y"].dtype.kind == "U"
    assert arviz_io.options(back) == arviz_io.options(tree)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i8", "u4", "bool"])
def test_netcdf_keeps_the_dtype(tmp_path: Path, dtype: str) -> None:
    value = np.array([[0, 1]], dtype=dtype)
    arviz_io.save_netcdf(arviz_io.datatree({"posterior": {"z": value}}), tmp_path / "a.nc")
    back = arviz_io.load_netcdf(tmp_path / "a.nc")["posterior/z"]
    assert back.dtype == value.dtype
    np.testing.assert_array_equal(back, value)


def test_netcdf_keeps_nan_infinity_and_long_options(tmp_path: Path) -> None:
    value = np.array([[np.nan, np.inf, -np.inf, 0.0]])
    attrs = {"note": "ä" * 100_000}
    arviz_io.save_netcdf(
        arviz_io.datatree({"posterior": {"z": value}}, attrs=attrs), tmp_path / "a.nc"
    )
    back = arviz_io.load_netcdf(tmp_path / "a.nc")
    np.testing.assert_array_equal(back["posterior/z"], value)
    assert arviz_io.options(back) == attrs


@pytest.mark.slow("a second or more")
def test_a_loaded_file_is_closed_and_can_be_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.nc"
    path.write_bytes(content)
    first = arviz_io.load_netcdf(path)
    arviz_io.save_netcdf(full_tree(1), path)
    assert first.equals(full_tree(0))
    assert arviz_io.load_netcdf(path).equals(full_tree(1))


def test_files_are_compressed_and_can_be_written_again(tmp_path: Path) -> None:
    draws = np.zeros((2, 1_000, 50), dtype=np.float32)  # 400 kB
    names = np.array([f"row {i}" for i in range(50)])
    tree = arviz_io.datatree(
        {"posterior": {"f": draws, "scale": np.ones((2, 1_000))}},
        dims={"f": ["row"]},
        coords={"row": names},
    )
    arviz_io.save_netcdf(tree, tmp_path / "a.nc")
    assert (tmp_path / "a.nc").stat().st_size < 0.1 * draws.nbytes
    loaded = arviz_io.load_netcdf(tmp_path / "a.nc")
    fewer = loaded.copy()
    fewer["posterior"] = loaded["posterior"].isel(draw=[4, 7])
    arviz_io.save_netcdf(fewer, tmp_path / "b.nc")
    again = arviz_io.load_netcdf(tmp_path / "b.nc")
    assert again["posterior"].to_dataset().identical(fewer["posterior"].to_dataset())


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "none" / "a.nc", tmp_path / "file" / "a.nc", tmp_path / "folder"):
        with pytest.raises(OutputError, match=f"cannot write {path}: .*in a folder that exists"):
            arviz_io.save_netcdf(full_tree(), path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.slow("about a second")
def test_a_failed_save_leaves_the_old_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.nc"
    path.write_bytes(content)
    broken = full_tree()
    broken["posterior"].attrs["flag"] = None
    with pytest.raises(DataError, match="the tree holds what NetCDF cannot store"):
        arviz_io.save_netcdf(broken, path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_without_room_for_the_arrays_is_found_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.zeros((1, 1_000, 1_000))
    tree = arviz_io.datatree({"posterior": {"z": values}})

    def allocate(file: int, start: int, size: int) -> None:
        if size > values.nbytes:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", allocate, raising=False)
    monkeypatch.setattr(DataTree, "to_netcdf", lambda *args: pytest.fail("it was written"))
    with pytest.raises(OutputError, match=r"No space left on device; give a file name"):
        arviz_io.save_netcdf(tree, tmp_path / "a.nc")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow("about a second")
def test_a_failed_rename_leaves_the_old_file(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.nc"
    path.write_bytes(content)

    def refuse(self: Path, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OutputError, match="no space left; give a file name"):
        arviz_io.save_netcdf(full_tree(1), path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for path, words in (("a.nc", "there is no file"), ("", r"is a folder: name its files, .*nc$")):
        with pytest.raises(FileFormatError, match=words):
            arviz_io.load_netcdf(tmp_path / path)


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, content: bytes, keep: float) -> None:
    path = tmp_path / "a.nc"
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(FileFormatError, match="is truncated or not NetCDF"):
        arviz_io.load_netcdf(path)


def test_no_bit_of_a_file_flips_unnoticed(tmp_path: Path, content: bytes) -> None:
    """Of coordinates and options too, of which HDF5 has no checksum."""
    path, end = tmp_path / "a.nc", len(content) - len(netcdf.MARK) - 4
    for place in {*range(0, end, 997), *range(end + len(netcdf.MARK), len(content))}:
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(FileFormatError, match=r"a\.nc is damaged, as its checksum is not"):
            arviz_io.load_netcdf(path)
    assert content[end:-4] == netcdf.MARK


def test_a_file_without_a_checksum_is_read(tmp_path: Path, content: bytes) -> None:
    """One of an earlier version, of ArviZ, or one that another program has changed."""
    path, added = tmp_path / "a.nc", len(netcdf.MARK) + 4
    path.write_bytes(content)
    tree = arviz_io.load_netcdf(path)
    path.write_bytes(content[:-added])
    assert arviz_io.load_netcdf(path).identical(tree)
    path.write_bytes(content)
    with h5py.File(path, "r+") as file:
        file["posterior/f"][...] = 7
    assert (arviz_io.load_netcdf(path)["posterior/f"] == 7).all()


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    text, other = tmp_path / "a.csv", tmp_path / "b.nc"
    text.write_text("age,bmi\n1,2\n", "utf-8")
    with pytest.raises(FileFormatError, match="is truncated or not NetCDF"):
        arviz_io.load_netcdf(text)
    DataTree.from_dict({"weather": None}).to_netcdf(other, engine="h5netcdf")
    with pytest.raises(FileFormatError, match=r"has no group of ArviZ.*\['weather'\]"):
        arviz_io.load_netcdf(other)


# --- ArviZ's own functions on the tree as it is --------------------------------------------------


def test_arviz_has_the_interface_of_1() -> None:
    az = arviz_io.arviz()
    names = ("summary", "loo", "compare", "plot_trace_dist", "plot_rank_dist", "plot_ppc_dist")
    assert [name for name in names if not hasattr(az, name)] == []
    assert az.__name__ == ("arviz" if sys.version_info >= (3, 12) else "arviz.preview")


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize("plot", ["plot_trace_dist", "plot_rank_dist", "plot_ppc_dist"])
def test_plots_take_the_tree(plot: str) -> None:
    """With two of its rows, as each is drawn on axes of its own."""
    tree = full_tree().isel(data=slice(2), missing_dims="ignore")
    assert {*tree.children} == {*full_tree().children}
    drawn = getattr(arviz_io.arviz(), plot)(tree)
    figure = drawn.viz["figure"].item()
    assert sum(len(axes.lines) + len(axes.collections) for axes in figure.axes) > 0


# ArviZ 0.23 sorts a table in place, which pandas 3.1 deprecates
@pytest.mark.filterwarnings(
    "ignore:The inplace keyword in DataFrame.sort_values:DeprecationWarning"
)
def test_plot_compare_takes_the_trees() -> None:
    az = arviz_io.arviz()
    trees = {"a": full_tree(0), "b": full_tree(1)}
    table = az.compare(trees)
    assert set(table.index) == {"a", "b"}
    figure = az.plot_compare(table).viz["figure"].item()
    assert {label.get_text() for label in figure.axes[0].get_yticklabels()} >= {"a", "b"}


def test_arviz_loo_takes_the_tree_and_agrees() -> None:
    tree = full_tree()
    result = arviz_io.loo(tree)
    theirs = arviz_io.arviz().loo(tree, pointwise=True)
    spread = values_of(tree, "log_likelihood/y").std((0, 1)) / math.sqrt(C * S)
    assert np.abs((theirs.elpd_i.values - result.pointwise) / spread).max() < 1
    assert result.num_bad == (theirs.pareto_k.values > theirs.good_k).sum()


def test_loo_is_arvizs_at_the_same_efficiency() -> None:
    tree = full_tree()
    values = values_of(tree, "log_likelihood/y")
    result = arviz_io.loo(tree)
    for n in range(N):
        one = arviz_io.datatree(
            {
                "posterior": {"z": values[..., n]},
                "log_likelihood": {"y": values[..., [n, n]]},
            }
        )
        reff = arviz_io.ess(np.exp(values[..., n]), kind="mean") / (C * S)
        theirs = arviz_io.arviz().loo(one, pointwise=True, reff=float(reff))
        np.testing.assert_allclose(theirs.elpd_i.values, result.pointwise[n], rtol=1e-10)
        np.testing.assert_allclose(theirs.pareto_k.values, result.khat[n], rtol=1e-8)


def test_summary_is_unrounded_and_the_same_in_every_version() -> None:
    tree = full_tree()
    draws = values_of(tree, "posterior/scale")
    ranks = rankdata(draws).reshape(
        draws.shape
    )  # 44 and 356 of 400 are the 11 % and 89 % quantiles
    table = arviz_io.summary(tree, var_names=["scale"])
    assert list(table.index) == ["scale"]
    row = table.loc["scale"]
    expected = {
        "mean": draws.mean(),
        "sd": draws.std(ddof=1),
        "eti89_lb": np.quantile(draws, 0.055),
        "eti89_ub": np.quantile(draws, 0.945),
        "ess_bulk": arviz_io.ess(draws),
        "ess_tail": min(arviz_io.ess(ranks <= count, "mean") for count in (44, 356)),
        "r_hat": arviz_io.rhat(draws),
        "mcse_mean": arviz_io.mcse_mean(draws),
    }
    assert list(table.columns) == [*expected, "mcse_sd"]
    for name in ("mean", "sd", "ess_bulk", "ess_tail", "r_hat", "mcse_mean"):
        np.testing.assert_allclose(float(row[name]), expected[name], rtol=1e-10, err_msg=name)
    low, high = np.searchsorted(np.sort(draws, None), [row["eti89_lb"], row["eti89_ub"]])
    assert (low, high) == (22, 378)  # 5.5 % and 94.5 % of 400 draws, whatever the interpolation


def test_summary_of_bools_and_of_a_point_estimate() -> None:
    table = arviz_io.summary(full_tree(), group="sample_stats", var_names=["diverging"])
    share = values_of(full_tree(), "sample_stats/diverging").mean()
    np.testing.assert_allclose(float(table.loc["diverging", "mean"]), share, rtol=1e-12)
    row = arviz_io.summary(arviz_io.datatree({"posterior": {"z": np.full((1, 1), 3.0)}})).loc["z"]
    assert row["mean"] == row["eti89_lb"] == row["eti89_ub"] == 3.0
    assert row[["sd", "ess_bulk", "ess_tail", "r_hat", "mcse_mean", "mcse_sd"]].isna().all()


def test_summary_refuses_what_is_not_there() -> None:
    tree = arviz_io.datatree({"posterior": {"z": np.ones((1, 5))}, "observed_data": {"y": [1.0]}})
    for group in ("prior", "observed_data"):
        with pytest.raises(SiteError, match=rf"no group '{group}' of draws; .* \['posterior'\]"):
            arviz_io.summary(tree, group=group)
    with pytest.raises(SiteError, match="posterior has no w; it has z"):
        arviz_io.summary(tree, var_names=["z", "w"])


# --- convergence ---------------------------------------------------------------------------------


def rank_rhat(draws: Array) -> float:
    """Equations 1 to 4 and 14 of Vehtari et al. 2021, written out for draws [C, S]."""
    half = draws.shape[1] // 2
    halves = np.concatenate([draws[:, :half], draws[:, -half:]])
    found = []
    for values in (halves, np.abs(halves - np.median(halves))):
        z = norm.ppf((rankdata(values).reshape(values.shape) - 3 / 8) / (values.size + 1 / 4))
        means = [sum(row) / half for row in z]
        grand = sum(means) / len(z)
        between = half / (len(z) - 1) * sum((mean - grand) ** 2 for mean in means)
        within = sum(
            sum((value - mean) ** 2 for value in row) / (half - 1)
            for row, mean in zip(z, means, strict=True)
        ) / len(z)
        found.append(math.sqrt(((half - 1) / half * within + between / half) / within))
    return max(found)


def autoregressive(phi: float, shape: tuple[int, int, int], seed: int = 0) -> Array:
    """Stationary draws x_t = phi x_{t-1} + noise along the second axis."""
    x = np.random.default_rng(seed).normal(size=shape)
    x[:, 0] /= math.sqrt(1 - phi**2)
    for t in range(1, shape[1]):
        x[:, t] += phi * x[:, t - 1]
    return x


@pytest.mark.parametrize("num_draws", [50, 51])
def test_rhat_is_the_formula_of_the_paper(num_draws: int) -> None:
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(3, num_draws, 2, 2))
    draws[0, :, 0, 0] += 1.0  # other location: the ranks show it
    draws[0, :, 0, 1] *= 4.0  # other scale: the folded ranks show it
    draws[..., 1, 0] = draws[..., 1, 0].round()  # ties
    expected = [[rank_rhat(draws[..., i, j]) for j in range(2)] for i in range(2)]
    found = arviz_io.rhat(draws)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found[0].min() > 1.1


def test_rhat_of_independent_draws_is_near_one() -> None:
    # n (R^2 - 1) + 1 is about chi^2_7 / 7 for 8 halves of n = 150; five of its deviations
    found = arviz_io.rhat(np.random.default_rng(2).normal(size=(4, 300, 45)))
    assert found.shape == (45,)
    assert np.abs(found**2 - 1).max() < 5 * math.sqrt(2 / 7) / 150
    assert np.median(found) < 1.01


def test_rhat_of_separated_chains_has_its_limit() -> None:
    # Two chains that do not overlap have half-normal scores: means +-sqrt(2/pi), variance 1 - 2/pi
    rng = np.random.default_rng(3)
    draws = rng.permuted(np.arange(40_000.0).reshape(2, 20_000), axis=1)
    expected = math.sqrt(1 + (4 / 3) * (2 / math.pi) / (1 - 2 / math.pi))
    np.testing.assert_allclose(arviz_io.rhat(draws), expected, rtol=1e-3)
    np.testing.assert_allclose(arviz_io.rhat(np.exp(draws / 4e4)), arviz_io.rhat(draws), rtol=1e-12)


def test_rhat_where_it_does_not_exist() -> None:
    rng = np.random.default_rng(4)
    for shape in ((1, 1), (1, 300), (4, 3)):
        assert math.isnan(arviz_io.rhat(rng.normal(size=shape)))
    draws = rng.normal(size=(4, 20, 4))
    draws[0, 0, 0] = np.nan
    draws[0, 0, 1] = np.inf
    draws[..., 2] = 1.0
    draws[..., 3] = np.arange(4.0)[:, None]
    found = arviz_io.rhat(draws)
    assert np.isnan(found).tolist() == [True, False, True, False]
    np.testing.assert_allclose(found[1], rank_rhat(draws[..., 1]), rtol=1e-12)
    assert found[3] > 1e6
    assert arviz_io.rhat(np.ones((4, 20, 0))).shape == (0,)


@pytest.mark.parametrize("phi", [-0.3, 0.0, 0.5, 0.9])
def test_ess_of_an_autoregression(phi: float) -> None:
    draws = autoregressive(phi, (4, 2000, 50))
    expected = (1 - phi) / (1 + phi)
    for kind in ("mean", "bulk"):
        found = arviz_io.ess(draws, kind) / 8000
        assert found.shape == (50,)
        assert abs(found.mean() - expected) < 5 * found.std(ddof=1) / math.sqrt(50)


def test_bulk_ess_is_that_of_the_ranks() -> None:
    draws = autoregressive(0.5, (4, 250, 3))
    np.testing.assert_allclose(arviz_io.ess(np.exp(draws)), arviz_io.ess(draws), rtol=1e-12)
    np.testing.assert_array_equal(arviz_io.ess(draws, "bulk"), arviz_io.ess(draws))
    z = norm.ppf((rankdata(draws.reshape(1000, 3), axis=0) - 3 / 8) / (1000 + 1 / 4))
    scores = z.reshape(draws.shape)
    np.testing.assert_allclose(arviz_io.ess(scores, "mean"), arviz_io.ess(draws), rtol=1e-10)


def test_tail_ess_is_the_worse_of_both_tails() -> None:
    draws = autoregressive(0.7, (4, 250, 3))
    ranks = rankdata(draws.reshape(1000, 3), axis=0).reshape(draws.shape)
    # of 1000 draws 50 are at most the 5 % quantile, 950 at most that of 95 %
    tails = [arviz_io.ess(ranks <= count, "mean") for count in (50, 950)]
    assert (tails[0] != tails[1]).all()
    np.testing.assert_allclose(arviz_io.ess(draws, "tail"), np.minimum(*tails), rtol=1e-12)


def test_ess_where_it_does_not_exist() -> None:
    for kind in ("bulk", "tail", "mean"):
        assert math.isnan(arviz_io.ess(np.ones((1, 1)), kind))
        assert arviz_io.ess(np.ones((2, 10)), kind) == 20
        assert math.isnan(arviz_io.ess(np.full((2, 10), np.nan), kind))
    assert math.isnan(arviz_io.ess(np.array([[1.0, np.inf, 2.0, 3.0]]), "mean"))


def test_mcse_is_the_sd_over_the_root_of_the_ess() -> None:
    draws = autoregressive(0.5, (4, 250, 3))
    expected = draws.std((0, 1), ddof=1) / np.sqrt(arviz_io.ess(draws, "mean"))
    np.testing.assert_allclose(arviz_io.mcse_mean(draws), expected, rtol=1e-12)
    assert math.isnan(arviz_io.mcse_mean(np.ones((1, 1))))


def test_convergence_of_many_quantities_is_fast() -> None:
    draws = np.random.default_rng(5).normal(size=(4, 300, 45))
    arviz_io.rhat(draws[..., :1])  # imports
    start = time.process_time()  # other work on the machine does not count
    arviz_io.rhat(draws)
    arviz_io.ess(draws)
    assert time.process_time() - start < 0.5


def test_bad_draws_are_refused() -> None:
    for function in (arviz_io.rhat, arviz_io.ess, arviz_io.mcse_mean):
        with pytest.raises(ShapeError, match=r"must be \[C, S, ...\], got shape \(9,\)"):
            function(np.ones(9))
    with pytest.raises(OptionError, match="kind must be 'bulk', 'tail' or 'mean', got 'sd'"):
        arviz_io.ess(ONE, "sd")  # type: ignore[arg-type]


# --- importance weights --------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0.2, 0.5, 1.0, 1.5])
def test_khat_of_a_pareto_tail(k: float) -> None:
    # Excesses of a Pareto variable are generalised Pareto of the same k. The fit adds ten
    # observations of 0.5 to its 3 sqrt(4000) = 189; a fitted k has variance (1 + k)^2 / 189.
    rng = np.random.default_rng(6)
    found = [arviz_io.psis(k * rng.exponential(size=4000))[1] for _ in range(50)]
    expected = (189 * k + 10 * 0.5) / (189 + 10)
    assert abs(np.mean(found) - expected) < 5 * (1 + k) / math.sqrt(189 * 50)


def test_weights_below_the_tail_are_only_normalised() -> None:
    log_ratios = np.random.default_rng(7).normal(size=1000) + 300
    log_weights, khat = arviz_io.psis(log_ratios)
    assert 0 < khat < 0.7
    np.testing.assert_allclose(logsumexp(log_weights), 0, atol=1e-12)
    order = np.argsort(log_ratios)
    body, tail = order[:-94], order[-94:]  # 3 sqrt(1000) = 94
    shift = log_weights - log_ratios
    np.testing.assert_allclose(shift[body], shift[body[0]], rtol=1e-10)
    assert np.ptp(shift[tail]) > 1e-3
    assert (np.diff(log_weights[order]) >= 0).all()


def test_the_tail_is_longer_for_correlated_draws() -> None:
    log_ratios = np.random.default_rng(7).normal(size=4000)
    shift = arviz_io.psis(log_ratios, relative_efficiency=0.25)[0] - log_ratios
    order = np.argsort(log_ratios)
    unchanged = np.isclose(shift[order], shift[order[0]], rtol=1e-12, atol=1e-12)
    assert 4000 - unchanged.sum() == pytest.approx(379, abs=1)  # 3 sqrt(4000 / 0.25) = 379


def test_smoothed_weights_estimate_a_mean() -> None:
    # q = N(0, 1), p = N(0.5, 1): log p/q = 0.5 z - 0.125, and the mean under p is 0.5
    rng = np.random.default_rng(8)
    means = []
    for _ in range(40):
        z = rng.normal(size=1000)
        log_weights, khat = arviz_io.psis(0.5 * z)
        assert khat < 0.7
        means.append(np.exp(log_weights) @ z)
    assert abs(np.mean(means) - 0.5) < 5 * np.std(means, ddof=1) / math.sqrt(40)


@pytest.mark.parametrize("num_draws", [1, 2, 20, 25, 29])
def test_few_draws_are_not_smoothed(num_draws: int) -> None:
    log_ratios = np.random.default_rng(9).normal(size=num_draws)
    log_weights, khat = arviz_io.psis(log_ratios)
    assert khat == math.inf
    np.testing.assert_allclose(log_weights, log_ratios - logsumexp(log_ratios), rtol=1e-12)


def test_thirty_draws_are_smoothed() -> None:
    assert math.isfinite(arviz_io.psis(np.random.default_rng(9).normal(size=30))[1])


def test_equal_ratios_need_no_correction() -> None:
    noise = 1e-9 * np.random.default_rng(10).normal(size=200)
    for log_ratios in (np.full(200, -37.5), noise):
        log_weights, khat = arviz_io.psis(log_ratios)
        assert khat == 0.0
        np.testing.assert_allclose(log_weights, -math.log(200), atol=1e-7)


@pytest.mark.parametrize("spread", [1e3, 1e4, 1e6])
def test_ratios_that_underflow_are_bad(spread: float) -> None:
    # ArviZ 0.23 gives such ratios, of an approximation far from the posterior, a k-hat of 0.05
    log_ratios = spread * np.random.default_rng(11).normal(size=1000)
    log_weights, khat = arviz_io.psis(log_ratios)
    assert khat == math.inf
    expected = log_ratios - logsumexp(log_ratios)  # 0 for the largest
    np.testing.assert_allclose(log_weights, expected, rtol=1e-12, atol=1e-300)


def test_a_tail_of_equal_ratios_is_bad() -> None:
    log_ratios = np.minimum(np.random.default_rng(12).normal(size=1000), 0.0)
    log_weights, khat = arviz_io.psis(log_ratios)
    assert khat == math.inf
    np.testing.assert_allclose(log_weights, log_ratios - logsumexp(log_ratios), rtol=1e-12)


def test_a_ratio_of_zero_has_weight_zero() -> None:
    log_ratios = np.random.default_rng(13).normal(size=500)
    log_ratios[7] = -np.inf
    log_weights, khat = arviz_io.psis(log_ratios)
    assert log_weights[7] == -np.inf
    assert math.isfinite(khat)
    np.testing.assert_allclose(logsumexp(log_weights), 0, atol=1e-12)


def test_bad_ratios_are_refused() -> None:
    for shape in ((0,), (2, 3)):
        with pytest.raises(ShapeError, match=r"log_ratios must be \[S\] with S >= 1, got shape"):
            arviz_io.psis(np.ones(shape))
    for bad in (np.nan, np.inf):
        with pytest.raises(DataError, match="1 of 100 are NaN or"):
            arviz_io.psis(np.r_[bad, np.zeros(99)])
    with pytest.raises(DataError, match="not all -inf"):
        arviz_io.psis(np.full(100, -np.inf))


# --- leave-one-out -------------------------------------------------------------------------------


class Conjugate:
    """y_n ~ N(theta, 1), theta ~ N(0, 2): the posterior and all leave-one-out scores are exact."""

    prior_sd = 2.0

    def __init__(self, num_data: int = 20) -> None:
        self.y = np.random.default_rng(14).normal(0.7, 1.0, num_data)
        self.loc, variance = self.posterior(self.y.sum(), num_data)
        self.scale = math.sqrt(variance)
        others, other_variance = self.posterior(self.y.sum() - self.y, num_data - 1)
        self.pointwise = norm.logpdf(self.y, others, math.sqrt(other_variance + 1))
        self.elpd = self.pointwise.sum()
        self.se = math.sqrt(num_data * self.pointwise.var(ddof=1))
        lppd = norm.logpdf(self.y, self.loc, math.sqrt(variance + 1)).sum()
        self.p = lppd - self.elpd

    def posterior(self, total: Any, count: int) -> tuple[Any, float]:
        variance = 1 / (1 / self.prior_sd**2 + count)
        return variance * total, variance

    def tree(self, rng: np.random.Generator, shift: float = 0.0, widen: float = 1.0) -> DataTree:
        """Draws of N(loc + shift scale, widen scale), with their densities if that is not exact."""
        loc, scale = self.loc + shift * self.scale, widen * self.scale
        theta = rng.normal(loc, scale, size=(2, 1000))
        log_likelihood = norm.logpdf(self.y, theta[..., None])  # [C, S, N]
        groups: dict[str, dict[str, Any]] = {
            "posterior": {"theta": theta},
            "log_likelihood": {"y": log_likelihood},
        }
        if shift or widen != 1.0:
            log_p = log_likelihood.sum(-1) + norm.logpdf(theta, 0, self.prior_sd) + 7.0
            log_q = norm.logpdf(theta, loc, scale) - 3.0  # each up to a constant
            groups["sample_stats"] = {"log_p": log_p, "log_q": log_q}
        return arviz_io.datatree(groups)


def check_scores(results: list[arviz_io.LooResult], exact: Conjugate) -> None:
    """Every number of the results is within five standard errors of its closed form."""
    for name in ("elpd", "p", "se"):
        values = np.array([getattr(result, name) for result in results])
        error = values.std(ddof=1) / math.sqrt(len(values))
        assert abs(values.mean() - getattr(exact, name)) < 5 * error, name
    for result in results:
        assert result.num_bad == 0
        assert result.khat.shape == result.pointwise.shape == exact.y.shape
        np.testing.assert_allclose(result.pointwise.sum(), result.elpd, rtol=1e-12)


def test_loo_of_a_conjugate_model() -> None:
    exact, rng = Conjugate(), np.random.default_rng(15)
    check_scores([arviz_io.loo(exact.tree(rng)) for _ in range(20)], exact)


def test_approximate_loo_of_a_conjugate_model() -> None:
    exact, rng = Conjugate(), np.random.default_rng(16)
    trees = [exact.tree(rng, shift=0.3, widen=1.2) for _ in range(20)]
    check_scores([arviz_io.loo_approximate(tree) for tree in trees], exact)


def test_arvizs_approximate_loo_has_the_right_sign() -> None:
    # arviz-stats before #213 took the ratio the other way round
    exact = Conjugate()
    tree = exact.tree(np.random.default_rng(17), shift=0.3, widen=1.2)
    stats = tree["sample_stats"]
    theirs = arviz_io.arviz().loo_approximate_posterior(
        tree, stats["log_p"], stats["log_q"], pointwise=True
    )
    result = arviz_io.loo_approximate(tree)
    np.testing.assert_allclose(theirs.elpd_i.values, result.pointwise, rtol=1e-10)
    np.testing.assert_allclose(theirs.pareto_k.values, result.khat, rtol=1e-6)
    with pytest.warns(UserWarning, match="Estimated shape parameter"):
        swapped = arviz_io.arviz().loo_approximate_posterior(tree, stats["log_q"], stats["log_p"])
    assert abs(swapped.elpd - exact.elpd) > 10 * abs(theirs.elpd - exact.elpd)


def test_the_approximate_loo_of_three_draws_by_hand() -> None:
    # few draws are not smoothed: weights (p/q) / p(y|z) = 1, 4/3, 3, so sum w l / sum w by hand
    log_likelihood = np.log([[[1.0], [0.75], [0.5]]])
    ratio = np.log([[1.0, 1.0, 1.5]])
    tree = arviz_io.datatree(
        {
            "log_likelihood": {"y": log_likelihood},
            "sample_stats": {"log_p": ratio, "log_q": np.zeros((1, 3))},
        }
    )
    with pytest.raises(DataError, match=r"is inf, not below -1\.10 \(for 3 draws\)"):
        arviz_io.loo_approximate(tree)
    weights = np.array([1.0, 4 / 3, 3.0])
    found, _ = arviz_io.psis(ratio[0] - log_likelihood[0, :, 0])
    np.testing.assert_allclose(np.exp(found), weights / weights.sum(), rtol=1e-12)


def test_an_approximation_far_from_the_posterior_is_refused() -> None:
    tree = Conjugate().tree(np.random.default_rng(18), widen=0.3)
    with pytest.raises(DataError, match=r"is \d\.\d\d, not below 0\.70 \(for 2,000 draws\): its"):
        arviz_io.loo_approximate(tree)


def test_loo_refuses_the_draws_of_an_approximation() -> None:
    tree = Conjugate().tree(np.random.default_rng(19), widen=1.2)
    with pytest.raises(DataError, match=r"has log_q.*use loo_approximate\(tree\)"):
        arviz_io.loo(tree)


def test_loo_counts_bad_data() -> None:
    rng = np.random.default_rng(20)
    values = np.zeros((2, 500, 3))
    values[..., 1] = -3 * rng.exponential(size=(2, 500))  # ratios with a tail of k = 3
    values[..., 2] = 0.1 * rng.normal(size=(2, 500))
    result = arviz_io.loo(arviz_io.datatree({"log_likelihood": {"y": values}}))
    assert result.num_bad == 1
    assert result.khat[0] == 0.0
    assert result.pointwise[0] == pytest.approx(0, abs=1e-12)
    assert result.khat[1] > 1.5


def test_the_limit_of_khat_falls_with_the_draws() -> None:
    # 1 - 1 / log10(40) = 0.376: ratios with a tail of k = 0.45 are good for many draws only
    rng = np.random.default_rng(21)
    few, many = (
        arviz_io.loo(
            arviz_io.datatree({"log_likelihood": {"y": -0.45 * rng.exponential(size=shape)}})
        )
        for shape in ((1, 40, 200), (1, 20_000, 20))
    )
    assert few.num_bad == (few.khat > 1 - 1 / math.log10(40)).sum()
    assert few.num_bad > (few.khat > 0.7).sum()
    assert many.num_bad == 0


def test_loo_of_a_point_estimate_is_all_bad() -> None:
    values = np.array([[[-1.0, -2.0, -4.0]]])
    result = arviz_io.loo(arviz_io.datatree({"log_likelihood": {"y": values}}))
    assert (result.khat == math.inf).all()
    assert result.num_bad == 3
    np.testing.assert_allclose(result.elpd, -7.0, rtol=1e-12)
    np.testing.assert_allclose(result.p, 0.0, atol=1e-12)
    np.testing.assert_allclose(result.se, math.sqrt(7), rtol=1e-12)  # 3 (16/9 + 1/9 + 25/9) / 2


def test_loo_of_short_chains_takes_them_as_independent() -> None:
    values = np.random.default_rng(24).normal(size=(100, 3, 2))  # too short for an ESS
    result = arviz_io.loo(arviz_io.datatree({"log_likelihood": {"y": values}}))
    expected = [arviz_io.psis(-values[..., n].reshape(-1))[1] for n in range(2)]
    np.testing.assert_allclose(result.khat, expected, rtol=1e-12)


def test_loo_of_one_datum_has_no_standard_error() -> None:
    values = np.random.default_rng(22).normal(size=(2, 100, 1))
    assert math.isnan(arviz_io.loo(arviz_io.datatree({"log_likelihood": {"y": values}})).se)


def test_loo_takes_y_or_the_only_variable() -> None:
    values = 0.1 * np.random.default_rng(23).normal(size=(2, 100, 4, 2))
    alone = arviz_io.loo(arviz_io.datatree({"log_likelihood": {"obs": values}}))
    both = arviz_io.loo(arviz_io.datatree({"log_likelihood": {"extra": values * 2, "y": values}}))
    assert alone.khat.shape == (8,)
    assert alone.elpd == both.elpd


def test_loo_knows_chain_and_draw_by_name_in_whatever_order() -> None:
    values = 0.1 * np.random.default_rng(25).normal(size=(2, 50, 3))
    tree = arviz_io.datatree({"log_likelihood": {"y": values}})
    expected = arviz_io.loo(tree)
    tree["log_likelihood"] = tree["log_likelihood"].to_dataset().transpose("y_dim_0", "draw", ...)
    assert tree["log_likelihood/y"].shape == (3, 50, 2)
    result = arviz_io.loo(tree)
    np.testing.assert_array_equal(result.pointwise, expected.pointwise)
    np.testing.assert_array_equal(result.khat, expected.khat)


def test_bad_log_likelihoods_are_refused() -> None:
    values = np.zeros((2, 50, 3))
    for groups, found in (
        ({"posterior": {"z": values}}, "none"),
        ({"log_likelihood": {"a": values, "b": values}}, r"\['a', 'b'\]"),
    ):
        with pytest.raises(SiteError, match=f"must have 'y' or one variable only, it has {found}"):
            arviz_io.loo(arviz_io.datatree(groups))
    values[0, 0, :2] = -np.inf, np.nan
    with pytest.raises(DataError, match="log_likelihood must be finite, 2 of 300 values are not"):
        arviz_io.loo(arviz_io.datatree({"log_likelihood": {"y": values}}))


def test_bad_log_densities_are_refused() -> None:
    values = np.zeros((2, 50, 3))
    tree = arviz_io.datatree(
        {"log_likelihood": {"y": values}, "sample_stats": {"log_p": values[..., 0]}}
    )
    with pytest.raises(SiteError, match=r"must have log_p and log_q, it has \['log_p'\]"):
        arviz_io.loo_approximate(tree)
    minus_infinity = np.full((2, 50), -np.inf)
    tree = arviz_io.datatree(
        {
            "log_likelihood": {"y": values},
            "sample_stats": {"log_p": minus_infinity, "log_q": minus_infinity},
        }
    )
    with pytest.raises(DataError, match="100 of 100 are NaN or"):
        arviz_io.loo_approximate(tree)
    tree = arviz_io.datatree(
        {
            "log_likelihood": {"y": values},
            "sample_stats": {"log_p": np.zeros((1, 50)), "log_q": np.zeros((1, 50))},
        }
    )
    with pytest.raises(ShapeError, match=r"log_q are \(1, 50\), .* are \(2, 50\)"):
        arviz_io.loo_approximate(tree)


# --- what the module needs -----------------------------------------------------------------------


@pytest.mark.slow("a process")
def test_it_needs_neither_torch_nor_pyro() -> None:
    code = (
        "import sys; import numpy as n; from pyro_bnn import arviz_io as a; "
        "assert 'arviz' not in sys.modules; "
        "t = a.datatree({'posterior': {'z': n.zeros((2, 40, 1))}, "
        "'log_likelihood': {'y': n.zeros((2, 40, 3))}}); a.loo(t); a.summary(t); "
        "print(sorted({'torch', 'pyro'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr


def test_netcdf_of_equal_draws_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All draws of a point are one, and pack a thousandfold."""
    monkeypatch.setattr(netcdf, "FLOOR", 0)
    values = np.full((1, 1_000, 2_000), 0.25)
    tree = arviz_io.datatree({"posterior": {"z": values}})
    arviz_io.save_netcdf(tree, tmp_path / "point.nc")
    assert (tmp_path / "point.nc").stat().st_size < values.nbytes / 100
    assert arviz_io.load_netcdf(tmp_path / "point.nc").equals(tree)
