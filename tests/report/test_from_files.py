"""Comparisons from saved files alone: the numbers of the fits, and what is refused."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn import arviz_io, guides
from pyro_bnn.data import Split, from_arrays
from pyro_bnn.errors import DataError, FileFormatError, OptionError, UnknownNameError
from pyro_bnn.infer import NUTS, SVI
from pyro_bnn.likelihoods import Categorical
from pyro_bnn.models import MLP, Rank1MLP
from pyro_bnn.posterior import Posterior
from pyro_bnn.priors import Normal
from pyro_bnn.report import Comparison, compare, compare_files
from pyro_bnn.report.evaluation.saved import GROUP, read, tree_of
from pyro_bnn.report.plots.figures import PLOTS
from pyro_bnn.report.saved.compare_files import named_files
from tests.conftest import trees_in_memory

pytestmark = pytest.mark.slow("whole comparisons, saved and read")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xarray import DataTree

    from pyro_bnn.posterior.protocol import PosteriorLike

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
    for name, posterior in comparison.posteriors.items():
        tree = tree_of(comparison.saved(name), posterior, comparison.split)
        save(tree, comparison.draws_files(folder)[name])
    return folder


def saved(
    posteriors: Mapping[str, PosteriorLike], split: Split, folder: Path, **how: Any
) -> list[Path]:
    """Files of a comparison."""
    comparison = compare(posteriors, split, **how)
    save_files(comparison, folder)
    return list(comparison.draws_files(folder).values())


def same_tables(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Whether all numbers are the same to the last digit."""
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


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
    assert list(by_name.evaluations) == ["Z", "A", "M"]
    # of two comparisons, or one of them twice: as given
    seeds = compare({"z": own, "a": other}, split, num_samples=50, seed=1)
    (tmp_path / "seed").mkdir()
    save_files(seeds, tmp_path / "seed")
    mixed = [tmp_path / "a.nc", tmp_path / "seed" / "z.nc"]
    assert list(compare_files(mixed).evaluations) == ["a", "z"]
    twice = {"second": tmp_path / "a.nc", "first": tmp_path / "a.nc", "third": tmp_path / "z.nc"}
    assert list(compare_files(twice).evaluations) == ["second", "first", "third"]


def test_a_report_is_saved_without_the_draws_which_its_files_have(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(PLOTS) - {"ranks", "reference"}:  # of the page's many figures
        monkeypatch.delitem(PLOTS, name)
    compare_files(sorted(folder.glob("*.nc"))).save(tmp_path, command="pyro-bnn report")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "pyro-bnn report" in page
    assert "figure-ranks" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "index.html",
        "table.csv",
        "verdicts.json",
    ]


def test_nothing_is_evaluated_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        ("evaluate", "held_out"),
        ("evaluate", "fit_checks"),
        ("against", "sd_ratio"),
    ):
        monkeypatch.delattr(f"pyro_bnn.report.evaluation.{module}.{name}")
    assert compare_files(sorted(folder.glob("*.nc"))).reference == "NUTS"


def test_trees_without_an_evaluation_are_refused_with_the_way_out(
    regression: Comparison, tmp_path: Path
) -> None:
    split, posterior = regression.split, regression.posteriors["mean-field"]
    path = tmp_path / "mine.nc"
    posterior.to_arviz(split.train, split.test, 60, seed=4).to_netcdf(path)
    way_out = "bnn.compare({'AutoNormal': posterior}, split).save(folder)"
    with pytest.raises(FileFormatError, match=f"no evaluation.*{re.escape(way_out)}"):
        compare_files([path])


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
    pd.testing.assert_frame_equal(again.targets, comparison.targets, check_exact=True)
    assert np.isfinite(again.targets.to_numpy()).all()
    text = again.summary()
    assert "Target mass" in text
    assert "Target length" in text


