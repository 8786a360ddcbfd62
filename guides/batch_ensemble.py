r"""K networks that share their weight matrices, each with fixed factors: a mixture of deltas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from pyro_bnn.guides.guide import LOG_JOINT, KLKind
from pyro_bnn.guides.rank1_mixture import AutoRank1Mixture, Start
from pyro_bnn.program.handlers import Model


class BatchEnsemble(AutoRank1Mixture):
    r"""Ensemble of K rank-1 networks that share W, each with factors and biases of its own.

    .. math:: W_k = W \circ r_k s_k^\top, \qquad
              p(y \mid x) \approx \tfrac1K \sum_k p(y \mid x, W, r_k, s_k, b_k)

    :class:`pyro_bnn.guides.AutoRank1Mixture` of ``family="delta"``: what is maximised is the mean
    over members of the log joint, on the same rows for each. Captures several functions at K (I +
    2 O) numbers a layer beside W; misses the spread around each of them, and has no density, so no
    ELBO. Under the default prior of the factors, N(1, 0.1), members stay near the net they share;
    a wider one, or a flat one for maximum likelihood, lets them differ.

    Args:
        model: A model of rank-1 layers, such as ``pyro_bnn.models.Rank1MLP``.
        init_loc_fn: Centre of all members' starts; default 1 for the factors.
        num_components: Number of members K.
        start: ``"near_one"``: factors at :math:`\mathcal N(1, \mathrm{init\_spread}^2)`;
            ``"random_sign"``, the start of the paper: around -1 or +1, which needs a wide prior.
        init_spread: Standard deviation of the start of the factors, >= 0.

    Raises:
        OptionError: If an option is out of its range, or two do not go together.
        SiteError: If the model has no rank-1 layers.

    References:
        Wen, Tran & Ba, "BatchEnsemble: An Alternative Approach to Efficient Ensemble and Lifelong
        Learning", ICLR 2020, arXiv:2002.06715.
    """

    has_log_prob: bool = False
    kl_kind: KLKind = "none"
    objective: str = LOG_JOINT

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        num_components: int = 4,
        start: Start = "near_one",
        init_spread: float = 0.1,
    ) -> None:
        super().__init__(
            model,
            init_loc_fn=init_loc_fn,
            num_components=num_components,
            family="delta",
            start=start,
            init_spread=init_spread,
        )
