"""MNIST from its four files in the idx format, packed or not, always by checksum."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.fetch import needed_path
from pyro_bnn.data.split import Split, check_index
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.errors import DataError

PIXEL_VALUES = 256
LARGEST = 16 + 60_000 * 28 * 28  # bytes of the largest of the files, unpacked
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
"""Published MD5 sums of the unpacked files: those of the packed ones differ between mirrors."""

MNIST_SETS = {
    "mnist": "70,000 images of digits, 28 x 28 pixels as 784 inputs; 10 classes.",
    "mnist-images": "The same with inputs [1, 28, 28], for convolutions.",
}
"""The two shapes of the inputs, with a sentence each."""


def load_mnist(name: str = "mnist", index: int = 0) -> Split:
    """Load MNIST in its own split: 60,000 training and 10,000 test images.

    The files are read from ``$PYRO_BNN_DATA/mnist``, with or without ``.gz``. Pixels are
    standardised by ONE mean and standard deviation, of all pixels of the training images: each on
    its own would blow up those at the border, which are black in nearly every image.

    Args:
        name: A key of ``MNIST_SETS``, which says the shape of x.
        index: Number of the split: 0, the only one.

    Returns:
        The split; x float in torch's default dtype, y int64.

    Raises:
        OptionError: If ``index`` is not 0.
        DataError: If the variable is not set, a file is missing, or the MD5 of its unpacked bytes
            is not the published one.

    References:
        LeCun, Bottou, Bengio & Haffner, "Gradient-based learning applied to document recognition",
        Proceedings of the IEEE 86(11), 1998.
    """
    check_index(index, 1, name)
    files = f"{', '.join(MNIST_MD5)}, packed (.gz) or not,"
    folder = needed_path(name, "mnist", what=files)
    x_train, y_train, x_test, y_test = (
        _checked(folder / file, md5) for file, md5 in MNIST_MD5.items()
    )
    train, test = (x_train, y_train), (x_test, y_test)
    digits = [str(digit) for digit in range(10)]
    return split_of_images(name, train, test, target_name="digit", class_names=digits)


def split_of_images(name: str, *parts: tuple[Any, Any], note: str = "", **names: Any) -> Split:
    """Images of 28 x 28 pixels and their labels in the units of all training pixels together.

    Args:
        name: Of the set; with ``-images`` at its end x is ``[N, 1, 28, 28]``, else ``[N, 784]``.
        *parts: Images and labels, for training and to test.
        note: What there is to say of the set.
        **names: Names of the target and the classes.
    """
    shape = (1, 28, 28) if name.endswith("-images") else (784,)
    units = pixel_units(parts[0][0].ravel(), shape)
    if len(shape) == 1:
        names["input_names"] = [f"row {r} column {c}" for r, c in np.ndindex(28, 28)]
    to_x = units.to(dtype=torch.get_default_dtype()).transform
    train, test = (
        Dataset(
            to_x(torch.tensor(images).reshape(len(labels), *shape)),
            torch.tensor(labels.astype(np.int64)),
            units,
            **names,
        )
        for images, labels in parts
    )
    first, second = torch.arange(len(train) + len(test)).split([len(train), len(test)])
    return Split(train, test, "classification", name, 0, first, second, note)


def _checked(path: Path, md5: str) -> np.ndarray[Any, Any]:
    """Values of a file that may end in .gz, uint8 ``[n]``; unpacked its MD5 is the one given.

    They follow 4 bytes and 4 more for each axis; the MD5 vouches for all else in the header.
    """
    packed = path.with_name(f"{path.name}.gz")
    source = path if path.is_file() else packed
    try:
        with gzip.open(source) if source is packed else source.open("rb") as file:
            data = file.read(LARGEST + 1)  # a file that unpacks to more is none of these
    except FileNotFoundError as error:
        raise DataError(
            f"neither {str(path)!r} nor {packed.name!r} beside it exists; put one of them there"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{str(source)!r} cannot be read or unpacked: {error}") from error
    actual = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if actual != md5:
        raise DataError(
            f"{str(source)!r} failed its checksum: expected MD5 {md5} of the unpacked bytes, got "
            f"{actual}; the file was changed or truncated, replace it"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * data[3])


def pixel_units(images: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Standardiser:
    """One mean and sd of all pixels, exact by the count of each of the 256 values."""
    counts = np.bincount(images, minlength=PIXEL_VALUES).astype(float)
    share, values = counts / counts.sum(), np.arange(PIXEL_VALUES)
    mean = float(share @ values)
    sd = float(np.sqrt(share @ (values - mean) ** 2)) or 1.0
    one = torch.ones(shape[0], *(1,) * (len(shape) - 1), dtype=torch.float64)  # or [C, 1, 1]
    return Standardiser(mean * one, sd * one)
