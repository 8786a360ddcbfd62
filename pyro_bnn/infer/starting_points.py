"""Where a run starts: values of sites and parameters, or an earlier posterior."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.infer.inputs import Init
from pyro_bnn.infer.own_weights import OwnWeights
from pyro_bnn.posterior.site_posterior import SitePosterior
from pyro_bnn.priors.hierarchy import Hierarchy, hierarchies
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program

MEDIAN_DRAWS = 15  # as ``pyro.infer.autoguide.init_to_median``


def starting_points(
    program: Joint, init: Init, num_points: int, seed: int, *, default: Tensor | None = None
) -> Tensor:
    """Starting points z ``[n, P]`` from ``init``; without ``init`` the default, n times.

    A module or a posterior as ``init`` also sets the program's point-estimated parameters.

    Args:
        program: The model as tensor functions.
        init: A posterior (its draws), a trained network (its parameters, matched by name or, where
            names differ, by order and shape), values of sites, or the weights of the network that
            the model is made of.
        num_points: How many points.
        seed: Seed of the posterior's draws.
        default: Start ``[P]`` of the sites that ``init`` lacks, or of all; by default a draw from
            the prior.

    Raises:
        SiteError: If names or shapes do not fit the model.
        OptionError: If ``init`` is of another kind.
    """
    default = program.initial if default is None else default
    if init is None:
        return default.expand(num_points, -1).clone()
    if isinstance(init, SitePosterior):
        check_posterior(program, init)
        stored = init.num_stored_draws
        wanted = num_points * init.num_chains
        z = init.unconstrained(wanted if stored is None else min(wanted, stored), seed)
        spread = torch.linspace(0, len(z) - 1, num_points).long()  # over all chains
        return z[spread].to(program.initial)
    if isinstance(init, OwnWeights):
        z, known = own_start(program, init)
        return torch.where(known, z, default).expand(num_points, -1).clone()
    if isinstance(init, nn.Module):
        values = _module_values(program, init)
    elif isinstance(init, Mapping):
        values = dict(init)
        names = [site.name for site in program.sites]
        if unknown := [name for name in values if name not in names]:
            raise SiteError(
                f"init holds {', '.join(map(repr, unknown))}, but the model's sites are "
                f"{', '.join(names)}"
            )
    else:
        raise OptionError(
            'init is a Posterior, a trained torch module, a dict of sites or "prior", not '
            f"{type(init).__name__}"
        )
    z = program.unconstrain({**program.constrain(default), **values})
    return z.expand(num_points, -1).clone()


def take_params(program: Joint, init: Init, seed: int) -> None:
    """Set the point-estimated parameters to those of ``init``, before rows are read.

    Features of a frozen body depend on them. Arguments and errors as of :func:`starting_points`.
    """
    if isinstance(init, SitePosterior | nn.Module):
        with torch.no_grad():
            starting_points(program, init, 1, seed)


def own_start(program: Joint, init: OwnWeights) -> tuple[Tensor, Tensor]:
    """The point z ``[P]`` of a network's own weights, and its entries that they say ``[P]``.

    A site that a handler took out or renamed, or whose support excludes the weights, is not said.

    Args:
        program: The model as tensor functions.
        init: The weights.
    """
    nested, z = hierarchies(program.model), program.initial
    sites = {site.name: site for site in program.sites}
    weights = {k: v.to(z) for k, v in init.weights.items() if k in nested or k in sites}
    values = {
        name: value
        for name, value in _site_values(weights, nested).items()
        if name in sites and sites[name].shape == value.shape
    }
    known = torch.zeros_like(z, dtype=torch.bool)
    z = program.unconstrain({**program.constrain(z), **values})
    for name in values:
        entries = slice(sites[name].start, sites[name].stop)
        known[entries] = bool(z[entries].isfinite().all())
    return z, known


def one_start(program: Joint, seed: int) -> Tensor:
    """Where a single run starts ``[P]``: a draw of the prior, but scales at their medians.

    So guides start too. A noise scale far out in its prior makes gradients and curvatures so large
    that no step comes back from there.

    Args:
        program: The model as tensor functions.
        seed: Seed of the draws whose medians are taken.
    """
    return at_medians(program, program.initial.clone(), seed)


def at_medians(program: Joint, z: Tensor, seed: int) -> Tensor:
    """Points ``[..., P]`` whose scales are put at their prior medians, in place."""
    others = [site for site in program.sites if not site.is_real]
    if others:
        draws = program.prior_draws(MEDIAN_DRAWS, seed=seed)
        for site in others:
            z[..., site.start : site.stop] = draws[:, site.start : site.stop].median(0).values
    return z


def check_posterior(program: Joint, init: SitePosterior) -> None:
    """Check that a posterior is of this network, and take its point-estimated parameters.

    Its prior, its likelihood and its data may differ.

    Raises:
        OptionError: If each of its components has its own values of these parameters.
        SiteError: If it has other sites, or its network is another function of them.
    """
    if init.program.member_params:
        raise OptionError(
            f"init is a {init.method} whose components have values of their own of "
            f"{', '.join(init.program.member_params)}, and a start has one: fit it with "
            "separate_biases=False"
        )
    theirs, ours = _listed(init.program), _listed(program)
    if theirs != ours:
        raise SiteError(f"init is a posterior over {theirs}, but the model has {ours}")
    program.set_params(init.params)
    if not (isinstance(program, Program) and isinstance(init.program, Program)):
        return  # it has no f
    f, init_f = (_outputs(each, program.example_x) for each in (program, init.program))
    if f.shape != init_f.shape or not torch.allclose(
        f, init_f, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
    ):
        raise SiteError(
            "init is a posterior over sites of these names and shapes, but its network has other "
            "outputs at the same weights: build the model with the same activations and layers, or "
            "pass values of the sites, such as init=posterior.guide.median()"
        )


def _outputs(program: Program, x: Tensor) -> Tensor:
    """The outputs f of some rows at one z, on the CPU; other networks have other outputs."""
    z = torch.arange(1, program.num_latents + 1).sin().to(program.initial)
    with torch.no_grad():
        f = program.function(z, program.inputs(x), program.params)
    return f.double().cpu()


def _module_values(program: Joint, module: nn.Module) -> dict[str, Tensor]:
    """Values of sites (and of point parameters, set at once) from a trained network."""
    trained = {name: value.detach() for name, value in module.named_parameters()}
    nested = hierarchies(program.model)  # weights made of several sites
    owners = {hierarchy.weight_site: name for name, hierarchy in nested.items()}
    shapes = {owners.get(site.name, site.name): site.shape for site in program.sites}
    by_name, params = {}, {}
    for name, value in trained.items():
        if shapes.get(name) == value.shape:
            by_name[name] = value
        for param_name in (name, f"net.{name}"):
            param = program.params.get(param_name)
            if param is not None and param.shape == value.shape:
                params[param_name] = value
    if len(by_name) + len(params) == len(trained):
        program.set_params(params)
        return _site_values(by_name, nested)
    weights = [site for site in program.sites if site.is_real and site.shape]
    if [site.shape for site in weights] != [value.shape for value in trained.values()]:
        raise SiteError(
            "the trained module's parameters fit the model neither by name nor by order: it has "
            f"{', '.join(f'{k} {tuple(v.shape)}' for k, v in trained.items())}; the model has "
            f"{_listed(program)}"
        )
    names = [owners.get(site.name, site.name) for site in weights]
    return _site_values(dict(zip(names, trained.values(), strict=True)), nested)


def _site_values(
    weights: Mapping[str, Tensor], nested: Mapping[str, Hierarchy]
) -> dict[str, Tensor]:
    """Values of the sites that make up these weights."""
    values: dict[str, Tensor] = {}
    for name, value in weights.items():
        values |= nested[name].values_at(value) if name in nested else {name: value}
    return values


def _listed(program: Joint) -> str:
    return ", ".join(f"{site.name} {tuple(site.shape)}" for site in program.sites)


TOLERANCE = 1e-3  # of outputs at the same weights: dtypes and devices differ by less
