r"""Posterior predictive, :math:`p(y \mid x, D) \approx \tfrac1S \sum_s p(y \mid x, z_s)`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import pyro.distributions as dist
import torch
from jaxtyping import Float, Num
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.data import Standardiser
from pyro_bnn.effects import base_distribution, derived_seed, isolated
from pyro_bnn.errors import BNNWarning, DataError, OptionError
from pyro_bnn.memory import draw_chunks
from pyro_bnn.program import Params, Program


@dataclass(frozen=True, eq=False)
class Prediction:
    """The predictive distribution of y at N rows, as a mixture over S draws of the posterior.

    Attributes:
        draws: One draw of y from each draw of the posterior, ``[S, N, O]``; class labels
            ``[S, N, 1]``.
        function_draws: Network output f ``[S, N, F]``, in the model's units.
        means: Mean of y given each draw ``[S, N, O]``, in the units of y; None for classes.
        variances: Variance of y given each draw ``[S, N, O]``; None for classes.
        class_probs: Class probabilities given each draw ``[S, N, C]``; None for numbers.
    """

    draws: Num[Tensor, "S N O"]
    function_draws: Float[Tensor, "S N F"]
    means: Float[Tensor, "S N O"] | None = field(repr=False)
    variances: Float[Tensor, "S N O"] | None = field(repr=False)
    class_probs: Float[Tensor, "S N C"] | None = field(repr=False)
    _log_likelihood: Callable[[Tensor], Float[Tensor, "S N"]] = field(repr=False)

    @property
    def mean(self) -> Float[Tensor, "N O"]:
        """Predictive mean ``[N, O]``, in the units of y; NaN where it does not exist."""
        return _existing(self._moments()[0].mean(0), "mean")

    @property
    def sd_epistemic(self) -> Float[Tensor, "N O"]:
        """Sd over draws of the mean of y ``[N, O]``: what more data would remove."""
        return self._moments()[0].std(0, correction=0)

    @property
    def sd_aleatoric(self) -> Float[Tensor, "N O"]:
        """Root of the mean over draws of the variance of y ``[N, O]``: noise."""
        return self._moments()[1].mean(0).sqrt()

    @property
    def sd(self) -> Float[Tensor, "N O"]:
        """Predictive standard deviation ``[N, O]``: mean variance plus variance of means."""
        means, variances = self._moments()
        return _existing((variances.mean(0) + means.var(0, correction=0)).sqrt(), "sd")

    @property
    def probs(self) -> Float[Tensor, "N C"]:
        """Predictive class probabilities ``[N, C]``: the mean over draws."""
        return self._class_probs().mean(0)

    @property
    def entropy(self) -> Float[Tensor, " N"]:
        """Entropy of the predictive class probabilities ``[N]``, nats: total uncertainty."""
        return _entropy(self.probs)

    @property
    def mutual_information(self) -> Float[Tensor, " N"]:
        """Entropy minus its expectation over draws ``[N]``, nats: epistemic uncertainty."""
        return (self.entropy - _entropy(self._class_probs()).mean(0)).clamp(min=0)

    def quantile(self, q: float | list[float] | Tensor) -> Float[Tensor, "*Q N O"]:
        """Quantiles of the draws of y: ``[N, O]`` for one level, ``[Q, N, O]`` for several."""
        of = self.draws if self.draws.is_floating_point() else self.function_draws
        levels = torch.as_tensor(q, dtype=of.dtype)
        if not bool(((levels >= 0) & (levels <= 1)).all()):
            raise OptionError(f"quantile levels lie between 0 and 1, not {q!r}")
        draws = self.draws.to(levels.dtype).sort(0).values  # [S, N, O]
        position = levels * (len(draws) - 1)
        low = position.floor().long()
        high = (low + 1).clamp(max=len(draws) - 1)
        weight = (position - low).reshape((*levels.shape, 1, 1))
        return draws[low] * (1 - weight) + draws[high] * weight

    def log_prob(self, y: Tensor) -> Float[Tensor, " N"]:
        r"""Log of the mean density over draws ``[N]``.

        .. math:: \log \tfrac1S \sum_s p(y_n \mid x_n, z_s)

        Args:
            y: Observations ``[N]`` or ``[N, O]``, in the units of the prediction.

        Raises:
            ShapeError: If y does not have one row for each row of x.
        """
        log_likelihood = self._log_likelihood(torch.as_tensor(y))  # [S, N]
        return log_likelihood.logsumexp(0) - math.log(log_likelihood.shape[0])

    def _moments(self) -> tuple[Tensor, Tensor]:
        if self.means is None or self.variances is None:
            raise OptionError("mean and sd describe numbers; for classes read probs and entropy")
        return self.means, self.variances

    def _class_probs(self) -> Tensor:
        if self.class_probs is None:
            raise OptionError("probs describe classes; for numbers read mean, sd and quantile(q)")
        return self.class_probs


def predict(
    program: Program,
    params: Params,
    z: Float[Tensor, "S P"],
    x: Tensor,
    *,
    seed: int,
    memory: int,
    target: Standardiser | None = None,
    has_moments: bool = True,
) -> Prediction:
    """Predict y at x from draws of the posterior, in chunks over the draws.

    Args:
        program: The model.
        params: Values of the model's point-estimated parameters.
        z: Draws ``[S, P]``.
        x: Inputs ``[N, ...]`` in the model's units.
        seed: Seed of the draws of y.
        memory: Bound in bytes on results and intermediate results.
        target: Carries y to the user's units, in the wider of its dtype and the model's; None
            leaves y in the model's units.
        has_moments: Whether the mixture over draws has a mean and sd; without, both are NaN.

    Raises:
        DataError: If x holds NaN or infinite values.
    """
    x = x.to(device=program.device, dtype=program.dtype)
    units = None if target is None else target.to(program.device)

    def run(chunk: Tensor, rows: Tensor) -> dict[str, Tensor]:
        f, y = program.predictive(chunk, rows, params)
        return {"f": f, **_in_units(_summaries(y), units)}

    with torch.no_grad(), isolated(derived_seed(seed, 1)):  # z has the stream of seed
        probe = run(z[:1], x[:1])
        result_bytes = sum(v.nbytes for v in probe.values()) * len(z) * len(x)
        parts = [
            run(chunk, x)
            for chunk in draw_chunks(run, z, x, memory=memory, result_bytes=result_bytes)
        ]
        whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    is_number = "means" in whole
    if is_number and not has_moments:
        whole["means"] = torch.full_like(whole["means"], torch.nan)

    def log_likelihood(y: Tensor) -> Tensor:
        if is_number and target is not None:
            y = target.to("cpu").transform(y.cpu())  # before y is rounded to the model's dtype
        if is_number:
            y = y.to(device=program.device, dtype=program.dtype)
        values = log_likelihood_of(program, params, z, x, y, memory=memory)
        if units is None:
            return values
        num_targets = whole["means"].shape[-1]
        return values - units.scale.log().expand(num_targets).sum()  # density in the user's units

    return Prediction(
        draws=whole["y"],
        function_draws=whole["f"],
        means=whole.get("means"),
        variances=whole.get("variances"),
        class_probs=whole.get("probs"),
        _log_likelihood=log_likelihood,
    )


def require_finite(x: Tensor) -> None:
    """Check inputs ``[N, ...]`` of a prediction.

    Raises:
        DataError: If a value is NaN or infinite; names the columns and counts the rows.
    """
    bad = ~x.isfinite()
    if bool(bad.any()):
        columns = bad.reshape(len(x), -1).any(0).nonzero().flatten().tolist()
        rows = int(bad.reshape(len(x), -1).any(1).sum())
        raise DataError(
            f"x holds NaN or infinite values in {rows} of {len(x)} rows, in column "
            f"{', '.join(map(str, columns[:5]))} (from 0): impute them or leave these rows out"
        )


def log_likelihood_of(
    program: Program, params: Params, z: Tensor, x: Tensor, y: Tensor, *, memory: int
) -> Float[Tensor, "S N"]:
    """Log p(y_n | x_n, z_s) ``[S, N]``, in chunks over the draws."""
    batch = program.batch(x, y)

    def run(chunk: Tensor, rows: Tensor) -> Tensor:
        part = batch._replace(x=rows, y=batch.y[: len(rows)])
        return program.log_likelihood(chunk, part, params)

    result_bytes = len(z) * len(x) * z.element_size()
    with torch.no_grad():
        chunks = draw_chunks(run, z, batch.x, memory=memory, result_bytes=result_bytes)
        return torch.cat([run(chunk, batch.x) for chunk in chunks])


def _summaries(y: Distribution) -> dict[str, Tensor]:
    """Draws of y ``[S, N, O]`` and its moments, or class probabilities."""
    base = base_distribution(y)
    draws = y.sample()
    columns = draws if len(y.event_shape) else draws.unsqueeze(-1)  # [S, N, O]
    if isinstance(base, dist.Categorical):
        return {"y": columns, "probs": base.probs}
    if isinstance(base, dist.Bernoulli):
        p = base.probs.unsqueeze(-1)
        return {"y": columns.long(), "probs": torch.cat([1 - p, p], -1)}
    means, variances = (v if len(y.event_shape) else v.unsqueeze(-1) for v in (y.mean, y.variance))
    return {
        "y": columns,
        "means": means,
        "variances": torch.where(variances.isfinite(), variances, torch.nan),
    }


def _in_units(summaries: dict[str, Tensor], units: Standardiser | None) -> dict[str, Tensor]:
    """Summaries of numbers in the user's units; those of classes have none."""
    if units is None or "means" not in summaries:
        return summaries
    draws, means = (units.inverse(summaries[name]) for name in ("y", "means"))
    variances = summaries["variances"].to(means.dtype) * units.scale**2
    return {"y": draws, "means": means, "variances": variances}


def _entropy(probs: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probs).sum(-1)
    return entropy


def _existing(value: Tensor, name: str) -> Tensor:
    if bool(value.isnan().any()):
        warnings.warn(
            f"the predictive {name} does not exist at {int(value.isnan().any(-1).sum())} rows and "
            "is NaN there; quantile(q) does exist",
            BNNWarning,
            stacklevel=3,
        )
    return value
