"""The idx format on files written here, and MNIST itself where its files are at hand."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data import idx_files
from pyro_bnn.data.idx_files import MNIST_MD5, load_mnist
from pyro_bnn.errors import DataError, OptionError

REAL = Path(os.environ.get("PYRO_BNN_DATA", "nowhere")) / "mnist"
IMAGES = (np.arange(12 * 28 * 28) * 7919 % 256).astype(np.uint8).reshape(12, 28, 28)
LABELS = np.array([3, 0, 9, 1, 2, 4, 5, 6, 7, 8, 0, 1], dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    """The idx format, written from its description."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small files in the place of MNIST's: 8 training images packed, 4 test images not."""
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path))
    arrays = [IMAGES[:8], LABELS[:8], IMAGES[8:], LABELS[8:]]
    contents = dict(zip(MNIST_MD5, map(idx, arrays), strict=True))
    sums = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(idx_files, "MNIST_MD5", sums)
    (tmp_path / "mnist").mkdir()
    for name, content in contents.items():
        is_packed = name.startswith("train")
        path = tmp_path / "mnist" / (f"{name}.gz" if is_packed else name)
        path.write_bytes(gzip.compress(content) if is_packed else content)
    return tmp_path / "mnist"


@pytest.mark.usefixtures("folder")
def test_pixels_share_one_mean_and_sd_of_the_training_images() -> None:
    split = load_mnist("mnist")
    pixels = torch.tensor(IMAGES.astype(np.float64))
    expected = (pixels - pixels[:8].mean()) / pixels[:8].std(correction=0)
    assert_close(split.train.x, expected[:8].flatten(1).float())
    assert_close(split.test.x, expected[8:].flatten(1).float())
    assert_close(split.test.raw()[0], pixels[8:].flatten(1), rtol=1e-5, atol=1e-3)
    assert (split.train.y.tolist(), split.test.y.tolist()) == (
        LABELS[:8].tolist(),
        LABELS[8:].tolist(),
    )
    assert (split.task, split.train.num_classes) == ("classification", 10)
    assert split.train.input_names is not None
    assert split.train.input_names[29] == "row 1 column 1"


@pytest.mark.usefixtures("folder")
def test_images_keep_their_shape() -> None:
    flat, images = load_mnist("mnist"), load_mnist("mnist-images")
    assert images.train.x.shape == (8, 1, 28, 28)
    assert_close(images.test.x.flatten(1), flat.test.x)


def test_a_changed_byte_fails_the_checksum(folder: Path) -> None:
    path = folder / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x05")
    with pytest.raises(DataError, match=r"ubyte' failed its checksum: expected MD5 \w+ of the unp"):
        load_mnist()


def test_a_file_that_is_not_there_or_cannot_be_unpacked_is_named(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b\x08 no gzip")
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz' cannot be read or unpacked"):
        load_mnist()
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"neither '.*train-labels-idx1-ubyte' nor 'train-l.*\.gz'"):
        load_mnist()


def test_without_the_variable_it_says_what_to_put_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYRO_BNN_DATA", raising=False)
    with pytest.raises(DataError, match=r"is not set: put train-images-idx3-ubyte, .* or not"):
        load_mnist("mnist")
    with pytest.raises(OptionError, match="split of mnist must be 0, the only one, got 1"):
        load_mnist("mnist", 1)


@pytest.mark.slow("a second or more")
@pytest.mark.skipif(not REAL.is_dir(), reason="needs the files of MNIST in $PYRO_BNN_DATA/mnist")
def test_mnist_is_what_was_published() -> None:
    split = load_mnist()
    assert (split.train.x.shape, split.test.x.shape) == ((60_000, 784), (10_000, 784))
    assert split.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert split.test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert split.train.y.bincount().tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert split.train.inputs is not None
    # the mean and sd of everybody's normalisation, 0.1307 and 0.3081 of 255
    assert float(split.train.inputs.loc[0]) / 255 == pytest.approx(0.1307, abs=5e-5)
    assert float(split.train.inputs.scale[0]) / 255 == pytest.approx(0.3081, abs=5e-5)


def test_no_more_is_unpacked_than_a_file_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the stream is cut off, which would be found if it were read to its end."""
    monkeypatch.setattr(idx_files, "LARGEST", 1_000)
    path = folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(10**7))[:-100])
    with pytest.raises(DataError, match="failed its checksum"):
        idx_files._checked(path.with_suffix(""), "0" * 32)
