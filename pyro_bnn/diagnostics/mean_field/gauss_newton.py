r"""How far the curvatures that natural-gradient engines take are from the Hessian.

With :math:`\ell_i(z) = -\log p(y_i \mid x_i, z)`, the tensors :math:`u_i(z)` that the distribution
of a row is made of, such as logits, and their Jacobian :math:`J_i`, the sums over all rows

.. math::
    H = \sum_i \nabla^2 \ell_i, \qquad G = \sum_i J_i^\top F_i J_i, \qquad
    E = \sum_i \nabla \ell_i \, \nabla \ell_i^\top

are the Hessian, the generalised Gauss-Newton matrix and the empirical Fisher information. The
Hessian is G and a part of the curvature of the network, :math:`H = G + \sum_{ik} \partial_{u_{ik}}
\ell_i \, \nabla^2 u_{ik}`, for a Gaussian of fixed scale, for classes and for the logarithm of a
rate: it vanishes where u is linear in z, and where the gradients by u do, as at rows that are
fitted. E has the expectation G where y is drawn from the model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.errors import ShapeError
from pyro_bnn.infer.curvature.rows import Curvature, RowTermsOf
from pyro_bnn.infer.inputs import Data, as_dataset
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import Batch

NAMES: tuple[Curvature, ...] = ("hessian", "ggn", "gradients")


class CurvatureMatrices(NamedTuple):
    """Curvatures of minus the log likelihood at points z, without the prior's.

    Attributes:
        hessian: H ``[n, P, P]``.
        gauss_newton: G ``[n, P, P]``.
        empirical_fisher: E ``[n, P, P]``.
    """

    hessian: Float[Tensor, "n P P"]
    gauss_newton: Float[Tensor, "n P P"]
    empirical_fisher: Float[Tensor, "n P P"]

    @property
    def gauss_newton_error(self) -> Float[Tensor, " n"]:
        """``||G - H|| / ||H||`` in the Frobenius norm."""
        return _distance(self.gauss_newton, self.hessian)

    @property
    def empirical_fisher_error(self) -> Float[Tensor, " n"]:
        """``||E - H|| / ||H||`` in the Frobenius norm."""
        return _distance(self.empirical_fisher, self.hessian)


def curvature_matrices(model: Model, data: Data, z: Float[Tensor, "n P"]) -> CurvatureMatrices:
    """Hessian, Gauss-Newton matrix and empirical Fisher information at points.

    Takes P backward passes a point and the memory of P^2 numbers: for small networks.

    Args:
        model: Pyro model ``model(x, y=None)``.
        data: The rows, which are summed over.
        z: Points, flat and unconstrained, as of ``posterior.unconstrained(n)``.

    Raises:
        ModelError: If the model breaks the contract, or cannot be batched over rows.
        OptionError: If the Fisher information of the likelihood is not known.
        ShapeError: If z has another shape.

    References:
        Schraudolph, "Fast Curvature Matrix-Vector Products for Second-Order Gradient Descent",
        Neural Computation 2002. Kunstner, Balles & Hennig, "Limitations of the Empirical Fisher
        Approximation", NeurIPS 2019, arXiv:1905.12558.

    Example:
        >>> from pyro_bnn import likelihoods, models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> model = models.LinearRegression(1, likelihood=likelihoods.Normal(0.5))
        >>> found = curvature_matrices(model, (x, x[:, 0]), torch.zeros(1, 2))
        >>> round(float(found.gauss_newton_error), 6)
        0.0
    """
    with isolated():
        rows = as_dataset(data)
        program = Program(model, rows.x, rows.y)
        if z.ndim != 2 or z.shape[1] != program.num_latents:
            raise ShapeError(
                f"z has the shape {list(z.shape)}: pass points [n, {program.num_latents}]"
            )
        batch = program.batch(rows.x, rows.y)
        points = z.detach().to(program.initial).split(1)
        hessian, gauss_newton, roots = (_at(points, program, name, batch) for name in NAMES)
    return CurvatureMatrices(hessian, gauss_newton, roots.mT @ roots)


def _at(points: Sequence[Tensor], program: Program, name: Curvature, batch: Batch) -> Tensor:
    """The curvature at each point: ``[n, P, P]``, or gradients of rows ``[n, N, P]``."""
    terms = RowTermsOf(program, name, batch, 1, is_full=True, is_captured=False)  # a few calls
    curvatures = [terms(point, batch).curvature for point in points]
    return torch.stack([curvature for curvature in curvatures if curvature is not None])


def _distance(found: Tensor, exact: Tensor) -> Tensor:
    error: Tensor = torch.linalg.matrix_norm(found - exact)
    size: Tensor = torch.linalg.matrix_norm(exact)
    return error / size
