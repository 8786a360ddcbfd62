"""Isokinetic steps of BlackJAX, stored in ``blackjax_steps.json`` for ``test_isokinetic``.

``python tests/infer/blackjax_steps.py``, with BlackJAX and without this package: one step from each
of three points on a quartic potential, without a mass matrix and with one, in double precision.
"""

from __future__ import annotations

import importlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

SEED, NUM_POINTS, NUM_LATENTS = 0, 3, 7
SIZES = (0.05, 0.6, 2.5)
INTEGRATORS = {"leapfrog": "isokinetic_velocity_verlet", "minimal_norm": "isokinetic_mclachlan"}
STORED = Path(__file__).with_suffix(".json")


def steps() -> list[dict[str, Any]]:
    """Where each step starts and ends, with minus its change of kinetic energy."""
    jax, integrators = map(importlib.import_module, ("jax", "blackjax.mcmc.integrators"))
    jax.config.update("jax_enable_x64", True)  # noqa: FBT003
    generator = np.random.default_rng(SEED)
    scale = generator.uniform(0.3, 3, NUM_LATENTS)

    def log_density(z: Any) -> Any:
        return -(0.25 * z**4 + 0.5 * (z - 0.3) ** 2).sum() - 0.4 * z[0] * z[1] * z[2]

    found = []
    for name, theirs in INTEGRATORS.items():
        for variances in (np.ones(NUM_LATENTS), scale**2):
            step = getattr(integrators, theirs)(log_density, variances)
            for size in SIZES[:NUM_POINTS]:
                z, v = generator.standard_normal((2, NUM_LATENTS))
                v /= np.linalg.norm(v)
                start = integrators.new_integrator_state(log_density, z, v)
                end, kinetic = step(start, size)
                found.append(
                    {
                        "integrator": name,
                        "variances": variances.tolist(),
                        "size": size,
                        "z": z.tolist(),
                        "v": v.tolist(),
                        "new_z": np.asarray(end.position).tolist(),
                        "new_v": np.asarray(end.momentum).tolist(),
                        "error": float(start.logdensity - end.logdensity + kinetic),
                    }
                )
    return found


if __name__ == "__main__":
    versions = {name: version(name) for name in ("blackjax", "jax", "jaxlib", "numpy")}
    command = "python tests/infer/blackjax_steps.py"
    stored = {"command": command, "seed": SEED, "versions": versions, "steps": steps()}
    STORED.write_text(json.dumps(stored, indent=1) + "\n")
