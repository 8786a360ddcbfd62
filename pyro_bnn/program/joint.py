"""A Pyro model, traced once with its arguments, as pure functions over a flat vector z ``[P]``.

They are independent of Pyro, can be batched with ``torch.func.vmap`` and captured as a graph.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from pyro_bnn.data import Call
from pyro_bnn.errors import SiteError
from pyro_bnn.handled import model_name, parameters_of
from pyro_bnn.program.batched import as_one_batch, batched_or_looped
from pyro_bnn.program.dependence import PARAMETER
from pyro_bnn.program.factorised import Factorised
from pyro_bnn.program.failures import (
    named_failures,
    read_in_plates,
    require_densities,
    require_supports,
)
from pyro_bnn.program.filled import filled
from pyro_bnn.program.handlers import (
    Evaluate,
    Model,
    ModelTrace,
    SiteValue,
    Starting,
    evaluate,
    held_given_latents,
    is_point,
    log_prob,
    marked_run,
    own_rows,
    total_log_prob,
    trace_model,
)
from pyro_bnn.program.latents import Latents, sites_of_dependent_support, warn_of_circles
from pyro_bnn.program.model_facts import copy_values, first_tensor, store_params
from pyro_bnn.program.prior import flat, prior_draws
from pyro_bnn.program.random_state import isolated, own_generators
from pyro_bnn.program.snapshot import Snapshot
from pyro_bnn.program.subsampling import with_rows
from pyro_bnn.program.terms import Batch, GuideLike, Params
from pyro_bnn.sites import Site

logger = logging.getLogger("pyro_bnn")

MOST_DRAWS = 100  # of the sites, until the model runs at one

T = TypeVar("T")


class Joint:
    r"""A model as tensor functions of its latent sites.

    .. math:: \log p(z, \mathcal D) = \sum_s \log p(\theta_s(z)) + \sum_s \log |\det J_s(z)|
              + \sum_o \log p(\mathcal D_o \mid \theta(z))

    The coordinates are the flat unconstrained vector :math:`z \in \mathbb R^P`: site s owns
    ``z[s.start:s.stop]``, and its value is ``s.value(z)``. Where the support of a site depends on
    others, as of ``Uniform(0, high)`` with a site ``high``, its value is computed once a run of
    the model has reached it, and :meth:`constrain` runs the model. Densities over z include the
    Jacobian of that map. What is observed, by ``obs=`` or ``pyro.condition``, and each
    ``pyro.factor`` is the likelihood. The model may have any arguments, and any sites that are
    the same at every run. A prior without draws, as ``dist.ImproperUniform``, starts at
    unconstrained uniform(-2, 2).

    A z may be followed by values of parameters of the model, ``[P + Q]``: the parameters in
    ``member_params`` take these values at this draw, so that the members of a mixture have their
    own.

    Args:
        model: Pyro model, whose latent sites are continuous.
        args: Its arguments. Functions of z take others in their place, of the same shapes.
        kwargs: Its keyword arguments.
        trace: What a look at the model said, if one has been taken.
        check: Looks at a run with marks, and refuses a model that is not supported; then supports
            are taken to be fixed. Default: no further check.

    Raises:
        ModelError: If the model fails on its arguments, a site has no density, or a
            ``pyro.module`` statement stands in a plain function.
        DataError: If an observed value lies outside of its distribution's support.
        SiteError: If the model has no latent site or a discrete one.

    Attributes:
        latents: The latent sites and their prior.
        initial: A draw of z from the prior, ``[P]``.
        params: The model's point-estimated parameters by name, unconstrained, as clones: engines
            train those that require gradients and leave the user's model as it is.
        member_params: Names of the parameters that draws may carry after z.
        held_given_latents: Names of the held sites whose density depends on latent sites; then the
            prior of these is not their density given the values.
        is_batched: Whether draws are computed as one batch; False once the model refused that.
        num_observed: How many numbers the traced run observes, at least 1.
        dtype: Of z.
        device: Where z is.
        snapshot: The model's buffers, priors and modes as they were.
        store: Unconstrained start and constraint of each ``pyro.param`` statement, by name.
        plate: The plate whose rows :meth:`arguments` takes, the largest of those that take some of
            their rows at random, or None. The others take all.
        log_hidden: What Pyro's own density counts besides, a constant: see
            :class:`EnumeratedJoint`.
        without_log_likelihood: Names of the observed sites without a log density for each entry,
            since a discrete site ties entries or sites together.

    Example:
        >>> import pyro
        >>> import pyro.distributions as dist
        >>> def model(y):
        ...     scale = pyro.sample("scale", dist.HalfNormal(1.0))
        ...     pyro.sample("y", dist.Normal(0.0, scale), obs=y)
        >>> joint = Joint(model, (torch.tensor(2.0),))
        >>> z = joint.unconstrain({"scale": torch.tensor(1.0)})  # log p(scale) + log p(y | scale)
        >>> round(float(joint.log_joint(z)), 4)
        -3.6447
    """

    log_hidden = 0.0
    without_log_likelihood: tuple[str, ...] = ()

    def __init__(
        self,
        model: Model,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        trace: ModelTrace | None = None,
        check: Callable[[Evaluate], None] | None = None,
    ) -> None:
        self.model, self.args, self.kwargs = model, tuple(args), dict(kwargs or {})
        self.snapshot = Snapshot(model)  # the user may change the model after the fit
        starting = Starting()
        is_plain = check is None
        failures = functools.partial(named_failures, model, self.args, self.kwargs, starting)
        if trace is None:
            trace = trace_plain(model, self.args, self.kwargs, starting)
        self.latents = Latents(trace.sites)
        self.plate = trace.plate
        self.is_batched = True
        self._is_filled = False  # whether it writes draws into tensors that it makes
        self.params: dict[str, Tensor] = {}
        self.member_params: tuple[str, ...] = ()
        for name, parameter in parameters_of(model).items():
            trainable = parameter.requires_grad  # one that the user froze stays frozen
            self.params[name] = parameter.detach().clone().requires_grad_(trainable)
        self.store = store_params(model, trace.param_messages)
        for name, (value, _) in self.store.items():
            self.params[name] = value.clone().requires_grad_()
        values = {site.name: trace.messages[site.name]["value"] for site in trace.sites}
        initial = self.latents.unconstrain(values).detach()
        like = next(t for t in (first_tensor(model), trace.first_array, initial) if t is not None)
        self.dtype, self.device = like.dtype, like.device
        self.initial = initial.to(self.dtype)
        self._site_names: frozenset[str] = frozenset()  # that each run has; empty: not checked
        if is_plain:
            self._require_numbers()
            warn_of_circles(trace)
            stacks = {name: msg["cond_indep_stack"] for name, msg in trace.messages.items()}
            plates = {name: stack[-1].name for name, stack in stacks.items() if stack}
            for hint in read_in_plates(model, plates):
                logger.warning("%s", hint)
            self._site_names = frozenset(site.name for site in self.sites)
        with own_generators():
            with failures() if is_plain else contextlib.nullcontext():
                probe = self._marked_run()
            if check is not None:
                check(probe)
            else:
                self._require_densities(probe)
            if is_plain and (dependent := sites_of_dependent_support(probe)):
                sites = (replace(s, is_dependent=s.name in dependent) for s in self.sites)
                self.latents = Latents(tuple(sites))
            observed = (msg["value"].numel() for msg in probe.observed.values())
            self.num_observed = max(1, sum(observed))
            self.held_given_latents = held_given_latents(probe)
            self.latents.find_closed_forms(probe)
            self.latents.without_draws = trace.without_draws
            self._priors_are_apart = not self.latents.dependent and all(
                probe.sources(site.name) <= {PARAMETER} for site in self.sites
            )

    def _require_densities(self, probe: Evaluate) -> None:
        """Check the shapes and supports of a run with marks."""
        require_densities(probe)
        require_supports(probe)

    def _require_numbers(self) -> None:
        """Check that z is of numbers where the model was traced."""
        for site in self.sites:
            if bool(site.unconstrained(self.initial).isnan().any()):
                raise SiteError(
                    f"the prior of {site.name!r} draws NaN, or numbers outside of its support "
                    f"{site.support}: look at what its parameters are computed from"
                )

    def _marked_run(self) -> Evaluate:
        """The model at the initial z, with marks; sees whether it writes to its arguments."""
        args = own_rows(self.args)
        self._writes_arguments = torch.is_inference_mode_enabled()  # where no versions are counted
        counted = [] if self._writes_arguments else [v for v in args if isinstance(v, Tensor)]
        versions = [value._version for value in counted]
        probe = marked_run(
            lambda values: self.run(values, args),
            self.constrain(self.initial),
            self.params.values(),
        )
        written = (v._version > n for v, n in zip(counted, versions, strict=True))
        self._writes_arguments |= any(written)
        return probe

    def prepare(self, guide: GuideLike) -> None:
        """Make ready for the draws of a guide, before its ELBO is captured in a graph."""
        self.member_params = guide.member_params
        self.latents.closed_forms(guide.cauchy_sites, guide.marginal_family)

    def set_params(self, values: Mapping[str, Tensor]) -> None:
        """Give point-estimated parameters, of these names and shapes, other values."""
        copy_values(self.params, values)

    @property
    def stated_params(self) -> tuple[str, ...]:
        """Names of the parameters by ``pyro.param``, whose values Pyro's parameter store has."""
        return tuple(self.store)

    # Arguments

    @property
    def has_rows(self) -> bool:
        """Whether a run may be of some rows of the data."""
        return self.plate is not None

    @property
    def call(self) -> Call:
        """The arguments that guides trace the model with."""
        return Call(*self.args, **self.kwargs)

    def arguments(self, rows: Batch) -> Sequence[Any]:
        """The model's arguments on some rows: those of the trace, and rows that its plate takes."""
        return with_rows(self.args, self.plate, rows.x)

    # Coordinates

    @property
    def sites(self) -> tuple[Site, ...]:
        """The latent sites, in the order of the model's execution."""
        return self.latents.sites

    @property
    def num_latents(self) -> int:
        """Length P of z."""
        return self.latents.num_latents

    def constrain(
        self, z: Tensor, args: Sequence[Any] | None = None, params: Params | None = None
    ) -> dict[str, Tensor]:
        """Values ``[..., *shape]`` of all sites, by name, out of z ``[..., P]``.

        Where the support of a site depends on others, by a run of the model for each z.
        """
        if not self.latents.dependent:
            return self.latents.constrain(z)

        def values(run: Evaluate, _: Tensor) -> dict[str, Tensor]:
            return {site.name: run.latent[site.name]["value"] for site in self.sites}

        return self._over_batch(lambda z: self._over_draws(values, z, args, params), z)

    def unconstrain(
        self,
        values: Mapping[str, Tensor],
        args: Sequence[Any] | None = None,
        params: Params | None = None,
    ) -> Tensor:
        """Flat z ``[..., P]`` of the sites' values ``[..., *shape]``; see :meth:`constrain`.

        Raises:
            SiteError: If a site is missing or has another shape.
        """
        values = {
            k: torch.as_tensor(v, dtype=self.dtype, device=self.device) for k, v in values.items()
        }
        if not self.latents.dependent:
            return self.latents.unconstrain(values)
        self.latents.require_values(values)
        sizes = [site.shape.numel() for site in self.sites]
        rows = []
        for site, size in zip(self.sites, sizes, strict=True):
            value = values[site.name]
            rows.append(value.reshape((*value.shape[: value.ndim - len(site.shape)], size)))

        def entries(row: Tensor) -> Tensor:
            parts = zip(self.sites, row.split(sizes), strict=True)
            values = {site.name: part.reshape(site.shape) for site, part in parts}
            return flat(values, self.run(values, args, params), self.sites)

        def of_rows(rows: Tensor) -> Tensor:
            return self.batched(entries, rows) if rows.ndim == 2 else entries(rows)

        return self._over_batch(of_rows, torch.cat(rows, -1))

    @staticmethod
    def _over_batch(fn: Callable[[Tensor], T], z: Tensor) -> T:
        """A function of ``[P]`` or ``[S, P]``, and its tensors, at ``[..., P]``."""
        if z.ndim <= 2:
            return fn(z)
        found = fn(z.flatten(0, -2))
        return cast(T, tree_map(lambda value: value.unflatten(0, z.shape[:-1]), found))

    def log_abs_det_jacobian(self, z: Tensor) -> Tensor:
        r""":math:`\log|\det J(z)|` ``[...]`` of the map from z ``[..., P]`` to all values."""
        if self.latents.dependent:  # a run alone tells their supports
            return self.log_joint(z) - self.log_joint(z, jacobian=False)
        terms = [site.log_abs_det_jacobian(z) for site in self.sites]
        return torch.stack(terms).sum(0)

    # Densities

    def log_joint(
        self,
        z: Tensor,
        args: Sequence[Any] | None = None,
        params: Params | None = None,
        *,
        jacobian: bool = True,
    ) -> Tensor:
        """Log p(z, observed values) ``[...]`` of z ``[..., P]``.

        With ``jacobian=False``, the density of the sites' values instead, which MAP maximises.
        """

        def log_joint(run: Evaluate, z: Tensor) -> Tensor:
            return self.run_log_likelihood(run) + self.run_log_prior(run, z, jacobian=jacobian)

        return self._over_draws(log_joint, z, args, params)

    def log_densities(
        self, z: Tensor, args: Sequence[Any] | None = None, params: Params | None = None
    ) -> tuple[Tensor, Tensor]:
        """The two parts of :meth:`log_joint`, ``[...]`` each: likelihood, prior."""

        def log_densities(run: Evaluate, z: Tensor) -> tuple[Tensor, Tensor]:
            return self.run_log_likelihood(run), self.run_log_prior(run, z)

        return self._over_draws(log_densities, z, args, params)

    def log_prior(self, z: Tensor, args: Any = None, params: Params | None = None) -> Tensor:
        """Log p(z) ``[...]`` of z ``[..., P]``."""
        return self._over_draws(self.run_log_prior, z, args, params)

    def log_priors(self, z: Tensor, args: Any = None, params: Params | None = None) -> Tensor:
        """Log density ``[..., K]`` of the values of each of the K sites, without Jacobians."""
        return self._over_draws(lambda run, _: self.latents.log_priors(run), z, args, params)

    def log_likelihoods(
        self, z: Tensor, args: Sequence[Any] | None = None, params: Params | None = None
    ) -> dict[str, Tensor]:
        """Log densities of each observed site, in the shape of its batch, unscaled, by name."""

        def log_likelihoods(run: Evaluate, _: Tensor) -> dict[str, Tensor]:
            return {
                name: log_prob(msg) for name, msg in run.observed.items() if not is_point(msg["fn"])
            }

        return self._over_draws(log_likelihoods, z, args, params)

    def deterministics(
        self, z: Tensor, args: Sequence[Any] | None = None, params: Params | None = None
    ) -> dict[str, Tensor]:
        """Values ``[..., *shape]`` of what the model computes of its sites, of z ``[..., P]``.

        They are those of the ``pyro.deterministic`` statements, and of the sites that
        ``poutine.reparam`` computes from others, by name.
        """

        def deterministics(run: Evaluate, _: Tensor) -> dict[str, Tensor]:
            points = {k: msg["value"] for k, msg in run.observed.items() if is_point(msg["fn"])}
            return {name: torch.as_tensor(v) for name, v in (run.recorded | points).items()}

        return self._over_batch(lambda z: self._over_draws(deterministics, z, args, params), z)

    def run_log_likelihood(self, run: Evaluate) -> Tensor:
        """Log density ``[]`` of all that a run observes."""
        parts, scale = self.row_densities(run)
        return parts.sum() * scale

    def row_densities(
        self,
        run: Evaluate,
        num_rows: int | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, float]:
        """Log densities ``[B]`` of the B parts of what a run observes, and their common scale.

        Here it is one part, factors included; a :class:`Program` has rows.
        """
        return total_log_prob({**run.observed, **run.factors}, like=self.initial).reshape(1), 1.0

    def penalties(self, run: Evaluate) -> dict[str, dict[str, Any]]:  # noqa: ARG002
        """Factors of a run that are no part of its density: none."""
        return {}

    def run_log_prior(self, run: Evaluate, z: Tensor, **how: Any) -> Tensor:
        """Log density ``[]`` of z ``[P]`` in a run there; see :meth:`Latents.log_prior`."""
        return self.latents.log_prior(run, z, **how)

    def prior_draws(
        self, num_draws: int, args: Any = None, seed: int = 0, params: Params | None = None
    ) -> Tensor:
        """Draws z ``[S, P]`` from the prior.

        A site of ``latents.without_draws`` has points to start from, and no draws.
        """
        names = dict.fromkeys(site.name for site in self.sites)
        with isolated(seed), torch.no_grad():
            apart = self._priors_are_apart and self.device.type == "cpu"
            run = functools.partial(self.run, names, args, params)
            rows = prior_draws(run, self.sites, num_draws, apart=apart)
        return torch.stack(rows).detach().to(self.dtype)

    def non_finite_terms(
        self, z: Tensor, args: Sequence[Any] | None = None, params: Params | None = None
    ) -> list[str]:
        """Names of the sites and factors whose value or density is not finite at z."""

        def of_run(run: Evaluate, _: Tensor) -> dict[str, dict[str, Any]]:
            return run.latent | run.observed | run.factors

        messages = self._over_draws(of_run, z, args, params)
        return [
            name
            for name, msg in messages.items()
            if not (msg["value"].isfinite().all() and log_prob(msg).isfinite().all())
        ]

    # Runs of the model

    def run(
        self,
        values: Mapping[str, SiteValue],
        args: Sequence[Any] | None = None,
        params: Params | None = None,
        output: Tensor | None = None,
    ) -> Evaluate:
        """The model evaluated at values of its sites; None draws one from its prior.

        Args:
            values: Value of each site by name, or its entries of z.
            args: The model's arguments; default those that it was traced with.
            params: Values of its point-estimated parameters; default their own.
            output: Stands in for f, of which y is given.
        """
        args = self.args if args is None else args
        params = self.params if params is None else params
        with self.snapshot.held(), Factorised():
            run = evaluate(
                self.model_at(values),
                values,
                *(own_rows(args) if self._writes_arguments else args),
                kwargs=self.kwargs,
                params={**self.snapshot.buffers, **params},
                store=self.store,
                output=output,
                rows=self.rows_of_plates(args),
            )
        if self._site_names and (run.unlisted or len(run.latent) < len(self._site_names)):
            missing = sorted(self._site_names - {*run.latent})
            raise SiteError(
                f"{model_name(self.model)} samples other latent sites in one run than in another, "
                f"here {', '.join(map(repr, [*missing, *run.unlisted]))}, so that the unknowns are "
                "not the same everywhere: sample all of them at every run, and let an if decide "
                "which are used"
            )
        return run

    def model_at(self, values: Mapping[str, SiteValue]) -> Model:  # noqa: ARG002
        """The model as it is run at values of its sites."""
        return self.model

    def rows_of_plates(self, args: Sequence[Any]) -> Mapping[str, Tensor] | None:
        """Numbers of the rows that plates take in a run on these arguments; else all."""
        return getattr(args, "rows", {})

    def run_at(
        self, z: Tensor, args: Sequence[Any] | None = None, params: Params | None = None
    ) -> Evaluate:
        """The model evaluated at z ``[P]``."""
        return self.run(self.latents.in_run(z), args, params)

    def drawn_run(self) -> Evaluate:
        """A run at the initial z in which each site has its own shape."""
        return self.run_at(self.initial)

    def _over_draws(
        self,
        read: Callable[[Evaluate, Tensor], T],
        z: Tensor,
        args: Sequence[Any] | None,
        params: Params | None,
    ) -> T:
        """What is read of the model's run at z ``[P]``, or at each of several draws ``[S, P]``."""

        def one(draw: Tensor) -> T:
            z, params_of_draw = self.split_draw(draw, params)
            return read(self.run_at(z, args, params_of_draw), z)

        return self.batched(one, z) if z.ndim == 2 else one(z)

    def split_draw(self, draw: Tensor, params: Params | None) -> tuple[Tensor, Params | None]:
        """Z ``[P]`` of a draw ``[P + Q]``, and the parameters with the Q values that it carries."""
        if len(draw) == self.num_latents:
            return draw, params
        params = dict(self.params if params is None else params)
        start = self.num_latents
        for name in self.member_params:
            stop = start + params[name].numel()
            params[name] = draw[start:stop].reshape(params[name].shape)
            start = stop
        return draw[: self.num_latents], params

    def batched(self, fn: Callable[[Tensor], T], z: Tensor, *, is_random: bool = False) -> T:
        """A function of each draw, as one batch, or one by one where the model refuses that."""
        if self.is_batched and not self._is_filled:
            try:
                return as_one_batch(fn, z, is_random=is_random)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                self._is_filled = True
        fn = filled(fn) if self.is_batched else fn
        values, reason = batched_or_looped(fn, z, as_batch=self.is_batched, is_random=is_random)
        if reason:
            self.is_batched = False
            logger.warning(
                "%s cannot be batched over draws and runs draw by draw, which is slower: %s",
                model_name(self.model),
                reason,
            )
        return values


