"""``--config FILE``: options of a command out of a TOML file, before those of the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyro_bnn.errors import FileFormatError, OptionError, UnknownNameError

FLAG = "--config"


def with_file(args: Sequence[str], command: str, options: Mapping[str, bool]) -> list[str]:
    """Arguments with the options of the file that they name in its place, first.

    The table ``[compare]`` of the file has options of ``pyro-bnn compare``: strings, numbers,
    lists, of which the parts are joined by commas, and true for a flag. An option that is given
    as well replaces the file's.

    Args:
        args: Arguments of a command.
        command: Its name.
        options: Its options, such as ``"--steps"``; whether each is a flag.

    Raises:
        FileFormatError: If the file cannot be read, or is no TOML.
        OptionError: If it has no such table, or a value that no option takes.
        UnknownNameError: If the command has no such option.
    """
    rest: list[str] = []
    file = None
    given = iter(args)
    for arg in given:
        name, equals, value = arg.partition("=")
        if name == FLAG and (equals or (value := next(given, ""))):
            file = value
        else:
            rest.append(arg)
    if file is None:
        return rest
    names = {flag.removeprefix("--"): is_flag for flag, is_flag in options.items() if flag != FLAG}
    made = []
    for key, value in _table(file, command).items():
        name = key.replace("_", "-")
        if name not in names:
            raise UnknownNameError(f"option in [{command}] of {file}", key, names)
        if names[name] != isinstance(value, bool) or isinstance(value, Mapping):
            wanted = "true or false" if names[name] else "text, a number or a list"
            raise OptionError(f"{key} in [{command}] of {file} is {wanted}, not {value!r}")
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if value is not False:
            made.append(f"--{name}" if names[name] else f"--{name}={text}")
    return [*made, *rest]


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
