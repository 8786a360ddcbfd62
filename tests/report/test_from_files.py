"""Comparisons from saved files alone: the numbers of the fits, and what is refused."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from pyro_bnn import arviz_io, guides
from pyro_bnn.data import Split, from_arrays
from pyro_bnn.errors import DataError, FileFormatError, OptionError, SiteError, UnknownNameError
from pyro_bnn.infer import NUTS, SVI
from pyro_bnn.likelihoods import Categorical
from pyro_bnn.models import MLP, Rank1MLP
from pyro_bnn.posterior import Posterior
from pyro_bnn.priors import Normal
from pyro_bnn.report import Comparison, compare, compare_files
from pyro_bnn.report.output.names import file_names
from pyro_bnn.report.output.netcdf import Compared, tree_of
from pyro_bnn.report.plots.figures import PLOTS
from pyro_bnn.report.saved.compare_files import named_files, read_all
from pyro_bnn.report.saved.file_posterior import FilePosterior, read
from tests.conftest import trees_in_memory

pytestmark = pytest.mark.slow("whole comparisons, saved and read")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xarray import DataTree

to_files = arviz_io.save_netcdf
SAMPLER = NUTS(num_chains=2, warmup_steps=20, num_samples=60, max_tree_depth=2)


def numbers_split(seed: int = 0, num_inputs: int = 2) -> Split:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(60, num_inputs))
    y = 50.0 + 10.0 * np.sin(2 * x[:, 0]) + 3.0 * rng.normal(size=60)
    return from_arrays(pd.DataFrame(x).add_prefix("input "), pd.Series(y, name="mass (kg)"))


def classes_split() -> Split:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 2))
    return from_arrays(x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.5), test_fraction=0.3)


def fits(split: Split, model: MLP) -> dict[str, Posterior]:
    def svi(guide: type[guides.Guide]) -> Posterior:
        return SVI(guide, num_steps=50).run(model, split.train, progress=False)

    point = svi(guides.AutoDelta)
    point.gpu = "NVIDIA H100"
    return {
        "MAP": point,
        "mean-field": svi(guides.AutoNormal),
        "NUTS": SAMPLER.run(model, split.train, progress=False),
    }


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[dict[Path, DataTree]]:
    """Trees by path; bytes are written by ``to_files``, of every kind of fit."""
    with trees_in_memory() as found, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOKY_MAX_CPU_COUNT", "1")  # chains one after another: no processes to start
        yield found


@pytest.fixture(scope="module")
def regression() -> Comparison:
    split = numbers_split()
    # of the 120 stored draws of NUTS 100 are scored
    return compare(
        fits(split, MLP(2, hidden=(3,))), split, reference="NUTS", num_samples=100, seed=3
    )


@pytest.fixture(scope="module")
def classes() -> Comparison:
    split = classes_split()
    model = MLP(2, hidden=(3,), likelihood=Categorical(3))
    return compare(fits(split, model), split, reference="mean-field", num_samples=100)


@pytest.fixture(scope="module")
def folder_of_classes(
    classes: Comparison, trees: dict[Path, DataTree], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Bytes of the sampler's file, which has the most groups; those of ``folder`` are of all."""
    folder = save_files(classes, tmp_path_factory.mktemp("classes"))
    to_files(trees.pop(folder / "nuts.nc"), folder / "nuts.nc")
    return folder


@pytest.fixture(scope="module")
def folder(regression: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_files(regression, tmp_path_factory.mktemp("regression"), to_files)


def save_files(
    comparison: Comparison, folder: Path, save: Callable[[DataTree, Path], None] | None = None
) -> Path:
    """The NetCDF files of ``Comparison.save`` alone: a page takes longer than all else here."""
    save = save or arviz_io.save_netcdf
    for name, stem in file_names(comparison.posteriors).items():
        tree = tree_of(name, comparison.posteriors[name], Compared.by(comparison))
        save(tree, folder / f"{stem}.nc")
    return folder


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, FilePosterior]:
    return read_all(sorted(folder.glob("*.nc")))


