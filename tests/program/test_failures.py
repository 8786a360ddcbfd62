"""What a plain model that fails on its arguments is told: its name, its arguments, the site."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.errors import BNNWarning, DataError, ModelError, ShapeError, SiteError
from pyro_bnn.guides import AutoNormal
from pyro_bnn.infer import NUTS, SVI
from pyro_bnn.models import MLP
from pyro_bnn.program import Joint
from pyro_bnn.program.enumerated import joint_of
from tests.plain_pyro import default_dtype

X, Y = torch.zeros(5, 2), torch.zeros(5)


def weight(size: int = 2) -> Tensor:
    return pyro.sample("w", dist.Normal(torch.zeros(size), 1.0).to_event(1))


def of_another_length(x: Tensor, y: Tensor) -> None:
    w = weight()
    with pyro.plate("rows", len(x)):
        pyro.sample("rent", dist.Normal(w[0], 1.0).expand([6]), obs=y)


def of_other_columns(x: Tensor, y: Tensor) -> None:
    w = weight(3)
    with pyro.plate("rows", len(x)):
        pyro.sample("rent", dist.Normal(x @ w, 1.0), obs=y)


def negative_scale(x: Tensor, y: Tensor) -> None:
    pyro.sample("rent", dist.Normal(x @ weight(), -1.0), obs=y)


def twice(x: Tensor, y: Tensor) -> None:
    weight()
    weight()


def look_up(x: Tensor, y: Tensor, **options: Any) -> None:
    options["speed"]


class Network(PyroModule):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return x @ torch.zeros(3)


ARGUMENTS = r"raised while it was run on its arguments \(x \(5, 2\), y \(5,\)\)"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (of_another_length, f"of_another_length {ARGUMENTS}, at the site 'rent': .*5 vs 6; in the"),
        (of_other_columns, f"{ARGUMENTS}, after the site 'w': RuntimeError: size mismatch.*x @ w"),
        (negative_scale, "after the site 'w': ValueError: Expected parameter scale .*, -1.0"),
        (twice, f"{ARGUMENTS}, at the site 'w': RuntimeError: Multiple sample sites named 'w'"),
        (
            look_up,
            f"look_up {ARGUMENTS}, before its first site: KeyError: .speed.; in the",
        ),
        (Network(), f"Network {ARGUMENTS}, before its first site: RuntimeError"),
        (partial(look_up, speedy=3), f"look_up {ARGUMENTS}"),
        (poutine.condition(look_up, {"a": Y}), f"look_up under condition {ARGUMENTS}"),
        (lambda x: x, r"\(argument 1 \(5, 2\), argument 2 \(5,\)\).*1 positional argument"),
    ],
)
def test_a_failure_names_the_model_its_arguments_and_the_site(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        Joint(model, (X, Y))
    assert raised.value.__cause__ is not None
    assert "Trace Shapes" not in str(raised.value)


def test_arguments_of_any_kind_are_told() -> None:
    def model(x: Tensor, *others: Any, **options: Any) -> None:
        raise ValueError(x, others, options)

    expected = r"\(x \(5, 2\), others\[0\] 'abc', others\[1\] list of 3, k \(5,\), d None\)"
    with pytest.raises(ModelError, match=expected):
        Joint(model, (X, "abc", [1, 2, 3]), {"k": Y, "d": None})


def slope_of(x: Any, y: Any) -> None:
    mean = x @ weight()
    with pyro.plate("rows", len(y)):
        pyro.sample("rent", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_arguments_of_another_precision_are_named(default: torch.dtype) -> None:
    other = torch.float64 if default is torch.float32 else torch.float32
    with default_dtype(default):
        x, y = X.to(other), Y.to(default)
        message = (
            rf"slope_of raised .*; x is {other}, but what the model makes itself, .* is {default}, "
            rf"torch's default: pass x.to\({default}\), or call torch.set_default_dtype\({other}\)"
        )
        with pytest.raises(ModelError, match=message):
            Joint(slope_of, (x, y))
        with pytest.raises(ModelError, match=rf"; d\['x'\] is {other}, but what"):
            Joint(lambda d: slope_of(d["x"], d["y"]), ({"x": x, "y": y},))
        joint = Joint(slope_of, (X.to(default), Y.to(other)))  # what is observed may be of any
        z = joint.initial.requires_grad_()
        value = joint.log_joint(z)
        value.backward()
        assert value.dtype == default
        expected = dist.Normal(0.0, 1.0).log_prob(torch.cat([z, Y.to(default)])).sum()
        assert_close(value, expected)


def test_arrays_and_frames_are_named() -> None:
    y = np.zeros(5)
    with pytest.raises(ModelError, match=r"'rent' observes a NumPy array.*obs=torch.as_tensor\("):
        Joint(slope_of, (X, y))
    with pytest.raises(ModelError, match="'rent' observes a Series of pandas"):
        Joint(slope_of, (X, pd.Series(y)))
    with pytest.raises(ModelError, match="'rent' observes a list"):
        Joint(slope_of, (X, [0.0] * 5))

    dtype = "dtype=torch.float32"
    with pytest.raises(
        ModelError, match=rf"; x is a NumPy array: pass .*torch.as_tensor\(x, {dtype}\)"
    ):
        Joint(slope_of, (X.numpy(), Y))


@pytest.mark.parametrize(
    "mean",
    [
        lambda a, x: a * x,
        lambda a, x: x - a,
        lambda a, x: a @ x,
        lambda a, x: torch.exp(x) + a,
        lambda a, x: x.exp() + a,
        lambda a, x: x,
    ],
)
@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_in_place_of_tensors_are_named(
    mean: Callable[[Tensor, Any], Any], kind: type
) -> None:
    def model(d: dict[str, Any], y: Tensor, sizes: list[Any]) -> None:
        pyro.sample("rent", dist.Normal(mean(weight(), d["x"]), 1.0), obs=y)

    words = rf"; d\['x'\] is a {kind.__name__}: pass tensors, as torch.as_tensor\(d\['x'\], dtype="
    with pytest.raises(ModelError, match=words):
        Joint(model, ({"x": kind([1.0, 2.0])}, Y[:2], [Y]))


def test_lists_that_a_failure_is_not_of_are_not_named() -> None:
    def model(sizes: list[int]) -> None:
        raise TypeError(f"unsupported operand of {len(sizes)} sizes")

    with pytest.raises(ModelError, match=r"unsupported operand of 2 sizes; in the line [^;]*$"):
        Joint(model, ([3, 4],))


class InPlate(PyroModule):
    """Samples that are first read inside the plate of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.w = PyroSample(dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        self.b = PyroSample(dist.Normal(0.0, 1.0))

    def forward(self, x: Tensor, y: Tensor, *, both: bool, before: bool = False) -> None:
        own: Any = self
        b = own.b if before else None
        with pyro.plate("rows", len(x)):
            mean = x @ own.w if both else x[:, 0] * own.b
            pyro.sample("rent", dist.Normal(mean if b is None else b + mean, 1.0), obs=y)


def test_a_sample_that_is_first_read_inside_a_plate_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hint = "the PyroSample 'w' is first read inside the plate 'rows', .*: read it before the plate"
    with pytest.raises(ModelError, match=f"cannot be multiplied.*; {hint}, as w = self.w"):
        joint_of(InPlate(), (X, Y), {"both": True})
    joint = joint_of(InPlate(), (X, Y), {"both": False})
    assert joint.num_latents == 5
    assert "the PyroSample 'b' is first read inside the plate 'rows'" in caplog.text
    caplog.clear()
    assert joint_of(InPlate(), (X, Y), {"both": False, "before": True}).num_latents == 1
    assert caplog.text == ""


def test_a_refusal_inside_the_model_keeps_its_words() -> None:
    def model() -> None:
        pyro.sample("v", cast(Any, dist.ImproperUniform)(dist.constraints.sphere, (), (3,)))

    with pytest.raises(SiteError, match="the latent site 'v' lies on a sphere") as raised:
        Joint(model)
    assert "Trace Shapes" not in str(raised.value)


@pytest.mark.parametrize("engine", [SVI(AutoNormal, num_steps=1), NUTS(num_chains=1)])
def test_rows_that_a_network_refuses_are_told_without_the_sites_of_pyro(engine: Any) -> None:
    with pytest.raises(ShapeError) as raised:
        engine.run(MLP(2), (X[:, None], Y))
    assert str(raised.value) == "x has shape (5, 1, 2), but the model takes [N, 2]"


def observing(fn: Callable[[Tensor], Any], value: Any) -> Callable[[], None]:
    def model() -> None:
        scale = pyro.sample("scale", dist.Gamma(2.0, 1.0))
        pyro.sample("rent", fn(scale), obs=torch.as_tensor(value))

    return model


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (
            observing(lambda s: dist.Normal(torch.zeros(5), s), torch.zeros(4)),
            ModelError,
            r"the density of the site 'rent' cannot be computed; the value of 'rent' has shape "
            r"\(4,\), and its distribution, Normal, has shape \(5,\)",
        ),
        (
            observing(lambda s: dist.Normal(torch.zeros(5, 1), s), torch.zeros(5)),
            ModelError,
            r"has shape \(5,\), but its .* has shape \(5, 1\), .* make 25 terms: .* squeeze\(-1\)",
        ),
        (
            observing(dist.Poisson, [1.0, -2.0]),
            DataError,
            "the site 'rent' observes -2, outside the support of its Poisson",
        ),
        (
            observing(lambda s: dist.Normal(0.0, s), math.nan),
            DataError,
            "observes nan, outside the support of its Normal, Real",
        ),
        (
            observing(lambda s: dist.Normal(torch.zeros(2), s), [1.0, -math.inf]),
            DataError,
            "the site 'rent' observes -inf, outside the support of its Normal, Real",
        ),
        (
            observing(
                lambda s: dist.Normal(torch.zeros(2, 2), s).to_event(1), [[0, 0], [0, math.inf]]
            ),
            DataError,
            "the site 'rent' observes 0, inf, outside the support of its Normal",
        ),
        (
            observing(dist.Exponential, math.inf),
            DataError,
            "the site 'rent' observes inf, outside the support of its Exponential",
        ),
        (
            lambda: pyro.sample("w", cast(Any, OfNaN(0.0, 1.0))),
            SiteError,
            "the prior of 'w' draws NaN",
        ),
    ],
)
def test_values_that_no_distribution_has_are_refused(
    model: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Joint(model)


def of_a_slope(x: Tensor, y: Tensor, size: int) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", size):
        pyro.sample("rent", dist.Normal(a * x, 1.0), obs=y)


def test_a_column_beside_a_vector_in_a_plate_is_refused() -> None:
    """The plate expands ``[5, 1]`` to ``[5, 5]``, and each y would count five times."""
    message = (
        r"'rent' has shape \(5,\), but its distribution, Normal, has shape \(5, 5\) in the plate "
        r"'rows', and the two together would make 25 terms: .*squeeze\(-1\)"
    )
    with pytest.raises(ModelError, match=message):
        joint_of(of_a_slope, (X[:, :1], Y), {"size": 5})
    with pytest.raises(ModelError, match="would make 25 terms"):
        joint_of(of_a_slope, (X[:, :1], Y[None]), {"size": 5})


@pytest.mark.parametrize("y", [torch.tensor(0.5), torch.full((5,), 0.5)])
@pytest.mark.parametrize("x", [torch.tensor(2.0), torch.full((5,), 2.0)])
def test_what_plates_and_numbers_repeat_is_taken(x: Tensor, y: Tensor) -> None:
    def of_vectors() -> None:
        loc = pyro.sample("a", dist.Normal(torch.zeros(5), 1.0).to_event(1))
        pyro.sample("rent", dist.Normal(loc, 1.0), obs=y)

    z = torch.tensor([0.3])
    expected = dist.Normal(0.0, 1.0).log_prob(z).sum() + 5 * dist.Normal(0.6, 1.0).log_prob(
        torch.tensor(0.5)
    )
    assert_close(joint_of(of_a_slope, (x, y), {"size": 5}).log_joint(z), expected)
    z = torch.full((5,), 0.3)
    expected = (dist.Normal(0.0, 1.0).log_prob(z) + dist.Normal(z, 1.0).log_prob(y)).sum()
    assert_close(joint_of(of_vectors).log_joint(z), expected)


class MayNeverEnd(dist.Exponential):  # type: ignore[misc]
    """Half of it is at infinity."""

    def log_prob(self, value: Tensor) -> Tensor:
        ended = value.isfinite()
        own: Tensor = super().log_prob(torch.where(ended, value, 1.0))
        return math.log(0.5) + torch.where(ended, own, 0.0)


class OfNaN(dist.Normal):
    def rsample(self, *shape: Any) -> Tensor:
        return super().rsample(*shape) * math.nan


def test_a_bound_that_is_inferred_or_a_mask_lets_values_lie_outside() -> None:
    """Beyond a bound at hand the density is 0; behind a mask a value is none."""
    inferred = Joint(observing(lambda s: dist.Uniform(0.0, s), 1.0))
    assert_close_to = torch.testing.assert_close
    assert float(inferred.log_joint(torch.tensor([-1.0]))) == -math.inf
    z = torch.tensor([0.5])
    prior = dist.Gamma(2.0, 1.0).log_prob(z.exp()) + z
    assert_close_to(inferred.log_joint(z), (prior - z).sum())

    def hidden() -> None:
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        with poutine.mask(mask=cast(Any, torch.tensor([True, False]))):
            pyro.sample("count", dist.Poisson(rate), obs=torch.tensor([2.0, -1.0]))

    expected = prior.sum() + dist.Poisson(z.exp()).log_prob(torch.tensor(2.0)).sum()
    assert_close_to(Joint(hidden).log_joint(z), expected)

    def never_or_now() -> None:
        """Of a process that may never end, which has a density at infinity."""
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        pyro.sample("end", MayNeverEnd(rate), obs=torch.tensor([math.inf, 2.0]))

    expected = (
        prior.sum()
        + 2 * math.log(0.5)
        + dist.Exponential(z.exp()).log_prob(torch.tensor(2.0)).sum()
    )
    assert_close_to(Joint(never_or_now).log_joint(z), expected)


def test_sites_that_are_not_in_every_run_are_refused() -> None:
    def model() -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0), infer=cast(Any, {"start": 1.0}))
        pyro.sample("above" if bool(a > 0) else "below", dist.Normal(0.0, 1.0))

    joint = Joint(model)
    assert bool(joint.log_joint(torch.tensor([1.0, 0.0])).isfinite())
    message = "model samples other latent sites in one run than in another, here 'above', 'below'"
    with pytest.raises(SiteError, match=message):
        joint.log_joint(torch.tensor([-1.0, 0.0]))


