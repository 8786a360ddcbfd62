r"""Spectral-normalised neural Gaussian process: distance-aware probabilities of one pass.

.. math:: \ell_k(x) = \frac{\phi(h(x))^\top \beta_k}{\sqrt{1 + \tfrac\pi8 v_k(x)}}, \qquad
          v_k = \phi^\top \Bigl(\sum_n p_{nk}(1 - p_{nk})\, \phi_n \phi_n^\top + I\Bigr)^{-1} \phi

h is the body of a network whose weights have a bounded spectral norm (`spectral_bound`), and
:math:`\phi` are random Fourier features (`random_features`). Far from the training rows v is the
prior's, and the probabilities become uniform.

References:
    Liu et al., "Simple and Principled Uncertainty Estimation with Deterministic Deep Learning via
    Distance Awareness", NeurIPS 2020, arXiv:2006.10108.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pyro_bnn.checks import check_positive, check_positive_int
from pyro_bnn.data.arrays import ArrayLike
from pyro_bnn.data.dataset import Dataset
from pyro_bnn.diagnostics.one_pass.features import FeatureNet
from pyro_bnn.diagnostics.one_pass.random_features import (
    RandomFeatures,
    laplace_roots,
    laplace_variance,
)
from pyro_bnn.diagnostics.one_pass.single_pass import OnePass, rows_of
from pyro_bnn.diagnostics.one_pass.spectral_bound import KINDS, bound_spectral_norms, settle
from pyro_bnn.errors import DivergenceError
from pyro_bnn.program.random_state import isolated, seeded

FOR_SCALE = 512  # rows whose distances give the length scale
MOST_OF_EACH = 32  # classes up to which each has a covariance of its own
FEATURE_VARIANCE = "feature variance"


class SNGP(OnePass):
    """A network whose last layer is a Gaussian process by random features, trained by `fit`.

    Its body may be trained already, and is trained on; the layers behind the features, such as the
    last linear one, are not used. Scores of `trust` are those of its probabilities, and
    ``"feature variance"``: v with 1 in place of p (1 - p), which falls to 0 where the network is
    sure, so that v itself stays large beside training rows. Of more than 32 classes all share one
    covariance, of the curvature of each row's likeliest class.

    Args:
        net: A network from x ``[N, ...]`` to logits ``[N, C]``; a copy is trained.
        layer: Path of the module whose output are the features h; by default the input of the last
            ``torch.nn.Linear``.
        num_features: Number M of random features.
        norm_bound: Largest spectral norm of the bounded layers; None for no bound.
        bounded: Paths of these layers, such as those inside residual blocks; by default all linear
            layers and convolutions before the features.
        length_scale: Of the kernel, in the units of h; None for the median distance of the features
            of two training rows before the fit.
        amplitude: Prior standard deviation of a logit.
        num_steps: Steps of Adam.
        batch_size: Rows a step.
        learning_rate: Step size at the start, which decays to 0 by a cosine.
        train_body: Whether the body is trained; else its features are computed once.
        seed: Of the random features, batches and dropout.

    Raises:
        OptionError: If there is no such layer, or a number is not allowed.

    Example:
        >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> sngp = SNGP(net, num_features=64, num_steps=20).fit((x, y))
        >>> sngp.predict(x[:2]).probs.shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        net: nn.Module,
        layer: str | None = None,
        *,
        num_features: int = 1_024,
        norm_bound: float | None = 0.95,
        bounded: Sequence[str] | None = None,
        length_scale: float | None = None,
        amplitude: float = 5.0,
        num_steps: int = 1_000,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        train_body: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(net, layer)
        for name, count in (
            ("num_features", num_features), ("num_steps", num_steps), ("batch_size", batch_size)
        ):  # fmt: skip
            check_positive_int(name, count)
        for name, value in (
            ("norm_bound", norm_bound), ("length_scale", length_scale),
            ("amplitude", amplitude), ("learning_rate", learning_rate),
        ):  # fmt: skip
            if value is not None:
                check_positive(name, value)
        self.num_features, self.norm_bound, self.bounded = num_features, norm_bound, bounded
        self.length_scale, self.amplitude = length_scale, amplitude
        self.num_steps, self.batch_size, self.learning_rate = num_steps, batch_size, learning_rate
        self.train_body, self.seed = train_body, seed
        self.losses: list[float] = []
        self.random_features: RandomFeatures | None = None
        self._net, self._layer = net, layer

    def fit(self, data: Dataset | tuple[ArrayLike, ArrayLike]) -> Self:
        """Train a copy of the network and the last layer, then take the covariance in one pass.

        Each fit starts from the network that was given.

        Args:
            data: Rows in the units of the network, a ``Dataset`` or a pair (x, y).

        Raises:
            DataError: If y are no classes.
            DivergenceError: If the loss becomes NaN or infinite.
        """
        x, y = rows_of(data)
        net = copy.deepcopy(self._net)
        self.features = FeatureNet(net, self._layer)
        if self.norm_bound is not None and self.train_body:
            layers = self.bounded
            if layers is None:
                layers = _layers_before(self.features, x[:2])
            bound_spectral_norms(net, self.norm_bound, layers)
        h, logits = self.features.of_rows(x)
        scale = self.length_scale
        if scale is None:
            some = h[:: max(1, len(h) // FOR_SCALE)].double()
            scale = max(float(torch.pdist(some).median()), 1e-6) if len(some) > 1 else 1.0
        self.random_features = phi = RandomFeatures(
            h.shape[1],
            self.num_features,
            length_scale=scale,
            amplitude=self.amplitude,
            seed=self.seed,
            like=h,
        )
        num_classes = max(logits.shape[-1], int(y.max()) + 1)
        self.weight = nn.Parameter(h.new_zeros(num_classes, self.num_features))
        with isolated(self.seed):  # dropout draws from torch's own generator
            self._train(x, y, h)
        settle(net)
        h, _ = self.features.of_rows(x)
        probs = (phi(h) @ self.weight.detach().mT).softmax(-1)
        if num_classes > MOST_OF_EACH:
            probs = probs.amax(-1, keepdim=True)
        self._roots = laplace_roots(phi(h), probs * (1 - probs))
        self._root = laplace_roots(phi(h), torch.ones_like(probs[:, :1]))
        return self

    def _train(self, x: Tensor, y: Tensor, h: Tensor) -> None:
        assert self.random_features is not None
        net, num_rows = self.features.net, len(x)
        body = [p for p in net.parameters() if p.requires_grad] if self.train_body else []
        optimizer = torch.optim.Adam([*body, self.weight], lr=self.learning_rate)
        generator = seeded(self.seed)
        size, order = min(self.batch_size, num_rows), torch.empty(0, dtype=torch.long)
        modes = {module: module.training for module in net.modules()}
        net.train(self.train_body)
        self.losses = []
        for step in range(self.num_steps):
            if len(order) < size:
                order = torch.randperm(num_rows, generator=generator)
            rows, order = order[:size].to(x.device), order[size:]
            decay = 0.5 * (1 + math.cos(math.pi * step / self.num_steps))
            optimizer.param_groups[0]["lr"] = self.learning_rate * decay
            own = self.features(x[rows])[0] if self.train_body else h[rows]
            logits = self.random_features(own) @ self.weight.mT
            loss = nn.functional.cross_entropy(logits, y[rows])
            loss = loss + 0.5 * self.weight.square().sum() / num_rows  # minus the log prior
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.losses.append(float(loss.detach()))
            if not math.isfinite(self.losses[-1]):
                raise DivergenceError(
                    f"the loss is not finite at step {step}: lower learning_rate from "
                    f"{self.learning_rate:g}"
                )
        for module, mode in modes.items():
            module.training = mode

    def _at(self, x: Tensor) -> tuple[Tensor, Mapping[str, Float[np.ndarray, " N"]]]:
        self._require_fit(self.random_features)
        assert self.random_features is not None
        phi = self.random_features(self.features.of_rows(x)[0])
        variance = laplace_variance(self._roots, phi)  # [N, C], or [N, 1]
        logits = (phi @ self.weight.detach().mT).double()
        mean_field = logits / (1 + math.pi / 8 * variance).sqrt()
        novelty = {FEATURE_VARIANCE: laplace_variance(self._root, phi)[:, 0].cpu().numpy()}
        return mean_field.to(phi.dtype), novelty


def _layers_before(features: FeatureNet, x: Tensor) -> list[str]:
    """Paths of linear layers and convolutions that a pass meets before the features."""
    met: list[str] = []
    hooks: list[Any] = []
    for name, module in features.net.named_modules():
        if isinstance(module, KINDS) and not (features.is_input and name == features.name):
            hooks.append(module.register_forward_pre_hook(lambda *_, name=name: met.append(name)))
    stop = [len(hooks)]
    module = features.module
    mark = module.register_forward_pre_hook if features.is_input else module.register_forward_hook
    hooks.append(mark(lambda *_: stop.__setitem__(0, len(met))))
    try:
        features.of_rows(x)
    finally:
        for hook in hooks:
            hook.remove()
    return list(dict.fromkeys(met[: stop[0]]))
