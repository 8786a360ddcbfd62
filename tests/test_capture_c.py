"""Steps in C against torch's own operations: values, places, orders, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from scipy import special
from torch import Tensor
from torch.distributions import LKJCholesky, constraints, transform_to
from torch.nn import functional

from pyro_bnn.capture.c import library as c_library
from pyro_bnn.capture.c.library import CGraph, compile_c
from pyro_bnn.capture.captured import Captured
from pyro_bnn.capture.compilers import NotInCError, compiler_of
from pyro_bnn.errors import CaptureError

Outputs = Callable[..., Sequence[Tensor]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def check(fn: Outputs, *args: Tensor, exactly: bool = False) -> None:
    """What a function returns, in C and in torch."""
    tolerance = 0.0 if exactly else None  # torch's own
    expected = fn(*args)
    state = [torch.zeros_like(value).contiguous() for value in expected]
    for value in state:
        value.fill_(1)

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(fn(*tensors[len(state) :]))

    graph = compile_c(step, [*state, *args], num_state=len(state))
    graph(*state, *args)
    for number, (found, value) in enumerate(zip(state, expected, strict=True)):
        torch.testing.assert_close(
            found,
            value,
            equal_nan=True,
            msg=functools.partial("output {}: {}".format, number),
            rtol=tolerance,
            atol=tolerance,
        )


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype)


def layer(h: Tensor, w: Tensor, g: Tensor) -> list[Tensor]:
    """A ReLU layer with one output, forward and backward, and the gradient times its rows' sums."""
    a = (h + w).relu()  # [N, H]
    f = a.mm(w.unsqueeze(-1))  # [N, 1]
    back = torch.where(a > 0, g * w, 0.0)
    return [f, a.mT.mm(g), back, back.sum(0), back.sum(0, keepdim=True), f.mT.mm(back)]


@pytest.mark.parametrize(("rows", "units"), [(1, 3), (5, 1), (5, 3), (41, 19), (8, 16)])
def test_sums_in_the_loops_of_what_they_sum(rows: int, units: int) -> None:
    """Of whole numbers, whose sums have no rounding: processors add in other orders."""
    h, w, g = ((3 * normal(*shape)).round() for shape in ((rows, units), (units,), (rows, 1)))
    assert max(float(value.abs().max()) for value in layer(h, w, g)) < 1 << 24
    check(layer, h, w, g, exactly=True)


def test_a_layer_goes_through_its_rows_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    real = c_library._function

    def kept(text: str) -> Callable[..., int]:
        texts.append(text)
        return real(text)

    monkeypatch.setattr(c_library, "_function", kept)
    check(lambda *args: layer(*args)[:5], normal(43, 7), normal(7), normal(43, 1))
    loops = "for (i64 i0 = 0; i0 < 43; i0++) {\n"
    nests = [part for part in texts[0].split(loops)[1:] if "i1 < 7" in part.split("\n}\n}")[0]]
    assert len(nests) == 3  # forward, backward, and the copy of what is returned


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elementwise_operations(dtype: torch.dtype) -> None:
    special = [0.0, -0.0, 1.0, -1.0, 3.0, -30.0, 80.0, torch.inf, -torch.inf, torch.nan]
    x = torch.cat([torch.tensor(special, dtype=dtype), 3 * normal(27, dtype=dtype)])
    y = normal(37, dtype=dtype, seed=1)

    def operations(x: Tensor, y: Tensor, positive: Tensor) -> list[Tensor]:
        grad = y
        return [
            *(x + y, x - y, 2 - x, x * y, x / y, -x, x.abs(), x.square()),
            *(x.exp(), x.expm1(), positive.log(), positive.log2(), positive.log1p()),
            *(positive.sqrt(), positive.rsqrt(), y.reciprocal(), x.tanh(), x.sigmoid()),
            *(y.sin(), y.cos(), x.erf(), x.atan(), y.round(), y.floor(), x.relu()),
            *(
                y.tan(),
                y.sinh(),
                y.cosh(),
                y.asinh(),
                positive.tanh().atanh(),
                (1 + positive).acosh(),
            ),
            *(y.tanh().asin(), y.tanh().acos(), torch.atan2(y, positive), torch.lerp(x, y, 0.3)),
            *(x**2, x**3, positive**0.5, positive**-0.75, y**-1, y**-2, positive**y),
            *(x.clamp(max=0), x.clamp(-1, 1), x.clamp(min=0.5)),
            *(torch.maximum(x, y), torch.minimum(x, y), torch.logaddexp(x, y)),
            *(torch.hypot(x, y), torch.xlogy(y, positive), torch.xlogy(x, positive)),
            torch.xlogy(0 * y, x),  # 0, but of NaN
            *(
                torch.logaddexp(x, x),
                functional.softplus(x),
                functional.silu(y),
                functional.leaky_relu(x, 0.1),
            ),
            torch.ops.aten.threshold_backward(grad, x, 0),
            *(functional.hardshrink(x), functional.hardshrink(y, 1.0)),
            torch.ops.aten.tanh_backward(grad, y),
            torch.ops.aten.sigmoid_backward(grad, y),
            torch.where(x > y, x, 3.0),
            *(functional.gelu(y), functional.elu(y, 0.5), x.sign(), positive.lgamma()),
            *(x.masked_fill(y > 0, 0.5), (x + 1).masked_fill_(y > 0, -torch.inf)),
            *(torch.empty_like(x).fill_(2) * y, torch.full_like(x, 3) - y),
            torch.add(x, y, alpha=3),
            torch.sub(x, y, alpha=0.5),
            *(x.isfinite(), x.isnan(), x.isinf(), x == y, x != x, x < 0, y <= 0.5, y >= x, x > 1),
            (x > 0) & (y > 0) | ~(x < y) ^ (y < 0),
            torch.logical_not(x > 0).to(dtype),
            (x > 0).long() + 2,
        ]

    check(operations, x, y, x.abs() + 0.1)


