"""Failures of a plain model on its arguments, told with the model, the arguments and the site."""

from __future__ import annotations

import inspect
import linecache
import re
import reprlib
import textwrap
import traceback
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Number
from typing import Any, NoReturn, cast

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.errors import BNNError, DataError, ModelError
from pyro_bnn.handled import Model, model_name, module_of, unhandled
from pyro_bnn.program.distributions import bounds_of
from pyro_bnn.program.handlers import Evaluate, Starting, innermost, is_point, log_prob

OTHER_DTYPES = re.compile(r"dtypes? (mis)?match|same dtype|scalar type")
OF_LISTS = re.compile(r"\b(list|tuple|sequence)\b|converted to an index|all be instances of Number")
NOT_THE_USERS = ("torch", "pyro", "pyro_bnn", "contextlib", "functools")


@contextmanager
def named_failures(
    model: Model, args: Sequence[Any], kwargs: Mapping[str, Any], starting: Starting
) -> Iterator[None]:
    """Say of a failure of a model which model, arguments and site it is of.

    Args:
        model: Pyro model, which runs inside.
        args: Its arguments.
        kwargs: Its keyword arguments.
        starting: Sees the sites that it samples.

    Raises:
        ModelError: In place of whatever the model raises.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except BNNError as error:
        raise_plainly(error)
    except Exception as error:
        site, line = _where(error)
        place = "before its first site"
        if site or starting.last:
            place = f"at the site {site!r}" if site else f"after the site {starting.last!r}"
        named = _named(model, args, kwargs)
        what = str(error).partition("Trace Shapes:")[0]
        what = textwrap.shorten(what, 400, placeholder=" ...") or "no message"
        raise ModelError(
            f"{model_name(model)} raised while it was run on its arguments "
            f"({_shapes(named)}), {place}: {type(error).__name__}: {what}"
            f"{f'; in the line {line}' if line else ''}"
            f"{_way_out(error, named)}"
            f"{''.join(f'; {hint}' for hint in read_in_plates(model, starting.plates))}"
        ) from error


def read_in_plates(model: Model, plates: Mapping[str, str]) -> list[str]:
    """What is said of each ``PyroSample`` of a module that is first read inside a plate."""
    hints = []
    for prefix, module in () if (m := module_of(model)) is None else m.named_modules():
        for name in getattr(module, "_pyro_samples", ()):
            site = f"{prefix}.{name}" if prefix else name
            if site in plates:
                hints.append(
                    f"the PyroSample {site!r} is first read inside the plate "
                    f"{plates[site]!r}, where it gets a value for each row: read it "
                    f"before the plate, as {name} = self.{site}"
                )
    return hints


def raise_plainly(error: BNNError) -> NoReturn:
    """Raise an error of this package without the shapes of sites that Pyro appends to it."""
    message, _, shapes = str(error).partition("Trace Shapes:")
    if not shapes:
        raise error
    raise type(error)(message.strip()) from error.__cause__


def require_densities(run: Evaluate) -> None:
    """Check that every site of a run has a density, over its own entries.

    Args:
        run: The model, evaluated.

    Raises:
        ModelError: If the shapes of a value and of its distribution do not fit.
    """
    for name, msg in {**run.latent, **run.observed}.items():
        fn = msg["fn"]
        _require_tensor(name, msg["value"])
        value = torch.as_tensor(msg["value"])
        kind = type(innermost(fn)).__name__
        own = f"the value of {name!r} has shape {tuple(value.shape)}"
        frames = {f.dim: f.name for f in msg["cond_indep_stack"] if f.vectorized}
        inside = "".join(f" in the plate {plate!r}" for plate in frames.values())
        whole = f"its distribution, {kind}, has shape {tuple(fn.shape())}{inside}"
        try:
            with torch.no_grad():
                density = log_prob(msg)
        except Exception as error:
            if name in run.observed:  # a class that is none is an index out of range
                _require_support(name, msg, run)
            what = textwrap.shorten(str(error), 300, placeholder=" ...") or "no message"
            raise ModelError(
                f"the density of the site {name!r} cannot be computed; {own}, and {whole}: "
                f"{type(error).__name__}: {what}"
            ) from error
        batch = value.shape[: value.ndim - len(fn.event_shape)]
        fits = density.shape in (batch, fn.batch_shape) and not _repeats(density, batch, frames)
        if name in run.observed and not fits:
            raise ModelError(
                f"{own}, but {whole}, and the two together would make "
                f"{density.numel()} terms: give one of them the shape of the other, as by "
                "squeeze(-1) or unsqueeze(-1)"
            )


def _repeats(density: Tensor, batch: Sequence[int], plates: Container[int]) -> bool:
    """Whether a log density counts one observed value many times, along no plate.

    A plate tells that its rows share what they observe, and a number without dimensions is for all
    entries of a distribution. Else ``[N, 1]`` beside ``[N]`` has become N N terms.
    """
    return len(batch) > 0 and any(
        density.shape[dim] > 1 and dim not in plates and (-dim > len(batch) or batch[dim] == 1)
        for dim in range(-density.ndim, 0)
    )


def _require_tensor(name: str, value: Any) -> None:
    """Check that what a site observes is a tensor or a number."""
    if not isinstance(value, Tensor | Number):
        dtype = torch.get_default_dtype()
        raise ModelError(
            f"the site {name!r} observes {_kind(value)}, but distributions of torch take tensors: "
            f"write obs=torch.as_tensor(..., dtype={dtype}), or dtype=torch.long for classes"
        )


def require_supports(run: Evaluate) -> None:
    """Check that every value that a run observes lies in its distribution's support.

    Args:
        run: The model, evaluated with marks.

    Raises:
        DataError: If one lies outside, unless the support depends on latent sites.
    """
    for name, msg in run.observed.items():
        if not is_point(msg["fn"]):
            _require_support(name, msg, run)


def _require_support(name: str, msg: Mapping[str, Any], run: Evaluate) -> None:
    """Check that an observed value, where no mask hides it, lies in a support that is fixed."""
    support, value, mask = msg["fn"].support, torch.as_tensor(msg["value"]), msg["mask"]
    if run.sources(name, bounds_of(support)) or isinstance(msg["fn"], dist.MaskedDistribution):
        return
    try:
        outside = ~support.check(value) | _is_impossible_infinity(msg, support.event_dim)
    except NotImplementedError:  # a support of the user's own
        return
    if mask is not None:
        outside = outside & torch.as_tensor(mask)
    if bool(outside.any()):
        some = value[outside] if outside.shape == value.shape[: outside.ndim] else value
        raise DataError(
            f"the site {name!r} observes {', '.join(f'{v:g}' for v in some.flatten()[:5])}, "
            f"outside the support of its {type(innermost(msg['fn'])).__name__}, {support}"
        )


def _is_impossible_infinity(msg: Mapping[str, Any], event_dim: int) -> Tensor:
    """Where a value is infinite and has no density; torch's supports hold infinities."""
    value = torch.as_tensor(msg["value"])
    infinite: Tensor = (
        value.isinf().flatten(value.ndim - event_dim).any(-1) if event_dim else value.isinf()
    )
    if not bool(infinite.any()):
        return infinite
    with torch.no_grad():
        return infinite & ~log_prob(msg).isfinite()


