"""Inference engines: ``Engine(options).run(model, data) -> Posterior``."""

from pyro_bnn.infer.conjugate.cavi import CAVI
from pyro_bnn.infer.conjugate.exact import Exact
from pyro_bnn.infer.ensembles.ensemble import Ensemble
from pyro_bnn.infer.ensembles.subspace import Subspace
from pyro_bnn.infer.ensembles.swag import SWAG
from pyro_bnn.infer.laplace.laplace import Laplace
from pyro_bnn.infer.mc_dropout import MCDropout
from pyro_bnn.infer.mcmc.hmc import HMC
from pyro_bnn.infer.mcmc.mams import MAMS
from pyro_bnn.infer.mcmc.mclmc import MCLMC
from pyro_bnn.infer.mcmc.mile import MILE
from pyro_bnn.infer.mcmc.nuts import NUTS
from pyro_bnn.infer.natural import IVON, SLANG, VOGN, VON, Vadam
from pyro_bnn.infer.sgmcmc.baoab import BAOAB
from pyro_bnn.infer.sgmcmc.cyclical import Cyclical
from pyro_bnn.infer.sgmcmc.psgld import PSGLD
from pyro_bnn.infer.sgmcmc.sghmc import SGHMC
from pyro_bnn.infer.sgmcmc.sgld import SGLD
from pyro_bnn.infer.sgmcmc.sgnht import SGNHT
from pyro_bnn.infer.smc.smc import SMC
from pyro_bnn.infer.svi.svi import SVI

__all__ = [
    "BAOAB",
    "CAVI",
    "HMC",
    "IVON",
    "MAMS",
    "MCLMC",
    "MILE",
    "NUTS",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SLANG",
    "SMC",
    "SVI",
    "SWAG",
    "VOGN",
    "VON",
    "Cyclical",
    "Ensemble",
    "Exact",
    "Laplace",
    "MCDropout",
    "Subspace",
    "Vadam",
]
