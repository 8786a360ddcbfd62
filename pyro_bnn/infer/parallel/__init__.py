"""Work shared by processes: many fits by joblib, one fit by ``torch.distributed``."""
