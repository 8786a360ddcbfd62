"""Features of a network: the output of a layer named by its path, or the input of its last one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pyro_bnn.errors import BNNError, DataError, ModelError, OptionError, ShapeError

AT_ONCE = 512  # rows
MOST = 4_096  # features, whose covariance is [D, D]
SHOWN = 12  # names in a message


class FeatureNet:
    """A network and where its features are.

    Args:
        net: A classifier from x ``[N, ...]`` to logits ``[N, C]``. It is left as it is.
        layer: Path of a module, such as ``"body.avgpool"``, whose output is taken; by default the
            input of the last ``torch.nn.Linear``.

    Raises:
        OptionError: If there is no such module, or none that could be the last one.
    """

    def __init__(self, net: nn.Module, layer: str | None = None) -> None:
        if not isinstance(net, nn.Module):
            raise OptionError(f"net is a torch.nn.Module, not {type(net).__name__}")
        modules = {name: module for name, module in net.named_modules() if name}
        if layer is None:
            linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
            if not linear:
                raise OptionError(
                    "the network has no torch.nn.Linear whose input could be its features: name a "
                    f"layer, as in layer={[*modules][-1] if modules else ''!r}"
                )
            self.name, self.is_input = linear[-1], True
        elif layer in modules:
            self.name, self.is_input = layer, False
        else:
            some = ", ".join([*modules][:SHOWN])
            more = ", ..." if len(modules) > SHOWN else ""
            raise OptionError(f"the network has no layer {layer!r}: name one of {some}{more}")
        self.net = net

    @property
    def module(self) -> nn.Module:
        """The module whose input or output is taken."""
        return self.net.get_submodule(self.name)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``[N, D]`` and logits ``[N, C]`` of rows, with a gradient where that is on.

        Raises:
            ModelError: If the network fails on the rows; names their shape.
            ShapeError: If the layer has no row of numbers for each row of x, or too many.
        """
        found: list[Tensor] = []

        def keep(_: nn.Module, inputs: Any, output: Any = None) -> None:
            found.append(inputs[0] if self.is_input else output)

        module = self.module
        hook = (
            module.register_forward_pre_hook(keep)
            if self.is_input
            else module.register_forward_hook(keep)
        )
        try:
            logits = self._called(x)
        finally:
            hook.remove()
        if not found or not isinstance(found[-1], Tensor) or len(found[-1]) != len(x):
            raise ShapeError(
                f"the layer {self.name!r} gives no tensor with a row for each of the {len(x)} rows "
                "of x: name another one"
            )
        features = found[-1].flatten(1)
        if features.shape[1] > MOST:
            raise ShapeError(
                f"the layer {self.name!r} gives {features.shape[1]:,} features a row, and a "
                f"covariance of at most {MOST:,} is estimated: name a layer behind the pooling"
            )
        return features, logits

    def _called(self, x: Tensor) -> Tensor:
        """Logits of rows, fractions in the dtype of the weights."""
        like = next((p for p in self.net.parameters() if p.is_floating_point()), None)
        if like is not None and x.is_floating_point():
            x = x.to(like.dtype)
        try:
            logits: Tensor = self.net(x)
        except (BNNError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ModelError(
                f"the network fails on x {list(x.shape)} of {x.dtype}: {error}. Pass rows as the "
                "network takes them, a batch first; of images most take [N, channels, height, "
                "width], which x.permute(0, 3, 1, 2) makes of channels at the end"
            ) from error
        return logits

    def of_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same of many rows, a part at a time, in evaluation mode and without a gradient."""
        with evaluated(self.net), torch.no_grad():
            parts = [self(part) for part in x.split(AT_ONCE)]
        features, logits = (torch.cat(each) for each in zip(*parts, strict=True))
        if not bool(features.isfinite().all()):
            raise DataError(f"features of the layer {self.name!r} are NaN or infinite")
        return features, logits


@contextmanager
def evaluated(net: nn.Module) -> Iterator[None]:
    """Run a network in evaluation mode, and leave each module in the mode that it had."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
