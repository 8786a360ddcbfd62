"""One run of SVI on two processes of ``torch.distributed`` (gloo), forked from this one."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import NUTS, SVI, guides, likelihoods, models
from pyro_bnn.errors import BNNError, OptionError
from pyro_bnn.infer.batches import Minibatches
from pyro_bnn.infer.checkpoints.checkpoint import read_checkpoint
from pyro_bnn.infer.parallel import DataParallel
from pyro_bnn.infer.parallel.data_parallel import SharedTraining, Shares
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.program.terms import Batch

X = torch.linspace(-1, 1, 13, dtype=torch.float64).unsqueeze(-1)
Y = X[:, 0].sin()
SECONDS = 90.0  # until the others know that one has ended


def net() -> models.MLP:
    torch.manual_seed(0)
    return models.MLP(1, hidden=(3,), likelihood=likelihoods.Normal(0.3)).double()


def svi(**options: Any) -> SVI:
    drawn = {"batch_size": 5, "estimator": "weight_sampling"}  # as processes draw
    return SVI(guides.AutoNormal, compile=False, **{**drawn, **options})


# the gradient itself is what one step of descent moves by
ONE_STEP = {"num_steps": 1, "optimizer": torch.optim.SGD, "learning_rate": 1.0, "loc_warmup": 0}


def values(engine: Any, **options: Any) -> list[torch.Tensor]:
    posterior = engine.run(net(), (X, Y), progress=False, **options)
    return [p.detach().clone() for p in posterior.guide.parameters()]


def fits(rank: int, folder: Path) -> None:
    found = {str(size): values(DataParallel(svi(**ONE_STEP, batch_size=size))) for size in SIZES}
    found["50"] = values(DataParallel(svi(num_steps=50)))
    torch.save(found, folder / f"{rank}.pt")


def killed(rank: int, folder: Path) -> None:
    go = Training.go

    def counted(self: Any) -> None:
        if rank == 1 and self.step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        go(self)

    Training.go = counted  # type: ignore[method-assign]
    with pytest.raises(BNNError, match=r"another process .* at step 20 .* resume=True to go on"):
        values(DataParallel(svi(num_steps=50)), checkpoint=folder / "saved")
    (folder / "told").touch()


def go_on(rank: int, folder: Path) -> None:
    found = values(DataParallel(svi(num_steps=50)), checkpoint=folder / "saved", resume=True)
    torch.save({"50": found}, folder / f"{rank}.pt")


SIZES = (5, None, 1)  # shares of 2 and 3 rows, of 6 and 7, of none and 1


def _joined(of: Callable[[int, Path], None], rank: int, folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / name}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    of(rank, folder)
    os._exit(0)


def two(of: Callable[[int, Path], None], folder: Path, name: str) -> list[int | None]:
    """How two processes end."""
    context = mp.get_context("fork")
    both = [context.Process(target=_joined, args=(of, r, folder, name)) for r in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(300)
    return [process.exitcode for process in both]


@pytest.mark.slow("processes")
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    assert two(fits, tmp_path, "group") == [0, 0]
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, mine in one.items():
        assert all(torch.equal(a, b) for a, b in zip(mine, other[name], strict=True)), name
    for size in SIZES:  # the gradient of the whole batch, however unequal the shares are
        expected = values(svi(**ONE_STEP, batch_size=size))
        torch.testing.assert_close(one[str(size)], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one["50"], values(svi(num_steps=50)), rtol=1e-9, atol=1e-9)


@pytest.mark.slow("processes")
def test_a_process_that_is_killed_ends_the_other_and_the_checkpoint_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_bnn.infer.checkpoints.checkpoint.SECONDS", 0.0)
    start = time.monotonic()
    assert two(killed, tmp_path, "first") == [0, -signal.SIGKILL]
    assert (tmp_path / "told").exists()
    assert time.monotonic() - start < SECONDS
    saved = read_checkpoint(tmp_path / "saved")
    assert saved is not None
    assert saved["place"] == "step 20 of 50"
    assert two(go_on, tmp_path, "second") == [0, 0]
    one, other = (torch.load(tmp_path / f"{rank}.pt")["50"] for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    torch.testing.assert_close(one, values(svi(num_steps=50)), rtol=1e-9, atol=1e-9)


def test_alone_it_is_svi() -> None:
    shared = values(DataParallel(svi(num_steps=20)))
    torch.testing.assert_close(shared, values(svi(num_steps=20)), rtol=1e-12, atol=1e-12)


def test_shares_hold_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "pyro_bnn.infer.parallel.data_parallel"
    monkeypatch.setattr(f"{place}._count", lambda: 4)
    for size in (13, 5, 3):
        whole = next(Minibatches(Batch(X, Y), size, seed=0))
        rows, weights = [], []
        for rank in range(4):
            monkeypatch.setattr(f"{place}._rank", partial(int, rank))
            shares = Shares(Minibatches(Batch(X, Y), size, seed=0))
            batch = next(shares)
            weights.append(shares.weight)
            if shares.weight:
                assert len(batch.x) == round(shares.weight * size)
                rows.append(batch.x)
        assert torch.equal(torch.cat(rows), whole.x)
        assert sum(weights) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataParallel(NUTS()), "for pyro_bnn.SVI alone, not NUTS"),  # type: ignore[arg-type]
        (lambda: DataParallel(svi(per_example_draws=True)), "has noise of each row"),
        (
            lambda: values(DataParallel(svi(estimator="flipout"))),
            'estimator="flipout" has noise of each row',
        ),
        (
            lambda: DataParallel(svi(batch_size=None)).run(
                net(), DataLoader(TensorDataset(X, Y), batch_size=5), progress=False
            ),
            "pass the data set itself",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_processes_that_were_not_joined_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match=r"know of each other: call .*init_process_group"):
        values(DataParallel(svi()))


def test_different_parameters_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = SharedTraining.__new__(SharedTraining)
    run.parameters, run.step = [torch.ones(3)], 100

    def reduce(sums: torch.Tensor, how: Any) -> None:
        if how == dist.ReduceOp.MAX:
            sums += 1e-12

    monkeypatch.setattr(dist, "all_reduce", reduce)
    with pytest.raises(BNNError, match="processes have different parameters after step 100"):
        run._check_alike()
