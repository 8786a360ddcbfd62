r"""Posterior predictive, :math:`p(y \mid x, D) \approx \tfrac1S \sum_s p(y \mid x, z_s)`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor

from pyro_bnn.data.arrays import ArrayLike, in_order, to_tensor
from pyro_bnn.data.labels import coded, named
from pyro_bnn.errors import BNNWarning, OptionError, ShapeError
from pyro_bnn.memory import WORKING_SET
from pyro_bnn.predictive.moments import (
    entropy,
    interpolated,
    log_mean,
    normal_mixture_quantile,
    places_of_parts,
)
from pyro_bnn.program.distributions import order_statistic

SHOWN = 8  # rows in a notebook
PREDICTED = "predicted"  # prefix of the columns of predictions

if TYPE_CHECKING:
    import pandas as pd

LogLikelihood: TypeAlias = "Callable[[Tensor], Tensor]"


class Names(NamedTuple):
    """What a table of predictions calls its rows and columns.

    Attributes:
        targets: The O names of several targets; None for ``y0, y1, ...``, or one target.
        classes: The C names of the classes; None for ``0, 1, ...``.
        rows: Index of the N rows, of pandas; None for 0 .. N-1.
        are_raw: Whether observations are in the user's units: numbers may be names of classes.
    """

    targets: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    rows: Any = None
    are_raw: bool = False

    def observed(self, y: ArrayLike) -> Tensor:
        """Observations as a tensor: columns and classes are found by their names.

        Raises:
            DataError: If y has other columns or classes, or holds no real numbers.
        """
        y = in_order(y, self.targets, "y")
        if self.classes is not None:
            y, _ = coded(named(y, self.classes) if self.are_raw else y, self.classes)
        return to_tensor(y, "y")


class Prediction:
    """The predictive distribution of y at N rows, as a mixture over S draws of the posterior.

    Args:
        draws: One draw of y from each draw of the posterior, ``[S, N, O]``; class labels
            ``[S, N, 1]``. This and the others may be a function that gives the tensor, which is
            called when it is first read.
        function_draws: Network output f ``[S, N, F]``, in the model's units.
        means: Mean of y given each draw ``[S, N, O]``, in the units of y; None for classes.
        variances: Variance of y given each draw ``[S, N, O]``; None for classes.
        class_probs: Class probabilities given each draw ``[S, N, C]``; None for numbers.
        _log_likelihood: Log densities ``[S, N]`` of observations, or their log mean ``[N]``.
        is_discrete: Whether y is a count or a class, whose quantiles are whole numbers.
        is_normal: Whether y is Gaussian given a draw, whose quantiles need no draws of y.
        _by_common_noise: Gives a y from each draw by the same noise at all rows, ``[S, N, O]``, or
            None where the likelihood has no such; quantiles are of these.
        _target_log_likelihood: Log densities ``[S, N, O]`` of each target alone; None where they
            are not independent given a draw.
        names: What :meth:`to_frame` calls its rows and columns.
    """

    def __init__(
        self,
        draws: Tensor | Callable[[], Tensor],
        function_draws: Tensor | Callable[[], Tensor],
        means: Tensor | Callable[[], Tensor] | None,
        variances: Tensor | Callable[[], Tensor] | None,
        class_probs: Tensor | Callable[[], Tensor] | None,
        _log_likelihood: LogLikelihood,
        *,
        is_discrete: bool = False,
        is_normal: bool = False,
        _by_common_noise: Callable[[], Tensor | None] | None = None,
        _target_log_likelihood: Callable[[Tensor], Tensor] | None = None,
        names: Names | None = None,
    ) -> None:
        self._is_discrete, self._is_normal = is_discrete, is_normal
        self._names = Names() if names is None else names
        self._stored: dict[str, Any] = {
            "draws": draws,
            "function_draws": function_draws,
            "means": means,
            "variances": variances,
            "class_probs": class_probs,
        }
        self._log_likelihood, self._by_common_noise = _log_likelihood, _by_common_noise
        self._target_log_likelihood = _target_log_likelihood

    @property
    def draws(self) -> Num[Tensor, "S N O"]:
        """One draw of y from each draw of the posterior ``[S, N, O]``; classes ``[S, N, 1]``."""
        return cast(Tensor, self._read("draws"))

    @property
    def function_draws(self) -> Float[Tensor, "S N F"]:
        """Network output f ``[S, N, F]``, in the model's units."""
        return cast(Tensor, self._read("function_draws"))

    @property
    def means(self) -> Float[Tensor, "S N O"] | None:
        """Mean of y given each draw ``[S, N, O]``, in the units of y; None for classes."""
        return self._read("means")

    @property
    def variances(self) -> Float[Tensor, "S N O"] | None:
        """Variance of y given each draw ``[S, N, O]``; None for classes."""
        return self._read("variances")

    @property
    def class_probs(self) -> Float[Tensor, "S N C"] | None:
        """Class probabilities given each draw ``[S, N, C]``; None for numbers."""
        return self._read("class_probs")

    # Numbers

    @property
    def mean(self) -> Float[Tensor, "N O"]:
        """Predictive mean ``[N, O]``, in the units of y; NaN where it does not exist.

        NaN too where a guide's tails make it hang on few draws (``has_moments``).
        """
        return _existing(self._mean_of("means"), "mean")

    @property
    def sd_epistemic(self) -> Float[Tensor, "N O"]:
        """Sd over draws of the mean of y ``[N, O]``: what more data would remove."""
        return self._variance_of_means().sqrt()

    @property
    def sd_aleatoric(self) -> Float[Tensor, "N O"]:
        """Root of the mean over draws of the variance of y ``[N, O]``: noise."""
        return self._mean_of("variances").sqrt()

    @property
    def sd(self) -> Float[Tensor, "N O"]:
        """Predictive standard deviation ``[N, O]``: mean variance plus variance of means."""
        return _existing((self._mean_of("variances") + self._variance_of_means()).sqrt(), "sd")

    def quantile(self, q: float | list[float] | Tensor) -> Float[Tensor, "*Q N O"]:
        """Quantiles of y: ``[N, O]`` for one level, ``[Q, N, O]`` for several.

        Where y is Gaussian given a draw of the weights, or a class, they are those of the mixture
        over draws. Else there is one y for each draw, and they are interpolated between these, but
        of counts: theirs is the smallest that at least this share does not exceed. The noise of a
        draw is the same at all rows where the likelihood has an inverse of its distribution
        function, in torch or in SciPy, so that a row has the same quantiles alone and among others.
        That of others, such as mixtures and vectors, is drawn by the row's place.

        Raises:
            OptionError: If a level is not between 0 and 1.
        """
        require_levels(q)
        exact = torch.as_tensor(q, dtype=torch.float64, device="cpu")
        if self._is_normal:
            return self._of_mixture(exact)
        if self._stored["class_probs"] is not None:
            return self._of_classes(exact)
        common = None if self._by_common_noise is None else self._by_common_noise()
        draws = self.draws if common is None else common
        levels = exact.to(draws if draws.is_floating_point() else self.function_draws)
        position = levels * (len(draws) - 1)
        if common is not None:
            position = places_of_parts(levels, len(draws))
        if self._is_discrete:
            position = order_statistic(exact, len(draws)).to(position)
        # Made before the blocks: small results left among what they free would split the heap
        found = levels.new_empty((*levels.shape, *draws.shape[1:]))
        start, at_once = 0, max(1, WORKING_SET // max(1, draws[:, :1].nbytes))
        for rows in draws.split(at_once, dim=1):  # sorting makes copies
            ordered = _sorted(rows.to(levels.dtype))  # [S, n, O]
            found.narrow(-2, start, rows.shape[1]).copy_(interpolated(ordered, position))
            start += rows.shape[1]
        return found

    def _of_classes(self, levels: Tensor) -> Float[Tensor, "*Q N 1"]:
        """The smallest class which at least this share of the probability does not exceed."""
        probs = self.probs
        below = probs.cpu().double().cumsum(-1)[:, :-1]  # [N, C - 1]
        rounding = torch.finfo(torch.float32).eps
        found = (below < levels[..., None, None] - rounding).sum(-1, keepdim=True)
        return found.to(probs)

    def _of_mixture(self, levels: Tensor) -> Float[Tensor, "*Q N O"]:
        means, variances = self._of_kind("means"), self._of_kind("variances")
        at_once = max(1, WORKING_SET // max(1, means[:, :1].nbytes))
        parts = zip(means.split(at_once, dim=1), variances.split(at_once, dim=1), strict=True)
        of = levels.flatten().tolist()
        found = [
            torch.stack([normal_mixture_quantile(p, m, sd) for p in of])
            for m, sd in ((m, v.sqrt()) for m, v in parts)
        ]
        return torch.cat(found, 1).reshape(*levels.shape, *means.shape[1:])

    # Classes

    @property
    def probs(self) -> Float[Tensor, "N C"]:
        """Predictive class probabilities ``[N, C]``: the mean over draws."""
        return self._mean_of("class_probs")

    @property
    def entropy(self) -> Float[Tensor, " N"]:
        """Entropy of the predictive class probabilities ``[N]``, nats: total uncertainty."""
        return entropy(self.probs)

    @property
    def mutual_information(self) -> Float[Tensor, " N"]:
        """Entropy minus its expectation over draws ``[N]``, nats: epistemic uncertainty."""
        return (self.entropy - self._expected_entropy()).clamp(min=0)

    # Densities

    def log_prob(self, y: ArrayLike) -> Float[Tensor, " N"]:
        r"""Log of the mean density over draws ``[N]``.

        .. math:: \log \tfrac1S \sum_s p(y_n \mid x_n, z_s)

        Args:
            y: Observations ``[N]`` or ``[N, O]``, in the units of the prediction; the columns of a
                data frame are found by the names of several targets, classes as text by theirs.
                In the user's units so are classes that are numbers, as 1, 2, 3; a tensor holds
                labels 0 .. C-1, as those of a ``Dataset``.

        Raises:
            DataError: If y holds no real numbers, or is a data frame of other targets, or a name
                that is no class of the fit.
            ShapeError: If y does not have one row for each row of x.
        """
        found = self._log_likelihood(self._names.observed(y))
        return found if found.ndim == 1 else log_mean((found,))

    @property
    def has_exact_densities(self) -> bool:
        """Whether `log_prob` is in closed form, not a mean over draws."""
        return False

    @property
    def has_target_densities(self) -> bool:
        """Whether each of several targets has a density of its own."""
        return self._target_log_likelihood is not None

    def target_log_likelihood(self, y: ArrayLike) -> Float[Tensor, "S N O"]:
        """Log density of each target alone given each draw ``[S, N, O]``.

        Args:
            y: Observations ``[N, O]``, in the units of the prediction.

        Raises:
            OptionError: If targets are not independent given a draw, or y is a class.
        """
        if self._target_log_likelihood is None:
            raise OptionError(
                "the likelihood has no density of each target alone: read log_prob(y) of all"
            )
        return self._target_log_likelihood(self._names.observed(y))

    def target_log_prob(self, y: ArrayLike) -> Float[Tensor, "N O"]:
        r"""Log of the mean density over draws of each target alone ``[N, O]``.

        .. math:: \log \tfrac1S \sum_s p(y_{no} \mid x_n, z_s)

        Targets are independent given a draw but not over draws: the sum over targets is not
        ``log_prob(y)``.

        Args:
            y: Observations ``[N, O]``, in the units of the prediction.

        Raises:
            OptionError: As :meth:`target_log_likelihood`.
        """
        return log_mean((self.target_log_likelihood(y),))

    # Tables

    def to_frame(self, level: float = 0.95) -> pd.DataFrame:
        """The table that ``pyro-bnn predict`` writes, a row for each row of x.

        Numbers have ``predicted_mean``, ``_median``, ``_sd``, ``_low``, ``_high``,
        ``_sd_epistemic`` and ``_sd_aleatoric``; of several targets these are
        ``predicted_NAME_mean`` and so on. Quantiles are those of :meth:`quantile`. Classes
        have ``predicted_class``, ``predicted_p_NAME`` of each, ``predicted_entropy`` and
        ``predicted_mutual_information``, nats. What the command compares with the training rows is
        not among them. Units are those of the prediction; the index is that of the data frame that
        was predicted.

        Args:
            level: Probability of the central interval from ``low`` to ``high``.

        Raises:
            OptionError: If the level is not between 0 and 1.
        """
        import pandas as pd

        return pd.DataFrame(self.columns(level), index=self._names.rows)

    def _repr_html_(self) -> str:
        """Moments of the first rows, as a notebook shows a prediction."""
        import pandas as pd

        if self._stored["means"] is None:
            columns = self._class_columns()
        else:
            names = ("mean", "sd", "sd_epistemic", "sd_aleatoric")
            columns = self._by_target({name: getattr(self, name) for name in names})
        frame = pd.DataFrame(columns, index=self._names.rows)
        return f"<p>Prediction of {len(frame):,} rows</p>{frame.head(SHOWN).to_html()}"

    def columns(self, level: float) -> dict[str, np.ndarray[Any, Any]]:
        """The columns of :meth:`to_frame`, ``[N]`` each."""
        require_level(level)
        if self._stored["means"] is None:
            return self._class_columns()
        low, median, high = self.quantile([(1 - level) / 2, 0.5, (1 + level) / 2])
        values = {
            "mean": self.mean,
            "median": median,
            "sd": self.sd,
            "low": low,
            "high": high,
            "sd_epistemic": self.sd_epistemic,
            "sd_aleatoric": self.sd_aleatoric,
        }
        return self._by_target(values)

    def _by_target(self, values: dict[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
        """Numbers ``[N, O]`` by name as columns ``[N]``, those of a target side by side."""
        targets, num_targets = self._names.targets, next(iter(values.values())).shape[1]
        if targets is None and num_targets > 1:
            targets = tuple(f"y{o}" for o in range(num_targets))
        return {
            f"{start}_{name}": _array(value[:, o])
            for o, start in enumerate(column_starts(targets))
            for name, value in values.items()
        }

    def _class_columns(self) -> dict[str, np.ndarray[Any, Any]]:
        probs = _array(self.probs).astype(float)  # [N, C]
        names = self._names.classes or tuple(map(str, range(probs.shape[1])))
        return {
            f"{PREDICTED}_class": np.array(names, dtype=object)[probs.argmax(1)],
            **{f"{PREDICTED}_p_{name}": probs[:, c] for c, name in enumerate(names)},
            f"{PREDICTED}_entropy": _array(self.entropy),
            f"{PREDICTED}_mutual_information": _array(self.mutual_information),
        }

    # Predictions whose draws are not stored

    def _read(self, name: str) -> Tensor | None:
        value = self._stored[name]
        if callable(value):
            value = value()
            if name != "class_probs":  # class probabilities are as large as the logits and not kept
                self._stored[name] = value
        return cast("Tensor | None", value)

    def _of_kind(self, name: str) -> Tensor:
        value = self._read(name)
        return require_kind(name) if value is None else value

    def _mean_of(self, name: str) -> Tensor:
        return self._of_kind(name).mean(0)

    def _variance_of_means(self) -> Tensor:
        return self._of_kind("means").var(0, correction=0)

    def _expected_entropy(self) -> Tensor:
        return entropy(self._of_kind("class_probs")).mean(0)

    def _moments(self) -> tuple[Tensor, ...]:
        """All that follows from the draws' means and variances, or probabilities."""
        if self._stored["means"] is None:
            return self._mean_of("class_probs"), self._expected_entropy()
        return self._mean_of("means"), self._variance_of_means(), self._mean_of("variances")


class StreamedPrediction(Prediction):
    """A prediction whose draws exceed the memory bound: moments, quantiles and densities.

    It is that of blocks of rows, one after the other, in each of which all draws fit. What is read
    of it is computed anew, but for its moments.

    Args:
        blocks: Each makes the prediction of the next so many rows.
        sizes: Their numbers of rows.
        is_number: Whether y is a number, and no class.
        has_target_densities: Whether each of several targets has a density of its own.
        refusal: Why the draws cannot be read, and what to do.
        names: What its table calls its rows and columns.
    """

    def __init__(
        self,
        blocks: Sequence[Callable[[], Prediction]],
        sizes: Sequence[int],
        *,
        is_number: bool,
        has_target_densities: bool,
        refusal: str,
        names: Names | None = None,
    ) -> None:
        refuse = partial(_refuse, refusal)
        super().__init__(
            draws=refuse,
            function_draws=refuse,
            means=refuse if is_number else None,
            variances=refuse if is_number else None,
            class_probs=None if is_number else refuse,
            _log_likelihood=partial(self._by_rows, Prediction.log_prob),
            _target_log_likelihood=refuse if has_target_densities else None,
            names=names,
        )
        self._blocks, self._sizes = blocks, list(sizes)
        self._found: tuple[Tensor, ...] = ()  # the moments

    def quantile(self, q: float | list[float] | Tensor) -> Float[Tensor, "*Q N O"]:
        """Quantiles of draws of y that each block of rows has of its own; see the base class."""
        require_levels(q)
        return torch.cat([block().quantile(q) for block in self._blocks], -2)

    def target_log_prob(self, y: ArrayLike) -> Float[Tensor, "N O"]:
        """Log of the mean density of each target alone; see the base class."""
        if not self.has_target_densities:
            return super().target_log_prob(y)
        observed = self._names.observed(y)
        return self._by_rows(Prediction.target_log_prob, observed)

    def _by_rows(self, read: Callable[[Prediction, Tensor], Tensor], y: Tensor) -> Tensor:
        if y.ndim < 1 or len(y) != sum(self._sizes):
            raise ShapeError(f"y has shape {tuple(y.shape)}, x has {sum(self._sizes)} rows")
        parts = zip(self._blocks, y.split(self._sizes), strict=True)
        return torch.cat([read(block(), rows) for block, rows in parts])

    def _moments(self) -> tuple[Tensor, ...]:
        if not self._found:
            parts = [block()._moments() for block in self._blocks]
            self._found = tuple(map(torch.cat, zip(*parts, strict=True)))
        return self._found

    def _mean_of(self, name: str) -> Tensor:
        if self._stored[name] is None:
            return require_kind(name)
        return self._moments()[-1 if name == "variances" else 0]

    def _variance_of_means(self) -> Tensor:
        return require_kind("means") if self._stored["means"] is None else self._moments()[1]

    def _expected_entropy(self) -> Tensor:
        return self._moments()[1]


def _refuse(refusal: str, *_: object) -> NoReturn:
    raise OptionError(refusal)


def require_kind(name: str) -> NoReturn:
    """Refuse moments of classes, and probabilities of numbers.

    Raises:
        OptionError: Always; says what to read instead.
    """
    if name in ("means", "variances"):
        raise OptionError("mean and sd describe numbers; for classes read probs and entropy")
    raise OptionError("probs describe classes; for numbers read mean, sd and quantile(q)")


def require_levels(q: float | list[float] | Tensor) -> None:
    """Check levels of quantiles.

    Raises:
        OptionError: If one is not between 0 and 1.
    """
    levels = torch.as_tensor(q, device="cpu")
    if not bool(((levels >= 0) & (levels <= 1)).all()):
        raise OptionError(f"quantile levels lie between 0 and 1, not {q!r}")


def column_starts(targets: Sequence[str] | None) -> tuple[str, ...]:
    """How the columns of predicted numbers begin: of the one target, or of each of several."""
    return (PREDICTED,) if targets is None else tuple(f"{PREDICTED}_{name}" for name in targets)


def require_level(level: float) -> None:
    """Check the probability of an interval.

    Raises:
        OptionError: If it is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise OptionError(f"the level of an interval is between 0 and 1, such as 0.95, not {level}")


def _sorted(draws: Tensor) -> Tensor:
    """Draws ``[S, ...]`` in order, NaN last; NumPy keeps no places of them, of 8 bytes each."""
    if draws.device.type != "cpu" or draws.dtype == torch.bfloat16 or draws.requires_grad:
        return draws.sort(0).values
    return torch.from_numpy(np.sort(draws.numpy(), 0))


def _array(value: Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(value.detach().cpu())


def _existing(value: Tensor, name: str) -> Tensor:
    if bool(value.isnan().any()):
        warnings.warn(
            f"the predictive {name} does not exist or hangs on few draws at "
            f"{int(value.isnan().any(-1).sum())} rows and is NaN there; quantile(q) does exist",
            BNNWarning,
            stacklevel=3,
        )
    return value
