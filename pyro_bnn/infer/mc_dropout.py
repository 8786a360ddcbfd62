"""MC dropout of a network as it is: predictions of its own weights under random masks."""

from __future__ import annotations

from pyro_bnn.errors import SiteError
from pyro_bnn.guides.dropout import AutoDropout
from pyro_bnn.infer.inputs import Data, as_dataset, set_up
from pyro_bnn.models.from_dropout import DropoutModule
from pyro_bnn.posterior.posterior import GuidePosterior
from pyro_bnn.posterior.provenance import Provenance, of_data
from pyro_bnn.program.program import Program


def mc_dropout(model: DropoutModule, data: Data) -> GuidePosterior:
    r"""The posterior of a network with dropout layers as it is, masks drawn from their prior.

    .. math:: p(y \mid x) = \int p\bigl(y \mid f_\theta(x; m)\bigr)\, p(m)\, dm

    Nothing is fitted: the weights are the network's own, point estimates.

    Args:
        model: What ``bayesian_dropout(net, likelihood)`` gives.
        data: Rows like those that the network was trained on, in its units: their shapes are read,
            and the way back to the user's units is kept.

    Returns:
        A posterior without a fit; a draw is one mask a layer, for all rows.

    Raises:
        ModelError, ShapeError: If the rows do not fit the network.
        SiteError: If the likelihood is to be learned, such as a noise scale.

    References:
        Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016, arXiv:1506.02142.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from pyro_bnn import bayesian_dropout, likelihoods
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        >>> x = torch.zeros(5, 3)
        >>> posterior = mc_dropout(bayesian_dropout(net, likelihoods.Normal(0.1)), (x, x[:, 0]))
        >>> posterior.predict(x).mean.shape
        torch.Size([5, 1])
    """
    rows = as_dataset(data)
    program = Program(model, rows.x, rows.y)
    if learned := [s.name for s in program.sites if s.name.startswith("likelihood.")]:
        raise SiteError(
            f"{', '.join(learned)} is to be learned: pass a likelihood that holds it fixed, "
            "such as likelihoods.Normal(0.1), or fit the network with SVI(guides.AutoDropout)"
        )
    guide = AutoDropout(model)
    set_up(guide, program)
    provenance = Provenance("AutoDropout", "none", options=guide.options(), **of_data(rows))
    return GuidePosterior(program, guide, provenance)
