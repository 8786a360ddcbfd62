"""The folder of a run: what is saved goes on, another run is told apart, Ctrl-C keeps what is."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import os
import pickle
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch

from pyro_bnn import likelihoods, models, priors
from pyro_bnn.data import Dataset
from pyro_bnn.errors import (
    DataError,
    DivergenceError,
    FileFormatError,
    OptionError,
    OutputError,
    SiteError,
)
from pyro_bnn.files import atomic
from pyro_bnn.infer.checkpoints import checkpoint as module
from pyro_bnn.infer.checkpoints.checkpoint import NAME, OLD_NAME, Checkpoint, State, users_code
from pyro_bnn.infer.checkpoints.identity import Identity
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.program import Program
from tests.saves import document_of, write_document

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)
Y = X.sum(1)
CPU = torch.device("cpu")
DOCUMENT = tuple(module.SCHEMA)


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    """Ctrl-C as in a foreground process, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Walk:
    """A random walk of ten steps."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.steps = 0
        self.place = torch.zeros(3)

    def advance(self) -> None:
        self.place = self.place + torch.randn(3, generator=self.generator)
        self.steps += 1

    def state(self) -> State:
        return {
            "place": f"step {self.steps} of 10",
            "compile_path": "eager",
            "steps": self.steps,
            "at": self.place,
            "generator": self.generator.get_state(),
        }

    def restore(self, state: State) -> None:
        self.steps, self.place = state["steps"], state["at"] + 0
        self.generator.set_state(state["generator"])


@functools.cache
def identity(
    prior: float = 1.0, hidden: int = 3, last: float = 1.0, dtype: torch.dtype = torch.float64
) -> Identity:
    torch.manual_seed(0)
    model = models.MLP(
        2,
        hidden=(hidden,),
        prior=priors.Normal(scale=prior),
        likelihood=likelihoods.Normal(0.3),
    ).to(dtype)
    y = torch.cat([Y[:-1], torch.tensor([last], dtype=torch.float64)])
    return Identity(
        Program(model, X, y),
        Dataset(X, y),
        engine="Walk",
        options={"num_steps": 10, "scale": 0.5},
        seed=0,
        trains_params=True,
    )


def changed(**entries: Any) -> Identity:
    """An identity with other entries."""
    found = copy.copy(identity())
    found.plain = {**found.plain, **entries}
    return found


def opened(
    folder: Path | str | None,
    *,
    resume: bool = False,
    identify: Callable[[], Identity] = identity,
    **keywords: Any,
) -> Checkpoint:
    options: dict[str, Any] = {"device": CPU, "start": time.perf_counter(), **keywords}
    return Checkpoint(folder, resume=resume, identify=identify, **options)


def walked(
    folder: Path | None,
    *,
    resume: bool = False,
    press_after: int | None = None,
    fail_after: int | None = None,
) -> Walk:
    checkpoint, walk = opened(folder, resume=resume), Walk()
    checkpoint.restore(walk)
    with checkpoint.watch():
        while walk.steps < 10:
            walk.advance()
            if walk.steps == press_after:
                signal.raise_signal(signal.SIGINT)
            checkpoint.step(walk)
            if walk.steps == fail_after:
                raise RuntimeError("the run fails")
        checkpoint.finish(walk)
    return walk


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Going on


def test_every_stop_goes_on_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.0)
    whole = walked(None)
    folder = tmp_path / "new" / "folder"
    for steps in range(1, 10):
        with pytest.raises(RuntimeError, match="the run fails"):
            walked(folder, resume=steps > 1, fail_after=steps)
        assert document_of(folder)["place"] == f"step {steps} of 10"
        assert list(contents(folder)) == [NAME]
    assert torch.equal(walked(folder, resume=True).place, whole.place)


def test_a_run_that_is_complete_does_no_step(tmp_path: Path) -> None:
    whole = walked(tmp_path)
    checkpoint, walk = opened(tmp_path, resume=True), Walk()
    assert checkpoint.is_complete
    assert checkpoint.restore(walk)
    assert torch.equal(walk.place, whole.place)
    before = contents(tmp_path)
    checkpoint.finish(walk)
    assert contents(tmp_path) == before


def test_the_first_step_is_saved_and_then_every_half_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    checkpoint, walk = opened(tmp_path), Walk()
    saved = []
    for seconds in (0.0, 1.0, 28.9, 0.2, 29.8, 0.3):
        now += seconds
        walk.advance()
        checkpoint.step(walk)
        saved.append(document_of(tmp_path)["place"].split()[1])
    assert saved == ["1", "1", "1", "4", "4", "6"]


def test_without_a_folder_nothing_is_saved_nor_identified() -> None:
    def identify() -> Identity:
        raise AssertionError("is not needed")

    checkpoint, walk = opened(None, identify=identify), Walk()
    assert not checkpoint.restore(walk)
    assert (checkpoint.folder, checkpoint.compile_path) == (None, None)
    checkpoint.step(walk)
    checkpoint.finish(walk)
    with pytest.raises(OptionError, match=r"resume=True needs checkpoint='folder': where the run"):
        opened(None, resume=True)


def test_an_empty_folder_is_a_start_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = opened(tmp_path / "none", resume=True)
    assert not checkpoint.restore(Walk())
    assert caplog.messages == [
        f"{tmp_path / 'none'} holds no checkpoint: the run starts at the beginning"
    ]
    assert not (tmp_path / "none").exists()


def test_a_checkpoint_is_not_overwritten_by_a_new_run(tmp_path: Path) -> None:
    walked(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(OptionError, match="holds a checkpoint already: pass resume=True to go on"):
        walked(tmp_path)
    assert contents(tmp_path) == before


def test_the_wall_time_adds_up(tmp_path: Path) -> None:
    checkpoint, walk = opened(tmp_path, start=time.perf_counter() - 100), Walk()
    checkpoint.step(walk)
    again = opened(tmp_path, resume=True, start=time.perf_counter() - 50)
    again.restore(walk)
    assert 150 < again.wall_time < 160
    again.finish(walk)
    assert opened(tmp_path, resume=True, start=0.0).wall_time == pytest.approx(155, abs=5)


def test_the_file_says_how_the_run_was_made(tmp_path: Path) -> None:
    walked(tmp_path)
    document = document_of(tmp_path)
    assert document["surroundings"]["torch"] == torch.__version__
    assert document["surroundings"]["threads"] == torch.get_num_threads()
    assert document["options"] == {"num_steps": 10, "scale": 0.5}
    assert (document["engine"], document["seed"]) == ("Walk", 0)
    assert next(iter(document["sites"].items())) == ("layers.0.weight", [3, 2])
    assert document["compile_path"] == "eager"


# Another run


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    walked(tmp_path)

    def resumed_as(error: type[Exception], match: str, other: Identity) -> None:
        with pytest.raises(error, match=match):
            opened(tmp_path, resume=True, identify=lambda: other)

    resumed_as(
        OptionError, "engine='Walk' where this run has 'Run': run it wi", changed(engine="Run")
    )
    resumed_as(OptionError, "of a run with seed=0 where this run has 1", changed(seed=1))
    options = {"num_steps": 20, "scale": 0.5, "rank": 2}
    resumed_as(
        OptionError,
        "num_steps=10 where this run has 20, rank=None where this run has 2",
        changed(options=options),
    )
    resumed_as(
        SiteError, r"of a model with layers.0.weight \(3, 2\), .* but this", identity(hidden=4)
    )
    resumed_as(
        SiteError, "in float64, but this model has .* in float32", identity(dtype=torch.float32)
    )
    resumed_as(DataError, r"on other data \(6 rows, [0-9a-f]{12}\) than this", identity(last=1.5))
    resumed_as(
        SiteError, r"log p\(z\) = -\S+ where this model has -\S+; build it w", identity(prior=2.0)
    )
    resumed_as(
        SiteError,
        r"log p\(y \| z\) = \S+ where this",
        changed(fingerprint=[*identity().plain["fingerprint"][:5], *([9.0] * 4)]),  # of four sites
    )
    resumed_as(SiteError, "of which there are 9 where this model has 1", changed(fingerprint=[0.0]))


def test_densities_that_differ_by_more_than_a_thousandth_are_of_another_model(
    tmp_path: Path,
) -> None:
    """The gradient of log p(z) under a prior of scale s goes as 1 / s^2, in every site."""
    opened(tmp_path).step(Walk())
    assert opened(tmp_path, resume=True, identify=lambda: identity(prior=1.0003)).restore(Walk())
    with pytest.raises(SiteError, match="is of another model: its sites are the same, but not its"):
        opened(tmp_path, resume=True, identify=lambda: identity(prior=1.0008))


def test_another_prior_of_one_site_among_many_is_refused(tmp_path: Path) -> None:
    """Log p(z) is a sum over 2,402 numbers: that of one differs by less than its tolerance."""

    def identify(scale: float) -> Identity:
        noise = likelihoods.Normal(dist.HalfCauchy(scale))
        model = models.MLP(2, hidden=(600,), likelihood=noise).double()
        return changed(
            sites={site.name: list(site.shape) for site in Program(model, X, Y).sites},
            fingerprint=Identity(
                Program(model, X, Y),
                Dataset(X, Y),
                engine="Walk",
                options={},
                seed=0,
                trains_params=True,
            ).plain["fingerprint"],
        )

    one, two = identify(1.0), identify(2.0)
    assert one.plain["fingerprint"][0] == pytest.approx(two.plain["fingerprint"][0], rel=1e-3)
    opened(tmp_path, identify=lambda: one).step(Walk())
    with pytest.raises(SiteError, match=r"same weights, the norm of its gradient by .*scale = "):
        opened(tmp_path, resume=True, identify=lambda: two)


def test_a_line_says_that_densities_differ_in_their_last_digits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path).step(Walk())
    first, *others = identity().plain["fingerprint"]
    near = changed(fingerprint=[first * (1 + 1e-9), *others])
    opened(tmp_path, resume=True, identify=lambda: near).restore(Walk())
    assert caplog.messages == [
        "resumed at step 0 of 10, but not bit for bit: the model's densities in their last digits"
    ]


def test_values_that_a_run_trains_are_no_part_of_what_it_is() -> None:
    def fingerprint(weight: float, *, trains_params: bool) -> list[float]:
        net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        model = models.bayesian(net, {"2.*": priors.Normal()}, likelihoods.Normal(0.3)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(weight)
        found: list[float] = Identity(
            Program(model, X, Y),
            Dataset(X, Y),
            engine="Walk",
            options={},
            seed=0,
            trains_params=trains_params,
        ).plain["fingerprint"]
        return found

    assert fingerprint(0.1, trains_params=True) == fingerprint(0.2, trains_params=True)
    assert fingerprint(0.1, trains_params=False) != fingerprint(0.2, trains_params=False)


def test_rows_of_a_loader_are_compared_in_any_order() -> None:
    program = Program(models.MLP(2, hidden=(3,)).double(), X, Y)

    def checksum(dataset: Dataset, *, in_order: bool) -> str:
        found: str = Identity(
            program,
            dataset,
            engine="Walk",
            options={},
            seed=0,
            trains_params=True,
            in_order=in_order,
        ).plain["data"]
        return found

    turned, mixed = Dataset(X.flip(0), Y.flip(0)), Dataset(X, Y.flip(0))
    rows = Dataset(X, Y)
    assert checksum(rows, in_order=False) == checksum(turned, in_order=False)
    assert checksum(rows, in_order=False) != checksum(mixed, in_order=False)
    assert checksum(rows, in_order=True) != checksum(turned, in_order=True)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, None),
        ({"threads": 64}, "threads 64 then, 1 now$"),
        ({"torch": "2.0", "numpy": "1.0"}, "torch 2.0 then, .* now; numpy 1.0 then, "),
    ],
)
def test_a_line_says_why_a_run_does_not_go_on_bit_for_bit(
    change: dict[str, Any], line: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuntimeError):
        walked(tmp_path, fail_after=4)
    document = document_of(tmp_path)
    document["surroundings"] |= change
    write_document(document, tmp_path)
    opened(tmp_path, resume=True).restore(Walk())
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    if line is None:
        assert warnings == []
        return
    (warning,) = warnings
    assert re.match(f"resumed at step 1 of 10, but not bit for bit: {line}", warning)


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_run_of_a_gpu_does_not_go_on_without_one_nor_the_other_way_round(
    is_complete: bool, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError):
        walked(tmp_path, fail_after=4)
    document = {**document_of(tmp_path), "is_complete": is_complete}
    with pytest.raises(OptionError, match="device cpu, whose random numbers do not go on on cuda"):
        opened(tmp_path, resume=True, device=torch.device("cuda"))
    document["surroundings"]["device"] = "NVIDIA H100"
    write_document(document, tmp_path)
    with pytest.raises(OptionError, match=r"device NVIDIA H100, whose random .* go on on cpu"):
        opened(tmp_path, resume=True)
    opened(tmp_path, resume=True, device=torch.device("cuda"))


def test_a_line_names_another_compile_path_and_an_order_of_ones_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RuntimeError):
        walked(tmp_path, fail_after=4)
    document = document_of(tmp_path)
    write_document({**document, "compile_path": "compiled"}, tmp_path)
    checkpoint = opened(tmp_path, resume=True, own_order=True)
    assert checkpoint.compile_path == "compiled"
    checkpoint.restore(Walk())
    assert caplog.messages == [
        "resumed at step 1 of 10, but not bit for bit: compile path compiled then, eager now; the "
        "order of a DataLoader is its own"
    ]


def test_a_line_says_that_the_order_of_the_run_that_was_saved_was_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path, own_order=True).step(Walk())
    opened(tmp_path, resume=True).restore(Walk())
    assert caplog.messages == [
        "resumed at step 0 of 10, but not bit for bit: the order of a DataLoader is its own"
    ]


def test_a_complete_run_has_the_threads_that_it_had(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    assert checkpoint.threads == torch.get_num_threads()
    checkpoint.step(Walk())
    document = document_of(tmp_path)
    document["surroundings"]["threads"] = 64
    write_document(document, tmp_path)
    assert opened(tmp_path, resume=True).threads == torch.get_num_threads()
    write_document({**document, "is_complete": True}, tmp_path)
    assert opened(tmp_path, resume=True).threads == 64


def test_an_error_of_the_users_model_stays_what_it_is(tmp_path: Path) -> None:
    class Other(Walk):
        def restore(self, state: State) -> None:
            with users_code():
                raise ValueError("of the model")

    opened(tmp_path).step(Walk())
    with pytest.raises(ValueError, match=r"^of the model$") as raised:
        opened(tmp_path, resume=True).restore(Other())
    assert not isinstance(raised.value, FileFormatError)


# Two runs of one folder


needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="no locks of files")


@needs_locks
def test_two_runs_do_not_save_to_one_folder(tmp_path: Path) -> None:
    """Until the first has ended, in whatever way; a finished one is read by any number."""
    first, second = opened(tmp_path / "new"), opened(tmp_path / "new")
    message = f"another run is saving to {tmp_path / 'new'}: wait for its end"
    with first.watch():
        first.step(Walk())
        with pytest.raises(OptionError, match=message), second.watch():
            raise AssertionError("a step")
        third = opened(tmp_path / "new", resume=True)
        with pytest.raises(OptionError, match=message), third.watch():
            raise AssertionError("a step")
    with pytest.raises(OptionError, match=r"another run has saved to .* since"), second.watch():
        raise AssertionError("a step")
    with pytest.raises(RuntimeError, match="the run fails"):
        walked(tmp_path / "new", resume=True, fail_after=4)
    walked(tmp_path / "new", resume=True)
    readers = [opened(tmp_path / "new", resume=True) for _ in range(2)]
    with readers[0].watch(), readers[1].watch():
        assert all(reader.restore(Walk()) for reader in readers)
    assert list(contents(tmp_path / "new")) == [NAME]


@needs_locks
def test_the_lock_of_a_process_that_was_killed_means_nothing(tmp_path: Path) -> None:
    identity()  # made once, before the processes
    hears, rings = os.pipe()
    child = os.fork()
    if not child:
        try:
            with opened(tmp_path).watch():
                os.write(rings, b"!")
                time.sleep(60)
        finally:
            os._exit(1)
    os.close(rings)
    assert os.read(hears, 1) == b"!"
    os.close(hears)
    with pytest.raises(OptionError, match="another run is saving to"), opened(tmp_path).watch():
        raise AssertionError("a step")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert list(tmp_path.iterdir()) == []
    walked(tmp_path)


def test_files_of_the_user_stay(tmp_path: Path) -> None:
    theirs = dict.fromkeys(
        ("state-1.safetensors", ".state-2.safetensors.0f.tmp", "checkpoint.old"), b"theirs"
    )
    for name, content in theirs.items():
        (tmp_path / name).write_bytes(content)
    walked(tmp_path)
    assert {name: contents(tmp_path)[name] for name in theirs} == theirs


# Ctrl-C


def test_ctrl_c_before_an_error_of_a_run_stops_what_would_go_on(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)

    def failing() -> None:
        with checkpoint.watch():
            signal.raise_signal(signal.SIGINT)
            raise DivergenceError("the loss is not finite")

    with pytest.raises(KeyboardInterrupt, match="the loss is not finite") as raised:
        failing()
    assert isinstance(raised.value.__cause__, DivergenceError)


def test_ctrl_c_saves_the_step_and_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted) as stopped:
        walked(tmp_path, press_after=6)
    assert str(stopped.value) == (
        f"stopped at step 6 of 10; run(..., checkpoint='{tmp_path}', resume=True) goes on"
    )
    assert document_of(tmp_path)["place"] == "step 6 of 10"
    assert torch.equal(walked(tmp_path, resume=True).place, walked(None).place)
    with pytest.raises(Interrupted, match=r"step 6 of 10; pass checkpoint='folder'"):
        walked(None, press_after=6)


def test_ctrl_c_after_the_last_step_stops_too_and_nothing_is_lost(tmp_path: Path) -> None:
    checkpoint, walk = opened(tmp_path), Walk()

    def pressed_late() -> None:
        with checkpoint.watch():
            walk.advance()
            checkpoint.finish(walk)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"stopped after the last step; run\(.*gives its poster"):
        pressed_late()
    assert opened(tmp_path, resume=True).is_complete


# Disks


def test_a_folder_that_cannot_be_made_is_told_at_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(
            OutputError, match=r"cannot write the checkpoint .*file.*: .* as it was"
        ):
            walked(folder)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    checkpoint, walk = opened(tmp_path), Walk()
    walk.advance()
    checkpoint.step(walk)
    before = contents(tmp_path)
    walk.advance()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[NAME]) // 2, hard))
    try:
        with pytest.raises(
            OutputError, match=r"cannot write the checkpoint .*: File too large; wha"
        ):
            checkpoint.finish(walk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path) == before
    checkpoint.finish(walk)  # there is room again
    assert opened(tmp_path, resume=True).is_complete


def test_a_disk_that_fails_after_the_move_leaves_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, walk = opened(tmp_path), Walk()
    walk.advance()
    checkpoint.step(walk)
    walk.advance()

    def failing(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_sync_folder", failing)
        with pytest.raises(OutputError, match="Input/output error"):
            checkpoint.finish(walk)
    again = Walk()
    assert opened(tmp_path, resume=True).restore(again)
    assert torch.equal(again.place, walk.place)


def killed_at(call: int, folder: Path) -> bool:
    """Go on in a child that is killed at this call to the system; whether it came to that."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status)
    calls = iter(range(1, call + 1))

    def count(event: str, args: object) -> None:
        if event in ("open", "os.rename", "os.remove", "os.scandir") and next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        checkpoint, walk = opened(folder, resume=True), Walk()
        checkpoint.restore(walk)
        walk.advance()
        with checkpoint.watch():
            sys.addaudithook(count)
            checkpoint.step(walk)
    finally:
        os._exit(0)


