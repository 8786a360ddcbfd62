"""What a run with all values of its discrete sites asks of the model, and how it takes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pyro.poutine.enum_messenger import EnumMessenger
from torch import Tensor

from pyro_bnn.errors import SiteError
from pyro_bnn.program.handlers import ENUMERATION, ModelTrace, innermost, way_out
from pyro_bnn.sites import base_support


class _Shape(NamedTuple):
    """What Pyro asks of a value: its shape, by ``value.data``, which a batch of draws refuses."""

    shape: torch.Size

    @property
    def data(self) -> _Shape:
        return self

    def dim(self) -> int:
        return len(self.shape)


class AllValues(EnumMessenger):
    """Gives each discrete site all of its values, along a dimension of its own."""

    def _pyro_post_sample(self, msg: Any) -> None:
        value = msg["value"]
        of_shape: Any = {**msg, "value": _Shape(value.shape)} if isinstance(value, Tensor) else msg
        super()._pyro_post_sample(of_shape)


def require_enumerable(trace: ModelTrace) -> None:
    """Check that each marked site has finitely many values, and is marked for all at once."""
    for name, msg in trace.enumerated.items():
        how, fn = msg["infer"]["enumerate"], msg["fn"]
        kind = type(innermost(fn)).__name__
        if not base_support(fn.support).is_discrete:
            raise SiteError(
                f"the latent site {name!r} is continuous ({kind}), and marked for enumeration: "
                'leave out infer={"enumerate": ...}, and it is inferred with the others'
            )
        if how != "parallel":
            raise SiteError(
                f"the latent site {name!r} is marked for {how} enumeration, which runs the model "
                'once for each of its values: mark it infer={"enumerate": "parallel"}, as by '
                f"@pyro.infer.config_enumerate, and all are computed in one run: {ENUMERATION}"
            )
        if msg["infer"].get("num_samples") is not None:
            raise SiteError(
                f"the latent site {name!r} is marked with num_samples=, so that its values would "
                "be drawn: leave it out, and they are summed out exactly"
            )
        if not getattr(fn, "has_enumerate_support", False):
            raise SiteError(f"the latent site {name!r} is discrete ({kind}), {way_out(fn)}")
