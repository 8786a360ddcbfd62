"""Twelve posteriors of posteriordb: their data, reference moments, and how draws agree with these.

Models of ecology, education, finance and physics with 3 to 26 parameters, none of them a network.
The files ``$PYRO_BNN_DATA/posteriordb/NAME.data.json`` and ``NAME.reference.json`` hold the data
and the moments of 10,000 reference draws, nearly independent ones. Here without torch, which not
everyone needs.

References:
    Magnusson et al., "posteriordb: Testing, Benchmarking and Developing Bayesian Inference
    Algorithms", AISTATS 2025, arXiv:2407.04967.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_bnn.data.fetch import DATA_VARIABLE

Array = NDArray[np.float64]
Data = Mapping[str, Any]
Draws = Mapping[str, Array]  # of a site, [C, S, *shape]


def folder() -> Path:
    """Where the files are.

    Raises:
        FileNotFoundError: If they are not there.
    """
    found = Path(os.environ.get(DATA_VARIABLE, "nowhere")) / "posteriordb"
    if not found.is_dir():
        raise FileNotFoundError(
            f"the posteriors are read from $PYRO_BNN_DATA/posteriordb, and {found} is no folder; "
            "put NAME.data.json and NAME.reference.json of each posterior there"
        )
    return found


def data_of(name: str) -> Data:
    """The data of a posterior as posteriordb has them."""
    found: Data = json.loads((folder() / f"{name}.data.json").read_text())
    return found


def reference_of(name: str) -> Mapping[str, Mapping[str, float]]:
    """Mean, sd and effective draws of each parameter, such as ``"beta[1]"``."""
    found = json.loads((folder() / f"{name}.reference.json").read_text())
    parameters: Mapping[str, Mapping[str, float]] = found["parameters"]
    return parameters


def arguments(name: str) -> tuple[Array, ...]:
    """What a model is called with: everything that does not depend on its parameters."""
    made = ARGUMENTS[name](data_of(name))
    return tuple(np.asarray(value, np.float64) for value in made)


def _columns(*columns: Any) -> Array:
    return np.stack([np.broadcast_to(column, columns[-1].shape) for column in columns], -1)


def _autoregression(data: Data) -> tuple[Any, ...]:
    """Rows of the K values before each y, the last one first, and these y."""
    y, order = np.array(data["y"]), data["K"]
    return _columns(*(y[order - k : -k] for k in range(1, order + 1))), y[order:]


def _diamonds(data: Data) -> tuple[Any, ...]:
    """Inputs without the column of ones, less their means, and y."""
    x = np.array(data["X"])[:, 1:]
    return x - x.mean(0), data["Y"]


def _kidscore(data: Data) -> tuple[Any, ...]:
    school, iq = np.array(data["mom_hs"]), np.array(data["mom_iq"])
    return _columns(1, school, iq, school * iq), data["kid_score"]


def _mesquite(data: Data) -> tuple[Any, ...]:
    names = "diam1", "diam2", "canopy_height", "total_height", "group", "weight"
    longer, shorter, canopy, total, group, weight = (np.array(data[name]) for name in names)
    area = longer * shorter
    shape = np.log(area * canopy), np.log(area), np.log(longer / shorter), np.log(total)
    return _columns(1, *shape, group), np.log(weight)


def _nes(data: Data) -> tuple[Any, ...]:
    names = "real_ideo", "race_adj", "educ1", "gender", "income"
    ideology, race, *others = (np.array(data[name]) for name in names)
    ages = (np.array(data["age_discrete"]) == group for group in (2, 3, 4))
    return _columns(1, ideology, race, *ages, *others), data["partyid7"]


ARGUMENTS: Mapping[str, Callable[[Data], tuple[Any, ...]]] = {
    "arK-arK": _autoregression,
    "diamonds-diamonds": _diamonds,
    "eight_schools-eight_schools_noncentered": lambda data: (data["sigma"], data["y"]),
    "garch-garch11": lambda data: (data["sigma1"], data["y"]),
    "gp_pois_regr-gp_pois_regr": lambda data: (data["x"], data["k"]),
    "hmm_example-hmm_example": lambda data: (data["y"],),
    "hudson_lynx_hare-lotka_volterra": lambda data: ([data["y_init"], *data["y"]],),
    "kidiq-kidscore_interaction": _kidscore,
    "low_dim_gauss_mix-low_dim_gauss_mix": lambda data: (data["y"],),
    "mesquite-logmesquite_logvash": _mesquite,
    "nes1988-nes": _nes,
    "sblri-blr": lambda data: (data["X"], data["y"]),
}
NAMES = tuple(ARGUMENTS)


def parameters(draws: Draws, name: str) -> Array:
    """Draws ``[C, S, K]`` of the parameters that the reference has, in its order."""
    return np.stack([_parameter(draws, key) for key in reference_of(name)], -1)


def sites(name: str) -> list[str]:
    """Names of the sites that the reference has."""
    return list(dict.fromkeys(key.partition("[")[0] for key in reference_of(name)))


def _parameter(draws: Draws, key: str) -> Array:
    site, *places = re.findall(r"\w+", key)
    index: Any = (..., *(int(place) - 1 for place in places))  # counted from 1, as in Stan
    found: Array = np.asarray(draws[site], np.float64)[index]
    return found


def agreement(x: Array, name: str) -> dict[str, Any]:
    r"""How draws ``[C, S, K]`` agree with the reference, and how well they have mixed.

    .. math:: z = (m - m_0) / \sqrt{e^2 + e_0^2}

    for a mean or sd m of error e by ArviZ. The reference has the error
    :math:`e_0 = s_0 / \sqrt n` of a mean and :math:`s_0 \sqrt{(\kappa - 1) / 4 n}` of an sd, with
    its sd :math:`s_0`, its n effective draws, and the kurtosis :math:`\kappa` of our draws.

    Returns:
        The worst of the parameters: ``z_mean``, ``z_sd``, with ``worst``, the names where they are;
        ``rhat``, of one chain that of its halves; ``ess`` (bulk), ``ess_tail``.
    """
    from arviz_stats.base.array import array_stats

    reference = reference_of(name)
    mean, sd, num_draws = (
        np.array([parameter[key] for parameter in reference.values()])
        for key in ("mean", "sd", "ess")
    )
    flat = x.reshape(-1, x.shape[-1])
    fourth = ((flat - flat.mean(0)) ** 4).mean(0) / flat.var(0) ** 2
    statistics: Any = array_stats  # without types
    how = {"chain_axis": 0, "draw_axis": 1}
    errors = (statistics.mcse(x, **how, method=method) for method in ("mean", "sd"))
    own = sd / np.sqrt(num_draws), sd * np.sqrt((fourth - 1) / 4 / num_draws)
    found = flat.mean(0), flat.std(0, ddof=1)
    z_mean, z_sd = (
        np.abs(m - m_0) / np.sqrt(e**2 + e_0**2)
        for m, m_0, e, e_0 in zip(found, (mean, sd), errors, own, strict=True)
    )
    keys = list(reference)
    chains = x if len(x) > 1 else np.stack(np.array_split(x[0, : x.shape[1] // 2 * 2], 2))
    return {
        "z_mean": float(z_mean.max()),
        "z_sd": float(z_sd.max()),
        "worst": [keys[int(z.argmax())] for z in (z_mean, z_sd)],
        "rhat": float(statistics.rhat(chains, **how).max()),
        "ess": float(statistics.ess(x, **how, method="bulk").min()),
        "ess_tail": float(statistics.ess(x, **how, method="tail", prob=(0.05, 0.95)).min()),
    }