def trace_plain(
    model: Model,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    starting: Starting | None = None,
    *,
    leave_enumerated: bool = False,
) -> ModelTrace:
    """A look at a model on its arguments, at a draw where it can run.

    Args:
        model: Pyro model.
        args: Its arguments.
        kwargs: Its keyword arguments.
        starting: Gives sites their values.
        leave_enumerated: Whether to leave out sites with ``infer={"enumerate": ...}``.

    Raises:
        ModelError, SiteError: As :class:`Joint`.
    """
    start = Starting() if starting is None else starting
    with isolated(), named_failures(model, args, kwargs, start):
        return at_a_possible_draw(
            lambda: trace_model(
                model, args, kwargs, leave_enumerated=leave_enumerated, of_rows=False, start=start
            )
        )


def at_a_possible_draw(run: Callable[[], T]) -> T:
    """The result of a run at draws of the sites, which is tried anew where they are impossible.

    The solution of a differential equation may not exist at parameters far out, nor the Cholesky
    factor of a kernel. All other failures are raised at once.

    Args:
        run: Runs the model, each time at other draws.

    Raises:
        ValueError, torch.linalg.LinAlgError: Of the last run, if none is possible.
    """
    for _ in range(MOST_DRAWS - 1):
        try:
            return run()
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            continue
        except ValueError as error:
            if "to satisfy the constraint" not in str(error):
                raise
    return run()
