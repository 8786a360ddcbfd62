"""The gated recurrent unit against torch's own kernel, and batched over members."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import bayesian
from pyro_bnn.layers import GRUCell
from pyro_bnn.program import Program


class Recurrent(nn.Module):
    """The last state of a sequence ``[N, T, I]``, made one number."""

    def __init__(self, cell: nn.GRUCell) -> None:
        super().__init__()
        self.cell, self.out = cell, nn.Linear(cell.hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor | None = None
        for step in x.unbind(1):
            h = self.cell(step, h)
        f: Tensor = self.out(h)
        return f


def sequences() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 4, 2, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
def test_a_step_is_that_of_torch(bias: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.GRUCell(2, 3, bias=bias).double()
    ours = GRUCell(2, 3, bias=bias).double()
    ours.load_state_dict(theirs.state_dict())
    x, h = sequences()[:, 0], torch.randn(5, 3, dtype=torch.float64)
    assert_close(ours(x, h), theirs(x, h), rtol=1e-12, atol=1e-12)
    assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)
    assert_close(ours(x[0], h[0]), theirs(x, h)[0], rtol=1e-12, atol=1e-12)


def test_members_in_one_batch_are_a_loop_over_functional_calls() -> None:
    torch.manual_seed(0)
    net = Recurrent(GRUCell(2, 3)).double()
    x = sequences()
    program = Program(bayesian(net), x, x[:, 0, 0])
    z = torch.randn(3, program.num_latents, dtype=torch.float64)
    twin = Recurrent(nn.GRUCell(2, 3)).double()
    for row, f in zip(z, program.function(z, x), strict=True):
        values = {k: v for k, v in program.constrain(row).items() if "likelihood" not in k}
        expected = torch.func.functional_call(twin, values, (x,))
        assert_close(f, expected, rtol=1e-11, atol=1e-11)
