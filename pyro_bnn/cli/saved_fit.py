"""A fit in a folder: the posterior, and all it takes to rebuild its model and read new rows."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import typing
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyro_bnn.cli import training_file
from pyro_bnn.cli.networks import NetworkSpec
from pyro_bnn.cli.uncertainty import Uncertainty
from pyro_bnn.data import Dataset, Split
from pyro_bnn.data.labels import Task
from pyro_bnn.data.split import Column
from pyro_bnn.diagnostics.novelty import Novelty
from pyro_bnn.errors import BNNError, DataError, FileFormatError
from pyro_bnn.files.atomic import made_folder, written
from pyro_bnn.files.schema import expect, require_version
from pyro_bnn.files.tensors import read_json
from pyro_bnn.plotting.numbers import number
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.program.device import on_device
from pyro_bnn.report.evaluation.evaluate import split_with_draws
from pyro_bnn.report.evaluation.held_out import held_out
from pyro_bnn.report.output.page import versions

POSTERIOR_FILE, TRAINING_FILE = "posterior.safetensors", "training.safetensors"
FIT_FILE = "fit.json"
FILES = (POSTERIOR_FILE, TRAINING_FILE, FIT_FILE)
FORMAT, VERSION = "pyro_bnn fit", 2
LARGEST_LOC = 1e9  # in sds: float64 then still resolves 1e-6 of an sd
BYTES_OF_A_WEIGHT = 2  # bytes of the narrowest dtype
BYTES_OF_A_LAYER = 20  # the file names its sites and their shapes
SIZE = range(1, 1 << 62)
NAMES = (None, [str])
SCHEMA: dict[Any, Any] = {
    "network": {
        "model": str,
        "num_inputs": SIZE,
        "num_outputs": SIZE,
        "num_classes": (None, SIZE),
        "hidden": [SIZE],
        "activation": str,
        "prior": (None, str),
        "likelihood": str,
        "seed": range(1 - (1 << 63), 1 << 63),
        "image_shape?": (None, [SIZE]),
        "depth?": (None, SIZE),
        "width?": (None, SIZE),
    },
    "columns": [{"name": str, "categories": NAMES}],
    "task": frozenset(typing.get_args(Task)),
    "target_name": (None, str),
    "class_names": NAMES,
    "data": str,
    "num_rows": int,
    "split": (None, int),
    "uncertainty": {
        "measure": str,
        "median": (None, float),
        "maximum": (None, float),
        "num_rows?": (None, int),
    },
    "held_out": (None, {str: float}),
    "command": str,
    "target_names": NAMES,
    ...: object,  # what a reader wants to know, and the checksum
}


@dataclass(frozen=True, kw_only=True)
class SavedFit:
    """One fit of a network of the command line, with what is needed to predict a file.

    Args:
        posterior: The posterior.
        network: What its model is made from.
        columns: Input columns of the data, in the order of the inputs.
        task: What the target is.
        target_name: Its name; None where unknown.
        class_names: Names of the classes, or None.
        data: Name of the data set.
        num_rows: Number of rows that were fitted.
        split: Number of the split whose training rows were fitted; None for all rows.
        uncertainty: Epistemic uncertainty of these rows.
        held_out: Scores on the held-out rows, by name; None where there were none.
        command: What was run.
        target_names: Names of several targets; None where there is one.
        novelty: The inputs of these rows, or of some of many, to which new rows are measured.
    """

    posterior: Posterior
    network: NetworkSpec
    columns: tuple[Column, ...]
    task: Task
    target_name: str | None
    class_names: tuple[str, ...] | None
    data: str
    num_rows: int
    split: int | None
    uncertainty: Uncertainty
    held_out: Mapping[str, float] | None
    command: str
    target_names: tuple[str, ...] | None
    novelty: Novelty

    @classmethod
    def of(
        cls,
        posterior: Posterior,
        network: NetworkSpec,
        columns: tuple[Column, ...],
        rows: Split,
        *,
        all_rows: bool = False,
        command: str = "",
    ) -> SavedFit:
        """A posterior of the training rows of a split, with what follows from both.

        Args:
            posterior: The posterior.
            network: What its model is made from.
            columns: Input columns of the data.
            rows: The data.
            all_rows: Whether the training rows are all rows, so that there is nothing to score.
            command: What was run.
        """
        data, seed = rows.train, posterior.seed
        class_names = data.class_names
        if class_names is None and data.num_classes is not None:
            class_names = tuple(map(str, range(data.num_classes)))
        return cls(
            posterior=posterior,
            network=network,
            columns=columns,
            task=rows.task,
            target_name=data.target_name,
            class_names=class_names,
            data=rows.name,
            num_rows=len(data),
            split=None if all_rows else rows.index,
            uncertainty=Uncertainty.of(posterior, data, seed),
            held_out=None if all_rows else held_out_scores(posterior, rows, seed),
            command=command,
            target_names=_target_names(data),
            novelty=training_file.novelty(data.x, columns, seed),
        )

    def summary(self) -> str:
        """The scores on held-out rows, with a line for each of several targets, or why not."""
        if self.held_out is None:
            return f"All {self.num_rows:,} rows were fitted: none is left to score"
        return "\n".join(_score_lines(self.held_out, self.target_name, self.target_names))

    def save(self, folder: str | Path) -> None:
        """Write ``posterior.safetensors``, ``training.safetensors`` and ``fit.json``.

        Files of these names are replaced, or all of them stay.

        Raises:
            OutputError: If a file cannot be written.
        """
        folder = made_folder(folder)
        plain = dataclasses.replace(self, posterior=None, novelty=None)  # type: ignore[arg-type]  # not copied
        document = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(plain)}
        del document["posterior"], document["novelty"]
        document |= {"method": self.posterior.method, "seed": self.posterior.seed}
        document["versions"] = dict(versions())
        document["crc32"] = _crc32(document)
        text = json.dumps(document, indent=1, ensure_ascii=False)
        with (  # all are written before any takes its place
            written(folder / FIT_FILE, follow=False) as fit,
            written(folder / TRAINING_FILE, follow=False) as training,
            written(folder / POSTERIOR_FILE, follow=False) as posterior,
        ):
            self.posterior.save(posterior)
            training_file.write(self.novelty, training)
            fit.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> SavedFit:
        """Read a folder written by :meth:`save`; nothing in it is executed or unpickled.

        Args:
            folder: The folder.
            device: Where its posterior is to be, whatever device it was fitted on.

        Raises:
            FileFormatError: If it is missing, damaged, foreign or newer.
            OptionError: If there is no such device.
            SiteError: If its posterior is not of its network.
        """
        path, stored = Path(folder, FIT_FILE), Path(folder, POSTERIOR_FILE)
        document = _document(path)
        try:
            expect(document, SCHEMA, "it")
            values = {name: _tuples(document[name]) for name in SCHEMA if name is not ...}
            values["network"] = NetworkSpec(**values["network"])
            values["columns"] = tuple(Column(**column) for column in values["columns"])
            values["uncertainty"] = Uncertainty(**values["uncertainty"])
            _check(values)
            _check_size(values["network"], stored)
            model = values["network"].build()
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            what = str(error) if isinstance(error, BNNError) else repr(error)
            raise FileFormatError(f"{path} is damaged: {what}") from error
        posterior = Posterior.load(stored, on_device(model, device))
        novelty = training_file.read(Path(folder, TRAINING_FILE), values["columns"])
        return cls(posterior=posterior, novelty=novelty, **values)


# The file fit.json, which is read without trust


def _document(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileFormatError(
            f"{str(path.parent)!r} is not a folder of 'pyro-bnn fit': it has no {FIT_FILE}"
        )
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FileFormatError(f"{path} is not of 'pyro-bnn fit'")
    require_version(document, VERSION, path)
    if "crc32" in document and document.pop("crc32") != _crc32(document):
        raise FileFormatError(
            f"{path} is damaged, as its checksum is not that of its contents: take a copy of it, "
            "or fit again"
        )
    return document


def _crc32(document: Mapping[str, Any]) -> int:
    """The checksum of a document; those of earlier versions have none."""
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())


def _tuples(value: Any) -> Any:
    """A value of a JSON document with tuples for its lists."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _check(values: Mapping[str, Any]) -> None:
    """Check that the values of a fit are in their ranges and belong together.

    Raises:
        KeyError: If a score is missing.
        ValueError: If they are not.
    """
    network: NetworkSpec = values["network"]
    shape = network.image_shape or (network.num_inputs,)
    if math.prod(shape) != network.num_inputs:
        raise ValueError(f"images of {list(shape)!r:.50} are not its {network.num_inputs} inputs")
    num_inputs = sum(len(column.inputs) for column in values["columns"])
    if num_inputs != network.num_inputs:
        raise ValueError(
            f"its columns are {num_inputs} inputs, its network has {network.num_inputs}"
        )
    classes, targets = values["class_names"], values["target_names"]
    if (len(classes) if classes else None) != network.num_classes:
        raise ValueError("its network has another number of classes than it has names")
    if (len(targets) if targets else 1) != network.num_outputs:
        raise ValueError("its network has another number of targets than it has names")
    trained: Uncertainty = values["uncertainty"]
    if any(math.isnan(value or 0) for value in (trained.median, trained.maximum)):
        raise ValueError("its uncertainty is not a number")
    if values["held_out"] is not None:
        _score_lines(values["held_out"], values["target_name"], targets)


