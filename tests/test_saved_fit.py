from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_bnn import data
from pyro_bnn.cli import training_file
from pyro_bnn.cli.methods import find_methods
from pyro_bnn.cli.networks import make_networks
from pyro_bnn.cli.options import NetworkOptions
from pyro_bnn.cli.saved_fit import (
    FILES,
    FIT_FILE,
    POSTERIOR_FILE,
    TRAINING_FILE,
    SavedFit,
    input_columns,
)
from pyro_bnn.cli.uncertainty import Uncertainty
from pyro_bnn.data import Dataset, Split, Standardiser
from pyro_bnn.data.split import Column, all_rows
from pyro_bnn.errors import DataError, FileFormatError, SiteError
from pyro_bnn.files.tensors import read_tensors, write_tensors
from tests.rows import classes, regression

pytestmark = pytest.mark.usefixtures("uncaptured")


@pytest.fixture
def towns(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    path = tmp_path / "towns.csv"
    rows = [
        f"{a:.3f},{town},{5 + a:.3f}"
        for a, town in zip(
            generator.normal(size=30), generator.choice(["Oslo", "Rome"], 30), strict=True
        )
    ]
    path.write_text("\n".join(["a,town,y", *rows, ""]))
    return path


def fit(
    split: Split, columns: tuple[Column, ...], method: str = "auto-normal", **options: Any
) -> SavedFit:
    from pyro_bnn.cli.methods import make_engines

    methods = find_methods(method)
    choice = NetworkOptions(**{"hidden": "3", **options})
    (network,) = make_networks(methods, split, choice, seed=2).values()
    numbers = {"num_steps": 20, "num_chains": 2, "warmup_steps": 5, "num_samples": 5}
    (engine,) = make_engines(methods, numbers).values()
    posterior = engine.run(network.build(), split.train, seed=2, progress=False)
    return SavedFit.of(posterior, network, columns, split, command="pyro-bnn fit ...")


# --- round trip ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"likelihood": "heteroscedastic-normal", "activation": "tanh", "hidden": "3,2"},
        {"prior": "half-cauchy-scale"},
        {"model": "rank1-mlp"},
        {"method": "nuts"},
    ],
)
def test_a_fit_reads_back(towns: Path, tmp_path: Path, options: dict[str, str]) -> None:
    split = data.load(towns)
    saved = fit(split, input_columns(split), **options)
    saved.save(tmp_path / "fit")
    assert {path.name for path in (tmp_path / "fit").iterdir()} == set(FILES)
    torch.manual_seed(99)  # what is read depends on no state
    loaded = SavedFit.load(tmp_path / "fit")
    for name in SavedFit.__dataclass_fields__:
        if name not in ("posterior", "novelty"):
            assert getattr(loaded, name) == getattr(saved, name), name
    np.testing.assert_array_equal(loaded.novelty.x, split.train.x.numpy())
    assert loaded.novelty.sizes == (1, 2)  # two towns
    x = torch.tensor([[0.3, 1.0, 0.0], [-1.0, 0.0, 1.0]])
    for raw in (True, False):
        given, read = (one.posterior.predict(x, 10, seed=1, raw=raw) for one in (saved, loaded))
        torch.testing.assert_close(read.draws, given.draws, rtol=1e-6, atol=1e-6)


def test_the_file_says_how_it_came_about(towns: Path, tmp_path: Path) -> None:
    split = data.load(towns)
    fit(split, input_columns(split)).save(tmp_path)
    document = json.loads((tmp_path / FIT_FILE).read_text("utf-8"))
    assert document["method"] == "AutoNormal"
    assert document["seed"] == 2
    assert document["command"] == "pyro-bnn fit ..."
    assert document["versions"]["torch"] == torch.__version__
    assert document["columns"] == [
        {"name": "a", "categories": None},
        {"name": "town", "categories": ["Oslo", "Rome"]},
    ]


