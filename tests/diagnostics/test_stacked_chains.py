"""Stacked chains, whose predictive densities are known: their draws hardly differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor
from torch.distributions import Normal

from pyro_bnn import stack_chains
from pyro_bnn.data import Dataset, Split
from pyro_bnn.diagnostics.stacked_chains import counts_of
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.guides import AutoNormal
from pyro_bnn.infer import SVI
from pyro_bnn.posterior import DrawsPosterior, Posterior, Provenance
from pyro_bnn.program import Program
from pyro_bnn.report import compare
from tests.oracle import LinearModel

NOISE = 0.5
MODEL = LinearModel(1, noise=NOISE, prior_scale=1.0)


def rows(share: float, num_rows: int = 150, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of which a share is about the line x, the rest about -x: no single line is right."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(num_rows, 1, generator=generator, dtype=torch.float64) * 4 - 2
    sign = 2.0 * (torch.rand(num_rows, generator=generator) < share) - 1
    noise = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return x, sign * x[:, 0] + NOISE * noise


def chains(
    *slopes: float, data: tuple[Tensor, Tensor], num_draws: int = 100, spread: float = 1e-8
) -> DrawsPosterior:
    """Chains around lines of these slopes through 0, of hardly any spread."""
    generator = torch.Generator().manual_seed(1)
    z = torch.zeros(len(slopes), num_draws, 2, dtype=torch.float64)
    z[:, :, 0] = torch.tensor(slopes, dtype=torch.float64)[:, None]
    z += spread * torch.randn(z.shape, generator=generator, dtype=torch.float64)
    stats = {"diverging": np.zeros(z.shape[:2], dtype=bool)}
    provenance = Provenance("NUTS", "NUTS", options={"num_chains": len(slopes)}, wall_time=2.0)
    return DrawsPosterior(Program(MODEL, *data), z, provenance, sample_stats=stats)


def log_density(slope: float, data: tuple[Tensor, Tensor]) -> np.ndarray:
    x, y = data
    return np.asarray(Normal(slope * x[:, 0], NOISE).log_prob(y))


def weights_of(stacked: Posterior) -> np.ndarray:
    return np.array(stacked.options["weights"])


def test_weights_of_two_chains_are_those_of_a_grid() -> None:
    data = rows(0.3)
    stacked = stack_chains(chains(1.0, -1.0, data=data), data)
    first, second = (log_density(slope, data) for slope in (1.0, -1.0))
    grid = np.linspace(1e-4, 1 - 1e-4, 9_999)
    score = [np.logaddexp(first + np.log(w), second + np.log1p(-w)).mean() for w in grid]
    assert weights_of(stacked)[0] == pytest.approx(grid[int(np.argmax(score))], abs=2e-4)
    assert stacked.options["log_score"] == pytest.approx(max(score), abs=1e-7)
    equal = np.logaddexp(first, second).mean() - np.log(2)
    assert stacked.options["equal_log_score"] == pytest.approx(equal, abs=1e-7)


def test_a_chain_that_predicts_badly_has_no_weight_and_no_draw() -> None:
    data = rows(1.0)
    stacked = stack_chains(chains(1.0, 9.0, 1.0, data=data), data)
    assert_allclose(weights_of(stacked), [0.5, 0, 0.5], atol=1e-6)
    assert stacked.num_stored_draws == 200
    assert float(stacked.stored[..., 0].max()) < 1.1


def test_equal_chains_score_as_equal_weights_do() -> None:
    data = rows(1.0)
    options = stack_chains(chains(1.0, 1.0, 1.0, data=data), data).options
    assert options["log_score"] == pytest.approx(options["equal_log_score"], abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_of_several_modes_it_predicts_new_rows_better_than_equal_weights(seed: int) -> None:
    """Three of four chains are in the mode of 20 % of the rows."""
    data, test = rows(0.2, seed=seed), rows(0.2, 2_000, seed=100 + seed)
    equal = chains(1.0, 1.0, 1.0, -1.0, data=data)
    stacked = stack_chains(equal, data)
    scores = [float(each.predict(test[0]).log_prob(test[1]).mean()) for each in (stacked, equal)]
    assert scores[0] > scores[1] + 0.1
    # by equal weights a row has 3/4 and 1/4 of its densities, by the best 0.2 and 0.8
    first, second = (log_density(slope, test) for slope in (1.0, -1.0))
    own = weights_of(stacked)[:3].sum()
    expected = np.logaddexp(first + np.log(own), second + np.log1p(-own)).mean()
    assert scores[0] == pytest.approx(expected, abs=0.01)  # weights to one draw of some hundred
    assert own == pytest.approx(0.2, abs=4 * np.sqrt(0.2 * 0.8 / 150))


def test_predictions_are_the_weighted_ones_of_the_chains() -> None:
    data = rows(0.3)
    stacked = stack_chains(chains(1.0, -1.0, data=data, num_draws=400), data)
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    f = stacked.function_draws(x, stacked.num_stored_draws).mean(0)[:, 0]
    w = weights_of(stacked)
    assert_allclose(f, (w[0] - w[1]) * x[:, 0], atol=2 * 2 / stacked.num_stored_draws + 1e-6)


def test_each_stored_draw_is_used_at_most_once() -> None:
    data = rows(0.3)
    stacked = stack_chains(chains(1.0, -1.0, data=data, spread=1e-6), data)
    drawn = stacked.stored.reshape(-1, 2)
    assert len(drawn.unique(dim=0)) == len(drawn) == stacked.num_stored_draws
    assert 100 <= len(drawn) <= 200


@pytest.mark.parametrize("seed", range(5))
def test_counts_stand_for_the_weights_to_one_draw(seed: int) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.full(5, 0.5))
    for most in (10**6, 120):
        counts = counts_of(weights, 50, most)
        total = counts.sum()
        assert counts.max() <= 50
        assert total <= most
        assert (np.abs(counts - weights * total) < 1).all()
    assert counts_of(weights, 50, 10**6).max() >= 49  # as many as can


def test_a_cluster_has_one_weight_which_its_chains_share() -> None:
    data = rows(0.2)
    found = chains(1.0, 1.01, -1.0, 1.0, data=data, spread=0.02)
    stacked = stack_chains(found, data, by="cluster")
    assert stacked.options["clusters"] == [0, 0, 1, 0]
    w = weights_of(stacked)
    assert w[0] == w[1] == w[3]
    assert w.sum() == pytest.approx(1)
    assert w[2] == pytest.approx(0.8, abs=0.15)


def test_rows_that_psis_cannot_leave_out_are_refused_and_new_ones_are_not() -> None:
    """Draws a hundred times too wide: each row is left out by its own few draws."""
    data, new = rows(1.0, 40), rows(1.0, 40, seed=7)
    wide = chains(1.0, 1.0, data=data, spread=8.0)
    with pytest.raises(DataError, match=r"fails at more than 10% of 40 rows .*chain 1: \d+, chain"):
        stack_chains(wide, data)
    with pytest.raises(DataError, match='with rows="new", or raise num_samples'):
        stack_chains(wide, data, by="cluster")
    stacked = stack_chains(wide, new, rows="new")
    densities = wide.log_likelihood(new, 200, group_by_chain=True)
    each = (torch.logsumexp(densities, 1) - np.log(100)).numpy()
    assert stacked.options["bad_rows"] == 0
    w = weights_of(stacked)
    best = np.log(w @ np.exp(each)).mean()
    assert stacked.options["log_score"] == pytest.approx(best, abs=1e-9)
    for other in (np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([0.5, 0.5])):
        assert best >= np.log(other @ np.exp(each)).mean() - 1e-8


def test_what_psis_leaves_out_is_in_closed_form() -> None:
    """Of exact draws of the posterior of a line: its density of each row, given the others."""
    x, y = data = rows(1.0, 30)
    design = torch.cat([x, torch.ones_like(x)], 1)
    precision = design.T @ design / NOISE**2 + torch.eye(2, dtype=torch.float64)
    covariance = torch.linalg.inv(precision)
    mean = covariance @ design.T @ y / NOISE**2
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(2, 4_000, 2, generator=generator, dtype=torch.float64)
    z = mean + noise @ torch.linalg.cholesky(covariance).T
    stats = {"diverging": np.zeros((2, 4_000), dtype=bool)}
    exact = DrawsPosterior(Program(MODEL, *data), z, Provenance("NUTS", "NUTS"), sample_stats=stats)
    total = 0.0
    for n in range(30):
        rest = precision - torch.outer(design[n], design[n]) / NOISE**2
        inverse = torch.linalg.inv(rest)
        at = inverse @ (design.T @ y - design[n] * y[n]) / NOISE**2
        sd = (NOISE**2 + design[n] @ inverse @ design[n]).sqrt()
        total += float(Normal(design[n] @ at, sd).log_prob(y[n]))
    options = stack_chains(exact, data).options
    assert options["equal_log_score"] == pytest.approx(total / 30, abs=2e-3)
    assert options["log_score"] >= options["equal_log_score"]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("guide", "stack_chains weights Markov chains, and AutoNormal has none"),
        ("one", "NUTS has one chain, whose weight is 1"),
        ("short", "NUTS has 5 draws a chain, and weights need 8 or more: raise num_samples"),
    ],
)
def test_what_has_no_chains_to_weight_is_refused(what: str, message: str) -> None:
    data = rows(0.5, 20)
    made: dict[str, Any] = {
        "one": lambda: chains(1.0, data=data),
        "short": lambda: chains(1.0, -1.0, data=data, num_draws=5),
        "guide": lambda: SVI(AutoNormal, num_steps=2).run(MODEL, data, progress=False),
    }
    with pytest.raises(OptionError, match=message):
        stack_chains(made[what](), data)


def test_options_out_of_range_are_refused() -> None:
    data = rows(0.5, 20)
    found = chains(1.0, -1.0, data=data)
    choices: list[dict[str, Any]] = [{"rows": "old"}, {"by": "mode"}, {"max_bad": 1.5}]
    for options in choices:
        with pytest.raises(OptionError, match=next(iter(options))):
            stack_chains(found, data, **options)
    far = (data[0], data[1] + 1e200)
    with pytest.raises(DataError, match="log likelihoods are not finite"):
        stack_chains(found, far)


def test_it_is_saved_and_exported_as_any_posterior(tmp_path: Path) -> None:
    data = rows(0.3)
    stacked = stack_chains(chains(1.0, -1.0, data=data), data)
    stacked.save(tmp_path / "it.bin")
    again = Posterior.load(tmp_path / "it.bin", MODEL)
    assert again.options == stacked.options
    assert again.nature == stacked.nature
    assert again.wall_time > 2.0
    x = data[0][:3]
    torch.testing.assert_close(again.predict(x).mean, stacked.predict(x).mean, rtol=0, atol=0)
    tree = stacked.to_arviz(Dataset(*data), num_samples=50)
    assert tree["log_likelihood"]["y"].shape[:2] == (1, 50)


@pytest.mark.slow("whole comparisons")
def test_the_report_says_which_chains_are_together_and_what_stacking_is() -> None:
    data, test = rows(0.2), rows(0.2, 60, seed=9)
    split = Split(Dataset(*data), Dataset(*test), task="regression", name="two lines", index=0)
    found = chains(1.0, 1.0, -1.0, 3.0, data=data, spread=0.02)
    comparison = compare({"NUTS": found, "stacked": stack_chains(found, data)}, split)
    texts = {f.kind: f for f in comparison.findings if f.kind in ("rhat", "stacked", "unchecked")}
    assert set(texts) == {"rhat", "stacked"}
    assert (
        ": 4 chains in 3 clusters (2, 1, 1: chains 1, 2; chain 3; chain 4) by their functions, "
        "each in a mode of its own or stuck where it is; to predict weight the chains by "
        "bnn.stack_chains(posterior, data); for the posterior take another parametrisation"
    ) in texts["rhat"].text
    said = texts["stacked"].text
    assert "stacked: chains of NUTS weighted by stacking (chain " in said
    assert "chain 3: 0.7" in said
    assert "chain 4" not in said
    assert "ess" not in {f.kind for f in comparison.findings}  # more draws would not mend it
    assert "better predictions than equal weights (by " in said
    assert "nats a row, of the 150 rows that chose them), not the posterior" in said
    assert comparison.answer.status["stacked"] == "Not for uncertainty"
    assert comparison.answer.status["NUTS"] == "Refit first"
    drawn = comparison.figures["ranks"]
    titles = [ax.get_title(loc="left") for ax in drawn.axes]
    assert titles == [
        "chain 1\ncluster 1", "chain 2\ncluster 1", "chain 3\ncluster 2", "chain 4\ncluster 3",
    ]  # fmt: skip