def same_tables(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert list(found.columns) == list(expected.columns)
    assert list(found.index) == list(expected.index)
    for name in expected.columns:
        if expected[name].dtype.kind in "fi":
            assert_allclose(found[name], expected[name], rtol=1e-6, atol=0, err_msg=name)
        else:
            assert_array_equal(found[name], expected[name], err_msg=name)


# --- the numbers of the comparison that wrote the files ------------------------------------------


@pytest.mark.slow("fits and their comparison")
@pytest.mark.parametrize(
    ("which", "where"), [("regression", "folder"), ("classes", "folder_of_classes")]
)
def test_files_give_the_table_and_the_verdicts_of_their_comparison(
    which: str, where: str, request: pytest.FixtureRequest
) -> None:
    comparison: Comparison = request.getfixturevalue(which)
    files: Path = request.getfixturevalue(where)
    again = compare_files(sorted(files.glob("*.nc"), reverse=True))
    assert again.reference == comparison.reference
    assert (again.num_draws, again.seed) == (100, comparison.seed)
    same_tables(again.table, comparison.table)
    assert np.isfinite(again.table.loc["NUTS", ["rhat", "ess", "loo"]].astype(float)).all()
    assert np.isfinite(again.table.loc["mean-field", ["elbo", "khat"]].astype(float)).all()
    assert again.verdicts == comparison.verdicts
    assert list(again.figures) == list(comparison.figures)


def test_models_have_their_numbers_in_whatever_order_the_files_are_given(
    regression: Comparison, tmp_path: Path
) -> None:
    split = regression.split
    own = regression.posteriors["mean-field"]
    other = SVI(guides.AutoNormal, num_steps=2).run(
        MLP(2, hidden=(3,), prior=Normal(0.7)), split.train, progress=False
    )
    comparison = compare({"z": own, "a": other, "m": own}, split, num_samples=50)
    assert comparison.table["model_number"].to_dict() == {"z": 1, "a": 2, "m": 1}
    save_files(comparison, tmp_path)
    in_order, by_name = (
        compare_files(files)
        for files in (
            [tmp_path / f"{name}.nc" for name in "amz"],
            {name.upper(): tmp_path / f"{name}.nc" for name in "maz"},
        )
    )
    same_tables(in_order.table, comparison.table)
    assert in_order.verdicts == comparison.verdicts
    assert list(by_name.posteriors) == ["Z", "A", "M"]
    # of two comparisons, or one of them twice: as given
    seeds = compare({"z": own, "a": other}, split, num_samples=50, seed=1)
    (tmp_path / "seed").mkdir()
    save_files(seeds, tmp_path / "seed")
    mixed = [tmp_path / "a.nc", tmp_path / "seed" / "z.nc"]
    assert list(compare_files(mixed).posteriors) == ["a", "z"]
    twice = {"second": tmp_path / "a.nc", "first": tmp_path / "a.nc", "third": tmp_path / "z.nc"}
    assert list(compare_files(twice).posteriors) == ["second", "first", "third"]


def test_a_report_can_be_saved_and_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(PLOTS) - {"ranks", "reference"}:  # of the page's many figures
        monkeypatch.delitem(PLOTS, name)
    monkeypatch.setattr(arviz_io, "save_netcdf", to_files)
    once = compare_files(sorted(folder.glob("*.nc")))
    once.save(tmp_path, command="pyro-bnn report")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "pyro-bnn report" in page
    assert "figure-ranks" in page
    same_tables(compare_files(sorted(tmp_path.glob("*.nc"))).table, once.table)


def test_trees_that_users_write_themselves(regression: Comparison, tmp_path: Path) -> None:
    split = regression.split
    for name in ("mean-field", "MAP"):
        tree = regression.posteriors[name].to_arviz(split.train, split.test, 60, seed=4)
        tree.to_netcdf(tmp_path / f"{name}.nc")
    again = compare_files([tmp_path / "mean-field.nc", tmp_path / "MAP.nc"])
    assert set(again.posteriors) == {"AutoNormal", "AutoDelta"}
    assert again.split.name == "rows of mean-field.nc"
    assert again.reference is None
    expected = compare(
        {
            "AutoNormal": regression.posteriors["mean-field"],
            "AutoDelta": regression.posteriors["MAP"],
        },
        split,
        num_samples=60,
        seed=4,
    )
    same_tables(again.table, expected.table)


def test_files_keep_each_target_by_its_name_and_the_functions_of_an_ensemble(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 2))
    y = pd.DataFrame({"mass": 3 * x[:, 0] + rng.normal(size=60), "length": 0.1 * x[:, 1]})
    split, model = from_arrays(x, y), Rank1MLP(2, 2, hidden=(3,))
    made: dict[str, Any] = {
        "ensemble": functools.partial(guides.BatchEnsemble, num_components=3),
        "mixture": guides.AutoRank1Mixture,
    }
    comparison = compare(
        {name: SVI(guide, num_steps=20).run(model, split.train, progress=False)
         for name, guide in made.items()},
        split,
        num_samples=209,
    )  # fmt: skip
    assert comparison.num_draws == 207  # as many of each of three
    assert comparison.table["draws"].to_dict() == {"ensemble": 3, "mixture": 207}
    assert comparison.evaluations["ensemble"].held_out.log_score_error == 0
    assert comparison.evaluations["mixture"].held_out.log_score_error > 0
    again = compare_files(sorted(save_files(comparison, tmp_path).glob("*.nc")))
    same_tables(again.table, comparison.table)
    assert list(dict.fromkeys(again.targets.index.get_level_values(0))) == ["mass", "length"]
    assert_allclose(again.targets, comparison.targets.loc[again.targets.index], rtol=1e-6)
    assert np.isfinite(again.targets.to_numpy()).all()
    text = again.summary()
    assert "Target mass" in text
    assert "Target length" in text


