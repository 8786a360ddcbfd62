"""The rungs on the way to a reference: engines, their options, and where their chains start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyro_bnn.infer import MAMS, NUTS, SMC, Ensemble
from pyro_bnn.infer.engine import Engine
from pyro_bnn.infer.mcmc.hamiltonian import HamiltonianSampler

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

    engine: Engine[Any]
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

    def longer(self, times: int, *, warmup: int = 1) -> Rung:
        """The same with more draws, from where its chains are.

        Args:
            times: How many times as many draws of a chain are kept.
            warmup: How many times as many are dropped.
        """
        engine = self.engine
        assert isinstance(engine, HamiltonianSampler)
        more = replace(
            engine,
            warmup_steps=warmup * engine.warmup_steps,
            num_samples=times * engine.num_samples,
        )
        return Rung(engine=more, start=BEFORE)


RUNGS: tuple[Rung, ...] = (
    Rung(engine=MAMS()),
    Rung(engine=MAMS(warmup_steps=600, mass_matrix="low_rank"), start=Ensemble()),
    Rung(engine=NUTS(), start=BEFORE),
    Rung(engine=SMC()),
)
"""Rungs in the order in which they are tried: the cheapest first, which is all that most need; one
whose chains start in the modes, and not on a long way to them; trees, whose lengths suit places
that differ; particles from the prior, which reach modes that no chain joins. After them
:func:`climb` doubles the draws. Another engine is another line."""

LONGEST = Rung(engine=MAMS(warmup_steps=600, num_samples=2_000), start=BEFORE)
"""What is doubled, again and again, while time remains."""


def climb() -> Iterator[Rung]:
    """All rungs, without an end."""
    yield from RUNGS
    rung = LONGEST
    while True:
        yield rung
        rung = rung.longer(2, warmup=2)