def _check_size(network: NetworkSpec, posterior: Path) -> None:
    """Check that the weights of a network are not more than a file of its posterior holds.

    Those of a network of images follow from its columns, each of which the file names, and from its
    depth and width: a residual network has at least depth - 2 convolutions of width squared.

    Raises:
        FileFormatError: If they are.
    """
    if network.image_shape is not None:
        layers = (network.depth or 2) - 2
        weights = max(9 * layers, 1) * (network.width or 1) ** 2
    else:
        outputs = network.num_outputs * (network.num_classes or 1)
        sizes = (network.num_inputs, *network.hidden, outputs)
        layers = len(sizes)
        weights = sum(rows * columns for rows, columns in itertools.pairwise(sizes))
    least = BYTES_OF_A_WEIGHT * weights + BYTES_OF_A_LAYER * layers
    if posterior.is_file() and posterior.stat().st_size < least:
        raise FileFormatError(f"its network has {weights} weights, more than {posterior} holds")


def _score_lines(
    scores: Mapping[str, float], target: str | None, targets: Sequence[str] | None
) -> list[str]:
    """Scores on held-out rows in words, with a line for each of several targets.

    Raises:
        KeyError: If a score is missing.
    """
    unit = "" if target is None else f" ({target})"
    unit = unit if targets is None else " sds of each target"
    lines = [f"Held-out, {scores['rows']:,} rows: {_words(scores, unit=unit)}"]
    return lines + [f"  {name}: {_words(scores, f' of {name}')}" for name in targets or ()]


