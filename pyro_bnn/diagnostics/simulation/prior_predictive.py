r"""What a model believes before it sees data: functions and observations under the prior.

.. math:: z_s \sim p(z), \qquad f_s = f(x; z_s), \qquad y_s \sim p(y \mid f_s, z_s)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import Float, Num
from torch import Tensor

from pyro_bnn.data.arrays import check_finite, float_dtype, to_tensor
from pyro_bnn.diagnostics.simulation.simulations import proper_program
from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.posterior.arviz_groups import by_chain, input_dims, of_targets, site_summaries
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.posterior.site_posterior import NUM_SAMPLES
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.prediction import Prediction
from pyro_bnn.program.handlers import Model

if TYPE_CHECKING:
    from xarray import DataTree

TAIL_SHARE = 0.05  # of the draws that a tail index is taken of
MIN_TAIL_DRAWS = 20


class TailIndex(NamedTuple):
    r"""Index :math:`\alpha` of a tail :math:`P(|f| > t) \sim c\, t^{-\alpha}`, and its error.

    Moments of order :math:`\alpha` and more do not exist: 1 is a Cauchy tail, and a Gaussian one,
    whose index is infinite, shows as 4 or more among a thousand draws.
    """

    value: float
    error: float


@dataclass(frozen=True, eq=False)
class PriorPredictive:
    """Draws from the prior and what they predict at x.

    Attributes:
        prior: The draws as a posterior without data: ``sample``, ``function_draws`` and ``predict``
            at other x.
        x: Inputs ``[N, ...]``, in the model's units.
        prediction: The prior predictive distribution at x. Its mean and sd are averages over draws
            and mean nothing where the prior has no variance (Cauchy, horseshoe): take quantiles.
    """

    prior: DrawsPosterior
    x: Tensor
    prediction: Prediction

    @property
    def function_draws(self) -> Float[Tensor, "S N F"]:
        """Network output f ``[S, N, F]`` of each draw."""
        return self.prediction.function_draws

    @property
    def draws(self) -> Num[Tensor, "S N O"]:
        """One observation y of each draw ``[S, N, O]``; class labels ``[S, N, 1]``."""
        return self.prediction.draws

    def to_arviz(self) -> DataTree:
        """The draws as an ArviZ ``DataTree``.

        Groups: ``prior`` (hyper-parameters, the norm of each weight tensor, f at x),
        ``prior_predictive`` (y at x) and ``constant_data`` (x).
        """
        from pyro_bnn.arviz_io.tree import datatree
        from pyro_bnn.models.description import describe

        z = Draws.of(self.prior.stored.flatten(0, 1))
        sites = site_summaries(self.prior, z, include_weights=False)
        return datatree(
            {
                "prior": {**sites, "f": by_chain(self.function_draws, 1)},
                "prior_predictive": {"y": of_targets(by_chain(self.draws, 1))},
                "constant_data": {"x": self.x.cpu().numpy()},
            },
            dims={
                "f": ["row", "f_output"],
                "y": ["row", "output"][: of_targets(self.draws).ndim - 1],
                "x": ["row", *input_dims(self.x)],
            },
            attrs={"model": describe(self.prior.model), "seed": self.prior.seed},
        )


def prior_predictive(
    model: Model, x: Any, num_samples: int = NUM_SAMPLES, seed: int = 0
) -> PriorPredictive:
    """Functions and observations that a model believes in before it sees data.

    Args:
        model: Pyro model ``model(x, y=None)``.
        x: Inputs ``[N, ...]``, N > 0, in the model's (standardised) units: tensor, array or list.
        num_samples: Number of draws S.
        seed: Seed of the draws, of weights and of y.

    Returns:
        The draws, ``function_draws [S, N, F]`` and ``draws [S, N, O]``.

    Raises:
        ModelError: If the model has point-estimated parameters, which no prior is there to draw.
        SiteError: If a prior is flat, or a held site's density depends on other sites.
        OptionError: If ``num_samples`` is not a positive integer.
        DataError: If x holds no numbers, or NaN or infinite values.
        ShapeError: If x has no rows.

    Example:
        >>> import torch
        >>> from pyro_bnn.models import MLP
        >>> x = torch.linspace(-2, 2, 5).unsqueeze(-1)
        >>> found = prior_predictive(MLP(1, hidden=(8,)), x, num_samples=20)
        >>> found.function_draws.shape, found.draws.shape
        (torch.Size([20, 5, 1]), torch.Size([20, 5, 1]))
    """
    if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples < 1:
        raise OptionError(f"num_samples is a positive integer, not {num_samples!r}")
    rows = to_tensor(x, "x")
    rows = rows.to(float_dtype(x)) if rows.is_floating_point() else rows
    if not rows.ndim or not len(rows):
        raise ShapeError(f"x is [N, ...] with at least one row, not {list(rows.shape)}")
    check_finite(rows, "x")
    program = proper_program(model, rows)
    rows = program.inputs(rows)
    z = program.prior_draws(num_samples, rows[:1], seed)
    prior = DrawsPosterior(program, z.unsqueeze(0), Provenance("prior", "none", seed=seed))
    return PriorPredictive(prior, rows, prior.predict(rows, num_samples, seed))


def tail_index(values: Float[Tensor, " S"]) -> TailIndex:
    r"""Hill's estimate of the tail index, of the largest 5 % of the distances from the median.

    .. math:: \hat\alpha^{-1} = \frac1k \sum_{i=1}^{k} \log\frac{v_{(i)}}{v_{(k+1)}}, \qquad
              v_{(1)} \ge v_{(2)} \ge \dots

    Args:
        values: Draws, at least 400, so that the tail has 20.

    Returns:
        The index, and its standard error :math:`\hat\alpha / \sqrt k` for an exact power law. Both
        are infinite where the largest distances are all equal, and NaN where they are zero, as of
        a constant.

    Raises:
        ShapeError: If there are fewer draws.

    References:
        Hill, "A simple general approach to inference about the tail of a distribution", Annals of
        Statistics 3(5), 1975.

    Example:
        >>> import torch
        >>> quantiles = torch.linspace(5e-5, 1 - 5e-5, 10_000, dtype=torch.float64)
        >>> round(tail_index(torch.tan(math.pi * (quantiles - 0.5))).value, 2)  # Cauchy
        1.0
    """
    num_tail = int(TAIL_SHARE * values.numel())
    if values.ndim != 1 or num_tail < MIN_TAIL_DRAWS:
        needed = math.ceil(MIN_TAIL_DRAWS / TAIL_SHARE)
        raise ShapeError(
            f"a tail index takes at least {needed} draws [S], not {list(values.shape)}"
        )
    values = values.double()
    distances = (values - values.quantile(0.5)).abs()
    largest = distances.topk(num_tail + 1).values
    if not bool(largest[-1] > 0):
        return TailIndex(math.nan, math.nan)
    inverse = float((largest[:-1] / largest[-1]).log().mean())
    index = 1 / inverse if inverse > 0 else math.inf
    return TailIndex(index, index / math.sqrt(num_tail))
