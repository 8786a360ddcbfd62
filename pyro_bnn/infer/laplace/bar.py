"""The bar of a polish: how many rows were read, in which phase, and how far the mode is."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm


class Bar:
    """A bar that moves with each chunk of rows.

    How often the rows are read until a mode is found is not known before, so that it has no end.

    Args:
        title: In front of each phase.
        show: Whether it is shown.
    """

    def __init__(self, title: str = "", *, show: bool = False) -> None:
        self._title, self._show = title, show
        self._bar: Any = None

    def phase(self, name: str) -> None:
        """What follows is another phase, with a bar of its own."""
        self.close()
        self._bar = tqdm(
            desc=f"{self._title}, {name}",
            unit=" rows",
            unit_scale=True,
            disable=not self._show,
        )

    def rows(self, count: int) -> None:
        """So many rows were read."""
        if self._bar is not None:
            self._bar.update(count)

    def nats(self, decrement: float) -> None:
        """How far the mode is."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"{decrement:.2g} nats to go", refresh=False)

    def close(self) -> None:
        """The end of the last phase."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
