"""What a comparison saves of a posterior, so that its report can be made again from the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_bnn import arviz_io
from pyro_bnn.posterior.arviz_groups import of_targets
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.rows import rows_with_draws
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.report.evaluation.units import to_numpy

if TYPE_CHECKING:
    from torch import Tensor
    from xarray import DataTree

    from pyro_bnn.data.split import Split
    from pyro_bnn.diagnostics.probes import Probes
    from pyro_bnn.posterior.protocol import PosteriorLike
    from pyro_bnn.report.evaluation.comparison import Evaluations

OTHER_DRAWS = 4  # stream of the y of draws that were not scored


@dataclass(frozen=True)
class Compared:
    """What the file of one posterior has of its comparison.

    Args:
        names: Of all that were compared.
        split: The data.
        num_draws: Draws behind the scores.
        seed: Seed of all draws.
        reference: Name of the reference, or None.
        probes: Rows off the data, or None.
    """

    names: tuple[str, ...]
    split: Split
    num_draws: int
    seed: int
    reference: str | None
    probes: Probes | None

    @classmethod
    def by(cls, comparison: Evaluations) -> Compared:
        """Of a comparison."""
        own = comparison
        return cls(
            tuple(own.posteriors), own.split, own.num_draws, own.seed, own.reference, own.probes
        )


def tree_of(name: str, posterior: PosteriorLike, compared: Compared) -> DataTree:
    """The ArviZ tree of one posterior: its draws that were scored, or all that it stores.

    Its options also hold the name in the comparison, the names of all that were compared, the data
    set, the number of draws behind the scores, and whether it was the reference.

    Args:
        name: Its name in the comparison.
        posterior: The posterior.
        compared: The comparison.
    """
    split, num_draws, seed = compared.split, compared.num_draws, compared.seed
    stored = posterior.num_stored_draws
    tree = posterior.to_arviz(
        split.train, split.test, num_samples=num_draws if stored is None else stored, seed=seed
    )
    if isinstance(posterior, DrawsPosterior):
        tree = _with_scored_draws(tree, posterior, split, num_draws, seed)
    attrs: dict[str, Any] = {
        "name": name,
        "compared": list(compared.names),
        "data": {"name": split.name, "index": split.index, "note": split.note},
        "num_draws": num_draws,
        "is_reference": name == compared.reference,
    }
    if compared.probes is not None:
        attrs["probes"] = dict(compared.probes.counts)
        x = split.test.x.new_tensor(compared.probes.x)
        tree = _with_probes(tree, posterior, x, stored or num_draws, seed)
    return arviz_io.with_options(tree, attrs)


def _with_probes(
    tree: DataTree, posterior: PosteriorLike, x: Tensor, num_draws: int, seed: int
) -> DataTree:
    """The tree with f at the probes x, of the same draws."""
    f = to_numpy(posterior.function_draws(x, num_draws, seed, group_by_chain=True))
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
    x, chains = rows_with_draws(split.test, stored).x, posterior.num_chains
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
