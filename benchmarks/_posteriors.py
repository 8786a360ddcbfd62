"""The posteriors that all samplers draw from; here without torch, which not everyone needs.

ReLU networks with independent priors N(0, 1/I) on the weights of a layer with I inputs and N(0, 1)
on its biases:

- two moons: N = 200 rows, 2-20-20-1, 501 weights, a Bernoulli likelihood whose logit is the output;
- diabetes: N = 398 rows, 10-50-1, 601 weights, Gaussian noise around the output, whose standard
  deviation has a half-normal prior of scale 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
NOISE_SD = "likelihood.scale"  # site of the learned noise
NUM_TRAIN = 398  # of diabetes' 442 rows


@dataclass(frozen=True)
class Target:
    """A network and its data.

    Attributes:
        name: For the tables.
        sizes: Units of every layer, inputs and the one output included.
        arrays: Makes x ``[N, I]``, each column of mean 0 and sd 1, and y ``[N]``.
        points: Makes the points ``[M, I]`` at which samplers are judged.
        is_binary: Whether y is 0 or 1; else it is a number, with noise of learned sd.
    """

    name: str
    sizes: tuple[int, ...]
    arrays: Callable[[], tuple[Array, Array]]
    points: Callable[[], Array]
    is_binary: bool

    @property
    def net(self) -> str:
        """The network in short, ``"10-50-1"``."""
        return "-".join(map(str, self.sizes))

    @property
    def num_weights(self) -> int:
        """Weights and biases."""
        return sum((i + 1) * o for i, o in itertools.pairwise(self.sizes))

    def priors(self) -> Iterator[tuple[str, tuple[int, ...], float]]:
        """Name, shape and prior standard deviation of the weights, in the order of the layers."""
        for index, (i, o) in enumerate(itertools.pairwise(self.sizes)):
            yield f"layers.{index}.weight", (o, i), i**-0.5
            yield f"layers.{index}.bias", (o,), 1.0

    def outputs(self, weights: Mapping[str, Any], x: Any, relu: Callable[[Any], Any]) -> Any:
        """Network output ``[N]`` of one draw, in the array library of x and of its relu."""
        h = x
        for index in range(len(self.sizes) - 1):
            if index:
                h = relu(h)
            h = h @ weights[f"layers.{index}.weight"].T + weights[f"layers.{index}.bias"]
        return h[..., 0]

    def function_draws(self, weights: Mapping[str, Any]) -> Array:
        """Outputs ``[C, S, M, 1]`` at the points from sites of shape ``[C, S, *event]``."""
        x = self.points()
        sites = {name: np.asarray(weights[name]) for name, _, _ in self.priors()}
        num_chains, num_draws = sites["layers.0.bias"].shape[:2]
        f = np.empty((num_chains, num_draws, len(x), 1), np.float32)
        for c, s in np.ndindex(num_chains, num_draws):
            draw = {name: values[c, s] for name, values in sites.items()}
            f[c, s, :, 0] = self.outputs(draw, x, lambda h: np.maximum(h, 0))
        return f


def _moons() -> tuple[Array, Array]:
    from sklearn.datasets import make_moons

    x, y = make_moons(200, noise=0.2, random_state=0)
    x = (x - x.mean(0)) / x.std(0)
    return x.astype(np.float32), y.astype(np.float32)


def _grid() -> Array:
    """50 points around the moons."""
    across, up = np.linspace(-2.5, 2.5, 10), np.linspace(-2.5, 2.5, 5)
    return np.stack(np.meshgrid(across, up), -1).reshape(-1, 2).astype(np.float32)


def _diabetes() -> tuple[Array, Array]:
    """All 442 rows in random order, standardised by the first 398."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (
        (values - values[:NUM_TRAIN].mean(0)) / values[:NUM_TRAIN].std(0)
        for values in (x[order], y[order])
    )
    return x.astype(np.float32), y.astype(np.float32)


def _training_rows() -> tuple[Array, Array]:
    x, y = _diabetes()
    return x[:NUM_TRAIN], y[:NUM_TRAIN]


def _held_out_rows() -> Array:
    return _diabetes()[0][NUM_TRAIN:]


MOONS = Target("two moons", (2, 20, 20, 1), _moons, _grid, is_binary=True)
DIABETES = Target("diabetes", (10, 50, 1), _training_rows, _held_out_rows, is_binary=False)
TARGETS: Mapping[str, Target] = {target.name: target for target in (MOONS, DIABETES)}
