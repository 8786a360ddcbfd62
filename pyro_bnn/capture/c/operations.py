"""What single operations are in C: elementwise ones as expressions, numbers as literals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten

C_TYPES: Mapping[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "i64",
    torch.int32: "int",
    torch.bool: "bool",
}
SUFFIXES: Mapping[torch.dtype, str] = {torch.float32: "f", torch.float64: ""}

Expression = Callable[..., str]  # of its operands, in the dtype of the result


def _call(name: str) -> Expression:
    """A function of C's library, whose name ends in f for single precision: ``%`` here."""
    return lambda *operands: f"{name}@({', '.join(operands)})"


def _infix(sign: str) -> Expression:
    return lambda a, b: f"{a} {sign} {b}"


def _clamp(x: str, low: str | None = None, high: str | None = None) -> str:
    if low is not None:
        x = f"({x} < {low} ? {low} : {x})"
    return x if high is None else f"({x} > {high} ? {high} : {x})"


def _logaddexp(a: str, b: str) -> str:
    larger = f"({a} > {b} ? {a} : {b})"
    apart = f"({a} == {b} ? 0 : -fabs@({a} - {b}))"  # infinities too
    return f"{larger} + log1p@(exp@{apart})"


def _softplus(x: str, beta: str = "1", threshold: str = "20") -> str:
    return f"({x} * {beta} > {threshold} ? {x} : log1p@(exp@({x} * {beta})) / {beta})"


# Operands have the dtype of the result. Where one occurs twice it is a name.
ELEMENTWISE: Mapping[Any, Expression] = {
    aten.mul: _infix("*"),
    aten.div: _infix("/"),
    aten.neg: lambda x: f"-{x}",
    aten.exp: _call("exp"),
    aten.expm1: _call("expm1"),
    aten.log: _call("log"),
    aten.log2: _call("log2"),
    aten.log1p: _call("log1p"),
    aten.sqrt: _call("sqrt"),
    aten.rsqrt: lambda x: f"1 / sqrt@({x})",
    aten.reciprocal: lambda x: f"1 / {x}",
    aten.sin: _call("sin"),
    aten.cos: _call("cos"),
    aten.atan: _call("atan"),
    aten.atan2: _call("atan2"),
    aten.tan: _call("tan"),
    aten.asin: _call("asin"),
    aten.acos: _call("acos"),
    aten.sinh: _call("sinh"),
    aten.cosh: _call("cosh"),
    aten.asinh: _call("asinh"),
    aten.acosh: _call("acosh"),
    aten.atanh: _call("atanh"),
    aten.erf: _call("erf"),
    aten.erfinv: _call("erfinv"),
    aten.tanh: _call("tanh"),
    aten.sigmoid: lambda x: f"1 / (1 + exp@(-{x}))",
    aten.lgamma: _call("lgamma"),
    aten.digamma: _call("digamma"),
    aten.sign: lambda x: f"({x} > 0) - ({x} < 0)",
    aten.sgn: lambda x: f"({x} > 0) - ({x} < 0)",
    aten.gelu: lambda x: f"{x} * ((1 + erf@({x} * {math.sqrt(0.5)!r})) / 2)",
    aten.elu: lambda x, alpha="1", scale="1", slope="1": (
        f"{scale} * ({x} > 0 ? {x} : {alpha} * expm1@({x} * {slope}))"
    ),
    aten.abs: lambda x: f"({x} < 0 ? -{x} : {x})",
    aten.square: lambda x: f"{x} * {x}",
    aten.round: _call("nearbyint"),
    aten.floor: _call("floor"),
    aten.relu: lambda x: f"({x} < 0 ? 0 : {x})",
    aten.clamp: _clamp,
    aten.clamp_min: _clamp,
    aten.clamp_max: lambda x, high: _clamp(x, None, high),
    aten.maximum: lambda a, b: f"({a} > {b} || {a} != {a} ? {a} : {b})",
    aten.minimum: lambda a, b: f"({a} < {b} || {a} != {a} ? {a} : {b})",
    aten.logaddexp: _logaddexp,
    aten.hypot: _call("hypot"),
    aten.xlogy: lambda a, b: f"({b} == {b} && {a} == 0 ? 0 : {a} * log@({b}))",
    aten.softplus: _softplus,
    aten.silu: lambda x: f"{x} / (1 + exp@(-{x}))",
    aten.leaky_relu: lambda x, slope="0.01": f"({x} > 0 ? {x} : {x} * {slope})",
    aten.hardshrink: lambda x, least="0.5": f"({x} >= -{least} && {x} <= {least} ? 0 : {x})",
    aten.threshold_backward: lambda grad, x, threshold: f"({x} <= {threshold} ? 0 : {grad})",
    aten.lerp: lambda a, b, weight: f"{a} + {weight} * ({b} - {a})",
    aten.tanh_backward: lambda grad, y: f"{grad} * (1 - {y} * {y})",
    aten.sigmoid_backward: lambda grad, y: f"{grad} * (1 - {y}) * {y}",
    aten.log_sigmoid_backward: lambda grad, x, _: f"{grad} / (1 + exp@({x}))",
    aten.clone: lambda x: x,
    aten._to_copy: lambda x: x,
}
# Of numbers that are true or false, or whole.
LOGICAL: Mapping[Any, Expression] = {
    aten.bitwise_and: _infix("&"),
    aten.bitwise_or: _infix("|"),
    aten.bitwise_xor: _infix("^"),
    aten.logical_and: _infix("&&"),
    aten.logical_or: _infix("||"),
    aten.logical_not: lambda x: f"!{x}",
}
# Operands have the dtype that they share, the result is true or false.
COMPARISONS: Mapping[Any, Expression] = {
    aten.eq: _infix("=="),
    aten.ne: _infix("!="),
    aten.lt: _infix("<"),
    aten.le: _infix("<="),
    aten.gt: _infix(">"),
    aten.ge: _infix(">="),
    aten.isnan: lambda x: f"{x} != {x}",
    aten.isinf: lambda x: f"{x} == {x} && {x} - {x} != 0",
}


def power(x: str, exponent: float) -> str:
    """X to a power that is a number."""
    simple = {
        0.5: f"sqrt@({x})",
        1.0: x,
        2.0: f"{x} * {x}",
        3.0: f"{x} * {x} * {x}",
        -1.0: f"1 / {x}",
        -2.0: f"1 / ({x} * {x})",
    }
    return simple.get(exponent, f"pow@({x}, {exponent!r})")


def literal(value: float, dtype: torch.dtype) -> str:
    """A number in C."""
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype not in SUFFIXES:
        return f"(({C_TYPES[dtype]}){int(value)}LL)"
    number = float(value)
    if math.isnan(number):
        text = '__builtin_nan("")'
    elif math.isinf(number):
        text = "__builtin_inf()" if number > 0 else "-__builtin_inf()"
    else:
        text = repr(number)
    return f"(({C_TYPES[dtype]}){text})"
