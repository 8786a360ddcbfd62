"""The sets of scikit-learn against scikit-learn itself."""

import pytest
import torch
from sklearn import datasets
from torch.testing import assert_close

from pyro_bnn.data.sklearn_sets import SKLEARN_SETS, load_sklearn
from pyro_bnn.data.split import published_rows
from pyro_bnn.errors import OptionError

SHAPES = {  # rows, inputs, classes, as scikit-learn documents them
    "breast-cancer": (569, 30, 2),
    "diabetes": (442, 10, None),
    "digits": (1_797, 64, 10),
    "moons": (200, 2, 2),
    "wine-cultivars": (178, 13, 3),
}


@pytest.mark.parametrize("name", sorted(SKLEARN_SETS))
def test_sizes_names_and_rows(name: str) -> None:
    num_rows, num_inputs, num_classes = SHAPES[name]
    split = load_sklearn(name, 2)
    num_train = round(0.9 * num_rows)
    assert (len(split.train), len(split.test)) == (num_train, num_rows - num_train)
    assert split.train.x.shape[1] == num_inputs
    assert split.train.num_classes == split.test.num_classes == num_classes
    assert split.train.input_names is not None
    assert len(split.train.input_names) == num_inputs
    assert split.task == ("regression" if num_classes is None else "classification")
    assert (split.name, split.index) == (name, 2)
    assert_close(split.test_rows, published_rows(num_rows, 2)[1])
    assert torch.isfinite(split.test.x).all()


def test_diabetes_has_its_original_units() -> None:
    x, y = datasets.load_diabetes(scaled=False, return_X_y=True)
    split = load_sklearn("diabetes")
    raw_x, raw_y = split.train.raw()
    assert split.train_rows is not None
    assert_close(raw_x.double(), torch.tensor(x)[split.train_rows], rtol=1e-5, atol=1e-4)
    assert_close(raw_y.double(), torch.tensor(y)[split.train_rows], rtol=1e-5, atol=1e-4)
    assert_close(split.train.y.std(correction=0).item(), 1.0, rtol=0, atol=1e-5)


def test_labels_are_those_of_scikit_learn() -> None:
    split = load_sklearn("breast-cancer")
    assert split.test_rows is not None
    target = torch.tensor(datasets.load_breast_cancer().target)
    assert_close(split.test.y, target[split.test_rows])
    assert split.test.class_names == ("malignant", "benign")


def test_constant_pixels_are_left_at_zero() -> None:
    split = load_sklearn("digits")
    pixels = torch.tensor(datasets.load_digits().data)[split.train_rows]
    constant = pixels.amin(0) == pixels.amax(0)
    assert constant[0]  # the corner is never touched
    assert split.train.inputs is not None
    assert (split.train.inputs.scale[constant] == 1).all()
    assert (split.train.x[:, constant] == 0).all()


def test_moons_have_the_noise_that_is_stated() -> None:
    x, _ = split_raw("moons")
    clean, labels = datasets.make_moons(200, noise=None, shuffle=False)
    outer = torch.tensor(clean[labels == 0], dtype=torch.float32)
    inner = torch.tensor(clean[labels == 1], dtype=torch.float32)
    y = split_raw("moons")[1]
    radius = (x[y == 0] - torch.zeros(2)).norm(dim=1)  # the outer moon is on the unit circle
    assert_close(outer.norm(dim=1), torch.ones(100))
    assert_close(((inner - torch.tensor([1.0, 0.5])).norm(dim=1)), torch.ones(100))
    # A radius varies by the noise 0.2; its sd from about 90 points has standard error 0.015.
    assert abs(radius.std().item() - 0.2) < 5 * 0.015


def split_raw(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return load_sklearn(name).train.raw()


def test_a_split_out_of_range() -> None:
    with pytest.raises(OptionError, match=r"split of moons must be a whole number 0 \.\. 19, got"):
        load_sklearn("moons", 20)
