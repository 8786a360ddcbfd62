"""A model on the device that a user names; its fits and draws are where it is."""

from __future__ import annotations

import torch

from pyro_bnn.errors import OptionError
from pyro_bnn.handled import module_of
from pyro_bnn.program.handlers import Model

KINDS = ("cpu", "cuda")


def gpu_name(device: torch.device) -> str | None:
    """Name of the GPU that a device is; None of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def on_device(model: Model, device: str) -> Model:
    """The model itself, with its weights and the numbers of its priors moved there.

    Args:
        model: The model; its rows may stay where they are.
        device: ``"cpu"``, ``"cuda"``, or the second GPU as ``"cuda:1"``.

    Raises:
        OptionError: If it is no such name, or torch finds no such GPU.
    """
    kind, colon, number = str(device).partition(":")
    is_number = number.isdecimal() and number == str(int(number))
    if kind not in KINDS or (colon and not (kind == "cuda" and is_number)):
        raise OptionError(f"a device is cpu or cuda, of several GPUs cuda:1, not {device!r}")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if int(number or 0) >= count:
        found = f"{count} GPU{'s' * (count > 1)}" if count else "no GPU that it can use"
        raise OptionError(f"there is no device {device!r}: torch finds {found}")
    module = module_of(model)
    if module is not None:
        module.to(device)
    return model
