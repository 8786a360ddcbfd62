r"""A model whose prior is the WHOLE posterior of an earlier fit, correlations included.

.. math:: p(z) = \mathcal N(z \mid m, L L^\top) = \prod_k
          \mathcal N\bigl(z_k \mid m_k + L_{k,<k}\, e_{<k},\; L_{kk} L_{kk}^\top\bigr), \qquad
          e = L^{-1} (z - m)

Each site keeps its name and gets its distribution given the sites before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.handled import Model, module_of, parameters_of
from pyro_bnn.priors.from_posterior import (
    Earlier,
    Gaussian,
    SiteGaussian,
    gaussian_of,
    moments_of,
    site_gaussian,
)
from pyro_bnn.sites import Site


def continued(model: Model, posterior: Earlier) -> ContinuedModel:
    r"""The same model with an earlier posterior as its prior, to be fitted to further data.

    All latent sites take part: weights, noise scales, the sites of hierarchical priors. A positive
    site is Gaussian in its unconstrained coordinate. Of a guide that is one Gaussian
    (``AutoNormal``, ``AutoMultivariateNormal``, ``AutoLowRankMultivariateNormal``,
    ``AutoMatrixNormal``) the prior is exactly that; of a sampler or of any other guide it is the
    Gaussian with the mean and covariance of its draws, which a posterior of several modes is not.

    Evaluating it takes :math:`O(P^2)` operations, but O(P) after a mean-field fit, whose KL from
    the next ``AutoNormal`` is also in closed form.

    Args:
        model: A Pyro model with the sites of the earlier one, in the same order; it is not copied.
        posterior: The earlier posterior.

    Returns:
        A Pyro model that engines take as any other. Give the fit ``init=posterior`` to start it
        where task 1 ended.

    Raises:
        OptionError: If the model has point-estimated parameters, which an earlier posterior says
            nothing of, or holds them fixed at other values than the earlier fit found, the
            posterior has too few draws for a covariance, or it is a point.
        SiteError: When the model runs: if its sites are not those of the posterior.

    Example:
        >>> import torch
        >>> import pyro_bnn as bnn
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> model = bnn.models.MLP(1, hidden=(4,))
        >>> svi = bnn.SVI(bnn.guides.AutoNormal, num_steps=20)
        >>> first = svi.run(model, (x[:10], x[:10].sin()), progress=False)
        >>> both = svi.run(continued(model, first), (x[10:], x[10:].sin()), progress=False)
        >>> list(both.sample(3)) == list(first.sample(3))
        True
    """
    parameters = parameters_of(model)
    if names := ", ".join(name for name, p in parameters.items() if p.requires_grad):
        raise OptionError(
            f"{names} are point estimates, of which a posterior knows no uncertainty to carry on: "
            "hold them fixed with requires_grad_(False), or give the sites their prior by "
            "prior=priors.FromPosterior(posterior)"
        )
    _require_params(parameters, posterior)
    gaussian = gaussian_of(posterior) or moments_of(posterior, full=True)
    return ContinuedModel(model, posterior.program.sites, gaussian)


def _require_params(parameters: Mapping[str, Tensor], posterior: Earlier) -> None:
    """Check that fixed parameters are those that the earlier weights were found with."""
    earlier = {name.removeprefix("model."): value for name, value in posterior.params.items()}
    earlier |= posterior.params  # parameters of an earlier continuation and of this one
    other = [
        name
        for name, value in parameters.items()
        if name in earlier and not torch.equal(value.detach(), earlier[name].to(value))
    ]
    if other:
        raise OptionError(
            f"{', '.join(other)} of the model are not what the earlier fit found beside its "
            "weights: copy posterior.params in first, by "
            "model.load_state_dict(posterior.params, strict=False)"
        )


class ContinuedModel(nn.Module):
    """A Pyro model whose latent sites have one joint Gaussian prior; see :func:`continued`.

    No ``PyroModule``, so that the model's sites keep their names. In words (`models.describe`) it
    is the model with a new prior.

    Args:
        model: The Pyro model.
        sites: Its latent sites.
        gaussian: Their joint prior.
    """

    loc: Tensor
    scale: Tensor | None
    scale_tril: Tensor | None
    inverses: Tensor | None

    def __init__(self, model: Model, sites: tuple[Site, ...], gaussian: Gaussian) -> None:
        super().__init__()
        self.model = module_of(model)  # its parameters and buffers are this module's too
        self.handled = (model,)  # with its handlers; a module in a tuple is not registered again
        self.sites, tril = sites, gaussian.scale_tril
        for name, value in gaussian._asdict().items():
            self.register_buffer(name, value)
        # products with inverses can be captured with any batch size, triangular solves cannot
        self.register_buffer("inverses", None if tril is None else _inverses(tril, sites))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with the prior of its latent sites replaced.

        Raises:
            SiteError: If its sites are not those of the posterior.
        """
        replaced = _Replaced(self)
        with replaced:
            value = self.handled[0](*args, **kwargs)
        replaced.require_all()
        return value


