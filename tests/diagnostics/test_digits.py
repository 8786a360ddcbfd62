"""All measures of a classification on real digits, each against another library's number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn import metrics

import pyro_bnn as bnn
from pyro_bnn.data.idx_files import load_mnist
from pyro_bnn.diagnostics import (
    accuracy,
    brier,
    class_uncertainty,
    ece,
    ece_floor,
    rejection_curve,
    reliability_curve,
)

MNIST = Path(os.environ.get("PYRO_BNN_DATA", "nowhere")) / "mnist"


@pytest.fixture(
    scope="module",
    params=[
        "digits",
        pytest.param(
            "mnist",
            marks=pytest.mark.skipif(not MNIST.is_dir(), reason="needs $PYRO_BNN_DATA/mnist"),
        ),
    ],
)
def found(request: pytest.FixtureRequest) -> tuple[bnn.Prediction, np.ndarray]:
    """A mean-field fit of 200 steps: predictions of held-out digits, and what they are."""
    split = bnn.data.load("digits") if request.param == "digits" else load_mnist()
    train = split.train.rows(range(min(1_500, len(split.train))))
    test = split.test.rows(range(min(500, len(split.test))))
    model = bnn.models.MLP(
        train.x.shape[1], hidden=(20,), likelihood=bnn.likelihoods.Categorical(10)
    )
    guide = bnn.guides.AutoNormal
    options: dict[str, Any] = {"learning_rate": 0.02, "schedule": "cosine", "compile": False}
    fit = bnn.SVI(guide, num_steps=200, batch_size=100, **options)
    posterior = fit.run(model, train, progress=False)
    return posterior.predict(test.x, 200), test.y.numpy()


def test_scores_are_those_of_scikit_learn(found: tuple[bnn.Prediction, np.ndarray]) -> None:
    prediction, y = found
    probs = prediction.probs.double().numpy()
    probs /= probs.sum(1, keepdims=True)
    assert accuracy(probs, y) == metrics.accuracy_score(y, probs.argmax(1)) > 0.8
    one_hot = np.eye(10)[y]
    assert brier(probs, y).mean() == pytest.approx(10 * metrics.mean_squared_error(one_hot, probs))
    log_loss = metrics.log_loss(y, probs, labels=range(10))
    assert float(prediction.log_prob(prediction.draws.new_tensor(y)).mean()) == pytest.approx(
        -log_loss, rel=1e-5
    )


def test_uncertainty_adds_up_and_finds_the_errors(found: tuple[bnn.Prediction, np.ndarray]) -> None:
    prediction, y = found
    assert prediction.class_probs is not None
    parts = class_uncertainty(prediction.class_probs.double().numpy())
    total = parts.expected_entropy + parts.mutual_information
    assert_allclose(prediction.entropy.numpy(), total, rtol=0, atol=1e-6)
    assert_allclose(prediction.mutual_information.numpy(), parts.mutual_information, atol=1e-6)
    correct = prediction.probs.argmax(1).numpy() == y
    for uncertainty in (parts.entropy, parts.mutual_information):
        curve = rejection_curve(uncertainty, correct)
        assert curve.gain > 0.5
        # of a random wrong and a random right row, the wrong one is the more uncertain
        assert metrics.roc_auc_score(~correct, uncertainty) > 0.75
        assert curve.accuracy[-1] == correct.mean()


def test_the_reliability_diagram_holds_every_row(found: tuple[bnn.Prediction, np.ndarray]) -> None:
    prediction, y = found
    probs = prediction.probs.double().numpy()
    curve = reliability_curve(probs, y)
    some = curve.count > 0
    assert (len(curve.count), int(curve.count.sum())) == (15, len(y))
    assert (curve.count[some] @ curve.accuracy[some]) / len(y) == pytest.approx(accuracy(probs, y))
    assert (curve.count[some] @ curve.confidence[some]) / len(y) == pytest.approx(
        probs.max(1).mean()
    )
    correct = probs.argmax(1) == y
    gaps = correct - probs.max(1)
    # by Jensen's inequality, once for the rows of a bin and once for the bins
    assert abs(gaps.mean()) <= ece(probs, y) <= np.abs(gaps).mean()
    assert 0 < ece_floor(probs, num_repeats=20) < np.abs(gaps).mean()
