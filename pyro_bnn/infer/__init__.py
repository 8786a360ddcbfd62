"""Inference engines: one file each, ``Engine(options).run(model, data) -> Posterior``."""

from pyro_bnn.infer.hmc import HMC
from pyro_bnn.infer.nuts import NUTS
from pyro_bnn.infer.svi import SVI

__all__ = ["HMC", "NUTS", "SVI"]
