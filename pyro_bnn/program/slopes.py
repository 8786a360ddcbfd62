"""The likelihood has a gradient in each site on which it depends, and this is its own."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pyro_bnn.errors import ModelError
from pyro_bnn.layers.dropout import IS_MASK_NOISE
from pyro_bnn.program.rows import FewRows, densities

HALVINGS = 24  # of the way between two values of a site, at the end of which a jump is left
STEP = 2.0**-6  # by which entries of a site are moved, to see what its gradient says
MOST_ENTRIES = 4  # that are moved: of thousands that are rounded, some would jump
SHARE = 0.01  # of what the gradient says, by which at least some density of a row is to change
NUM_ROUNDINGS = 1_000  # of the log densities, above which a change is none of these


def require_gradients(few: FewRows) -> None:
    """Check that the likelihood has a gradient in each site on which it depends.

    Raises:
        ModelError: If it depends on a site in which it has none, or one of something else, as that
            of a straight-through estimator is; names the site.
    """
    if torch.is_inference_mode_enabled():
        return
    with torch.enable_grad():
        rows = densities(few.whole)
    slopes: dict[str, Tensor | None] = dict.fromkeys(few.values)
    of_z = None
    if rows.requires_grad:
        given = [*few.values.values(), few.start]
        try:
            *found, of_z = torch.autograd.grad(rows.sum(), given, allow_unused=True)
        except RuntimeError:  # of an operation without a derivative; engines name it
            return
        slopes = dict(zip(few.values, found, strict=True))
    without = [name for name, slope in slopes.items() if slope is None]
    _refuse(
        name
        for name in without
        if not few.whole.latent[name]["infer"].get(IS_MASK_NOISE) and _moves(few, name)
    )
    known = {name: slope for name, slope in slopes.items() if slope is not None}
    _refuse(name for name, slope in known.items() if _jumps(few, name, slope))
    if of_z is not None:
        moved = few.constrain(few.start.detach() + STEP * of_z.sign())
        _refuse(name for name, slope in known.items() if _stays(few, name, slope, moved[name]))


def _refuse(names: Iterable[str]) -> None:
    """Refuse sites, where there are any."""
    if found := ", ".join(map(repr, names)):
        raise ModelError(
            f"the likelihood depends on {found} and has no gradient in it, so that a fit would "
            "give its prior back: compute f from it without .detach(), torch.no_grad(), NumPy or "
            "numbers of Python, and without comparisons, rounding and straight-through gradients"
        )


def _moves(few: FewRows, name: str) -> bool:
    """Whether the densities are others where a site has moved far."""
    run = few.at({name: few.constrain(few.moved())[name]})
    return run is not None and few.is_other(run)


def _jumps(few: FewRows, name: str, slope: Tensor | None) -> bool:
    """Whether the densities change by jumps alone on the way to where a site has moved.

    A gradient of 0 is that of rounding, or of units that are off, which are on at another place.
    """
    low, high, start = 0.0, 1.0, few.start.detach()
    for halving in range(HALVINGS):
        if slope is not None and bool(slope.any()):
            return False
        if not halving and not _moves(few, name):
            return False
        middle = (low + high) / 2
        with torch.enable_grad():
            value = few.constrain(start + middle * (few.moved() - start))[name].requires_grad_()
            if (run := few.at({name: value})) is None:
                return False
            (slope,) = torch.autograd.grad(densities(run).sum(), value, allow_unused=True)
        low, high = (low, middle) if few.is_other(run) else (middle, high)
    return True


@torch.no_grad()
def _stays(few: FewRows, name: str, slope: Tensor, moved: Tensor) -> bool:
    """Whether the densities stay where a site moves a little, though its gradient says otherwise.

    Args:
        few: The rows.
        name: Of the site.
        slope: Gradient of the sum of the densities in its value.
        moved: The value after a step along its gradient.
    """
    rows, value = densities(few.whole).detach(), few.values[name].detach()
    changes = (slope * (moved - value)).flatten()
    places = changes.abs().topk(min(MOST_ENTRIES, len(changes))).indices
    said, size = float(changes[places].sum().abs()), float(rows.abs().sum())
    if not NUM_ROUNDINGS * torch.finfo(rows.dtype).eps * size < said < size:
        return False  # nothing to see, or a network whose gradients explode
    some = value.flatten().clone()
    some[places] = moved.flatten()[places]
    run = few.at({name: some.view_as(value)})
    if run is None or float((densities(run) - rows).abs().sum()) >= SHARE * said:
        return False
    f = few.whole.f.detach()
    rounded = f * (1 + NUM_ROUNDINGS * torch.finfo(f.dtype).eps)
    run = few.at({}, rounded)  # f of 1e6 in float32 has no steps as small as these
    return run is not None and float((densities(run) - rows).abs().sum()) < said
