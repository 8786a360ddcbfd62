"""A posterior is evaluated as soon as its fit has ended, at the draws all will have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyro_bnn.cli.fits import why_lost
from pyro_bnn.data import Split
from pyro_bnn.infer.engine import Engine
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.posterior.site_posterior import NUM_SAMPLES
from pyro_bnn.report.compare import Alone, common_draws, evaluate_alone


def expected_draws(engines: Iterable[Engine[Any]]) -> int:
    """How many draws the posteriors of engines have in common, as far as options tell.

    Example:
        >>> from pyro_bnn import NUTS, SVI, guides
        >>> expected_draws([SVI(guides.AutoNormal), NUTS(num_chains=3, num_samples=200)])
        600
    """
    return common_draws([engine.draw_counts for engine in engines], NUM_SAMPLES)


def evaluate_now(
    engines: Mapping[str, Engine[Any]],
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