def _inverses(scale_tril: Tensor, sites: tuple[Site, ...]) -> Tensor:
    """Inverses of the diagonal blocks of a factor ``[P, P]``, a block a site, zero elsewhere."""
    inverses = torch.zeros_like(scale_tril)
    for site in sites:
        part = slice(site.start, site.stop)
        eye = torch.eye(site.stop - site.start, dtype=scale_tril.dtype, device=scale_tril.device)
        inverses[part, part] = torch.linalg.solve_triangular(
            scale_tril[part, part], eye, upper=False
        )
    return inverses


class _Replaced(Messenger):
    """Give each latent site its distribution given those before it."""

    def __init__(self, prior: ContinuedModel) -> None:
        super().__init__()
        self.prior = prior
        self.errors: list[Tensor] = []  # errors e of the sites so far

    def _pyro_sample(self, msg: Any) -> None:
        if not _is_latent(msg):
            return
        place, sites = len(self.errors), self.prior.sites
        site = sites[place] if place < len(sites) else None
        shape = msg["fn"].shape()
        if site is None or site.name != msg["name"] or site.shape != shape:
            expected = "no more" if site is None else f"{site.name!r} {tuple(site.shape)}"
            raise SiteError(
                f"the model samples {msg['name']!r} {tuple(shape)} where the earlier posterior has "
                f"{expected}: continue the same model, or take priors.FromPosterior by pattern"
            )
        if msg["fn"].batch_shape:
            raise SiteError(
                f"the site {site.name!r} lies in a plate: make its entries one event, by "
                "expand([...]).to_event(...) in place of the plate"
            )
        msg["fn"] = self._given_those_before(site)

    def _pyro_post_sample(self, msg: Any) -> None:
        if _is_latent(msg):
            is_joint = self.prior.scale is None  # independent entries need no errors
            value = msg["value"]
            self.errors.append(msg["fn"].error(value) if is_joint else value.new_zeros(0))

    def _given_those_before(self, site: Site) -> Distribution:
        prior, part = self.prior, slice(site.start, site.stop)
        if prior.scale is not None:
            return site_gaussian(site, prior.loc[part], prior.scale[part])
        assert prior.scale_tril is not None
        assert prior.inverses is not None
        loc = prior.loc[part]
        if self.errors:
            loc = loc + prior.scale_tril[part, : site.start] @ torch.cat(self.errors)
        return SiteGaussian(site, loc, prior.scale_tril[part, part], prior.inverses[part, part])

    def require_all(self) -> None:
        """Check that every site of the posterior was sampled.

        Raises:
            SiteError: If one was not.
        """
        if missing := [site.name for site in self.prior.sites[len(self.errors) :]]:
            raise SiteError(
                f"the model does not sample {', '.join(missing)}, which the earlier posterior has: "
                "continue the same model"
            )


def _is_latent(msg: Any) -> bool:
    is_own = msg["infer"].get("is_auxiliary") or msg["infer"].get("_deterministic")
    is_subsample = type(msg["fn"]).__name__ == "_Subsample"
    return not (msg["is_observed"] or is_subsample or msg["name"] == "y" or is_own)
