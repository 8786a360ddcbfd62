"""SNGP: its covariance against a Gaussian process, its bound against SVD, its formula by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor, nn
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.diagnostics import DDU, SNGP, auroc, bound_spectral_norms
from pyro_bnn.diagnostics.one_pass.features import FeatureNet
from pyro_bnn.diagnostics.one_pass.random_features import (
    RandomFeatures,
    laplace_roots,
    laplace_variance,
)
from pyro_bnn.diagnostics.one_pass.sngp import _layers_before
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.report.beyond.plots import PLOTS
from pyro_bnn.report.plots.figures import Figures
from tests.report.beyond.known import images

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(90, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()


def norm(weight: Tensor) -> float:
    return float(np.linalg.svd(weight.detach().flatten(1).numpy(), compute_uv=False)[0])


def residual() -> Any:
    """A network with residual blocks, whose first weights are far above the bound."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))

        def forward(self, h: Tensor) -> Tensor:
            value: Tensor = h + self.inner(h)
            return value

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net: Any = nn.Sequential(nn.Linear(4, 6), Block(), nn.Linear(6, 3))
    with torch.no_grad():
        net[1].inner[0].weight.mul_(5)
        net[1].inner[2].weight.mul_(0.1)
    return net


def test_the_variance_is_that_of_a_gaussian_process_as_features_become_many() -> None:
    h, new = (torch.randn(n, 2, generator=GENERATOR).double() for n in (40, 25))
    exact = GaussianProcessRegressor(RBF(0.7), alpha=0.1, optimizer=None)
    _, sd = exact.fit(h.numpy(), np.zeros(40)).predict(new.numpy(), return_std=True)
    errors = []
    for num_features in (200, 6_000):
        phi = RandomFeatures(2, num_features, length_scale=0.7, like=h)
        roots = laplace_roots(phi(h), torch.full((40, 1), 1 / 0.1).double())
        errors.append(np.abs(laplace_variance(roots, phi(new))[:, 0].numpy() - sd**2).max())
    assert errors[1] < 0.04
    assert errors[1] < 0.5 * errors[0]  # as one over the root of M


def test_the_covariance_is_the_inverse_of_its_definition() -> None:
    phi, curvature = torch.randn(30, 5).double(), torch.rand(30, 2).double()
    found = laplace_variance(laplace_roots(phi, curvature), phi)
    for k in range(2):
        precision = torch.einsum("n,ni,nj->ij", curvature[:, k], phi, phi) + torch.eye(5)
        expected = torch.einsum("ni,ij,nj->n", phi, torch.linalg.inv(precision), phi)
        assert_close(found[:, k], expected)


def test_norms_are_kept_below_the_bound_and_others_as_they_are() -> None:
    net, before = residual(), residual()
    names = bound_spectral_norms(net, 0.9, ["1.inner.0", "1.inner.2"])
    assert names == ("1.inner.0", "1.inner.2")
    assert norm(before[1].inner[0].weight) > 2
    assert norm(net[1].inner[0].weight) == pytest.approx(0.9, rel=1e-3)
    assert_close(net[1].inner[2].weight, before[1].inner[2].weight)
    conv: Any = nn.Sequential(nn.Conv2d(3, 8, 3))
    with torch.no_grad():
        conv[0].weight.mul_(10)
    bound_spectral_norms(conv, 0.5)
    assert norm(conv[0].weight) == pytest.approx(0.5, rel=1e-3)
    with pytest.raises(OptionError, match=r"'2' is no linear layer .* name some of 0"):
        bound_spectral_norms(conv, 0.5, ["2"])


def test_norms_hold_after_training_and_the_given_net_is_left_alone() -> None:
    net = residual()
    kept = {name: value.clone() for name, value in net.state_dict().items()}
    sngp = SNGP(net, num_features=50, num_steps=80, learning_rate=0.03).fit((X, Y))
    assert_close(dict(net.state_dict()), kept)
    trained: Any = sngp.features.net
    for layer in (trained[0], trained[1].inner[0], trained[1].inner[2]):
        assert norm(layer.weight) <= 0.95 * 1.001
    assert not hasattr(trained[2], "parametrizations")  # behind the features
    assert np.mean(sngp.losses[-10:]) < 0.7 * sngp.losses[0]


