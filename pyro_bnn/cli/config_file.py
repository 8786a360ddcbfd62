"""``--config FILE``: options of a command out of a TOML file, before those of the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pyro_bnn.errors import FileFormatError, OptionError, UnknownNameError

FLAG = "--config"
Takes: TypeAlias = Literal["nothing", "value", "values"]


def with_file(args: Sequence[str], command: str, options: Mapping[str, Takes]) -> list[str]:
    """Arguments with the options of the file that they name in its place, first.

    The table ``[compare]`` of the file has options of ``pyro-bnn compare``: strings, numbers,
    lists, of which the parts are joined by commas where the option takes one value, and true for a
    flag. An option that is given as well replaces the file's.

    Args:
        args: Arguments of a command.
        command: Its name.
        options: Its options, such as ``"--steps"``, and what each takes.

    Raises:
        FileFormatError: If the file cannot be read, or is no TOML.
        OptionError: If it has no such table, or a value that no option takes, or there are two.
        UnknownNameError: If the command has no such option.
    """
    rest: list[str] = []
    files = []
    rest_of_args = iter(args)
    for arg in rest_of_args:
        name, equals, value = arg.partition("=")
        file = (value if equals else next(rest_of_args, None)) if name == FLAG else None
        if file is None:
            rest.append(arg)
        else:
            files.append(file)
    if not files or {"-h", "--help"} & set(rest):
        return rest
    if len(files) > 1 or not files[0]:
        raise OptionError(f"{FLAG} names one file, not {' and '.join(map(repr, files))}")
    typed = {arg.partition("=")[0] for arg in rest}
    of_file = _options(files[0], command, options).items()
    made = [arg for flag, texts in of_file if flag not in typed for arg in texts]
    return [*made, *rest]


def _options(file: str, command: str, options: Mapping[str, Takes]) -> dict[str, list[str]]:
    """The arguments that each option in a table of a file stands for."""
    names = {flag.removeprefix("--"): kind for flag, kind in options.items() if flag != FLAG}
    made: dict[str, list[str]] = {}
    for key, value in _table(file, command).items():
        name = key.replace("_", "-")
        if name not in names:
            raise UnknownNameError(f"option in [{command}] of {file}", key, names)
        is_flag, parts = names[name] == "nothing", value if isinstance(value, list) else [value]
        if any(is_flag != isinstance(part, bool) or isinstance(part, dict) for part in parts):
            wanted = "true or false" if is_flag else "text, a number or a list"
            raise OptionError(f"{key} in [{command}] of {file} is {wanted}, not {value!r}")
        flag, texts = f"--{name}", [str(part) for part in parts]
        if is_flag:
            made[flag] = [flag] if any(parts) else []
        else:
            texts = texts if names[name] == "values" else [",".join(texts)]
            made[flag] = [f"{flag}={text}" for text in texts]
    return made


def _table(file: str, command: str) -> dict[str, Any]:
    """The options of a command in a file."""
    try:
        document = tomllib.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise FileFormatError(f"{file}: {error.strerror}") from error
    except ValueError as error:  # of TOML, or of text that is not UTF-8
        raise FileFormatError(f"{file} is no TOML: {error}") from error
    table = document.get(command)
    if not isinstance(table, dict):
        has = f"only {', '.join(f'[{name}]' for name in document)}" if document else "nothing"
        raise OptionError(f"{file} has no table [{command}], {has}")
    return table
