"""A plain model has one log density at each value of its sites, and a gradient by torch."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import torch

from pyro_bnn.errors import BNNError, ModelError, SiteError
from pyro_bnn.handled import model_name
from pyro_bnn.program.failures import users_line
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.random_state import own_generators

WAYS_OUT = {
    "numpy()": "compute in torch what depends on a site, as other libraries have no gradient",
    "inplace operation": (
        "it writes over a tensor whose numbers the gradient needs, as a loop over time does: make "
        "a list of the numbers and torch.stack it, or read a copy, such as s[t - 1].clone()"
    ),
}
ROUNDING = 1e-4  # sums on a GPU have no order


def require_steady(joint: Joint) -> None:
    """Check that a model's log density has a gradient, and is the same at the same values.

    Args:
        joint: The model.

    Raises:
        ModelError: If the density cannot be differentiated, or is another one each time.
        SiteError: If ``obs_mask=`` makes latent values of rows that are observed.
    """
    name = model_name(joint.model)
    params = {key: value.detach() for key, value in joint.params.items()}
    with own_generators():
        try:
            with torch.enable_grad():
                z = joint.initial.detach().clone().requires_grad_()
                value = joint.log_joint(z, params=params)
                if value.requires_grad:
                    torch.autograd.grad(value, z)
        except (BNNError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            found = (out for words, out in WAYS_OUT.items() if words in str(error))
            what = textwrap.shorten(str(error), 300, placeholder=" ...") or type(error).__name__
            line = users_line(error)
            raise ModelError(
                f"the log density of {name} has no gradient: {what}"
                f"{f'; in the line {line}' if line else ''}"
                f"{''.join(f'; {out}' for out in found)}"
            ) from error
        with torch.no_grad():
            again = joint.log_joint(joint.initial, params=params)
            for site, msg in joint.run_at(joint.initial, params=params).latent.items():
                _require_seen(site, msg)
    first, second = float(value.detach()), float(again)
    same = math.isclose(first, second, rel_tol=ROUNDING, abs_tol=ROUNDING)
    if math.isfinite(first) and math.isfinite(second) and not same:
        raise ModelError(
            f"{name} has another log density at the same values of its sites each time, here "
            f"{first:.6g} and {second:.6g}: it draws random numbers beside its sites, as "
            "torch.randn and dropout in training mode do, or keeps something from one call to the "
            "next. Draw them by pyro.sample, or once before the fit and pass them as an argument"
        )


def _require_seen(name: str, msg: Mapping[str, Any]) -> None:
    """Check that a site is not what ``obs_mask=`` makes of an observed one."""
    site = name.removesuffix("_unobserved")
    if site != name and msg["mask"] is not None:
        raise SiteError(
            f"obs_mask= makes of {site!r} a latent value {name!r} for each row, which has no "
            "density where the row is observed: leave obs_mask= out, and put with "
            "poutine.mask(mask=...) around the sample statement, which leaves the other rows out"
        )
