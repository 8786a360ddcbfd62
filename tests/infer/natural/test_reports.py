"""Natural-gradient engines in a comparison: its numbers, its page, and their k-hat."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pyro_bnn import IVON, SLANG, VOGN, VON, Dataset, Vadam, likelihoods, models, priors
from pyro_bnn.data import Split, from_arrays
from pyro_bnn.diagnostics.khat import khat
from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.evaluation.fit_checks import fit_checks
from pyro_bnn.report.evaluation.saved import read
from pyro_bnn.report.output.names import file_names
from pyro_bnn.report.verdicts.containment import family_of
from tests.guides.exact import moments
from tests.oracle import linear_gaussian

pytestmark = pytest.mark.slow("whole comparisons")

DRAWS = 100
ENGINES: dict[str, Any] = {
    "VON": VON(num_steps=60),
    "full VON": VON(num_steps=60, covariance="full"),
    "VOGN": VOGN(num_steps=60),
    "Vadam": Vadam(num_steps=60),
    "IVON": IVON(num_steps=60),
    "SLANG": SLANG(num_steps=60, rank=2),
}
EACH = pytest.mark.parametrize("name", ENGINES)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(60, 1))
    y = 50.0 + 10.0 * np.sin(2 * x[:, 0]) + 3.0 * rng.normal(size=60)
    split = from_arrays(x, y, test_fraction=0.25)
    model = models.MLP(1, hidden=(4,), activation="tanh")
    posteriors = {
        name: engine.run(model, split.train, progress=False) for name, engine in ENGINES.items()
    }
    return compare(posteriors, split, reference="VON", num_samples=DRAWS)


@pytest.fixture(scope="module")
def folder(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report without its pictures, which are what takes time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro_bnn.report.plots.figures.Figures.pictures", lambda _: [])
        return comparison.save(tmp_path_factory.mktemp("natural") / "report")


@EACH
def test_the_numbers_are_those_of_the_posterior(name: str, comparison: Comparison) -> None:
    posterior: Any = comparison.posteriors[name]
    row, split = comparison.table.loc[name], comparison.split
    x, y = split.test.raw()
    prediction = posterior.predict(x, DRAWS, comparison.seed, raw=True)
    scores = {
        "log_score": prediction.log_prob(y).mean(),
        "rmse": (prediction.mean.reshape(-1) - y).square().mean().sqrt(),
    }
    for column, expected in scores.items():
        assert_allclose(row[column], float(expected), rtol=1e-4)
    elbo, error = posterior.elbo(split.train, DRAWS, comparison.seed)
    assert_allclose((row["elbo"], row["elbo_error"]), (elbo, error), rtol=1e-9)
    log_p, log_q = posterior.densities(split.train, DRAWS, comparison.seed)
    assert_allclose(row["khat"], khat(log_p.numpy(), log_q.numpy()), rtol=1e-9)
    assert row["parameters"] == sum(p.numel() for p in posterior.guide.parameters())
    assert row["seconds"] == posterior.wall_time
    assert np.isfinite([row["crps"], row["coverage_95"]]).all()
    assert np.isfinite(row["distance"]) == (name != comparison.reference)
    assert np.isnan([row["rhat"], row["divergent"]]).all()  # no Markov chain
    assert comparison.shares_model


class Row:
    """A row of a table of the page.

    Args:
        page: The page.
        section: Title of the table's section.
        name: Of the method.
    """

    def __init__(self, page: str, section: str, name: str) -> None:
        table = page.partition(f">{section}</summary>")[2].partition("</table>")[0]
        head, _, body = table.partition("<tbody>")
        self._titles = [_text(cell) for cell in re.findall(r'<th scope="col".*?</th>', head)][1:]
        rows = re.findall(rf'data-value="{re.escape(name)}">(.*?)</tr>', body, re.DOTALL)
        (self._row,) = rows

    def __getitem__(self, title: str) -> str:
        cells = [_text(cell) for cell in re.findall(r"<td.*?</td>", self._row, re.DOTALL)]
        (place,) = [i for i, text in enumerate(self._titles) if text.startswith(title)]
        return cells[place]


def _text(markup: str) -> str:
    return html.unescape(re.sub("<.*?>", "", markup)).replace("\N{NO-BREAK SPACE}", " ").strip()


def numbers_of(cell: str) -> tuple[float, float]:
    """A number and its error, of a text such as -5.14 ± 0.19."""
    value, error = cell.replace("\N{MINUS SIGN}", "-").replace(",", "").split(" ± ")
    return float(value), float(error)


@EACH
def test_the_page_names_them_and_shows_these_numbers(
    name: str, comparison: Comparison, folder: Path
) -> None:
    page = (folder / "index.html").read_text("utf-8")
    posterior, split = comparison.posteriors[name], comparison.split
    shown, error = numbers_of(Row(page, "Checks of fits", name)["ELBO"])
    elbo, expected_error = posterior.elbo(split.train, DRAWS, comparison.seed)
    assert_allclose(error, expected_error, rtol=0.06)  # two digits
    assert abs(shown - elbo) < 0.06 * error
    x, y = split.test.raw()
    score = posterior.predict(x, DRAWS, comparison.seed, raw=True).log_prob(y).mean()
    shown, error = numbers_of(Row(page, "Held-out scores", name)["log score"])
    assert abs(shown - float(score)) < 0.06 * error
    assert Row(page, "Cost", name)["parameters"] == str(posterior.num_parameters)
    fits = re.findall(r"<tr><th.*?</tr>", page.partition("Options of the fits")[2])
    (fit,) = [fit for fit in fits if _text(fit.partition("</th>")[0]) == name]
    assert f"<td>{posterior.method}</td><td>{posterior.engine}</td><td>0</td>" in fit
    options = json.loads(_text(fit.partition("<code>")[2]))
    shared = json.loads(
        _text(page.partition("The same for all that have them: <code>")[2].partition("</code>")[0])
    )
    expected = dataclasses.asdict(ENGINES[name])
    assert options.keys() <= expected.keys()
    assert {key: (shared | options)[key] for key in expected} == expected


@EACH
def test_the_file_is_the_same_method(name: str, comparison: Comparison, folder: Path) -> None:
    posterior: Any = comparison.posteriors[name]
    entry = read(folder / f"{file_names(comparison.posteriors)[name]}.nc").entry
    assert entry.name == name
    assert (entry.fit.method, entry.fit.engine) == (posterior.method, posterior.engine)
    assert entry.fit.options == dict(posterior.options)
    assert family_of(entry.fit) == type(posterior.guide).__name__
    assert_allclose(entry.checks.losses, posterior.losses)
    elbo = posterior.elbo(comparison.split.train, DRAWS)
    assert_allclose((entry.checks.elbo, entry.checks.elbo_error), elbo, rtol=1e-6)


ORACLE = linear_gaussian()
LINEAR = Split(Dataset(ORACLE.x, ORACLE.y), Dataset(ORACLE.x, ORACLE.y), "regression", "made up", 0)


def linear_fit(engine: Any) -> Any:
    model = models.LinearRegression(
        3, prior=priors.Normal(ORACLE.prior_scale), likelihood=likelihoods.Normal(ORACLE.noise)
    ).double()
    start = {"weight": ORACLE.mean[:3].reshape(1, 3), "bias": ORACLE.mean[3:]}
    return engine.run(model, LINEAR.train, init=start, progress=False)


@EACH
def test_khat_is_that_of_the_densities_in_closed_form(name: str) -> None:
    posterior = linear_fit(ENGINES[name])
    checks = fit_checks(posterior, LINEAR, 2_000, 0, is_point=False)
    z = posterior.unconstrained(2_000, 0)
    mean, covariance = (value.detach().numpy() for value in moments(posterior.guide))
    log_q = stats.multivariate_normal.logpdf(z.numpy(), mean, covariance)
    assert checks.khat == pytest.approx(khat(ORACLE.log_joint(z).numpy(), log_q), rel=1e-5)


@pytest.mark.parametrize(("temperature", "is_right"), [(1.0, True), (0.05, False)])
def test_khat_tells_the_posterior_from_a_cold_one(temperature: float, is_right: bool) -> None:
    """At temperature T the sds are sqrt(T) of the right ones, and the tail index is 1 - T."""
    newton: dict[str, Any] = {"num_steps": 1, "learning_rate": 1.0, "precision_learning_rate": 1.0}
    von = VON(covariance="full", expectation="mean", temperature=temperature, **newton)
    posterior = linear_fit(von)
    checks = fit_checks(posterior, LINEAR, 2_000, 0, is_point=False)
    assert (checks.khat < 0.5) is is_right
    assert (checks.khat > checks.khat_limit) is not is_right
    findings = compare({"it": posterior}, LINEAR, num_samples=2_000).findings  # of the same draws
    assert ("khat" in {finding.kind for finding in findings}) is not is_right
