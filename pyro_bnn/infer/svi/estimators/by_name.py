r"""Estimators of the likelihood term of the ELBO by name: one expectation, several variances.

.. math:: \nabla\, \mathbb E_q \log p(y \mid x, w), \qquad q(w) = \mathcal N(m, s^2)

``"weight_sampling"`` draws the weights once a particle for all rows of a step, and serves every
guide; ``"last_layer"`` takes an ``AutoComposite``, the others a factorised Gaussian. The KL is the
same in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pyro_bnn.errors import OptionError, UnknownNameError
from pyro_bnn.guides import Guide
from pyro_bnn.infer.svi.estimators.analytic import Analytic
from pyro_bnn.infer.svi.estimators.estimator import Estimator
from pyro_bnn.infer.svi.estimators.input_masks import InputMasks
from pyro_bnn.infer.svi.estimators.last_layer import LastLayer
from pyro_bnn.infer.svi.estimators.product_estimators import Flipout, LocalReparameterization
from pyro_bnn.program.program import Program

EstimatorName: TypeAlias = Literal[
    "weight_sampling", "local_reparameterization", "flipout", "analytic", "last_layer"
]
WEIGHT_SAMPLING = "weight_sampling"
ESTIMATORS: Mapping[str, type[Estimator]] = {
    cls.name: cls for cls in (LocalReparameterization, Flipout, Analytic, LastLayer)
}


def check_estimator(name: str, *, per_example_draws: bool, num_particles: int) -> None:
    """Check the option ``estimator`` against the others.

    Raises:
        OptionError: If another option would have no effect beside it.
        UnknownNameError: If there is none of this name.
    """
    _check_name(name)
    if name == WEIGHT_SAMPLING:
        return
    if per_example_draws:
        raise OptionError(
            f'per_example_draws=True draws the weights of each row, which estimator="{name}" does '
            "not draw: leave one of the two at its default"
        )
    if name == Analytic.name and num_particles > 1:
        raise OptionError(
            f"num_particles={num_particles} would have no effect, as the expectation is in "
            "closed form: leave it at 1"
        )


def serves(name: str, guide: type[Guide]) -> bool:
    """Whether an estimator serves a class of guides.

    Raises:
        UnknownNameError: If there is none of this name.
    """
    _check_name(name)
    return name == WEIGHT_SAMPLING or ESTIMATORS[name].serves(guide)


def _check_name(name: str) -> None:
    if name not in (WEIGHT_SAMPLING, *ESTIMATORS):
        raise UnknownNameError("estimator", str(name), [WEIGHT_SAMPLING, *ESTIMATORS])


def make_estimator(
    name: str, program: Program, guide: Guide, *, per_example_draws: bool = False
) -> Estimator | None:
    """The estimator of a name, for one model and guide; None for draws of the weights.

    With ``per_example_draws`` it is one that computes them without the weights of each row, if
    there is one.

    Raises:
        OptionError: If it needs another guide.
        SiteError: If it does not serve the model; names the site.
    """
    if per_example_draws and InputMasks.serves(guide):
        return InputMasks.where_right(program, guide)
    if name == WEIGHT_SAMPLING:
        return None
    cls = ESTIMATORS[name]
    if not cls.serves(guide):
        raise OptionError(
            f'estimator="{name}" needs {cls.takes}, not {type(guide).__name__}: take that guide, '
            f'or leave the estimator at "{WEIGHT_SAMPLING}"'
        )
    return cls.of(program, guide)
