"""Inference engines: ``Engine(options).run(model, data) -> Posterior``."""

from pyro_bnn.infer.conjugate.cavi import CAVI
from pyro_bnn.infer.conjugate.exact import Exact
from pyro_bnn.infer.mcmc.hmc import HMC
from pyro_bnn.infer.mcmc.nuts import NUTS
from pyro_bnn.infer.natural import IVON, SLANG, VOGN, VON, Vadam
from pyro_bnn.infer.sgld import SGLD
from pyro_bnn.infer.svi.svi import SVI

__all__ = [
    "CAVI",
    "HMC",
    "IVON",
    "NUTS",
    "SGLD",
    "SLANG",
    "SVI",
    "VOGN",
    "VON",
    "Exact",
    "Vadam",
]
