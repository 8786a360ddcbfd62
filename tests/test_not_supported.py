"""``docs/howto/not_supported.md``: each row's errors say its words, and its recipe works.

A case has the name of its row. Words in backquotes of the row's second column stand in what was
said, those of the third in the code of the case.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.inspection import permutation_importance
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch import Tensor, nn
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import data, models, priors
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import AutoComposite, AutoDelta, AutoNormal
from pyro_bnn.likelihoods import Likelihood
from tests import command_line

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "not_supported.md"
SECTION = re.compile(r"^## Any model on a `Call`$.*?^## ", re.MULTILINE | re.DOTALL)
N = 40
X = np.random.default_rng(0).normal(size=(N, 3))
Y = X[:, 0] + 0.1 * np.random.default_rng(1).normal(size=N)
ROWS = torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)
NORMAL = priors.Normal()
SHORT = bnn.SVI(AutoNormal, num_steps=20)
BNNRegressor: Any = partial(bnn.sklearn.BNNRegressor, num_steps=20, random_state=0)
BNNClassifier: Any = partial(bnn.sklearn.BNNClassifier, num_steps=20, random_state=0)


class Said:
    """What was said by what was refused."""

    def __init__(self) -> None:
        self.text = ""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Something in here is refused."""
        try:
            yield
        except Exception as error:  # of scikit-learn and torch too
            self.text += f"{error}\n"
        else:
            pytest.fail("nothing was refused")


Case = Callable[[Said], None]
CASES: dict[str, Case] = {}


def row(wanted: str) -> Callable[[Case], Case]:
    """The case of the row whose first column this is, without backquotes."""

    def registered(case: Case) -> Case:
        assert wanted not in CASES
        CASES[wanted] = case
        return case

    return registered