def _words(scores: Mapping[str, float], of: str = "", unit: str = "") -> str:
    """Scores, of one target ``" of NAME"`` or of all, in words."""
    parts = []
    if not of or f"log_score{of}" in scores:
        parts.append(f"log score {number(scores[f'log_score{of}'])} nats a row")
    if "accuracy" in scores:
        return ", ".join([*parts, f"accuracy {100 * scores['accuracy']:.1f} %"])
    parts.append(f"RMSE {number(scores[f'rmse{of}'])}{unit}")
    return ", ".join([*parts, f"95 % interval covers {100 * scores[f'coverage{of}']:.1f} %"])


# What a fit is made of


def input_columns(split: Split) -> tuple[Column, ...]:
    """The input columns of data; where inputs have no names they are called ``x0, x1, ...``.

    Raises:
        DataError: If double precision cannot tell the values of an input or of the target apart.
    """
    _check_precision(split)
    return split.columns or tuple(map(Column, _input_names(split.train)))


def _input_names(data: Dataset) -> Sequence[str]:
    """The names of the inputs, or ``x0, x1, ...``; of images, of every pixel in a row."""
    num_inputs = math.prod(data.x.shape[1:])
    known = data.input_names
    return known if known and len(known) == num_inputs else [f"x{i}" for i in range(num_inputs)]


def _check_precision(split: Split) -> None:
    data = split.train
    targets = _target_names(data) or (data.target_name or "y",)
    parts = (
        (data.inputs, data.x, [f"column {name!r}" for name in _input_names(data)]),
        (data.target, data.y, [f"target {name!r}" for name in targets]),
    )
    for units, values, names in parts:
        if units is None or values.ndim > 2:  # images are refused where a network is made
            continue
        varies = values.amin(0) < values.amax(0)
        far = (units.loc.abs() > LARGEST_LOC * units.scale) & varies
        if bool(far.any()):
            first = int(far.reshape(-1).nonzero()[0])
            loc, scale = (float(value.reshape(-1)[first]) for value in (units.loc, units.scale))
            raise DataError(
                f"{split.name}: {names[first]} lies at {loc:.4g} with an sd of {scale:.2g}, too "
                "far for the precision of predictions: subtract a constant from it"
            )


def held_out_scores(posterior: Posterior, split: Split, seed: int) -> dict[str, float]:
    """Scores on the held-out rows, as :func:`pyro_bnn.report.compare` has them.

    Args:
        posterior: The posterior.
        split: Its data.
        seed: Seed of the draws.

    Returns:
        ``rows``, ``log_score`` (nats a row, in the file's units), then ``rmse`` and ``coverage``
        (share of rows inside the central 95 % interval), or ``accuracy``. Of several targets the
        ``rmse`` is in sds of each, and ``rmse of NAME``, ``coverage of NAME`` and, where there is
        one, ``log_score of NAME`` are in the units of one.
    """
    num_draws = posterior.count(None)
    some = split_with_draws(split, num_draws)
    scores = held_out(posterior, some, num_draws, seed, every_row=split.test)
    values = {"rows": len(split.test), "log_score": float(scores.log_score.mean())}
    if scores.coverage is None:
        return {**values, "accuracy": scores.accuracy}
    values |= {"rmse": scores.rmse, "coverage": scores.coverage.observed}
    for name, of_target in zip(_target_names(split.test) or (), scores.targets, strict=True):
        values |= {f"rmse of {name}": of_target.rmse}
        values |= {f"coverage of {name}": of_target.coverage.observed}
        if of_target.log_score is not None:
            values |= {f"log_score of {name}": float(of_target.log_score.mean())}
    return values


def _target_names(data: Dataset) -> tuple[str, ...] | None:
    """Names of several targets, ``y0, y1, ...`` where they have none; None where there is one."""
    count = data.y.shape[1] if data.y.ndim == 2 else 1
    return None if count == 1 else data.target_names or tuple(f"y{o}" for o in range(count))