def test_whole_numbers() -> None:
    n = torch.arange(-6, 7)

    def operations(n: Tensor) -> list[Tensor]:
        return [
            *(n + 1, n * 3, 7 - n, -n, n.abs(), n % 4, n // 4, n & 5, n | 2, n ^ 3, ~n),
            *(n.clamp(min=0), torch.minimum(n, -n), n.to(torch.float64) / 4, n == 2, n > 2.5),
            *(torch.arange(13) * n, (n > 0).sum(), n.sum(), (n > 5).any(), (n < 99).all()),
        ]

    check(operations, n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_as_floating_numbers(dtype: torch.dtype) -> None:
    """As the values of a Bernoulli that are summed out, ``torch.arange(2.0)``."""

    def operations(x: Tensor) -> list[Tensor]:
        counts = torch.arange(3, dtype=dtype)
        return [x * counts / 2, x + torch.arange(3, 9, 2, dtype=dtype), counts[:, None] * x]

    check(operations, torch.tensor([0.5, -1.5, 2.5], dtype=dtype))


def test_views_are_places_in_what_they_view() -> None:
    def views(x: Tensor, scalar: Tensor) -> list[Tensor]:
        parts = x.split([1, 4, 2], 2)
        return [
            *(
                x.transpose(0, 2) + 1,
                x.permute(2, 0, 1) * 2,
                x[1] + 0,
                x[:, -1] + 1,
                x[..., 2:6:2] + 1,
            ),
            *(x.unbind()[2] + 1, x.unbind(-1)[5] + 1),
            *(x.unsqueeze(1) + x.unsqueeze(2), x[:, :1].expand(3, 5, 7) + x, parts[1] + parts[0]),
            *((x * 2).reshape(15, 7) + 1, (x * 2).reshape(5, 21) + 1, x.reshape(3, 5, 7, 1) + 1),
            *(x.transpose(0, 1).reshape(35, 3) + 1, x.unbind(1)[3] * 2, x[0, 0].reshape(7, 1) + 1),
            *(torch.cat([x, 2 * x[:, :2]], 1), torch.stack([x[0], x[1] * 2], -1)),
            *(scalar.expand(4) + 1, scalar.reshape(1, 1) + 1, x * scalar),
        ]

    check(views, normal(3, 5, 7), torch.tensor([2.0]))


def test_pieces_that_are_put_in_their_places() -> None:
    def pieces(x: Tensor, row: Tensor) -> list[Tensor]:
        square = x[:, :, :5]
        return [
            *(x.tril(), x.tril(-1), x.transpose(1, 2).tril(2), x.repeat(2, 1, 3)),
            *(x[0].repeat(2, 2, 1, 1), row.repeat(4), row @ (2 * row)),
            torch.select_scatter(x, x[:, 1] + 1, 1, -2),
            torch.select_scatter(row, x.sum(), 0, 3),
            *(torch.diagonal(x, 1, 0, 2) + 1, torch.diagonal(x, -2, 1, 2) + 1, x[0].diagonal() * 2),
            torch.diagonal_scatter(square, square[..., 0] * 3, 0, -2, -1),
        ]

    check(pieces, normal(3, 5, 7), normal(7))


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 4, 4)])
def test_a_factorisation_and_its_gradient(shape: tuple[int, ...]) -> None:
    """Torch's backward pass of a Cholesky factorisation has triangular systems of both kinds."""

    def factorised(x: Tensor, b: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            a = x.detach().requires_grad_()
            factor = torch.linalg.cholesky(a @ a.mT + torch.eye(shape[-1]).double())
            value = factor.diagonal(dim1=-2, dim2=-1).log().sum() + factor.square().sum() / 3
            (slope,) = torch.autograd.grad(value, a)
        solve = torch.linalg.solve_triangular
        return [
            *(factor.detach(), slope, solve(factor.detach(), b, upper=False)),
            *(
                solve(factor.detach().mT, b, upper=True),
                solve(factor.detach(), b.mT, upper=False, left=False),
            ),
        ]

    check(factorised, normal(*shape).double(), normal(*shape[:-1], 2).double())


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_totals_along_a_dimension(dim: int) -> None:
    x = normal(5, 3, 4, dtype=torch.float64)

    def totals(x: Tensor) -> list[Tensor]:
        products = (1 + 0.1 * x).cumprod(dim)
        counts = (x > 0).cumsum(dim)
        return [x.cumsum(dim), (2 * x).mT.cumsum(dim) + 1, products, counts, x[:1].cumsum(0)]

    check(totals, x)


def test_gradients_of_totals_and_places() -> None:
    """As of a simplex by breaking sticks, and of parameters of groups."""
    index = torch.tensor([[2, 0, 0], [1, 1, 4]])

    def gradients(z: Tensor) -> list[Tensor]:
        def value(z: Tensor) -> Tensor:
            broken = (1 - z.sigmoid()).cumprod(-1)
            gathered = z.gather(1, index) * z.index_select(1, index[0])
            added = torch.zeros(2, 5, dtype=z.dtype).scatter_add(1, index, gathered)
            added = added.index_add(1, index[1], z[:, :3].exp(), alpha=2)
            return (z.cumsum(-1).flip(-1) * broken).sum() + (z * added).logsumexp(-1).prod()

        return list(torch.func.grad_and_value(value)(z))

    check(gradients, normal(2, 5, dtype=torch.float64))


def test_masks_that_no_input_decides_are_places() -> None:
    """As of the lower triangle that ``LKJCholesky`` fills, and of rows that the data choose."""
    triangle = torch.ones(3, 3).tril(-1) > 0
    rows = torch.tensor([True, False, True])

    def placed(x: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            matrix = torch.zeros(2, 3, 3, dtype=z.dtype)
            matrix[..., triangle] = z.exp()  # z [2, 3], by rows of the triangle
            value = (matrix @ matrix.mT).square().sum() + z[:, rows].prod()
            (slope,) = torch.autograd.grad(value, z)
        return [matrix.detach(), slope, x[:, rows], x.mT[rows]]

    check(placed, normal(2, 3, dtype=torch.float64))


def test_one_number_is_written_where_a_mask_is_true() -> None:
    """As ``Multinomial`` does with logits of outcomes that no row has."""

    def written(x: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            of_entries, of_rows = 2 * z, 3 * z
            of_entries[z > 0] = 0.5
            of_rows[z[:, 0] > 0] = -1.0
            (slope,) = torch.autograd.grad((of_entries.exp() * of_rows).sum(), z)
        return [of_entries.detach(), of_rows.detach(), slope]

    check(written, normal(4, 3, dtype=torch.float64))


def test_parts_of_tensors_that_are_written_one_after_the_other() -> None:
    """As a loop over time fills a series; what was read before a write keeps its number."""
    start = normal(5, dtype=torch.float64)

    def filled(x: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            series, copied = torch.zeros(3, 5, dtype=z.dtype), start.clone()
            series[:, 0] = z[:, 0]
            first = series[:, 0] * 2
            for t in range(1, 5):
                series[:, t] = 0.5 * series[:, t - 1] + z[:, 1]
            series[:, 0] += 1.0
            copied[1:3] = z[0]
            copied[torch.tensor([0, 4])] = z[1]
            matrix = torch.zeros(2, 2, dtype=z.dtype)
            matrix.diagonal().copy_(z[2])
            value = (series.exp().sum(1) * first).sum() + copied.square().prod()
            (slope,) = torch.autograd.grad(value + matrix.exp().sum(), z)
        return [series.detach(), copied.detach(), matrix.detach(), slope]

    check(filled, normal(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("zero", [False, True])
def test_a_gradient_of_running_products(*, zero: bool) -> None:
    """Torch's own looks for zeros among the factors; factor by factor none is divided by."""

    def slopes(x: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            value = (z.cumprod(-1) * x.exp()).sum() + torch.cumprod(z, 0).square().sum()
            return list(torch.autograd.grad(value, z))

    x = normal(3, 4, dtype=torch.float64)
    check(slopes, torch.where(x == x.min(), 0.0, x) if zero else x)


def test_entries_in_another_order_and_frames_of_them() -> None:
    def others(x: Tensor) -> list[Tensor]:
        return [
            *(x.flip(0), x.flip(0, -1) * x, x.T.flip(0) + 1, (2 * x).flip(1)[1:]),
            *(x.roll(2), x.roll(1, 0), x.roll((1, -2), (0, 1))),
            *(functional.pad(x, (1, 2)), functional.pad(x, (0, 1, 2, -1), value=3.0)),
            *(
                x.diff(dim=0),
                x.diagonal_scatter(x[0, 1:3], 2),
                x.T.diagonal_scatter(x[0, 1:], 1, 1, 0),
            ),
        ]

    check(others, normal(4, 4))


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_spreads_norms_and_sums_of_exponentials(dims: tuple[int, ...]) -> None:
    x = normal(4, 6, dtype=torch.float64)
    hidden = torch.where(x > 0.5, x, -torch.inf)

    def spreads(x: Tensor, hidden: Tensor) -> list[Tensor]:
        return [
            *(x.var(dims), x.std(dims, keepdim=True), x.var(dims, correction=0), x.norm(dim=dims)),
            *(torch.linalg.vector_norm(x, 1, dims), x.prod(dims[0]), x.prod(dims[0], keepdim=True)),
            *(x.logsumexp(dims), hidden.logsumexp(dims, keepdim=True), x.std(), x.prod()),
        ]

    check(spreads, x, hidden)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_functions_against_scipy(dtype: torch.dtype) -> None:
    around = torch.cat([torch.logspace(-8, 8, 50), -torch.linspace(0.05, 60.3, 80)])
    x = torch.cat([around, torch.tensor([-1.0, -7.0, 0.0, torch.inf])]).to(dtype)
    ends = torch.tensor([0.0, 1.0, -1.0, 1.5, torch.nan])
    y = torch.cat([torch.linspace(-1, 1, 99), 1 - torch.logspace(-7, -1, 20), ends]).to(dtype)
    found = [torch.zeros_like(x), torch.zeros_like(y)]
    graph = compile_c(lambda _, __, x, y: (x.digamma(), y.erfinv()), [*found, x, y], num_state=2)
    graph(*found, x, y)
    expected = [special.digamma(x.double().numpy()), special.erfinv(y.double().numpy())]
    for value, right in zip(found, expected, strict=True):
        wanted = torch.from_numpy(right).to(dtype)
        torch.testing.assert_close(
            value, wanted, equal_nan=True, rtol=1e-6 if dtype is torch.float32 else 1e-12, atol=1e-9
        )


def test_entries_that_a_fixed_mask_chooses() -> None:
    """As of a triangle that is filled from a vector, in the density of a matrix of correlations."""
    mask = torch.ones(4, 4).tril(-1).bool()

    def gradients(z: Tensor) -> list[Tensor]:
        def value(z: Tensor) -> Tensor:
            low = torch.outer(z[:4], z[:4])[mask]
            to_factor = transform_to(constraints.corr_cholesky)
            factor = to_factor(low * z)
            density: Tensor = LKJCholesky(4, 2.0).log_prob(factor)
            volume: Tensor = to_factor.log_abs_det_jacobian(z, factor)
            return density + volume

        return list(torch.func.vmap(torch.func.grad_and_value(value))(z))

    check(gradients, normal(2, 6, dtype=torch.float64))


def test_a_long_chain_of_operations_is_parted() -> None:
    """As the gradient of a loop over time, whose terms are added one after the other."""

    def added(x: Tensor) -> list[Tensor]:
        total = x
        for n in range(2000):
            total = total + x * n
        return [total]

    check(added, normal(3))


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_sums_over_dimensions(dims: tuple[int, ...]) -> None:
    def sums(x: Tensor) -> list[Tensor]:
        return [
            *(x.sum(dims), x.sum(dims, keepdim=True), (x * x).exp().mean(dims)),
            *(x.amax(dims), x.amin(dims, keepdim=True), x.transpose(0, 2).sum(dims)),
            *((x > 2).any(dims[0]), (x > -2).all(dims[0]), (x > 0).sum(dims)),
        ]

    check(sums, normal(3, 20, 7))
    check(sums, normal(1, 20, 1))


def test_what_has_no_entries() -> None:
    """As of the scales of a guide that are all of its matrices."""

    def sums(x: Tensor) -> list[Tensor]:
        none = x[:, 5:]
        return [
            *(none.exp().log().sum() + x.sum(), none.sum(1) + x[:, 0], (none > 0).any() | (x > 9)),
            *(torch.cat([x, none.neg()], 1), none.exp(), torch.zeros_like(none)),
        ]

    check(sums, normal(3, 5))
    for fn in (lambda x: (x[:, 5:] @ x[:0],), lambda x: (x[:, 5:].mean(),)):
        with pytest.raises(CaptureError, match="not written in C"):
            compile_c(fn, [normal(5, 5)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_every_form(dtype: torch.dtype) -> None:
    sizes = [(1, 5, 1), (7, 1, 4), (1, 9, 6), (6, 9, 1), (2, 3, 2), (13, 4, 50), (20, 33, 17)]
    sizes += [(3, 70, 130), (5, 40, 16), (64, 2, 3)]

    def products(*operands: Tensor) -> list[Tensor]:
        found = []
        for a, b in zip(operands[::2], operands[1::2], strict=True):
            bias = b.sum(0) if b.ndim == 2 else b.sum(1, keepdim=True)
            found += [a @ b, (b.mT.relu() @ a.mT).tanh(), (2 * a) @ b + bias]
        return found

    matrices = [
        normal(*shape, dtype=dtype, seed=i)
        for i, (m, k, n) in enumerate(sizes)
        for shape in ((m, k), (k, n))
    ]
    batches = [normal(3, 6, 4, dtype=dtype), normal(3, 4, 19, dtype=dtype)]
    check(products, *matrices, *batches)
    x, bias = normal(11, 4, dtype=dtype), normal(6, dtype=dtype)
    check(
        lambda x, w, b: [
            torch.addmm(b, x, w.T),
            functional.linear(x, w, b),
            x.expand(3, 11, 4) @ w.mT,
        ],
        x,
        normal(6, 4, dtype=dtype),
        bias,
    )


def test_gradients_of_a_network() -> None:
    def gradient(w: Tensor, v: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            w, v = (value.detach().requires_grad_() for value in (w, v))
            loss = functional.binary_cross_entropy_with_logits(
                (x @ w).tanh() @ v, y, reduction="sum"
            )
            return [loss.detach(), *torch.autograd.grad(loss, (w, v))]

    y = (normal(30, 2) > 0).float()
    check(gradient, normal(4, 9), normal(9, 2), normal(30, 4), y)


# --- state ---------------------------------------------------------------------------------------


def stepped(step: Callable[..., tuple[Tensor, ...]], *args: Tensor, num_state: int) -> None:
    """Three steps in C in one call and one in another, and four in torch."""
    own, expected = [a.clone() for a in args], [a.clone() for a in args]
    calls = compile_c(step, args, num_state=num_state).bind(*own)
    calls(3)
    calls(1)
    for _ in range(4):
        expected[:num_state] = step(*expected)
    for found, value in zip(own, expected, strict=True):
        torch.testing.assert_close(found, value)


def test_parts_of_a_state_that_read_each_other_are_written_together() -> None:
    def step(a: Tensor, b: Tensor, c: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return b, a + x, c + a[3:] * b[:1]

    stepped(step, normal(4), normal(4, seed=1), normal(1), normal(4, seed=2), num_state=3)


@pytest.mark.parametrize("reads_later", [False, True])
def test_rows_are_written_where_they_lie_unless_the_old_ones_are_read(reads_later: bool) -> None:
    """Written twice, read between the writes, and in one case as it was before both."""

    def step(
        table: Tensor, sums: Tensor, place: Tensor, count: Tensor, row: Tensor
    ) -> tuple[Tensor, ...]:
        lead = torch.arange(1)
        once = table.index_put((lead, place), row)
        between = once[lead, (place + 1) % 5] + once[lead, place]
        twice = once.index_put((lead, count % 5), 2 * between)
        sums = sums + between + (table[:, 0] if reads_later else twice[:, 0])
        return twice, sums, (place + 3) % 5, count + 1

    table, row = normal(1, 5, 40), normal(1, 40, seed=1)
    place, count = torch.tensor([1]), torch.tensor([4])
    stepped(step, table, torch.zeros(1, 40), place, count, row, num_state=4)


def test_places_that_are_many_count_from_the_end_too() -> None:
    def step(out: Tensor, table: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        rows = torch.arange(2)
        return (out + table[rows.unsqueeze(-1), places] * table[:, places[0]],)

    places = torch.tensor([[0, -1, 2], [1, 1, -2]])
    stepped(step, torch.zeros(2, 3, 6), normal(2, 4, 6), places, num_state=1)


def test_what_is_added_at_the_same_place_adds_up() -> None:
    def step(out: Tensor, x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        return (torch.index_put(out, [places], x, accumulate=True),)

    places = torch.tensor([3, 0, 3, 3, -1, 0, 3] * 5)
    stepped(step, normal(6), normal(35), places, num_state=1)


Places = Callable[[Tensor, Tensor], Tensor]
INDEXED: dict[str, Places] = {
    "embedding": lambda table, places: functional.embedding(places, table),
    "embedding of computed codes": lambda table, places: functional.embedding(2 - places, table),
    "index": lambda table, places: table[places],
    "index of two": lambda table, places: table[places, 0 * places],
    "index of one": lambda table, places: table[places[2]],
    "index put": lambda table, places: table.index_put((places,), table[0]),
    "index put to the sum": lambda table, places: table.index_put(
        (places,), table[0], accumulate=True
    ),
}


@pytest.mark.parametrize("fn", INDEXED.values(), ids=INDEXED)
def test_an_index_out_of_range_is_the_error_that_it_is_in_torch(fn: Places) -> None:
    def step(out: Tensor, table: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            given = table.detach().requires_grad_()
            (slope,) = torch.autograd.grad(fn(given, places).square().sum(), given)
        return (out + slope,)

    table, out, valid = normal(5, 3), torch.zeros(5, 3), torch.tensor([[0], [1], [2]])
    graph = compile_c(step, [out, table, valid], num_state=1)
    for last in (-(10**7), -6, -5, -1, 0, 4, 5, 10**7):
        places, before = torch.tensor([[0], [1], [last]]), out.clone()
        try:
            (expected,) = step(before, table, places)
        except IndexError:
            with pytest.raises(IndexError, match="index out of range for a dimension of size 5"):
                graph.bind(out, table, places)(1)
            with pytest.raises(IndexError, match="index out of range for a dimension of size 5"):
                graph(out, table, places)
            assert torch.equal(out, before)
        else:
            graph(out, table, places)
            torch.testing.assert_close(out, expected)


def test_what_is_not_the_state_is_returned_in_memory_of_its_own() -> None:
    def step(z: Tensor, moment: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return z.sum(), x, z, z + x, 0.5 * moment + z

    state = [normal(3, 2), normal(3, 2, seed=1)]
    inputs = [*state, normal(2)]
    graph = compile_c(step, inputs, num_state=2)
    expected = [step(*(value.clone() for value in inputs))]
    found = [graph(*inputs)]
    expected.append(step(*(value.clone() for value in inputs)))
    found.append(graph(*inputs))
    for now, then in zip(found, expected, strict=True):
        torch.testing.assert_close(now, then[:3])
    torch.testing.assert_close(state, list(expected[1][3:]))


def test_constants_of_the_function_are_kept_alive() -> None:
    def make() -> CGraph:
        weights = normal(8)
        return compile_c(lambda out, x: (out + x * weights,), [torch.zeros(8), x], num_state=1)

    x, out = normal(8, seed=3), torch.zeros(8)
    steps = make().bind(out, x)
    kept = [torch.empty(8).fill_(9) for _ in range(20)]  # over memory that was let go
    steps(1)
    assert kept
    torch.testing.assert_close(out, x * normal(8))


def test_a_step_in_threads_has_the_bits_of_one_alone() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def step(z: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return (torch.tanh(z @ x + 0.1 * z),)

    x, starts = normal(20, 20), [normal(1, 20, seed=i) for i in range(6)]
    graph = compile_c(step, [starts[0], x], num_state=1)
    alone, together = ([z.clone() for z in starts] for _ in range(2))
    for z in alone:
        graph.bind(z, x)(500)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda z: graph.bind(z, x)(500), together))
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a, b)


# --- what is refused, and the cache --------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (lambda z: (torch.linalg.eigvalsh(z),), "linalg_eigh"),
        (lambda z: (z.cholesky_inverse(),), "cholesky_inverse"),
        (lambda z: (torch.linalg.cholesky(z.repeat(11, 11)),), "33 columns"),
        (lambda z: (torch.linalg.cholesky(z, upper=True),), "this form of a Cholesky"),
        (lambda z: (z.half().float(),), "float16"),
        (lambda z: (z.cummax(0).values,), "cummax"),
    ],
)
def test_what_is_not_written_in_c_is_named(step: Outputs, what: str) -> None:
    with pytest.raises(CaptureError, match=what):
        compile_c(lambda z: tuple(step(z)), [torch.eye(3)], num_state=1)


def test_large_products_and_many_numbers_are_left_to_others() -> None:
    with pytest.raises(NotInCError, match="524,289 numbers are more than 524,288"):
        compiler_of(is_long=False)(double, [torch.empty(2**19 + 1)])
    large = torch.empty(400, 400)
    with pytest.raises(CaptureError, match=r"aten\.mm"):
        compile_c(lambda z: (z @ z,), [large], num_state=1)


def double(z: Tensor) -> tuple[Tensor, ...]:
    return (2 * z,)


def test_a_file_serves_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_c(double, [torch.ones(3)], num_state=1)
    (file,) = Path(tmp_path, "pyro_bnn").iterdir()
    assert file.suffix == ".so"

    def never(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(c_library, "_compiled", never)
    z = torch.ones(3)
    compile_c(double, [z], num_state=1)(z)
    assert z.tolist() == [2, 2, 2]
    with pytest.raises(AssertionError, match="again"):  # another source
        compile_c(double, [torch.ones(4)], num_state=1)


def test_a_compiler_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(CaptureError, match=r"no C compiler: .*none"):
        compile_c(double, [torch.ones(3)], num_state=1)
    script = tmp_path / "broken"
    script.write_text("#!/bin/sh\necho 'no room' >&2; exit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(CaptureError, match=r"broken failed: .*no room"):
        compile_c(double, [torch.ones(3)], num_state=1)
    assert not list(Path(tmp_path, "pyro_bnn").iterdir())


def test_a_compiler_without_vectors_of_exp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "plain"
    script.write_text('#!/bin/sh\ncase "$*" in *lmvec*) exit 1;; esac\nexec g++ "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    check(lambda x: [x.exp(), x.tanh()], normal(50))


def test_captured_compares_it_and_falls_back() -> None:
    def wrong(fn: object, args: Sequence[Tensor], *, num_state: int) -> CGraph:
        return compile_c(lambda z: (3 * z,), args, num_state=num_state)

    step = Captured(double, "the step", compiled=True, compiler=wrong, num_state=1, strict=True)
    with pytest.raises(CaptureError, match="other numbers than the function itself"):
        step.bind(torch.ones(3))
    z = torch.ones(3)
    Captured(double, "the step", compiled=True, compiler=compile_c, num_state=1).bind(z)(3)
    assert z.tolist() == [8, 8, 8]


def test_tensors_that_lie_otherwise_are_refused() -> None:
    graph = compile_c(lambda z, x: (z + x,), [torch.zeros(3, 2), torch.ones(3, 2)], num_state=1)
    with pytest.raises(CaptureError, match="lie in memory otherwise"):
        graph(torch.zeros(3, 2), torch.ones(2, 3).T)