def rows_of_the_page() -> dict[str, tuple[str, str]]:
    """The second and third column by the first, without backquotes, but those of a ``Call``."""
    page = re.sub(
        r"^## Any model on a `Call`$.*?^## ",
        "## ",
        PAGE.read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
    table = re.findall(r"^\| (.*?) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    body = [cells for cells in table if cells[0] not in {"You want", "---"}]
    return {wanted.replace("`", ""): (happens, instead) for wanted, happens, instead in body}


def test_every_row_has_a_case_and_every_case_a_row() -> None:
    assert sorted(CASES) == sorted(rows_of_the_page())
    assert 30 <= len(CASES) <= 40


@pytest.mark.parametrize("wanted", CASES)
def test_row_is_as_the_page_says(wanted: str) -> None:
    said = Said()
    CASES[wanted](said)
    happens, instead = rows_of_the_page()[wanted]
    assert [words for words in re.findall(r"`(.*?)`", happens) if words not in said.text] == []
    assert bool(said.text) is ("Nothing is refused" not in happens)
    code = without_blanks(inspect.getsource(CASES[wanted]))
    unused = [each for each in re.findall(r"`(.*?)`", instead) if without_blanks(each) not in code]
    assert unused == []


@pytest.mark.parametrize(
    "question",
    [
        "missing values",
        "weights of rows",
        "weights of classes",
        "skewed",
        "which inputs matter",
    ],
)
def test_first_column_answers_what_users_look_for(question: str) -> None:
    assert any(question in wanted for wanted in rows_of_the_page())


def without_blanks(code: str) -> str:
    """Code in one line, whatever its line breaks, trailing commas and prefixes are."""
    return re.sub(r",(?=[)\]])", "", re.sub(r"\s", "", code))


def table() -> pd.DataFrame:
    """Two inputs and the target of ``ROWS``."""
    return pd.DataFrame({"area": X[:, 0], "age": X[:, 1], "y": Y})


def observed(f: Tensor, y: Tensor | None, scale: Tensor | float = 0.1) -> Tensor:
    """The last lines of a model."""
    f = pyro.deterministic("f", f)
    with pyro.plate("data", f.shape[-2]):
        return pyro.sample("y", dist.Normal(f, scale).to_event(1), obs=y)


def fits(model: Any, rows: tuple[Tensor, Tensor] = ROWS, engine: Any = SHORT) -> Any:
    """The posterior, whose predictions are finite numbers."""
    posterior = engine.run(model, rows)
    assert posterior.predict(rows[0][:2]).function_draws.isfinite().all()
    return posterior


@row("missing values (NaN) in inputs")
def inputs_are_missing(said: Said) -> None:
    frame = table()
    frame.loc[::7, "area"] = np.nan
    with said():
        data.from_frame(frame, target="y")
    holes = frame[["area", "age"]].to_numpy()
    with said():
        BNNRegressor().fit(holes, Y)
    pipe = make_pipeline(SimpleImputer(add_indicator=True), BNNRegressor()).fit(holes, Y)
    assert np.isfinite(pipe.predict(holes)).all()
    frame["area_missing"] = frame["area"].isna()
    frame["area"] = frame["area"].fillna(frame["area"].mean())
    assert data.from_frame(frame, target="y").train.x.shape[1] == 3


@row("missing values in the target")
def targets_are_missing(said: Said) -> None:
    y = Y.copy()
    y[:5] = np.nan
    with said():
        BNNRegressor().fit(X, y)
    with said():
        SHORT.run(models.MLP(3, num_outputs=2), (ROWS[0], torch.tensor(np.stack([y, Y], 1))))
    known = ~np.isnan(y)
    assert np.isfinite(BNNRegressor().fit(X[known], y[known]).predict(X[~known])).all()


@row("weights of rows (sample_weight)")
def rows_have_weights(said: Said) -> None:
    with said():
        BNNRegressor().fit(*ROWS, sample_weight=np.ones(N))
    said.text += command_line.run("fit", "--weights", "age").err

    class Weighted(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.slope: Any = PyroSample(dist.Normal(0.0, 1.0))

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            f = pyro.deterministic("f", x[:, :1] * self.slope)
            with pyro.plate("data", len(x)), poutine.scale(scale=x[:, 1]):
                return pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)

    X, counts = np.array([[1.0], [2.0]]), np.array([5, 1])
    repeated = X.repeat(counts, axis=0)
    exact = (1 + (repeated**2).sum() / 0.25) ** -0.5
    ones = np.ones_like(repeated)
    for inputs, weights in ((X, counts[:, None]), (repeated, ones)):  # the same posterior
        x = torch.tensor(np.concatenate([inputs, weights], 1), dtype=torch.float32)
        posterior = bnn.Laplace(num_steps=100).run(Weighted(), (x, x[:, 0]))
        assert posterior.sample(20_000)["slope"].std().item() == pytest.approx(exact, rel=0.025)


@row("weights of classes (class_weight), rare classes")
def classes_have_weights(said: Said) -> None:
    with said():
        BNNClassifier(class_weight="balanced")
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 3))
    y = (random.random(300) < 1 / (1 + np.exp(3 - 3 * X[:, 0]))).astype(int)
    model = BNNClassifier(num_steps=300).fit(X, y)
    cost = 9

    def lost(chosen: Any) -> int:
        return int(np.where(y == 1, cost * ~chosen, chosen).sum())

    chosen = model.predict_proba(X)[:, 1] > 1 / (1 + cost)
    assert lost(chosen) < min(lost(model.predict(X) == 1), lost(y >= 0))  # >= 0: all rows


@row("dates and times as inputs")
def dates(said: Said) -> None:
    frame = table().assign(day=pd.date_range("2020-01-01", periods=N))
    with said():
        data.from_frame(frame, target="y")
    frame["day"] = frame["day"].dt.month
    assert data.from_frame(frame, target="y").train.x.shape[1] == 3


