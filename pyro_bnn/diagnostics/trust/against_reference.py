r"""How far class probabilities lie from those of a reference, row by row.

.. math:: a_n = \mathbf 1\bigl[\arg\max_c p_{nc} = \arg\max_c r_{nc}\bigr], \qquad
          t_n = \tfrac12 \sum_c |p_{nc} - r_{nc}|

Their means over rows are the agreement and the total variation of an approximation and of long
chains, say.

References:
    Izmailov, Vikram, Hoffman & Wilson, "What Are Bayesian Neural Network Posteriors Really Like?",
    ICML 2021, arXiv:2104.14421.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes
from pyro_bnn.errors import ShapeError


def class_agreement(
    probs: Float[np.ndarray, "N C"], reference: Float[np.ndarray, "N C"]
) -> Float[np.ndarray, " N"]:
    """Whether both give the same class the largest probability: 1 or 0 of each row ``[N]``.

    Args:
        probs: Predictive class probabilities.
        reference: Those of the reference.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> class_agreement(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([[0.6, 0.4], [0.7, 0.3]]))
        array([1., 0.])
    """
    probs, reference = _both(probs, reference)
    return np.asarray(probs.argmax(-1) == reference.argmax(-1), dtype=float)


def class_total_variation(
    probs: Float[np.ndarray, "N C"], reference: Float[np.ndarray, "N C"]
) -> Float[np.ndarray, " N"]:
    """Total variation distance of each row ``[N]``, 0 where both are equal, 1 at most.

    Args:
        probs: Predictive class probabilities.
        reference: Those of the reference.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> class_total_variation(np.array([[0.9, 0.1]]), np.array([[0.6, 0.4]])).round(6)
        array([0.3])
    """
    probs, reference = _both(probs, reference)
    return np.asarray(0.5 * np.abs(probs - reference).sum(-1))


def _both(
    probs: Float[np.ndarray, "N C"], reference: Float[np.ndarray, "N C"]
) -> tuple[Float[np.ndarray, "N C"], Float[np.ndarray, "N C"]]:
    probs, reference = (
        check_axes(name, value, "N C")
        for name, value in (("probs", probs), ("reference", reference))
    )
    if probs.shape != reference.shape:
        raise ShapeError(
            f"probs has shape {list(probs.shape)}, the reference {list(reference.shape)}: give "
            "both the same rows and classes"
        )
    return probs, reference
