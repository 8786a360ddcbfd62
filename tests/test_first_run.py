"""The first run of a user's model: what is no f, no prior or no code of theirs is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_bnn import priors
from pyro_bnn.errors import ModelError, SiteError
from pyro_bnn.program.contract import CORRECTED
from pyro_bnn.program.program import Program

Function = Callable[[Tensor, Tensor], Any]
NAN = torch.tensor([torch.nan, 0.0])


def rows(num_rows: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(num_rows, 2, generator=torch.Generator().manual_seed(0))
    return x, x[:, 0].clone()


def model_of(
    function: Function,
    prior: Callable[[Tensor], Any] = lambda _: dist.Normal(torch.zeros(2), 1.0).to_event(1),
    likelihood: Callable[[Any], Any] = lambda f: dist.Normal(f, 0.1).to_event(max(f.ndim - 1, 0)),
) -> Any:
    def model(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", prior(x))
        f = pyro.deterministic("f", function(x, w))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", likelihood(f), obs=y)

    return model


def first(f: Any) -> Any:
    return dist.Normal(f[0], 0.1)


NO_F: dict[str, tuple[Any, str]] = {
    "None": (model_of(lambda x, w: None), "None"),
    "number": (model_of(lambda x, w: 0.5), "a float"),
    "list": (model_of(lambda x, w: (x @ w).tolist()), "a list"),
    "list of rows": (model_of(lambda x, w: list(x @ w)), "a list"),
    "tuple": (model_of(lambda x, w: (x @ w,), likelihood=first), "a tuple"),
    "dict": (model_of(lambda x, w: {0: x @ w}, likelihood=first), "a dict"),
    "array": (model_of(lambda x, w: (x @ w).detach().numpy()), "a ndarray"),
    "complex": (model_of(lambda x, w: (x @ w).to(torch.complex64)), "a tensor of torch.complex64"),
    "complex, of which the real part is taken": (
        model_of(lambda x, w: (x @ w) + 0j, likelihood=lambda f: dist.Normal(f.real, 0.1)),
        "a tensor of torch.complex64",
    ),
    "whole": (model_of(lambda x, w: (x @ w).long()), "a tensor of torch.int64"),
    "truths": (
        model_of(lambda x, w: x @ w > 0, likelihood=lambda f: dist.Normal(f.float(), 0.1)),
        "a tensor of torch.bool",
    ),
}


@pytest.mark.parametrize("num_rows", [12, 250])
@pytest.mark.parametrize(("model", "what"), NO_F.values(), ids=NO_F)
def test_an_f_that_is_no_tensor_of_real_numbers_is_named(
    model: Any, what: str, num_rows: int
) -> None:
    for taken in (model, poutine.scale(model, 2.0)):
        with pytest.raises(ModelError) as caught:
            Program(taken, *rows(num_rows))
        expected = f'the model records as "f" {what}, but f is the network output, a tensor [N, F]'
        assert str(caught.value).startswith(expected)
        assert CORRECTED in str(caught.value)


OTHER_ROWS: dict[str, tuple[Function, Callable[[int], str], bool]] = {
    "fixed": (lambda x, w: torch.ones(12) + 0 * w.sum(), lambda _: "(12,)", True),
    "partly fixed": (lambda x, w: torch.ones(12) + x @ w, lambda _: "(12,)", True),
    "fixed columns": (
        lambda x, w: torch.ones(12, 1) + (x @ w)[:, None], lambda _: "(12, 1)", True,
    ),
    "one less": (lambda x, w: (x @ w)[1:], lambda n: f"({n - 1},)", False),
    "one more": (lambda x, w: torch.cat([x, x[:1]]) @ w, lambda n: f"({n + 1},)", False),
    "none": (lambda x, w: (x @ w).mean(), lambda _: "()", False),
    "three dimensions": (lambda x, w: (x @ w)[:, None, None], lambda n: f"({n}, 1, 1)", False),
}  # fmt: skip


@pytest.mark.parametrize(("function", "shape", "of_one"), OTHER_ROWS.values(), ids=OTHER_ROWS)
def test_an_f_of_other_rows_than_x_is_named_by_its_shape(
    function: Function, shape: Callable[[int], str], of_one: bool
) -> None:
    for num_rows in (12,) if of_one else (12, 250):
        with pytest.raises(ModelError) as caught:
            Program(model_of(function), *rows(num_rows))
        here = "one row" if of_one else f"{num_rows} rows"
        assert str(caught.value).startswith(f"f has shape {shape(num_rows)}, but")
        assert f"x has {here} here: compute f from x, a row for each row" in str(caught.value)


def unchecked(loc: Tensor, scale: Tensor | float) -> Any:
    return dist.Normal(loc, scale, validate_args=False).to_event(1)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (lambda _: unchecked(NAN, 1.0), "the prior of 'w' draws NaN: a parameter of its Normal is"),
        (lambda _: unchecked(torch.zeros(2), NAN), "the prior of 'w' draws NaN: a parameter"),
        (lambda _: unchecked(torch.zeros(2), torch.inf), "'w' draws infinite numbers: a parameter"),
    ],
)
def test_a_prior_that_draws_no_numbers_is_named_by_its_site(prior: Any, message: str) -> None:
    """The density of y, which is made of them, was blamed."""
    for num_rows in (12, 250):
        with pytest.raises(SiteError, match=message):
            Program(model_of(lambda x, w: x @ w, prior), *rows(num_rows))


def test_a_failure_names_the_line_of_the_model() -> None:
    def of_nan(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(NAN, 1.0).to_event(1))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    with pytest.raises(ModelError, match=r"ValueError: Expected parameter loc") as caught:
        Program(of_nan, *rows(12))
    line = 'in the line w = pyro.sample("w", dist.Normal(NAN, 1.0).to_event(1))'
    assert str(caught.value).endswith(line)


def test_a_long_failure_is_cut_short() -> None:
    with pytest.raises(ModelError) as caught:
        Program(model_of(lambda x, w: (x @ w).log()), *rows(250))
    bad = r"f is NaN or infinite at \d+ of \d+ rows given together, at a draw of the prior: look"
    assert caught.match(bad)
    assert len(str(caught.value)) < 300
    with pytest.raises(
        ModelError, match=r"f is NaN or .* 1 of 1 rows .* a spread over rows, which"
    ):
        Program(model_of(lambda x, w: x / (x - x.mean(0)).norm() @ w), *rows(12))

    def fails(x: Tensor, w: Tensor) -> Tensor:
        raise ValueError("many words " * 1_000 + str((x @ w).tolist()))

    with pytest.raises(ModelError) as caught:
        Program(model_of(fails), *rows(250))
    assert len(str(caught.value)) < 700
    assert caught.match(r"many words \.\.\.; in the line raise ValueError")


@pytest.mark.parametrize("times", [1, 2])
def test_a_site_of_as_many_numbers_as_rows_is_named(times: int) -> None:
    def prior(x: Tensor) -> Any:
        return dist.Normal(torch.zeros(times * len(x)), 1.0).to_event(1)

    for num_rows in (12, 250):
        expected = rf"'w' has shape \({times * num_rows},\) where x has {num_rows} rows, and "
        with pytest.raises(SiteError, match=expected) as caught:
            Program(model_of(lambda x, w: x[:, 0] * w[: len(x)], prior), *rows(num_rows))
        assert caught.match("write the size of 'w' as a number, or after the columns, x.shape")


@pytest.mark.parametrize("shape", [(), (2,)])
def test_an_improper_prior_without_draws_is_refused_with_the_one_that_has_them(
    shape: tuple[int, ...],
) -> None:
    def model(prior: Any) -> Any:
        return model_of(lambda x, w: x[:, :1].squeeze(-1) * w.sum(), lambda _: prior)

    prior = dist.ImproperUniform(dist.constraints.real, (), shape)
    for num_rows in (12, 250):
        with pytest.raises(
            SiteError, match="prior of 'w' is ImproperUniform, which has no"
        ) as caught:
            Program(model(prior), *rows(num_rows))
        assert caught.match(r"priors\.Flat\(\)\.distribution\(torch\.Size\(\[\.\.\.\]\)\)")
    flat = Program(model(priors.Flat().distribution(torch.Size(shape))), *rows(12))
    assert flat.log_prior(flat.initial, rows(12)[0]).item() == 0  # the density is 1


@pytest.mark.parametrize("columns", [False, True])
def test_an_f_that_is_recorded_inside_the_plate_is_told_what_to_write(*, columns: bool) -> None:
    def model(event_dim: int | None) -> Any:
        def inside(x: Tensor, y: Tensor | None = None) -> Any:
            w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            f = x @ w
            with pyro.plate("data", len(x)):
                f = pyro.deterministic("f", f.unsqueeze(-1) if columns else f, event_dim)
                return pyro.sample("y", dist.Normal(f, 0.1).to_event(f.ndim - 1), obs=y)

        return inside

    for num_rows in (12, 250):
        with pytest.raises(ModelError, match=r"pass event_dim=f\.ndim - 1") as caught:
            Program(model(None), *rows(num_rows))
        assert caught.match(r"pyro\.deterministic\('f', \.\.\.\) inside the plate .data. takes all")
        assert "pyro.condition" not in str(caught.value)
    x, y = rows(12)
    taken, z = Program(model(int(columns)), x, y), torch.tensor([0.5, -1.0])
    torch.testing.assert_close(taken.function(z, x)[:, 0], x @ z)