def test_a_second_fit_starts_from_the_given_net_and_is_the_first_again() -> None:
    sngp = SNGP(residual(), num_features=50, num_steps=40, learning_rate=0.03)
    first = sngp.fit((X, Y)).predict(X).probs
    assert_close(sngp.fit((X, Y)).predict(X).probs, first, rtol=0, atol=0)


def test_logits_are_those_of_the_mean_field_formula() -> None:
    sngp = SNGP(residual(), num_features=30, num_steps=40, norm_bound=None).fit((X, Y))
    assert sngp.random_features is not None
    phi = sngp.random_features(FeatureNet(sngp.features.net).of_rows(X)[0]).double()
    beta = sngp.weight.detach().double()
    p = (phi @ beta.T).softmax(-1)
    new = phi[:7]
    expected = []
    for k in range(3):
        precision = torch.einsum("n,ni,nj->ij", p[:, k] * (1 - p[:, k]), phi, phi) + torch.eye(30)
        v = torch.einsum("ni,ij,nj->n", new, torch.linalg.inv(precision), new)
        expected.append(new @ beta[k] / (1 + math.pi / 8 * v).sqrt())
    found = sngp.predict(X[:7]).function_draws[0].double()
    assert_close(found, torch.stack(expected, -1), rtol=1e-4, atol=1e-5)


def test_far_inputs_are_told_apart_and_their_probabilities_are_near_uniform() -> None:
    net: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(4))
        net[0].bias.zero_()
    sngp = SNGP(net, num_features=200, num_steps=100, learning_rate=0.05, train_body=False)
    sngp.fit((X, Y))
    near, far = sngp.predict(X), sngp.predict(X + 30)
    score = "feature variance"
    assert auroc(near.novelty[score], far.novelty[score]) > 0.99
    assert float(far.entropy.mean()) > float(near.entropy.mean())
    assert far.novelty[score].mean() == pytest.approx(25, rel=0.2)  # the prior's, 5 squared


def test_a_seed_repeats_and_the_random_state_is_left_alone() -> None:
    state = torch.get_rng_state()
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 3))
    state = torch.get_rng_state()
    one, two = (SNGP(net, num_features=20, num_steps=20).fit((X, Y)) for _ in range(2))
    assert torch.equal(one.predict(X).probs, two.predict(X).probs)
    assert torch.equal(torch.get_rng_state(), state)


def test_layers_before_the_features_are_found_in_a_pass() -> None:
    class Out(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(6, 3), nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            value: Tensor = self.head(self.body(x))
            return value

    assert _layers_before(FeatureNet(Out(), "body"), X[:2]) == ["body"]
    assert _layers_before(FeatureNet(Out(), "head"), X[:2]) == ["body", "head"]


def test_what_is_refused() -> None:
    with pytest.raises(OptionError, match="norm_bound"):
        SNGP(residual(), norm_bound=-1.0)
    with pytest.raises(OptionError, match="num_steps"):
        SNGP(residual(), num_steps=0)
    with pytest.raises(OptionError, match=r"call fit\(data\) with the training rows first"):
        SNGP(residual()).predict(X)
    with pytest.raises(DivergenceError, match="lower learning_rate from 1e"):
        SNGP(residual(), num_features=20, num_steps=60, learning_rate=1e30).fit((X, Y))


def test_trust_judges_it() -> None:
    split, other = images(), images(seed=1)
    net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    methods: Any = {"SNGP": SNGP(net, num_features=32, num_steps=20).fit(split.train)}
    methods["DDU"] = DDU(net).fit(split.train)
    found = bnn.trust(methods, split, ood=other)
    assert Figures(found, PLOTS).drawn("unknown").figure.axes  # a bar where a method has a score
    assert "By its feature variance SNGP has AUROC" in found.summary()
    assert "feature variance" in set(found.unknown["score"])
    assert found.table.loc["SNGP", "log_score"] < 0
