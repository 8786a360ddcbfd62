r"""MacKay's fixed point for the scales of priors, where the evidence is largest.

.. math:: \gamma_b = n_b - \operatorname{tr}(P_{0,b}\, \Sigma_b), \qquad
          c_b \leftarrow \gamma_b \big/ (m_b - l_b)^\top P_{0,b}^{(1)} (m_b - l_b)

for each block b of n entries, a site, whose prior has precision :math:`P_{0,b} = c_b
P_{0,b}^{(1)}`, :math:`P_{0,b}^{(1)}` the model's. :math:`\gamma` is how many of its numbers the
data determine.

References:
    MacKay, "Bayesian Interpolation", Neural Computation 1992. Tipping, "Sparse Bayesian Learning
    and the Relevance Vector Machine", JMLR 2001.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from pyro_bnn.infer.laplace.mode import MinusLogJoint
from pyro_bnn.program.joint import Joint
from pyro_bnn.sites import Site

ROUNDS = 100
CONVERGED = 1e-4  # relative change of the factors
PATIENCE = 5  # steps without a higher evidence: of a network it need not rise in each
LARGEST = 1e8  # factor of a block that the data do not need


def blocks_of(objective: MinusLogJoint[Joint]) -> list[Site]:
    """The sites whose prior is Gaussian."""
    others = objective.others
    return [s for s in objective.program.sites if not bool(others[s.start : s.stop].any())]


def improve(
    objective: MinusLogJoint[Joint], blocks: Sequence[Site], z: Tensor, variance: Tensor
) -> float:
    """One step of the fixed point; sets the objective's factors.

    Args:
        objective: Minus the log joint density.
        blocks: The sites.
        z: The mode ``[P]``.
        variance: Marginal variances there ``[P]``.

    Returns:
        The largest change of the log of a factor.
    """
    largest = 0.0
    for site in blocks:
        part = slice(site.start, site.stop)
        own, before = objective.precision[part], float(objective.factors[site.start])
        determined = site.stop - site.start - before * float((own * variance[part]).sum())
        squared = float((own * (z[part] - objective.loc[part]).square()).sum())
        after = min(max(determined, 1e-12) / max(squared, 1e-300), LARGEST)
        objective.factors[part] = after
        largest = max(largest, abs(math.log(after / before)))
    return largest


def scales_of(objective: MinusLogJoint[Joint], blocks: Sequence[Site]) -> dict[str, float]:
    """Standard deviations of the priors that were found, in those of the model's."""
    return {site.name: float(objective.factors[site.start]) ** -0.5 for site in blocks}
