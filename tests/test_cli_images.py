"""Models of images on the command line: which rows they take, and a saved fit of one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn.cli.methods import find_methods
from pyro_bnn.cli.networks import make_networks
from pyro_bnn.cli.options import NetworkOptions
from pyro_bnn.cli.saved_fit import SavedFit
from pyro_bnn.errors import FileFormatError, OptionError
from pyro_bnn.models import LeNet, Rank1MLP, Rank1ResNet
from pyro_bnn.report import Comparison
from tests.command_line import Result, run
from tests.rows import split_of


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty images of 4 x 4 pixels in two classes, one for each row of a CSV."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 16))
    columns: dict[str, Any] = {f"p{i}": x[:, i] for i in range(16)}
    columns["kind"] = np.where(x[:, :8].sum(1) > x[:, 8:].sum(1), "top", "bottom")
    path = tmp_path_factory.mktemp("images") / "images.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def fitted(images: Path, *options: str) -> Result:
    threads = torch.get_num_threads()
    out = images.with_name("fit")
    chosen = ("--model", "le-net", "--method", "auto-delta", "--steps", "5", "--quiet")
    found = run("fit", "--data", images, "--out", out, *chosen, *options)
    torch.set_num_threads(threads)
    return found


@pytest.fixture(scope="module")
def fit(images: Path) -> Path:
    """Folder of a fit of a few steps."""
    found = fitted(images, "--activation", "tanh")
    assert (found.code, found.err) == (0, "")
    return images.with_name("fit")


def test_a_saved_fit_of_images_predicts_rows_of_pixels(images: Path, fit: Path) -> None:
    document = json.loads((fit / "fit.json").read_text())
    assert document["network"]["image_shape"] == [1, 4, 4]
    saved = SavedFit.load(fit)
    assert isinstance(saved.posterior.model, LeNet)
    assert saved.network.image_shape == (1, 4, 4)
    out = images.with_name("predictions.csv")
    told = run("predict", images, "--posterior", fit, "--out", out)
    assert (told.code, told.err) == (0, "")
    table = pd.read_csv(out)
    np.testing.assert_allclose(table["predicted_p_top"] + table["predicted_p_bottom"], 1, atol=1e-6)
    assert len(table) == 40


def test_images_of_an_array_file_are_read_back_as_rows_of_their_pixels(tmp_path: Path) -> None:
    """In rows of C, then H, then W; the training rows are at no distance from themselves."""
    generator = np.random.default_rng(0)
    x = 3 + 2 * generator.normal(size=(40, 2, 4, 4)).astype("f4")
    y = (x.mean((1, 2, 3)) > 3).astype(int)
    np.savez(tmp_path / "images.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    told = fitted(tmp_path / "images.npz")
    assert (told.code, told.err) == (0, "")
    pixels = pd.DataFrame(x.reshape(40, 32), columns=[f"x{i}" for i in range(32)])
    pixels.to_csv(tmp_path / "pixels.csv", index=False)
    out = tmp_path / "predictions.csv"
    told = run("predict", tmp_path / "pixels.csv", "--posterior", tmp_path / "fit", "--out", out)
    assert (told.code, told.err) == (0, "")
    table = pd.read_csv(out)
    posterior = SavedFit.load(tmp_path / "fit").posterior
    expected = posterior.predict(torch.tensor(x), num_samples=1, raw=True).probs[:, 1]
    np.testing.assert_allclose(table["predicted_p_1"], expected, rtol=1e-5)
    is_training = np.arange(40) < 30
    np.testing.assert_array_equal(table["distance_to_training"] < 1e-5, is_training)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([1, 4, 5], r"images of \[1, 4, 5\] are not its 16 inputs"),
        ([1, 4.0, 4], "image_shape is a float, not a int"),
        ([-1, -4, 4], "image_shape is -1"),
        ("1x4x4", "image_shape is a str, not a list"),
    ],
)
def test_a_damaged_image_shape_is_refused(
    fit: Path, tmp_path: Path, shape: Any, message: str
) -> None:
    file = shutil.copytree(fit, tmp_path / "damaged") / "fit.json"
    document = json.loads(file.read_text())
    del document["crc32"]
    document["network"]["image_shape"] = shape
    file.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match=f"fit.json is damaged: .*{message}"):
        SavedFit.load(file.parent)


@pytest.mark.slow("whole fits")
@pytest.mark.usefixtures("no_pictures", "uncaptured")
def test_the_digits_of_sklearn_are_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 1,000 draws of 60,000 weights, which no assertion looks at
    monkeypatch.setattr(Comparison, "write_draws", lambda *args: None)
    compared_images("digits", tmp_path, num_train=10)


MNIST = Path(os.environ.get("PYRO_BNN_DATA", "nowhere")) / "mnist"


@pytest.mark.soak  # 55 MB are unpacked and checked
@pytest.mark.skipif(not MNIST.is_dir(), reason="needs the files of MNIST in $PYRO_BNN_DATA/mnist")
def test_mnist_goes_through_a_convolutional_network(tmp_path: Path) -> None:
    compared_images("mnist-images", tmp_path, num_train=40)


def compared_images(name: str, out: Path, *, num_train: int) -> None:
    """A report on the first images of a data set, by LeNet with and without uncertainty."""
    threads = torch.get_num_threads()
    options = ("--model", "le-net", "--methods", "auto-delta,auto-normal", "--out", out)
    half = str(num_train // 2)
    short = ("--steps", "4", "--batch-size", half, "--max-rows", str(num_train))
    found = run("compare", "--data", name, *options, *short)
    torch.set_num_threads(threads)
    assert (found.code, found.err) == (0, "")
    assert f"{num_train} training and {num_train} held-out rows" in found.out
    assert "Model: LeNet" in found.out
    table = pd.read_csv(out / "table.csv", index_col=0)
    assert table["draws"].to_dict() == {"AutoDelta": 1, "AutoNormal": 1_000}
    assert np.isfinite(table[["log_score", "accuracy", "ece", "rejection_area"]]).all(axis=None)
    assert table.loc["AutoDelta", "log_score"] > -2 * np.log(10)  # near chance, and no nonsense
    assert f"The first {num_train} of" in (out / "index.html").read_text()


def test_a_residual_network_has_the_depth_and_width_that_it_is_given(
    images: Path, tmp_path: Path
) -> None:
    options = ("--model", "res-net", "--depth", "8", "--width", "8", "--steps", "1")
    found = fitted(images, *options)
    assert (found.code, found.err) == (0, "")
    folder = shutil.copytree(images.with_name("fit"), tmp_path / "fit")
    net = SavedFit.load(folder).posterior.model
    assert (net.depth, net.width) == (8, 8)  # type: ignore[attr-defined]  # of a ResNet
    document = json.loads((folder / "fit.json").read_text())
    del document["crc32"]
    for name, size, message in (
        (
            "depth",
            8_000_000,
            r"its network has \d+ weights, more than .*posterior\..* holds",
        ),
        (
            "width",
            1_000_000,
            r"its network has \d+ weights, more than .*posterior\..* holds",
        ),
        ("width", 0, "width is 0"),
        ("depth", 9, "depth"),
    ):
        network = document["network"] | {name: size}
        (folder / "fit.json").write_text(json.dumps(document | {"network": network}))
        with pytest.raises(FileFormatError, match=message):
            SavedFit.load(folder)
    found = fitted(images, *options[:2], "--depth", "9")
    assert found.code == 2
    assert "depth" in found.err


def test_rank_one_guides_suit_both_rank_one_models() -> None:
    split = split_of(torch.randn(6, 25), torch.arange(6) % 3)
    methods = find_methods("batch-ensemble,auto-rank1-mixture")
    for name, cls in ((None, Rank1MLP), ("rank1-res-net", Rank1ResNet)):
        found = make_networks(methods, split, NetworkOptions(model=name))
        assert {plan.model for plan in found.values()} == {cls.__name__}
        assert type(found["BatchEnsemble"].build()) is cls
    message = "BatchEnsemble needs the model Rank1MLP or Rank1ResNet, not LeNet: leave --model out"
    with pytest.raises(OptionError, match=message):
        make_networks(methods, split, NetworkOptions(model="le-net"))