def test_files_of_other_draws_are_ranked_and_it_is_said(
    regression: Comparison, folder: Path, tmp_path: Path
) -> None:
    own = {"other": regression.posteriors["NUTS"]}
    expected = compare(own, regression.split, num_samples=40, seed=8)
    save_files(expected, tmp_path)
    again = compare_files([folder / "mean-field.nc", tmp_path / "other.nc"])
    assert again.table["draws"].to_dict() == {"mean-field": 100, "other": 40}
    assert again.table.loc["other", "log_score"] == expected.table.loc["other", "log_score"]
    assert "scored with 40 and 100 draws" in again.split.note


def test_precisions_of_one_split_are_compared(folder: Path, tmp_path: Path) -> None:
    split = numbers_split().to(dtype=torch.float64)
    model = MLP(2, hidden=(3,)).double()
    posterior = SVI(guides.AutoNormal, num_steps=5).run(model, split.train, progress=False)
    (path,) = saved({"double": posterior}, split, tmp_path, num_samples=50)
    again = compare_files({"single": folder / "mean-field.nc", "double": path})
    assert again.shares_model
    score = again.table.loc["double", "log_score"]
    own = compare({"double": posterior}, split, num_samples=50).table.loc["double", "log_score"]
    assert score == own


def test_the_split_comes_back_with_names_and_units(regression: Comparison, folder: Path) -> None:
    own, found = regression.split, read(folder / "nuts.nc").split
    assert (found.name, found.index, found.task) == (own.name, own.index, own.task)
    for part in ("train", "test"):
        mine, theirs = getattr(found, part), getattr(own, part)
        for a, b in zip(mine.raw(), theirs.raw(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert mine.input_names == theirs.input_names == ("input 0", "input 1")
        assert mine.target_name == "mass (kg)"


# --- distances ------------------------------------------------------------------------------------


def test_distances_to_another_reference_are_of_the_draws_that_were_scored(
    regression: Comparison, folder: Path
) -> None:
    """Of a guide, all of whose draws are scored, they are those of a comparison with it."""
    expected = compare(
        regression.posteriors, regression.split, reference="mean-field", num_samples=100, seed=3
    )
    again = compare_files(sorted(folder.glob("*.nc")), reference="mean-field")
    assert np.isfinite(again.table["sd_ratio_off_data"].drop("mean-field")).all()
    same_tables(again.table, expected.table)


def test_without_a_reference_there_is_no_distance(folder: Path) -> None:
    again = compare_files([folder / "map.nc", folder / "mean-field.nc"])
    assert again.reference is None
    assert again.probes is None
    assert again.table["distance"].isna().all()


def test_files_without_the_same_probes_are_compared_at_the_rows_and_it_is_said(
    regression: Comparison, folder: Path, tmp_path: Path
) -> None:
    own = {"mean-field": regression.posteriors["mean-field"]}
    (path,) = saved(own, regression.split, tmp_path, num_samples=100, seed=3)
    mixed = compare_files([path, folder / "nuts.nc"])
    assert mixed.probes is None
    assert mixed.table["sd_ratio"].notna().sum() == 1
    assert mixed.table["sd_ratio_off_data"].isna().all()
    notes = mixed.table.loc["NUTS", "notes"]
    assert "off the data: not all files hold predictions at the same probes" in notes


# --- models --------------------------------------------------------------------------------------


def test_files_share_a_model_where_its_densities_agree(folder: Path, tmp_path: Path) -> None:
    split = numbers_split()

    def add(name: str, prior: Normal) -> Path:
        model = MLP(2, hidden=(3,), prior=prior)
        posterior = SVI(guides.AutoNormal, num_steps=2).run(model, split.train, progress=False)
        (path,) = saved({name: posterior}, split, tmp_path, num_samples=50)
        return path

    same, other = add("same", Normal("fan_in")), add("other prior", Normal(0.7))
    found = compare_files([folder / "nuts.nc", same, other])
    assert [model.methods for model in found.models] == [["NUTS", "same"], ["other prior"]]


def test_a_fingerprint_tells_apart_what_words_do_not(
    folder: Path, tmp_path: Path, changed_file: Callable[..., Path]
) -> None:
    def other_density(tree: DataTree, document: dict[str, Any]) -> None:
        document["entry"]["name"] = "changed"
        document["entry"]["fit"]["model"]["fingerprint"][0] *= 1.01

    def no_density(tree: DataTree, document: dict[str, Any]) -> None:
        document["entry"]["name"] = "silent"
        document["entry"]["fit"]["model"]["fingerprint"] = []

    changed = changed_file(tmp_path / "changed.nc", other_density)
    silent = changed_file(tmp_path / "silent.nc", no_density)
    found = compare_files([folder / "mean-field.nc", changed, silent])
    assert [model.methods for model in found.models] == [["mean-field"], ["changed"], ["silent"]]


# --- what is refused -----------------------------------------------------------------------------


@pytest.fixture
def changed_file(
    folder: Path, trees: dict[Path, DataTree]
) -> Callable[[Path, Callable[[DataTree, dict[str, Any]], None]], Path]:
    """Makes a file of the comparison with its arrays or its document changed."""

    def make(path: Path, change: Callable[[DataTree, dict[str, Any]], None]) -> Path:
        tree = arviz_io.load_netcdf(folder / "mean-field.nc")
        document = json.loads(tree[GROUP].attrs["document"])
        change(tree, document[GROUP])
        tree[GROUP].attrs["document"] = json.dumps(document)
        trees[path] = tree
        return path

    return make


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
    with pytest.raises(FileFormatError, match=r"foreign\.nc is an ArviZ file, but holds no eval"):
        compare_files([foreign])


def test_files_that_were_changed_are_refused(
    tmp_path: Path, changed_file: Callable[..., Path], trees: dict[Path, DataTree]
) -> None:
    def newer(tree: DataTree) -> None:
        document = json.loads(tree[GROUP].attrs["document"]) | {"version": 99}
        tree[GROUP].attrs["document"] = json.dumps(document)

    path = changed_file(tmp_path / "a.nc", lambda tree, document: None)
    newer(trees[path])
    with pytest.raises(FileFormatError, match="has format version 99, this package reads 1"):
        read(path)

    def without(name: str) -> Callable[[DataTree, dict[str, Any]], None]:
        def change(tree: DataTree, document: dict[str, Any]) -> None:
            tree[GROUP] = tree[GROUP].to_dataset().drop_vars(name)

        return change

    def of_shape(name: str, values: np.ndarray) -> Callable[[DataTree, dict[str, Any]], None]:
        def change(tree: DataTree, document: dict[str, Any]) -> None:
            data = tree[GROUP].to_dataset().drop_vars(name)
            dims = [f"new {axis}" for axis in range(values.ndim)]
            tree[GROUP] = data.assign({name: (dims, values)})

        return change

    def says(value: Any, *keys: str) -> Callable[[DataTree, dict[str, Any]], None]:
        def change(tree: DataTree, document: dict[str, Any]) -> None:
            for key in keys[:-1]:
                document = document[key]
            document[keys[-1]] = value

        return change

    f = "evaluation.entry.held_out.function_draws"
    for change, words in (
        (without(f), "is damaged: .*function_draws"),
        (of_shape(f, np.zeros((100, 6))), r"function_draws is \[100, 6\] of float64, not Float"),
        (of_shape(f, np.zeros((100, 5, 1))), "not Float"),
        (of_shape("evaluation.split.test.y", np.zeros(5)), "is damaged: .*y"),
        (of_shape("evaluation.entry.at_probes", np.zeros((100, 1, 1))), "probes are of others"),
        (says(3, "entry", "fit", "num_chains"), "100 draws are not of 3 chains"),
        (says(0, "num_draws"), "it says that 0 draws were scored"),
        (says("many", "entry", "num_draws"), "num_draws is a str, not a int"),
        (says("odd", "entry", "fit", "nature", "kind"), "kind is 'odd'"),
        (says({}, "entry", "checks", "doubling"), "doubling lacks or should not have error, gain"),
        (says(None, "entry", "held_out"), "held_out is a NoneType"),
        (says(1, "entry", "extra"), "should not have extra"),
        (of_shape("evaluation.split.test.target.scale", -np.ones(1)), "scale of a Standardiser"),
    ):
        with pytest.raises(FileFormatError, match=words):
            read(changed_file(path, change))


def test_files_of_other_rows_are_refused_by_name(
    folder: Path, folder_of_classes: Path, tmp_path: Path
) -> None:
    other = numbers_split(seed=5)
    posterior = SVI(guides.AutoNormal, num_steps=2).run(
        MLP(2, hidden=(3,)), other.train, progress=False
    )
    (path,) = saved({"other": posterior}, replace(other, name="others"), tmp_path, num_samples=50)
    mine = [folder / "nuts.nc", folder / "map.nc"]
    for order in ([path, *mine], [*mine, path]):
        with pytest.raises(DataError, match="the held-out x differ in 6 of 6 rows") as caught:
            compare_files(order)
        assert str(caught.value).startswith("other (others, split 0) is of other data than")
    with pytest.raises(DataError, match="the tasks are regression and classification"):
        compare_files([*mine, folder_of_classes / "mean-field.nc"])


def test_rows_that_differ_in_part_are_refused(
    folder: Path, tmp_path: Path, changed_file: Callable[..., Path]
) -> None:
    path = tmp_path / "a.nc"

    def changes(
        name: str, change: Callable[[Any], Any]
    ) -> Callable[[DataTree, dict[str, Any]], None]:
        def make(tree: DataTree, document: dict[str, Any]) -> None:
            document["entry"]["name"] = "changed"
            data, name_ = tree[GROUP].to_dataset().load(), f"evaluation.split.{name}"
            values = change(data[name_].to_numpy().copy())
            dims = [f"new {axis}" for axis in range(np.ndim(values))]
            tree[GROUP] = data.assign({name_: (dims, values)})

        return make

    def moved(values: Any) -> Any:
        values[2] += 0.01
        return values

    def fewer(tree: DataTree, document: dict[str, Any]) -> None:
        changes("train.x", lambda x: x[:50])(tree, document)
        changes("train.y", lambda y: y[:50])(tree, document)

    def no_units(tree: DataTree, document: dict[str, Any]) -> None:
        document["entry"]["name"] = "changed"
        names = [f"evaluation.split.test.inputs.{part}" for part in ("loc", "scale")]
        tree[GROUP] = tree[GROUP].to_dataset().drop_vars(names)
        document["split"]["test"]["inputs"] = None

    def scored(tree: DataTree, document: dict[str, Any]) -> None:
        document["entry"]["name"] = "changed"
        data, name = tree[GROUP].to_dataset(), "evaluation.entry.held_out.log_score"
        tree[GROUP] = data.assign({name: (["more"], np.zeros(9))})

    for change, words in (
        (changes("test.y", moved), "the held-out y differ in 1 of 6 rows"),
        (changes("train.y", moved), "the training y differ in 1 of 54 rows"),
        (changes("train.x", moved), "the training x differ in 1 of 54 rows"),
        (changes("test.target.scale", lambda scale: scale * 1.001), "units of the target differ"),
        (no_units, "the units of the inputs differ"),
        (fewer, r"the training x have shapes \[54, 2\] and \[50, 2\]"),
        (scored, "6 and 9 rows were scored"),
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
    assert set(compare_files({"a": one, "b": two}).evaluations) == {"a", "b"}
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

    def unmarked(tree: DataTree, document: dict[str, Any]) -> None:
        document["reference"] = None
        document["entry"]["name"] = "sampler"
        document["entry"]["fit"]["method"] = "NUTS"
        document["entry"]["fit"]["nature"]["kind"] = "chains"

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