def _where(error: Exception) -> tuple[str, str]:
    """The site whose sample statement failed, or "", and the last line of the user's own code."""
    site = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is pyro.sample.__code__:
            site = frame.f_locals["name"]
    return site, users_line(error)


def users_line(error: Exception) -> str:
    """The last line of the user's own code that an error went through, or ""."""
    line = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_globals["__name__"].partition(".")[0] not in NOT_THE_USERS:
            line = linecache.getline(frame.f_code.co_filename, number).strip()
    return line


def _way_out(error: Exception, named: Mapping[str, Any]) -> str:
    """What to do about arguments that are no tensors, or of another dtype than those of sites."""
    leaves = dict(_leaves(named))
    default = torch.get_default_dtype()
    arrays: list[str] = []
    if isinstance(error, TypeError | AttributeError) or "numpy" in str(error).lower():
        arrays += [name for name, value in leaves.items() if _is_array(value)]
    if OF_LISTS.search(str(error)):
        arrays += [name for name, value in leaves.items() if _is_list_of_numbers(value)]
    if arrays:
        kinds = ", ".join(f"{name} is {_kind(leaves[name])}" for name in arrays)
        return f"; {kinds}: pass tensors, as torch.as_tensor({arrays[0]}, dtype={default})"
    if "inhomogeneous total_count" in str(error):
        return (
            "; torch's Multinomial has one total for all rows: write a site for each row, in a "
            "loop for i in pyro.plate(...), with total_count=int(totals[i])"
        )
    if isinstance(error, RuntimeError) and OTHER_DTYPES.search(str(error)):
        found = {k: v.dtype for k, v in leaves.items() if isinstance(v, Tensor)}
        others = {k: t for k, t in found.items() if t.is_floating_point and t != default}
        if others:
            name, dtype = next(iter(others.items()))
            kinds = ", ".join(f"{k} is {t}" for k, t in others.items())
            return (
                f"; {kinds}, but what the model makes itself, draws of its sites too, is {default},"
                f" torch's default: pass {name}.to({default}), or call "
                f"torch.set_default_dtype({dtype}) before"
            )
    return ""


