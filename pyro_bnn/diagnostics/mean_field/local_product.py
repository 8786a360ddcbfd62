r"""The matrix that a piecewise-linear net multiplies its inputs by near one of them.

.. math:: f(x') = P x' + c \ \text{near}\ x, \qquad P = \frac{\partial f}{\partial x}
    = W_L D_{L-1}(x) W_{L-1} \cdots D_1(x) W_1

with D diagonal matrices of the slopes of the activations at x: 1 or the leak. It is random through
the weights, also through D. Entries of the product of three or more layers may all be correlated,
even though weights are independent.

References:
    Farquhar, Smith & Gal, "Liberty or Depth: Deep Bayesian Neural Nets Do Not Need Complex Weight
    Posterior Approximations", NeurIPS 2020, arXiv:2002.03704, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pyro_bnn.data.arrays import ArrayLike, to_tensor
from pyro_bnn.diagnostics.mean_field.product_matrix import choose, require_memory
from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.memory import GIB, WORKING_SET
from pyro_bnn.models import MLP
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.program.batched import batched_or_looped

PROBES = 101  # points where an activation's second derivative is looked at
FARTHEST = 6.0  # the outermost of them
CURVED = 1e-8  # a second derivative above it is not rounding


class LocalProducts(NamedTuple):
    """Draws of the linear map that a net is near an input.

    Attributes:
        matrix: P of each draw ``[S, O, I]``.
        offset: c of each draw ``[S, O]``, so that f(x) = P x + c with all columns of P.
    """

    matrix: Float[Tensor, "S O I"]
    offset: Float[Tensor, "S O"]


def local_products(
    posterior: Posterior,
    x: ArrayLike,
    num_samples: int | None = None,
    seed: int = 0,
    *,
    rows: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
    memory: int = GIB,
) -> LocalProducts:
    """Draws of the local product matrix at an input, and of its offset.

    They are Jacobians by automatic differentiation, of many draws at once where the net can be
    batched. That a net is piecewise linear is for you to know, unless it is an ``MLP`` or a
    ``DeepLinear``: of one that is not, P and c are its tangent at x. On a kink, slopes are those of
    PyTorch's derivative.

    Args:
        posterior: Any fit.
        x: One input ``[I]`` in the model's units.
        num_samples: Number of draws S, those of the posterior's other methods for this seed.
        seed: Of the draws.
        rows: Rows of P (network outputs) to look at; default all.
        columns: Columns of it (inputs) to look at; default all. The offset is of all columns.
        memory: Bound in bytes on P.

    Raises:
        OptionError: If the activation of an ``MLP`` is not piecewise linear, the bound is
            exceeded, or a row or column does not exist.
        ShapeError: If x is not one input.
    """
    program = posterior.program
    point = to_tensor(x, "x").to(program.initial)
    known = program.example_x.shape[1:]
    if point.ndim != 1 or point.shape != known:
        raise ShapeError(
            f"x is one input of shape {list(known)}, and has shape {list(point.shape)}: pass x[0] "
            "for the first row of x"
        )
    _require_piecewise_linear(posterior.model)
    count = posterior.count(num_samples)
    kept = choose(rows, program.num_function_outputs, "rows")
    chosen = choose(columns, len(point), "columns")
    require_memory(count * len(kept) * len(chosen) * point.itemsize, memory)

    def tangent(z: Tensor) -> tuple[Tensor, Tensor]:
        def function(row: Tensor) -> tuple[Tensor, Tensor]:
            f = program.function(z, row[None], posterior.params)[0]
            return f, f

        matrix, f = torch.func.jacrev(function, has_aux=True)(point)  # [O, I]
        return matrix[kept][:, chosen], (f - matrix @ point)[kept]

    at_once = max(1, WORKING_SET // (2 * program.initial.nbytes))
    with torch.no_grad():
        parts = [
            batched_or_looped(tangent, z, as_batch=program.is_batched)[0]
            for z in posterior.in_blocks(count, seed).chunks(at_once)
        ]
    return LocalProducts(*map(torch.cat, zip(*parts, strict=True)))


def _require_piecewise_linear(model: object) -> None:
    """Refuse an ``MLP`` whose activation is curved somewhere.

    Raises:
        OptionError: If it is.
    """
    if type(model) is not MLP:  # a subclass may be another network
        return
    activation = model.activation
    if isinstance(activation, nn.Module) and any(True for _ in activation.parameters()):
        return  # whose values are the posterior's, not the module's
    with torch.enable_grad():
        a = torch.linspace(-FARTHEST, FARTHEST, PROBES, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(activation(a).sum(), a, create_graph=True)
        if not slope.requires_grad:  # it does not depend on a
            return
        (curvature,) = torch.autograd.grad(slope.sum(), a, materialize_grads=True)
    if bool(curvature.abs().max() > CURVED):
        name = getattr(activation, "__name__", type(activation).__name__)
        raise OptionError(
            f"{name} is not piecewise linear, so that the net has no local product matrix: use "
            '"relu", "leaky_relu", torch.nn.LeakyReLU(slope) or "identity"'
        )
