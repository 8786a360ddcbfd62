"""What a comparison saves of a posterior, so that its report can be made again from the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_bnn import arviz_io
from pyro_bnn.posterior.arviz_groups import of_targets
from pyro_bnn.posterior.posterior import DrawsPosterior
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.report.evaluation.units import to_numpy

if TYPE_CHECKING:
    from xarray import DataTree

    from pyro_bnn.data.split import Split
    from pyro_bnn.posterior.protocol import PosteriorLike
    from pyro_bnn.report.evaluation.comparison import Evaluations

OTHER_DRAWS = 4  # stream of the y of draws that were not scored


def tree_of(comparison: Evaluations, name: str) -> DataTree:
    """The ArviZ tree of one posterior: its draws that were scored, or all that it stores.

    Its options also hold the name in the comparison, the names of all that were compared, the data
    set, the number of draws behind the scores, and whether it was the reference.

    Args:
        comparison: The comparison.
        name: Name of the posterior in it.
    """
    posterior, split = comparison.posteriors[name], comparison.split
    stored = posterior.num_stored_draws
    tree = posterior.to_arviz(
        split.train,
        split.test,
        num_samples=comparison.num_draws if stored is None else stored,
        seed=comparison.seed,
    )
    if isinstance(posterior, DrawsPosterior):
        tree = _with_scored_draws(tree, posterior, split, comparison.num_draws, comparison.seed)
    attrs: dict[str, Any] = {
        "name": name,
        "compared": list(comparison.posteriors),
        "data": {"name": split.name, "index": split.index, "note": split.note},
        "num_draws": comparison.num_draws,
        "is_reference": name == comparison.reference,
    }
    if comparison.probes is not None:
        attrs["probes"] = dict(comparison.probes.counts)
        tree = _with_probes(tree, comparison, posterior)
    return arviz_io.with_options(tree, attrs)


def _with_probes(tree: DataTree, comparison: Evaluations, posterior: PosteriorLike) -> DataTree:
    """The tree with f at the probes, of the same draws."""
    assert comparison.probes is not None
    x = comparison.split.test.x.new_tensor(comparison.probes.x)
    count = posterior.num_stored_draws or comparison.num_draws
    f = to_numpy(posterior.function_draws(x, count, comparison.seed, group_by_chain=True))
    added = arviz_io.datatree(
        {"probes": {"f": f}, "probes_constant_data": {"x": to_numpy(x)}},
        dims={"f": ["probe", "f_output"], "x": ["probe", "input"]},
    )
    for group in added.children:
        tree[group] = added[group].to_dataset()
    return tree


def _with_scored_draws(
    tree: DataTree, posterior: DrawsPosterior, split: Split, num_draws: int, seed: int
) -> DataTree:
    """All stored draws, with the very y that was scored where not all were.

    The noise of y depends on how many draws are made at once. The draws that were not scored get y
    of a stream of their own, so that each y is independent of the others, given its draw.
    """
    stored = posterior.num_stored_draws
    if num_draws >= stored:
        return tree
    x, chains = split.test.x, posterior.num_chains
    whole = to_numpy(posterior.predict(x, stored, derived_seed(seed, OTHER_DRAWS)).draws)
    scored = to_numpy(posterior.predict(x, num_draws, seed).draws)
    y = whole.reshape(chains, -1, *whole.shape[1:]).copy()  # [C, S, N, O]
    chosen = posterior.chosen(num_draws, seed).numpy()
    y[:, chosen] = scored.reshape(chains, -1, *scored.shape[1:])
    y = of_targets(y)
    assert np.shape(tree["predictions/y"]) == y.shape
    predictions = tree["predictions"].to_dataset()
    tree["predictions"] = predictions.assign(y=predictions["y"].copy(data=y))
    return tree