def test_fewer_draws_and_another_seed(regression: Comparison, folder: Path) -> None:
    again = compare_files([folder / "nuts.nc"], num_samples=40, seed=8)
    expected = compare(
        {"NUTS": regression.posteriors["NUTS"]}, regression.split, num_samples=40, seed=8
    )
    assert again.num_draws == 40
    for name in ("log_score", "rmse", "gaussian_log_score", "rhat", "loo"):  # not of draws of y
        assert_allclose(again.table[name], expected.table[name], rtol=1e-6)


def test_precisions_of_one_split_are_compared(folder: Path, tmp_path: Path) -> None:
    split = numbers_split().to(dtype=torch.float64)
    model = MLP(2, hidden=(3,)).double()
    posterior = SVI(guides.AutoNormal, num_steps=5).run(model, split.train, progress=False)
    tree = posterior.to_arviz(split.train, split.test, 50)
    arviz_io.save_netcdf(tree, tmp_path / "double.nc")
    again = compare_files({"single": folder / "mean-field.nc", "double": tmp_path / "double.nc"})
    assert again.shares_model
    score = again.table.loc["double", "log_score"]
    own = compare({"double": posterior}, split, num_samples=50).table.loc["double", "log_score"]
    assert_allclose(score, own, rtol=1e-6)


# --- one posterior -------------------------------------------------------------------------------


def test_members_are_those_of_the_posterior(
    regression: Comparison, files: dict[str, FilePosterior]
) -> None:
    for name, own in regression.posteriors.items():
        found = files[name]
        for member in (
            "method", "engine", "seed", "wall_time", "num_parameters", "elbo_kind", "options",
            "num_chains", "has_log_prob", "gpu",
        ):  # fmt: skip
            assert getattr(found, member) == getattr(own, member), member
        assert_array_equal(found.losses, own.losses)
        assert set(found.sample_stats) == set(own.sample_stats)
        for stat, values in own.sample_stats.items():
            assert_array_equal(found.sample_stats[stat], values)
    assert files["NUTS"].num_stored_draws == 120
    assert files["mean-field"].num_stored_draws == 100
    assert files["MAP"].objective == regression.posteriors["MAP"].objective
    assert repr(files["NUTS"]).endswith("nuts.nc', NUTS, 120 draws)")


