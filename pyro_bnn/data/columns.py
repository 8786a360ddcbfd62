"""Input columns of a table of numbers and text, and the numbers a network sees for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One input column of a file.

    Args:
        name: Its header.
        categories: Values of a column of text, each an input of its own (1 where the row has it,
            else 0); None for numbers and truth values.

    Example:
        >>> Column("age").inputs, Column("town", ("Oslo", "Rome")).inputs
        (('age',), ('town=Oslo', 'town=Rome'))
    """

    name: str
    categories: tuple[str, ...] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that the column becomes."""
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={value}" for value in self.categories)
