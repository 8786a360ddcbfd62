"""Trees of fits in NetCDF files, for tests that run where there is no torch.

python -m tests.arviz_trees FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

NAMES = ("AutoNormal", "NUTS", "classes", "CAVI")


def write(folder: Path) -> None:
    """A network by a guide and a sampler, one of classes, and a linear model by its mean field.

    The mean field is too narrow, as the inputs are correlated, but its draws can be reweighted.
    """
    import torch

    import pyro_bnn as bnn
    from pyro_bnn.arviz_io import save_netcdf

    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-1, 1, 24).unsqueeze(-1)
    y = torch.sin(3 * x[:, 0])
    features = torch.randn(24, 2, generator=generator, dtype=torch.float64)
    features[:, 1] += features[:, 0]
    noisy = features.sum(-1) + torch.randn(24, generator=generator, dtype=torch.float64)
    net = bnn.models.MLP(1, hidden=(4,), likelihood=bnn.likelihoods.Normal(2.0))
    labels = bnn.models.MLP(1, hidden=(4,), likelihood=bnn.likelihoods.Bernoulli())
    linear = bnn.models.LinearRegression(2).double()
    guide = bnn.SVI(bnn.guides.AutoNormal, num_steps=200)
    sampler = bnn.NUTS(num_chains=2, warmup_steps=20, num_samples=100, max_tree_depth=2)
    for name, engine, model, rows in (
        ("AutoNormal", guide, net, (x, y)),
        ("NUTS", sampler, net, (x, y)),
        ("classes", guide, labels, (x, (y > 0).long())),
        ("CAVI", bnn.CAVI(), linear, (features, noisy)),
    ):
        split = bnn.data.from_arrays(*rows, test_fraction=0.25, seed=0)
        posterior = engine.run(model, split.train, progress=False)
        num_samples = 200 if model is not linear else 2_000
        tree = posterior.to_arviz(split.train, split.test, num_samples)
        save_netcdf(tree, folder / f"{name}.nc")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
