r"""Distance of a posterior to a reference (long NUTS chains), judged on the function.

Every number comes with the same number between two halves of the reference: a method closer than
that cannot be told from the reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes, evenly_spread
from pyro_bnn.errors import ShapeError


def w1(a: Float[np.ndarray, "S M"], b: Float[np.ndarray, "T M"]) -> Float[np.ndarray, " M"]:
    r"""First Wasserstein distance between the marginal samples of every column.

    .. math:: W_1 = \int_0^1 |F_a^{-1}(u) - F_b^{-1}(u)| \,\mathrm du

    For equal sizes the mean distance between sorted draws. Two samples of ONE law have W1 > 0.

    Args:
        a: Draws ``[S, M]``.
        b: Draws ``[T, M]``.

    Returns:
        Distances ``[M]``, in the units of the draws.

    Raises:
        ShapeError: If the numbers of columns differ.

    References:
        Peyré & Cuturi, "Computational Optimal Transport", 2019, arXiv:1803.00567, section 2.6.

    Example:
        >>> draws = np.array([[0.0], [1.0], [5.0]])
        >>> w1(draws, draws + 2.0)
        array([2.])
    """
    a = np.sort(check_axes("a", a, "S M"), axis=0)
    b = np.sort(check_axes("b", b, "T M"), axis=0)
    if a.shape[1] != b.shape[1]:
        raise ShapeError(
            f"a and b must have the same columns, got {list(a.shape)} and {list(b.shape)}"
        )
    S, T = len(a), len(b)
    if S == T:
        return np.asarray(np.abs(a - b).mean(0))
    # quantile functions are steps: integrate piece by piece on the union of both grids
    grid = np.unique(np.concatenate([np.arange(S + 1) * T, np.arange(T + 1) * S]))  # times S T
    widths = np.diff(grid) / (S * T)
    return np.asarray(widths @ np.abs(a[grid[:-1] // T] - b[grid[:-1] // S]))


@dataclass(frozen=True, kw_only=True)
class ReferenceDistance:
    """Distance to the reference beside its floor.

    Attributes:
        value: Mean over test points of W1 between marginal draws.
        floor: The same between two halves of the reference.
        num_draws: Draws on each side of every W1.
    """

    value: float
    floor: float
    num_draws: int


def reference_distance(
    f: Float[np.ndarray, "S N F"], reference: Float[np.ndarray, "C T N F"], scale: float = 1.0
) -> ReferenceDistance:
    r"""Mean over test points of W1 between marginal draws of f, in sds of y.

    .. math:: d = \frac1{2 N F} \sum_{h, n, f} \frac{W_1(f_{\cdot n}, f^{(h)}_{\cdot n})}{s}

    over both halves h of the reference; the floor is W1 between the halves. Both use samples of
    the same size, because W1 between samples grows as they get smaller. Halves are whole chains
    where there are at least two, so that chains which disagree raise the floor.

    Args:
        f: Function draws of the method ``[S, N, F]``.
        reference: Function draws of the reference ``[C, T, N, F]``, T in each of C chains.
        scale: Standard deviation s of y, in the units of f.

    Raises:
        ShapeError: If points or outputs differ, or the reference has fewer than two draws.

    Example:
        >>> draws = np.random.default_rng(0).standard_normal((4, 500, 3, 1))
        >>> same = reference_distance(draws[0], draws)
        >>> far = reference_distance(draws[0] + 2.0, draws)
        >>> same.value < 0.1, round(far.value), same.floor < 0.1
        (True, 2, True)
    """
    f, reference = check_pair(f, reference)
    halves = _halves(reference)
    size = min(len(halves[0]), len(halves[1]), len(f))
    halves = [half[evenly_spread(len(half), size)] for half in halves]  # of every chain
    columns = f[evenly_spread(len(f), size)].reshape(size, -1)
    first, second = (half.reshape(size, -1) for half in halves)
    value = (w1(columns, first).mean() + w1(columns, second).mean()) / 2
    return ReferenceDistance(
        value=float(value / scale), floor=float(w1(first, second).mean() / scale), num_draws=size
    )


def check_pair(
    f: Float[np.ndarray, "S N F"], reference: Float[np.ndarray, "C T N F"]
) -> tuple[Float[np.ndarray, "S N F"], Float[np.ndarray, "C T N F"]]:
    """Draws of a method and of a reference as float arrays, after a check that they fit.

    Raises:
        ShapeError: If points or outputs differ, or the reference has fewer than two draws.
    """
    f = check_axes("f", f, "S N F")
    reference = check_axes("reference", reference, "C T N F")
    if f.shape[1:] != reference.shape[2:]:
        raise ShapeError(
            f"f and reference must agree on points and outputs [N, F], "
            f"got {list(f.shape[1:])} and {list(reference.shape[2:])}"
        )
    if reference.shape[0] * reference.shape[1] < 2:
        raise ShapeError("the reference needs at least 2 draws to be halved, got 1")
    return f, reference


def _halves(reference: Float[np.ndarray, "C T N F"]) -> list[Float[np.ndarray, "H N F"]]:
    """Draws of the first and of the last half of the chains, or of a single chain."""
    parts = reference[0] if len(reference) == 1 else reference
    half = len(parts) // 2
    return [some.reshape(-1, *reference.shape[2:]) for some in (parts[:half], parts[-half:])]
