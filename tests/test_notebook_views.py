"""What a notebook shows of a posterior, a prediction and a comparison."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose

import pyro_bnn as bnn
from pyro_bnn.data import Split, from_arrays


@pytest.fixture(scope="module")
def split() -> Split:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    return from_arrays(x, x.sum(1) + rng.normal(size=40), test_fraction=0.5)


@pytest.fixture(scope="module")
def posterior(split: Split) -> bnn.Posterior:
    model = bnn.models.MLP(2, hidden=(3,))
    svi = bnn.SVI(bnn.guides.AutoNormal, num_steps=20, compile=False)
    return svi.run(model, split.train, progress=False)


def test_a_posterior_shows_how_it_came_about(posterior: bnn.Posterior) -> None:
    html = posterior._repr_html_()
    for part in ("AutoNormal by SVI", "MLP 2-3-1 relu", "num_steps=20", "seed 0", "any number"):
        assert part in html
    assert f"<th>weights</th><td>{posterior.program.num_latents}</td>" in html


def test_a_prediction_shows_moments_of_its_first_rows(
    posterior: bnn.Posterior, split: Split
) -> None:
    prediction = posterior.predict(split.test.x, 200)
    html = prediction._repr_html_()
    assert "Prediction of 20 rows" in html
    body = html[html.index("<tbody>") :]
    assert body.count("<tr>") == 8
    first = [float(cell) for cell in re.findall("<td>(.*?)</td>", body)[:4]]
    expected = [prediction.mean, prediction.sd, prediction.sd_epistemic, prediction.sd_aleatoric]
    assert_allclose(first, [float(value[0, 0]) for value in expected], atol=1e-5)


def test_a_comparison_shows_its_answer_and_first_table(
    posterior: bnn.Posterior, split: Split
) -> None:
    comparison = bnn.compare({"<b>it</b>": posterior}, split, num_samples=100)
    html = comparison._repr_html_()
    assert comparison.answer.headline in html
    assert "&lt;b&gt;it&lt;/b&gt;" in html
    assert "<b>it</b>" not in html
    assert "<script" not in html
    row = comparison.table.iloc[0]
    assert f"{row['rmse']:.3g}" in html
