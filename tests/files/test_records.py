"""Dataclasses taken apart and put together: the same again, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pyro_bnn.files.records import put_together, taken_apart


@dataclass(frozen=True, eq=False)
class Part:
    edges: Float[np.ndarray, " B+1"]
    counts: Int[np.ndarray, " B"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Whole:
    kind: Literal["exact", "bound"]
    score: float
    options: Mapping[str, Any]
    draws: Float[np.ndarray, "S N"]
    rows: Tensor
    nothing: Float[np.ndarray, " T"]
    parts: tuple[Part, ...] = ()
    best: Part | None = None
    at: Float[np.ndarray, " N"] | None = None


def example(**changes: Any) -> Whole:
    values: dict[str, Any] = {
        "kind": "exact",
        "score": float(np.float32(0.1)),
        "options": {"rank": 3, "sites": [1, None], "scale": float("inf")},
        "draws": np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32),
        "rows": torch.arange(6, dtype=torch.int64).reshape(3, 2),
        "nothing": np.zeros(0),
        "parts": (Part(np.arange(3.0), np.array([1, 2])),),
    }
    return Whole(**(values | changes))


def apart(whole: Whole) -> tuple[Any, dict[str, np.ndarray]]:
    arrays: dict[str, np.ndarray] = {}
    return json.loads(json.dumps(taken_apart(whole, "it", arrays))), arrays


def test_all_is_the_same_again() -> None:
    whole = example(at=np.array([1.0, np.nan, 2.0]))
    again = put_together(Whole, *_named(apart(whole)))
    assert (again.kind, again.score, again.options) == (whole.kind, whole.score, whole.options)
    assert again.best is None
    for name in ("draws", "nothing", "at"):
        one, two = getattr(again, name), getattr(whole, name)
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    torch.testing.assert_close(again.rows, whole.rows, rtol=0, atol=0)
    np.testing.assert_array_equal(again.parts[0].counts, [1, 2])


def _named(parts: tuple[Any, Any]) -> tuple[Any, str, Any]:
    return parts[0], "it", parts[1]


@pytest.mark.parametrize(
    ("changes", "arrays", "error", "words"),
    [
        ({"kind": "odd"}, {}, ValueError, "kind is 'odd'"),
        ({"score": "1"}, {}, TypeError, "score is a str, not a float"),
        ({"score": True}, {}, TypeError, "score is a bool"),
        ({"more": 1}, {}, KeyError, "should not have more"),
        ({"parts": [{}]}, {}, KeyError, "lacks or should not have counts, edges"),
        ({"parts": {}}, {}, TypeError, "parts is a dict, not a list"),
        ({"nothing": ["<f8", 9]}, {}, KeyError, "nothing"),
        ({"nothing": ["O", 0]}, {}, TypeError, "holds object, not numbers"),
        ({}, {"draws": np.zeros(3)}, TypeError, r"draws is \[3\] of float64, not Float"),
        ({}, {"draws": np.zeros((4, 3), int)}, TypeError, r"of int64, not Float"),
        ({}, {"at": np.zeros(4)}, TypeError, r"at is \[4\]"),  # N is 3
        ({}, {"parts.0.edges": np.zeros(4)}, TypeError, r"edges is \[4\]"),  # B is 2
        ({}, {"rows": np.array(["a"])}, TypeError, "holds <U1, not numbers"),
    ],
)
def test_what_is_of_another_type_is_refused(
    changes: dict[str, Any], arrays: dict[str, Any], error: type[Exception], words: str
) -> None:
    document, own = apart(example())
    own |= {f"it.{name}": value for name, value in arrays.items()}
    with pytest.raises(error, match=words):
        put_together(Whole, {**document, **changes}, "it", own)


def test_an_array_that_is_missing_is_refused_by_name() -> None:
    document, arrays = apart(example())
    del arrays["it.draws"]
    with pytest.raises(TypeError, match=r"it\.draws is a NoneType, not a list"):
        put_together(Whole, document, "it", arrays)
