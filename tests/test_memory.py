"""What a draw costs, and how many are computed at once under a bound."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_bnn import guides, likelihoods, memory, models
from pyro_bnn.errors import OptionError
from pyro_bnn.memory import GIB, CountBytes, beyond, bytes_per_draw
from pyro_bnn.posterior import DrawsPosterior, GuidePosterior, Provenance
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.map_draws import Chunks, Cost
from pyro_bnn.program import Program

KIB, MIB = 1 << 10, 1 << 20


def product(z: Tensor, x: Tensor) -> Tensor:
    """f [S, N] by one multiplication: 4 S N bytes in float32."""
    return z @ x.T


def measured(fn: Callable[..., object], *args: object) -> int:
    """Bytes that one call allocates, by the counter."""
    with torch.no_grad(), CountBytes() as counter:
        fn(*args)
    return int(counter.total)


@pytest.mark.parametrize("num_rows", [1, 10, 16, 50, 64, 1000])
@pytest.mark.parametrize("num_stored", [1, 500])
def test_bytes_of_one_draw_are_those_of_its_results(num_rows: int, num_stored: int) -> None:
    z, x = torch.randn(num_stored, 3), torch.randn(num_rows, 3)
    assert bytes_per_draw(product, z, (x,)) == (4 * num_rows, 4)


def test_views_of_what_is_read_cost_nothing() -> None:
    z, x, w = torch.randn(500, 4), torch.randn(80, 4), torch.randn(9, 9)
    assert bytes_per_draw(lambda z, x: (z[:, :2].reshape(-1, 2, 1), x.T, w.T), z, (x,)) == (1, 1)


def test_what_does_not_grow_with_the_rows_is_counted_once() -> None:
    z, x = torch.randn(2, 4), torch.randn(1000, 4)
    counted = bytes_per_draw(lambda z, x: (z.repeat(1, 100), z @ x.T), z, (x,))
    assert counted == (4 * (400 + 1000), 4 * (400 + 1))


@pytest.mark.parametrize(
    ("left", "working_set", "sizes"),
    [
        (1 << 20, 1 << 20, [10]),
        (4 * 32 * 3 + 100, 1 << 20, [3, 3, 3, 1]),
        (1 << 20, 4 * 32 * 4, [4, 4, 2]),
    ],
)
def test_as_many_draws_are_computed_as_fit(
    left: int, working_set: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(32, 3)
    program = Program(models.MLP(3), x, x[:, 0])
    run = Chunks(program).over(
        "f", lambda z, rows, p: (product(z, rows[0]),), Draws.of(torch.randn(10, 3)), (x,), {}
    )
    run = dataclasses.replace(run, cost=Cost(4, 4), fixed=50)  # a draw without z
    monkeypatch.setattr(memory, "WORKING_SET", working_set)
    assert [len(f) for (f,) in run.parts(left + 50)] == sizes


@pytest.mark.parametrize("num_rows", [40, 500])
def test_predictions_of_a_network_stay_under_the_bound(num_rows: int) -> None:
    model = models.MLP(4, hidden=(20, 20), likelihood=likelihoods.Categorical(3))
    x = torch.randn(num_rows, 4)
    program = Program(model, x, torch.arange(num_rows) % 3)
    z = program.initial.expand(64, -1).contiguous()
    for fn in (program.function, program.predictive_tensors):
        fn(z[:1], x)
        per_draw, _ = bytes_per_draw(fn, z, (x,))
        assert measured(fn, z, x) <= 64 * per_draw


def test_what_is_stored_of_a_draw_is_counted_once() -> None:
    """f and the mean of y are one tensor, and the noise sd is one number a draw, not N."""
    model = models.MLP(4, hidden=(5,))
    x = torch.randn(30, 4)
    program = Program(model, x, x[:, 0])
    draws = Draws.of(program.initial.expand(8, -1).contiguous())
    run = Chunks(program).over(
        "y", lambda z, rows, p: program.predictive_tensors(z, rows[0], p), draws, (x,), {}
    )
    assert run.stored == 4 * (30 + 1)
    assert sum(v.untyped_storage().nbytes() for v in set(run.together(GIB))) == 8 * run.stored


class Squeezed(PyroModule):
    """A linear model whose output ``[N, 1]`` is the mean of y ``[N]``."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(x.new_zeros(4, 1), 1).to_event(2))
        f = pyro.deterministic("f", x @ w)
        scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 1))
        with pyro.plate("data", f.shape[-2]):
            pyro.sample("y", dist.Normal(f.squeeze(-1), scale), obs=y)
        return f


