"""The posterior that all samplers draw from; here without torch, which not everyone needs.

Two moons: N = 200 rows, 2-20-20-1 with ReLU, 501 weights with independent priors N(0, 1/I) on the
weights of a layer with I inputs and N(0, 1) on its biases, and a Bernoulli likelihood whose logit
is the network's output.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_DATA = 200
SIZES = (2, 20, 20, 1)
NET = "-".join(map(str, SIZES))
NUM_WEIGHTS = sum((i + 1) * o for i, o in itertools.pairwise(SIZES))
Array = NDArray[np.float32]


def arrays() -> tuple[Array, Array]:
    """x ``[N, 2]``, each column of mean 0 and sd 1, and labels y ``[N]`` of 0 and 1."""
    from sklearn.datasets import make_moons

    x, y = make_moons(NUM_DATA, noise=0.2, random_state=0)
    x = (x - x.mean(0)) / x.std(0)
    return x.astype(np.float32), y.astype(np.float32)


def points() -> Array:
    """The 50 points ``[50, 2]`` at which samplers are judged: a grid around the data."""
    across, up = np.linspace(-2.5, 2.5, 10), np.linspace(-2.5, 2.5, 5)
    return np.stack(np.meshgrid(across, up), -1).reshape(-1, 2).astype(np.float32)


def priors() -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Name, shape and prior standard deviation of each site, in the order of the layers."""
    for index, (i, o) in enumerate(itertools.pairwise(SIZES)):
        yield f"layers.{index}.weight", (o, i), i**-0.5
        yield f"layers.{index}.bias", (o,), 1.0


def logits(weights: Mapping[str, Any], x: Any, relu: Callable[[Any], Any]) -> Any:
    """Network output ``[N]`` of one draw, in the array library of x and of its relu."""
    h = x
    for index in range(len(SIZES) - 1):
        if index:
            h = relu(h)
        h = h @ weights[f"layers.{index}.weight"].T + weights[f"layers.{index}.bias"]
    return h[..., 0]


def function_draws(weights: Mapping[str, Any]) -> Array:
    """Logits ``[C, S, 50, 1]`` at :func:`points` from sites of shape ``[C, S, *event]``."""
    x = points()
    sites = {name: np.asarray(weights[name]) for name, _, _ in priors()}
    num_chains, num_draws = sites["layers.0.bias"].shape[:2]
    f = np.empty((num_chains, num_draws, len(x), 1), np.float32)
    for c, s in np.ndindex(num_chains, num_draws):
        draw = {name: values[c, s] for name, values in sites.items()}
        f[c, s, :, 0] = logits(draw, x, lambda h: np.maximum(h, 0))
    return f
