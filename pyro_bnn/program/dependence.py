"""Sites whose prior depends on other sites or on parameters, in whatever way.

A gradient does not show a scale that is one number above a threshold and another below it.
Provenance does (Wingate et al., "Nonstandard Interpretations of Probabilistic Programs for
Efficient Inference", NeurIPS 2011): each value is marked, and marks go through all operations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.ops.provenance import detach_provenance, get_provenance, track_provenance
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_bnn.priors.prior import tensors_of
from pyro_bnn.program.handlers import Evaluate
from pyro_bnn.program.terms import Params

logger = logging.getLogger("pyro_bnn")

_TO_NUMBERS = frozenset(
    {
        Tensor.__array__,
        Tensor.__bool__,
        Tensor.__float__,
        Tensor.__index__,
        Tensor.__int__,
        Tensor.item,
        Tensor.numpy,
        Tensor.tolist,
    }
)
_LIKE_FIRST = frozenset(  # read the shape and the dtype of their first argument alone
    {
        torch.empty_like,
        torch.full_like,
        torch.ones_like,
        torch.rand_like,
        torch.randn_like,
        torch.zeros_like,
        Tensor.new_empty,
        Tensor.new_full,
        Tensor.new_ones,
        Tensor.new_tensor,
        Tensor.new_zeros,
    }
)
_LIKE_OTHERS = frozenset(  # and these, of all others
    {Tensor.expand_as, Tensor.reshape_as, Tensor.to, Tensor.type_as, Tensor.view_as}
)


def sources_of_priors(
    evaluate: Callable[[dict[str, Tensor], Params], Evaluate],
    values: Mapping[str, Tensor],
    params: Params,
) -> dict[str, frozenset[str]]:
    """Names of the sites and parameters on which the prior of each site depends, if on any.

    Where the model takes a marked value out of its tensor, as ``if scale > 1`` does, all sites that
    come after it depend on all; where it does not run on marked values, all sites do.

    Args:
        evaluate: Runs the model at values of its sites and of its parameters.
        values: Some values of the sites.
        params: Those of the parameters.
    """
    given = _Given(_marked(values))
    reads = _Reads(given.taken)
    every = frozenset({*values, *params})
    try:
        with reads:
            run = evaluate(given, _marked(params))
    except Exception as error:  # it runs on plain tensors: the user's code may ask for these
        logger.debug("what priors depend on is not known: %s", error)
        return dict.fromkeys(values, every)
    found = {name: get_provenance(tensors_of(msg["fn"])) for name, msg in run.latent.items()}
    if reads.before is not None:
        found |= dict.fromkeys(found.keys() - reads.before, every)
    return {name: sources for name, sources in found.items() if sources}


def _marked(values: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        name: track_provenance(value.detach(), frozenset({name})) for name, value in values.items()
    }


class _Given(dict[str, Any]):
    """Values that remember which of them were taken."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.taken: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.taken.append(name)
        return super().__getitem__(name)


class _Reads(TorchFunctionMode):
    """Notes when a marked tensor first became a number, and takes no shape for a value.

    Args:
        taken: The sites that have their values so far.

    Attributes:
        before: Those that had them when it did; None if none did.
    """

    def __init__(self, taken: list[str]) -> None:
        super().__init__()
        self._taken = taken
        self.before: frozenset[str] | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.before is None and func in _TO_NUMBERS and get_provenance(args):
            self.before = frozenset(self._taken)
        if func in _LIKE_FIRST:
            args = (detach_provenance(args[0]), *args[1:])
        elif func in _LIKE_OTHERS:
            args = (args[0], *(detach_provenance(other) for other in args[1:]))
        return func(*args, **(kwargs or {}))
