r"""Residual network of rank-1 layers for small images.

.. math:: W'_{oiuv} = W_{oiuv}\, r_o s_i

in every convolution, and :math:`W' = W \circ (r s^\top)` in the last layer.

Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML 2020,
arXiv:2005.07186.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn

from pyro_bnn.layers import Rank1Conv2d, Rank1Linear
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.models.images import Images, image_likelihood
from pyro_bnn.models.rank1_parts import WEIGHT_PRIOR, Rank1Network
from pyro_bnn.models.res_net import Norm, checked_residual_options, residual_net
from pyro_bnn.priors import PriorLike, Priors


class Rank1ResNet(Rank1Network):
    r"""Residual network with point-estimated weights and random factors of channels.

    The network of :class:`pyro_bnn.models.ResNet`, whose convolutions and last layer have a factor
    of each input and one of each output: at depth 20 and width 16 some 1,400 random numbers beside
    269,722 point estimates. Sites are ``layers.<layer>.s`` and ``layers.<layer>.r``, with the
    layers of a ResNet, such as ``layers.stage1.0.conv1``. The weights, the last layer's bias and
    the gains and shifts of normalisations are parameters: SVI trains them, NUTS holds them at their
    values.

    Fit it with :class:`pyro_bnn.guides.AutoRank1Mixture`, whose components span the whole network;
    as deltas, :class:`pyro_bnn.guides.BatchEnsemble`. Members have biases of their own where a
    layer has one, the last; what normalisations learn is shared. What it captures of the weights,
    and the default prior, are those of :class:`pyro_bnn.models.Rank1MLP`.

    Args:
        image_shape: Channels, height and width of the images. Rows of x are images
            ``[N, C, H, W]``, or ``[N, C * H * W]``.
        num_outputs: Number of classes C where no likelihood is given, else of targets O. Default:
            10 classes, or one target.
        depth: Number of layers with weights, 6 n + 2.
        width: Filters of the first stage.
        norm: ``"group"`` or ``"frn"``, as in :class:`pyro_bnn.models.ResNet`.
        prior: One prior for all factors, or a mapping from patterns over the site names to priors
            that covers all of them. Default: Gaussian around 1 with scale 0.1.
        on: ``"both"``, or ``"inputs"`` for s alone, or ``"outputs"`` for r alone.
        weight_prior: Prior over every entry of the point estimates, its log density recorded once;
            around 1 for gains, see :func:`pyro_bnn.bayesian`. None for none. Default: Gaussian
            with fan-in scale.
        clip: Largest absolute value with which a factor acts, or None; part of the model.
        likelihood: Distribution of y given f. Default: one class of each image.

    Raises:
        OptionError: If a size or the clip is not positive, the depth not 6 n + 2, an image too
            small, or the weight prior has no density at the initial weights.
        SiteError: If the patterns leave a factor without a prior, or one matches nothing.
        UnknownNameError: If the normalisation or the side is not known.

    References:
        Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML
        2020, arXiv:2005.07186.

    Example:
        >>> import torch
        >>> model = Rank1ResNet((1, 8, 8), 10, depth=8, width=4)
        >>> model(torch.zeros(5, 64)).shape
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
        on: Literal["both", "inputs", "outputs"] = "both",
        weight_prior: PriorLike | None = WEIGHT_PRIOR,
        clip: float | None = 10.0,
        likelihood: Likelihood | None = None,
    ) -> None:
        shape = checked_residual_options(image_shape, depth, width, norm)
        likelihood, num_function_outputs = image_likelihood(num_outputs, likelihood)
        super().__init__(likelihood)
        self.image_shape, self.depth, self.width, self.norm = shape, depth, width, norm

        def convolution(before: int, after: int, stride: int) -> nn.Module:
            return Rank1Conv2d(before, after, 3, stride=stride, padding=1, clip=clip, bias=False)

        last = Rank1Linear(4 * width, num_function_outputs, clip=clip)
        layers = residual_net(shape[0], depth, width, norm, convolution, last)
        self.images = Images(shape)
        to_pyro_module_(layers)
        self.layers = layers
        self.set_factor_priors(prior, on)
        self.set_weight_prior(weight_prior)

    def network(self, x: Tensor) -> Tensor:
        """The network's output f ``[N, F]`` at images x."""
        f: Tensor = self.layers(self.images(x))
        return f