def test_held_out_scores_are_those_of_a_comparison(towns: Path) -> None:
    from pyro_bnn.report import compare

    split = data.load(towns)
    saved = fit(split, input_columns(split))
    row = compare({"one": saved.posterior}, split, seed=2).table.loc["one"]
    assert saved.held_out == {
        "rows": 3,
        "log_score": pytest.approx(row["log_score"]),
        "rmse": pytest.approx(row["rmse"]),
        "coverage": pytest.approx(row["coverage_95"]),
    }
    assert saved.summary().startswith("Held-out, 3 rows: log score ")
    assert ", RMSE " in saved.summary()
    assert " (y), 95 % interval covers " in saved.summary()


def test_training_rows_are_measured_under_the_draws_of_the_seed_of_the_fit(folder: Path) -> None:
    saved, rows = SavedFit.load(folder), regression().train
    own, other = (Uncertainty.of(saved.posterior, rows, seed).median for seed in (2, 0))
    assert saved.uncertainty.median == pytest.approx(own, rel=1e-5)
    assert saved.uncertainty.median != pytest.approx(other, rel=1e-5)


def test_summary_of_classes() -> None:
    split = classes(3)
    saved = fit(split, tuple(map(Column, "abc")))
    assert saved.class_names == ("0", "1", "2")
    assert re.fullmatch(
        r"Held-out, 12 rows: log score .\d\.\d+ nats a row, accuracy [\d.]+ %", saved.summary()
    )


# --- training inputs -----------------------------------------------------------------------------


def test_of_many_rows_a_random_sample_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(900.0).reshape(300, 3)
    columns = tuple(map(Column, "abc"))
    assert len(training_file.novelty(x, columns, 0).x) == 300
    for name, most in (("MOST_ROWS", 50), ("MOST_NUMBERS", 3 * 50 + 2)):
        with monkeypatch.context() as patch:
            patch.setattr(training_file, name, most)
            some, again, other = (training_file.novelty(x, columns, seed).x for seed in (0, 0, 1))
        np.testing.assert_array_equal(some, again)
        assert {tuple(row) for row in some} != {tuple(row) for row in other}
        assert len({tuple(row) for row in some}) == 50  # none twice
        assert {tuple(row) for row in some} <= {tuple(row) for row in x.tolist()}
        assert some[:, 0].min() < 300 < 600 < some[:, 0].max()  # of all parts of the file


def test_images_are_kept_as_rows() -> None:
    x = torch.arange(64.0).reshape(2, 2, 4, 4)
    kept = training_file.novelty(x, [Column(f"x{i}") for i in range(32)], 0)
    np.testing.assert_array_equal(kept.x, x.reshape(2, 32).numpy())


def test_a_fit_without_training_inputs_is_refused(folder: Path, tmp_path: Path) -> None:
    changed(folder, tmp_path, len)
    (tmp_path / TRAINING_FILE).unlink()
    with pytest.raises(FileFormatError, match=r"training\.safetensors does not exist"):
        SavedFit.load(tmp_path)


