"""A posterior is evaluated as soon as its fit has ended, at the draws all will have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pyro_bnn.cli.fits import why_lost
from pyro_bnn.data import Split
from pyro_bnn.posterior.posterior import NUM_SAMPLES, Posterior
from pyro_bnn.report.compare import Alone, common_draws, evaluate_alone


class Expected(NamedTuple):
    """What the options of an engine tell of the draws of its posterior.

    Attributes:
        num_chains: Chains, or members that sample.
        num_stored_draws: Draws of all of them; None where a guide gives any number.
        num_atoms: Members of an ensemble that do not sample.
    """

    num_chains: int = 1
    num_stored_draws: int | None = None
    num_atoms: int | None = None

    @classmethod
    def of(cls, engine: Any) -> Expected:
        """That of an engine, or of the engine within it."""
        engine = getattr(engine, "engine", engine)
        members = getattr(engine, "num_members", None)
        chains, of_each = (getattr(engine, n, None) for n in ("num_chains", "num_samples"))
        chains = chains or members or 1
        if of_each is None:
            return cls(num_atoms=members)
        return cls(chains, chains * of_each)


def expected_draws(engines: Iterable[Any]) -> int:
    """How many draws the posteriors of engines have in common, as far as options tell.

    Example:
        >>> from pyro_bnn import NUTS, SVI, guides
        >>> expected_draws([SVI(guides.AutoNormal), NUTS(num_chains=3, num_samples=200)])
        600
    """
    expected: list[Any] = [Expected.of(engine) for engine in engines]
    return common_draws(expected, NUM_SAMPLES)


def evaluate_now(
    engines: Mapping[str, Any],
    name: str,
    posterior: Posterior,
    rows: Split,
    seed: int,
    say: Callable[[str], object],
) -> Alone:
    """Evaluate the posterior of one of several engines; where that fails, a line says why."""
    num_draws = expected_draws(engines.values())
    own = evaluate_alone(name, posterior, rows, num_draws=num_draws, seed=seed, reason_of=why_lost)
    if own.why:
        say(f"{name:{max(map(len, engines))}}  {own.why}")
    return own
