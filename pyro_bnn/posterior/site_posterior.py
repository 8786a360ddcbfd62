"""Draws of the latent sites of a model, whatever made them, and how they came about."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from html import escape
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.checks import plain
from pyro_bnn.errors import OptionError, OutputError, SiteError
from pyro_bnn.guides.guide import ELBO
from pyro_bnn.models.description import describe
from pyro_bnn.posterior import storage
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.random_state import isolated

NUM_SAMPLES = 1_000  # draws by default
DRAWS_OF_UNKNOWN_GUIDES = 1_000  # stored in the file of a guide whose class is not of this package


class SitePosterior(ABC):
    """Draws of the latent sites of one fit or one sampling run.

    ``num_samples`` is always the total over chains, and one seed gives the same draws in every
    method. Where draws are stored, each is used at most once. By default it is 1,000, or all
    stored draws where there are fewer; of more chains than that one draw of each.

    A subclass says of what: of a network on rows, :class:`~.posterior.Posterior`, or of any model
    on its arguments, :class:`~.call_posterior.CallPosterior`.

    Args:
        program: The model as tensor functions.
        provenance: How the posterior came about.

    Attributes:
        params: Values of the model's point-estimated parameters, by name, unconstrained; of
            those in ``program.member_params`` each draw has its own, and the value here is unused.
        model: The Pyro model.
        method: Name of the guide or sampler; this and those that follow are of the provenance.
        engine: Name of the engine.
        options: Options of the engine.
        seed: Seed of the run.
        wall_time: Duration of the run in seconds; NaN where it is not known.
        threads: CPU threads of the run; None where it is not known.
        processes: Processes that shared the machine with that of the run, itself included.
        num_parameters: How many numbers the run fitted.
        losses: Negative ELBO estimate of each step ``[steps]``, nats; empty for samplers.
        doubling: What the second half of the run gained; None where that was not compared.
        bound_gap: How far what was maximised lies below the ELBO, by draws; None where it is none
            of the closed-form bounds.
    """

    _by_kind: ClassVar[dict[str, type[SitePosterior]]] = {}

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        """Make a class known to ``load`` as that of one kind of file."""
        super().__init_subclass__()
        if kind is not None:
            SitePosterior._by_kind[kind] = cls

    def __init__(self, program: Joint, provenance: Provenance) -> None:
        self.program = program
        self.provenance = provenance
        self.params = {name: value.detach() for name, value in program.params.items()}
        self.model = program.model
        self.method, self.engine = provenance.method, provenance.engine
        self.options, self.seed = provenance.options, provenance.seed
        self.wall_time, self.threads = provenance.wall_time, provenance.threads
        self.processes, self.num_parameters = provenance.processes, provenance.num_parameters
        self.gpu = provenance.gpu
        self.losses, self.doubling = provenance.losses, provenance.doubling
        self.bound_gap = provenance.bound_gap

    # What is known of it

    @property
    def nature(self) -> Nature | None:
        """What it is, as its engine and guide declare; None where nobody did."""
        return self.provenance.nature

    @property
    def num_chains(self) -> int:
        """Number of chains C; 1 for an approximation."""
        return 1

    @property
    def num_stored_draws(self) -> int | None:
        """Number of stored draws over all chains; None where draws are made on demand."""
        return None

    @property
    def num_atoms(self) -> int | None:
        """Number K of the functions that all draws are of; None where each draw is its own.

        Predictions are those of the K functions, each computed once, and exact in their weights,
        which are equal, where the number of draws is a multiple of K.
        """
        return None

    @property
    def has_log_prob(self) -> bool:
        """Whether the approximation has a density q(z)."""
        return False

    @property
    def elbo_kind(self) -> str:
        """``"exact"``, ``"bound"``, ``"monte_carlo"``, or ``"none"`` where there is no ELBO."""
        return "none"

    @property
    def sample_stats(self) -> dict[str, NDArray[Any]]:
        """Sampler statistics of each draw ``[C, S]``, named as ArviZ names them."""
        return {}

    @property
    def objective(self) -> str:
        """Name of what ``losses`` are the negative of; ``"ELBO"`` where it is that bound."""
        return ELBO

    @abstractmethod
    def in_blocks(self, num_samples: int, seed: int) -> Draws:
        """At most ``num_samples`` draws ``[Q]``, as many of each chain, made a few at a time.

        A draw is z ``[P]``, followed by values of its own of the parameters
        ``program.member_params``, if there are such.
        """

    def unconstrained(
        self, num_samples: int | None = None, seed: int = 0, *, group_by_chain: bool = False
    ) -> Float[Tensor, "*C S P"]:
        """Draws of the flat unconstrained vector z: ``[S, P]``, or ``[C, S/C, P]`` by chain.

        Raises:
            OptionError: If ``num_samples`` is not a positive integer.
        """
        z = self.draws(num_samples, seed, group_by_chain=group_by_chain)
        return z[..., : self.program.num_latents]

    def draws(
        self, num_samples: int | None = None, seed: int = 0, *, group_by_chain: bool = False
    ) -> Float[Tensor, "*C S Q"]:
        """Draws as the functions of the program take them.

        These are the draws of :meth:`unconstrained`, each followed by its own values of the
        parameters ``program.member_params``, such as the biases of a mixture's component.

        Raises:
            OptionError: If ``num_samples`` is not a positive integer.
        """
        z = self.in_blocks(self.count(num_samples), seed).together()
        return z if group_by_chain else z.flatten(0, 1)

    def count(self, num_samples: int | None) -> int:
        """The number of draws asked for; for None 1,000, or all stored draws where fewer.

        Of more than 1,000 chains it is one draw of each. Draws of K atoms are by default as many of
        each: K times a whole number, at most 1,000.

        Raises:
            OptionError: If ``num_samples`` is not a positive integer.
        """
        if num_samples is None:
            if self.num_stored_draws is not None:
                return min(max(NUM_SAMPLES, self.num_chains), self.num_stored_draws)
            atoms = self.num_atoms or 1
            return max(NUM_SAMPLES - NUM_SAMPLES % atoms, atoms)
        num_samples = plain(num_samples)
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples < 1:
            raise OptionError(f"num_samples is a positive integer, not {num_samples!r}")
        return num_samples

    # Draws

    @isolated()
    def sample(
        self, num_samples: int | None = None, seed: int = 0, group_by_chain: bool = False
    ) -> dict[str, Tensor]:
        """Draws of every site.

        The result works as ``posterior_samples`` of ``pyro.infer.Predictive``.

        Args:
            num_samples: Number of draws S, the total over chains. Where draws are stored, at most
                as many as there are.
            seed: One seed gives the same draws in every method.
            group_by_chain: Whether to keep chains apart.

        Returns:
            Site name to values ``[S, *event]``, or ``[C, S/C, *event]`` by chain.
        """
        return self.program.constrain(
            self.unconstrained(num_samples, seed, group_by_chain=group_by_chain)
        )

    @isolated()
    def hyperparameters(
        self, num_samples: int | None = None, seed: int = 0, group_by_chain: bool = False
    ) -> dict[str, Tensor]:
        """Draws of the sites that are no weights: constrained ones, as scales, and single numbers.

        Args:
            num_samples: Number of draws S, the total over chains.
            seed: Seed of the draws.
            group_by_chain: Whether to keep chains apart.

        Returns:
            Site name to values ``[S, *event]``, or ``[C, S/C, *event]`` by chain.
        """
        names = [s.name for s in self.program.sites if not (s.is_real and s.shape)]
        draws, num_latents = self.in_blocks(self.count(num_samples), seed), self.program.num_latents
        blocks = []
        for z in draws.blocks():
            with torch.no_grad():  # where a support depends on a site, the model runs
                sites = self.program.constrain(z[:, :num_latents], params=self.params)
            # a copy of each block: a view would keep all of z
            blocks.append({name: sites[name].clone() for name in names})
        values = {name: torch.cat([block[name] for block in blocks]) for name in names}
        if not group_by_chain:
            return values
        return {name: v.unflatten(0, (draws.num_chains, -1)) for name, v in values.items()}

    # Densities

    @isolated()
    def log_q(self, num_samples: int | None = None, seed: int = 0) -> Float[Tensor, " S"]:
        """Log q(z_s) ``[S]`` of the approximation at its draws, unconstrained.

        Raises:
            SiteError: If the posterior has no density q.
        """
        raise SiteError(
            f"{self.method} has no density q(z): {self.count(num_samples)} draws of seed {seed} "
            "have no log_q"
        )

    def _require_elbo(self, num_samples: int | None) -> None:
        """Check that so many draws make an ELBO and its error."""
        if self.count(num_samples) < 2:
            raise OptionError("the standard error of the ELBO needs num_samples of at least 2")
        if improper := sorted(self.program.latents.improper):
            raise SiteError(
                f"there is no ELBO under the flat prior of {', '.join(improper)}, which has no "
                "density"
            )

    # Its file

    def _contents(self) -> dict[str, Any]:
        """What its file holds beside its model: draws, unless a subclass has more to keep.

        Raises:
            OutputError: If draws are not all of it.
        """
        if self.program.member_params:
            raise OutputError(
                f"cannot save a {self.method}, whose class is not of this package and whose draws "
                f"have values of their own of {', '.join(self.program.member_params)}"
            )
        count = self.num_stored_draws or DRAWS_OF_UNKNOWN_GUIDES
        z = self.unconstrained(count, group_by_chain=True)
        log_q = self.log_q(count) if self.has_log_prob else None
        return storage.draws_contents(z, log_q, self.sample_stats)

    def _repr_html_(self) -> str:
        """How it came about, as a notebook shows it."""
        is_timed = not math.isnan(self.wall_time)
        facts = {
            "method": f"{self.method} by {self.engine}",
            "model": describe(self.model),
            "weights": f"{self.program.num_latents:,}",
            "fitted numbers": f"{self.num_parameters:,}",
            "draws": f"{self.num_stored_draws:,} stored" if self.num_stored_draws else "any number",
            "time": f"{self.wall_time:.1f} s, seed {self.seed}" if is_timed else "not known",
            "options": ", ".join(f"{name}={value!r}" for name, value in self.options.items()),
        }
        rows = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in facts.items())
        return f"<table>{''.join(rows)}</table>"

    def __repr__(self) -> str:
        stored = f", {self.num_stored_draws} draws" if self.num_stored_draws else ""
        what = f"{self.method} by {self.engine}, P={self.program.num_latents}{stored}"
        return f"{type(self).__name__}({what})"
