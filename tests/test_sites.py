"""Maps onto triangles and positive definite matrices, whose Jacobians torch does not have."""

from __future__ import annotations

import pytest
import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.sites import bijection

SIZE = 3
ROWS, COLUMNS = torch.tril_indices(SIZE, SIZE)


@pytest.mark.parametrize(
    "support",
    [
        constraints.lower_cholesky,
        constraints.softplus_lower_cholesky,
        constraints.positive_definite,
        constraints.independent(constraints.positive_definite, 1),
    ],
)
def test_a_map_onto_matrices_is_one_to_one_with_its_jacobian(
    support: constraints.Constraint,
) -> None:
    """The Jacobian is autograd's, over the entries on and below the diagonal."""
    transform = bijection(support)
    u = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrices = transform(u)
    assert transform.inverse_shape((2, SIZE, SIZE)) == u.shape
    assert transform.forward_shape(u.shape) == matrices.shape == (2, SIZE, SIZE)
    assert bool(support.check(matrices).all())
    assert_close(transform.inv(matrices), u)

    def entries(row: Tensor) -> Tensor:
        found: Tensor = transform(row)[ROWS, COLUMNS]
        return found

    jacobians = torch.stack([torch.func.jacrev(entries)(row) for row in u])
    assert_close(transform.log_abs_det_jacobian(u, matrices), jacobians.slogdet().logabsdet)
    assert_close(torch.func.vmap(transform)(u), matrices)


def test_no_map_is_made_up_for_other_supports() -> None:
    for support in (constraints.positive_semidefinite, constraints.boolean):
        with pytest.raises(NotImplementedError, match="no numbers map one to one"):
            bijection(support)
