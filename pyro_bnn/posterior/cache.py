"""The last results of a function of tensors, for calls with the same ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from torch import Tensor

KEPT = 4  # results, such as those of training and of held-out rows under two seeds
MOST_BYTES = 64 << 20  # of one that is kept


class Remembered:
    """The last few results, each with the tensors that it was made of.

    A report asks for the densities of the same draws at the same rows several times: as an ELBO, as
    weights of importance, for the file.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Tensor, tuple[Tensor, ...]]] = {}

    def get(
        self, of: Sequence[Tensor], others: Hashable, num_bytes: int, make: Callable[[], Tensor]
    ) -> Tensor:
        """The result for these tensors, made where it is not kept.

        Args:
            of: What it is made of; a tensor that was written to since is another one.
            others: What else it depends on.
            num_bytes: Its size.
            make: Makes it.
        """
        if num_bytes > MOST_BYTES:
            return make()
        key = (others, *((t.data_ptr(), t.shape, t.stride(), t.dtype, t._version) for t in of))
        if key not in self._kept:
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = make(), tuple(of)  # held, so that no address recurs
        return self._kept[key][0].clone()  # a caller may write to it
