"""Units of the target: scores are computed in standardised units and reported in the user's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_bnn.data.split import Split


OF_EACH, SDS = "sds of each target", "sds of y"
"""Unit of errors over several targets, and of the function where the target is standardised."""


@dataclass(frozen=True)
class Units:
    r"""Affine map from standardised targets back to the user's units, and its Jacobian.

    .. math:: y = \mathrm{loc} + \mathrm{scale}\, z, \qquad
        \log p(y) = \log p(z) - \sum_o \log \mathrm{scale}_o

    Args:
        loc: Means of the target ``[O]``, in the user's units.
        scale: Standard deviations ``[O]``.
        name: What the target is called, with its unit where known.
        of_function: Unit of distances of functions. Of counts, which are not standardised, f is no
            y: it may be the log of their rate.

    Example:
        >>> units = Units(np.array([100.0]), np.array([10.0]), "weight (kg)")
        >>> units.values(np.array([[1.5]])), round(units.log_scale, 4)
        (array([[115.]]), 2.3026)
    """

    loc: Float[np.ndarray, " O"]
    scale: Float[np.ndarray, " O"]
    name: str
    of_function: str = SDS

    @classmethod
    def of(cls, split: Split) -> Units:
        """Units of the target of a split; the identity where it was not standardised."""
        target, name = split.test.target, split.test.target_name or "y"
        num_outputs = 1 if split.test.y.ndim == 1 else split.test.y.shape[1]
        own = (0.0, 1.0) if target is None else (to_numpy(target.loc), to_numpy(target.scale))
        loc, scale = (np.broadcast_to(value, num_outputs).astype(float) for value in own)
        of_function = SDS if target is not None else "units of f"
        return cls(
            loc, scale, name, "probability" if split.task == "classification" else of_function
        )

    @property
    def of_errors(self) -> str:
        """Unit of errors over all targets: theirs, or the sd of each where several have one."""
        return OF_EACH if len(self.scale) > 1 and self.of_function == SDS else self.name

    @property
    def log_scale(self) -> float:
        """What a log density loses on the way to the user's units, in nats a row."""
        return float(np.log(self.scale).sum())

    def values(self, z: Float[np.ndarray, "*batch O"]) -> Float[np.ndarray, "*batch O"]:
        """Carries standardised values to the user's units."""
        return np.asarray(self.loc + self.scale * z)


def to_numpy(values: Tensor | np.ndarray) -> np.ndarray:
    """Returns a tensor as a NumPy array on the CPU, without its graph.

    Example:
        >>> to_numpy(np.ones(2))
        array([1., 1.])
    """
    if isinstance(values, np.ndarray):
        return values
    return np.asarray(values.detach().cpu().numpy())
