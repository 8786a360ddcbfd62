"""Posteriors as ArviZ trees, and ArviZ's diagnostics of arrays, alike under ArviZ 0.23 and 1.x.

Everything takes NumPy arrays and imports neither torch nor Pyro.
"""

from __future__ import annotations

from pyro_bnn.arviz_io.loo import LooResult, loo, loo_approximate, loo_of_draws
from pyro_bnn.arviz_io.netcdf import load_netcdf, save_netcdf
from pyro_bnn.arviz_io.statistics import arviz, ess, khat_limit, mcse_mean, psis, rhat, summary
from pyro_bnn.arviz_io.tree import PLAIN_GROUPS, SAMPLE_GROUPS, datatree, options, with_options

__all__ = [
    "PLAIN_GROUPS",
    "SAMPLE_GROUPS",
    "LooResult",
    "arviz",
    "datatree",
    "ess",
    "khat_limit",
    "load_netcdf",
    "loo",
    "loo_approximate",
    "loo_of_draws",
    "mcse_mean",
    "options",
    "psis",
    "rhat",
    "save_netcdf",
    "summary",
    "with_options",
]
