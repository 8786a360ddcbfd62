"""How a command declares its options: fields of dataclasses, which are groups of its help.

An option of one command is a field of the group in that command's file, one of several commands a
field of a group in `pyro_bnn.cli.options`. A parameter of a command that is a group becomes the
options of its fields.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from pyro_bnn.cli.config_file import FLAG, Takes
from pyro_bnn.cli.results import Result, show
from pyro_bnn.errors import OptionError

Command = Callable[..., Iterator[Result]]
METAVARS = {int: "N", str: "NAME", Path: "FOLDER"}
MOST_DRAWS = 100_000  # more of 1,000 numbers each are beyond the bound on memory


def option(
    text: str,
    default: Any = None,
    *,
    metavar: str | None = None,
    spelt: str | None = None,
    shown: str | bool = True,
    **more: Any,
) -> Any:
    """A field of a group that is an option.

    Args:
        text: What the help says of it.
        default: Its value where it is not given; ``...`` if it must be.
        metavar: What stands for a value in the help; by default that of the field's type in
            `METAVARS`.
        spelt: Its spelling, where that does not follow from the field's name.
        shown: What the help says of the default where it is not the value itself.
        more: As ``typer.Option`` takes it, such as ``min``.
    """
    flags = [] if spelt is None else [spelt]
    info = typer.Option(default, *flags, metavar=metavar, help=text, show_default=shown, **more)
    value = {} if default is ... else {"default": default}
    return dataclasses.field(**value, metadata={"option": info})


def flag(name: str, text: str) -> Any:
    """A field of a group that is an option without a value: it is there, or not."""
    return option(text, False, spelt=name)  # noqa: FBT003


def named(kind: str) -> Callable[[str], list[str]]:
    """What a shell completes a value by: the names of a kind in 'pyro-bnn list'."""

    def complete(incomplete: str) -> list[str]:
        from pyro_bnn.cli.catalogue import catalogue

        return [name for name in catalogue()[kind] if name.startswith(incomplete)]

    return complete


class GroupedCommand(TyperCommand):
    """A command whose help has the options of each group under its heading."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Refuse an empty value: as a path it would be the working directory.

        Raises:
            OptionError: If there is one; names its option or argument.
        """
        typed, _, _ = self.make_parser(ctx).parse_args(list(args))
        for parameter in self.get_params(ctx):
            value = typed.get(parameter.name)
            if "" in (value if isinstance(value, (list, tuple)) else [value]):
                name = parameter.opts[0]
                if parameter.param_type_name == "argument":
                    name = str(parameter.metavar)
                raise OptionError(
                    f"{name} is empty, as of a shell variable that is not set: give a value, or "
                    "leave it out"
                )
        return super().parse_args(ctx, args)

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the arguments and options, sections in the order of what is first in each."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                other = "Options" if parameter.param_type_name == "option" else "Arguments"
                heading = getattr(parameter, "rich_help_panel", None) or other
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def values_taken(command: TyperCommand) -> dict[str, Takes]:
    """The options of a command, such as ``--steps``, and what each takes."""

    def kind(parameter: Any) -> Takes:
        if getattr(parameter, "is_flag", False):
            return "nothing"
        return "values" if parameter.multiple else "value"

    spelt = ((name, parameter) for parameter in command.params for name in parameter.opts)
    return {name: kind(parameter) for name, parameter in spelt if name.startswith("--")}


def spread(
    *,
    without: Collection[str] = (),
    unlisted: Collection[str] = (),
    fails_on: Sequence[str] = (),
    **changed: Any,
) -> Callable[[Command], Callable[..., None]]:
    """Turn the parameters of a command that are groups into the options of these.

    The command yields its result, which is printed. It gets ``--json`` and ``--config``, and
    ``--fail-on`` where its verdicts may fail it.

    Args:
        without: Options that the command does not have; they keep their defaults.
        unlisted: Options that its help leaves out.
        fails_on: What ``--fail-on`` may name.
        changed: By name of an option another default, or what :func:`option` gives in its place.
    """

    def decorate(command: Command) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        options = {
            p.name: [o for o in _options(p.annotation, unlisted, changed) if o.name not in without]
            for p in parameters
            if dataclasses.is_dataclass(p.annotation)
        }

        @functools.wraps(command)
        def spread_command(
            *, as_json: bool, config: str | None, fail_on: Sequence[str] = (), **values: Any
        ) -> None:
            del config  # main has put its options in its place
            for p in parameters:
                if p.name in options:
                    of_group = {one.name: values.pop(one.name) for one in options[p.name]}
                    values[p.name] = p.annotation(**of_group)
            show(command, values, as_json=as_json, fail_on=fail_on)

        every = [one for p in parameters for one in options.get(p.name, [p])]
        every += [*_options(Printed), *([_fail_on(fails_on)] if fails_on else [])]
        spread_command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        return spread_command

    return decorate


def _options(
    group: Any, unlisted: Collection[str] = (), changed: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[inspect.Parameter]:
    """The fields of a group as typer takes parameters."""
    types = get_type_hints(group)
    for field in dataclasses.fields(group):
        other = changed.get(field.name, field)
        info = copy.copy(getattr(other, "metadata", field.metadata)["option"])
        if not isinstance(other, dataclasses.Field):
            info.default, info.show_default = other, True
        kinds = types[field.name], *get_args(types[field.name])  # of int | None too
        info.metavar = info.metavar or next((METAVARS[k] for k in kinds if k in METAVARS), None)
        info.hidden, info.rich_help_panel = field.name in unlisted, getattr(group, "heading", None)
        yield _keyword(field.name, info, types[field.name])


def _keyword(name: str, info: Any, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind)


def _fail_on(names: Sequence[str]) -> inspect.Parameter:
    """The option ``--fail-on`` with these words."""
    make: Any = StrEnum  # whose members mypy would see as literals alone
    words = make("Unwanted", {name: name for name in names})
    text = (
        f"End with exit code 3 if there is such a verdict: {', '.join(names)}; may be given "
        "several times."
    )
    info = option(text, (), metavar="WORD", spelt="--fail-on", shown="nothing").metadata["option"]
    return _keyword("fail_on", info, list[words])  # type: ignore[valid-type]


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What every command takes."""

    as_json: bool = flag(
        "--json", "Print one JSON document, and what is said on the way as errors are."
    )
    config: str | None = option(
        "TOML file whose table of this command's name has options, such as steps = 2000; what "
        "stands on the command line as well replaces it.",
        metavar="FILE.toml",
        spelt=FLAG,
        shown="none",
    )
