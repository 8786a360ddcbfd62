"""Work shared by processes: many fits by joblib, one fit by ``torch.distributed``."""

from pyro_bnn.infer.parallel.data_parallel import DataParallel

__all__ = ["DataParallel"]
