"""The contract of a likelihood: from network output f ``[N, F]`` to the observed site ``"y"``."""

from __future__ import annotations

import pyro
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from pyro.nn import PyroModule
from torch import Tensor

from pyro_bnn.errors import ShapeError


class Likelihood(PyroModule):
    """Base of all likelihoods: a subclass says which distribution y has given f.

    Calling it inside a model is the last line of the textbook: in a plate over the rows, observe
    y given f.
    """

    def num_function_outputs(self, num_outputs: int) -> int:
        """Network outputs F that ``num_outputs`` targets need."""
        return num_outputs

    def check_function_outputs(self, columns: int) -> None:
        """Check that f may have this number of columns.

        Raises:
            ShapeError: If it may not.
        """

    def distribution(self, f: Tensor) -> Distribution:
        """Distribution of y given f ``[N, F]``: batch shape ``[N]``."""
        raise TypeError(f"{type(self).__name__} defines no distribution(f), f {tuple(f.shape)}")

    def forward(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample or observe the site ``"y"``.

        Args:
            f: Network output ``[N, F]``; ``[N]`` is one column. Under an outer plate of S draws
                ``[S, N, F]``.
            y: Observations ``[N]`` or ``[N, O]``, or None to sample them.

        Returns:
            y, sampled where it was None.

        Raises:
            ShapeError: If f does not have the columns of this likelihood, or y does not fit f.
        """
        f = as_columns(f)
        self.check_function_outputs(f.shape[-1])
        distribution = self.distribution(f)
        if y is not None:
            y = match_observation(y, distribution)
        with pyro.plate("data", f.shape[-2]):
            return pyro.sample("y", distribution, obs=y)


def as_columns(f: Tensor) -> Tensor:
    """Network output ``[N, F]``; f ``[N]``, or ``[]`` of one row, is one column ``[N, 1]``."""
    return f.reshape(-1, 1) if f.ndim < 2 else f


def match_observation(y: Tensor, distribution: Distribution) -> Tensor:
    """Observations in the shape and dtype that a distribution over rows expects.

    ``y [N]`` becomes ``[N, 1]`` where one target is an event of size one, so that f ``[N, 1]``
    never broadcasts against y ``[N]`` to ``[N, N]``.

    Raises:
        ShapeError: If y does not have one row for each row of f, or the wrong number of targets.
    """
    expected, given = distribution.batch_shape[-1:] + distribution.event_shape, y.shape
    if y.ndim == 1 and len(expected) == 2 and expected[1] == 1:
        y = y.unsqueeze(-1)
    elif y.ndim == 2 and len(expected) == 1 and y.shape[1] == 1:
        y = y.squeeze(-1)
    if y.shape != expected:
        what = "one row for each row of x, one column for each target"
        if y.ndim == 1 and len(expected) == 2 and _are_classes(y, expected[1]):
            what += (
                f"; if y holds classes, as its whole numbers below {expected[1]} could be, take "
                f"likelihood=bnn.likelihoods.Categorical({expected[1]})"
            )
        raise ShapeError(
            f"y has shape {tuple(given)}, but the likelihood of this network output is over "
            f"{tuple(expected)}: {what}"
        )
    return y


def _are_classes(y: Tensor, num_classes: int) -> bool:
    """Whether y could be the labels of so many classes."""
    return bool(((y >= 0) & (y < num_classes) & (y == y.long())).all())
