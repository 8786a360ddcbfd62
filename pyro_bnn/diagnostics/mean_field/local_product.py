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
from pyro_bnn.models import MLP, DeepLinear
from pyro_bnn.models.network import Activation
from pyro_bnn.posterior.posterior import Posterior

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

    Those of an ``MLP`` or ``DeepLinear`` with one site for each weight follow from the activation
    pattern, many draws at once; those of other nets are Jacobians by automatic differentiation,
    one draw at a time. That those are piecewise linear is for you to know: of a net that is not,
    P and c are its tangent at x. On a kink, slopes are those of PyTorch's derivative.

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
    known = program.example.x.shape[1:]
    if point.ndim != 1 or point.shape != known:
        raise ShapeError(
            f"x is one input of shape {list(known)}, and has shape {list(point.shape)}: pass x[0] "
            "for the first row of x"
        )
    count = posterior.count(num_samples)
    kept = choose(rows, program.num_function_outputs, "rows")
    chosen = choose(columns, len(point), "columns")
    require_memory(count * len(kept) * len(chosen) * point.itemsize, memory)
    blocks = posterior.in_blocks(count, seed).chunks(
        max(1, WORKING_SET // (2 * program.initial.nbytes))
    )
    matrices, offsets = [], []
    for z in blocks:
        with torch.no_grad():
            found = _at_once(posterior, z, point)
        matrix, offset = found or _one_by_one(posterior, z, point)
        matrices.append(matrix[:, kept][..., chosen])
        offsets.append(offset[:, kept])
    return LocalProducts(torch.cat(matrices), torch.cat(offsets))


def _at_once(posterior: Posterior, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Matrices and offsets by the activation pattern; None of nets whose layers are not known."""
    model = posterior.model
    if not isinstance(model, MLP | DeepLinear) or type(model) not in (MLP, DeepLinear):
        return None  # a subclass may be another network
    activation = model.activation if isinstance(model, MLP) else _identity
    if isinstance(activation, nn.Module) and any(True for _ in activation.parameters()):
        return None  # whose values are the posterior's, not the module's
    _require_piecewise_linear(activation)
    sites = {s.name: s for s in posterior.program.sites if s.name.startswith("layers.")}
    names = [f"layers.{i}" for i in range(len(model.layers))]
    weights = [f"{name}.weight" for name in names]
    biases = [f"{name}.bias" for name in names]
    if sites.keys() not in ({*weights, *biases}, {*weights}):  # of a DeepLinear without biases
        return None
    return _linear_map(
        [sites[name].value(z) for name in weights],
        [sites[name].value(z) for name in biases if name in sites],
        activation,
        x,
    )


def _linear_map(
    weights: list[Tensor], biases: list[Tensor], activation: Activation, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Matrix ``[s, O, I]`` and offset ``[s, O]`` of weights ``[s, units, units before]``."""
    pattern = []
    h = x.expand(len(weights[0]), -1)  # [s, I]
    for i, weight in enumerate(weights[:-1]):
        a = (weight @ h[..., None])[..., 0]
        h, slope, rest = _activate(activation, a + biases[i] if biases else a)
        pattern.append((slope, rest))
    matrix = weights[-1]
    offset = biases[-1] if biases else matrix.new_zeros(matrix.shape[:-1])
    for i in reversed(range(len(pattern))):  # from the outputs, which are few
        slope, rest = pattern[i]
        offset = offset + (matrix @ rest[..., None])[..., 0]
        matrix = matrix * slope[:, None]  # [s, O, units]
        if biases:
            offset = offset + (matrix @ biases[i][..., None])[..., 0]
        matrix = matrix @ weights[i]
    return matrix, offset


def _activate(activation: Activation, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The activation's value, slope, and value less slope times a: not zero of a hardtanh."""
    with torch.enable_grad():
        a = a.detach().requires_grad_()
        h = activation(a)
        (slope,) = torch.autograd.grad(h.sum(), a)
    a, h = a.detach(), h.detach()
    return h, slope, h - slope * a


def _identity(a: Tensor) -> Tensor:
    return a


def _require_piecewise_linear(activation: Activation) -> None:
    """Refuse an activation that is curved somewhere.

    Raises:
        OptionError: If it is.
    """
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


def _one_by_one(posterior: Posterior, z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Jacobians ``[s, O, I]`` and what they leave of f ``[s, O]``."""
    matrices, offsets = [], []
    for draw in z:

        def function(row: Tensor, draw: Tensor = draw) -> tuple[Tensor, Tensor]:
            f = posterior.program.function(draw, row[None], posterior.params)[0]
            return f, f

        matrix, f = torch.func.jacrev(function, has_aux=True)(x)
        matrices.append(matrix.detach())
        offsets.append((f - matrix @ x).detach())
    return torch.stack(matrices), torch.stack(offsets)
