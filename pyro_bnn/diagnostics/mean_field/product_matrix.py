r"""Moments of the product of a net's weight matrices, whose layers are independent Gaussians.

.. math:: M^{(l)} = W_l M^{(l-1)}, \qquad W_{ai} \sim \mathcal N(\mu_{ai}, \sigma_{ai}^2), \qquad
    \mathrm{Cov}(m_{ab}, m_{cd}) = \sum_{ij} \mu_{ai} \mu_{cj} \mathrm{Cov}(m'_{ib}, m'_{jd})
    + [a = c] \sum_i \sigma_{ai}^2 \, \mathrm{E}[m'_{ib} m'_{id}]

with m' the entries of :math:`M^{(l-1)}`. The recursion is exact, and so are its zeros: one layer
has a diagonal covariance; of two layers, entries that share neither row nor column are
uncorrelated; of three or more, all entries are correlated where means are not zero. At every depth
:math:`\mathrm{Cov}(m_{ab}, m_{cd}) = \mathrm{Cov}(m_{ad}, m_{cb})`, as of a matrix-variate normal,
which three layers are if the outer two are constant: not every covariance is within reach. (Local
products of piecewise-linear nets are free of it from three layers on.)

Where all means are zero, every covariance between two entries is zero at every depth: the first
term vanishes, and the second has :math:`\mathrm{E}[m'_{ib} m'_{id}] = 0` for b != d. Draws of a
prior, or of a guide that starts at zero, thus show nothing, though their entries are dependent;
look at trained nets.

References:
    Farquhar, Smith & Gal, "Liberty or Depth: Deep Bayesian Neural Nets Do Not Need Complex Weight
    Posterior Approximations", NeurIPS 2020, arXiv:2002.03704, propositions 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pyro_bnn.diagnostics.mean_field.matrix_moments import MatrixMoments
from pyro_bnn.errors import OptionError, ShapeError, SiteError
from pyro_bnn.guides import AutoKTiedNormal, AutoNormal
from pyro_bnn.memory import GIB, WORKING_SET
from pyro_bnn.models import MLP, DeepLinear
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.sites import Site

WeightMoments: TypeAlias = tuple[Tensor, Tensor]
"""Mean and standard deviation ``[O, I]`` of each weight of one layer."""

Layers: TypeAlias = Sequence[WeightMoments] | Posterior
"""Layers, that next to the inputs first; or the fit of an ``MLP`` or ``DeepLinear``."""

NUM_DRAWS = 10_000
MEAN_FIELD = (AutoNormal, AutoKTiedNormal)  # not their subclasses, some of which correlate


def product_moments(
    layers: Layers,
    *,
    rows: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
    memory: int = GIB,
) -> MatrixMoments:
    """Exact mean and covariance of the product of mean-field layers, in double precision.

    Args:
        layers: Mean and sd, >= 0, of each layer's weights, the first layer first; or a fit by
            ``AutoNormal``, of whose net only the weights count: no biases, no activations.
        rows: Rows of the product (outputs) to look at; default all.
        columns: Columns of it (inputs) to look at; default all.
        memory: Bound in bytes on the largest covariance, which in between is that of
            units x columns entries.

    Raises:
        OptionError: If the bound is exceeded, or a row or column does not exist.
        ShapeError: If the layers do not fit one another.
        SiteError: If the weights of a fit are not independent Gaussians.

    Example:
        >>> ones = torch.ones(2, 2)
        >>> found = product_moments([(ones, ones), (ones, ones)])
        >>> found.mean.tolist(), found.matrix[0].tolist()  # m_11 with m_11, m_12, m_21, m_22
        ([[2.0, 2.0], [2.0, 2.0]], [6.0, 2.0, 2.0, 0.0])
    """
    given = _checked(_mean_field(layers) if isinstance(layers, Posterior) else list(layers))
    moments = [(mean.detach().double(), sd.detach().double()) for mean, sd in given]
    kept = choose(rows, len(moments[-1][0]), "rows")
    moments[-1] = (moments[-1][0][kept], moments[-1][1][kept])
    chosen = choose(columns, moments[0][0].shape[1], "columns")
    mean, sd = moments[0][0][:, chosen], moments[0][1][:, chosen]
    most = max(len(weight) for weight, _ in moments) * len(chosen)
    require_memory(most**2 * mean.itemsize, memory)
    eyes = [torch.eye(size, dtype=mean.dtype, device=mean.device) for size in mean.shape]
    # Cov(w_ib, w_jd) = [i = j][b = d] sigma_ib^2, kept as [b, d, i, j]
    covariance = torch.einsum("ib,ij,bd->bdij", sd.square(), *eyes)
    for weight, sd in moments[1:]:
        second = covariance.diagonal(dim1=-2, dim2=-1) + torch.einsum("ib,id->bdi", mean, mean)
        covariance = weight @ covariance @ weight.mT
        covariance.diagonal(dim1=-2, dim2=-1).add_(second @ sd.square().mT)
        mean = weight @ mean
    covariance = covariance.permute(2, 0, 3, 1)
    return MatrixMoments(mean=mean, covariance=covariance, error=torch.zeros_like(covariance))


def product_draws(
    layers: Layers,
    num_samples: int = NUM_DRAWS,
    seed: int = 0,
    *,
    rows: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
    memory: int = GIB,
) -> Float[Tensor, "S O I"]:
    """Draws of the product of weight matrices; of a fit, whatever its guide or sampler.

    Args:
        layers: As in :func:`product_moments`; or any fit of an ``MLP`` or ``DeepLinear``.
        num_samples: Number of draws S.
        seed: Of the draws; of a fit those of its other methods.
        rows: Rows of the product (outputs) to look at; default all.
        columns: Columns of it (inputs) to look at; default all.
        memory: Bound in bytes on the result.

    Raises:
        OptionError: If the bound is exceeded, or a row or column does not exist.
        ShapeError: If the layers do not fit one another.
        SiteError: If the weights of a fit are not one site each.
    """
    if isinstance(layers, Posterior):
        shapes = [site.shape for site in weight_sites(layers)]
        itemsize = layers.program.initial.itemsize
        blocks = _fitted_weights(layers, num_samples, seed)
    else:
        moments = _checked(list(layers))
        shapes, itemsize = [mean.shape for mean, _ in moments], moments[0][0].itemsize
        blocks = _gaussian_weights(moments, num_samples, seed)
    kept = choose(rows, shapes[-1][0], "rows")
    chosen = choose(columns, shapes[0][1], "columns")
    require_memory(num_samples * len(kept) * len(chosen) * itemsize, memory)
    products = []
    for weights in blocks:
        weights[0] = weights[0][..., chosen]
        product = weights[-1][:, kept]
        for weight in reversed(weights[:-1]):  # from the outputs, which are few
            product = product @ weight  # [s, rows, units]
        products.append(product)
    return torch.cat(products)


def matrix_moments(draws: Float[Tensor, "S O I"], memory: int = GIB) -> MatrixMoments:
    """Mean and covariance of draws of a matrix, with standard errors of the covariances.

    Args:
        draws: Independent draws, as of :func:`product_draws` or ``local_products``.
        memory: Bound in bytes on the covariance.

    Raises:
        OptionError: If the bound is exceeded.
        ShapeError: If the draws are not at least two matrices.
    """
    if draws.ndim != 3 or len(draws) < 2:
        raise ShapeError(f"draws of a matrix are [S, O, I] with S > 1, not {list(draws.shape)}")
    num_draws, shape = len(draws), draws.shape[1:]
    require_memory(shape.numel() ** 2 * 8, memory)
    entries = draws.detach().double().flatten(1)
    mean = entries.mean(0)
    away = entries - mean
    covariance = away.mT @ away / (num_draws - 1)
    squares = away.square().mT @ away.square() / num_draws
    error = ((squares - covariance.square()).clamp(min=0) / num_draws).sqrt()
    return MatrixMoments(
        mean=mean.reshape(shape),
        covariance=covariance.reshape(*shape, *shape),
        error=error.reshape(*shape, *shape),
        num_draws=num_draws,
    )


def weight_sites(posterior: Posterior) -> list[Site]:
    """The sites of the weight matrices of an ``MLP`` or ``DeepLinear``, the first layer first.

    Raises:
        SiteError: If the model is another, or a weight is made of several sites.
    """
    sites = {site.name: site for site in posterior.program.sites}
    names = []
    if isinstance(model := posterior.model, MLP | DeepLinear):
        names = [f"layers.{i}.weight" for i in range(len(model.layers))]
    if not names or not sites.keys() >= set(names):
        raise SiteError(
            "a product of weight matrices needs an MLP or a DeepLinear whose weights are one site "
            f"each; the model has the sites {', '.join(sites)}"
        )
    return [sites[name] for name in names]


def choose(indices: Sequence[int] | None, size: int, what: str) -> Int[Tensor, " k"]:
    """The chosen indices below ``size``, all of them for None.

    Raises:
        OptionError: If there are none, or one is not within 0 and ``size - 1``.
    """
    chosen = list(range(size) if indices is None else indices)
    if not chosen or not all(0 <= i < size for i in chosen):
        raise OptionError(f"{what} are indices from 0 to {size - 1}, not {chosen!r}")
    return torch.tensor(chosen)


def require_memory(size: int, memory: int) -> None:
    """Refuse a result of ``size`` bytes that exceeds the bound.

    Raises:
        OptionError: If it does.
    """
    if size > memory:
        raise OptionError(
            f"the result takes {size / GIB:.3g} GiB, more than the bound of {memory / GIB:.3g} "
            "GiB: choose some rows and columns of the matrix, fewer draws, or a larger memory"
        )


def _mean_field(posterior: Posterior) -> list[WeightMoments]:
    sites = weight_sites(posterior)
    guide = posterior.guide if isinstance(posterior, GuidePosterior) else None
    independent = type(guide) in MEAN_FIELD and all(site.is_real for site in sites)
    marginals = guide.marginals() if guide is not None and independent else None
    if marginals is None:
        raise SiteError(
            f"the weights of {posterior.method} are not independent Gaussians, which exact moments "
            "need: fit AutoNormal, or take matrix_moments(product_draws(posterior))"
        )
    loc, scale = marginals
    return [(site.value(loc), site.value(scale)) for site in sites]


def _checked(layers: list[WeightMoments]) -> list[WeightMoments]:
    """The layers, if they fit one another."""
    shapes = [(list(mean.shape), list(sd.shape)) for mean, sd in layers]
    fits = all(len(mean) == 2 and mean == sd for mean, sd in shapes) and all(
        shapes[i][0][0] == shapes[i + 1][0][1] for i in range(len(shapes) - 1)
    )
    if not layers or not fits:
        raise ShapeError(
            "layers are pairs of mean and sd [O, I], the first layer first, with as many columns "
            f"as the layer before has rows; got {shapes}"
        )
    return layers


def _gaussian_weights(
    layers: list[WeightMoments], num_samples: int, seed: int
) -> Iterator[list[Tensor]]:
    """Weights ``[s, O, I]`` of all layers, a few draws at a time."""
    generator = torch.Generator().manual_seed(seed)
    size = max(1, WORKING_SET // sum(mean.nbytes for mean, _ in layers))
    for start in range(0, num_samples, size):
        count = min(size, num_samples - start)
        noise = [
            torch.randn((count, *mean.shape), generator=generator, dtype=mean.dtype)
            for mean, _ in layers
        ]
        yield [mean + sd * e.to(mean.device) for (mean, sd), e in zip(layers, noise, strict=True)]


def _fitted_weights(posterior: Posterior, num_samples: int, seed: int) -> Iterator[list[Tensor]]:
    sites = weight_sites(posterior)
    draws = posterior.in_blocks(posterior.count(num_samples), seed)
    for z in draws.chunks(max(1, WORKING_SET // posterior.program.initial.nbytes)):
        yield [site.value(z) for site in sites]
