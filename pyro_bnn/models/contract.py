"""What the models share: a likelihood of their own."""

from __future__ import annotations

import copy

from pyro_bnn.errors import OptionError
from pyro_bnn.likelihoods import Likelihood


def own_likelihood(likelihood: Likelihood) -> Likelihood:
    """A copy for one model, so that two models never share a likelihood's state.

    Raises:
        OptionError: If it is not a likelihood of this package.
    """
    if not isinstance(likelihood, Likelihood):
        raise OptionError(
            f"likelihood is a pyro_bnn.likelihoods object, for example likelihoods.Normal(), not "
            f"{likelihood!r}"
        )
    return copy.deepcopy(likelihood)
