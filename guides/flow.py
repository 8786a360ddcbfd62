r"""Normalising flow, :math:`z = m + s \circ f(\epsilon)` with an invertible f of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pyro_bnn.checks import check_choice, check_positive_int
from pyro_bnn.errors import OptionError, SiteError, UnknownNameError
from pyro_bnn.guides.guide import KLKind, ScaledGuide
from pyro_bnn.guides.parts.blocks import LAST_LAYER, Blocks, layers_of, matching_sites
from pyro_bnn.guides.parts.flow_layers import KINDS, NOT_INVERTED, Flows
from pyro_bnn.program.handlers import Evaluate, Model
from pyro_bnn.program.terms import GuideTerms
from pyro_bnn.sites import Site

MAX_NUMBERS = 100_000_000  # that the layers of a flow may train: with Adam's moments, 1.2 GB

FlowName = Literal[
    "affine_autoregressive",
    "affine_coupling",
    "planar",
    "spline_autoregressive",
    "spline_coupling",
]
On = Literal["all", "last_layer"]


class AutoFlow(ScaledGuide):
    r"""Normalising flow of Pyro over all weights, or over those of the last layer.

    .. math:: z = m + s \circ f_L(\cdots f_1(\epsilon)), \quad \epsilon \sim \mathcal N(0, I);
              \qquad \log q(z) = \log \mathcal N(\epsilon \mid 0, I) - \sum_j \log s_j
              - \sum_l \log\left|\det \frac{\partial f_l}{\partial f_{l-1}}\right|

    The flow acts on the noise of ``AutoNormal``, in units of its standard deviations, and starts
    at the identity (splines: within 0.001): the guide starts as ``AutoNormal`` at ``init_scale``.
    Captures curved and skewed posteriors and correlations of any form; misses separate modes,
    which a continuous map of one Gaussian can only join by bridges. There is no closed form: the
    KL is a Monte Carlo average, whose noise ``num_particles`` lowers, and it takes more steps than
    a Gaussian.

    A draw and its own density are one pass through the L layers, which is all that SVI, k-hat and
    the ELBO need. What ``log_prob`` of any other z takes depends on the flow; it is exact in all:

    ========================= ================================================== ================
    ``flow``                  a layer                                            ``log_prob(z)``
    ========================= ================================================== ================
    ``affine_coupling``       shifts and scales half of the entries by a network L passes
                              of the others
    ``spline_coupling``       puts both halves through monotone splines, one of  L passes
                              them by a network of the others
    ``affine_autoregressive`` shifts and scales each entry by a network of the   L P passes
                              entries before; one layer contains every Gaussian
    ``spline_autoregressive`` a monotone spline for each entry, by a network of  L P passes
                              the entries before
    ``planar``                bends z across one plane                           L roots in 1-D
    ========================= ================================================== ================

    Couplings train about 50 P (affine) or 500 P (splines) numbers a layer at 32 units, planar
    layers 2 P, autoregressive ones 5 P^2 or 63 P^2, as their networks need P units at least: take
    ``on="last_layer"`` or another flow for P in the thousands. Log scales of affine layers lie
    between -5 and 3; splines act within 4 standard deviations of the noise.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial standard deviation of every entry of z, > 0, in its units.
        flow: Name of the flow in ``pyro.distributions.transforms``; see above.
        num_flows: Number L of layers; default 4 affine couplings, 2 of splines or of an
            autoregressive flow, 8 planes. Each takes the entries in another order.
        hidden: Units of each layer's network, with one hidden layer; default 32, or P in
            autoregressive flows where P is more. Without effect on planar flows.
        on: ``"all"``, or ``"last_layer"``: all sites of the module that owns the last real site in
            the order of the model's execution; the other sites are independent Gaussians, as in
            ``AutoNormal``.

    Raises:
        OptionError: If an option is out of its range, Pyro cannot invert the flow, or its layers
            would have more than 100 million numbers.
        SiteError: If the last layer cannot be told, as in a model without modules, or a flow other
            than ``planar`` is over a single entry.
        UnknownNameError: If Pyro has no such flow.

    References:
        Rezende & Mohamed, "Variational Inference with Normalizing Flows", ICML 2015,
        arXiv:1505.05770 (planar).
        Kingma et al., "Improving Variational Inference with Inverse Autoregressive Flow", NeurIPS
        2016, arXiv:1606.04934.
        Dinh, Sohl-Dickstein & Bengio, "Density estimation using Real NVP", ICLR 2017,
        arXiv:1605.08803 (affine couplings).
        Durkan et al., "Neural Spline Flows", NeurIPS 2019, arXiv:1906.04032; Pyro's default are
        the linear rational splines of Dolatabadi, Erfani & Leckie, AISTATS 2020, arXiv:2001.05168.

    Example:
        >>> from pyro_bnn.models import MLP
        >>> guide = AutoFlow(MLP(3, hidden=(8,)), on="last_layer")
        >>> guide.setup(torch.zeros(1, 3))
        >>> guide.num_latents, guide.flow_sites
        (42, ('layers.1.weight', 'layers.1.bias'))
    """

    kl_kind: KLKind = "monte_carlo"
    contains = ("AutoNormal",)
    has_correlations = True
    enlarged_by = "num_flows"

    own_state: ClassVar[Mapping[str, str]] = {"flow_sites": "flow_sites"}

    flows: Flows

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        init_scale: float = 0.01,
        flow: FlowName = "affine_coupling",
        num_flows: int | None = None,
        hidden: int | None = None,
        on: On = "all",
    ) -> None:
        super().__init__(model, init_loc_fn, init_scale)
        if flow in NOT_INVERTED:
            raise OptionError(
                f"Pyro cannot invert flow={flow!r}, so that q has no density at a given z: take "
                f"one of {', '.join(KINDS)}"
            )
        if flow not in KINDS:
            raise UnknownNameError("flow", str(flow), KINDS)
        for name, value in (("num_flows", num_flows), ("hidden", hidden)):
            if value is not None:
                check_positive_int(name, value)
        check_choice("on", on, On)
        self.flow, self.hidden, self.on = flow, hidden, on
        self.num_flows = KINDS[flow].num_layers if num_flows is None else num_flows
        self.flow_sites: tuple[str, ...] = ()  # names of the sites that it is over

    def check_model(self, sites: Sequence[Site], run: Evaluate) -> None:  # noqa: ARG002
        """Find the sites of the flow.

        Raises:
            SiteError: If the last layer cannot be told.
        """
        if self._shapes:  # they come with the loaded parameters
            return
        names = [site.name for site in sites]
        if self.on == "last_layer":
            real = [site.name for site in sites if site.is_real]
            if not real or not layers_of(real, self.model)[-1]:
                raise SiteError(
                    'on="last_layer" needs real sites that a module of the model owns, such as '
                    f'"layers.1.weight", to tell the last layer; there are {", ".join(names)}: '
                    'take on="all"'
                )
            names = matching_sites(LAST_LAYER, sites, self.model)
        self.flow_sites = tuple(names)

    # Parameters

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [P]``, ``scale [P]`` and the layers ``flows``.

        Raises:
            OptionError: If these would be too large, or have too few units.
            SiteError: If the flow is over a single entry.
        """
        lengths = [length for _, _, length in self._shapes]
        labels = [name in self.flow_sites for name, _, _ in self._shapes]
        self._blocks = Blocks.of(lengths, labels)
        self._block = 0 if labels[0] else 1
        kind, size = KINDS[self.flow], self._blocks.sizes[self._block]
        units = kind.units(size) if self.hidden is None else self.hidden
        self._check_size(size, units)
        super().make_parameters(loc)
        self.flows = Flows(self.flow, size, self.num_flows, units).to(loc)

    def _check_size(self, size: int, units: int) -> None:
        kind = KINDS[self.flow]
        if size < kind.min_size:
            raise SiteError(
                f"flow={self.flow!r} needs {kind.min_size} entries of z, and there is {size}: take "
                'flow="planar", or AutoNormal'
            )
        if kind.is_autoregressive and units < size:
            raise OptionError(
                f"flow={self.flow!r} over {size:,} entries of z needs as many units, and hidden is "
                f'{units:,}: leave it at None, or take flow="affine_coupling"'
            )
        numbers = self.num_flows * kind.numbers(size, units)
        if numbers > MAX_NUMBERS:
            less = '; or on="last_layer"' if self.on == "all" else ""
            raise OptionError(
                f"{self.num_flows} layers of flow={self.flow!r} over {size:,} entries of z would "
                f"train {numbers:,} numbers, above {MAX_NUMBERS:,}: take fewer layers, or "
                f'flow="affine_coupling" with few hidden units, or "planar"{less}'
            )

    def set_sds(self, sds: Tensor) -> None:
        """Leave the scales, which are no standard deviations of z, as they are."""

    def centre(self) -> Tensor:
        """Where noise of zeros goes, ``[P]``; the mean has no closed form."""
        self.require_setup()
        with torch.no_grad():
            return self.transport(torch.zeros_like(self.loc))

    def move_to(self, z: Tensor) -> None:
        """Send noise of zeros to z ``[P]``, the form of q as it is."""
        with torch.no_grad():
            self.loc.add_(z - self.centre())

    # Draws and densities

    def _push(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Z ``[..., P]`` of noise ``[..., P]``, and its log density ``[...]``."""
        self.require_setup()
        parts = self._blocks.split(noise)
        parts[self._block], log_det = self.flows(parts[self._block])
        log_det = log_det + self.scale.log().sum()
        constant = 0.5 * noise.shape[-1] * math.log(2 * math.pi)
        standard = -0.5 * noise.square().sum(-1) - constant
        return self.loc + self.scale * self._blocks.join(parts), standard - log_det

    def transport(self, noise: Tensor) -> Tensor:
        """``loc + scale * f(noise)``, ``[..., P]``."""
        return self._push(noise)[0]

    def log_prob(self, z: Tensor) -> Tensor:
        """Log q(z) ``[...]`` of z ``[..., P]``, by the inverse; see the table above."""
        self.require_setup()
        return self.log_q(self.noise_of(z))

    def noise_of(self, z: Tensor) -> Tensor:
        """Noise ``[..., P]`` that is sent to z ``[..., P]``."""
        parts = self._blocks.split((z - self.loc) / self.scale)
        parts[self._block] = self.flows.inverse(parts[self._block])
        return self._blocks.join(parts)

    def log_q(self, noise: Tensor) -> Tensor:
        """Log density ``[...]`` of the draws made of noise ``[..., P]``, without the inverse."""
        return self._push(noise)[1]

    def make_terms(self, noise: Tensor, *, density: bool) -> GuideTerms:
        """What an ELBO needs at noise ``[K, P]``, by one pass."""
        z, log_prob = self._push(noise)
        return GuideTerms(z, log_prob=log_prob if density else None)
