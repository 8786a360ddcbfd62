"""What ``pyro-bnn list`` shows: everything with a name, a sentence each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pyro_bnn.registry import KINDS, entries


def listing(columns: int) -> Iterator[str]:
    """Lines of the catalogue for a terminal with so many columns."""
    for kind, group in catalogue().items():
        width = max(len(name) for name in group)
        yield kind.capitalize()
        for name, sentence in group.items():
            start = f"  {name:{width}}  "
            room = max(columns, len(start) + 30)
            yield textwrap.fill(start + sentence, room, subsequent_indent=" " * len(start))
        yield ""


def catalogue() -> dict[str, dict[str, str]]:
    """Everything with a name: kind, then name, then its first sentence."""
    found = {
        f"{kind}s": {name: first_sentence(cls.__doc__ or "") for name, cls in entries(kind).items()}
        for kind in KINDS
    }
    return found | {"data sets": dict(_data_sets())}


def _data_sets() -> Iterator[tuple[str, str]]:
    from pyro_bnn.data.idx_files import MNIST_SETS
    from pyro_bnn.data.sklearn_sets import SKLEARN_SETS
    from pyro_bnn.data.uci import UCI_SETS

    yield from MNIST_SETS.items()
    for name, make in SKLEARN_SETS.items():
        yield name, first_sentence(make.__doc__ or "")
    for name, spec in UCI_SETS.items():
        yield name, f"{spec.target_name} from {spec.num_inputs} inputs."


def first_sentence(docstring: str) -> str:
    r"""The first sentence of a docstring as plain text; formulas and what follows are left out.

    Example:
        >>> first_sentence("Two classes: :math:`y \\sim p`, labels 0 and 1.\n\nMore.")
        'Two classes.'
        >>> first_sentence("One ``rank``, e.g. 2.5. Two.")
        'One rank, e.g. 2.5.'
    """
    text = " ".join(docstring.strip().partition("\n\n")[0].split()).replace("``", "")
    text, formula, _ = text.partition(":math:")
    if formula:
        return f"{text.rstrip(' :,;')}."
    words = text.split(" ")
    for i, word in enumerate(words):
        starts_next = i + 1 < len(words) and words[i + 1][0].isupper()
        if word.endswith(".") and starts_next and word not in ("e.g.", "i.e.", "cf."):
            return " ".join(words[: i + 1])
    return text
