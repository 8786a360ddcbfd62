r"""The predictive distribution of fixed draws as one program of torch operations, and its files.

.. math:: x \mapsto \Bigl\{ \tfrac1S \sum_s E(y \mid x, z_s),\ \dots \Bigr\}

The model is recorded at all draws at once, so that neither Pyro nor this package is needed where
the program runs.
"""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.node import map_aggregate

from pyro_bnn.capture.any_rows import record_any_rows, some_rows
from pyro_bnn.data import Standardiser
from pyro_bnn.errors import CaptureError, ModelError, OptionError, OutputError
from pyro_bnn.files.atomic import output
from pyro_bnn.predictive.common_noise import at_levels, levels_of_draws
from pyro_bnn.predictive.conditional import Conditional
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.map_draws import collapsed
from pyro_bnn.predictive.moments import (
    entropy,
    interpolated,
    normal_mixture_quantiles,
    places_of_parts,
)
from pyro_bnn.predictive.prediction import Prediction
from pyro_bnn.program.batched import plain_attention, without_fast_path
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

SUFFIXES = (".pt2", ".onnx")
QUANTILES = ("low", "median", "high")
PLACES = ("mean", *QUANTILES)  # the other numbers are distances between such
TOLERANCE = 1e-3  # by which the program may differ from a prediction, in sds or shares
IN_DOUBLE = 1e-5  # the same of quantiles of models in double precision
SLACK = 1e-6  # probability by which quantiles may differ: between two far modes any is right
INPUT, ROWS = "x", "rows"


@dataclass
class Summary:
    """What is computed of rows at all draws, in the model's units.

    Of a posterior of K points, each of which is drawn as often, these are computed once.

    Attributes:
        program: What predictions are of.
        params: Values of the model's point-estimated parameters.
        draws: Draws ``[S, Q]``.
        seed: Of the noise of y.
        level: Probability of the interval from low to high; None leaves quantiles out.
        has_moments: Whether means and sds over draws are to be relied on; else they are left out.
        names: Of what was computed last.
        is_number: Whether that describes numbers, and no classes.
    """

    program: Program
    params: Params
    draws: Draws
    seed: int
    level: float | None
    has_moments: bool
    names: tuple[str, ...] = ()
    is_number: bool = False
    _z: Tensor = field(init=False)
    _order: Tensor | None = field(init=False, default=None)
    _noise: Tensor = field(init=False)  # made here: a program draws no random numbers

    def __post_init__(self) -> None:
        atoms = self.draws.atoms
        if atoms is not None and len(self.draws) % len(atoms.points) == 0:
            self._z, self._order = atoms.points, atoms.order  # each as often as the others
        else:
            self._z = self.draws.together().flatten(0, 1)
        self._noise = levels_of_draws(len(self.draws), self.seed)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Numbers ``[N, O]`` or probabilities ``[N, C]`` of rows x in the model's units."""
        f, *tensors = self.program.predictive_tensors(self._z, x, self.params)
        fn, _ = self.program.observed(self._z[0], x, self.params)
        given = Conditional(fn, tensors, f.shape[1], None, self.has_moments)
        self.is_number = given.is_number
        found = self._of_numbers(given) if given.is_number else _of_classes(given)
        self.names = tuple(found)
        return tuple(found.values())

    def _of_numbers(self, given: Conditional) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        means, variances = given.means(), given.variances()
        if self.has_moments:
            epistemic, aleatoric = means.var(0, correction=0), variances.mean(0)
            found = {
                "mean": means.mean(0),
                "sd": (epistemic + aleatoric).sqrt(),
                "sd_epistemic": epistemic.sqrt(),
                "sd_aleatoric": aleatoric.sqrt(),
            }
        if self.level is not None:
            try:
                quantiles = self._quantiles(given, means, variances, self.level)
            except CaptureError:  # by an inverse of SciPy
                quantiles = None
            if quantiles is not None:
                found |= dict(zip(QUANTILES, quantiles.unbind(0), strict=True))
        return found

    def _quantiles(
        self, given: Conditional, means: Tensor, variances: Tensor, level: float
    ) -> Tensor | None:
        """Three quantiles ``[3, N, O]``; None where y is discrete or has no inverse."""
        if given.is_discrete:
            return None
        levels = _levels(level)
        if given.is_normal:
            return normal_mixture_quantiles(levels, means, variances.sqrt())
        if (order := self._order) is not None:
            each = [(value, collapsed(value)[order]) for value in given.tensors]
            given = replace(given, tensors=[v.expand(len(order), *of.shape[1:]) for of, v in each])
        y = given.of(0, len(given))
        noisy = at_levels(y, self._noise)
        if noisy is None:
            return None
        ordered = (noisy if y.event_shape else noisy.unsqueeze(-1)).sort(0).values
        return interpolated(ordered, places_of_parts(levels.to(ordered), len(ordered)))


