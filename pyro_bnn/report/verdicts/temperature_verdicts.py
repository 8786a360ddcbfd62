"""The verdict on temperatures: draws that are not of the posterior, as was asked or by heating."""

from __future__ import annotations

from pyro_bnn.infer.sgmcmc.temperature import MIN_DRAWS, MOST_OFF, temperature_of
from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.posterior.nature import Fault, Nature
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.verdicts.advice import advice
from pyro_bnn.report.verdicts.verdict import PREDICTIONS, VerdictRule

NAMES = ("kinetic_temperature", "configurational_temperature")


def what_to_do(entry: Evaluation) -> str:
    """What mends each of its faults, each once."""
    nature = entry.fit.nature
    return "; ".join(dict.fromkeys(_against(fault, nature) for fault, _ in _found(entry)))


def _against(fault: Fault, nature: Nature) -> str:
    words = {"heat": "against heat ", "cold": "against cold "}
    return f"{words.get(fault, '')}{advice(nature, fault)}"


def _found(entry: Evaluation) -> list[tuple[Fault, str]]:
    """What is wrong with the temperature of a method, each fault with its words."""
    wanted = float(entry.fit.options.get("temperature", 1.0))
    parts: list[tuple[Fault, str]] = []
    if wanted != 1:
        colder = "colder, so too sure" if wanted < 1 else "hotter, so not sure enough"
        text = (
            f"run at temperature {number(wanted, 3)}, not 1: what it gives is not the posterior "
            f"but {colder}"
        )
        parts.append(("asked temperature", text))
    for name in NAMES:
        values = entry.fit.sample_stats.get(name)
        if values is None or values.shape[1] < MIN_DRAWS:
            continue
        found = temperature_of(values, wanted)
        if found.is_off:
            so = (
                "wide, by its step or the noise of its batches"
                if found.mean > wanted
                else "narrow: on Gaussians steps and batches only heat, so its chains may not have "
                "spread yet"
            )
            text = (
                f"{name.replace('_', ' ')} {with_error(found.mean, found.error)} for "
                f"{number(wanted, 3)}, off by more than {percent(MOST_OFF, 0)} and 3 standard "
                f"errors: its draws are too {so}"
            )
            parts.append(("cold" if found.mean <= wanted else "heat", text))
    return parts


@VerdictRule("temperature",
             "Not the posterior, but hotter or colder: as it was asked for, or by steps and "
             "batches", "set temperature=1; against heat lower step_size, raise batch_size or use "
             "control variates; against cold raise warmup_steps and num_samples",
             short="not the posterior: another temperature", against=PREDICTIONS,
             advise=what_to_do).of_each  # fmt: skip
def temperature(entry: Evaluation) -> str:
    """A method that was run at another temperature than 1, or whose draws have another than asked.

    Args:
        entry: Of one method.
    """
    return "; ".join(text for _, text in _found(entry))
