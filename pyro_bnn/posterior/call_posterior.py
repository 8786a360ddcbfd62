"""Draws of any Pyro model, run on a :class:`~pyro_bnn.data.call.Call`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pyro_bnn.data import Call
from pyro_bnn.handled import model_name
from pyro_bnn.posterior import storage
from pyro_bnn.posterior.guide_draws import GuideDraws
from pyro_bnn.posterior.laplace_draws import LaplaceDraws
from pyro_bnn.posterior.particle_draws import ParticleDraws
from pyro_bnn.posterior.site_posterior import SitePosterior
from pyro_bnn.posterior.stored_draws import StoredDraws
from pyro_bnn.predictive.moments import estimated_elbo
from pyro_bnn.program.conditional_draws import discrete_draws
from pyro_bnn.program.enumerated import EnumeratedJoint
from pyro_bnn.program.handlers import Model, is_point
from pyro_bnn.program.predictions import predictions
from pyro_bnn.program.random_state import derived_seed, isolated

logger = logging.getLogger("pyro_bnn")

if TYPE_CHECKING:
    import pandas as pd
    from xarray import DataTree

Values = dict[str, Tensor]


class Rerun(Protocol):
    """Runs the engine of a posterior again, with its options and where it started."""

    def __call__(
        self, model: Model, data: Call, *, seed: int = 0, progress: bool = True
    ) -> CallPosterior:
        """The posterior of another model or of other arguments."""


class CallPosterior(SitePosterior):
    """Draws of the latent sites of any Pyro model, given what it observes.

    Predictions of a network, ``predict`` and ``function_draws``, are of a
    :class:`~.posterior.Posterior`, which a model ``model(x, y=None)`` has that is run on (x, y).

    Args:
        program: The model as tensor functions.
        provenance: How the posterior came about.

    Attributes:
        rerun: Runs its engine again; None where there is none to run, as after a run of stock Pyro,
            in a posterior that was read from a file or copied, and of a guide instance, which a
            run trains in place.
    """

    rerun: Rerun | None = None

    def __getstate__(self) -> dict[str, Any]:
        """All but the engine, of which a function that makes guides may not be pickled."""
        return {name: value for name, value in vars(self).items() if name != "rerun"}

    @property
    def call(self) -> Call:
        """The arguments that the model was run on."""
        return self.program.call

    @property
    def observed(self) -> Values:
        """Values of the observed sites, by name."""
        return {name: msg["value"] for name, msg in self._observed.items()}

    def count(self, num_samples: int | None) -> int:
        """The number of draws asked for; for None all that are stored, as ``MCMC`` of Pyro has."""
        if num_samples is None and self.num_stored_draws is not None:
            return self.num_stored_draws
        return super().count(num_samples)

    @isolated()
    def sample(
        self, num_samples: int | None = None, seed: int = 0, group_by_chain: bool = False
    ) -> Values:
        """Draws of every latent site, and of every ``pyro.deterministic`` statement.

        Discrete sites are summed out, and what is computed of them is left out: see
        :meth:`discrete`.

        Args:
            num_samples: Number of draws S, the total over chains. Where draws are stored, at most
                as many as there are.
            seed: One seed gives the same draws in every method.
            group_by_chain: Whether to keep chains apart.

        Returns:
            Site name to values ``[S, *shape]``, or ``[C, S/C, *shape]`` by chain.
        """
        program, draws = self.program, self.in_blocks(self.count(num_samples), seed)
        parts = [
            self._over(program.constrain, z[:, : program.num_latents])
            | self._over(program.deterministics, z)
            for z in draws.blocks()
        ]
        return _joined(parts, draws.num_chains if group_by_chain else None)

    def discrete(
        self, num_samples: int | None = None, seed: int = 0, group_by_chain: bool = False
    ) -> Values:
        """Draws of the discrete sites that are summed out, one for each draw of :meth:`sample`.

        They are exact, of p(discrete sites | the others, observed values), so that both together
        are draws of the joint posterior.

        Args:
            num_samples: Number of draws S, the total over chains.
            seed: Of the draws.
            group_by_chain: Whether to keep chains apart.

        Returns:
            Site name to values ``[S, *shape]``, or ``[C, S/C, *shape]`` by chain; empty where the
            model has no such site.
        """
        if not isinstance(self.program, EnumeratedJoint):
            return {}
        draws = self.in_blocks(self.count(num_samples), seed)
        parts = [
            discrete_draws(self.program, z, derived_seed(seed, 2 + i), self.params)
            for i, z in enumerate(draws.blocks())
        ]
        return _joined(parts, draws.num_chains if group_by_chain else None)

    @isolated()
    def log_joint(self, num_samples: int | None = None, seed: int = 0) -> Float[Tensor, " S"]:
        """Log p(z_s, observed values) ``[S]`` in unconstrained coordinates, with Jacobian."""
        blocks = self.in_blocks(self.count(num_samples), seed).blocks()
        return torch.cat([self._over(self.program.log_joint, z) for z in blocks])

    @isolated()
    def densities(
        self, num_samples: int | None = None, seed: int = 0
    ) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
        """Log p(z_s, observed values) and log q(z_s), each ``[S]``, in the same coordinates.

        Raises:
            SiteError: If the posterior has no density q.
        """
        return self.log_joint(num_samples, seed), self.log_q(num_samples, seed)

    @isolated()
    def elbo(self, num_samples: int | None = None, seed: int = 0) -> tuple[float, float]:
        """ELBO in nats and its Monte Carlo standard error.

        It is the mean of log p(z, observed values) - log q(z) over draws of q.

        Raises:
            OptionError: If ``num_samples`` is 1, which has no standard error.
            SiteError: If the posterior has no ELBO: no density q, or a prior without density.
        """
        self._require_elbo(num_samples)
        return estimated_elbo(*self.densities(num_samples, seed))

    @isolated()
    def log_likelihood(
        self, num_samples: int | None = None, seed: int = 0, group_by_chain: bool = False
    ) -> Values:
        """Log density of each observed site given each draw, ``[S, *batch]`` or by chain.

        A ``poutine.scale`` is not in it; a masked value has log density 0. Discrete sites are
        summed out. A site whose entries they tie to each other or to another site, as in a hidden
        Markov model, has no log density for each entry, and is left out. A ``pyro.factor``
        observes nothing: a line says where the likelihood is of factors alone.
        """
        if not self._observed and (factors := self.program.run_at(self.program.initial).factors):
            logger.warning(
                "log_likelihood is empty: %s observes no site, and pyro.factor (%s) does not say "
                "which values it is the log density of; PSIS-LOO and WAIC need "
                "pyro.sample(..., obs=)",
                model_name(self.model),
                ", ".join(factors),
            )
        draws = self.in_blocks(self.count(num_samples), seed)
        parts = [self._over(self.program.log_likelihoods, z) for z in draws.blocks()]
        return _joined(parts, draws.num_chains if group_by_chain else None)

    def predictive(
        self,
        call: Call | None = None,
        num_samples: int | None = None,
        seed: int = 0,
        group_by_chain: bool = False,
    ) -> Values:
        """Draws of the sites that are no latent ones, as ``pyro.infer.Predictive`` makes them.

        A site has its own shape, without the singletons that
        ``Predictive`` puts before it where the model has plates. Discrete sites have the values
        of :meth:`discrete`; one that has another shape at ``call``, as in a plate of more rows, is
        drawn given the continuous sites, and is among the values.

        Args:
            call: The arguments to predict at, such as new inputs with None for what is observed;
                by default those of the run, with what they observe drawn anew.
            num_samples: Number of draws S, the total over chains.
            seed: Of the draws.
            group_by_chain: Whether to keep chains apart.

        Returns:
            Site name to values ``[S, *shape]``, or ``[C, S/C, *shape]`` by chain.
        """
        draws, discrete = self.draws(num_samples, seed), self.discrete(num_samples, seed)
        stream = derived_seed(seed, 1)
        values = predictions(self.program, call, draws, discrete, self.params, stream)
        return _by_chain(values, self.num_chains if group_by_chain else None)

    def summary(self, num_samples: int | None = None, seed: int = 0) -> pd.DataFrame:
        """Mean, sd, intervals, ESS, R-hat and MCSE of each number of each site, by ArviZ.

        Of an approximation mean, sd and intervals alone: its draws are independent, and R-hat and
        ESS would say nothing of how good it is.
        """
        from pyro_bnn import arviz_io

        values = self.sample(num_samples, seed, group_by_chain=True)
        groups = {"posterior": {name: _on_host(value) for name, value in values.items()}}
        table = arviz_io.summary(arviz_io.datatree(groups))
        if self.nature is not None and self.nature.kind in ("approximation", "point"):
            table = table[["mean", "sd", "eti89_lb", "eti89_ub"]]
        return table

    @isolated()
    def to_arviz(
        self,
        num_samples: int | None = None,
        *,
        predictions: Call | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, ArrayLike] | None = None,
        seed: int = 0,
    ) -> DataTree:
        """The posterior as an ArviZ ``DataTree``.

        Groups: ``posterior`` (latent, discrete and deterministic sites), ``sample_stats``,
        ``log_likelihood`` and ``posterior_predictive`` of each observed site, ``observed_data``,
        ``constant_data`` (the tensors among the model's arguments, by their names) and, for
        another ``Call``, ``predictions``. The dimensions of a site in plates have the plates'
        names.

        Args:
            num_samples: Number of draws, the total over chains.
            predictions: Arguments to predict at; see :meth:`predictive`.
            dims: Names of the dimensions of a site after chain and draw, in place of the plates'.
            coords: Labels of dimensions.
            seed: Seed of the draws.
        """
        from pyro_bnn import arviz_io

        if tied := self.program.without_log_likelihood:
            logger.warning(
                "log_likelihood is without %s: discrete sites tie the entries together, so that "
                "they have no log density each; PSIS-LOO and WAIC need one",
                ", ".join(tied),
            )
        observed = self._observed
        own: dict[str, Any] = {"num_samples": num_samples, "seed": seed, "group_by_chain": True}
        computed = self.sample(**own)
        groups = {
            "posterior": computed | self.discrete(**own),
            "log_likelihood": self.log_likelihood(**own),
            "posterior_predictive": self.predictive(**own),
        }
        if predictions is not None:
            groups["predictions"] = self.predictive(predictions, **own)
        arrays: dict[str, dict[str, NDArray[Any]]] = {
            group: {
                name: _on_host(value)
                for name, value in values.items()
                if group == "posterior" or name not in computed
            }
            for group, values in groups.items()
        }
        arrays["observed_data"] = {name: _on_host(msg["value"]) for name, msg in observed.items()}
        arrays["constant_data"] = self._constants(observed)
        stats = self._stats_of(self.count(num_samples), seed)
        if self.has_log_prob:  # of an approximation, by which arviz_io.loo_approximate weights
            densities = {"log_p": self.log_joint, "log_q": self.log_q}
            stats |= {
                name: _on_host(density(num_samples, seed)).reshape(self.num_chains, -1)
                for name, density in densities.items()
            }
        if stats:
            arrays["sample_stats"] = stats
        facts = {name: getattr(self, name) for name in ("method", "engine", "options", "seed")}
        facts |= {"wall_time": self.wall_time, "draws_seed": seed}
        return arviz_io.datatree(
            {group: values for group, values in arrays.items() if values},
            dims={**self._dims(), **(dims or {})},
            coords=coords,
            attrs=facts,
        )

    def save(self, path: str | Path) -> None:
        """Write the posterior to one file that :meth:`load` reads; the model is not in it.

        Raises:
            OutputError: If the file cannot be written, or an argument of the model is neither a
                tensor, an array or a frame of numbers, strings and times, a number, a string,
                None, nor a list, tuple or dict of these.
        """
        provenance = replace(self.provenance, nature=self.nature)
        storage.save_call(Path(path), self.program, self.params, provenance, self._contents())

    @staticmethod
    @isolated()
    def load(path: str | Path, model: Model) -> CallPosterior:
        """Read a posterior written by :meth:`save`.

        Args:
            path: The file.
            model: The Pyro model, built as it was for the run.

        Raises:
            FileFormatError: If the file is missing, truncated, foreign or newer.
            SiteError: If the model differs from the one that was saved, in its sites or densities.
        """
        kind, contents = storage.load_call(Path(path), model)
        posterior: CallPosterior = SitePosterior._by_kind[kind](**contents)  # type: ignore[assignment]
        return posterior

    # What the model's sites are

    def _over(self, function: Any, z: Tensor) -> Any:
        """A function of the program at draws ``[S, Q]``, at the posterior's own parameters."""
        with torch.no_grad():
            return function(z, params=self.params)

    def _stats_of(self, num_samples: int, seed: int) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        """Statistics of the draws that a seed chooses."""
        return {}

    @cached_property
    def _observed(self) -> dict[str, Any]:
        run = self.program.run_at(self.program.initial)
        return {k: msg for k, msg in run.observed.items() if not is_point(msg["fn"])}

    def _dims(self) -> dict[str, list[str]]:
        """Names of the batch dimensions of each site in plates, by its plates."""
        run = self.program.drawn_run()
        named = {}
        for name, msg in {**run.latent, **run.summed, **run.observed}.items():
            batch = len(msg["fn"].batch_shape)
            plates = {frame.dim: frame.name for frame in msg["cond_indep_stack"] if frame.dim}
            names = [plates.get(dim, f"{name}_dim_{dim + batch}") for dim in range(-batch, 0)]
            if any(dim in plates for dim in range(-batch, 0)):
                named[name] = names
        return named

    def _constants(self, observed: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """The tensors and arrays among the arguments that are not observed, by their names."""
        args, kwargs = self.program.args, self.program.kwargs
        try:
            bound = inspect.signature(self.model).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):
            bound = {f"arg_{i}": value for i, value in enumerate(args)} | kwargs
        values = {k: v for k, v in bound.items() if _is_numeric(v)}
        seen = [msg["value"] for msg in observed.values()]
        return {
            name: _on_host(value) if isinstance(value, Tensor) else value
            for name, value in values.items()
            if not any(value is other for other in seen)
        }


class CallDraws(StoredDraws, CallPosterior, kind="call draws"):
    """Stored draws of any model; see :class:`~.stored_draws.StoredDraws` for its arguments."""

    def _stats_of(self, num_samples: int, seed: int) -> dict[str, NDArray[Any]]:
        """See the base class."""
        chosen = self.chosen(num_samples, seed).numpy()
        return {name: value[:, chosen] for name, value in self.sample_stats.items()}


class CallParticles(ParticleDraws, CallDraws, kind="call particles"):
    """Particles of any model; see :class:`~.particle_draws.ParticleDraws` for its arguments."""


class CallGuide(GuideDraws, CallPosterior, kind="call guide"):
    """A trained guide of any model; see :class:`~.guide_draws.GuideDraws` for its arguments."""

    def _stats_of(self, num_samples: int, seed: int) -> dict[str, NDArray[Any]]:
        """Log joint and log q of the draws, as of any approximation; see the base class."""
        if not self.has_log_prob:
            return {}
        log_p, log_q = self.densities(num_samples, seed)
        return {"log_p": _on_host(log_p)[None], "log_q": _on_host(log_q)[None]}


class CallLaplace(LaplaceDraws, CallGuide, kind="call laplace"):
    """A Gaussian around a mode of any model; see :class:`pyro_bnn.Laplace`."""


def _is_numeric(value: Any) -> bool:
    """Whether an argument is a tensor or an array of numbers."""
    return isinstance(value, Tensor) or (
        isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    )


def _joined(parts: Sequence[Values], num_chains: int | None) -> Values:
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return _by_chain(whole, num_chains)


def _by_chain(values: Values, num_chains: int | None) -> Values:
    """Values ``[S, ...]`` as they are, or ``[C, S/C, ...]`` of C chains."""
    if num_chains is None:
        return values
    return {name: value.unflatten(0, (num_chains, -1)) for name, value in values.items()}


def _on_host(value: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = value.detach().cpu().numpy()
    return array
