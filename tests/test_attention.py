"""Attention of torch: its fused kernels lack derivatives, and what is computed has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from pyro_bnn import VON, Laplace, likelihoods, models, priors

X = torch.randn(10, 3, 2, generator=torch.Generator().manual_seed(0))
Y = X[:, 0, :1]


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights: Tensor = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return weights @ v


class Fused(nn.Module):
    """Attention of one head by a function."""

    def __init__(self, attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attention, self.three, self.head = attention, nn.Linear(2, 6), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.three(x).unsqueeze(1).chunk(3, -1)
        return self.head(self.attention(q, k, v).squeeze(1).mean(1))


class Layer(nn.Module):
    """A layer of torch, which has a fast path in evaluation mode for an even number of heads."""

    def __init__(self, *, is_encoder: bool) -> None:
        super().__init__()
        self.layer: nn.Module = nn.MultiheadAttention(2, 2, batch_first=True)
        if is_encoder:
            self.layer = nn.TransformerEncoderLayer(2, 2, 3, dropout=0.0, batch_first=True)
        self.head = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Any:
        is_encoder = isinstance(self.layer, nn.TransformerEncoderLayer)
        h = self.layer(x) if is_encoder else self.layer(x, x, x, need_weights=False)[0]
        return self.head(h.mean(1))


def model_of(net: nn.Module) -> Any:
    return models.bayesian(net, priors.Normal(), likelihoods.Normal(0.5))


def test_laplace_of_fused_attention_is_that_of_attention_by_hand() -> None:
    """The fused kernel's gradient has no derivative: torch's own error ended the fit."""
    found = [
        Laplace(structure="diagonal", num_steps=300).run(
            model_of(Fused(attention)), (X, Y), progress=False
        )
        for attention in (scaled_dot_product_attention, by_hand)
    ]
    fused, hand = ([*of.guide.parameters()] for of in found)
    torch.testing.assert_close(fused, hand, rtol=1e-2, atol=1e-3)
    predictions = [of.predict(X, num_samples=20).mean for of in found]
    torch.testing.assert_close(*predictions, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("is_encoder", [False, True])
def test_layers_in_evaluation_are_fitted_as_they_are_in_training(*, is_encoder: bool) -> None:
    """Torch's fast path has no gradient, and takes over where no parameter asks for one."""
    layers = Layer(is_encoder=is_encoder).eval(), Layer(is_encoder=is_encoder).train()
    found = [VON(num_steps=3).run(model_of(of), (X, Y), progress=False) for of in layers]
    torch.testing.assert_close(*([*of.guide.parameters()] for of in found), rtol=1e-3, atol=1e-4)
    assert torch.backends.mha.get_fastpath_enabled()