MODELS: dict[str, Callable[[], PyroModule]] = {
    "heteroscedastic": lambda: models.MLP(4, likelihood=likelihoods.HeteroscedasticNormal()),
    "two columns": lambda: models.MLP(4, 2),
    "Bernoulli": lambda: models.MLP(4, likelihood=likelihoods.Bernoulli()),
    "Categorical": lambda: models.MLP(4, likelihood=likelihoods.Categorical(3)),
    "squeezed": Squeezed,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_rows", [1, 2, 30])
def test_what_is_counted_of_a_draw_is_what_is_stored(name: str, num_rows: int) -> None:
    x = torch.linspace(-1, 1, 120).sin().reshape(30, 4)
    y = x[:, :2] if name == "two columns" else (x[:, 0] > 0).to(x.dtype)
    program, x = Program(MODELS[name](), x, y), x[:num_rows]
    draws = Draws.of(program.prior_draws(8, x[:1]))
    run = Chunks(program).over(
        "y", lambda z, rows, p: program.predictive_tensors(z, rows[0], p), draws, (x,), {}
    )
    storages = {value.data_ptr(): value.untyped_storage().nbytes() for value in run.together(GIB)}
    assert sum(storages.values()) == 8 * run.stored


def test_too_many_draws_are_refused_with_the_number_that_fits() -> None:
    per_draw = 4 * 32
    bound = per_draw + 60 * per_draw  # one draw at work beside the results of 60
    assert beyond(100, 32, per_draw, bound, 100 * per_draw) == (
        "100 draws at 32 rows need about 12.6 KiB, more than the bound of 7.6 KiB: "
        "num_samples=60 fits, or raise memory="
    )
    assert beyond(60, 32, per_draw, bound, 60 * per_draw) is None
    assert "num_samples=60 fits" in str(beyond(61, 32, per_draw, bound, 61 * per_draw))


def test_where_no_draw_fits_fewer_rows_are_proposed() -> None:
    assert beyond(5, 4 * MIB, 16 * MIB, 10 * MIB, 0) == (
        "5 draws at 4194304 rows need about 16.00 MiB, more than the bound of 10.00 MiB: "
        "pass fewer rows at a time, or raise memory="
    )
    assert "2.00 GiB, more than the bound of 1.00 GiB" in str(beyond(5, 4 * MIB, 2 * GIB, GIB, 0))


def test_where_no_number_of_rows_fits_the_bound_that_does_is_named() -> None:
    """A single row, or a cost that rows have no part in: fewer of them would not help."""
    for num_rows, least in ((1, 17 * MIB), (40, 16 * MIB)):
        message = str(beyond(1, num_rows, 17 * MIB, 8 * MIB, 0, least=least))
        assert message.endswith(f": pass memory={17 * MIB} or more")
    assert beyond(1, 1, 17 * MIB, 17 * MIB, 0) is None
    assert "pass fewer rows at a time" in str(beyond(1, 40, 17 * MIB, 8 * MIB, 0, least=8 * MIB))


@pytest.mark.parametrize(
    ("num_chains", "hint"),
    [(1, "num_samples=7 fits"), (3, "num_samples=6 fits"), (8, "pass fewer rows at a time")],
)
def test_the_number_that_fits_is_one_of_whole_chains(num_chains: int, hint: str) -> None:
    assert hint in str(beyond(24, 32, 100, 100 + 7 * 50, 24 * 50, num_chains=num_chains))


@pytest.mark.slow("a second or more")
def test_the_number_that_is_named_is_not_refused_where_draws_are_of_chains() -> None:
    x = torch.linspace(-1, 1, 60).reshape(20, 3)
    program = Program(models.MLP(3, hidden=(4,)), x, x[:, 0])
    z = program.prior_draws(160, x[:1]).reshape(4, 40, -1)
    posterior = DrawsPosterior(program, z, Provenance("prior", "none"))
    named = set()
    for bound in range(4_000, 16_000, 500):
        with pytest.raises(OptionError, match="or raise memory=") as refused:
            posterior.function_draws(x, 160, memory=bound)
        for number in re.findall(r"num_samples=(\d+)", str(refused.value)):
            f = posterior.function_draws(x, int(number), memory=bound)
            assert f.shape == (int(number), 20, 1)
            named.add(len(f))
    assert len(named) > 10


@pytest.mark.parametrize("bound", [1e6, True, 0, -1, "1 GiB", None])
def test_a_bound_that_is_no_number_of_bytes_is_refused(bound: Any) -> None:
    message = re.escape(f"memory is a positive integer, a number of bytes, not {bound!r}")
    x = torch.ones(4, 3)
    program = Program(models.MLP(3, hidden=(4,)), x, x[:, 0])
    z = program.prior_draws(8, x[:1]).unsqueeze(0)
    posterior = DrawsPosterior(program, z, Provenance("prior", "none"))
    for call in (posterior.predict, posterior.function_draws):
        with pytest.raises(OptionError, match=message):
            call(x, memory=bound)


def test_a_full_covariance_is_drawn_beside_one_matrix_of_its_size() -> None:
    x = torch.linspace(-1, 1, 50).reshape(10, 5)
    model = models.MLP(5, hidden=(290,))
    program = Program(model, x, x[:, 0])
    guide = guides.AutoMultivariateNormal(model)
    guide.setup(x[:1])
    posterior = GuidePosterior(program, guide, Provenance("AutoMultivariateNormal", "SVI"))
    num_latents = program.num_latents
    matrix = 4 * num_latents**2
    assert matrix > 15 * MIB
    made = measured(lambda: next(posterior.in_blocks(1, 0).blocks()))
    assert matrix <= made < 2 * matrix
    assert posterior.predict(x[:1], 1, memory=2 * matrix).draws.shape == (1, 1, 1)
    for num_rows in (1, 10):
        seed = num_rows  # draws of earlier predictions are kept, and need no matrix
        with pytest.raises(OptionError, match=r": pass memory=\d+ or more$") as refused:
            posterior.predict(x[:num_rows], 1, seed, memory=matrix)
        fits = int(re.findall(r"memory=(\d+)", str(refused.value))[0])
        assert posterior.predict(x[:num_rows], 1, seed, memory=fits).mean.shape == (num_rows, 1)


PROCESS = """
import gc, torch
from pyro_bnn import guides, models
from pyro_bnn.predictive import map_draws
from pyro_bnn.posterior import GuidePosterior, Provenance
from pyro_bnn.program import Program

def kib(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key))

torch.set_num_threads(1)

def posterior(hidden):
    torch.manual_seed(0)
    model = models.MLP(5, hidden=hidden)
    program = Program(model, x, y)
    guide = guides.AutoNormal(model)
    guide.setup(x[:1])
    return GuidePosterior(program, guide, Provenance("AutoNormal", "SVI"))

x, y = torch.randn(200, 5), torch.randn(200)
map_draws.CAPTURE_FROM = 0
posterior((3,)).predict(x[:5], 8).log_prob(y[:5])  # whatever the first call loads
fit = posterior((250, 250))
print(fit.program.num_latents * 4 * 800 >> 10)
gc.collect()
for call in (
    lambda: fit.predict(x[:100], 800, memory=BOUND).mean,
    lambda: fit.log_likelihood((x[:100], y[:100]), 800, memory=BOUND),
    lambda: fit.predict(x, 800, memory=BOUND).log_prob(y),
):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = kib("VmRSS")
    call()
    print(kib("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
@pytest.mark.slow("a process of its own")
def test_a_process_stays_under_the_bound() -> None:
    bound = 64 * MIB
    script = PROCESS.replace("BOUND", str(bound))
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    weights, *peaks = (int(number) * KIB for number in out)
    assert weights > 3 * bound  # all draws together do not fit
    assert len(peaks) == 3
    assert max(peaks) <= bound


def test_tensors_of_more_numbers_than_a_bound_are_not_made() -> None:
    with memory.AtMost(100, "{} numbers"):
        assert torch.ones(4, 25).sum() == 100
        with pytest.raises(ValueError, match=r"^1000000000000 numbers$"):
            torch.empty(10**6, 10**6)
        with pytest.raises(ValueError, match=r"^500 numbers$"):
            torch.ones(100).expand(5, 100).clone()
