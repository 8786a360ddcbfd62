"""The first images of Fashion-MNIST, from one NPZ file, by checksum."""

from __future__ import annotations

import numpy as np

from pyro_bnn.data.fetch import check_sha256, needed_path
from pyro_bnn.data.idx_files import split_of_images
from pyro_bnn.data.split import Split, check_index

FILE = "train_first3615.npz"
SHA256 = "763b0d9dc66a99fa30cb8119f838b317293dab74b8744818c7aac52e3ba38e1f"
NUM_TRAIN = 3_000
CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip

FASHION_SETS = {
    "fashion-mnist": "The first 3,615 training images of Fashion-MNIST as 784 inputs; 10 classes.",
    "fashion-mnist-images": "The same with inputs [1, 28, 28], for convolutions.",
}
"""The two shapes of the inputs, with a sentence each."""


def load_fashion(name: str = "fashion-mnist", index: int = 0) -> Split:
    """Load a part of Fashion-MNIST: 3,000 training images and the next 615 to test.

    The part is that of the file ``$PYRO_BNN_DATA/fashion_mnist/train_first3615.npz``. Pixels are
    standardised by one mean and standard deviation, as MNIST's are.

    Args:
        name: A key of ``FASHION_SETS``, which says the shape of x.
        index: Number of the split: 0, the only one.

    Returns:
        The split; x float in torch's default dtype, y int64.

    Raises:
        OptionError: If ``index`` is not 0.
        DataError: If the variable is not set, the file is missing, or its checksum is another one.

    References:
        Xiao, Rasul & Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
        Learning Algorithms", 2017, arXiv:1708.07747.
    """
    check_index(index, 1, name)
    path = needed_path(name, "fashion_mnist", FILE, what="the file")
    check_sha256(path, SHA256)
    with np.load(path, allow_pickle=False) as file:
        images, labels = file["x"], file["y"]
    note = f"The first {len(labels):,} of 60,000 training images alone."
    parts = [(images[rows], labels[rows]) for rows in (slice(NUM_TRAIN), slice(NUM_TRAIN, None))]
    return split_of_images(name, *parts, note=note, target_name="article", class_names=CLASSES)