def _leaves(named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments by name, and the values of those that are dicts and lists of other things."""
    for name, value in named.items():
        if isinstance(value, Mapping):
            yield from _leaves({f"{name}[{key!r}]": part for key, part in value.items()})
        elif isinstance(value, list | tuple) and not _is_list_of_numbers(value):
            yield from _leaves({f"{name}[{place}]": part for place, part in enumerate(value)})
        else:
            yield name, value


def _is_array(value: Any) -> bool:
    """Whether a value is an array of another library than torch."""
    return hasattr(value, "__array__") and not isinstance(value, Tensor | Number)


def _is_list_of_numbers(value: Any) -> bool:
    """Whether a value is a list of numbers, or of such lists."""
    return isinstance(value, list | tuple) and all(
        isinstance(part, Number) or _is_list_of_numbers(part) for part in value
    )


def _kind(value: Any) -> str:
    """What a value is: ``a NumPy array``, ``a Series of pandas``, ``a list``."""
    cls, (library, *_) = type(value).__name__, type(value).__module__.split(".")
    if library == "numpy":
        return "a NumPy array"
    return f"a {cls}" if library == "builtins" else f"a {cls} of {library}"


def _shapes(named: Mapping[str, Any]) -> str:
    """The arguments with their names and shapes: ``x (5, 2), num_groups 3``."""
    return ", ".join(f"{name} {_shape(value)}" for name, value in named.items()) or "none"


def _named(model: Model, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the names that the model gives them."""
    module, inner = module_of(model), cast(Model, unhandled(model)[0])
    named: dict[str, Any] = {}
    try:
        bound = inspect.signature(inner if module is None else module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):  # not as the model takes them, or not known
        named = {f"argument {place}": value for place, value in enumerate(args, 1)} | {**kwargs}
    else:
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                named.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                named.update({f"{name}[{place}]": part for place, part in enumerate(value)})
            else:
                named[name] = value
    return named


def _shape(value: Any) -> str:
    if hasattr(value, "shape"):
        return str(tuple(value.shape))
    if isinstance(value, list | tuple | dict | set):
        return f"{type(value).__name__} of {len(value)}"
    return reprlib.repr(value)