def test_a_prior_on_a_circle_is_warned_of_and_its_advice_is_the_same_prior() -> None:
    prior = dist.VonMises(0.3, 2.0)

    def model() -> None:
        pyro.sample("phase", prior)

    def advised() -> None:
        phase = pyro.sample("phase", dist.Uniform(-math.pi, math.pi))
        pyro.factor("phase_prior", prior.log_prob(phase) + math.log(2 * math.pi))

    advice = r'(.|\n)*"phase_prior", dist.VonMises\(...\).log_prob\(phase\)(.|\n)*that .phase. has'
    with pytest.warns(BNNWarning, match=f"prior of 'phase' is VonMises, .* every 2 pi{advice}"):
        joint = Joint(model)
    z = torch.tensor([[0.4], [0.4 + 2 * math.pi]])
    torch.testing.assert_close(joint.log_joint(z), prior.log_prob(z).squeeze(-1))
    bounded = Joint(advised)
    of_z = torch.linspace(-30.0, 30.0, 20_001, dtype=torch.float64).unsqueeze(-1)
    total = bounded.log_joint(of_z).exp().sum() * 60.0 / 20_000
    torch.testing.assert_close(total, torch.ones((), dtype=torch.float64), rtol=1e-4, atol=0)


def test_what_a_model_records_has_any_shape_and_a_leading_one_of_draws() -> None:
    def model(x: Tensor) -> None:
        w = weight()
        pyro.deterministic("product", w.outer(w))
        pyro.deterministic("sum", w.sum())
        pyro.deterministic("rows", (x * w).argmax(-1))
        pyro.deterministic("fixed", torch.arange(3))

    joint = Joint(model, (X + torch.tensor([1.0, 2.0]),))
    z = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0))
    values = joint.deterministics(z)
    torch.testing.assert_close(values["product"], z.unsqueeze(-1) * z.unsqueeze(-2))
    torch.testing.assert_close(values["sum"], z.sum(-1))
    rows = (z * torch.tensor([1.0, 2.0])).argmax(-1)
    torch.testing.assert_close(values["rows"], rows.unsqueeze(-1).expand(2, 3, 5))
    torch.testing.assert_close(values["fixed"], torch.arange(3).expand(2, 3, 3))
    one = joint.deterministics(z[0, 0])
    torch.testing.assert_close(one["sum"], z[0, 0].sum())
    other = joint.deterministics(z[0], (torch.ones(4, 2),))
    assert other["rows"].shape == (3, 4)


def test_a_model_that_is_possible_at_few_draws_is_tried_anew() -> None:
    tries = []

    def seldom(y: Tensor) -> None:
        rate = pyro.sample("rate", dist.Uniform(0.0, 1.0))
        tries.append(float(rate))
        pyro.sample("y", dist.Exponential(rate - 0.9), obs=y)

    Joint(seldom, (torch.tensor(1.0),))
    first = tries.index(next(rate for rate in tries if rate > 0.9))
    assert first > 0  # by this seed
    assert all(rate < 0.9 for rate in tries[:first])

    def never(y: Tensor) -> None:
        tries.append(float(pyro.sample("rate", dist.Uniform(0.0, 1.0))))
        pyro.sample("y", dist.Normal(y, -torch.ones(())), obs=y)

    tries.clear()
    with pytest.raises(ModelError, match="Expected parameter scale"):
        Joint(never, (torch.tensor(1.0),))
    assert len(tries) == 100
