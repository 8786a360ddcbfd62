"""Densities of features: against scikit-learn's discriminant analyses, and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance, LedoitWolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from torch import Tensor, nn
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.diagnostics import DDU, FeatureDensity, Mahalanobis
from pyro_bnn.diagnostics.one_pass.features import FeatureNet
from pyro_bnn.errors import DataError, ModelError, OptionError, ShapeError
from tests.report.beyond.known import constant, images

RNG = np.random.default_rng(0)
LABELS = RNG.permutation(np.repeat([0, 1, 3], [40, 60, 50]))
H = RNG.normal(size=(150, 4)) @ RNG.normal(size=(4, 4)) + LABELS[:, None] * RNG.normal(size=4)
NEW = RNG.normal(size=(30, 4)) * 3


def posterior_of_classes(density: FeatureDensity) -> np.ndarray:
    """Class probabilities by Bayes' rule, of the density's own parts."""
    of_classes = []
    for c, mean in enumerate(density.means):
        S = density.covariances[c if len(density.covariances) > 1 else 0]
        of_classes.append(density.log_priors[c] + stats.multivariate_normal(mean, S).logpdf(NEW))
    total = np.stack(of_classes, -1)
    assert_allclose(density.log_density(NEW), logsumexp(total, -1))  # SciPy's density
    return np.asarray(np.exp(total - logsumexp(total, -1, keepdims=True)))


def test_a_shared_covariance_is_linear_discriminant_analysis() -> None:
    density = FeatureDensity(H, LABELS, covariance="shared", shrinkage=0)
    other = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(H, LABELS)
    assert_allclose(density.covariances[0], other.covariance_)
    assert_allclose(posterior_of_classes(density), other.predict_proba(NEW), atol=1e-12)


def test_own_covariances_are_quadratic_discriminant_analysis() -> None:
    density = FeatureDensity(H, LABELS, shrinkage=0)
    other = QuadraticDiscriminantAnalysis(store_covariance=True).fit(H, LABELS)
    # theirs is over N or N - 1, by the version
    for own, theirs, count in zip(
        density.covariances, other.covariance_, (40, 60, 50), strict=True
    ):
        factor = own[0, 0] / theirs[0, 0]
        assert min(abs(factor - 1), abs(factor - (count - 1) / count)) < 1e-9
        assert_allclose(own, theirs * factor)
    if np.allclose(density.covariances, other.covariance_):
        assert_allclose(posterior_of_classes(density), other.predict_proba(NEW), atol=1e-10)


def test_distances_are_mahalanobis() -> None:
    density = FeatureDensity(H, LABELS, shrinkage=0)
    for c, label in enumerate((0, 1, 3)):
        other = EmpiricalCovariance().fit(H[label == LABELS])
        assert_allclose(density.squared_distances(NEW)[:, c], other.mahalanobis(NEW))


def test_auto_is_ledoit_and_wolf() -> None:
    density = FeatureDensity(H, LABELS)
    for c, label in enumerate((0, 1, 3)):
        other = LedoitWolf().fit(H[label == LABELS])
        assert_allclose(density.covariances[c], other.covariance_)
        assert density.shrinkages[c] == pytest.approx(other.shrinkage_)


def test_few_rows_are_well_posed_by_shrinkage_alone() -> None:
    few = np.array([*np.flatnonzero(LABELS == 0)[:3], *np.flatnonzero(LABELS == 1)[:3]])
    assert np.isfinite(FeatureDensity(H[few], LABELS[few]).log_density(NEW)).all()
    with pytest.raises(DataError, match='Take shrinkage="auto" or a number above 0'):
        FeatureDensity(np.hstack([H, H[:, :1] * 0]), LABELS, shrinkage=0)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"covariance": "full"}, OptionError, '"own" or "shared", not \'full\''),
        ({"shrinkage": 2.0}, OptionError, "a number from 0 to 1, not 2.0"),
        ({"labels": LABELS[:3]}, ShapeError, r"labels has shape \[3\]"),
        ({"labels": np.arange(150)}, DataError, "class 0 has one row"),
    ],
)
def test_what_is_refused(change: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        FeatureDensity(**{"features": H, "labels": LABELS, **change})  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="features has 2 columns, those of the fit 4"):
        FeatureDensity(H, LABELS).log_density(NEW[:, :2])


class Net(nn.Module):
    """Convolutions, a pooling by name, and dropout that is off where features are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"conv": nn.Conv2d(1, 3, 3), "avgpool": nn.AdaptiveAvgPool2d(1)})
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body["avgpool"](torch.tanh(self.body["conv"](x.reshape(-1, 1, 4, 4))))
        logits: Tensor = self.head(self.drop(h.flatten(1)))
        return logits


