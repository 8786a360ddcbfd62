"""Classifiers of which every number is known: their probabilities are a function of the pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.split import Split
from pyro_bnn.data.standardise import Standardiser

SIDE, LARGEST = 4, 16.0
NUM_TEST = 60


@dataclass
class Known:
    """A posterior of S draws whose class probabilities are given.

    Attributes:
        probs: From x ``[N, I]`` in units of the data, probabilities of each draw ``[S, N, C]``.
    """

    probs: Callable[[Tensor], Tensor]
    num_stored_draws: int | None = None
    num_atoms: int | None = None
    num_chains: int = 1
    seen: list[Tensor] = field(default_factory=list)

    def predict(self, x: Tensor, num_samples: int, seed: int) -> Any:
        """What is asked of a prediction."""
        del num_samples, seed
        self.seen.append(x)
        probs = self.probs(x)
        mean = probs.mean(0)
        return SimpleNamespace(
            probs=mean,
            function_draws=probs.log(),
            log_prob=lambda y: mean[torch.arange(len(y)), y].log(),
        )


def images(num_rows: int = NUM_TEST, seed: int = 0) -> Split:
    """Four-by-four images from 0 to 16 in rows, two classes in turns."""
    rng = np.random.default_rng(seed)
    raw = torch.as_tensor(rng.integers(0, 17, size=(num_rows + 20, SIDE * SIDE)).astype(float))
    raw[0, 0] = LARGEST
    y = torch.arange(num_rows + 20) % 2
    units = Standardiser.fit(raw[:20])
    parts = [Dataset(units.transform(raw[r]), y[r], units) for r in (slice(20), slice(20, None))]
    return Split(parts[0], parts[1], "classification", "four by four")


def constant(right: float, classes: Tensor) -> Known:
    """As sure of the observed class of each row, whatever the image; for the test rows alone."""

    def probs(x: Tensor) -> Tensor:
        y = classes[: len(x)]
        p = torch.full((1, len(x), 2), 1 - right, dtype=torch.float64)
        p[0, torch.arange(len(x)), y] = right
        return p

    return Known(probs)


def scattered(scores: np.ndarray, classes: Tensor) -> Known:
    """The log score of each row is given."""

    def probs(x: Tensor) -> Tensor:
        y = classes[: len(x)]
        right = torch.as_tensor(np.exp(scores[: len(x)]))
        p = (1 - right).repeat(2, 1).T.clone()
        p[torch.arange(len(x)), y] = right
        return p.unsqueeze(0)

    return Known(probs)
