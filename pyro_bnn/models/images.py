"""What the networks of images share: their shape, and the likelihood of a class each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from pyro_bnn.checks import check_positive_int
from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.likelihoods import Categorical, Likelihood
from pyro_bnn.models.network import own_likelihood

NUM_CLASSES = 10  # of MNIST, CIFAR-10 and the digits


class Images(nn.Module):
    """First layer of a network of images: rows become images ``[N, C, H, W]``.

    Args:
        image_shape: Channels, height and width ``(C, H, W)``.
    """

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.image_shape = image_shape

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``[N, C * H * W]`` or ``[N, C, H, W]`` to ``[N, C, H, W]``.

        Raises:
            ShapeError: If x has another shape.
        """
        shape = self.image_shape
        if x.ndim == 2 and x.shape[1] == math.prod(shape):
            return x.reshape(-1, *shape)
        if x.ndim == 4 and x.shape[1:] == shape:
            return x
        raise ShapeError(
            f"x has shape {tuple(x.shape)}, but the model takes images [N, "
            f"{', '.join(map(str, shape))}], or [N, {math.prod(shape)}] with one in each row"
        )

    def extra_repr(self) -> str:
        """The images' shape, as modules print it."""
        return "x".join(map(str, self.image_shape))


def checked_image_shape(image_shape: Sequence[int], least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width as three numbers.

    Args:
        image_shape: What the user gave.
        least: Fewest pixels of a side.

    Raises:
        OptionError: If they are not three positive integers, or a side is too short.
    """
    numbers = tuple(image_shape) if isinstance(image_shape, Sequence) else ()
    are_counts = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers)
    if len(numbers) != 3 or not are_counts:
        raise OptionError(
            "image_shape is (channels, height, width), three positive integers such as "
            f"(1, 28, 28), not {image_shape!r}"
        )
    channels, height, width = numbers
    if min(height, width) < least:
        raise OptionError(
            f"images are {height} x {width} pixels, but the network halves them until nothing is "
            f"left: it takes {least} x {least} or more"
        )
    return channels, height, width


def image_likelihood(
    num_outputs: int | None, likelihood: Likelihood | None
) -> tuple[Likelihood, int]:
    """The likelihood, and the number F of network outputs that it needs.

    Args:
        num_outputs: Classes without a likelihood, targets with one; None for 10 classes or one
            target.
        likelihood: Distribution of y given f; None for one class of each image.

    Raises:
        OptionError: If the number is not positive, the likelihood none of this package, or one with
            another number of targets.
    """
    if num_outputs is not None:
        check_positive_int("num_outputs", num_outputs)
    if likelihood is None:
        likelihood, num_outputs = Categorical(num_outputs or NUM_CLASSES), None
    likelihood = own_likelihood(likelihood)
    return likelihood, likelihood.num_function_outputs(num_outputs or 1)
