r"""Classes: Bernoulli for two, categorical for more, with f as logits."""

from __future__ import annotations

from typing import Any, cast

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.checks import check_positive_int
from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.likelihoods.likelihood import Likelihood, as_columns


class Bernoulli(Likelihood):
    r"""Two classes: :math:`y_n \sim \mathrm{Bernoulli}(\sigma(f_n))`, labels 0 and 1.

    Several binary targets ``y [N, O]`` are O numbers 0 and 1, independent given f, which need not
    exclude each other as classes do: their data have ``task="counts"``, and predictions a mean, the
    probability of 1, in place of ``probs``. The CRPS of a mean p is its Brier score
    :math:`(y - p)^2`, and the density of a row is that of all its targets together.
    """

    def num_function_outputs(self, num_outputs: int) -> int:
        """One logit for each target."""
        return num_outputs

    def distribution(self, f: Tensor) -> Distribution:
        """Bernoulli over rows: batch ``[N]``, event ``()``, of several targets ``[O]``."""
        if f.shape[-1] == 1:
            return cast(Distribution, dist.Bernoulli(logits=f.squeeze(-1)))
        targets: Any = dist.Bernoulli(logits=f)
        return cast(Distribution, targets.to_event(1))

    def forward(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample or observe the site ``"y"``; integer labels are taken as they are.

        Raises:
            ShapeError: If y does not fit f.
        """
        f = as_columns(f)
        columns = f.shape[-1]
        if y is not None and columns > 1 and y.ndim == 1:
            raise ShapeError(
                f"Bernoulli expects f [N, 1], one logit, for y [N], but f has {columns} columns: "
                f"end the network with one output, or take Categorical({columns}) for {columns} "
                "classes"
            )
        return super().forward(f, None if y is None else y.to(f.dtype))


class Categorical(Likelihood):
    r"""C classes: :math:`y_n \sim \mathrm{Categorical}(\mathrm{softmax}(f_n))`.

    Args:
        num_classes: Number of classes C, at least 2; labels are 0..C-1.

    Raises:
        OptionError: If there are fewer than two classes.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        check_positive_int("num_classes", num_classes, minimum=2)
        self.num_classes = num_classes

    def num_function_outputs(self, num_outputs: int) -> int:
        """C logits."""
        if num_outputs != 1:
            raise OptionError(
                f"Categorical has one target: leave num_outputs at 1, not {num_outputs}"
            )
        return self.num_classes

    def check_function_outputs(self, columns: int) -> None:
        """C columns."""
        if columns != self.num_classes:
            raise ShapeError(
                f"Categorical({self.num_classes}) expects f [N, {self.num_classes}], a logit for "
                f"each class, but f has {columns} columns: end the network with "
                f"{self.num_classes} outputs, or pass num_classes={columns}"
            )

    def distribution(self, f: Tensor) -> Distribution:
        """Categorical over rows: batch ``[N]``, event ``()``."""
        return cast(Distribution, dist.Categorical(logits=f))
