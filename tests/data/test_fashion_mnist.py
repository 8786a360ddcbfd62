"""The part of Fashion-MNIST: its file by checksum, its units, its two shapes."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from pyro_bnn import data
from pyro_bnn.data import fashion_mnist
from pyro_bnn.data.fashion_mnist import FILE, load_fashion
from pyro_bnn.errors import DataError, OptionError

REAL = Path(os.environ.get("PYRO_BNN_DATA", "nowhere")) / "fashion_mnist"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Images of a file of 12 rows, of which 8 are for training."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(12, 28, 28), dtype=np.uint8)
    path = tmp_path / "fashion_mnist" / FILE
    path.parent.mkdir()
    np.savez(path, x=x, y=np.arange(12, dtype=np.uint8) % 10)
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path))
    monkeypatch.setattr(fashion_mnist, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(fashion_mnist, "NUM_TRAIN", 8)
    return x


def test_rows_go_in_order_in_the_units_of_the_training_pixels(small: np.ndarray) -> None:
    split = data.load("fashion-mnist-images")
    assert split.train.x.shape == (8, 1, 28, 28)
    assert split.test.y.tolist() == [8, 9, 0, 1]
    assert split.train.class_names is not None
    assert split.train.class_names[9] == "boot"
    pixels = small[:8].astype(float)
    expected = (small[8:] - pixels.mean()) / pixels.std()
    assert_allclose(split.test.x.squeeze(1).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert "12 of 60,000" in split.note
    flat = load_fashion()
    torch.testing.assert_close(flat.test.x, split.test.x.flatten(1))


def test_another_file_is_refused(small: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(small) == 12
    monkeypatch.setattr(fashion_mnist, "SHA256", "0" * 64)
    with pytest.raises(DataError, match="failed its checksum"):
        load_fashion()
    monkeypatch.delenv("PYRO_BNN_DATA")
    with pytest.raises(DataError, match="PYRO_BNN_DATA is not set"):
        load_fashion()
    with pytest.raises(OptionError, match="split"):
        load_fashion("fashion-mnist", 1)


@pytest.mark.skipif(not REAL.exists(), reason="the file of Fashion-MNIST is not in $PYRO_BNN_DATA")
def test_the_real_file() -> None:
    split = load_fashion()
    assert (len(split.train), len(split.test)) == (3_000, 615)
    assert_allclose(float(split.train.x.mean()), 0, atol=1e-5)
