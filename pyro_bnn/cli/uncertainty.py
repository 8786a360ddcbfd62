"""How far from the training data a row is, judged by its epistemic uncertainty."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.data import Dataset
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.posterior.rows import rows_with_draws
from pyro_bnn.predictive.prediction import Prediction

ROWS_AT_ONCE = 1_000
POINT_TOLERANCE = 1e-5  # rounding differs between rows of one batch
HALF_OF_NORMAL = (0.158655, 0.841345)  # one sd below and above the median of a Gaussian


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Epistemic uncertainty of the training rows, the yardstick for that of new rows.

    Args:
        measure: ``"sd of the function"``, or ``"half range of the function"`` (half the central
            68.3 %) where draws have no sd, or ``"mutual information"`` for classes.
        median: Over training rows; None for a point estimate, which has none. 0 where half of
            them have none, so that there is no ratio to it.
        maximum: Over training rows.
        num_rows: How many of them were measured, evenly spread; None for all.
    """

    measure: str
    median: float | None
    maximum: float | None
    num_rows: int | None = None

    @classmethod
    def of(cls, posterior: Posterior, data: Dataset, seed: int) -> Uncertainty:
        """Measure the training rows under a posterior, of a large table some."""
        some = rows_with_draws(data, posterior.count(None))
        num_rows = len(some) if len(some) < len(data) else None
        measure = "sd of the function" if posterior.has_moments else "half range of the function"
        if data.num_classes is not None:
            measure = "mutual information"
        num_targets = data.y.shape[1] if data.y.ndim == 2 else 1
        blocks = (posterior.predict(rows, seed=seed) for rows in some.x.split(ROWS_AT_ONCE))
        return cls.over(blocks, measure, num_targets, num_rows)

    @classmethod
    def over(
        cls, blocks: Iterable[Prediction], measure: str, num_targets: int, num_rows: int | None
    ) -> Uncertainty:
        """Measure predictions of training rows, given in blocks."""
        values, is_point = [], True
        for prediction in blocks:
            values.append(epistemic(prediction, measure, num_targets))
            f = prediction.function_draws
            spread = f.amax(0) - f.amin(0)
            is_point &= bool((spread <= POINT_TOLERANCE * (1 + f[0].abs())).all())
        if is_point:
            return cls(measure=measure, median=None, maximum=None, num_rows=num_rows)
        whole = torch.cat(values).cpu().numpy()
        median, maximum = float(np.median(whole)), float(whole.max())
        return cls(measure=measure, median=median, maximum=maximum, num_rows=num_rows)


def epistemic(prediction: Prediction, measure: str, num_targets: int = 1) -> Float[Tensor, " N"]:
    """The epistemic uncertainty ``[N]`` of rows, in the model's units; see :class:`Uncertainty`.

    Of several targets it is the root mean square over them, each in its own sd.
    """
    if measure == "mutual information":
        return prediction.mutual_information.double()
    f = prediction.function_draws[..., :num_targets].double()  # [S, N, O], the location of y
    if measure == "sd of the function":
        spread: Tensor = f.std(0, correction=0)  # [N, O]
    else:
        low, high = torch.quantile(f, f.new_tensor(HALF_OF_NORMAL), dim=0)
        spread = (high - low) / 2
    return spread[:, 0] if num_targets == 1 else spread.square().mean(-1).sqrt()
