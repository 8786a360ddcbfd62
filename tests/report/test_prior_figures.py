"""Lines of inputs, and the picture of functions along them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.decomposition import PCA
from torch.testing import assert_close

from pyro_bnn import likelihoods, models, priors
from pyro_bnn.diagnostics.simulation.prior_predictive import TailIndex, prior_predictive
from pyro_bnn.errors import OptionError, OutputError, ShapeError
from pyro_bnn.report.plots import prior as prior_figures
from pyro_bnn.report.plots.prior import (
    NUM_GRID,
    Middle,
    _limits,
    check_picture,
    describe_middle,
    lines,
    middle,
    prior_functions,
    save_picture,
)


def inputs() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    return x * torch.tensor([1.0, 3.0, 0.0]) + x[:, :1]


def test_one_input_is_its_own_line() -> None:
    (line,) = lines(torch.tensor([[2.0], [-1.0], [0.5]]), names=["age"])
    assert line.name == "age"
    assert_close(line.x[:, 0], torch.linspace(-1, 2, NUM_GRID))
    assert_close(line.place, line.x[:, 0])


def test_the_principal_line_is_that_of_scikit_learn() -> None:
    x = inputs()
    (line,) = lines(x)
    pca = PCA(1).fit(x.numpy())
    direction = pca.components_[0] * np.sign(pca.components_[0][1])
    places = (x.numpy() - pca.mean_) @ direction
    ends = pca.mean_ + np.outer([places.min(), places.max()], direction)
    np.testing.assert_allclose(line.x[[0, -1]].numpy(), ends, atol=1e-12)
    assert line.place[0] == pytest.approx(places.min())


def test_a_line_for_each_input_that_varies() -> None:
    x = torch.cat([torch.zeros(40, 1), inputs().float(), torch.arange(400.0).reshape(40, 10)], 1)
    found = lines(x, "features")
    assert [line.name for line in found] == [f"x{i}" for i in range(2, 10)]
    assert_close(found[1].x[:, 2], torch.linspace(float(x[:, 2].min()), float(x[:, 2].max()), 161))
    assert bool((found[1].x[:, [0, 1, 3]] == 0).all())


def test_inputs_without_a_line_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"inputs of shape \[2, 1, 4\] lie on no line"):
        lines(torch.zeros(2, 1, 4))
    with pytest.raises(OptionError, match="x is 1 in all rows"):
        lines(torch.ones(3, 1))
    with pytest.raises(OptionError, match="no input varies over the rows"):
        lines(torch.ones(3, 2), "features")
    with pytest.raises(OptionError, match="along is 'principal' or 'features', not 'x'"):
        lines(torch.ones(3, 2), "x")  # type: ignore[arg-type]


def draws(prior: Any, line: Any) -> Any:
    model = models.MLP(1, hidden=(), prior=prior, likelihood=likelihoods.Normal(1.0))
    return prior_predictive(model, line.x, 1_000)


@pytest.mark.slow("a second or more")
def test_the_picture_holds_bands_draws_and_histogram(tmp_path: Path) -> None:
    (line,) = lines(torch.tensor([[-2.0], [2.0]]))
    found = {"Gaussian": draws(priors.Normal(1.0), line), "Cauchy": draws(priors.Cauchy(), line)}
    figure = prior_functions(found, [line])
    axes: list[Any] = list(figure.axes)
    functions, histogram, heavy, tails = axes
    assert [ax.get_title(loc="left") for ax in (functions, heavy)] == ["Gaussian", "Cauchy"]
    outer, inner = (band.get_paths()[0].vertices for band in functions.collections)
    for band, level in ((outer, 0.975), (inner, 0.75)):  # f(2) has variance 1 + 4
        end = band[np.isclose(band[:, 0], 2.0), 1].max()
        assert end == pytest.approx(stats.norm(0, 5**0.5).ppf(level), abs=0.45)
    drawn = functions.lines[0].get_ydata()
    f = found["Gaussian"].function_draws[0, :, 0].numpy()
    np.testing.assert_allclose(drawn, f, rtol=1e-5, atol=1e-6)
    assert "0 of 1,000 draws lie off the axis" in histogram.get_title(loc="left")
    assert int(tails.get_title(loc="left").split("\n")[1].split(" ")[0]) == pytest.approx(
        1_000 * 2 * stats.cauchy.sf(6 * 2 / 1.349), abs=30
    )
    low, high = heavy.get_ylim()
    assert high - low < 0.7 * np.ptp(heavy.collections[0].get_paths()[0].vertices[:, 1])
    low, high = functions.get_ylim()
    assert high > outer[:, 1].max()
    save_picture(figure, tmp_path / "prior.svg")
    assert (tmp_path / "prior.svg").read_text().startswith("<?xml")
    assert [path.name for path in tmp_path.iterdir()] == ["prior.svg"]


@pytest.mark.slow("about a second")
def test_several_lines_and_outputs() -> None:
    model = models.MLP(3, 2, hidden=(2,), likelihood=likelihoods.Normal(1.0))
    along = lines(inputs().float(), "features")
    figure = prior_functions({"p": prior_predictive(model, along[0].x, 400)}, along)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_xlabel() for ax in shown] == ["x", "x2", "x3", "f at the middle"]
    assert shown[0].get_ylabel() == "f, output 1 of 2"


def test_the_middle_in_words() -> None:
    (line,) = lines(torch.tensor([[-2.0], [4.0]]))
    found = middle(draws(priors.Normal(2.0), line), line)  # at x = 1 f has variance 8
    assert found.scale == pytest.approx(8**0.5, rel=0.15)
    assert found.interval[1] == pytest.approx(1.96 * 8**0.5, rel=0.15)
    given = Middle(np.zeros(1_000), 1.0, (-2.0, 10.0), TailIndex(1.0, 0.14))
    expected = (
        "Cauchy: f in the middle is within [−2.00, 10.0] for 95 % of 1,000 draws; "
        "tail index 1.00\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.14"
    )
    assert describe_middle("Cauchy", given) == expected


def test_pictures_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    with pytest.raises(OptionError, match=r"a picture ends in .png, .svg, .pdf, not 'prior.txt'"):
        check_picture(tmp_path / "prior.txt")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(OutputError, match="is a folder: name the picture in it"):
        check_picture(tmp_path / "folder.png")
    check_picture(tmp_path / "new" / "prior.png")
    assert not (tmp_path / "new").exists()

    def full(self: Figure, path: Path, **options: Any) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OutputError, match="No space left on device; choose another output path"):
        save_picture(Figure(), tmp_path / "new" / "prior.png")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.slow("about a second")
def test_functions_without_spread_are_drawn_too(tmp_path: Path) -> None:
    (line,) = lines(torch.linspace(-1, 1, 9)[:, None])
    found = prior_predictive(models.MLP(1, hidden=(2,)), line.x, 400)
    still = Middle(np.zeros(400), 0.0, (0.0, 0.0), TailIndex(np.nan, np.nan))
    assert describe_middle("still", still).endswith("400 draws; tail index none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prior_figures, "middle", lambda *_: still)
        save_picture(prior_functions({"still": found}, [line]), tmp_path / "still.png")
    assert _limits(np.zeros((400, 3))) == (-1.0, 1.0)
