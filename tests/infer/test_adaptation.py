"""The mass matrix is exact for Gaussians, and the windows fill the warm-up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyro_bnn.infer.adaptation import GradientMassMatrix, adaptation_windows

SD = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)


def test_mass_matrix_of_a_gaussian_is_exact_from_any_draws() -> None:
    """The gradient is z / sd^2, so Var z / Var grad = sd^4 whatever the draws are."""
    matrix: Any = GradientMassMatrix()
    matrix.configure({("z",): (3,)}, options={"dtype": torch.float64})
    torch.manual_seed(0)
    for _ in range(3):
        z = torch.randn(3, dtype=torch.float64)
        matrix.update({"z": z}, {"z": z / SD**2})
    matrix.end_adaptation()
    torch.testing.assert_close(matrix.inverse_mass_matrix[("z",)], SD**2, rtol=1e-10, atol=0)
    for draw in ([1.0, 1.0, 1.0], [3.0, 1.0, 1.0]):  # the window before is forgotten
        z = torch.tensor(draw, dtype=torch.float64)
        matrix.update({"z": z}, {"z": 4 * z})
    matrix.end_adaptation()
    expected = torch.tensor([0.25, SD[1] ** 2, SD[2] ** 2], dtype=torch.float64)  # two stood still
    torch.testing.assert_close(matrix.inverse_mass_matrix[("z",)], expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("warmup_steps", [0, 1, 2, 5, 19, 20, 21, 50, 90, 150, 300, 1_000])
def test_windows_cover_warmup_and_hold_draws(warmup_steps: int) -> None:
    windows = adaptation_windows(warmup_steps)
    steps = [step for w in windows for step in range(w.start, w.end + 1)]
    assert steps == list(range(warmup_steps))
    assert all(w.end > w.start for w in windows[1:-1])  # two draws at least: they have a variance
