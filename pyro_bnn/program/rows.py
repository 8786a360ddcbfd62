"""What a model says of a row is the row's own, looked at on a few rows of millions and one draw."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.errors import BNNWarning, ModelError
from pyro_bnn.handled import module_of
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.handlers import Evaluate, Model, log_prob, scale_of_plate, scale_of_rows
from pyro_bnn.program.random_state import seeded

SOME = 8  # rows that are compared
ROUNDING = 1e-4  # by which f of a row alone may differ from that among others
NUM_LOOKED_AT = 1 << 18  # numbers of inputs whose extremes are looked for
SHAKEN = 8  # roundings by which numbers are moved to see how far these go
MOST_NOISE = 10  # times as far as this may f of a row alone differ from that among others
LEAST_CHANGE = 1e-6  # nats: less is that of a likelihood which is sure of y
DEPENDS = (
    "what the model says of a row depends on other rows, on their order or their number: f or the "
    "density of y of the same rows is another one when some are left out, so that batches and "
    "predictions would differ. "
)
APART = (
    "Standardise x before the fit, and take softmax, means and norms over dim=-1, as dim=0 is that "
    "of the rows"
)


def depends_on_rows(model: Model, x: Tensor) -> ModelError:
    """The refusal of a model that mixes rows: its layers of sequences that do so, or advice."""
    inner = module_of(model)
    for name, layer in () if inner is None else inner.named_modules():
        first = getattr(layer, "batch_first", None)
        if first is False:
            return ModelError(
                f"{DEPENDS}{name} is a {type(layer).__name__} with batch_first=False, which takes "
                "the rows of x for the places of a sequence: make it with batch_first=True, and "
                "give it three dimensions, rows, places and features"
            )
        if first and x.ndim < 3:
            return ModelError(
                f"{DEPENDS}{name} is a {type(layer).__name__}, which takes two dimensions for one "
                "sequence: give it three, rows, places and features, as x.unsqueeze(-1) of numbers "
                "in a row"
            )
    return ModelError(f"{DEPENDS}{APART}")


def spread_over(x: Tensor, most: int) -> Tensor:
    """Numbers of about so many rows: the first two, those of extreme inputs, and some between.

    Extremes are those of some of the inputs, among rows of about 260,000 numbers.
    """
    num_rows, width = len(x), max(1, x[0].numel())
    some = torch.linspace(0, num_rows - 1, min(num_rows, max(2, NUM_LOOKED_AT // width))).long()
    inputs = x[some.to(x.device)].flatten(1)[:, : most // 4].float()
    finders = (torch.argmin, torch.argmax) if inputs.numel() else ()
    extremes = [some[find(inputs, 0).cpu()] for find in finders]
    even = torch.linspace(0, num_rows - 1, min(num_rows, max(1, most // 2))).long()
    rows = torch.cat([torch.arange(min(2, num_rows)), *extremes, even])
    found: Tensor = torch.unique(rows)
    return found.to(x.device)


class FewRows:
    """A model at one draw and a few rows, spread over all.

    Args:
        run: The model at values of its sites, inputs and observations, and ``output``, if any.
        constrain: Values of the sites out of z ``[P]``.
        z: The draw.
        x: Inputs, N rows.
        y: Their observations.

    Attributes:
        some: The few rows, and their observations.
        start: The draw, with which the values have a graph.
        values: Values of the sites there.
        whole: The model at these values, on the few rows.
    """

    def __init__(
        self,
        run: Callable[..., Evaluate],
        constrain: Callable[[Tensor], dict[str, Tensor]],
        z: Tensor,
        x: Tensor,
        y: Tensor,
    ) -> None:
        self._places = torch.linspace(0, len(x) - 1, min(len(x), SOME)).long().to(x.device)
        self.some = x[self._places], y[self._places.to(y.device)]
        self.run, self.constrain, self.z = run, constrain, z
        with torch.enable_grad():
            self.start = z.detach().clone().requires_grad_()
            self.values = constrain(self.start)
            self.whole = run(self.values, *self.some)

    def require_apart(self, model: Model, first: Evaluate, many: Evaluate) -> None:
        """Check that f and the density of a row do not depend on other rows, nor on their order.

        Args:
            model: The model, whose layers are named.
            first: The model at the first row alone.
            many: The model at the first rows, some of which are among these few.

        Raises:
            ModelError: If they do: in reverse order without the ends, alone, or among many.
        """
        all_rows = torch.arange(len(self._places), device=self._places.device)
        sizes = self.some[0].flatten(1).float().square().sum(1)
        known = all_rows[self._places < len(many.f)]
        among_many = [many.f[self._places[known]]]
        pairs = [(all_rows[:1], _of_rows(first)), (known, among_many)]
        # what is divided by the largest of several rows is another one where this is left out
        for rows in (all_rows[1:-1].flip(0), sizes.argmin()[None], sizes.argmax()[None]):
            if len(rows):
                with torch.no_grad():
                    run = self.run(self.values, *(value[rows] for value in self.some))
                pairs.append((rows, _of_rows(run)))
        if not all(self._are_same(rows, found) for rows, found in pairs):
            raise depends_on_rows(model, self.some[0])

    def _are_same(self, rows: Tensor, found: list[Tensor]) -> bool:
        """Whether some of these rows have the f and the density that they have among all."""
        for place, (values, other) in enumerate(zip(_of_rows(self.whole), found, strict=False)):
            pair, rounding = (values[rows], other.detach()), (1 + 9 * place) * ROUNDING
            if _are_close(*pair, rounding):
                continue
            if not _are_close(*pair, rounding, self._noise()[place]):
                return False
        return True

    def _noise(self) -> list[float]:
        """How far f and the densities go where z and x move by some roundings.

        Far in a recurrent network of large weights, or one that solves a nearly singular system.
        """
        x, y = self.some
        with torch.no_grad():
            run = self.run(self.constrain(_shaken(self.z)), _shaken(x), y)
        pairs = zip(_of_rows(run), _of_rows(self.whole), strict=True)
        return [MOST_NOISE * float((v - w).abs().nan_to_num(0, 0, 0).max()) for v, w in pairs]

    def warn_of_probabilities(self) -> None:
        """Warn where f are probabilities, and the likelihood takes them for logits.

        Warns:
            BNNWarning: Names the layer that ends such a network, and what to do.
        """
        fn = base_distribution(self.whole.y["fn"])
        is_of_classes = isinstance(fn, dist.Categorical | dist.Bernoulli)
        if not is_of_classes or not _are_logits(self.whole.f, fn):
            return
        far = 10 * self.moved()  # where logits are far from 0, or one of these draws is no chance
        with torch.no_grad():
            runs = self.whole, *(self.at(self.constrain(z)) for z in (far, -far))
        if not all(run is not None and _are_probabilities(run.f) for run in runs):
            return
        sums = self.whole.f.reshape(fn.logits.shape).sum(-1)
        is_softmax = isinstance(fn, dist.Categorical) and bool(((sums - 1).abs() < ROUNDING).all())
        layer = "Softmax" if is_softmax else "Sigmoid"
        takes = "Categorical(probs=f)" if isinstance(fn, dist.Categorical) else "Bernoulli(f)"
        warnings.warn(
            f"f are probabilities already, as behind a {layer}, and the likelihood takes them for "
            f"logits, so that no class can be nearly sure: leave out the {layer} at the end of the "
            f"network, or write {takes} in a model of your own",
            BNNWarning,
            stacklevel=6,
        )

    def moved(self) -> Tensor:
        """Another z, all of whose entries are of the other sign and at least 1 further."""
        return -self.z - torch.where(self.z < 0, -1, 1)

    def at(self, moved: Mapping[str, Tensor], output: Tensor | None = None) -> Evaluate | None:
        """The model where some sites have moved; None where it fails, as it may so far away.

        Args:
            moved: Their values.
            output: Stands in for f, of which y is given.
        """
        try:
            return self.run({**self.values, **moved}, *self.some, output=output)
        except (RuntimeError, ValueError):
            return None

    def is_other(self, run: Evaluate) -> bool:
        """Whether a run has other densities, where they are finite: at ends they may well jump."""
        own, other = densities(self.whole).detach(), densities(run).detach()
        both = own.isfinite() & other.isfinite()
        return not _are_close(own[both], other[both], 10 * ROUNDING, LEAST_CHANGE)


def _of_rows(run: Evaluate) -> list[Tensor]:
    """Network output ``[N, F]`` and the log density of each row ``[N]``."""
    return [run.f.detach(), densities(run).detach()]


def densities(run: Evaluate) -> Tensor:
    """Log density of each row ``[N]`` times its weight.

    Raises:
        ModelError: If there are weights, or a mask, of other rows.
    """
    msg, shape = run.y, run.y["fn"].batch_shape
    scale, weights = scale_of_rows(msg)
    for handler, value in (("scale", weights), ("mask", msg["mask"])):
        if isinstance(value, Tensor) and value.shape not in (torch.Size([]), (1,), shape):
            raise ModelError(
                f'poutine.{handler} around "y" is given a tensor of shape {tuple(value.shape)} '
                f"whatever rows x has, here {shape[0]}; batches and predictions have other numbers "
                "of rows: compute it from x, as from a column of it that the network leaves out"
            )
    return log_prob(msg) * (scale / scale_of_plate(msg) if weights is None else weights)


def _are_logits(f: Tensor, fn: Any) -> bool:
    """Whether the logits of a distribution are f itself."""
    if fn.logits.numel() != f.numel():
        return False
    own = f.reshape(fn.logits.shape)
    own = own.log_softmax(-1) if isinstance(fn, dist.Categorical) else own
    return _are_close(fn.logits, own, ROUNDING)


def _are_probabilities(f: Tensor) -> bool:
    """Whether numbers, not all 0, lie between 0 and 1."""
    return bool(((f >= 0) & (f <= 1)).all() & (f > 0).any())


def _shaken(values: Tensor) -> Tensor:
    """Numbers moved by some roundings; whole ones, which may be places, stay."""
    if not values.is_floating_point():
        return values
    signs = torch.randint(
        0, 2, values.shape, generator=seeded(0, values.device), device=values.device
    )
    moved = values * (1 + SHAKEN * torch.finfo(values.dtype).eps * (2 * signs - 1))
    return torch.where(values == values.floor(), values, moved)


def _are_close(value: Tensor, other: Tensor, rounding: float, noise: float = 0.0) -> bool:
    rounding = max(rounding, 8 * torch.finfo(value.dtype).eps)
    size = float(value.detach().abs().nan_to_num(0, 0, 0).max()) if value.numel() else 0.0
    return value.shape == other.shape and torch.allclose(
        value, other, rtol=rounding, atol=rounding * size + noise, equal_nan=True
    )