def _of_classes(given: Conditional) -> dict[str, Tensor]:
    each = given.class_probs()
    probs = each.mean(0)
    total = entropy(probs)
    information = (total - entropy(each).mean(0)).clamp(min=0)
    return {"probs": probs, "entropy": total, "mutual_information": information}


class Served(nn.Module):
    """Rows in the user's units to named outputs in the user's units.

    Args:
        core: Recorded operations of rows in the model's units.
        names: Of what they return.
        dtype: Of the rows that they take.
        inputs: Units of x; None where rows come in the model's.
        target: Units of y; None for classes, or where outputs are in the model's.
    """

    def __init__(
        self,
        core: GraphModule,
        names: tuple[str, ...],
        dtype: torch.dtype,
        inputs: Standardiser | None,
        target: Standardiser | None,
    ) -> None:
        super().__init__()
        self.core, self.names, self.dtype = core, names, dtype
        self.inputs, self.target = inputs, target

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Outputs of rows ``[N, ...]``, each ``[N, ...]``, by name."""
        if self.inputs is not None:
            x = self.inputs.transform(x)
        found = dict(zip(self.names, self.core(x.to(self.dtype)), strict=True))
        if (units := self.target) is not None:
            for name, value in found.items():
                found[name] = units.inverse(value) if name in PLACES else value * units.scale
        return found


def served(summary: Summary, rows: Tensor, inputs: Standardiser | None, target: Any) -> Served:
    """The program of a posterior, for any number of rows.

    Args:
        summary: What is computed.
        rows: Example rows ``[N, ...]`` in the units in which rows come.
        inputs: Units of x, or None.
        target: Units of y, or None.

    Raises:
        ModelError: If the model is no fixed sequence of operations.
    """
    program = summary.program
    x = rows if inputs is None else inputs.transform(rows)
    x = program.plain_inputs(x)  # rows, not features of a frozen body
    with torch.no_grad(), plain_attention(), without_fast_path():  # kernels that others have too
        summary(x[:1])  # outside of a recording: what is checked once reads numbers
        try:
            core = record_any_rows(summary, x)
        except CaptureError as error:
            raise ModelError(
                f"the model cannot be exported: {error}. Save it by posterior.save(path) and serve "
                "posterior.predict, which runs the model itself"
            ) from error
    device = program.device
    return Served(
        core,
        summary.names,
        program.x_dtype,
        None if inputs is None else inputs.to(device),
        None if target is None or not summary.is_number else target.to(device),
    )


def compare(
    program: Callable[[Tensor], Mapping[str, Tensor]],
    rows: Tensor,
    of: Prediction,
    level: float | None,
    dtype: torch.dtype,
) -> None:
    """Check a program against a prediction by the same draws.

    Args:
        program: Rows to outputs by name.
        rows: Some rows.
        of: The prediction at these rows.
        level: Probability of the interval from low to high.
        dtype: Precision of the model.

    Raises:
        ModelError: If they differ.
    """
    with torch.no_grad():
        found = program(rows)
    sd = of.sd if "sd" in found else None
    for name in ("probs", "mean", "sd"):
        if name in found:
            error = found[name] - getattr(of, name)
            error = error if sd is None else error / sd.clamp(min=1e-30)
            _require_small(name, error.abs().nan_to_num(0), TOLERANCE)
    if level is not None and QUANTILES[0] in found:
        tolerance = IN_DOUBLE if dtype is torch.float64 else TOLERANCE
        unit = _half_width(of)
        if sd is not None:
            unit = torch.where(sd.isfinite(), sd, unit)
        for name, p in zip(QUANTILES, _levels(level).tolist(), strict=True):
            slack = min(SLACK, p / 2, (1 - p) / 2)
            least, most = of.quantile([p - slack, p + slack])
            outside = torch.maximum(least - found[name], found[name] - most).clamp(min=0)
            # two infinite ones are equal; a number that is none is far from one that is
            outside = outside.nan_to_num(0).where(~found[name].isnan() | least.isnan(), math.inf)
            _require_small(name, outside / unit.clamp(min=1e-30), tolerance)


def _half_width(of: Prediction) -> Tensor:
    """Half the width of the central 68%, which is the sd of a Gaussian and exists of all."""
    low, high = of.quantile([0.16, 0.84]).unbind()
    return (high - low) / 2


def _require_small(name: str, error: Tensor, tolerance: float) -> None:
    if not bool((error < tolerance).all()):
        raise ModelError(
            f"the exported program would give another {name}, off by {float(error.max()):.2g}: the "
            "model does not do the same for other rows. Save it by posterior.save(path) and serve "
            "posterior.predict"
        )


def _levels(level: float) -> Tensor:
    """Probabilities of the three quantiles."""
    return torch.tensor([(1 - level) / 2, 0.5, (1 + level) / 2], dtype=torch.float64)


def write(program: Served, rows: Tensor, path: Path) -> None:
    """Write a program to a file of the kind that its suffix says.

    Raises:
        OutputError: If the file cannot be written.
        OptionError: If the packages of ONNX are missing.
    """
    if path.suffix == ".onnx":
        program = Served(
            in_single(program.core),
            program.names,
            torch.float32 if program.dtype.is_floating_point else program.dtype,
            program.inputs,
            program.target,
        )
    dynamic = {INPUT: {0: torch.export.Dim(ROWS)}}
    with torch.no_grad():
        example = some_rows(rows, 3)  # of one alone torch takes 1 for a number
        exported = torch.export.export(program, (example,), dynamic_shapes=dynamic)
    try:
        with output(path) as place:
            if path.suffix == ".onnx":
                _write_onnx(exported, program.names, place)
            else:
                written = io.BytesIO()  # torch tells of files whose names do not end in .pt2
                torch.export.save(exported, written)
                place.write_bytes(written.getvalue())
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def _write_onnx(exported: Any, names: tuple[str, ...], path: Path) -> None:
    own = logging.getLogger("torch.onnx")  # it tells that torchvision is not installed
    level = own.level
    own.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():  # of its own use of torch
            warnings.simplefilter("ignore")
            made: Any = torch.onnx.export(exported, dynamo=True, input_names=[INPUT], verbose=False)
    finally:
        own.setLevel(level)
    graph = made.model.graph
    for number, value in enumerate(value for node in graph for value in node.outputs):
        value.name = f"value_{number}"  # torch may call one of them by the name of an output
    for value, name in zip(graph.outputs, names, strict=True):
        value.name = name
    made.save(path)


def require_suffix(path: Path) -> None:
    """Check that a file has a name that says its kind, and that it can be made.

    Raises:
        OptionError: If not.
    """
    if path.suffix not in SUFFIXES:
        raise OptionError(
            f"{str(path)!r} ends in {path.suffix!r}: name a file that ends in .pt2, a program of "
            "torch.export, or in .onnx"
        )
    if path.suffix == ".onnx":
        try:
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise OptionError(
                f"{str(path)!r} is an ONNX file, which the package onnxscript writes: "
                "pip install 'pyro-bnn[onnx]'"
            ) from error


def in_single(core: GraphModule) -> GraphModule:
    """The same operations in single precision: ONNX Runtime lacks many of double."""

    def single(value: Any) -> Any:
        return torch.float32 if value is torch.float64 else value

    found = GraphModule(core, core.graph)  # a copy of the graph
    for node in found.graph.nodes:
        node.args, node.kwargs = cast(Any, map_aggregate((node.args, node.kwargs), single))
        if node.op == "get_attr":
            value = getattr(found, node.target)
            if value.dtype is torch.float64:
                setattr(found, node.target, value.float())
    found.recompile()
    return found
