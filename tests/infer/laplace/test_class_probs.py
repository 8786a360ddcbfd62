"""Probabilities of classes from Gaussian logits, against their formulas and against draws."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import Laplace, bayesian, likelihoods
from pyro_bnn.errors import ModelError, OptionError
from pyro_bnn.posterior.class_probabilities import GaussianLogits, bridge, logits_of
from tests.infer.laplace.test_heads import LIKELIHOODS, C, D, X, Y, covariance, fit, frozen

NEW = torch.linspace(-2, 2, 7 * D, dtype=torch.float64).reshape(D, 7).mT.contiguous()


def deep() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 3), nn.Tanh(), nn.Linear(3, C)).double()
    return bayesian(net, likelihood=LIKELIHOODS["classes"])


@pytest.mark.parametrize("structure", ["kron", "full", "diagonal", "low_rank"])
@pytest.mark.parametrize("model", [frozen("classes"), deep()], ids=["head", "deep"])
def test_logits_have_the_covariance_of_the_linear_network(model: Any, structure: Any) -> None:
    posterior = fit(model, "classes", structure=structure, num_steps=100)
    program, z = posterior.program, posterior.guide.centre().detach()
    logits = logits_of(program, posterior.guide, posterior._head, NEW, posterior.params)
    J = torch.func.jacrev(lambda z: program.function(z, NEW))(z)  # [N, C, P]
    S = J @ covariance(posterior) @ J.mT
    assert_close(logits.mean, program.function(z, NEW), rtol=1e-9, atol=1e-9)
    assert_close(logits.variance(), S.diagonal(dim1=1, dim2=2), rtol=1e-7, atol=1e-10)
    assert_close(logits.sums(), S.sum(-1), rtol=1e-7, atol=1e-9)
    noise = torch.randn(20_000, *logits.scale.shape, dtype=torch.float64)
    spread = (logits.draws(noise) - logits.mean)[:, 0]
    error = (S[0].diagonal().outer(S[0].diagonal()) + S[0].square()).sqrt() / 20_000**0.5
    assert float(((spread.mT @ spread / 20_000 - S[0]) / error).abs().max()) < 5


def test_probabilities_by_all_three_ways_agree_with_predictions() -> None:
    for model, options in ((frozen("classes"), {"structure": "kron"}), (deep(), {})):
        posterior = fit(model, "classes", num_steps=100, **options)
        expected = posterior.predict(NEW, 4_000).probs
        for by, bound in (("draws", 0.04), ("probit", 0.06), ("bridge", 0.15)):
            actual = posterior.class_probs(NEW, by=by, num_samples=4_000)
            assert_close(actual.sum(-1), torch.ones(7).double(), rtol=1e-9, atol=0)
            assert float((actual - expected).abs().max()) < bound


def test_the_bridge_is_the_inverse_of_a_dirichlet_distribution_as_a_gaussian() -> None:
    """In the basis of the softmax, and whatever all logits have in common."""
    alpha = torch.tensor([[0.7, 2.0, 5.0, 1.5], [3.0, 3.0, 3.0, 9.0]], dtype=torch.float64)
    inverse, count = alpha.reciprocal(), alpha.shape[1]
    mean = alpha.log() - alpha.log().mean(-1, keepdim=True) + 0.8
    S = inverse.diag_embed() - (inverse[:, :, None] + inverse[:, None]) / count
    S = S + inverse.sum(-1)[:, None, None] / count**2 + 0.3
    root = torch.linalg.cholesky(S)
    logits = GaussianLogits(mean, root, torch.ones(2, count, dtype=torch.float64))
    assert_close(bridge(logits), alpha / alpha.sum(-1, keepdim=True), rtol=1e-9, atol=0)


def test_of_two_classes_the_probit_is_mackays() -> None:
    posterior = fit(frozen("binary"), "binary")
    logits = logits_of(posterior.program, posterior.guide, None, NEW, posterior.params)
    expected = torch.sigmoid(logits.mean / (1 + math.pi * logits.variance() / 8).sqrt())
    assert_close(posterior.class_probs(NEW), expected)
    by_draws = posterior.class_probs(NEW, by="draws", num_samples=4_000)
    assert float((by_draws - expected).abs().max()) < 0.03
    with pytest.raises(OptionError, match="three or more classes"):
        posterior.class_probs(NEW, by="bridge")
    with pytest.raises(OptionError, match="class_probs is of classes, and y is Normal here"):
        fit(frozen("normal"), "normal").class_probs(NEW)


def test_a_jacobian_that_is_too_large_names_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = fit(deep(), "classes", num_steps=10)
    monkeypatch.setattr("pyro_bnn.program.linearised.JACOBIAN", 1)
    with pytest.raises(ModelError, match="call predict"):
        posterior.class_probs(NEW)


def test_a_head_predicts_as_the_linear_network_does() -> None:
    """It is linear already, and is predicted by the network itself."""
    posterior = fit(frozen("classes"), "classes")
    assert posterior.predictor is posterior.program
    f = posterior.function_draws(NEW, 50)
    z = posterior.unconstrained(50)
    expected: Tensor = torch.stack([posterior.program.function(row, NEW) for row in z])
    assert_close(f, expected)


@pytest.mark.slow("the curvature of a transformer by its Hessian")
def test_layers_of_attention_that_torch_fuses() -> None:
    """Its fused kernel has no second derivative: plain matrix products are in its place."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.inside, self.head = (
                nn.Linear(1, 16),
                nn.Linear(16, 48),
                nn.Linear(16, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x.unsqueeze(-1))
            parts = self.inside(h).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts)
            found: Tensor = self.head((h + mixed.transpose(1, 2).flatten(2)).mean(1))
            return found

    torch.manual_seed(0)
    net, x, y = Attention(), X.float(), Y["classes"]
    for options in (
        {"structure": "diagonal", "curvature": "hessian"},
        {"subset": "last_layer", "structure": "kron"},
    ):
        model = bayesian(net, likelihood=likelihoods.Categorical(C))
        given: dict[str, Any] = {"num_steps": 150, "compile": False, **options}
        posterior: Any = Laplace(**given).run(model, (x, y), progress=False)
        assert posterior.newton_decrement < 0.5
        assert bool(posterior.predict(x, 20).probs.isfinite().all())
