r"""Models with discrete sites, summed out exactly: their density over the continuous sites alone.

.. math:: p(z, \mathcal D) = \sum_{d} p(z, d, \mathcal D)

The sum has as many terms as the discrete sites have combinations of values. Pyro's tensor variable
elimination does it in the order of the factors instead: each discrete site marked
``infer={"enumerate": "parallel"}``, as by ``@config_enumerate``, takes all of its values along a
dimension of its own, and each dimension is summed once what depends on it is multiplied.

References:
    Obermeyer, Bingham, Jankowiak, Chiu, Pradhan, Rush & Goodman, "Tensor Variable Elimination for
    Plated Factor Graphs", ICML 2019, arXiv:1902.03210.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.ops import packed
from torch import Tensor

from pyro_bnn.errors import ModelError, SiteError
from pyro_bnn.handled import model_name
from pyro_bnn.program.discrete_sums import Factor, SiteFactors, packed_density, uniform_where_masked
from pyro_bnn.program.distributions import bounds_of
from pyro_bnn.program.enumeration import AllValues, require_enumerable
from pyro_bnn.program.failures import named_failures, require_densities, require_supports
from pyro_bnn.program.handlers import (
    ENUMERATION,
    Evaluate,
    Model,
    ModelTrace,
    SiteValue,
    Starting,
    is_point,
    log_prob,
)
from pyro_bnn.program.joint import Joint, trace_plain
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.steady import require_steady
from pyro_bnn.program.terms import Params


def joint_of(
    model: Model, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Joint:
    """A model as tensor functions of its continuous sites, whether or not it has discrete ones.

    Args:
        model: Pyro model.
        args: Its arguments.
        kwargs: Its keyword arguments.

    Raises:
        ModelError, DataError, SiteError: As :class:`Joint` and :class:`EnumeratedJoint`.
    """
    trace = trace_plain(model, tuple(args), dict(kwargs or {}), leave_enumerated=True)
    cls = EnumeratedJoint if trace.enumerated else Joint
    joint = cls(model, args, kwargs, trace=trace)
    require_steady(joint)
    return joint


class EnumeratedJoint(Joint):
    r"""A model as tensor functions of its continuous sites, its discrete ones summed out.

    The log joint is that of the continuous sites and the data, exactly. Its parts are

    .. math:: \log p(z) = \log \sum_d p(z, d), \qquad
              \log p(\mathcal D \mid z) = \log p(z, \mathcal D) - \log p(z)

    so that the prior of a continuous site whose distribution depends on a discrete one is a
    mixture. Where none does, the prior takes no sum.

    A mask takes a discrete site out of the model, so that its values sum to 1; Pyro's own
    evaluation for NUTS counts them, which adds the constant ``log_hidden``. A ``poutine.scale``
    counts rows several times, discrete sites included: it multiplies the log of the sum, as
    ``TraceEnum_ELBO`` has it, and must be the same for all sites that one discrete site ties
    together.

    Args:
        model: Pyro model, whose discrete latent sites are marked for parallel enumeration.
        args: Its arguments.
        kwargs: Its keyword arguments.
        trace: What a look at the model said, if one has been taken.

    Raises:
        ModelError, DataError: As :class:`Joint`; also ModelError if the sum cannot be computed, as
            where plates are no tree or a batch dimension is in no plate.
        SiteError: As :class:`Joint`; also if a site is marked for sequential enumeration, has no
            finite list of values, or a support that depends on a discrete site.

    Attributes:
        discrete: Shape of each discrete site that is summed out, by name.
        mixed: Names of the continuous sites whose prior depends on a discrete site.
        given_discrete: Names of the ``pyro.deterministic`` statements that depend on a discrete
            site, which :meth:`deterministics` leaves out.
    """

    def __init__(
        self,
        model: Model,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        trace: ModelTrace | None = None,
    ) -> None:
        if trace is None:
            trace = trace_plain(model, tuple(args), dict(kwargs or {}), leave_enumerated=True)
        require_enumerable(trace)
        self.discrete = {
            name: torch.Size(msg["value"].shape) for name, msg in trace.enumerated.items()
        }
        self.batch_dims = trace.batch_dims
        self.mixed: frozenset[str] = frozenset()
        self.given_discrete: frozenset[str] = frozenset()
        super().__init__(model, args, kwargs, trace=trace)
        self.latents.elsewhere = self.mixed
        self._require_fixed_supports()
        starting = Starting()
        with torch.no_grad(), isolated(), named_failures(model, self.args, self.kwargs, starting):
            run = self.run_at(self.initial)
            for part in self.factors_of(run).sums:
                part.require_one_scale()
            observed = [*self._rows_of(run)]
            self.log_joint(self.initial)
            self.log_hidden = self._log_hidden(run)
        self.without_log_likelihood = tuple(name for name, rows in observed if rows is None)

    def _marked_run(self) -> Evaluate:
        try:
            probe = super()._marked_run()
        except (RuntimeError, ValueError) as error:
            if not any(words in str(error) for words in ONE_NUMBER):
                raise
            raise ModelError(
                f"{model_name(self.model)} reads a number out of a discrete site, which stands for "
                f"all of its values at once, as in an if: {str(error).splitlines()[0]}; write "
                f"torch.where, or tensors indexed by the site: {ENUMERATION}"
            ) from error
        assert probe.marks is not None
        discrete = {*self.discrete}
        self.mixed = frozenset(n for n in probe.latent if probe.sources(n) & discrete)
        computed = {k: msg["value"] for k, msg in probe.observed.items() if is_point(msg["fn"])}
        self.given_discrete = frozenset(
            name
            for name, value in {**probe.recorded, **computed}.items()
            if probe.marks.of([value]) & discrete
        )
        self._moving = frozenset(
            name
            for name in self.mixed
            if probe.marks.of(bounds_of(probe.latent[name]["fn"].support)) & discrete
        )
        return probe

    def _require_densities(self, probe: Evaluate) -> None:
        drawn = self.drawn_run()  # whose shapes are those that the user knows
        require_densities(drawn)
        require_supports(probe)
        self._batches = {name: log_prob(msg).shape for name, msg in drawn.observed.items()}

    def _require_fixed_supports(self) -> None:
        """Check that no site's support depends on a discrete one."""
        moving = self._moving | self.mixed & {site.name for site in self.latents.dependent}
        if moving:
            raise SiteError(
                f"the support of the latent site {min(moving)!r} depends on a discrete site, which "
                "is summed out: sample it on a support that is the same for all values, and scale "
                "the sample"
            )

    # Densities

    def log_joint(
        self,
        z: Tensor,
        args: Sequence[Any] | None = None,
        params: Params | None = None,
        *,
        jacobian: bool = True,
    ) -> Tensor:
        """Log p(z, observed values) ``[...]`` of z ``[..., P]``; see :meth:`Joint.log_joint`."""

        def log_joint(run: Evaluate, z: Tensor) -> Tensor:
            factors = self.factors_of(run)
            total = self.latents.log_prior(run, z, jacobian=jacobian) + factors.apart(
                "prior", "data"
            )
            for part in factors.sums:
                if part.has_data or part.is_mixed:  # else a distribution, whose sum is 1
                    total = total + part.log_sum()
            return total

        return self._over_draws(log_joint, z, args, params)

    def row_densities(
        self,
        run: Evaluate,
        num_rows: int | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, float]:
        """Log density ``[1]`` of what a run observes given z, and its scale 1."""
        factors = self.factors_of(run)
        total = factors.apart("data")
        for part in factors.sums:
            if part.has_data:
                total = total + part.log_sum()
                if part.is_mixed:
                    total = total - part.log_sum(latent=True)
        return total.reshape(1), 1.0

    def run_log_prior(self, run: Evaluate, z: Tensor, **how: Any) -> Tensor:
        """Log density ``[]`` of z ``[P]`` in a run there; see :meth:`Latents.log_prior`."""
        total = self.latents.log_prior(run, z, **how)
        if not self.mixed:
            return total
        factors = self.factors_of(run)
        total = total + factors.apart("prior")
        for part in factors.sums:
            if part.is_mixed:
                total = total + part.log_sum(latent=True)
        return total

    def log_priors(self, z: Tensor, args: Any = None, params: Params | None = None) -> Tensor:
        """Log density ``[..., K]`` of the values of each of the K sites, without Jacobians.

        Raises:
            ModelError: If the prior of a site depends on a discrete site: it has none of its own.
        """
        if self.mixed:
            raise ModelError(
                f"the prior of {min(self.mixed)!r} depends on a discrete site, which ties it to "
                "other sites, so that it has no density of its own: log_prior has that of all"
            )
        return super().log_priors(z, args, params)

    def log_likelihoods(
        self, z: Tensor, args: Sequence[Any] | None = None, params: Params | None = None
    ) -> dict[str, Tensor]:
        """Log densities of each observed site, in the shape of its batch, unscaled, by name.

        That of an entry whose distribution depends on discrete sites is log p(entry | z), these
        summed out, where the entries are independent of each other and of other sites given z.
        Sites where they are not, as the steps of a hidden Markov model, are left out: they are in
        ``without_log_likelihood``.
        """

        def log_likelihoods(run: Evaluate, _: Tensor) -> dict[str, Tensor]:
            return {name: rows for name, rows in self._rows_of(run) if rows is not None}

        return self._over_draws(log_likelihoods, z, args, params)

    def deterministics(
        self, z: Tensor, args: Sequence[Any] | None = None, params: Params | None = None
    ) -> dict[str, Tensor]:
        """Values ``[..., *shape]`` of what the model computes of its continuous sites alone."""
        found = super().deterministics(z, args, params)
        return {name: v for name, v in found.items() if name not in self.given_discrete}

    def non_finite_terms(
        self, z: Tensor, args: Sequence[Any] | None = None, params: Params | None = None
    ) -> list[str]:
        """Names of the sites, observed and discrete ones included, that are not finite at z.

        A site whose density depends on discrete ones is finite if it is for some of their values.
        """

        def are_finite(run: Evaluate, _: Tensor) -> dict[str, Tensor]:
            found = {}
            for name, msg in (run.latent | run.summed | run.observed).items():
                density = self._density(name, msg, run)
                if discrete := range(density.ndim - self.batch_dims):
                    density = density.amax(tuple(discrete))
                value = torch.as_tensor(msg["value"])
                found[name] = density.isfinite().all() & value.isfinite().all()
            return found

        found = self._over_draws(are_finite, z, args, params)
        return [name for name, is_finite in found.items() if not bool(is_finite.all())]

    # Runs of the model

    def model_at(self, values: Mapping[str, SiteValue]) -> Model:
        """The model that takes all values of its discrete sites at once, at values of the others.

        Where one of these is to be drawn, the discrete sites are drawn as well.
        """
        if isinstance(values, _Drawn) or any(value is None for value in values.values()):
            return self.model
        enumerated: Model = AllValues(-1 - self.batch_dims)(self.model)
        return enumerated

    def drawn_run(self) -> Evaluate:
        """A run at the initial z that draws the discrete sites, so that each has its own shape."""
        with isolated(), torch.no_grad():
            return self.run(_Drawn(self.constrain(self.initial)))

    def _density(self, name: str, msg: Mapping[str, Any], run: Evaluate) -> Tensor:
        """Log density of a site, without its scale, normalised over the values of a discrete one.

        Where a mask hides a discrete site, each of its values has the same probability.
        """
        value = log_prob(msg)
        dim = msg["infer"].get("_enumerate_dim", 0)
        if name in run.summed and 0 < -dim <= value.ndim:
            return uniform_where_masked(value, dim, msg)
        return value

    def _log_hidden(self, run: Evaluate) -> float:
        """Log of the number of values of the discrete sites that masks hide."""
        total = 0.0
        for msg in run.summed.values():
            density = uniform_where_masked(
                torch.zeros_like(log_prob(msg)), msg["infer"]["_enumerate_dim"], msg
            )
            at_one_value = density[(0,) * (density.ndim - self.batch_dims)]
            total -= float((at_one_value * msg["scale"]).sum())
        return total

    def factors_of(self, run: Evaluate) -> SiteFactors:
        """The densities of a run but those that :meth:`Latents.log_prior` has."""
        mixed = {name: run.latent[name] for name in sorted(self.mixed)}
        messages = {**run.summed, **mixed, **run.observed, **run.factors}
        trace = poutine.Trace()
        for name, msg in {**run.latent, **messages}.items():
            trace.add_node(name, **msg)
        trace.symbolize_dims()
        factors = SiteFactors([], [], dict(trace.symbol_to_dim), self.initial)
        for name, msg in messages.items():
            is_latent = name in mixed or name in run.summed
            density = self._density(name, msg, run)
            depends = any(size > 1 for size in density.shape[: density.ndim - self.batch_dims])
            if not depends:
                log_density = (density * msg["scale"]).sum()
                factors.others.append(("prior" if is_latent else "data", log_density))
                continue
            symbols: dict[int, str] = msg["infer"]["_dim_to_symbol"]
            kind = "mixed" if name in mixed else "discrete" if is_latent else "data"
            if kind == "data" and is_point(msg["fn"]):
                kind = "computed"
            plates = frozenset(
                trace.plate_to_symbol[frame.name]
                for frame in msg["cond_indep_stack"]
                if frame.vectorized
            )
            density = packed_density(name, density, symbols)
            factors.add(Factor(name, density, plates, msg["scale"], kind))
        return factors

    def _rows_of(self, run: Evaluate) -> Iterator[tuple[str, Tensor | None]]:
        """Each observed site and its log densities, or None where entries are not apart."""
        factors = self.factors_of(run)
        summed = {factor.name: part for part in factors.sums for factor in part.factors}
        for name, msg in run.observed.items():
            if is_point(msg["fn"]):
                continue
            if name not in summed:
                yield name, log_prob(msg)
                continue
            rows = summed[name].rows()
            if rows is not None:
                rows = packed.unpack(rows, factors.symbol_to_dim).expand(self._batches[name])
            yield name, rows


ONE_NUMBER = ("is ambiguous", "cannot be converted to Scalar", "can be converted to a scalar")
"""What torch says where a tensor of several values is read as one number."""


class _Drawn(dict[str, Any]):
    """Values of the continuous sites for a run that draws its discrete ones."""
