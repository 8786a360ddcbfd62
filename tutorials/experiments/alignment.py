r"""Copies of one function, brought back to one of them: units in one order, linear layers turned.

The hidden units of a layer can be permuted without a change of the function. A linear layer can be
rotated, the next one back: a continuum of copies. A prior of one variance a layer does not see
either, so that every mode of a posterior has all its copies. Draws are aligned with a typical one,

.. math:: T_s = \arg\max_T \operatorname{tr}(T A_s B^\top)

over permutations or rotations T of each layer, where the rows of A are the weights into and out of
each unit of a draw, in sds of the prior, and B is that of the typical draw (Schönemann,
"A generalized solution of the orthogonal Procrustes problem", Psychometrika 1966, for rotations).

Alignment sorts, and sorting makes correlations: of draws without any, too, where units are alike.
What it makes of them has to be measured and shown beside whatever is measured after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from scipy import optimize

MAX_SWEEPS = 10
CHUNK = 100  # draws whose matches are held at once


def relabelled(chain: np.ndarray, sizes: list[int]) -> np.ndarray:
    """The same functions ``[S, P]`` with hidden units in the order of a typical draw.

    It finds the best match of one layer at a time, given the others, again and again: draws of
    deep networks may be left in more than one copy.

    Args:
        chain: ``[S, P]``, a layer's weights ``[O, I]``, then its biases, layer after layer.
        sizes: Inputs, hidden units of each layer, outputs.
    """
    return _aligned(chain, sizes, _permutations)


def rotated(chain: np.ndarray, sizes: list[int]) -> np.ndarray:
    """The same functions ``[S, P]`` of a LINEAR network with its layers turned to a typical draw's.

    Arguments are those of ``relabelled``.
    """
    return _aligned(chain, sizes, _rotations)


def prior_sds(sizes: list[int]) -> np.ndarray:
    """Sds ``[P]`` of the fan-in prior: 1/sqrt(inputs) of weights, 1 of biases."""
    pairs = itertools.pairwise(sizes)
    each = [np.r_[np.full(i * o, i**-0.5), np.ones(o)] for i, o in pairs]
    return np.concatenate(each)


def unpacked(chain: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Weights and, as the last column, biases of each layer ``[S, O, I + 1]``."""
    layers, start = [], 0
    for num_in, num_out in itertools.pairwise(sizes):
        between = start + num_in * num_out
        weight = chain[:, start:between].reshape(-1, num_out, num_in)
        start = between + num_out
        layers.append(np.concatenate([weight, chain[:, between:start, None]], -1))
    return layers


def packed(layers: list[np.ndarray]) -> np.ndarray:
    """The flat vector of each draw ``[S, P]``."""
    pairs = [(each[..., :-1].reshape(len(each), -1), each[..., -1]) for each in layers]
    return np.concatenate([part for pair in pairs for part in pair], -1)


def _aligned(
    chain: np.ndarray, sizes: list[int], best: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Layer after layer, until the mean draw stays; the typical draw is at first the last one."""
    sds = prior_sds(sizes)
    layers = unpacked(chain / sds, sizes)
    typical = [each[-1:] for each in layers]
    for sweep in range(MAX_SWEEPS):
        for i in range(len(sizes) - 2):
            # units that the next layer leads to are not in order yet, but for the outputs
            into_next = sweep > 0 or i == len(sizes) - 3
            _turn(layers, typical, i, best, into_next=into_next)
        before, typical = typical, [each.mean(0, keepdims=True) for each in layers]
        if all(np.allclose(a, b, atol=1e-9) for a, b in zip(before, typical, strict=True)):
            break
    return np.asarray(packed(layers) * sds)


def _turn(
    layers: list[np.ndarray],
    typical: list[np.ndarray],
    i: int,
    best: Callable[[np.ndarray], np.ndarray],
    *,
    into_next: bool,
) -> None:
    """Permute or rotate hidden layer i of every draw, in place."""
    target = _rows_of_units(typical, i, slice(None), into_next=into_next)  # [1, units, n]
    units = layers[i].shape[1]
    for start in range(0, len(layers[i]), CHUNK):
        part = slice(start, start + CHUNK)
        rows = _rows_of_units(layers, i, part, into_next=into_next)  # [s, units, n]
        turn = best(target @ rows.swapaxes(1, 2))  # [s, units, units]
        layers[i][part] = turn @ layers[i][part]
        following = layers[i + 1][part]
        following[..., :units] = following[..., :units] @ turn.swapaxes(1, 2)


def _rows_of_units(layers: list[np.ndarray], i: int, part: slice, *, into_next: bool) -> np.ndarray:
    """Weights into each unit of hidden layer i, its bias, and weights out of it."""
    into = layers[i][part]
    if not into_next:
        return into
    out = layers[i + 1][part, :, : into.shape[1]].swapaxes(1, 2)
    return np.concatenate([into, out], -1)


def _permutations(match: np.ndarray) -> np.ndarray:
    order = np.stack([optimize.linear_sum_assignment(-each)[1] for each in match])
    return np.asarray(np.eye(match.shape[1])[order])


def _rotations(match: np.ndarray) -> np.ndarray:
    u, _, vh = np.linalg.svd(match)
    return np.asarray(u @ vh)
