"""The weights of a trained network, at which fits of the model that is made of it start."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast

from torch import Tensor

from pyro_bnn.data.arrays import MOST_NAMES, shown
from pyro_bnn.errors import OptionError
from pyro_bnn.handled import module_of
from pyro_bnn.models import BayesianModule
from pyro_bnn.program.handlers import Model

logger = logging.getLogger("pyro_bnn")

PRIOR: Literal["prior"] = "prior"  # as init: a draw of it
T = TypeVar("T")


@dataclass(eq=False)
class OwnWeights:
    """Where a fit starts that was given no ``init``: at the weights of ``bayesian(net)``.

    Attributes:
        weights: Of each parameter that is sampled, by name.
        others_at_prior: Whether all chains but the first start at draws from the prior, and not
            near the weights.
        is_shown: Whether the run shows how far it is, and so where it starts; else the line is of
            level info.
        class_names: Names of the classes 0 .. C-1, which outputs of the network stand for; None
            where the labels are numbers.
        is_told: Whether it was told.
    """

    weights: Mapping[str, Tensor]
    others_at_prior: bool = False
    is_shown: bool = True
    class_names: Sequence[str] | None = None
    is_told: bool = False

    def tell(self, what: str, others: str = "") -> None:
        """Say it once, in a line, and the order of classes in another one.

        A network that was trained on another order is wrong of every class, and no error shows it.

        Args:
            what: What starts there.
            others: Where the others start.
        """
        if not self.is_told:
            self.is_told = True
            level = logging.WARNING if self.is_shown else logging.INFO
            logger.log(
                level,
                '%s starts at the weights of the network itself%s; init="prior" starts at draws '
                "from the prior",
                what,
                others,
            )
            tell_order(self.class_names, level)


def tell_order(class_names: Sequence[str] | None, level: int) -> None:
    """Say which class each output of a trained network stands for, where classes have names.

    Args:
        class_names: Names of the classes 0 .. C-1; None, or these numbers, are no names.
        level: Of the line.
    """
    if class_names is None or list(class_names) == [*map(str, range(len(class_names)))]:
        return
    order = [f"{label} is {shown(name)}" for label, name in enumerate(class_names)]
    if len(order) > MOST_NAMES:
        order = [*order[: MOST_NAMES - 1], "...", order[-1]]
    logger.log(
        level,
        "class %s: the outputs of the network's head have to be in this order; another one is "
        "given by Dataset(x, y, class_names=[...])",
        ", ".join(order),
    )


def chosen_init(
    model: Model,
    init: object,
    *,
    is_shown: bool = True,
    class_names: Sequence[str] | None = None,
) -> Any:
    """Where a run starts: at ``init``, else at the weights of a trained network, else None.

    Args:
        model: The model, of which a module inside may be of ``bayesian(net)``.
        init: As the user gave it; ``"prior"`` for a draw, which is None from here on.
        is_shown: Whether the run shows how far it is.
        class_names: Names of the classes, where y has some.

    Raises:
        OptionError: If it is another word.
    """
    if isinstance(init, str):
        if init != PRIOR:
            raise OptionError(
                f'init="{init}" is no start: take "prior", a posterior, a trained torch module, or '
                "values of sites"
            )
        return None
    if init is not None:
        return init
    module = module_of(model)
    modules = () if module is None else module.modules()
    nets = [each for each in modules if isinstance(each, BayesianModule) and each.is_trained]
    weights = {name: value for net in nets for name, value in net.own_weights().items()}
    if not weights:
        return None
    return OwnWeights(weights, is_shown=is_shown, class_names=class_names)


def for_members(init: T) -> T:
    """The same for members that are to differ: of all but the first a draw from the prior."""
    if not isinstance(init, OwnWeights):
        return init
    init.tell("The first member", ", the others at draws from the prior")
    return cast(T, replace(init, others_at_prior=True))
