r"""LeNet-5 with a prior over every weight and bias.

Two convolutions of 5 x 5 pixels with 6 and 16 filters, each followed by an activation and the
largest of 2 x 2 pixels, then fully connected layers of 120, 84 and F units.

LeCun, Bottou, Bengio & Haffner, "Gradient-based learning applied to document recognition",
Proceedings of the IEEE 86(11), 1998.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.models.from_network import BayesianModule
from pyro_bnn.models.images import Images, checked_image_shape, image_likelihood
from pyro_bnn.models.network import Activation, activation_function
from pyro_bnn.priors import Priors

KERNEL, FILTERS, UNITS = 5, (6, 16), (120, 84)
LEAST_SIDE = 4  # pixels: halved twice, one is left
# smaller images are padded: the second convolution would leave less than 2 pixels
PADDED_BELOW = 12


class LeNet(BayesianModule):
    """Bayesian LeNet-5; every weight and bias is a Pyro sample site.

    Sites are ``conv1.weight`` ``[6, C, 5, 5]``, ``conv2.weight`` ``[16, 6, 5, 5]``, ``fc1.weight``
    ``[120, 16 h w]``, ``fc2.weight`` ``[84, 120]`` and ``fc3.weight`` ``[F, 84]``, each with its
    ``.bias``; a hierarchical prior makes several of one weight.

    This is the network of 1998 as it is built today: 61,706 weights and biases for images of 28 x
    28 pixels in one channel and ten classes, with all 6 maps joined to all 16, a linear last layer,
    and the largest of 2 x 2 pixels in place of a weighted average: with averages and ReLUs too
    little of a signal is left under the default prior, and a fit may end at f = 0. Images are
    padded by two pixels, to the 32 x 32 of the original; those with a side under 12 pixels, such as
    the 8 x 8 digits, at the second convolution too.

    Args:
        image_shape: Channels, height and width of the images, a side at least 4 pixels. Rows of x
            are images ``[N, C, H, W]``, or ``[N, C * H * W]``.
        num_outputs: Number of classes C where no likelihood is given, else of targets O. Default:
            10 classes, or one target.
        activation: ``"relu"``, ``"tanh"`` (of 1998), or as in :class:`pyro_bnn.models.MLP`.
        prior: One prior for all weights and biases, or a mapping from name patterns to priors, of
            which what none matches stays a point estimate, as in :func:`pyro_bnn.bayesian`.
            Default: Gaussian with fan-in scale.
        likelihood: Distribution of y given f. Default: one class of each image.

    Raises:
        OptionError: If a size is not a positive integer, an image is too small, or the activation
            is a class.
        SiteError: If a pattern matches no parameter.
        UnknownNameError: If the activation's name is not known.

    References:
        LeCun, Bottou, Bengio & Haffner, "Gradient-based learning applied to document recognition",
        Proceedings of the IEEE 86(11), 1998.

    Example:
        >>> import torch
        >>> model = LeNet((1, 8, 8))
        >>> model(torch.zeros(5, 64)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        num_outputs: int | None = None,
        *,
        activation: str | Activation = "relu",
        prior: Priors | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        shape = checked_image_shape(image_shape, LEAST_SIDE)
        likelihood, num_function_outputs = image_likelihood(num_outputs, likelihood)
        net = le_net(shape, num_function_outputs, activation_function(activation))
        super().__init__(net, prior, likelihood)
        self.image_shape = shape

    @property
    def activation(self) -> Activation:
        """The function between the layers."""
        return cast(Elementwise, self.net.get_submodule("activation1")).activation


def le_net(
    image_shape: tuple[int, int, int], num_function_outputs: int, activation: Activation
) -> nn.Module:
    """The network as a plain torch module.

    Args:
        image_shape: Channels, height and width of the images.
        num_function_outputs: Number of outputs F.
        activation: Function between the layers.
    """
    channels, *sides = image_shape
    border = KERNEL // 2
    halves = [side // 2 for side in sides]  # after the first pooling
    padding = [border if side < PADDED_BELOW else 0 for side in sides]
    rest = [(half + 2 * pad - KERNEL + 1) // 2 for half, pad in zip(halves, padding, strict=True)]
    num_inputs = FILTERS[1] * rest[0] * rest[1]
    layers: list[tuple[str, nn.Module]] = [
        ("images", Images(image_shape)),
        ("conv1", nn.Conv2d(channels, FILTERS[0], KERNEL, padding=border)),
        ("activation1", Elementwise(activation)),
        ("pool1", nn.MaxPool2d(2)),
        ("conv2", nn.Conv2d(FILTERS[0], FILTERS[1], KERNEL, padding=(padding[0], padding[1]))),
        ("activation2", Elementwise(activation)),
        ("pool2", nn.MaxPool2d(2)),
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(num_inputs, UNITS[0])),
        ("activation3", Elementwise(activation)),
        ("fc2", nn.Linear(UNITS[0], UNITS[1])),
        ("activation4", Elementwise(activation)),
        ("fc3", nn.Linear(UNITS[1], num_function_outputs)),
    ]
    return nn.Sequential(OrderedDict(layers))


class Elementwise(nn.Module):
    """An activation as a layer."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, h: Tensor) -> Tensor:
        """Map h to the same shape."""
        return self.activation(h)
