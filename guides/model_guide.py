"""A Pyro guide of its own model: the sites it is over, their plates, and what is saved of it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, TypeAlias, cast

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from pyro.distributions.util import sum_rightmost
from pyro.infer.autoguide import AutoGuide, init_to_median
from pyro.ops.tensor_utils import periodic_repeat
from torch import Tensor
from torch.distributions import biject_to

from pyro_bnn.errors import SiteError
from pyro_bnn.handled import parameters_of
from pyro_bnn.program.handlers import (
    Evaluate,
    Model,
    ModelTrace,
    evaluate,
    marked_run,
    own_rows,
    trace_model,
)
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.latents import Latents
from pyro_bnn.program.model_facts import store_params
from pyro_bnn.program.random_state import isolated, own_generators
from pyro_bnn.program.terms import Params
from pyro_bnn.sites import Site, is_real, require_sites

CreatePlates: TypeAlias = Callable[..., "pyro.plate | Iterable[pyro.plate]"]

_instances = itertools.count()


class ModelGuide(AutoGuide):
    """A guide as its model knows it; :class:`~pyro_bnn.guides.guide.Guide` adds the family.

    It traces the model once, which tells its sites and their plates, states sites to Pyro with
    values that z ``[P]`` has for them, and is saved, loaded, pickled and copied. A subclass makes
    parameters around a start in ``make_parameters``.

    Args:
        model: Pyro model.
        init_loc_fn: Start of each site; see ``Guide``.
        create_plates: As stock Pyro's guides take it; see ``Guide``.

    Attributes:
        own_state: Attributes beside the parameters that are saved with them, tuples of text, by
            the name under which they are saved.
    """

    own_state: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        *,
        create_plates: CreatePlates | None = None,
    ) -> None:
        init: Any = super().__init__
        init(model, create_plates=create_plates)
        self._pyro_name = f"{type(self).__name__}_{next(_instances)}"
        self.init_loc_fn = init_loc_fn
        self.latents: Latents | None = None
        self._frames: dict[str, tuple[Any, ...]] = {}  # of each site, its plates
        self._rows: dict[str, Tensor] = {}  # of each subsampled plate, those of this call
        self._event_dims: dict[str, int] = {}
        # start and constraint of the model's pyro.param statements
        self._store: dict[str, tuple[Tensor, constraints.Constraint]] = {}
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._is_of_rows = True  # whether the arguments are rows of data
        self._shapes: list[tuple[str, list[int], int]] = []  # name, shape, length in z

    def make_parameters(self, loc: Tensor) -> None:
        """Create the guide's parameters around a start ``loc [P]``."""
        raise TypeError(f"{type(self).__name__} makes no parameters around loc {tuple(loc.shape)}")

    @property
    def num_latents(self) -> int:
        """Length P of z.

        Raises:
            SiteError: If the guide has not been set up.
        """
        self.require_setup()
        return sum(length for _, _, length in self._shapes)

    def require_setup(self) -> None:
        """Check that the guide has parameters.

        Raises:
            SiteError: If it has not been set up.
        """
        if not self._shapes:
            raise SiteError(
                f"{type(self).__name__} has no parameters yet: call guide.setup(x), load a state "
                "dict, or train it"
            )

    # Set-up

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Trace the model once and create the parameters, unless they exist.

        Args:
            args: The model's arguments: x, or x and y.
            kwargs: The model's keyword arguments.

        Raises:
            SiteError: If the guide's state was loaded from another model.
        """
        if self.latents is not None:
            return
        with poutine.block():  # a handler around the guide must not see the model's sites
            self._set_up(*args, **kwargs)

    def set_up_for(self, program: Joint) -> None:
        """The same at a program's arguments; parameters are where and as it computes.

        Raises:
            SiteError: If the guide does not suit the model, or its state is of another one.
        """
        call = program.call
        self._is_of_rows = program.has_rows
        self.setup(*own_rows(call.args), **call.kwargs)
        self.to(device=program.device, dtype=program.dtype)
        if program.latents.dependent:  # whose values a run of the model tells, and no support here
            self.latents = program.latents

    def _set_up(self, *args: Any, **kwargs: Any) -> None:
        self._args = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
        self._kwargs = kwargs
        with isolated():
            trace = self._traced()
        messages = trace.messages
        self._frames = {
            name: tuple(frame for frame in msg["cond_indep_stack"] if frame.vectorized)
            for name, msg in messages.items()
        }
        self._event_dims = {name: msg["fn"].event_dim for name, msg in messages.items()}
        self._prototype_frames = {f.name: f for own in self._frames.values() for f in own}
        sites = self._whole(trace.sites)
        shapes = [(site.name, list(site.shape), site.stop - site.start) for site in sites]
        if self._shapes and self._shapes != shapes:
            raise SiteError(
                f"the guide's state is of a model with sites {_listed(self._shapes)}, but this "
                f"model has {_listed(shapes)}"
            )
        latents = Latents(sites)
        self._store = store_params(self.model, trace.param_messages)
        values = {name: msg["value"] for name, msg in messages.items()}
        params = [*parameters_of(self.model).values(), *(v for v, _ in self._store.values())]
        run = marked_run(lambda given: self._evaluate(given, None), values, params)
        latents.find_closed_forms(run)
        self.check_model(sites, run)
        if not self._shapes:
            self._shapes = shapes
            self.make_parameters(self._start(trace))
        self.latents = latents

    def _traced(self) -> ModelTrace:
        """One run of the model, with the arguments of the set-up."""
        how: Any = {"leave_enumerated": True, "of_rows": self._is_of_rows}
        return trace_model(self.model, self._args, self._kwargs, **how)

    def _start(self, trace: ModelTrace) -> Tensor:
        """Where z ``[P]`` starts, of a run of the model."""
        values = {
            name: self._repeated(name, self._initial_value(msg))
            for name, msg in trace.messages.items()
        }
        return Latents(self._whole(trace.sites)).unconstrain(values).detach().clone()

    def _whole(self, sites: Sequence[Site]) -> tuple[Site, ...]:
        """The sites over all N values of their plates, where the model has B of them at a time."""
        whole, start = [], 0
        for site in sites:
            value, u = (
                torch.empty(shape, device="meta")
                for shape in (site.shape, site.unconstrained_shape)
            )
            event_dim = self._event_dims[site.name]
            value = self._repeated(site.name, value)
            u = self._repeated(site.name, u, event_dim + u.ndim - value.ndim)
            stop = start + u.numel()
            whole.append(Site(site.name, value.shape, site.support, start, stop, u.shape))
            start = stop
        return tuple(whole)

    def _repeated(self, name: str, value: Tensor, event_dim: int | None = None) -> Tensor:
        """A site's value with its B rows repeated up to the N of each subsampled plate."""
        event_dim = self._event_dims[name] if event_dim is None else event_dim
        for frame in self._frames[name]:
            if frame.full_size not in (None, frame.size):
                repeat: Any = periodic_repeat
                value = repeat(value, frame.full_size, frame.dim - event_dim).contiguous()
        return value

    def _initial_value(self, message: Mapping[str, Any]) -> Tensor:
        msg = dict(message)
        if self.init_loc_fn is not None:
            return self.init_loc_fn(msg)
        if is_real(msg["fn"].support):
            return cast(Tensor, msg["value"])
        with own_generators():
            try:
                return cast(Tensor, init_to_median(msg))
            except NotImplementedError:  # a prior without draws, whose value is one to start from
                return cast(Tensor, msg["value"])

    def take_sites(self, sites: Sequence[Site], run: Evaluate) -> None:
        """Be over some of the model's sites alone, as a part of another guide.

        Args:
            sites: The sites, at their places in the part's own z.
            run: The model, evaluated once.

        Raises:
            SiteError: If they do not suit the guide.
        """
        self.check_model(sites, run)
        self.latents = Latents(tuple(sites))
        self.latents.find_closed_forms(run)

    def start_at(self, sites: Sequence[tuple[str, list[int], int]], loc: Tensor) -> None:
        """Create the parameters over sites (name, shape, length) around a start ``loc [P]``."""
        self._shapes = list(sites)
        self.make_parameters(loc)

    def check_model(self, sites: Sequence[Site], run: Evaluate) -> None:
        """Check that the guide suits a model, before its parameters are made.

        Args:
            sites: The model's latent sites.
            run: The model, evaluated once.

        Raises:
            SiteError: If it does not; names the model that does.
        """

    def check_covers(self, sites: Sequence[Site]) -> None:
        """Check that the guide was made for exactly these sites.

        Raises:
            SiteError: If it misses one, or has one that the model does not.
        """
        require_sites([name for name, _, _ in self._shapes], sites)
        names = [site.name for site in sites]
        if extra := [name for name, _, _ in self._shapes if name not in names]:
            raise SiteError(f"the guide covers {', '.join(extra)}, which the model does not have")

    def _evaluate(self, values: Mapping[str, Tensor], params: Params | None) -> Evaluate:
        how: Any = {"kwargs": self._kwargs, "params": params, "store": self._store}
        return evaluate(self.model, values, *self._args, **how)

    # Statements to Pyro

    def sample_auxiliary(self, name: str, fn: Distribution) -> Tensor:
        """A Pyro statement of the guide alone, of which the model has none."""
        return pyro.sample(f"{self._pyro_name}_{name}", fn, infer={"is_auxiliary": True})

    def sample_noise(self, length: int) -> Tensor:
        """Standard normal noise ``[..., length]`` as a Pyro statement that has no density."""
        zeros = next(self.parameters()).new_zeros(length)
        with poutine.mask(mask=False):
            return self.sample_auxiliary("noise", dist.Normal(zeros, 1.0).to_event(1))

    def point(self, site: Site, z: Tensor, *, has_density: bool) -> Distribution:
        """Point mass at a site's value of draws z ``[..., P]``, as in its plates.

        Its log density makes that of z one of the value; without ``has_density`` it is 0.
        """
        u, event_dim = self.unconstrained(site, z), self.event_dim(site)
        if site.is_real:
            return dist.Delta(u, event_dim=event_dim)
        transform = biject_to(site.support)
        value = transform(u)
        if not has_density:
            return dist.Delta(value, event_dim=event_dim)
        log_det = transform.log_abs_det_jacobian(u, value)
        log_det = sum_rightmost(log_det, log_det.ndim - value.ndim + event_dim)
        return dist.Delta(value, log_density=-log_det, event_dim=event_dim)

    def unconstrained(self, site: Site, z: Tensor) -> Tensor:
        """A site's unconstrained value of draws z ``[..., P]``, as in its plates.

        Dimensions of z before the last are plates around the guide, such as that of particles, and
        size 1 where a plate of the model may be. Of a subsampled plate only the rows are taken.
        """
        shape = site.unconstrained_shape
        event_dim = self.event_dim(site) + len(shape) - len(site.shape)
        batch = (*z.shape[:-1], *(1,) * event_dim)
        u = z[..., site.start : site.stop].reshape(torch.broadcast_shapes(shape, batch))
        for frame in self._frames[site.name]:
            if frame.name in self._rows:
                u = u.index_select(frame.dim - event_dim, self._rows[frame.name].to(u.device))
        return u

    def event_dim(self, site: Site) -> int:
        """Event dimensions of a site under the guide: all that are of no plate."""
        return self._event_dims[site.name] if self._frames[site.name] else len(site.shape)

    def sample_sites(
        self, distribution: Callable[[Site], Distribution], *args: Any, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Pyro sample statements for all sites, inside the plates of the model.

        Args:
            distribution: Of each site; see :meth:`point`.
            args: The model's arguments.
            kwargs: The model's keyword arguments.
        """
        create_plates: Any = self._create_plates
        plates = create_plates(*args, **kwargs)
        frames = self._prototype_frames.values()
        self._rows = {
            frame.name: plates[frame.name].indices
            for frame in frames
            if frame.full_size not in (None, frame.size)
        }
        values = {}
        for site in cast(Latents, self.latents).sites:
            with ExitStack() as stack:
                for frame in self._frames[site.name]:
                    stack.enter_context(plates[frame.name])
                values[site.name] = pyro.sample(site.name, distribution(site))
        return values

    # State

    def get_extra_state(self) -> dict[str, Any]:
        """Names and shapes of the sites and ``own_state``: what parameters are made of again."""
        own = {name: list(getattr(self, value)) for name, value in self.own_state.items()}
        return {"sites": self._shapes, **own}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Check the sites of a state dict against the guide's own."""
        if self._shapes != [(name, list(shape), n) for name, shape, n in state["sites"]]:
            raise SiteError(
                f"the state dict is of a guide over {_listed(state['sites'])}, but this guide is "
                f"over {_listed(self._shapes)}"
            )

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        extra = state_dict.get(f"{prefix}_extra_state")
        if not self._shapes and extra:
            for name, value in self.own_state.items():
                setattr(self, value, tuple(extra.get(name, ())))
            self._shapes = [(name, list(shape), n) for name, shape, n in extra["sites"]]
            like = next(v for v in state_dict.values() if isinstance(v, Tensor))
            self.make_parameters(like.new_zeros(self.num_latents))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super(AutoGuide, self).__getstate__()  # AutoGuide's would take the model away
        return {**state, "master": None}  # a weak reference to the list that it is in

    def __setstate__(self, state: dict[str, Any]) -> None:
        # the store would give it the parameters of a guide that got its name here
        name = f"{type(self).__name__}_{next(_instances)}"
        restore: Any = super().__setstate__
        restore({**state, "_pyro_name": name})

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelGuide:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        memo[id(self.model)] = self.model  # a copy is another guide of the same model
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        copied.__dict__["_pyro_name"] = f"{type(self).__name__}_{next(_instances)}"
        return copied


def _listed(shapes: Sequence[Any]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape, _ in shapes)
