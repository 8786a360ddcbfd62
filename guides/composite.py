r"""Another family for each group of sites, :math:`q(z) = \prod_b q_b(z_b)`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, cast

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from pyro.nn import PyroModuleList
from torch import Tensor

from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides.delta import AutoDelta
from pyro_bnn.guides.guide import ELBO, LOG_JOINT, Drawn, Guide, KLKind
from pyro_bnn.guides.parts.blocks import LAST_LAYER, Blocks, layers_of, matching_sites
from pyro_bnn.program.handlers import Evaluate, Model
from pyro_bnn.program.latents import Latents, Marginals
from pyro_bnn.program.terms import GuideTerms
from pyro_bnn.sites import Site

PartSpec: TypeAlias = type[Guide] | Callable[[Model], Guide] | str | Mapping[str, Any]
AT_POINTS = "ELBO at the point estimates"  # of some sites, where others have a density
KL_KINDS: tuple[KLKind, ...] = ("none", "bound", "monte_carlo", "exact")  # the weakest first


class AutoComposite(Guide):
    r"""Independent parts, each a guide of its own over some of the sites.

    .. math:: q(z) = \prod_b q_b(z_b), \qquad
              \mathrm{H}[q] = \sum_b \mathrm{H}[q_b], \quad
              \log q(z) = \sum_b \log q_b(z_b)

    It puts a rich family where it pays and a cheap one elsewhere: by default the full covariance
    over the last layer, in which the network is linear, and independent Gaussians over the others.
    It captures what each part captures; misses every correlation between parts. Densities,
    entropies and marginals are in closed form where those of all parts are.

    With ``AutoDelta`` for some sites these are point estimates, and what is maximised is the ELBO
    of the other sites, given them, plus their log prior density: a bound on the log joint density
    of the data and the estimates, and so no ELBO. ``SVI(..., estimator="last_layer")`` takes the
    expectation over a Gaussian part of the last layer in closed form: with ``default=AutoDelta``
    that is a variational Bayesian last layer, and no step has a draw.

    Args:
        model: Pyro model.
        parts: The guide of each group of sites. A key is the name of a module or a site
            (``"layers.0"`` takes ``layers.0.weight`` and ``layers.0.bias``), in which ``-1`` counts
            modules from the last (``"layers.-1"``); a pattern of such names with ``*``, ``?`` or
            ``[...]``, as a shell has them; or ``"last layer"``, the module that owns the last real
            site of the model. A value is a guide class, or a partial of one with its options. All
            sites of a key are one part. Default: ``AutoMultivariateNormal`` over the last layer.
        default: Guide of the sites that no key takes, together one more part; ``AutoNormal``.
        init_loc_fn: Start of the sites, of which a part with one of its own takes that.

    Raises:
        OptionError: If a value is no guide that can be a part.
        SiteError: If a key takes no site, or two take the same; names them. Or as a part raises.

    Example:
        >>> import functools
        >>> from pyro_bnn.guides import AutoDelta, AutoLowRankMultivariateNormal
        >>> from pyro_bnn.models import MLP
        >>> low_rank = functools.partial(AutoLowRankMultivariateNormal, rank=2)
        >>> parts = {"layers.0": low_rank, "layers.-1": AutoDelta}
        >>> guide = AutoComposite(MLP(3, hidden=(8,)), parts)
        >>> guide.setup(torch.zeros(1, 3))
        >>> {type(part).__name__: part.num_latents for part in guide.parts}
        {'AutoLowRankMultivariateNormal': 32, 'AutoDelta': 9, 'AutoNormal': 1}
    """

    own_state: ClassVar[Mapping[str, str]] = {"parts": "_names"}

    def __init__(
        self,
        model: Model,
        parts: Mapping[str, PartSpec] | None = None,
        default: PartSpec = "AutoNormal",
        *,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn)
        given = {LAST_LAYER: "AutoMultivariateNormal"} if parts is None else parts
        if not isinstance(given, Mapping):
            raise OptionError(
                "parts is a dict of guides by the names of modules or sites, such as "
                f'{{"layers.0": AutoNormal}}, not {type(given).__name__}'
            )
        self._keys = list(given)
        self.__dict__["_default"] = _make_part(default, model)  # no submodule where not needed
        made = [_make_part(spec, model) for spec in given.values()]
        self.parts = PyroModuleList([*made, self._default])
        self._names: list[list[str]] = []  # of each part's sites
        self._blocks = Blocks(())
        self._declare()

    @property
    def names_of_parts(self) -> list[list[str]]:
        """Names of the sites of each part."""
        self.require_setup()
        return self._names

    @property
    def _guides(self) -> list[Guide]:
        return [cast(Guide, part) for part in self.parts]

    def _declare(self) -> None:
        """Set what the parts together are capable of."""
        parts = self._guides
        has_density = [part.has_log_prob for part in parts]
        self.has_log_prob = all(has_density)
        self.has_moments = all(part.has_moments for part in parts)
        can = [part.has_correlations for part in parts]
        self.has_correlations = True if True in can else None if None in can else False
        self.kl_kind = min((part.kl_kind for part in parts), key=KL_KINDS.index)
        is_normal = all(p.has_log_prob and p.marginal_family == "normal" for p in parts)
        self.marginal_family = "normal" if is_normal else "moments"
        self.objective = ELBO if self.has_log_prob else AT_POINTS if any(has_density) else LOG_JOINT

    def options(self) -> dict[str, Any]:
        """``parts`` and ``default``, each the name of a guide and its options."""
        keyed = self._guides[: len(self._keys)]
        return {
            "parts": {key: part.described() for key, part in zip(self._keys, keyed, strict=True)},
            "default": self._default.described(),
        }

    # Set-up

    def check_model(self, sites: Sequence[Site], run: Evaluate) -> None:
        """Share the sites out among the parts, each of which checks its own.

        Raises:
            SiteError: If a key takes no site or two take the same, or a part does not suit.
        """
        names = self._share_out(sites)
        if self._names and self._names != names:
            raise SiteError(
                f"the guide's state has parts over {self._names}, but on this model they "
                f"are over {names}"
            )
        self._take([site.name for site in sites], [s.stop - s.start for s in sites], names)
        by_name = {site.name: site for site in sites}
        for part, own in zip(self._guides, self._names, strict=True):
            part.take_sites(_renumbered([by_name[name] for name in own]), run)
        self._declare()

    def _share_out(self, sites: Sequence[Site]) -> list[list[str]]:
        """Names of the sites of each part."""
        taken: dict[str, str] = {}
        found: list[list[str]] = []
        for key in self._keys:
            names = [site.name for site in sites]
            if key == LAST_LAYER and not (self._is_of_rows or any(layers_of(names, self.model))):
                raise SiteError(
                    f"the part {key!r} takes the sites of a network's last layer, and there are "
                    f"{', '.join(names)} of no layers: name sites, as in "
                    f"parts={{{names[-1]!r}: AutoMultivariateNormal}}"
                )
            found.append(matching_sites(key, sites, self.model))
            if not found[-1]:
                raise SiteError(
                    f"the part {key!r} takes no site: there are "
                    f"{', '.join(site.name for site in sites)}"
                )
            for name in found[-1]:
                if name in taken:
                    raise SiteError(
                        f"the parts {taken[name]!r} and {key!r} both take {name}: a site is in one "
                        "part, so make the keys exclude each other"
                    )
                taken[name] = key
        rest = [site.name for site in sites if site.name not in taken]
        return [*found, rest] if rest else found

    def _take(self, sites: Sequence[str], lengths: Sequence[int], names: list[list[str]]) -> None:
        """Lay the parts out in z."""
        if len(names) == len(self._keys) < len(self.parts):
            del self.parts[-1]  # no site is left for the default
        number = {name: i for i, own in enumerate(names) for name in own}
        if len(names) != len(self.parts) or sorted(number) != sorted(sites):
            raise SiteError(f"parts over {names} are not those of {', '.join(sites)}")
        self._names = names
        self._blocks = Blocks.numbered(lengths, [number[name] for name in sites])

    def make_parameters(self, loc: Tensor) -> None:
        """Create the parameters of each part around its entries of ``loc [P]``."""
        shapes = {name: (name, shape, length) for name, shape, length in self._shapes}
        pieces = zip(self._guides, self._names, self._blocks.split(loc), strict=True)
        for part, own, start in pieces:
            part.start_at([shapes[name] for name in own], start.clone())

    def _initial_value(self, message: Mapping[str, Any]) -> Tensor:
        pairs = zip(self._guides, self._names, strict=True)
        part = next(part for part, own in pairs if message["name"] in own)
        source = self if part.init_loc_fn is None else part
        return Guide._initial_value(source, message)

    # Draws and densities, each over the parts

    @property
    def noise_dim(self) -> int:
        """Sum of the parts' lengths of noise."""
        self.require_setup()
        return sum(part.noise_dim for part in self._guides)

    def _noises(self, noise: Tensor) -> list[tuple[Guide, Tensor]]:
        """Each part with its noise ``[..., M_b]``."""
        self.require_setup()
        parts = self._guides
        pieces = noise.split([part.noise_dim for part in parts], -1)
        return list(zip(parts, pieces, strict=True))

    def _pieces(self, z: Tensor) -> list[tuple[Guide, Tensor]]:
        """Each part with its entries ``[..., P_b]`` of z ``[..., P]``."""
        self.require_setup()
        return list(zip(self._guides, self._blocks.split(z), strict=True))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Z ``[..., P]`` of the entries ``[..., P_b]`` of each part."""
        return self._blocks.join(parts)

    def transport(self, noise: Tensor) -> Tensor:
        """The draws of all parts, ``[..., P]``."""
        return self._blocks.join([part.transport(own) for part, own in self._noises(noise)])

    def log_prob(self, z: Tensor) -> Tensor:
        """Log q(z) ``[...]`` of z ``[..., P]``, the sum over parts."""
        if not self.has_log_prob:
            return super().log_prob(z)
        return _total(part.log_prob(own) for part, own in self._pieces(z))

    def log_q(self, noise: Tensor) -> Tensor:
        """Log density ``[...]`` of the draws of noise ``[..., M]``, over parts that have one."""
        pairs = self._noises(noise)
        return _total(part.log_q(own) for part, own in pairs if part.has_log_prob)

    def entropy(self) -> Tensor | None:
        """The sum of the parts' entropies, where all are in closed form."""
        found = [part.entropy() for part in self._guides]
        known = [value for value in found if value is not None]
        return _total(known) if len(known) == len(found) else None

    def marginals(self) -> tuple[Tensor, Tensor] | None:
        """Means and sds ``[P]``, where those of all parts are in closed form."""
        found = [part.marginals() for part in self._guides]
        known = [pair for pair in found if pair is not None]
        if len(known) < len(found):
            return None
        return self._blocks.join([m for m, _ in known]), self._blocks.join([s for _, s in known])

    def atoms(self) -> Tensor | None:
        """The estimate ``[1, P]``, where every part is one."""
        if any(part.has_log_prob for part in self._guides):
            return None
        return self.centre().unsqueeze(0)

    def z_quantiles(self, levels: Tensor) -> Tensor:
        """Marginal quantiles ``[Q, P]`` of z, those of the parts."""
        return self._blocks.join([part.z_quantiles(levels) for part in self._guides])

    def get_posterior(self) -> Distribution:
        """Q over z ``[P]``; of point estimates the density counts as 1."""
        self.require_setup()
        return Drawn(self)

    # Objective

    def make_terms(self, noise: Tensor, *, density: bool) -> GuideTerms:
        """What the objective needs at noise ``[K, M]``: sums over the parts."""
        terms = [part.make_terms(own, density=density) for part, own in self._noises(noise)]
        z = self._blocks.join([part.z for part in terms])
        if not density or self.objective == LOG_JOINT:
            return GuideTerms(z)
        entropies = [part.entropy for part in terms if part.entropy is not None]
        log_probs = [part.log_prob for part in terms if part.log_prob is not None]
        marginals = self.components()
        if self.has_log_prob and not log_probs:
            return GuideTerms(z, _total(entropies), None, marginals)
        log_prob = _total(log_probs) if log_probs else z.new_zeros(len(z))
        if entropies:
            log_prob = log_prob - _total(entropies)  # which is of the same mean
        if self.has_log_prob:
            return GuideTerms(z, None, log_prob, marginals)
        # the log prior is that of the sites' values then, and so has to be the density
        sites = [site for site in cast(Latents, self.latents).sites if self.has_density_of(site)]
        log_prob = log_prob - _total(site.log_abs_det_jacobian(z) for site in sites)
        return GuideTerms(z, log_prob=log_prob, marginals=self._moments(terms))

    def _moments(self, terms: Sequence[GuideTerms]) -> Marginals | None:
        """Means and sds of all entries, 0 of point estimates, where those of all parts are known.

        Args:
            terms: Of the parts.
        """
        found = []
        for part, own in zip(self._guides, terms, strict=True):
            pair = part.marginals() if part.has_log_prob else (own.z[0], torch.zeros_like(own.z[0]))
            if pair is None:
                return None
            found.append(pair)
        means, sds = (self._blocks.join(values) for values in zip(*found, strict=True))
        return Marginals(means, sds, others="moments")

    def has_density_of(self, site: Site) -> bool:
        """Whether the part over a site has a density."""
        pairs = zip(self._guides, self._names, strict=True)
        return any(site.name in own for part, own in pairs if part.has_log_prob)

    def sample_z(self) -> Tensor:
        """A draw ``[..., P]`` as a Pyro statement, with the density of the parts that have one."""
        return self.sample_auxiliary("z", self.get_posterior())

    # Starts

    @property
    def mean_params(self) -> tuple[str, ...]:
        """Those of the parts."""
        return tuple(
            f"parts.{i}.{name}" for i, part in enumerate(self._guides) for name in part.mean_params
        )

    def centre(self) -> Tensor:
        """Where the parts are centred, ``[P]``."""
        self.require_setup()
        return self._blocks.join([part.centre() for part in self._guides])

    def move_to(self, z: Tensor) -> None:
        """Centre each part at its entries of z ``[P]``."""
        for part, own in self._pieces(z):
            part.move_to(own)

    def set_sds(self, sds: Tensor) -> None:
        """Give each part its entries of standard deviations ``[P]``."""
        for part, own in self._pieces(sds):
            part.set_sds(own)

    # State

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Check the sites and parts of a state dict against the guide's own."""
        super().set_extra_state(state)
        if state["parts"] != self._names:
            raise SiteError(
                f"the state dict has parts over {state['parts']}, but this guide has {self._names}"
            )

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        extra = state_dict.get(f"{prefix}_extra_state")
        if not self._shapes and extra:  # the parts then make their parameters as they are loaded
            shapes = [(name, list(shape), n) for name, shape, n in extra["sites"]]
            parts = [list(names) for names in extra["parts"]]
            self._take([name for name, _, _ in shapes], [n for _, _, n in shapes], parts)
            self._shapes = shapes
            self._declare()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _make_part(spec: PartSpec, model: Model) -> Guide:
    """The guide that a specification names.

    Raises:
        OptionError: If it is none, or one that cannot be a part.
        UnknownNameError: If there is no guide of its name.
    """
    if isinstance(spec, str):
        spec = {"guide": spec}
    if isinstance(spec, Mapping):
        part: Any = Guide.made(spec, model)
    elif callable(spec) and not isinstance(spec, Guide):
        part = spec(model)
    else:
        raise OptionError(
            f"a part is a guide class or a partial of one, of which the guide makes its own, not "
            f"{spec!r:.80}"
        )
    if not isinstance(part, Guide):
        raise OptionError(
            f"a part is a guide of pyro_bnn.guides or one of the same base, not "
            f"{type(part).__name__}"
        )
    is_whole = part.needs_model is not None or part.needs_all_rows or not part.has_rsample
    if is_whole or not (part.has_log_prob or isinstance(part, AutoDelta)):
        raise OptionError(
            f"{type(part).__name__} cannot be a part of another guide: take one with a density "
            "over any sites, or AutoDelta"
        )
    return part


def _renumbered(sites: Sequence[Site]) -> tuple[Site, ...]:
    """The sites of a part, at their places in its own z."""
    moved, start = [], 0
    for site in sites:
        stop = start + site.stop - site.start
        moved.append(dataclasses.replace(site, start=start, stop=stop))
        start = stop
    return tuple(moved)


def _total(values: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, values)