@pytest.mark.slow("about a second")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a child process is killed")
def test_a_kill_at_any_moment_of_a_save_leaves_the_old_or_the_new_state(tmp_path: Path) -> None:
    identity()  # made once, before the processes
    with pytest.raises(RuntimeError):
        walked(tmp_path, fail_after=1)
    reached = [1]
    for call in range(1, 50):
        was_killed = killed_at(call, tmp_path)
        walk = Walk()
        opened(tmp_path, resume=True).restore(walk)
        reached.append(walk.steps)
        if not was_killed:
            break
    gains = [after - before for before, after in itertools.pairwise(reached)]
    assert gains == sorted(gains)  # the old state up to the move, then the new
    assert set(gains) == {0, 1}
    assert len(gains) >= 4
    assert list(contents(tmp_path)) == [NAME]  # what the killed left is gone


# Damaged and hostile files


def test_a_state_of_another_kind_is_refused(tmp_path: Path) -> None:
    class Other(Walk):
        def state(self) -> State:
            state = super().state()
            del state["generator"]
            return state

    checkpoint = opened(tmp_path)
    checkpoint.step(Other())
    with pytest.raises(
        FileFormatError, match=r"checkpoint.saf.* is no state of this run: KeyError\('g"
    ):
        opened(tmp_path, resume=True).restore(Walk())


