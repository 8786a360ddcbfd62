r"""Estimators of the likelihood term of the ELBO by name: one expectation, several variances.

.. math:: \nabla\, \mathbb E_q \log p(y \mid x, w), \qquad q(w) = \mathcal N(m, s^2)

``"weight_sampling"`` draws the weights once a particle for all rows of a step, and serves every
guide; ``"last_layer"`` and ``"last_layer_draws"`` take an ``AutoComposite``, ``"analytic"`` a
factorised Gaussian, the others one that is factorised given some shared noise. The KL is the same
in all. ``"auto"`` draws the
outputs of layers where guide and model let it, and else the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pyro_bnn.errors import OptionError, SiteError, UnknownNameError
from pyro_bnn.guides import Guide
from pyro_bnn.infer.svi.estimators.analytic import Analytic
from pyro_bnn.infer.svi.estimators.estimator import Estimator
from pyro_bnn.infer.svi.estimators.input_masks import InputMasks
from pyro_bnn.infer.svi.estimators.last_layer import LastLayer, LastLayerDraws
from pyro_bnn.infer.svi.estimators.product_estimators import Flipout, LocalReparameterization
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program

EstimatorName: TypeAlias = Literal[
    "auto",
    "weight_sampling",
    "local_reparameterization",
    "flipout",
    "analytic",
    "last_layer",
    "last_layer_draws",
]
AUTO: Literal["auto"] = "auto"
WEIGHT_SAMPLING: Literal["weight_sampling"] = "weight_sampling"
FOR_ALL = (AUTO, WEIGHT_SAMPLING)
ESTIMATORS: Mapping[str, type[Estimator]] = {
    cls.name: cls for cls in (LocalReparameterization, Flipout, Analytic, LastLayer, LastLayerDraws)
}


def check_estimator(name: str, *, per_example_draws: bool, num_particles: int) -> None:
    """Check the option ``estimator`` against the others.

    Raises:
        OptionError: If another option would have no effect beside it.
        UnknownNameError: If there is none of this name.
    """
    _check_name(name)
    if name in FOR_ALL:
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
    return name in FOR_ALL or ESTIMATORS[name].serves(guide)


def _check_name(name: str) -> None:
    if name not in (*FOR_ALL, *ESTIMATORS):
        raise UnknownNameError("estimator", str(name), [*FOR_ALL, *ESTIMATORS])


def make_estimator(
    name: str, program: Joint, guide: Guide, *, per_example_draws: bool = False
) -> Estimator | None:
    """The estimator of a name, for one model and guide; None for draws of the weights.

    With ``per_example_draws`` it is one that computes them without the weights of each row, if
    there is one.

    Raises:
        OptionError: If it needs another guide.
        SiteError: If it does not serve the model; names the site.
    """
    if not isinstance(program, Program):  # it has no rows, and no layers whose outputs to draw
        return None
    if per_example_draws and InputMasks.serves(guide):
        return InputMasks.where_right(program, guide)
    if name == AUTO and not per_example_draws:
        return _quietest(program, guide)
    if name in FOR_ALL:
        return None
    cls = ESTIMATORS[name]
    if not cls.serves(guide):
        raise OptionError(
            f'estimator="{name}" needs {cls.takes}, not {type(guide).__name__}: take that guide, '
            f'or leave the estimator at "{WEIGHT_SAMPLING}"'
        )
    return cls.of(program, guide)


def _quietest(program: Program, guide: Guide) -> Estimator | None:
    """That of the outputs of layers, where it serves guide and model."""
    if not LocalReparameterization.serves(guide):
        return None
    try:
        return LocalReparameterization.of(program, guide)
    except SiteError:
        return None
