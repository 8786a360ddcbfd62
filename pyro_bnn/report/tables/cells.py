"""Cells of tables as text; `pyro_bnn.report.tables.metric.Text` says what each is called with."""

from __future__ import annotations

from pyro_bnn.plotting.numbers import number, percent, with_error

BIASED = " (biased)"  # beside what chains of a biased sampler have of their own distribution
BEYOND = "above 1"  # of k-hat: which number it is there says nothing


def count(value: float) -> str:
    """A whole number."""
    return "" if value != value else f"{round(value):,}"


def rhat(value: float, is_biased: bool = False) -> str:
    """R-hat with the digits that its limit needs."""
    return "" if value != value else f"{value:.3f}{BIASED * is_biased}"


def effective_draws(value: float, *, biased: bool) -> str:
    """Effective draws."""
    return count(value) and f"{count(value)}{BIASED * biased}"


def khat(value: float, error: float) -> str:
    """k-hat with its error, where it says something."""
    return BEYOND if value > 1 else with_error(value, error)


def difference(mean: float, se: float, *_: float, tied: bool, decimals: int | None) -> str:
    """The difference to the best, and whether it is a tie."""
    if mean == 0 and se == 0 and tied:
        return "best"
    text = with_error(mean, se, decimals=decimals)
    return f"{text} (tied)" if tied else text


def loo(value: float, error: float, num_bad: float, *, decimals: int | None) -> str:
    """PSIS-LOO, and the rows with too large a k-hat."""
    text = with_error(value, error, decimals=decimals)
    return f"{text} ({round(num_bad)} bad)" if text and num_bad else text


def ece(value: float, floor: float, high: float) -> str:
    """A calibration error, and what it is if the posterior is exact."""
    limit = number(high)
    return f"{number(value)} ({f'{number(floor)}, up to {limit}' if limit else 'unchecked'})"


def coverage(share: float, low: float, high: float) -> str:
    """Coverage, and what it is in data sets of the posterior itself."""
    ends = f"{percent(low, 0)[:-2]} to {percent(high, 0)}" if high == high else "unchecked"
    return f"{percent(share, 0)} ({ends})"


def distance(value: float, *, reference_model: str, decimals: int | None) -> str:
    """A distance to the reference."""
    return _marked(number(value, decimals=decimals), reference_model)


def shift(
    value: float, error: float, high: float, *, reference_model: str, decimals: int | None
) -> str:
    """The median of a shift with its error, and its largest."""
    text = with_error(value, error, decimals=decimals)
    return _marked(text and f"{text} (to {number(high, decimals=2)})", reference_model)


def ratio(
    value: float,
    error: float,
    low: float,
    high: float,
    *,
    reference_model: str,
    decimals: int | None,
) -> str:
    """The median of a ratio with its error, and its range."""
    text = with_error(value, error, decimals=decimals)
    ends = f"{number(low, decimals=2)} to {number(high, decimals=2)}"
    return _marked(text and f"{text} ({ends})", reference_model)


def ratio_in_brief(
    value: float, error: float, *, reference_model: str, decimals: int | None
) -> str:
    """The median of a ratio with its error."""
    return _marked(with_error(value, error, decimals=decimals), reference_model)


def _marked(text: str, reference_model: str) -> str:
    """The cell, marked where the reference answers under another model."""
    return f"{text} (other model)" if text and reference_model == "other" else text


def mean(value: float, *, se: float, sd: float) -> str:
    """An average over splits, with its standard error, or the sd over seeds of one split."""
    return with_error(value, sd if se != se else se)


def mean_share(value: float, *, se: float, sd: float) -> str:
    """An average of shares over splits."""
    share, error = percent(value), sd if se != se else se
    return f"{share} ± {percent(error)}" if share and error == error else share


def mean_difference(value: float, *, se: float, sd: float, rank: float, tied: bool) -> str:
    """The average difference to the best, and whether it is a tie."""
    if value == 0:
        return "best" if rank == 1 else "highest mean"
    text = mean(value, se=se, sd=sd)
    return f"{text} (tied)" if text and tied else text


def largest(value: float) -> str:
    """The largest of all runs."""
    return number(value)


def largest_khat(value: float) -> str:
    """The largest k-hat of all runs, where it says something."""
    return BEYOND if value > 1 else number(value)


def of_common_runs(value: int, *, common_runs: int) -> str:
    """How many of the runs that all methods have."""
    return f"{value} of {common_runs}"


def of_all_runs(value: int, *, all_runs: int) -> str:
    """How many of all runs."""
    return f"{value} of {all_runs}"
