"""ArviZ's own functions take the tree of a posterior as it is."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
import torch
from xarray import DataTree

import pyro_bnn as bnn
from pyro_bnn.arviz_io import arviz, load_netcdf, save_netcdf

mpl.use("Agg")


@pytest.fixture(scope="module")
def trees() -> dict[str, DataTree]:
    x = torch.linspace(-1, 1, 24).unsqueeze(-1)
    split = bnn.data.from_arrays(x, torch.sin(3 * x[:, 0]), test_fraction=0.25, seed=0)
    model = bnn.models.MLP(1, hidden=(4,), likelihood=bnn.likelihoods.Normal(2.0))
    engines: dict[str, bnn.SVI | bnn.NUTS] = {
        "AutoNormal": bnn.SVI(bnn.guides.AutoNormal, num_steps=200),
        "NUTS": bnn.NUTS(num_chains=2, warmup_steps=20, num_samples=100, max_tree_depth=4),
    }
    return {
        name: engine.run(model, split.train, progress=False).to_arviz(
            split.train, split.test, num_samples=200
        )
        for name, engine in engines.items()
    }


@pytest.mark.slow("whole fits")
@pytest.mark.parametrize("name", ["AutoNormal", "NUTS"])
def test_summary_has_a_row_for_each_named_point(trees: dict[str, DataTree], name: str) -> None:
    summary = arviz().summary(trees[name], var_names=["f"])
    assert len(summary) == trees[name]["posterior"].sizes["point"]


# with few draws a k-hat is noise; the assertion needs none
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
def test_loo_lies_below_the_training_score(trees: dict[str, DataTree]) -> None:
    tree = trees["NUTS"]
    log_likelihood = np.asarray(tree["log_likelihood/y"]).reshape(200, -1)
    training_score = np.log(np.exp(log_likelihood).mean(0)).sum()
    assert arviz().loo(tree).elpd < training_score  # leaving a row out cannot help on average


@pytest.mark.parametrize("plot", ["plot_trace_dist", "plot_rank_dist", "plot_ppc_dist"])
@pytest.mark.parametrize("name", ["AutoNormal", "NUTS"])
def test_plots_take_the_tree(trees: dict[str, DataTree], name: str, plot: str) -> None:
    options = {} if plot == "plot_ppc_dist" else {"var_names": ["f"]}
    drawn = getattr(arviz(), plot)(trees[name], **options)
    assert len(drawn.viz["figure"].item().axes) >= 1


def test_netcdf_reads_back_identical(
    trees: dict[str, DataTree], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name, tree in trees.items():
        path = tmp_path_factory.mktemp("netcdf") / f"{name}.nc"
        save_netcdf(tree, path)
        read = load_netcdf(path)
        assert read.identical(tree)
