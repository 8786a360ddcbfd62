r"""Selective prediction: the errors among rows that are kept, the least uncertain ones.

With the rows in the order of their uncertainty, the k first are kept, a share k/N. Their
**selective risk** is their error rate; their **joint risk** counts the same errors out of all N
rows. AURC is the mean of the first over k; AUGRC is the area under the second,

.. math:: \mathrm{AUGRC} = \int_0^1 P(\text{error and kept})\, d\,\text{share}
          = (1 - \mathrm{AUROC})\, e (1 - e) + \tfrac12 e^2

of the error rate e and the AUROC of the uncertainty for errors. At random it is e/2, at best
:math:`e^2 / 2`. AURC weighs the few most certain rows far more than others; AUGRC does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from pyro_bnn.diagnostics.rejection import kept_rates


@dataclass(frozen=True, kw_only=True)
class SelectiveRisk:
    """Errors against the share of rows that are kept.

    Attributes:
        kept: Share of rows kept ``[N]``: 1/N, 2/N, ..., 1.
        risk: Selective risk: error rate of the rows kept ``[N]``.
        joint_risk: Joint risk: errors among them over all rows ``[N]``.
        aurc: Mean of ``risk``; lower is better.
        augrc: Area under ``joint_risk``; lower is better.
    """

    kept: Float[np.ndarray, " N"]
    risk: Float[np.ndarray, " N"]
    joint_risk: Float[np.ndarray, " N"]
    aurc: float
    augrc: float

    @property
    def error(self) -> float:
        """Error rate e of all rows."""
        return float(self.joint_risk[-1])

    @property
    def random(self) -> float:
        """The AUGRC of an uncertainty that knows nothing, e/2."""
        return self.error / 2

    @property
    def best(self) -> float:
        """The least AUGRC there is, of all errors rejected first."""
        return self.error**2 / 2


def selective_risk(
    uncertainty: Float[np.ndarray, " N"], correct: Bool[np.ndarray, " N"]
) -> SelectiveRisk:
    """Errors of the rows that are kept when the most uncertain are left to somebody else.

    Rows of equal uncertainty are kept in the mean over their orders.

    Args:
        uncertainty: Any score of every row ``[N]``; only its order counts.
        correct: Whether the predicted class is the observed one ``[N]``.

    Raises:
        DataError: If ``correct`` holds anything but truth values, such as labels.
        ShapeError: If the shapes differ.

    References:
        Traub et al., "Overcoming Common Flaws in the Evaluation of Selective Classification
        Systems", NeurIPS 2024, arXiv:2407.01032. Geifman, Uziel & El-Yaniv, "Bias-Reduced
        Uncertainty Estimation for Deep Neural Classifiers", ICLR 2019, arXiv:1805.08206 (AURC).

    Example:
        >>> found = selective_risk(np.array([0.1, 0.2, 0.3]), np.array([True, True, False]))
        >>> round(found.aurc, 4), round(found.augrc, 4), round(found.best, 4)
        (0.1111, 0.0556, 0.0556)
    """
    wrong = 1 - kept_rates(uncertainty, correct)  # [N], in the order of uncertainty
    number = np.arange(1, len(wrong) + 1)
    errors = wrong.cumsum()
    between = (errors - wrong / 2) / len(wrong)  # joint risk in the middle of two shares
    return SelectiveRisk(
        kept=number / len(wrong),
        risk=errors / number,
        joint_risk=errors / len(wrong),
        aurc=float((errors / number).mean()),
        augrc=float(between.mean()),
    )
