"""Values of an observed site that are left out of the likelihood."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.program.enumerated import joint_of
from pyro_bnn.program.left_out import LeaveOut
from pyro_bnn.program.terms import Batch

Y = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
LEFT_OUT = torch.rand(3, 8, generator=torch.Generator().manual_seed(1)) < 0.4


def model(y: Tensor, size: int | None = None) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 8, subsample_size=size, dim=-1) as rows:
        local = pyro.sample("local", dist.Normal(loc, 1.0))
        with pyro.plate("repeats", 3, dim=-2):
            pyro.sample("y", dist.Normal(local, 0.5), obs=y[:, rows])
        pyro.sample("x", dist.Normal(local, 1.0), obs=y[0, rows])


def test_the_log_joint_loses_the_terms_that_are_left_out_and_no_other() -> None:
    whole, part = joint_of(model, (Y,)), joint_of(LeaveOut("y", LEFT_OUT)(model), (Y,))
    z = torch.randn(5, 9, generator=torch.Generator().manual_seed(2))
    terms = dist.Normal(z[:, None, 1:], 0.5).log_prob(Y)  # [5, 3, 8]
    assert_close(whole.log_joint(z) - part.log_joint(z), (terms * LEFT_OUT).sum((1, 2)))
    assert_close(part.log_likelihoods(z)["y"], terms * ~LEFT_OUT)


def test_a_batch_of_the_rows_of_a_plate_leaves_out_its_own() -> None:
    whole = joint_of(LeaveOut("y", LEFT_OUT)(model), (Y,))
    part = joint_of(LeaveOut("y", LEFT_OUT)(model), (Y, 3))
    z = torch.randn(9, generator=torch.Generator().manual_seed(2))
    of_all = whole.log_likelihoods(z)
    assert_close(part.log_likelihoods(z), of_all)
    for rows in (torch.tensor([6, 0, 3]), torch.tensor([1, 2, 7])):
        some = part.log_likelihoods(z, part.arguments(Batch(rows, rows)))
        assert_close(some, {"y": of_all["y"][:, rows], "x": of_all["x"][rows]})
