"""Laplace's approximation of heads: curvature from features, against the Hessian of the density."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import Laplace, bayesian, likelihoods, models, priors
from pyro_bnn.errors import OptionError
from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior
from pyro_bnn.infer.curvature.outputs import outputs_of
from pyro_bnn.infer.laplace import head as heads
from pyro_bnn.infer.laplace.curvature import CurvatureOf
from pyro_bnn.infer.laplace.mode import MinusLogJoint
from pyro_bnn.models.from_network import BayesianModule
from pyro_bnn.models.outputs import record_output
from pyro_bnn.program.head import Head
from pyro_bnn.program.program import Program

GENERATOR = torch.Generator().manual_seed(3)
N, D, C = 40, 4, 3
X = torch.randn(N, D, generator=GENERATOR, dtype=torch.float64)
F = X @ torch.randn(D, C, generator=GENERATOR, dtype=torch.float64)
UNIFORM = torch.rand(N, C, generator=GENERATOR, dtype=torch.float64)
Y: Mapping[str, Tensor] = {
    "classes": (F - (-UNIFORM.log()).log()).argmax(-1),
    "binary": (F.sigmoid() > UNIFORM).double(),
    "counts": (F.exp() * 2 * UNIFORM).round(),
    "normal": F + 0.3 * UNIFORM,
}
LIKELIHOODS: Mapping[str, Any] = {
    "classes": likelihoods.Categorical(C),
    "binary": likelihoods.Bernoulli(),
    "counts": likelihoods.Poisson(),
    "normal": likelihoods.Normal(0.25),
}
KINDS = list(Y)


def body() -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, C)).double()
    return net.requires_grad_(requires_grad=False)


def frozen(kind: str) -> Any:
    """A head on a frozen body, whose weights and biases have priors of their own scales."""
    prior = {"2.weight": priors.Normal(0.7), "2.bias": priors.Normal(1.5)}
    return bayesian(body(), prior=prior, likelihood=LIKELIHOODS[kind])


def fit(model: Any, kind: str, **options: Any) -> Any:
    return Laplace(compile=False, **options).run(model, (X, Y[kind]), progress=False)


def covariance(posterior: Any) -> Tensor:
    guide = posterior.guide
    eye = torch.eye(guide.noise_dim, dtype=torch.float64)
    with torch.no_grad():
        root = guide.transport(eye) - guide.transport(torch.zeros_like(eye[0]))
    product: Tensor = root.mT @ root
    return product


def minus_log_joint(posterior: Any, kind: str) -> Any:
    program, rows = posterior.program, posterior.batch((X, Y[kind]))
    return lambda z: -program.log_joint(z, program.arguments(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_the_mode_and_the_full_covariance_are_those_of_the_density(kind: str) -> None:
    posterior = fit(frozen(kind), kind)
    value, z = minus_log_joint(posterior, kind), posterior.guide.centre()
    gradient, hessian = torch.func.grad(value)(z), torch.func.hessian(value)(z)
    assert float(gradient @ torch.linalg.solve(hessian, gradient)) < 1e-12
    assert_close(covariance(posterior), torch.linalg.inv(hessian), rtol=1e-6, atol=1e-9)
    volume = len(z) * math.log(2 * math.pi) - torch.logdet(hessian)
    assert posterior.log_evidence == pytest.approx(float(0.5 * volume - value(z)), rel=1e-9)
    assert len(posterior.losses) == 0  # no step of Adam


@pytest.mark.parametrize("kind", KINDS)
def test_the_diagonal_is_that_of_the_hessian(kind: str) -> None:
    posterior = fit(frozen(kind), kind, structure="diagonal")
    value, z = minus_log_joint(posterior, kind), posterior.guide.centre()
    expected = torch.func.hessian(value)(z).diagonal().rsqrt()
    assert_close(posterior.guide.marginals()[1].detach(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("small", [1_000, 0])
@pytest.mark.parametrize("kind", KINDS)
def test_low_rank_has_the_largest_eigenvectors_and_of_full_rank_all(
    kind: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "SMALL", small)
    for rank in (5 * C, C):  # of Gaussian noise each eigenvalue is there C times
        posterior = fit(frozen(kind), kind, structure="low_rank", rank=rank)
        value, z = minus_log_joint(posterior, kind), posterior.guide.centre()
        prior = torch.tensor([0.7**-2] * 5 * C + [1.5**-2] * C, dtype=torch.float64).diag()
        values, V = torch.linalg.eigh(torch.func.hessian(value)(z) - prior)
        leading = V[:, -rank:] * values[-rank:]
        expected = torch.linalg.inv(leading @ V[:, -rank:].mT + prior)
        assert_close(covariance(posterior), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_kronecker_factors_are_the_sums_over_rows(kind: str) -> None:
    posterior = fit(frozen(kind), kind, structure="kron")
    program, z = posterior.program, posterior.guide.centre()
    rows = posterior.batch((X, Y[kind]))
    f = program.function(z, rows.x)

    def nll(f: Tensor, n: int) -> Tensor:
        run = program.run(program.constrain(z), (rows.x[n : n + 1], rows.y[n : n + 1]), output=f)
        density: Tensor = -program.row_densities(run)[0].sum()
        return density

    G = sum(torch.func.hessian(nll)(f[n : n + 1], n).reshape(C, C) for n in range(N))
    inner: Any = body()
    phi = torch.cat([inner[:2](X), torch.ones(N, 1, dtype=torch.float64)], 1)
    data = torch.kron(torch.as_tensor(G).contiguous(), (phi.mT @ phi / N).contiguous())
    prior = torch.tensor([0.7**-2] * 5 + [1.5**-2], dtype=torch.float64).repeat(C).diag()
    order = Head.of(program)
    assert order is not None
    index = order.entries.flatten()
    found = covariance(posterior)[index][:, index]
    assert_close(found, torch.linalg.inv(data + prior), rtol=1e-6, atol=1e-8)


def test_kronecker_factors_are_exact_where_noise_is_gaussian() -> None:
    full, kron = (fit(frozen("normal"), "normal", structure=s) for s in ("full", "kron"))
    assert_close(covariance(kron), covariance(full), rtol=1e-6, atol=1e-9)
    assert kron.log_evidence == pytest.approx(full.log_evidence, rel=1e-9)


@pytest.mark.parametrize("structure", ["full", "kron", "diagonal", "low_rank"])
@pytest.mark.parametrize("kind", ["classes", "normal"])
def test_the_last_layer_beside_others_has_the_same_curvature_as_by_roots(
    kind: str, structure: Any
) -> None:
    """Of a network whose other layers have priors too: the features at the mode."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, C)).double()
    model = bayesian(net, likelihood=LIKELIHOODS[kind])
    posterior = fit(model, kind, structure=structure, subset="last_layer", num_steps=200)
    part = posterior.guide.parts[0]
    z = posterior.guide.centre().detach()
    program = posterior.program
    last = [s for s in program.sites if s.name.startswith("2.")]
    entries = torch.cat([torch.arange(s.start, s.stop) for s in last])
    objective = MinusLogJoint(
        program, posterior.batch((X, Y[kind])), GaussianPrior.of(program, "the test")
    )
    by_roots = CurvatureOf(objective, structure, "ggn", 20, entries)(z.double(), is_mode=True)
    eye = torch.eye(part.noise_dim, dtype=torch.float64)
    with torch.no_grad():
        root = part.transport(eye) - part.transport(0 * eye[0])
    spread = by_roots.deviations(torch.eye(by_roots.noise_dim, dtype=torch.float64))
    assert_close(root.mT @ root, spread.mT @ spread, rtol=1e-6, atol=1e-9)