def test_a_fit_of_an_earlier_version_is_refused_with_how_to_go_on(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(FileFormatError, match=r"has format version 1, .*; read it with"):
        SavedFit.load(changed(folder, tmp_path, lambda d: d.update(version=1)))
    for name in (POSTERIOR_FILE, TRAINING_FILE):
        changed(folder, tmp_path, len)
        torch.save({"x": torch.zeros(3)}, tmp_path / name)
        with pytest.raises(FileFormatError, match=f"{name} is of torch.save, as an ear.*: read"):
            SavedFit.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "does not hold training inputs as this package writes them; fit again"),
        ({"version": 3}, "does not hold training inputs as this package writes them; fit again"),
        ({"x": torch.zeros(3, 3)}, "its rows are not 2 finite numbers"),
        ({"x": torch.zeros(0, 2)}, "its rows are not 2 finite numbers"),
        ({"x": torch.zeros(2)}, "its rows are not 2 finite numbers"),
        ({"x": torch.zeros(3, 2).double()}, "its rows are not 2 finite numbers"),
        ({"x": torch.full((3, 2), torch.nan)}, "its rows are not 2 finite numbers"),
        ({"x": 3}, "its rows are not 2 finite numbers"),
        ({"x": None}, "its rows are not 2 finite numbers"),
    ],
)
def test_training_inputs_that_are_damaged(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    changed(folder, tmp_path, len)
    document = read_tensors(folder / TRAINING_FILE)
    write_tensors(document | change, tmp_path / TRAINING_FILE)
    with pytest.raises(FileFormatError, match=f"training.safetensors .*{message}"):
        SavedFit.load(tmp_path)
    (tmp_path / TRAINING_FILE).write_bytes(b"PK half")
    with pytest.raises(FileFormatError, match=r"training\.safetensors is truncated"):
        SavedFit.load(tmp_path)


# --- files that cannot be read -------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    fit(regression(), (Column("a"), Column("b"))).save(folder)
    return folder


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    expected = f"'{tmp_path}' is not a folder of 'pyro-bnn fit': it has no fit.json"
    with pytest.raises(FileFormatError, match=re.escape(expected)):
        SavedFit.load(tmp_path)
    with pytest.raises(FileFormatError, match=r"is not a folder of 'pyro-bnn fit'"):
        SavedFit.load(tmp_path / "absent")


def changed(folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    document = json.loads((folder / FIT_FILE).read_text("utf-8"))
    del document["crc32"]  # as in those of before
    change(document)
    (tmp_path / FIT_FILE).write_text(json.dumps(document), "utf-8")
    for name in (POSTERIOR_FILE, TRAINING_FILE):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("columns"), "fit.json is damaged: KeyError('columns')"),
        (lambda d: d.update(format="other"), "fit.json is not of 'pyro-bnn fit'"),
        (
            lambda d: d.update(version=3),
            "fit.json has format version 3, this package reads 2; read it with the newer",
        ),
        (lambda d: d["columns"].pop(), "its columns are 1 inputs, its network has 2"),
        (lambda d: d["network"].pop("seed"), "fit.json is damaged: KeyError('seed')"),
        (lambda d: d["network"].update(model="Pickle"), "is damaged: unknown model 'Pickle'"),
        (lambda d: d["network"].update(hidden=["x"]), "hidden is a str, not a int"),
        (lambda d: d["network"].update(seed="x"), "fit.json is damaged: "),
        (lambda d: d["uncertainty"].update(median="x"), "fit.json is damaged: TypeError("),
        (lambda d: d["uncertainty"].pop("maximum"), "fit.json is damaged: KeyError('maximum')"),
        (lambda d: d.update(columns=3), "fit.json is damaged: TypeError("),
        (lambda d: d.update(held_out={"log_score": 1.0, "rmse": 1.0, "coverage": 0.9}), "'rows'"),
        (lambda d: d.update(held_out={"rows": 3, "rmse": 1.0, "coverage": 0.9}), "'log_score'"),
        (lambda d: d.update(held_out={"rows": 3, "log_score": 1.0, "rmse": 1.0}), "'coverage'"),
        (lambda d: d.update(held_out={"rows": 3, "log_score": 1.0, "coverage": 0.9}), "'rmse'"),
    ],
)
def test_a_file_that_is_damaged(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    with pytest.raises(FileFormatError, match=re.escape(message)):
        SavedFit.load(changed(folder, tmp_path, change))


@pytest.mark.parametrize("text", ["", "{", "\udcff", "[]"])
def test_a_file_that_is_no_json_object(folder: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / FIT_FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FileFormatError, match=r"fit\.json (cannot be read|is not of 'pyro-bnn fi)"):
        SavedFit.load(tmp_path)


def test_a_posterior_of_another_network(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"posterior\.safetensors is of a model with sites"):
        SavedFit.load(changed(folder, tmp_path, lambda d: d["network"].update(hidden=[4])))


def test_a_posterior_that_is_truncated_or_absent(folder: Path, tmp_path: Path) -> None:
    (changed(folder, tmp_path, len) / POSTERIOR_FILE).write_bytes(b"PK half")
    with pytest.raises(FileFormatError, match=r"has 9 weights, more than .*posterior\..* holds"):
        SavedFit.load(tmp_path)
    (tmp_path / POSTERIOR_FILE).unlink()
    with pytest.raises(FileFormatError, match=r"posterior\.safetensors does not exist"):
        SavedFit.load(tmp_path)


# --- columns and rows ----------------------------------------------------------------------------


def test_columns_of_data_that_are_no_csv() -> None:
    moons = data.load("moons")
    assert input_columns(moons) == (Column("x0"), Column("x1"))
    diabetes = input_columns(data.load("diabetes"))
    assert diabetes[0] == Column("age")
    assert input_columns(regression()) == (Column("x0"), Column("x1"))


def test_several_targets_read_back_with_scores_of_each(tmp_path: Path) -> None:
    split = regression(num_targets=2)
    saved = fit(split, input_columns(split))
    assert saved.target_names == ("y0", "y1")  # an array names none
    saved.save(tmp_path)
    loaded = SavedFit.load(tmp_path)
    assert loaded.target_names == ("y0", "y1")
    found = loaded.held_out
    assert found is not None
    assert found == saved.held_out
    assert split.train.target is None  # so each is in its own units as it is
    of_each = torch.tensor([found[f"rmse of y{o}"] for o in (0, 1)])
    assert found["rmse"] == pytest.approx(float(of_each.square().mean().sqrt()), rel=1e-5)
    both = (found["coverage of y0"] + found["coverage of y1"]) / 2
    assert found["coverage"] == pytest.approx(both)
    first, *lines = loaded.summary().splitlines()
    assert "sds of each target" in first
    assert [line.split(":")[0] for line in lines] == ["  y0", "  y1"]
    path = tmp_path / FIT_FILE
    document = json.loads(path.read_text("utf-8"))
    del document["crc32"]
    for names in (["y0"], None):
        path.write_text(json.dumps(document | {"target_names": names}), "utf-8")
        with pytest.raises(FileFormatError, match="another number of targets than it has names"):
            SavedFit.load(tmp_path)


@pytest.mark.parametrize(
    ("header", "what"), [("y,flat,t", "target 't'"), ("t,flat,y", "column 't'")]
)
def test_numbers_beyond_double_precision_are_refused(towns: Path, header: str, what: str) -> None:
    path = towns.with_name("clock.csv")

    def write(start: int) -> None:
        rows = [{"t": start + i, "flat": 7e14, "y": i} for i in range(30)]
        names = header.split(",")
        lines = [",".join(str(row[name]) for name in names) for row in rows]
        path.write_text("\n".join([header, *lines]))

    write(1_600_000_000_000)
    expected = f"clock: {what} lies at 1\\.6e\\+12 with an sd of \\d\\.\\d, too far for the prec"
    with pytest.raises(DataError, match=expected):
        input_columns(data.load(path))
    write(1_600_000_000)
    known = tuple(map(Column, header.split(",")[:2]))
    assert input_columns(data.load(path)) == known


def test_all_rows_are_standardised_anew() -> None:
    x = torch.tensor([[10.0], [20.0], [60.0]])
    units = Standardiser(torch.tensor([15.0]), torch.tensor([5.0]))
    target = Standardiser(torch.tensor(1.0), torch.tensor(2.0))
    whole = Dataset(
        units.transform(x), target.transform(torch.tensor([1.0, 2.0, 6.0])), units, target
    )
    split = Split(whole.rows([0, 1]), whole.rows([2]), "regression", "three")
    found = all_rows(split)
    assert found.train.inputs is not None
    assert found.train.target is not None
    torch.testing.assert_close(found.train.inputs.loc, torch.tensor([30.0]).double())
    torch.testing.assert_close(found.train.target.loc, torch.tensor(3.0).double())
    torch.testing.assert_close(found.train.raw()[0], x.double())
    torch.testing.assert_close(found.train.raw()[1], torch.tensor([1.0, 2, 6]).double())
    torch.testing.assert_close(found.train.x.mean(), torch.tensor(0.0), rtol=0, atol=1e-6)


def test_all_rows_of_classes_keep_their_names() -> None:
    moons = data.load("moons")
    found = all_rows(moons).train
    assert len(found) == len(moons.train) + len(moons.test)
    assert found.class_names == moons.train.class_names
    torch.testing.assert_close(found.y, torch.cat([moons.train.y, moons.test.y]))


def test_all_rows_of_counts_stay_counts() -> None:
    split = data.from_arrays(torch.arange(40.0)[:, None], torch.arange(40) % 5, task="counts")
    found = all_rows(split).train
    assert found.target is None
    assert sorted(found.y.tolist()) == sorted((torch.arange(40.0) % 5).tolist())
