"""Any ``torch.nn.Module`` as a Bayesian model: parameters that a prior matches become sites."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import pyro
import torch
from torch import Tensor, nn

from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.models.fan_in import NORMS, places, suited_to_layers
from pyro_bnn.models.frozen_body import FrozenBody, frozen_body
from pyro_bnn.models.network import Network, module_list, require_rows
from pyro_bnn.models.torch_module import plain_copy, torch_module
from pyro_bnn.models.untrained import is_untrained
from pyro_bnn.priors import (
    Cauchy,
    HalfCauchyScale,
    HierarchicalPrior,
    Hierarchy,
    Horseshoe,
    Laplace,
    PriorModule,
    Priors,
    ScaleMixture,
    StudentT,
    match_priors,
)
from pyro_bnn.priors import Normal as NormalPrior
from pyro_bnn.priors.prior import AnyPrior, NamedPrior

M = TypeVar("M", bound=nn.Module)

AROUND = (NormalPrior, Cauchy, Laplace, StudentT, ScaleMixture, HalfCauchyScale, Horseshoe)
"""Priors around ``loc``, on both sides of it."""


class BayesianModule(Network):
    """A copy of a network whose matched parameters are sample sites; see :func:`bayesian`.

    Attributes:
        net: The copied network. Its matched parameters give names, shapes and where fits start.
        is_trained: Whether its weights are not those that torch drew, so that fits start there.
        sites: Names of the parameters that are sampled, as in ``net.named_parameters()``.
        point_estimates: Names of the parameters that stay point estimates.
        places: All names of each sampled parameter in ``net``, of which a tied weight has several.
    """

    _bodies: tuple[FrozenBody, ...] = ()

    def __init__(
        self, net: nn.Module, priors: Priors | None, likelihood: Likelihood | None
    ) -> None:
        super().__init__(likelihood)
        self.net = plain_copy(net)
        self.is_trained = not is_untrained(self.net)
        parameters = dict(self.net.named_parameters())  # a tied weight stands here once
        floating = (p for p in parameters.values() if p.is_floating_point())
        _like(self.likelihood, next(floating, torch.empty(0)))
        first = {id(parameter): name for name, parameter in parameters.items()}
        everywhere = self.net.named_parameters(remove_duplicate=False)
        tied = {name: first[id(p)] for name, p in everywhere if name not in parameters}
        matched = match_priors(NormalPrior() if priors is None else priors, parameters, tied)
        is_one = not isinstance(priors, Mapping | NamedPrior)  # prior for all weights
        if is_one:
            matched = suited_to_norms(self.net, matched)
        matched = suited_to_layers(self.net, matched)
        self.sites = tuple(matched)
        self.point_estimates = tuple(name for name in parameters if name not in matched)
        self.priors = module_list(
            _like(_sampled(name, prior, parameters[name].shape), parameters[name])
            for name, prior in matched.items()
        )
        self._starts = starts_of_norms(self.net, matched) if is_one else {}
        # sampled, hence not trained and not in parameters(); a tied weight has several places
        self.places = {name: _replace_by_buffers(self.net, parameters[name]) for name in matched}

    def own_weights(self) -> dict[str, Tensor]:
        """The network's own values of the parameters that are sampled, by name."""
        return {name: self.net.get_buffer(self.places[name][0]) for name in self.sites}

    def frozen_body(self, x: Tensor) -> FrozenBody | None:
        """The part of the network before all that is sampled or trained, if there is one.

        From then on the model takes its features for x, too; what is frozen is what has
        ``requires_grad`` off at this call.

        Args:
            x: Rows, or features of a body that was found before.
        """
        for known in self._bodies:
            if known.are_features(x):
                return known
        parameters = self.net.named_parameters(remove_duplicate=False)
        moving = [name for name, value in parameters if value.requires_grad]
        moving += [name for names in self.places.values() for name in names]
        body = frozen_body(self.net, moving, x, ndim=x.ndim + 1 + len(self._bodies))
        if body is None:
            return None
        for known in self._bodies:
            if known.is_same(body):
                return known
        self._bodies = (*self._bodies, body)
        return body

    def modules_before(self, x: Tensor) -> set[nn.Module]:
        """The modules that do not run on x, as it is features that they made; else none."""
        for body in self._bodies:
            if body.are_features(x):
                return set(self.net.modules()) - body.modules_of_rest()
        return set()

    def network(self, x: Tensor) -> Tensor:
        """Sample the matched parameters: the network's output f ``[N, F]`` at inputs x.

        x may be features of the :meth:`frozen_body`: then the rest of the network runs.
        """
        values: dict[str, Tensor] = {}
        for name, prior in zip(self.sites, self.priors, strict=True):
            if isinstance(prior, Hierarchy):
                value = prior.sample(name)
            else:
                infer: Any = {"start": self._starts[name]} if name in self._starts else {}
                value = pyro.sample(name, prior(), infer=infer)
            values |= dict.fromkeys(self.places[name], value)
        for body in self._bodies:
            if body.are_features(x):
                return require_rows(body.rest(x, values), x)
        f = torch.func.functional_call(self.net, values, (x,), tie_weights=False)
        return require_rows(f, x)