class Weighted(BayesianModule):
    """A network whose rows count as many as their first input says, or a part of them."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The model."""
        f = record_output(self, self.network, x)
        with poutine.scale(scale=0.5 + x[:, 0].square()):
            drawn: Tensor = self.likelihood(f, y)
        return drawn


@pytest.mark.parametrize("structure", ["full", "kron", "diagonal", "low_rank"])
def test_weights_of_rows_count(structure: Any) -> None:
    net = nn.Linear(D, C).double()
    model = Weighted(net, priors.Normal(0.7), LIKELIHOODS["classes"])
    posterior = fit(model, "classes", structure=structure, rank=(D + 1) * C)
    value, z = minus_log_joint(posterior, "classes"), posterior.guide.centre()
    gradient, hessian = torch.func.grad(value)(z), torch.func.hessian(value)(z)
    assert float(gradient @ torch.linalg.solve(hessian, gradient)) < 1e-9
    expected = torch.linalg.inv(hessian)
    if structure == "diagonal":
        expected = hessian.diagonal().reciprocal().diag()
    if structure == "kron":  # not exact: the determinant is that of products of sums
        assert covariance(posterior).trace() == pytest.approx(float(expected.trace()), rel=0.2)
        return
    assert_close(covariance(posterior), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.slow("two seconds on a free core")
def test_the_scale_of_the_prior_by_the_evidence_is_that_without_a_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = fit(frozen("classes"), "classes", prior_scales="evidence")
    monkeypatch.setattr("pyro_bnn.infer.laplace.laplace.head_of", lambda _: None)
    other = fit(frozen("classes"), "classes", prior_scales="evidence")
    assert chosen.options["found_scales"] == pytest.approx(other.options["found_scales"], rel=1e-3)
    assert chosen.log_evidence == pytest.approx(other.log_evidence, abs=1e-3)


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_the_hessian_of_a_head_is_its_ggn(structure: Any) -> None:
    ggn, hessian = (
        fit(frozen("classes"), "classes", structure=structure, curvature=curvature)
        for curvature in ("ggn", "hessian")
    )
    assert_close(covariance(hessian), covariance(ggn))


def test_what_is_no_head_takes_the_curvature_of_all_networks() -> None:
    """Weights that f is not linear in, a likelihood of another form, sites beside the head's."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(torch.tanh(self.layer(x)))
            return found

    class Shared(Tied):
        def forward(self, x: Tensor) -> Tensor:
            before = nn.functional.linear(x, self.layer.weight)
            found: Tensor = self.layer(torch.tanh(before))
            return found

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(D, C)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = 2.0 * self.layer(x)
            return found

    y = Y["classes"]
    nets: list[tuple[nn.Module, Any]] = [
        (Tied(), likelihoods.Categorical(D)),
        (Shared(), likelihoods.Categorical(D)),
        (Scaled(), LIKELIHOODS["classes"]),
    ]
    for net, likelihood in nets:
        model = bayesian(net.double(), likelihood=likelihood)
        assert Head.of(Program(model, X, y)) is None
    program = Program(models.MLP(D, hidden=(3,)).double(), X, X[:, 0])
    head = Head.of(program)
    assert head is not None
    assert head.name == "layers.1"
    assert not head.is_all_of(program)
    student = models.MLP(D, hidden=(3,), likelihood=likelihoods.StudentT()).double()
    assert outputs_of(Program(student, X, X[:, 0]), Program(student, X, X[:, 0]).initial) is None


def test_a_matrix_of_all_entries_is_refused_without_naming_what_was_used() -> None:
    net = nn.Linear(600, 10)
    x, y = torch.randn(30, 600, generator=GENERATOR), torch.arange(30) % 10
    model = bayesian(net, likelihood=likelihoods.Categorical(10))
    for subset in ("all", "last_layer"):
        with pytest.raises(OptionError, match="6,010 x 6,010") as caught:
            Laplace(subset=subset).run(model, (x, y), progress=False)
        assert "last_layer" not in str(caught.value)
        assert '"kron"' in str(caught.value)
    deep = bayesian(
        nn.Sequential(nn.Linear(600, 20), nn.Tanh(), nn.Linear(20, 10)),
        likelihood=likelihoods.Categorical(10),
    )
    with pytest.raises(OptionError, match='subset="last_layer"'):
        Laplace().run(deep, (x, y), progress=False)


def test_each_phase_has_a_bar_that_moves(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a head without steps, and of a network after its steps."""
    deep = bayesian(body().requires_grad_(requires_grad=True), likelihood=LIKELIHOODS["classes"])
    for model, steps in ((frozen("classes"), None), (deep, 100)):
        engine = Laplace(structure="diagonal", num_steps=steps, compile=False)
        engine.run(model, (X, Y["classes"]), progress=True)
        shown = capsys.readouterr().err
        last = {line.split(":")[0].strip(): line for line in shown.replace("\r", "\n").split("\n")}
        assert " nats to go" in last["Laplace, mode"]
        for phase in ("mode", "curvature"):
            count = last[f"Laplace, {phase}"].split(":")[1].split()[0]
            assert "k" in count or float(count) >= N, phase
        assert ("Laplace" in last) == (steps is not None)
