"""I + C^T C against numpy, in double precision."""

import numpy as np
import pytest
import torch

from pyro_bnn.guides.parts.capacitance import BLOCK, TALL, _Gram, capacitance_tril


def matrix(num_rows: int, num_columns: int) -> torch.Tensor:
    return torch.randn(num_rows, num_columns, generator=torch.Generator().manual_seed(0))


def inner(tril: torch.Tensor) -> np.ndarray:
    own: np.ndarray = (tril.double() @ tril.double().mT).numpy()
    return own


@pytest.mark.parametrize("num_rows", [7, TALL - 1, TALL, TALL + 3 * BLOCK + 5])
@pytest.mark.parametrize("by_column", [False, True])
def test_is_the_factor(num_rows: int, by_column: bool) -> None:
    C = matrix(num_rows, 4).double()
    C = C.mT.contiguous().mT if by_column else C
    dense = C.numpy()
    expected = np.eye(4) + dense.T @ dense
    found = inner(capacitance_tril(C))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * num_rows)


@pytest.mark.parametrize("by_column", [False, True])
def test_sums_of_a_tall_matrix_are_as_exact_as_those_of_a_block(by_column: bool) -> None:
    C = matrix(4 * TALL + 5, 10)
    C = C.mT.contiguous().mT if by_column else C
    dense = C.double().numpy()
    found = inner(capacitance_tril(C))
    # the roundings of a thousand terms, and of the factor; one sum over all rows has eight times
    assert np.abs(found - np.eye(10) - dense.T @ dense).max() < 2**-24 * 8 * len(C)


def test_gradient() -> None:
    C = matrix(9, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(_Gram.apply, (C,))


def test_gradient_of_a_tall_matrix() -> None:
    C = matrix(TALL + 5, 3).mT.contiguous().mT.requires_grad_()
    (found,) = torch.autograd.grad(capacitance_tril(C).diagonal().log().sum(), C)
    dense = C.detach().double().numpy()  # of half of log det(I + C^T C): C (I + C^T C)^-1
    expected = dense @ np.linalg.inv(np.eye(3) + dense.T @ dense)
    np.testing.assert_allclose(found.double().numpy(), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("num_rows", [11, TALL + 7])
def test_batched_over_guides(num_rows: int) -> None:
    one = matrix(num_rows, 3).mT.contiguous()
    Cs = torch.stack([one, 2 * one]).mT
    together = torch.func.vmap(capacitance_tril)(Cs)
    torch.testing.assert_close(together[1], capacitance_tril(Cs[1]))
