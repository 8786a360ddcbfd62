"""Natural-gradient variational inference: Gaussians moved in their natural parameters."""

from pyro_bnn.infer.natural.ivon import IVON
from pyro_bnn.infer.natural.slang import SLANG
from pyro_bnn.infer.natural.vadam import Vadam
from pyro_bnn.infer.natural.vogn import VOGN
from pyro_bnn.infer.natural.von import VON

__all__ = ["IVON", "SLANG", "VOGN", "VON", "Vadam"]
