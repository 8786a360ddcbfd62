"""The rungs on the way to a reference: engines, their options, and where their chains start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyro_bnn.infer import MAMS, NUTS, Ensemble
from pyro_bnn.infer.engine import Engine
from pyro_bnn.infer.mcmc.hamiltonian import HamiltonianSampler
from pyro_bnn.posterior.posterior import DrawsPosterior

PRIOR = "draws of the prior"
BEFORE = "the draws of the rung before"


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One engine to try.

    Attributes:
        engine: What draws from the posterior itself.
        start: An engine whose posterior its chains start at, or ``PRIOR`` or ``BEFORE``; the first
            rung has no draws before it, nor one that follows failures alone: these start at the
            prior.
    """

    engine: Engine[DrawsPosterior]
    start: Engine[Any] | str = PRIOR

    @property
    def name(self) -> str:
        """The engine, and those of its options that are not its defaults."""
        own: Any = self.engine
        default = asdict(type(own)())
        changed = [f"{name}={v}" for name, v in asdict(own).items() if v != default[name]]
        return ":".join([type(own).__name__, *sorted(changed)])

    @property
    def num_draws(self) -> int:
        """Draws of a chain, warm-up included; 0 where the engine counts otherwise."""
        if not isinstance(self.engine, HamiltonianSampler):
            return 0
        return self.engine.warmup_steps + self.engine.num_samples

    @property
    def warmup(self) -> int:
        """Those of them that are dropped."""
        engine = self.engine
        return engine.warmup_steps if isinstance(engine, HamiltonianSampler) else 0

    def longer(self) -> Rung:
        """The same with twice the draws, from where its chains are."""
        engine = self.engine
        assert isinstance(engine, HamiltonianSampler)
        more = replace(
            engine, warmup_steps=2 * engine.warmup_steps, num_samples=2 * engine.num_samples
        )
        return Rung(engine=more, start=BEFORE)


RUNGS: tuple[Rung, ...] = (
    Rung(engine=MAMS()),
    Rung(engine=NUTS(), start=BEFORE),
    Rung(engine=NUTS(warmup_steps=1_000, mass_matrix="low_rank"), start=Ensemble()),
)
"""Rungs in the order in which they are tried. After them :func:`climb` doubles the draws."""

LONGEST = Rung(engine=MAMS(warmup_steps=1_000, num_samples=2_000), start=BEFORE)
"""What is doubled, again and again, while time remains."""


def climb() -> Iterator[Rung]:
    """All rungs, without an end."""
    yield from RUNGS
    rung = LONGEST
    while True:
        yield rung
        rung = rung.longer()
