"""A model's density on some rows of a plate is that of its rows alone, looked at on one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_bnn.errors import ModelError, SiteError
from pyro_bnn.handled import model_name
from pyro_bnn.program.failures import named_failures
from pyro_bnn.program.handlers import Evaluate, Starting, log_prob
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.subsampling import Plate
from pyro_bnn.program.terms import Batch

ROUNDING = 1e-3  # by which the density of a row may differ from that among others


def require_sum_over_rows(joint: Joint) -> None:
    """Check that the log joint is a sum over the rows of the plate that takes some of them.

    Args:
        joint: The model.

    Raises:
        ModelError: If the model cannot run on some rows, or a site has another density on them.
        SiteError: If a site of these rows has a support that depends on another site.
    """
    plate = joint.plate
    if plate is None:
        return
    with torch.no_grad(), isolated():
        whole = joint.run_at(joint.initial)
        for site in joint.latents.dependent:
            if _is_in(whole.latent[site.name], plate):
                raise SiteError(
                    f"the support of {site.name!r} depends on another site, which is not built for "
                    f"a plate that takes some of its rows: leave subsample_size= out of "
                    f"{plate.name!r}, or scale a sample of a fixed support"
                )
        generator = torch.Generator().manual_seed(0)
        rows = torch.randperm(plate.size, generator=generator)[: plate.taken].to(joint.device)
        with named_failures(joint.model, joint.args, joint.kwargs, Starting()):
            some = joint.run_at(joint.initial, joint.arguments(Batch(rows, rows)))
    of_whole = _messages(whole)
    for name, msg in _messages(some).items():
        expected = log_prob(of_whole[name])
        if _is_in(msg, plate):
            expected = _at(expected, msg, plate, rows)
        if not _is_close(msg, expected):
            raise ModelError(
                f"{model_name(joint.model)} gives the site {name!r} another density on "
                f"{plate.taken} rows of the plate {plate.name!r} than among all {plate.size}, so "
                "that steps on some rows have another posterior: index all arrays of rows by what "
                "the plate gives, as in `with pyro.plate(...) as rows: ... obs=y[rows]`, and take "
                "means over rows before the model"
            )


def _messages(run: Evaluate) -> dict[str, Mapping[str, Any]]:
    return {**run.latent, **run.summed, **run.observed, **run.factors}


def _is_close(msg: Mapping[str, Any], expected: Tensor) -> bool:
    """Whether a site has a log density, as expected."""
    try:
        density = log_prob(msg)
    except RuntimeError:  # a value and a distribution of other rows
        return False
    return density.shape == expected.shape and torch.allclose(
        density, expected, rtol=ROUNDING, atol=ROUNDING, equal_nan=True
    )


def _is_in(msg: Mapping[str, Any], plate: Plate) -> bool:
    return any(frame.name == plate.name for frame in msg["cond_indep_stack"])


def _at(density: Tensor, msg: Mapping[str, Any], plate: Plate, rows: Tensor) -> Tensor:
    """The entries of rows, of a log density of all."""
    dim = next(frame.dim for frame in msg["cond_indep_stack"] if frame.name == plate.name)
    if density.ndim >= -dim and density.shape[dim] == plate.size:
        return density.index_select(dim, rows)
    return density
