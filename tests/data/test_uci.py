"""The UCI benchmark: the regenerated splits against the published index files, units, columns."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from torch.testing import assert_close

from pyro_bnn.data import uci
from pyro_bnn.data.uci import load_uci, uci_sets
from pyro_bnn.errors import DataError, OptionError

# Rows, inputs, splits and training rows as published.
PUBLISHED = {
    "uci/boston": (506, 13, 20, 455),
    "uci/concrete": (1_030, 8, 20, 927),
    "uci/energy": (768, 8, 20, 691),
    "uci/naval": (11_934, 16, 20, 10_741),
    "uci/protein": (45_730, 9, 5, 41_157),
    "uci/wine-red": (1_599, 11, 20, 1_439),
    "uci/yacht": (308, 6, 20, 277),
}
FOLDER = Path(os.environ.get("PYRO_BNN_DATA", "")) / "uci"

needs_files = pytest.mark.skipif(
    not ("PYRO_BNN_DATA" in os.environ and FOLDER.is_dir()),
    reason="needs the UCI files: set PYRO_BNN_DATA to the folder that holds uci/",
)


def test_every_set_with_a_checksum_is_tested_here() -> None:
    assert PUBLISHED.keys() == {
        name for name, spec in uci_sets().items() if spec.sha256 is not None
    }


@pytest.mark.parametrize("name", sorted(uci_sets()))
def test_the_names_of_inputs_are_as_many_as_inputs(name: str) -> None:
    spec = uci_sets()[name]
    if spec.input_names:
        assert len(set(spec.input_names)) == spec.num_inputs
    assert spec.num_columns == spec.num_inputs + (2 if name == "uci/naval" else 1)


@needs_files
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_splits_equal_the_published_index_files(name: str) -> None:
    folder = FOLDER / uci_sets()[name].folder
    _, num_inputs, num_splits, num_train = PUBLISHED[name]
    rows = np.loadtxt(folder / "data.txt")
    features = np.loadtxt(folder / "index_features.txt").astype(int)
    target = int(np.loadtxt(folder / "index_target.txt"))
    for k in (0, 1, num_splits - 1):
        split = load_uci(name, k)
        assert (len(split.train), split.index) == (num_train, k)
        for part, dataset in (("train", split.train), ("test", split.test)):
            index = np.loadtxt(folder / f"index_{part}_{k}.txt").astype(int)
            x, y = dataset.raw()
            assert x.shape == (len(index), num_inputs)
            units = split.train.inputs
            assert units is not None
            assert split.train.target is not None
            tolerance = 1e-5 * float(split.train.target.scale)
            assert_close(y.double().numpy(), rows[index, target], rtol=1e-6, atol=tolerance)
            error = np.abs(x.double().numpy() - rows[np.ix_(index, features)])
            allowed = 1e-5 * units.scale.numpy() + 1e-6 * np.abs(rows[:, features]).max(0)
            assert (error <= allowed).all()


@needs_files
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_training_rows_have_mean_0_and_sd_1(name: str) -> None:
    split = load_uci(name)
    assert len(split.train) + len(split.test) == PUBLISHED[name][0]
    for values in (split.train.x.double(), split.train.y.double()[:, None]):
        sd = values.std(0, correction=0)
        constant = values.amin(0) == values.amax(0)
        assert_close(values.mean(0), 0 * sd, rtol=0, atol=1e-6)
        assert_close(sd, (~constant).double(), rtol=0, atol=1e-5)
    constant = split.train.x.amin(0) == split.train.x.amax(0)
    assert constant.nonzero().flatten().tolist() == ([8, 11] if name == "uci/naval" else [])


@needs_files
def test_naval_has_compressor_decay_as_target_and_no_turbine_decay() -> None:
    split = load_uci("uci/naval")
    rows = np.loadtxt(FOLDER / "naval-propulsion-plant" / "data.txt")
    assert split.test_rows is not None
    _, y = split.test.raw()
    assert_close(y.double().numpy(), rows[split.test_rows, 16], rtol=1e-6, atol=0)
    assert split.train.x.shape[1] == 16
    assert split.train.target_name == "compressor decay"


def test_a_split_out_of_range() -> None:
    with pytest.raises(OptionError, match=r"split of uci/protein must be .* 0 \.\. 4, got 5"):
        load_uci("uci/protein", 5)
    with pytest.raises(OptionError, match=r"split of uci/boston must be .* 0 \.\. 19, got 20"):
        load_uci("uci/boston", 20)


def test_a_set_from_the_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path))
    file = tmp_path / "uci" / "power-plant" / "data.txt"
    file.parent.mkdir(parents=True)
    rows = np.random.default_rng(0).normal(size=(20, 5))
    np.savetxt(file, rows)
    split = load_uci("uci/power-plant", 2)
    assert split.train_rows is not None
    _, y = split.train.raw()
    assert_close(y.double().numpy(), rows[split.train_rows, 4], rtol=1e-6, atol=1e-6)
    assert split.train.x.shape == (18, 4)
    np.savetxt(file, rows[:, :4])
    expected = f"uci/power-plant: expected 5 columns in {str(file)!r}, got 4"
    with pytest.raises(DataError, match=re.escape(expected)):
        load_uci("uci/power-plant")


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path))
    file = tmp_path / "uci" / "yacht" / "data.txt"
    file.parent.mkdir(parents=True)
    file.write_text("1 2 3 4 5 6 7\n")
    with pytest.raises(DataError, match="failed its checksum: expected SHA-256 00dfecc0fc01ddd4"):
        uci.load_uci("uci/yacht")