def test_the_split_comes_back_with_names_and_units(
    regression: Comparison, files: dict[str, FilePosterior]
) -> None:
    own, found = regression.split, files["NUTS"].split
    assert (found.name, found.index, found.task) == (own.name, own.index, own.task)
    for part in ("train", "test"):
        mine, theirs = getattr(found, part), getattr(own, part)
        for a, b in zip(mine.raw(), theirs.raw(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert mine.input_names == theirs.input_names == ("input 0", "input 1")
        assert mine.target_name == "mass (kg)"


def test_predictions_are_those_of_the_posterior(
    regression: Comparison, files: dict[str, FilePosterior]
) -> None:
    test = regression.split.test
    for name, own in regression.posteriors.items():
        expected, found = (p.predict(test.x, 100, 3) for p in (own, files[name]))
        for member in ("mean", "sd", "draws", "function_draws"):
            torch.testing.assert_close(getattr(found, member), getattr(expected, member))
        torch.testing.assert_close(found.log_prob(test.y), expected.log_prob(test.y))
        torch.testing.assert_close(found.log_prob(test.y[:, None]), expected.log_prob(test.y))
    f = files["NUTS"].function_draws(test.x[[4, 1]], 100, 3, group_by_chain=True)
    expected_f = regression.posteriors["NUTS"].function_draws(
        test.x[[4, 1]], 100, 3, group_by_chain=True
    )
    assert f.shape == (2, 50, 2, 1)
    torch.testing.assert_close(f, expected_f)
    assert files["NUTS"].function_draws(test.x).shape == (120, 6, 1)  # all that are stored


def test_class_probabilities_are_those_of_the_posterior(
    classes: Comparison, folder_of_classes: Path
) -> None:
    found = read(folder_of_classes / "nuts.nc").predict(classes.split.test.x, 100, 0)
    expected = classes.posteriors["NUTS"].predict(classes.split.test.x, 100, 0)
    torch.testing.assert_close(found.probs, expected.probs)
    with pytest.raises(OptionError, match="for classes read probs"):
        _ = found.mean


def test_every_y_has_its_own_noise_in_files_of_chains(
    regression: Comparison, files: dict[str, FilePosterior]
) -> None:
    prediction = files["NUTS"].predict(regression.split.test.x, 120)
    assert prediction.means is not None
    assert prediction.variances is not None
    noise = ((prediction.draws - prediction.means) / prediction.variances.sqrt()).flatten()
    assert len(torch.unique(noise.round(decimals=4))) > 0.98 * len(noise)
    assert abs(noise.mean()) < 5 / len(noise) ** 0.5
    assert abs(noise.square().mean() - 1) < 5 * (2 / len(noise)) ** 0.5


def test_the_tree_of_fewer_draws(files: dict[str, FilePosterior], regression: Comparison) -> None:
    posterior, split = files["NUTS"], files["NUTS"].split
    tree = posterior.to_arviz(split.train, num_samples=100, seed=3)
    expected = regression.posteriors["NUTS"].to_arviz(split.train, num_samples=100, seed=3)
    for name in ("log_likelihood/y", "posterior/f", "sample_stats/diverging"):
        shape = np.shape(tree[name])
        assert shape[:2] == (2, 50)
    assert_allclose(tree["log_likelihood/y"], expected["log_likelihood/y"], rtol=1e-5)
    assert set(tree.children) == set(expected.children)
    assert tree["prior/f"].shape == (1, 200, 6, 1)  # draws of the prior are others: all of them
    assert "predictions" in posterior.to_arviz(split.train, split.test).children


def test_what_a_file_does_not_hold_is_refused(files: dict[str, FilePosterior]) -> None:
    posterior, sampler = files["mean-field"], files["NUTS"]
    train, test = posterior.split.train, posterior.split.test
    with pytest.raises(OptionError, match="its 6 held-out rows only, and row 1 of x is none"):
        posterior.predict(torch.stack([test.x[0], test.x[0] + 1]))
    with pytest.raises(OptionError, match="held-out rows only, and row 0 of x is none"):
        posterior.function_draws(train.x)
    with pytest.raises(OptionError, match="in standardised units: leave raw=False"):
        posterior.predict(test.x, raw=True)
    with pytest.raises(OptionError, match=r"own held-out y only: give split\.test\.y"):
        posterior.predict(test.x).log_prob(test.y + 1)
    with pytest.raises(OptionError, match=r"6 held-out rows and 54 training rows: give split\.te"):
        posterior.log_likelihood(train.rows([0, 1]))
    with pytest.raises(OptionError, match=r"own 54 training rows only: give split\.train"):
        posterior.elbo(train.rows([0, 1]))
    with pytest.raises(OptionError, match="own 54 training rows only"):
        sampler.to_arviz(test)
    with pytest.raises(OptionError, match="held-out rows only, and row 0 of x is none"):
        sampler.to_arviz(train, train)
    with pytest.raises(SiteError, match=r"nuts\.nc has no density q\(z\) of its draws \(NUTS\)"):
        sampler.densities(train)
    with pytest.raises(SiteError, match=r"nuts\.nc has no ELBO \(NUTS\)"):
        sampler.elbo(train)


# --- rows off the data ---------------------------------------------------------------------------


def test_files_hold_the_function_at_the_probes(
    regression: Comparison, files: dict[str, FilePosterior]
) -> None:
    assert regression.probes is not None
    x = regression.split.test.x.new_tensor(regression.probes.x)
    for name, posterior in files.items():
        own = regression.posteriors[name]
        expected = own.function_draws(x, 100, seed=3, group_by_chain=True)
        found = posterior.function_draws(x, 100, seed=3, group_by_chain=True)
        torch.testing.assert_close(found, expected)
        moved = x.clone()
        moved[0] += 1
        assert posterior.has_probes(x * (1 + 1e-7))
        assert not posterior.has_probes(moved)
    again = compare_files([files[name].path for name in files])
    assert again.probes is not None
    assert dict(again.probes.counts) == dict(regression.probes.counts)
    assert_allclose(again.probes.x, regression.probes.x, atol=1e-6)
    assert np.isfinite(again.table["sd_ratio_off_data"].drop("NUTS")).all()


def test_files_without_probes_are_read_and_it_is_said(folder: Path, tmp_path: Path) -> None:
    """As of versions that had none, and where only some have them."""
    for name in ("mean-field", "nuts"):
        tree = arviz_io.load_netcdf(folder / f"{name}.nc")
        for group in ("probes", "probes_constant_data"):
            del tree[group]
        options = {key: v for key, v in arviz_io.options(tree).items() if key != "probes"}
        tree.attrs["options"] = json.dumps(options)
        arviz_io.save_netcdf(tree, tmp_path / f"{name}.nc")
    old = compare_files([tmp_path / "mean-field.nc", tmp_path / "nuts.nc"])
    mixed = compare_files([folder / "mean-field.nc", tmp_path / "nuts.nc"])
    for comparison in (old, mixed):
        assert comparison.probes is None
        assert comparison.table["sd_ratio"].notna().sum() == 1
        assert comparison.table["sd_ratio_off_data"].isna().all()
        notes = comparison.table.loc["NUTS", "notes"]
        assert "off the data: not all files hold predictions at the same probes" in notes


def test_files_of_damaged_probes_are_refused(
    tmp_path: Path, changed_file: Callable[..., Path]
) -> None:
    def fewer(tree: DataTree, options: dict[str, Any]) -> None:
        tree["probes_constant_data"] = tree["probes_constant_data"].to_dataset().isel(probe=[0])

    def without_inputs(tree: DataTree, options: dict[str, Any]) -> None:
        del tree["probes_constant_data"]

    def counted_wrong(tree: DataTree, options: dict[str, Any]) -> None:
        options["probes"]["between"] = -1

    for change, match in (
        (fewer, r"is damaged: .*probes_constant_data/x has shape \[1, 2\], not"),
        (without_inputs, "is damaged: it lacks probes_constant_data/x"),
        (counted_wrong, "is damaged: .*between is -1"),
    ):
        with pytest.raises(FileFormatError, match=match):
            read(changed_file(tmp_path / "a.nc", change))


# --- models --------------------------------------------------------------------------------------


def test_files_share_a_model_where_its_densities_agree(folder: Path, tmp_path: Path) -> None:
    split = numbers_split()

    def add(name: str, model: MLP) -> None:
        posterior = SVI(guides.AutoNormal, num_steps=2).run(model, split.train, progress=False)
        tree = posterior.to_arviz(split.train, split.test, 50)
        arviz_io.save_netcdf(arviz_io.with_options(tree, {"name": name}), tmp_path / f"{name}.nc")

    add("same", MLP(2, hidden=(3,)))
    add("other prior", MLP(2, hidden=(3,), prior=Normal(0.7)))
    tree = arviz_io.load_netcdf(tmp_path / "same.nc")
    silent = arviz_io.with_options(tree, {"model": None, "name": "silent"})
    arviz_io.save_netcdf(silent, tmp_path / "silent.nc")
    found = compare_files(
        [folder / "nuts.nc", *(tmp_path / f"{n}.nc" for n in ("same", "other prior", "silent"))]
    )
    assert [model.methods for model in found.models] == [
        ["NUTS", "same"],
        ["other prior"],
        ["silent"],
    ]
    assert "a model that silent.nc does not describe: cannot be verified" in found.models[2].label
    models = [posterior.model for posterior in found.posteriors.values()]
    assert models[0] is models[1]
    assert models[0] is not models[2]
    assert any("cannot be verified" in text for text in found.verdicts)


def test_a_fingerprint_tells_apart_what_words_do_not(folder: Path, tmp_path: Path) -> None:
    tree = arviz_io.load_netcdf(folder / "mean-field.nc")
    record = arviz_io.options(tree)["model"]
    record["fingerprint"][0] *= 1.01
    changed = arviz_io.with_options(tree, {"model": record, "name": "changed"})
    arviz_io.save_netcdf(changed, tmp_path / "changed.nc")
    found = compare_files([folder / "mean-field.nc", tmp_path / "changed.nc"])
    assert not found.shares_model


# --- what is refused -----------------------------------------------------------------------------


@pytest.fixture
def changed_file(
    folder: Path, trees: dict[Path, DataTree]
) -> Callable[[Path, Callable[[DataTree, dict[str, Any]], None]], Path]:
    """Makes a file of the comparison with its tree or its options changed."""

    def make(path: Path, change: Callable[[DataTree, dict[str, Any]], None]) -> Path:
        tree = arviz_io.load_netcdf(folder / "mean-field.nc")
        options = arviz_io.options(tree)
        change(tree, options)
        tree.attrs["options"] = json.dumps(options)
        trees[path] = tree
        return path

    return make


@pytest.mark.parametrize("of", ["folder", "folder_of_classes"])
def test_files_of_version_1_have_an_axis_of_one_target(
    of: str, tmp_path: Path, request: pytest.FixtureRequest, trees: dict[Path, DataTree]
) -> None:
    """As the package wrote them until it left that axis out, without densities of the prior."""
    new, old = request.getfixturevalue(of) / "mean-field.nc", tmp_path / "mean-field.nc"
    tree = arviz_io.load_netcdf(new)
    for group in ("observed_data", "test_data", "posterior_predictive", "predictions"):
        data = tree[group].to_dataset()
        of_y = {name: data[name] for name in ("y", "y_mean", "y_variance") if name in data}
        tree[group] = data.assign({k: v.expand_dims("output", -1) for k, v in of_y.items()})
    del tree["log_prior"]
    trees[old] = arviz_io.with_options(tree, {"format_version": 1})
    assert trees[old]["predictions/y"].ndim == 4
    assert trees[old]["test_data/y"].ndim == 2
    one, two = (compare_files([path]) for path in (new, old))
    pd.testing.assert_frame_equal(one.table, two.table)
    x = one.split.test.x[:3]
    (first,), (second,) = (found.posteriors.values() for found in (one, two))
    assert first.predict(x, 50).draws.shape == (50, 3, 1)
    assert_array_equal(first.predict(x, 50).draws, second.predict(x, 50).draws)


def test_files_that_cannot_be_read_are_refused(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "table.nc"
    text.write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(FileFormatError, match="is truncated or not NetCDF"):
        compare_files([text])
    with pytest.raises(FileFormatError, match="there is no file"):
        compare_files([tmp_path / "none.nc"])
    foreign = tmp_path / "foreign.nc"
    groups = {"posterior": {"z": np.zeros((1, 5))}}
    arviz_io.save_netcdf(arviz_io.datatree(groups), foreign)
    with pytest.raises(FileFormatError, match=r"foreign\.nc is an ArviZ file, but not one that"):
        compare_files([foreign])
    arviz_io.save_netcdf(arviz_io.datatree(groups, attrs={"method": "NUTS"}), foreign)
    with pytest.raises(FileFormatError, match="do not say how the posterior came about"):
        compare_files([foreign])


def test_files_that_were_changed_are_refused(
    tmp_path: Path, changed_file: Callable[..., Path]
) -> None:
    path = tmp_path / "a.nc"

    def newer(tree: DataTree, options: dict[str, Any]) -> None:
        options["format_version"] = 99

    with pytest.raises(FileFormatError, match="has format version 99, this package reads 2"):
        read(changed_file(path, newer))

    def without_rows(tree: DataTree, options: dict[str, Any]) -> None:
        for group in [name for name in tree.children if "predictions" in name]:
            del tree[group]
        del tree["test_data"]

    with pytest.raises(DataError, match=r"a\.nc has no held-out rows.*to_arviz\(train, test\)"):
        read(changed_file(path, without_rows))

    def without_moments(tree: DataTree, options: dict[str, Any]) -> None:
        tree["predictions"] = tree["predictions"].to_dataset().drop_vars(["y_mean", "f"])

    with pytest.raises(FileFormatError, match=r"it lacks predictions/f, predictions/y_mean; write"):
        read(changed_file(path, without_moments))

    def without_units(tree: DataTree, options: dict[str, Any]) -> None:
        del options["rows"]["target"]

    with pytest.raises(FileFormatError, match=r"is damaged: KeyError\('target'\)"):
        read(changed_file(path, without_units))

    def with_bad_scale(tree: DataTree, options: dict[str, Any]) -> None:
        options["rows"]["target"]["scale"] = -1.0

    with pytest.raises(FileFormatError, match="is damaged: scale of a Standardiser must be"):
        read(changed_file(path, with_bad_scale))


def test_files_of_other_rows_are_refused_by_name(
    folder: Path, folder_of_classes: Path, tmp_path: Path
) -> None:
    other = numbers_split(seed=5)
    posterior = SVI(guides.AutoNormal, num_steps=2).run(
        MLP(2, hidden=(3,)), other.train, progress=False
    )
    path = tmp_path / "other.nc"
    arviz_io.save_netcdf(posterior.to_arviz(other.train, other.test, 50), path)
    mine = [folder / "nuts.nc", folder / "map.nc"]
    for order in ([path, *mine], [*mine, path]):
        with pytest.raises(DataError, match="the held-out x differ in 6 of 6 rows") as caught:
            compare_files(order)
        assert str(caught.value).startswith(f"{path} (rows of other.nc, split 0) is of other data")
    with pytest.raises(DataError, match="the tasks are regression and classification"):
        compare_files([*mine, folder_of_classes / "mean-field.nc"])


def test_rows_that_differ_in_part_are_refused(
    folder: Path, tmp_path: Path, changed_file: Callable[..., Path]
) -> None:
    path = tmp_path / "a.nc"

    def changes(group: str, name: str) -> Callable[[DataTree, dict[str, Any]], None]:
        def change(tree: DataTree, options: dict[str, Any]) -> None:
            values = tree[group].to_dataset().load()
            values[name][2] += 0.01
            tree[group] = values
            options["name"] = "changed"

        return change

    def units(tree: DataTree, options: dict[str, Any]) -> None:
        options["rows"]["target"]["scale"] *= 1.001
        options["name"] = "changed"

    def no_units(tree: DataTree, options: dict[str, Any]) -> None:
        options["rows"]["inputs"] = None
        options["name"] = "changed"

    def fewer(tree: DataTree, options: dict[str, Any]) -> None:
        for group in ("observed_data", "constant_data", "log_likelihood"):
            tree[group] = tree[group].to_dataset().isel(row=slice(50))
        options["name"] = "changed"

    for change, words in (
        (changes("test_data", "y"), "the held-out y differ in 1 of 6 rows"),
        (changes("observed_data", "y"), "the training y differ in 1 of 54 rows"),
        (changes("constant_data", "x"), "the training x differ in 1 of 54 rows"),
        (units, "the units of the target differ"),
        (no_units, "the units of the inputs differ"),
        (fewer, r"the training x have shapes \[54, 2\] and \[50, 2\]"),
    ):
        changed_file(path, change)
        with pytest.raises(DataError, match=words):
            compare_files([folder / "nuts.nc", folder / "map.nc", path])


def test_names(folder: Path, tmp_path: Path) -> None:
    one = folder / "mean-field.nc"
    two = tmp_path / "mean-field.nc"
    two.write_bytes(one.read_bytes())
    words = f"{one} and {two} are both called 'mean-field': give them names, as in first={one}"
    with pytest.raises(OptionError, match=re.escape(words)):
        compare_files([one, two])
    assert set(compare_files({"a": one, "b": two}).posteriors) == {"a", "b"}
    with pytest.raises(OptionError, match="nothing to compare: give NetCDF files"):
        compare_files([])
    with pytest.raises(OptionError, match=r"files is a list of paths, .* not the one path"):
        compare_files(str(one))


def test_names_on_a_command_line(tmp_path: Path) -> None:
    assert named_files(["a.nc", "b=c.nc"]) == {"a": "a.nc", "b": "c.nc"}
    odd = tmp_path / "x=y.nc"
    odd.touch()
    assert named_files([str(odd)]) == [str(odd)]
    for wrong in ("=a.nc", "a="):
        with pytest.raises(OptionError, match=f"expected FILE or NAME=FILE.*not '{wrong}'"):
            named_files([wrong])
    with pytest.raises(OptionError, match=r"c\.nc and a\.nc are both called 'a': give each"):
        named_files(["a=c.nc", "a.nc"])


def test_the_reference(folder: Path, tmp_path: Path, changed_file: Callable[..., Path]) -> None:
    paths = {"x": folder / "nuts.nc", "y": folder / "mean-field.nc"}
    assert compare_files(paths).reference == "x"  # as it was
    assert compare_files(paths, reference="y").reference == "y"
    assert compare_files(list(paths.values()), reference="nuts").reference == "NUTS"
    assert compare_files([folder / "nuts.nc"]).reference is None
    assert compare_files([folder / "map.nc", folder / "mean-field.nc"]).reference is None
    with pytest.raises(UnknownNameError, match="unknown reference 'z'"):
        compare_files(paths, reference="z")

    def unmarked(tree: DataTree, options: dict[str, Any]) -> None:
        options.pop("is_reference")
        options.pop("nature")  # as an older file
        options["method"], options["name"] = "NUTS", "sampler"

    other = changed_file(tmp_path / "a.nc", unmarked)
    assert compare_files([folder / "map.nc", other]).reference == "sampler"


def test_no_band_from_files_and_a_note_on_it(tmp_path: Path) -> None:
    split = numbers_split(num_inputs=1)
    posterior = SVI(guides.AutoNormal, num_steps=2).run(
        MLP(1, hidden=(3,)), split.train, progress=False
    )
    comparison = compare({"mean-field": posterior}, split, num_samples=40)
    assert "band" in comparison.figures
    again = compare_files([save_files(comparison, tmp_path) / "mean-field.nc"])
    assert list(again.figures) == [name for name in comparison.figures if name != "band"]
    assert again.split.note == (
        "No predictive band over the input: files hold predictions at held-out rows only."
    )
