"""Scalars of a draw that symmetries leave as they are."""

from __future__ import annotations

import numpy as np
import torch

from pyro_bnn import likelihoods, models, priors
from pyro_bnn.diagnostics import simulation_based_calibration
from pyro_bnn.diagnostics.simulation.quantities import Quantities
from pyro_bnn.diagnostics.simulation.simulations import proper_program, simulate
from tests.diagnostics.made_engines import NAMES, Prior, X


def half_cauchy() -> models.MLP:
    return models.MLP(1, hidden=(2,), activation="tanh", prior=priors.HalfCauchyScale())


def test_quantities_of_a_hierarchy() -> None:
    size = {"weights": lambda sites: sites["layers.0.weight.raw"].abs().sum((1, 2))}
    found = simulation_based_calibration(
        half_cauchy(), X.float(), Prior(), num_simulations=20, num_draws=19, quantities=size,
        progress=False,
    )  # fmt: skip
    assert {"layers.0.weight.scale", "norm of layers.0.weight.raw", "likelihood.scale"} < {
        *found.names
    }
    assert found.names[-1] == "weights"
    assert found.names[:6] == (*NAMES[:4], "log likelihood", "log joint")
    assert found.shape_of("log likelihood") != "uniform"


def test_values_of_quantities_by_hand() -> None:
    model = half_cauchy()
    program = proper_program(model, X.float())
    made = simulate(program, X.float(), 3, seed=0)
    scalars = Quantities(program, made.x)
    batch = program.batch(made.x, made.ys[0])
    columns = dict(zip(scalars.names, scalars(made.z, batch).T, strict=True))
    f, y = program.predictive(made.z, made.x)
    np.testing.assert_allclose(columns["f(x[5])"], f[:, 5, 0], rtol=1e-5)
    likelihood = y.log_prob(batch.y).sum(1)
    np.testing.assert_allclose(columns["log likelihood"], likelihood, rtol=1e-4)
    joint = torch.stack([program.log_joint(z, batch) for z in made.z])
    np.testing.assert_allclose(columns["log joint"], joint.detach(), rtol=1e-4)
    raw = program.constrain(made.z)["layers.0.weight.raw"]
    np.testing.assert_allclose(
        columns["norm of layers.0.weight.raw"], (raw**2).sum((1, 2)).sqrt(), rtol=1e-5
    )


def test_classes_have_points_of_several_outputs() -> None:
    model = models.MLP(1, hidden=(2,), likelihood=likelihoods.Categorical(3))
    found = simulation_based_calibration(
        model, X.float(), Prior(), num_simulations=20, num_draws=19, progress=False
    )
    assert found.names[:4] == ("f(x[0])[0]", "f(x[0])[1]", "f(x[0])[2]", "f(x[7])[0]")