def test_features_are_the_output_of_a_named_layer_or_the_input_of_the_last_one() -> None:
    net, x = Net(), torch.randn(700, 16)
    net.body["conv"].eval()
    expected = torch.tanh(net.body["conv"](x.reshape(-1, 1, 4, 4))).mean((2, 3))
    named, logits = FeatureNet(net, "body.avgpool").of_rows(x)
    assert_close(named, expected.detach())
    assert_close(logits, net.head(expected).detach())
    default, _ = FeatureNet(net).of_rows(x)
    assert_close(default, expected.detach())  # dropout is off
    assert net.training
    assert not net.body["conv"].training  # each module as it was
    assert not net.head._forward_pre_hooks
    with pytest.raises(OptionError, match=r"no layer 'body\.pool': name one of body, body\.conv"):
        FeatureNet(net, "body.pool")
    with pytest.raises(OptionError, match=r"no torch\.nn\.Linear .* layer='0'"):
        FeatureNet(nn.Sequential(nn.Identity()))
    with pytest.raises(ShapeError, match="name a layer behind the pooling"):
        FeatureNet(nn.Sequential(nn.Identity(), nn.Linear(5_000, 2)))(torch.zeros(1, 5_000))


def test_scores_are_of_the_features() -> None:
    net, x = Net(), torch.randn(60, 16)
    y = torch.arange(60) % 2
    h = FeatureNet(net).of_rows(x)[0].double().numpy()
    ddu, near = DDU(net).fit((x, y)), Mahalanobis(net, "body.avgpool").fit((x, y))
    own = FeatureDensity(h, y.numpy())
    found = ddu.predict(x)
    assert_allclose(found.novelty["feature density"], -own.log_density(h), rtol=1e-5)
    shared = FeatureDensity(h, y.numpy(), covariance="shared").squared_distances(h).min(1)
    assert_allclose(near.predict(x).novelty["feature density"], shared, rtol=1e-4)
    net.eval()
    assert_close(found.probs, net(x).softmax(-1).detach())
    assert_close(found.log_prob(y), net(x).log_softmax(-1).gather(1, y[:, None])[:, 0].detach())
    with pytest.raises(OptionError, match=r"this DDU has seen no rows: call fit\(data\)"):
        DDU(net).predict(x)
    with pytest.raises(DataError, match="classes as whole numbers from 0"):
        DDU(net).fit((x, torch.randn(60)))


def test_rows_are_taken_as_a_data_set_takes_them() -> None:
    net, x, y = Net(), torch.randn(60, 16), torch.arange(60) % 2
    expected = DDU(net).fit((x, y)).predict(x).novelty["feature density"]
    names = np.array(["ill", "well"])[y.numpy()]
    for rows, classes in ((x, names), (x.double(), y), (x.numpy(), y.tolist())):
        ddu = DDU(net).fit((rows, classes))
        assert_allclose(ddu.predict(x.double()).novelty["feature density"], expected)


def test_images_of_another_layout_are_refused_with_their_shape() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    rows = torch.randn(6, 8, 8, 3), torch.arange(6) % 2
    with pytest.raises(
        ModelError, match=r"fails on x \[6, 8, 8, 3\] of torch.float32: Given .*permute"
    ):
        DDU(net).fit(rows)


def test_trust_has_a_row_for_each_score_that_a_method_has() -> None:
    split, other = images(), images(seed=1)
    ddu = DDU(Net().double()).fit(split.train)
    methods: Any = {"ddu": ddu, "known": constant(0.8, split.test.y)}
    found = bnn.trust(methods, split, ood=other)
    of = found.unknown[found.unknown["score"] == "feature density"]
    assert of["method"].tolist() == ["ddu"]
    assert set(found.unknown[found.unknown["score"] == "entropy"]["method"]) == {"ddu", "known"}
    with pytest.raises(OptionError, match="which ddu has none of: leave attack out"):
        bnn.trust({"ddu": ddu}, split, attack=0.1)
