r"""Residual network of small images with a prior over every weight and bias.

.. math:: h' = \phi\bigl(N_2(W_2 * \phi(N_1(W_1 * h))) + h\bigr)

a block of two 3 x 3 convolutions, each followed by a normalisation N within its own row.

He, Zhang, Ren & Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, arXiv:1512.03385,
section 4.2.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from pyro_bnn.checks import check_positive_int
from pyro_bnn.errors import OptionError, UnknownNameError
from pyro_bnn.layers import FilterResponseNorm
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.models.from_network import BayesianModule
from pyro_bnn.models.images import Images, checked_image_shape, image_likelihood
from pyro_bnn.priors import Priors

Norm = Literal["group", "frn"]
Convolution = Callable[[int, int, int], nn.Module]  # channels in, out and the stride: 3 x 3

NORMS = ("frn", "group")
GROUP = 8  # channels that group normalisation normalises together
STAGES = (1, 2, 4)  # times the width
LEAST_SIDE = {"frn": 5, "group": 1}  # pixels: four make one in the last stage


class ResNet(BayesianModule):
    """Bayesian residual network for small images; every weight and bias is a Pyro sample site.

    A convolution, then three stages of (depth - 2)/6 blocks of two convolutions, with 1, 2 and 4
    times ``width`` filters on maps of the whole, the half and the quarter size, then the mean over
    the pixels and a linear layer: at depth 20 and width 16 the ResNet-20 of He et al., 269,722
    weights and biases for images of three channels and ten classes.

    It differs from theirs in the normalisation alone. Batch normalisation mixes the rows of a
    batch, so that f of a row would not be a function of the weights; group normalisation, over 8
    channels of one image, and filter response normalisation, over one channel of one image, do not.
    The shortcut is theirs for these images, option A: every second pixel, and zeros for the new
    channels. It has no weights, so that nothing on the way from input to output is random but the
    blocks.

    Sites are named ``first.weight``, ``stage<s>.<b>.conv1.weight``, ``stage<s>.<b>.norm1.weight``
    and so on, and ``last.weight``; convolutions have no bias, as a normalisation follows each. One
    prior for all is around 1 for the gains of normalisations, see :func:`pyro_bnn.bayesian`.

    Args:
        image_shape: Channels, height and width of the images. Rows of x are images
            ``[N, C, H, W]``, or ``[N, C * H * W]``.
        num_outputs: Number of classes C where no likelihood is given, else of targets O. Default:
            10 classes, or one target.
        depth: Number of layers with weights, 6 n + 2.
        width: Filters of the first stage.
        norm: ``"group"``, or ``"frn"``, whose threshold replaces the ReLU inside a block and which
            takes images of at least 5 pixels a side.
        prior: One prior for all weights and biases, or a mapping from name patterns to priors, of
            which what none matches stays a point estimate, as in :func:`pyro_bnn.bayesian`.
            Default: Gaussian with fan-in scale.
        likelihood: Distribution of y given f. Default: one class of each image.

    Raises:
        OptionError: If a size is not a positive integer, the depth not 6 n + 2, or an image too
            small.
        SiteError: If a pattern matches no parameter.
        UnknownNameError: If the normalisation is not known.

    References:
        He, Zhang, Ren & Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
        arXiv:1512.03385. Wu & He, "Group Normalization", ECCV 2018, arXiv:1803.08494. Singh &
        Krishnan, "Filter Response Normalization Layer", CVPR 2020, arXiv:1911.09737.

    Example:
        >>> import torch
        >>> model = ResNet((3, 8, 8), 10, depth=8, width=4)
        >>> model(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (3, 32, 32),
        num_outputs: int | None = None,
        *,
        depth: int = 20,
        width: int = 16,
        norm: Norm = "group",
        prior: Priors | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        shape = checked_residual_options(image_shape, depth, width, norm)
        likelihood, num_function_outputs = image_likelihood(num_outputs, likelihood)
        net = residual_net(
            shape[0], depth, width, norm, convolution, nn.Linear(4 * width, num_function_outputs)
        )
        net = nn.Sequential(OrderedDict([("images", Images(shape)), *net.named_children()]))
        super().__init__(net, prior, likelihood)
        self.image_shape, self.depth, self.width, self.norm = shape, depth, width, norm


def checked_residual_options(
    image_shape: Sequence[int], depth: int, width: int, norm: str
) -> tuple[int, int, int]:
    """Channels, height and width of the images, once all options are found right.

    Raises:
        OptionError: If a size is not a positive integer, the depth not 6 n + 2, or an image too
            small.
        UnknownNameError: If the normalisation is not known.
    """
    if norm not in NORMS:
        raise UnknownNameError("normalisation", str(norm), NORMS)
    check_positive_int("depth", depth)
    check_positive_int("width", width)
    if depth < 8 or depth % 6 != 2:
        near = max(8, 6 * round((depth - 2) / 6) + 2)
        raise OptionError(
            f"depth is 6 n + 2, for three stages of n blocks of two layers, such as {near}, not "
            f"{depth}"
        )
    return checked_image_shape(image_shape, LEAST_SIDE[norm])


def residual_net(
    channels: int,
    depth: int,
    width: int,
    norm: Norm,
    convolution: Convolution,
    last: nn.Module,
) -> nn.Sequential:
    """The network of images as a plain torch module.

    Args:
        channels: Channels of the images.
        depth: Number of layers, 6 n + 2.
        width: Filters of the first stage.
        norm: Normalisation after each convolution.
        convolution: Makes a convolution.
        last: The layer from ``4 * width`` means over pixels to f.
    """
    layers: list[tuple[str, nn.Module]] = [
        ("first", convolution(channels, width, 1)),
        ("norm", normalisation(norm, width, activated=True)),
        ("relu", activation(norm)),
    ]
    before = width
    for stage, times in enumerate(STAGES, start=1):
        after = times * width
        blocks = [
            Block(before if b == 0 else after, after, norm, convolution)
            for b in range((depth - 2) // 6)
        ]
        layers.append((f"stage{stage}", nn.Sequential(*blocks)))
        before = after
    layers += [("mean", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("last", last)]
    return nn.Sequential(OrderedDict(layers))


class Block(nn.Module):
    """Two convolutions whose result is added to their input.

    Args:
        before: Channels of the input.
        after: Channels of the output; where they are more, the maps are halved.
        norm: Normalisation after each convolution.
        convolution: Makes a convolution.
    """

    def __init__(self, before: int, after: int, norm: Norm, convolution: Convolution) -> None:
        super().__init__()
        self.stride, self.new_channels = (1 if before == after else 2), after - before
        self.conv1 = convolution(before, after, self.stride)
        self.norm1, self.relu = normalisation(norm, after, activated=True), activation(norm)
        self.conv2, self.norm2 = convolution(after, after, 1), normalisation(norm, after)

    def forward(self, h: Tensor) -> Tensor:
        """Map h ``[N, C, H, W]`` to ``[N, C', H', W']``."""
        residual = self.relu(self.norm1(self.conv1(h)))
        residual = self.norm2(self.conv2(residual))
        shortcut = h[:, :, :: self.stride, :: self.stride]
        shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self.new_channels))
        return nn.functional.relu(residual + shortcut)


def convolution(before: int, after: int, stride: int) -> nn.Module:
    """A 3 x 3 convolution without bias; at stride 1 the maps keep their size."""
    return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)


def normalisation(norm: Norm, channels: int, *, activated: bool = False) -> nn.Module:
    """A normalisation within one row, with its own threshold where it is to be activated."""
    if norm == "frn":
        return FilterResponseNorm(channels, threshold=activated)
    return nn.GroupNorm(channels // GROUP if channels % GROUP == 0 else 1, channels)


def activation(norm: Norm) -> nn.Module:
    """What follows a normalisation that is activated and has no threshold."""
    return nn.ReLU() if norm == "group" else nn.Identity()
