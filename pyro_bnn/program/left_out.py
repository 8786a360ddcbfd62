"""A model without some of the values that it observes, as cross-validation refits it."""

from __future__ import annotations

from typing import Any

from pyro.poutine.messenger import Messenger
from torch import Tensor


class LeaveOut(Messenger):
    r"""Leaves some values of an observed site out of the likelihood: ``LeaveOut(...)(model)``.

    .. math:: \log p(\mathcal D_{-F} \mid \theta) = \sum_{n \notin F} \log p(y_n \mid \theta)

    All shapes and all latent sites stay as they are: one that belongs to a value that is left out
    has its distribution given the others. The terms are left out, and not the values: what the
    model computes of them elsewhere, as the mean of the next step of a time series, it still does.

    Args:
        site: Name of the observed site.
        left_out: Which of its log densities, in the shape of its batch.

    Example:
        >>> import pyro
        >>> import pyro.distributions as dist
        >>> import torch
        >>> from pyro_bnn.program import joint_of
        >>> def model(y):
        ...     loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("rows", len(y)):
        ...         pyro.sample("y", dist.Normal(loc, 1.0), obs=y)
        >>> without_first = LeaveOut("y", torch.tensor([True, False]))(model)
        >>> joint = joint_of(without_first, (torch.zeros(2),))
        >>> joint.log_likelihoods(torch.zeros(1))["y"]
        tensor([ 0.0000, -0.9189])
    """

    def __init__(self, site: str, left_out: Tensor) -> None:
        super().__init__()
        self.site, self.left_out = site, left_out
        self._rows: dict[str, Tensor] = {}  # that each plate takes in this run

    def _pyro_post_sample(self, msg: Any) -> None:
        if type(msg["fn"]).__name__ == "_Subsample":
            self._rows[msg["name"]] = msg["value"]

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] == self.site and msg["is_observed"]:
            kept = ~self.left_out.to(msg["value"].device)
            for frame in msg["cond_indep_stack"]:
                rows = self._rows.get(frame.name)
                if rows is None or kept.ndim < -frame.dim:
                    continue
                if len(rows) != kept.shape[frame.dim] > 1:  # a batch of the plate's rows
                    kept = kept.index_select(frame.dim, rows)
            msg["mask"] = kept if msg["mask"] is None else kept & msg["mask"]
