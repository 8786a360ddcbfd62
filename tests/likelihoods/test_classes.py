"""Classes: f as logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.likelihoods import Bernoulli, Categorical
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Program


def test_bernoulli_probability_is_the_logistic_of_f() -> None:
    f = torch.tensor([[0.0], [2.0], [-1.0]])
    fn = Bernoulli().distribution(f)
    assert (fn.batch_shape, fn.event_shape) == ((3,), ())
    assert_close(fn.mean, torch.tensor([0.5, 1 / (1 + math.exp(-2)), 1 / (1 + math.e)]))


@pytest.mark.parametrize("num_targets", [1, 2])
def test_a_confident_wrong_class_costs_its_logit_and_is_pulled_back(num_targets: int) -> None:
    """log sigma(-200) = -200 - log(1 + e^-200), whose slope in f is -1."""
    f = torch.full((1, num_targets), 200.0, requires_grad=True)
    y = torch.zeros(1) if num_targets == 1 else torch.zeros(1, num_targets)
    log_p = Bernoulli().distribution(f).log_prob(y).sum()
    assert log_p.item() == -200.0 * num_targets
    (slope,) = torch.autograd.grad(log_p, f)
    assert_close(slope, -torch.ones(1, num_targets), rtol=0, atol=0)


def test_both_classes_have_probabilities_to_the_last_digit_in_float32() -> None:
    f = torch.tensor([-80.0, -20.0, 0.0, 20.0, 80.0])
    model = bnn.models.MLP(1, hidden=(), likelihood=Bernoulli())
    program = Program(model, torch.zeros(2, 1), torch.tensor([0, 1]))
    z = torch.stack([torch.zeros(5), f], 1)  # weights of 0, the bias is the logit
    draws = DrawsPosterior(program, z[None], Provenance("made", "none"))
    probs = draws.predict(torch.zeros(1, 1), 5).class_probs
    assert probs is not None
    expected = torch.stack([-f, f], 1).double().sigmoid().float()
    assert_close(probs[:, 0], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32])
def test_bernoulli_takes_labels_of_any_dtype(dtype: torch.dtype) -> None:
    y = Bernoulli()(torch.zeros(3, 1), torch.tensor([0, 1, 1], dtype=dtype))
    assert_close(y, torch.tensor([0.0, 1.0, 1.0]))


def test_several_logits_are_targets_of_a_row() -> None:
    f = torch.tensor([[0.0, 2.0], [-1.0, 0.5]])
    y = torch.tensor([[1, 0], [0, 0]])
    fn = Bernoulli().distribution(f)
    assert (fn.batch_shape, fn.event_shape) == ((2,), (2,))
    p = 1 / (1 + (-f).exp())
    assert_close(fn.log_prob(y.float()), torch.where(y == 1, p, 1 - p).log().sum(1))
    assert_close(Bernoulli()(f, y), y.float())


def test_one_label_a_row_needs_one_logit() -> None:
    with pytest.raises(
        ShapeError, match=r"f \[N, 1\], one logit, for y \[N\].* 3 columns.*al\(3\)"
    ):
        Bernoulli()(torch.zeros(4, 3), torch.zeros(4))


@pytest.fixture(scope="module")
def labelled() -> tuple[bnn.Posterior, bnn.Split]:
    """Two binary targets, the second of which is the first one turned round."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=generator)
    y = (x[:, 0] > 0).long()
    split = bnn.data.from_arrays(x, torch.stack([y, 1 - y], 1), task="counts", test_fraction=0.25)
    model = bnn.models.MLP(2, 2, hidden=(), likelihood=Bernoulli())
    fit = bnn.SVI(bnn.guides.AutoNormal, num_steps=300, learning_rate=0.05, compile=False)
    return fit.run(model, split.train, progress=False), split


def test_several_binary_targets_have_means_and_densities_of_rows(
    labelled: tuple[bnn.Posterior, bnn.Split],
) -> None:
    posterior, split = labelled
    prediction = posterior.predict(split.test.x, 500)
    p = prediction.function_draws.sigmoid()  # [S, N, O]
    assert_close(prediction.mean, p.mean(0))
    assert_close(prediction.sd**2, prediction.mean * (1 - prediction.mean), rtol=1e-4, atol=1e-6)
    y = split.test.y
    joint = torch.where(y == 1, p, 1 - p).prod(-1).mean(0).log()
    assert_close(prediction.log_prob(y), joint, rtol=1e-4, atol=1e-5)
    assert set(prediction.draws.unique().tolist()) == {0.0, 1.0}
    assert set(prediction.quantile([0.1, 0.5, 0.9]).unique().tolist()) == {0.0, 1.0}
    with pytest.raises(OptionError, match="probs describe classes"):
        _ = prediction.probs


def test_the_crps_of_binary_targets_is_their_brier_score(
    labelled: tuple[bnn.Posterior, bnn.Split],
) -> None:
    posterior, split = labelled
    comparison = bnn.compare({"it": posterior}, split, num_samples=500)
    drawn = posterior.predict(split.test.x, 500).draws.mean(0)
    brier = (split.test.y - drawn).square().mean()
    fair = brier - (drawn * (1 - drawn)).mean() / 499  # less what few draws add
    assert comparison.table["crps"]["it"] == pytest.approx(float(fair), rel=1e-5)


def test_categorical_probabilities_are_the_softmax_of_f() -> None:
    f = torch.log(torch.tensor([[1.0, 2.0, 5.0], [4.0, 3.0, 1.0]])) + 3.0
    fn: Any = Categorical(3).distribution(f)
    assert (fn.batch_shape, fn.event_shape) == ((2,), ())
    assert_close(fn.probs, torch.tensor([[1.0, 2.0, 5.0], [4.0, 3.0, 1.0]]) / 8)


@pytest.mark.parametrize("num_classes", [1, 0, -3, 2.0, "3"])
def test_numbers_of_classes_that_are_none_are_refused(num_classes: Any) -> None:
    with pytest.raises(
        OptionError, match=f"num_classes is an integer of at least 2, not {num_classes!r}"
    ):
        Categorical(num_classes)
