"""The commands, a file each, in the order of ``--help``."""

from pyro_bnn.cli.commands import compare, report, fit, predict, trust, sbc, prior, list_names  # noqa: I001

__all__ = ["compare", "fit", "list_names", "predict", "prior", "report", "sbc", "trust"]