def bayesian(
    net: nn.Module,
    prior: Priors | None = None,
    likelihood: Likelihood | None = None,
) -> BayesianModule:
    """Copy a network and put priors over its parameters.

    One prior for all parameters is one of weights and biases. A gain of a normalisation (LayerNorm,
    GroupNorm, RMSNorm, :class:`pyro_bnn.layers.FilterResponseNorm`, ...) multiplies what it is
    given, so its prior is the same around 1, where the other's ``loc`` is 0: gains around 0 would
    switch units off. With fan-in scale that is a standard deviation of 1, as each acts on one
    entry; ``{"norm.weight": priors.Normal(0.1, loc=1.0), "*": priors.Normal()}`` is a narrower one.
    The priors of a mapping, of an earlier fit, and distributions of Pyro are taken as they are.

    Fits start at the weights of a network that was trained, and say so in a line: means of guides
    there, the scales small; the first chain and the first member of an ensemble there, other chains
    within a tenth of the size of its weights, other members at draws from the prior. With
    ``engine.run(..., init="prior")`` all start at draws. A network counts as trained unless each of
    its layers is as ``reset_parameters`` left it (:mod:`pyro_bnn.models.untrained`).

    Of an untrained network the weights are no start: results are then those of the engine's seed.
    Guides, and engines that start at one point, start weights at a draw from the prior. Where one
    prior is for all parameters, they start normalisations at its centre, gains at 1 and shifts at 0
    as in torch: a network whose gains and shifts are draws of standard deviation 1 learns slowly.
    Markov chains start at draws of all. ``init_loc_fn`` sets another start of a guide.

    Fan-in scales are of the layer, whatever the shape of its weight: transposed convolutions keep
    inputs first, and an embedding looks up one of its rows; :mod:`pyro_bnn.models.fan_in`.

    Args:
        net: Any module that maps x (rows first) to ``[N, F]``, or to ``[N]`` for one output. It is
            copied, not changed; of one given to ``torch.compile`` or ``DataParallel`` the network
            inside is copied.
        prior: One prior for all parameters, see above, or a mapping from name patterns
            (``{"*.weight": ..., "head.*": ...}``) to priors; parameters that no pattern matches
            stay point estimates, listed in ``model.point_estimates``: SVI trains them, NUTS holds
            them fixed. Default: Gaussian with fan-in scale for all.
        likelihood: Distribution of y given f. Default: Gaussian noise with learned scale.

    Returns:
        A Pyro model ``model(x, y=None)``; sites carry the parameters' names, with
        ``.scale``, ``.raw`` and the like after it where the prior is hierarchical.

    Raises:
        OptionError: If ``net`` is not a module or is a Pyro model already, or a prior of fan-in
            scale is over a weight of no fan-in, or of several.
        SiteError: If a pattern matches no parameter.
        ModelError: If the network has no parameters, or a module that gets no priors, such as one
            of ``torch.jit``, a pruned one, or a lazy one that was never called.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> bayesian(net, prior={"0.*": NormalPrior()}).point_estimates
        ('2.weight', '2.bias')

        A block of a transformer over the five entries of a row, its dropout off, as a network that
        answers at random is no function of its weights:

        >>> block = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Unflatten(1, (5, 1)), torch.nn.Linear(1, 8), block,
        ...     torch.nn.Flatten(), torch.nn.Linear(40, 1),
        ... )
        >>> model = bayesian(net)
        >>> [name for name in model.sites if "attn" in name][:2]
        ['2.self_attn.in_proj_weight', '2.self_attn.in_proj_bias']
        >>> model(torch.zeros(4, 5)).shape
        torch.Size([4, 1])
    """
    return BayesianModule(torch_module(net, "pass it to an engine as it is"), prior, likelihood)


def suited_to_norms(net: nn.Module, priors: Mapping[str, AnyPrior]) -> dict[str, AnyPrior]:
    """One prior for all, around 1 for the gains of normalisations.

    Args:
        net: The network.
        priors: The prior of each parameter.
    """
    suited = dict(priors)
    for name in _of_norms(net):
        prior = suited.get(name)  # None where tied to a parameter of another name
        if name.endswith("weight") and isinstance(prior, AROUND) and prior.loc == 0:
            suited[name] = dataclasses.replace(prior, loc=1.0)
    return suited


def starts_of_norms(net: nn.Module, priors: Mapping[str, AnyPrior]) -> dict[str, float]:
    """Where gains and shifts of normalisations start, by name: at the centres of their priors.

    Args:
        net: The network.
        priors: The prior of each parameter, one for all but for its centre.
    """
    found = ((name, priors.get(name)) for name in _of_norms(net))
    return {
        name: float(prior.loc)
        for name, prior in found
        if isinstance(prior, AROUND) and not isinstance(prior, HierarchicalPrior)
    }


def _of_norms(net: nn.Module) -> list[str]:
    """Names of the gains and shifts of normalisations."""
    return [
        name
        for prefix, module in net.named_modules()
        if isinstance(module, NORMS)
        for name, _ in module.named_parameters(prefix, recurse=False)
    ]


def _sampled(name: str, prior: AnyPrior, shape: torch.Size) -> PriorModule | Hierarchy:
    """What samples a parameter of this name."""
    if not isinstance(prior, HierarchicalPrior):
        return PriorModule(prior.distribution(shape))
    hierarchy = cast(Hierarchy, prior.hierarchy(shape))
    hierarchy.own_name = name  # the parameter's, not that of a place in the list of priors
    return hierarchy


def _like(module: M, parameter: Tensor) -> M:
    """The module in the dtype and on the device of a parameter."""
    dtype = parameter.dtype if parameter.is_floating_point() else None
    return module.to(device=parameter.device, dtype=dtype)


def _replace_by_buffers(net: nn.Module, parameter: nn.Parameter) -> tuple[str, ...]:
    """Turn every occurrence of a (possibly tied) parameter into a buffer; return the places."""
    found = list(places(net, parameter))
    for _, module, own in found:
        del module._parameters[own]
        module.register_buffer(own, parameter.detach(), persistent=False)
    return tuple(name for name, _, _ in found)