@row("free text as an input")
def text(said: Said) -> None:
    with said():
        data.from_frame(table().assign(review=[f"film {i}" for i in range(N)]), target="y")
    words, labels = ["good film", "bad film"] * (N // 2), [1, 0] * (N // 2)
    pipe = make_pipeline(TfidfVectorizer(), BNNClassifier()).fit(words, labels)
    assert pipe.predict(["good", "bad"]).tolist() == [1, 0]


@row("columns of strings in an estimator")
def strings(said: Said) -> None:
    frame = table().assign(town=["Oslo", "Rome"] * (N // 2))
    inputs = frame.drop(columns="y")
    with said():
        BNNRegressor().fit(inputs, Y)
    encode = make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough")
    assert np.isfinite(make_pipeline(encode, BNNRegressor()).fit(inputs, Y).predict(inputs)).all()
    assert data.from_frame(frame, target="y").train.x.shape[1] == 4


@row("an Excel file")
def spreadsheets(said: Said) -> None:
    with NamedTemporaryFile(suffix=".xlsx") as file, said():
        data.load(file.name, target="y")
    assert data.from_frame(table(), target="y").train.x.shape[1] == 2


@row("a JSON file, a database")
def other_files(said: Said) -> None:
    with NamedTemporaryFile(suffix=".json") as file, said():
        data.load(file.name, target="y")
    frame = pd.read_json(StringIO(table().to_json()))
    assert data.from_frame(frame, target="y").train.x.shape[1] == 2


@row("images in an estimator")
def images_in_an_estimator(said: Said) -> None:
    images, labels = np.random.default_rng(0).normal(size=(N, 8, 8)), [0, 1] * (N // 2)
    with said():
        BNNClassifier().fit(images, labels)
    assert BNNClassifier().fit(images.reshape(len(images), -1), labels).n_features_in_ == 64
    net = models.LeNet((1, 8, 8), num_outputs=2)
    fits(net, (torch.tensor(images[:, None], dtype=torch.float32), torch.tensor(labels)))


@row("time series, forecasts")
def time_series(said: Said) -> None:
    frame = table().assign(time=np.arange(N))
    assert said.text == ""
    drawn: Any = data.from_frame(frame, target="y").test
    assert drawn.inputs.inverse(drawn.x)[:, -1].min() < N - len(drawn.x)  # not the last ones
    frame["before"] = frame["y"].shift(1)
    frame = frame.dropna()
    early, late = np.arange(30), np.arange(30, N - 1)
    split: Any = data.from_frame(frame, target="y", rows=(early, late))
    times = split.test.inputs.inverse(split.test.x)[:, 2]
    assert_close(times, torch.arange(31.0, N), check_dtype=False)


@row("a skewed positive target (prices, times); no negative intervals")
def skewed(said: Said) -> None:
    assert said.text == ""
    y = np.exp(Y)
    net = BNNRegressor(num_steps=300)
    plain = net.fit(X, y).predict(X, quantiles=[0.025, 0.975])
    assert plain.min() < 0
    logs = TransformedTargetRegressor(net, func=np.log, inverse_func=np.exp).fit(X, y)
    bounds = logs.predict(X, quantiles=[0.025, 0.975])
    assert_close(bounds, np.exp(net.fit(X, Y).predict(X, quantiles=[0.025, 0.975])))
    assert ((bounds[:, 0] < y) & (y < bounds[:, 1])).mean() > 0.9
    assert_close(logs.predict(X), logs.predict(X, quantiles=0.5), rtol=0.05, atol=0)


class LogNormal(Likelihood):
    """The one of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = PyroSample(dist.LogNormal(-1.0, 1.0))

    def distribution(self, f: Tensor) -> Any:
        return dist.LogNormal(f, self.scale).to_event(1)


class NegativeBinomial(Likelihood):
    """Counts that vary more than Poisson's."""

    def distribution(self, f: Tensor) -> Any:
        return dist.NegativeBinomial(2.0, logits=f).to_event(1)


@row("a likelihood that is not listed (gamma, lognormal, negative binomial)")
def likelihood_not_listed(said: Said) -> None:
    with said():
        BNNRegressor(likelihood="gamma").fit(X, Y)
    x = ROWS[0]
    for likelihood, y in ((LogNormal(), ROWS[1].exp()), (NegativeBinomial(), torch.arange(40.0))):
        assert issubclass(type(likelihood), Likelihood)
        fitted = fits(models.MLP(3, likelihood=likelihood), (x, y)).predict(x)
        q = fitted.quantile([0.025, 0.975])
        assert (q >= 0).all()
        assert (q[1] > q[0]).all()
    model = models.MLP(3, hidden=(5,), likelihood=LogNormal())
    rows = x, ROWS[1].exp()
    with pytest.raises(OptionError, match="take curvature="):
        bnn.Laplace(num_steps=20).run(model, rows)
    fits(model, rows, bnn.Laplace(num_steps=20, curvature="hessian"))
    with pytest.raises(OptionError, match="leave it at None"):
        BNNRegressor(likelihood=LogNormal()).fit(X, np.exp(Y))


@row("standard deviations of a transformed target")
def sd_of_a_transformed_target(said: Said) -> None:
    model = TransformedTargetRegressor(BNNRegressor(), func=np.log, inverse_func=np.exp)
    model.fit(X, np.exp(Y))
    with said():
        model.predict(X, return_std=True)
    bounds = model.predict(X, quantiles=[0.025, 0.975])
    assert (bounds[:, 0] < bounds[:, 1]).all()


class CappedNormal(dist.Normal):
    """Gaussian noise of which no more than 1 is recorded."""

    def log_prob(self, y: Tensor) -> Tensor:
        limit = torch.ones_like(y)
        tail = (1 - self.cdf(limit)).log()  # type: ignore[no-untyped-call]
        within = super().log_prob(y)  # type: ignore[no-untyped-call]
        return torch.where(y >= limit, tail, within)


class Capped(Likelihood):
    """``CappedNormal`` noise."""

    def distribution(self, f: Tensor) -> Any:
        return CappedNormal(f, 0.5).to_event(1)  # type: ignore[no-untyped-call]


@row('censored targets (only "at least 10" is known)')
def censored(said: Said) -> None:
    assert said.text == ""
    assert "(1 - self.cdf(limit)).log()" in inspect.getsource(CappedNormal.log_prob)
    x = torch.ones(200, 1)
    y = (1 + 0.5 * torch.randn(200, generator=torch.Generator().manual_seed(0))).clamp(max=1)
    engine = bnn.SVI(AutoNormal, num_steps=3_000)
    means = [
        fits(bnn.bayesian(nn.Linear(1, 1, bias=False), priors.Flat(), noise), (x, y), engine)
        .predict(x[:1])
        .mean.item()
        for noise in (bnn.likelihoods.Normal(0.5), Capped())
    ]
    assert means[0] == pytest.approx(y.mean().item(), abs=0.1)
    assert means[1] == pytest.approx(1, abs=0.15)


@row("several labels a row")
def several_labels(said: Said) -> None:
    labels = (X[:, :2] > 0).astype(int)
    with said():
        BNNClassifier().fit(X, labels)
    model = MultiOutputClassifier(BNNClassifier()).fit(X, labels)
    assert [probs.shape for probs in model.predict_proba(X)] == [(N, 2), (N, 2)]


@row("several targets in a table, one of them classes")
def targets_of_classes(said: Said) -> None:
    frame = table().assign(sold=["yes", "no"] * (N // 2))
    with said():
        data.from_frame(frame, target=["y", "sold"])
    assert data.from_frame(frame.drop(columns="y"), target="sold").train.x.shape[1] == 2


@row("targets that are matrices or sequences")
def targets_are_matrices(said: Said) -> None:
    x, y = ROWS[0], torch.zeros(N, 2, 2)
    with said():
        SHORT.run(models.MLP(3, num_outputs=4), (x, y))
    fits(models.MLP(3, num_outputs=4), (x, y.flatten(1)))


@row("a latent variable of each row")
def latents_of_rows(said: Said) -> None:
    def of_rows(x: Tensor, y: Tensor | None = None) -> Tensor:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            f = (x[:, 0] * slope + z).unsqueeze(-1)
            y = pyro.sample("y", dist.Normal(f, 0.1).to_event(1), obs=y)
        pyro.deterministic("f", f)
        return y

    with said():
        SHORT.run(of_rows, ROWS)

    def integrated(x: Tensor, y: Tensor | None = None) -> Tensor:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        return observed(x[:, :1] * slope, y, (1 + 0.1**2) ** 0.5)

    exact = (1 + (X[:, 0] ** 2).sum() / 1.01) ** -0.5
    posterior = fits(integrated, engine=bnn.Laplace(num_steps=100))
    assert posterior.sample(20_000)["slope"].std().item() == pytest.approx(exact, rel=0.025)

    def of_groups(x: Tensor, y: Tensor | None = None) -> Tensor:
        z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
        return observed(z[..., x[:, 0].long()].unsqueeze(-1), y)

    fits(of_groups, (torch.arange(N)[:, None] % 5.0, ROWS[1]))


@row("two observed sites")
def two_observed_sites(said: Said) -> None:
    def twice(x: Tensor, y: Tensor | None = None) -> Tensor:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        f = pyro.deterministic("f", x[:, :1] * slope)
        with pyro.plate("data", len(x)):
            pyro.sample("other", dist.Normal(f, 1.0).to_event(1), obs=x[:, 1:2])
            return pyro.sample("y", dist.Normal(f, 0.1).to_event(1), obs=y)

    with said():
        SHORT.run(twice, ROWS)

    def as_columns(x: Tensor, y: Tensor | None = None) -> Tensor:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        f = pyro.deterministic("f", x[:, :1] * slope * torch.ones(2))
        scales = torch.tensor([1.0, 0.1])
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, scales).to_event(1), obs=y)

    exact = (1 + (X[:, 0] ** 2).sum() * (1 + 100)) ** -0.5
    y = torch.stack([ROWS[0][:, 1], ROWS[1]], 1)
    posterior = fits(as_columns, (ROWS[0], y), bnn.Laplace(num_steps=300))
    assert posterior.sample(20_000)["slope"].std().item() == pytest.approx(exact, rel=0.025)


@row("another name for the observed site")
def another_name(said: Said) -> None:
    def model(name: str, x: Tensor, y: Tensor | None = None) -> Tensor:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        f = pyro.deterministic("f", x[:, :1] * slope)
        with pyro.plate("data", len(x)):
            return pyro.sample(name, dist.Normal(f, 0.1).to_event(1), obs=y)

    with said():
        SHORT.run(partial(model, "obs"), ROWS)
    fits(partial(model, "y"))


@row("a model without a network output")
def without_output(said: Said) -> None:
    def model(x: Tensor, y: Tensor | None = None, *, recorded: bool = False) -> Tensor:
        f = x[:, :1] * pyro.sample("slope", dist.Normal(0.0, 1.0))
        if recorded:
            f = pyro.deterministic("f", f)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 0.1).to_event(1), obs=y)

    with said():
        SHORT.run(model, ROWS)
    fits(partial(model, recorded=True))


@row("discrete latent variables")
def discrete(said: Said) -> None:
    def drawn(x: Tensor, y: Tensor | None = None) -> Tensor:
        return observed(x[:, :1] * pyro.sample("k", dist.Bernoulli(0.5)), y)

    with said():
        SHORT.run(drawn, ROWS)

    def summed(x: Tensor, y: Tensor | None = None) -> Tensor:
        slopes = pyro.sample("slopes", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        f = pyro.deterministic("f", x[:, :1] * slopes)
        with pyro.plate("data", len(x)):
            mixed = dist.MixtureSameFamily(
                dist.Categorical(logits=torch.zeros_like(f)), dist.Normal(f, 0.3)
            )
            return pyro.sample("y", mixed, obs=y)

    fits(summed)


@row(
    "weights that are rounded or binary (torch.round, torch.sign), with a straight-through "
    "gradient or none"
)
def binary(said: Said) -> None:
    def model(ends: Callable[[Tensor], Tensor], x: Tensor, y: Tensor | None = None) -> Tensor:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        return observed(x[:, :1] * ends(slope), y)

    with said():
        SHORT.run(partial(model, torch.sign), ROWS)
    with said():
        SHORT.run(partial(model, lambda slope: slope + (slope.round() - slope).detach()), ROWS)
    fits(partial(model, lambda slope: torch.tanh(4 * slope)))


@row("dist.ImproperUniform")
def improper(said: Said) -> None:
    def model(prior: Any, x: Tensor, y: Tensor | None = None) -> Tensor:
        return observed(x[:, :1] * pyro.sample("slope", prior), y)

    with said():
        SHORT.run(partial(model, dist.ImproperUniform(dist.constraints.real, (), ())), ROWS)
    posterior = fits(partial(model, priors.Flat().distribution(torch.Size())))
    assert posterior.sample(2)["slope"].isfinite().all()


class Recurrent(nn.Module):
    """A row is a sequence; of torch's recurrent layers."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.body, self.head = kind(1, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x.unsqueeze(-1))[0][:, -1])


@row("nn.LSTM or nn.GRU with drawn weights")
def recurrent(said: Said) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = bnn.layers.GRUCell(1, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Any:
            state = x.new_zeros(len(x), 4)
            for time in range(x.shape[1]):
                state = self.cell(x[:, time : time + 1], state)
            return self.head(state)

    for kind in (nn.LSTM, nn.GRU):
        with said():
            SHORT.run(bnn.bayesian(Recurrent(kind), NORMAL), ROWS)
        frozen = Recurrent(kind).requires_grad_(requires_grad=False)
        fits(bnn.bayesian(frozen, {"head.*": NORMAL}))
    fits(bnn.bayesian(Loop(), NORMAL))


def between(layer: nn.Module) -> nn.Sequential:
    """A network with this layer in the middle."""
    return nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 1))


@row("batch normalisation")
def batch_normalisation(said: Said) -> None:
    with said():
        SHORT.run(bnn.bayesian(between(nn.BatchNorm1d(4)), NORMAL), ROWS)
    fits(bnn.bayesian(between(nn.GroupNorm(2, 4)), NORMAL))
    fits(bnn.bayesian(between(nn.BatchNorm1d(4)).eval(), NORMAL))


@row("dropout layers")
def dropout(said: Said) -> None:
    net = between(nn.Dropout(0.1))
    with said():
        SHORT.run(bnn.bayesian(net, NORMAL), ROWS)
    fits(bnn.bayesian_dropout(net), engine=bnn.MCDropout(num_steps=20))
    fits(bnn.bayesian(net.eval(), NORMAL))


@row("a dict of inputs")
def dict_of_inputs(said: Said) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 2), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Any:
            numbers, rest = x[:, :1].long(), x[:, 1:]
            return self.head(torch.cat([self.embedding(numbers).squeeze(1), rest], -1))

    with said():
        SHORT.run(bnn.bayesian(Two(), NORMAL), ({"input_ids": ROWS[0]}, ROWS[1]))
    x = torch.cat([torch.arange(N)[:, None] % 5.0, ROWS[0][:, 1:]], 1)
    fits(bnn.bayesian(Two(), NORMAL), (x, ROWS[1]))


@row("a network that returns a tuple or a dict")
def dict_of_outputs(said: Said) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Any:
            return {"logits": self.head(x)}

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Named()

        def forward(self, x: Tensor) -> Any:
            return self.net(x)["logits"]

    with said():
        SHORT.run(bnn.bayesian(Named(), NORMAL), ROWS)
    fits(bnn.bayesian(One(), NORMAL))


@row("lazy layers (nn.LazyLinear)")
def lazy_layers(said: Said) -> None:
    net, x = nn.Sequential(nn.LazyLinear(1)), ROWS[0]
    with said():
        bnn.bayesian(net, NORMAL)
    net(x[:2])
    fits(bnn.bayesian(net, NORMAL))


@row("modules of torch.jit")
def scripted(said: Said) -> None:
    net = nn.Linear(3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        traced = torch.jit.trace(net, ROWS[0])
    with said():
        bnn.bayesian(traced, NORMAL)
    fits(bnn.bayesian(net, NORMAL))


class Tempered(bnn.likelihoods.Categorical):
    """Logits that are not f itself."""

    def distribution(self, f: Tensor) -> Any:
        return super().distribution(f / 2)


@row("a closed-form last layer (VBLL) of logits that are not the network's output itself")
def last_layer_of_classes(said: Said) -> None:
    guide = partial(AutoComposite, default=AutoDelta)
    model = models.MLP(3, hidden=(5,), likelihood=Tempered(3))
    rows = ROWS[0], torch.arange(N) % 3
    with said():
        bnn.SVI(guide, estimator="last_layer", num_steps=20).run(model, rows)
    fits(model, rows, bnn.SVI(guide, estimator="last_layer_draws", num_steps=20))


@row("which inputs matter (feature importance)")
def feature_importance(said: Said) -> None:
    model = BNNRegressor(num_steps=500).fit(X, Y)
    with said():
        model.feature_importances_  # noqa: B018
    y = Y
    found = permutation_importance(model, X, y, scoring=bnn.sklearn.log_score)
    assert found.importances_mean.argmax() == 0  # y is made of the first


@row("updates with new rows (partial_fit)")
def updates(said: Said) -> None:
    with said():
        BNNRegressor().partial_fit(X, Y)
    model = bnn.bayesian(
        nn.Linear(1, 1, bias=False), priors.Normal(1.0), bnn.likelihoods.Normal(2.0)
    )
    x, y = ROWS[0][:, :1], ROWS[1]
    engine = bnn.SVI(AutoNormal, num_steps=1_000)
    first = engine.run(model, (x[:20], y[:20]))
    second = engine.run(bnn.priors.continued(model, first), (x[20:], y[20:]))
    exact = (1 + x.square().sum().item() / 4) ** -0.5
    assert second.sample(20_000)["weight"].std().item() == pytest.approx(exact, rel=0.05)