def test_a_state_that_needs_pickle_is_refused(tmp_path: Path) -> None:
    class Other(Walk):
        def state(self) -> State:
            return {**super().state(), "groups": [{"key": identity()}]}

    with pytest.raises(
        OptionError, match=r"a checkpoint cannot hold .*'state/groups/0/key' is a Identity, neither"
    ):
        opened(tmp_path).step(Other())
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is no checkpoint of this package"),
        ({"version": 9}, "has format version 9, this package reads 5: resume the run with the ve"),
        ({"seed": "0"}, "is damaged: TypeError: seed is a str, not a int"),
        ({"more": 1}, "is damaged: ValueError: it has 'more', which is not known"),
        ({"state": []}, "is damaged: TypeError: state is a list, not a dict"),
        ({"options": {"a": 1}}, "num_steps=None where this run has 10"),
        ({"sites": [1]}, "is damaged: TypeError: sites is a list, not a dict"),
        ({"sites": {"w": ["1"]}}, "is damaged: TypeError: w is a str, not a int"),
        ({"fingerprint": ["1", *range(8)]}, "is damaged: TypeError: fingerprint is a str"),
    ],
)
def test_a_file_of_other_values_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    walked(tmp_path)
    write_document(document_of(tmp_path) | change, tmp_path)
    with pytest.raises((FileFormatError, OptionError), match=message):
        opened(tmp_path, resume=True)


@pytest.mark.parametrize("name", DOCUMENT)
def test_a_file_that_lacks_something_is_refused(name: str, tmp_path: Path) -> None:
    walked(tmp_path)
    document = document_of(tmp_path)
    del document[name]
    write_document(document, tmp_path)
    with pytest.raises(FileFormatError, match=r"is damaged: KeyError|is no check|version None"):
        opened(tmp_path, resume=True)


def test_no_byte_of_a_file_changes_unnoticed(tmp_path: Path) -> None:
    walked(tmp_path)
    path = tmp_path / NAME
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(FileFormatError):
            opened(tmp_path, resume=True)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / NAME
    for make in (Path.mkdir, os.mkfifo):
        make(path)
        with pytest.raises(FileFormatError, match="is not a file"):
            opened(tmp_path, resume=True)
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_file_larger_than_it_says_is_refused_unread(tmp_path: Path) -> None:
    walked(tmp_path)
    os.truncate(tmp_path / NAME, 1 << 40)  # a hole of a terabyte
    start = time.perf_counter()
    with pytest.raises(FileFormatError, match="cannot be read as tensors"):
        opened(tmp_path, resume=True)
    assert time.perf_counter() - start < 1


class Evil:
    """Makes a folder where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("run_by_a_pickle",)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"evil": Evil()}, "evil")
    for content in (
        Path("evil").read_bytes(),
        pickle.dumps(Evil()),
        b"\x80\x02",
        b"",
        b"no tensors",
    ):
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(FileFormatError, match=r"is (of torch.save|truncated, or is not)"):
            opened(tmp_path, resume=True)
    assert not Path("run_by_a_pickle").exists()


def test_a_checkpoint_of_an_earlier_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / OLD_NAME).write_text("{}")
    with pytest.raises(FileFormatError, match=r"of an earlier version .*: resume the run with the"):
        opened(tmp_path, resume=True)
    with pytest.raises(OptionError, match="holds a checkpoint already"):
        opened(tmp_path)


def test_the_disk_has_a_file_before_it_is_moved_and_its_name_before_the_call_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    sync, move = os.fsync, os.replace

    def synced(handle: int) -> None:
        held = os.fstat(handle)
        is_folder = os.path.samestat(held, tmp_path.stat())
        calls.append("sync the folder" if is_folder else held.st_size)
        sync(handle)

    def moved(source: Path, target: Path) -> None:
        calls.append(f"move to {target.name}")
        move(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", moved)
    opened(tmp_path).step(Walk())
    last = ["sync the folder"] if hasattr(os, "O_DIRECTORY") else []
    assert calls == [(tmp_path / NAME).stat().st_size, f"move to {NAME}", *last]


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("of somebody else")
    folder = tmp_path / "run"
    folder.mkdir()
    checkpoint = opened(folder)
    (folder / NAME).symlink_to(victim)
    checkpoint.step(Walk())
    assert victim.read_text() == "of somebody else"
    assert not (folder / NAME).is_symlink()
