from __future__ import annotations

import csv
import dataclasses
import math
import re
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from pyro_bnn import data
from pyro_bnn.cli import predict_file as predictions
from pyro_bnn.cli.methods import find_methods, make_engines
from pyro_bnn.cli.networks import make_networks
from pyro_bnn.cli.options import NetworkOptions
from pyro_bnn.cli.predict_file import (
    DISTANCE,
    P_VALUE,
    RATIO,
    FilePredictions,
    check_out,
    predict_file,
    write_predictions,
)
from pyro_bnn.cli.saved_fit import SavedFit, input_columns
from pyro_bnn.cli.uncertainty import Uncertainty
from pyro_bnn.data import frames
from pyro_bnn.data.split import published_rows
from pyro_bnn.diagnostics.novelty import Novelty
from pyro_bnn.errors import BNNWarning, DataError, OptionError, OutputError
from tests.oracle import mixture_quantile

NUMBERS = {"num_steps": 300, "num_chains": 2, "warmup_steps": 5, "num_samples": 5}


def fit(path: Path, method: str = "auto-normal") -> SavedFit:
    split = data.load(path)
    methods = find_methods(method)
    (network,) = make_networks(methods, split, NetworkOptions(hidden="8")).values()
    (engine,) = make_engines(methods, NUMBERS).values()
    posterior = engine.run(network.build(), split.train, progress=False)
    return SavedFit.of(posterior, network, input_columns(split), split)


def table(seed: int = 0, num_rows: int = 60) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    area = generator.uniform(30, 150, num_rows).round(1)
    town = generator.choice(["Oslo", "Rome"], num_rows)
    noise = generator.normal(0, 10, num_rows)
    return pd.DataFrame(
        {"area": area, "town": town, "price": 3 * area + 50 * (town == "Rome") + noise}
    )


def training_rows() -> pd.DataFrame:
    """The rows that a fit of split 0 sees."""
    return table().iloc[published_rows(60, 0)[0].numpy()]


def encoded(rows: pd.DataFrame) -> Any:
    """Inputs ``[N, 3]``: area, Oslo, Rome."""
    columns = [rows["area"], rows["town"] == "Oslo", rows["town"] == "Rome"]
    return np.stack(columns, axis=1).astype(float)


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> SavedFit:
    path = tmp_path_factory.mktemp("houses") / "houses.csv"
    table().to_csv(path, index=False)
    return fit(path)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> SavedFit:
    path = tmp_path_factory.mktemp("kinds") / "kinds.csv"
    rows = table()[["town", "area"]]
    rows["kind"] = np.where(rows["area"] > 100, "large", np.where(rows["area"] > 60, "mid", "tiny"))
    rows.to_csv(path, index=False)
    return fit(path)


def read(found: FilePredictions, **options: Any) -> pd.DataFrame:
    return pd.read_csv(StringIO("".join(found.text())), **options)


# --- numbers -------------------------------------------------------------------------------------

NEW = "id;town;area\nr1;Rome;80\nr2;Oslo;120.50\nr3;Rome; 2000\n"
ENCODED = torch.tensor([[80, 0, 1], [120.5, 1, 0], [2000, 0, 1]], dtype=torch.float64)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    path.write_text(NEW)
    return path


def test_predictions_are_those_of_the_posterior_in_raw_units(houses: SavedFit, new: Path) -> None:
    found = read(predict_file(houses, new, level=0.8, num_samples=200, seed=3), sep=";")
    expected = houses.posterior.predict(ENCODED, 200, seed=3, raw=True)
    assert expected.means is not None
    assert expected.variances is not None
    means, sds = expected.means[..., 0], expected.variances[..., 0].sqrt()
    columns: dict[str, Any] = {
        "mean": expected.mean[:, 0],
        "median": mixture_quantile(means, sds, 0.5),
        "sd": expected.sd[:, 0],
        "low": mixture_quantile(means, sds, 0.1),
        "high": mixture_quantile(means, sds, 0.9),
        "sd_epistemic": expected.sd_epistemic[:, 0],
        "sd_aleatoric": expected.sd_aleatoric[:, 0],
    }
    for name, values in columns.items():
        np.testing.assert_allclose(found[f"predicted_{name}"], values, rtol=2e-6, err_msg=name)
    total = found["predicted_sd_epistemic"] ** 2 + found["predicted_sd_aleatoric"] ** 2
    np.testing.assert_allclose(found["predicted_sd"] ** 2, total, rtol=1e-4)


def test_raw_units_by_hand(houses: SavedFit, new: Path) -> None:
    """Standardising and the way back, without the library's own."""
    own = training_rows()
    x, price = encoded(own), own["price"].to_numpy()
    z = (ENCODED.numpy() - x.mean(0)) / x.std(0)
    f = houses.posterior.function_draws(torch.tensor(z), 200, seed=3)[..., 0].numpy()
    found = read(predict_file(houses, new, num_samples=200, seed=3), sep=";")
    mean = price.mean() + price.std() * f.mean(0)
    np.testing.assert_allclose(found["predicted_mean"], mean, rtol=1e-4)
    np.testing.assert_allclose(found["predicted_sd_epistemic"], price.std() * f.std(0), rtol=1e-4)


def test_own_columns_stay_as_they_were(houses: SavedFit, new: Path) -> None:
    lines = "".join(predict_file(houses, new).text()).splitlines()
    assert lines[0] == (
        "id;town;area;predicted_mean;predicted_median;predicted_sd;predicted_low;predicted_high;"
        "predicted_sd_epistemic;predicted_sd_aleatoric;distance_to_training;distance_p_value;"
        "uncertainty_vs_training"
    )
    assert [line.split(";")[:3] for line in lines[1:]] == [
        ["r1", "Rome", "80"],
        ["r2", "Oslo", "120.50"],
        ["r3", "Rome", "2000"],
    ]


def test_a_row_far_away_is_uncertain(houses: SavedFit, new: Path) -> None:
    found = predict_file(houses, new)
    median, maximum = found.training.median, found.training.maximum
    assert median is not None
    assert maximum is not None
    largest = maximum / median
    assert found.ratio[2] > 5 * found.ratio[:2].max()
    assert found.ratio[2] > largest
    own = training_rows()
    x = encoded(own)
    f = houses.posterior.function_draws(torch.tensor((x - x.mean(0)) / x.std(0)))[..., 0].numpy()
    typical = np.median(f.std(0)) * own["price"].to_numpy().std()
    expected = read(found, sep=";")["predicted_sd_epistemic"] / typical
    np.testing.assert_allclose(found.ratio, expected, rtol=1e-4)
    beyond = int((found.ratio > largest).sum())
    _, line, copied = found.summary()
    assert copied == "Copied 1 column that is not of the fit: 'id'"
    assert line == (
        f"{beyond} of 3 rows are more uncertain than any training row (uncertainty_vs_training "
        f"above {largest:.3g}; the median training row has 1); "
        "a small uncertainty proves nothing"
    )


def test_distances_by_hand(houses: SavedFit, new: Path) -> None:
    """In sds of the training rows, two towns as one column of zeros and ones."""
    own = encoded(training_rows())[:, [0, 2]]
    mean, sd = own.mean(0), own.std(0)
    train, rows = (own - mean) / sd, (ENCODED.numpy()[:, [0, 2]] - mean) / sd
    distance = np.linalg.norm(rows[:, None] - train, axis=-1).min(1)
    among = np.linalg.norm(train[:, None] - train, axis=-1) + 1e9 * np.eye(54)
    p_value = [(1 + (among.min(1) >= d).sum()) / 55 for d in distance]
    found = predict_file(houses, new)
    np.testing.assert_allclose(read(found, sep=";")[DISTANCE], distance, rtol=1e-5)
    np.testing.assert_allclose(read(found, sep=";")[P_VALUE], p_value, rtol=1e-6)
    assert p_value[2] == pytest.approx(1 / 55)
    assert min(p_value[:2]) > 0.05
    assert next(found.summary()) == (
        "1 of 3 rows looks unusual: far from the training rows, distance_p_value at most 0.05 "
        "(fewer than 1 would by chance)"
    )


def test_a_gap_that_the_posterior_does_not_see_is_far(tmp_path: Path) -> None:
    """Two clusters: the sd between them is below that of the training rows, and says nothing."""
    generator = np.random.default_rng(0)
    x = generator.choice([-1.0, 1.0], 60) * generator.uniform(0.8, 1.6, 60)
    path, gap = tmp_path / "sine.csv", tmp_path / "gap.csv"
    y = np.sin(3 * x) + generator.normal(0, 0.2, 60)
    pd.DataFrame({"x": x, "y": y}).to_csv(path, index=False)
    pd.DataFrame({"x": np.linspace(-0.4, 0.4, 9)}).to_csv(gap, index=False)
    found = predict_file(fit(path), gap)
    assert (found.ratio < 1).all()
    assert found.is_far.all()


def test_copies_of_training_rows_are_at_0_and_the_farthest_number_is_far(
    houses: SavedFit, tmp_path: Path
) -> None:
    path = tmp_path / "new.csv"
    rows = training_rows()
    rows.to_csv(path, index=False)
    np.testing.assert_array_equal(read(predict_file(houses, path))[DISTANCE], 0)
    path.write_text("area,town\n1e300,Rome\n")
    with (
        np.errstate(all="ignore"),
        pytest.warns(BNNWarning, match="does not exist or hangs on few draws in 1 row"),
    ):
        found = predict_file(houses, path)
    assert found.distance[0] > 1e30
    assert found.p_value == pytest.approx([1 / 55])


def test_fits_with_few_training_rows_say_so(houses: SavedFit, new: Path) -> None:
    few = Novelty(houses.novelty.x[:9], houses.novelty.sizes)
    assert next(predict_file(dataclasses.replace(houses, novelty=few), new).summary()) == (
        "9 training rows are too few to tell which rows look unusual: distance_p_value cannot "
        "fall below 0.1, and 0.05 would be unusual"
    )


def test_scores_where_the_target_is_there(houses: SavedFit, tmp_path: Path) -> None:
    path = tmp_path / "more.csv"
    more = table(seed=1)[["price", "town", "area"]]
    more.to_csv(path, index=False)
    found = predict_file(houses, path, level=0.9, seed=2)
    (line,) = found.scores
    predicted = read(found)
    error = np.sqrt(((predicted["predicted_mean"] - more["price"]) ** 2).mean())
    prediction = houses.posterior.predict(torch.tensor(encoded(more)), seed=2, raw=True)
    mean, var = (m[..., 0].double().numpy() for m in (prediction.means, prediction.variances))  # type: ignore[index]  # numbers
    log_score = np.log(stats.norm(mean, var**0.5).pdf(more["price"]).mean(0)).mean()
    match = re.fullmatch(
        r"Against 'price' of 60 rows: log score (\S+) nats a row, RMSE (\S+), 90 % interval covers "
        r"(\S+) % \(expected if the model is right: \S+ to \S+ %\)",
        line,
    )
    assert match is not None, line
    assert float(match[1].replace("−", "-")) == pytest.approx(log_score, rel=2e-3)
    assert float(match[2]) == pytest.approx(error, rel=1e-2)
    inside = more["price"].between(predicted["predicted_low"], predicted["predicted_high"]).mean()
    assert abs(float(match[3]) / 100 - inside) <= 1 / 60 + 1e-3  # randomised within ranks


def test_blocks_of_rows_are_put_together(
    houses: SavedFit, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(predict_file(houses, new), sep=";")
    monkeypatch.setattr(predictions, "ROWS_AT_ONCE", 2)
    parts = read(predict_file(houses, new), sep=";")
    assert list(parts["id"]) == ["r1", "r2", "r3"]
    for name in ("predicted_mean", "predicted_sd", RATIO):  # free of the noise of y
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-5)


@pytest.mark.parametrize(("num_samples", "seed"), [(None, 0), (5, 0), (None, 1)])
def test_no_training_row_is_beyond_the_training_rows(
    houses: SavedFit, tmp_path: Path, num_samples: int | None, seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = tmp_path / "train.csv"
    training_rows().to_csv(path, index=False)
    monkeypatch.setattr(predictions, "ROWS_AT_ONCE", 7)  # other batches round otherwise
    found = predict_file(houses, path, num_samples=num_samples, seed=seed)
    assert np.median(found.ratio) == pytest.approx(1, rel=1e-4)
    line = list(found.summary())[1]
    assert line.startswith("0 of 54 rows are more uncertain than any training r")


def test_no_ratio_to_training_rows_without_uncertainty(houses: SavedFit, new: Path) -> None:
    flat = Uncertainty(measure="sd of the function", median=0.0, maximum=1e-9)
    found = predict_file(dataclasses.replace(houses, uncertainty=flat), new)
    assert read(found, sep=";")[RATIO].isna().all()
    assert list(found.summary())[1] == (
        "3 of 3 rows are more uncertain than any training row; uncertainty_vs_training is empty: "
        "the median training row has no epistemic uncertainty to compare with"
    )


def test_a_row_is_predicted_alike_wherever_it_stands(
    houses: SavedFit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "twice.csv"
    path.write_text("town,area\n" + "Rome,80\nOslo,70\n" * 2)
    monkeypatch.setattr(predictions, "ROWS_AT_ONCE", 2)
    found = read(predict_file(houses, path))
    first, second = found.iloc[:2].reset_index(drop=True), found.iloc[2:].reset_index(drop=True)
    pd.testing.assert_frame_equal(first, second, check_exact=True)


def test_a_target_far_from_0_is_predicted_as_well_as_any(houses: SavedFit, tmp_path: Path) -> None:
    far, near = tmp_path / "far.csv", tmp_path / "near.csv"
    table().to_csv(near, index=False)
    table().assign(price=table()["price"] + 1e9).to_csv(far, index=False, float_format="%.17g")
    found, expected = predict_file(fit(far), far), predict_file(houses, near)
    shifted, plain = read(found), read(expected)
    for name in ("mean", "low", "median", "high"):
        values = shifted[f"predicted_{name}"] - 1e9
        # the model's numbers are float32: the same to their relative precision over the run
        np.testing.assert_allclose(values, plain[f"predicted_{name}"], rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(shifted["predicted_sd"], plain["predicted_sd"], rtol=1e-3)
    error = np.sqrt(((shifted["predicted_mean"] - 1e9 - table()["price"]) ** 2).mean())
    match = re.search(r"RMSE (\S+),", found.scores[0])
    assert match is not None
    assert float(match[1]) == pytest.approx(error, rel=1e-2)


def test_a_point_estimate_has_no_ratio(tmp_path: Path, new: Path) -> None:
    path = tmp_path / "houses.csv"
    table().to_csv(path, index=False)
    found = predict_file(fit(path, "auto-delta"), new)
    assert np.isnan(found.ratio).all()
    assert read(found, sep=";")[RATIO].isna().all()
    line = list(found.summary())[1]
    assert line.startswith("uncertainty_vs_training is empty: a point estimate has no epistemic")


def test_moments_that_do_not_exist_are_empty(
    houses: SavedFit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(houses.posterior), "has_moments", property(lambda self: False))
    path = tmp_path / "more.csv"
    table(seed=1).to_csv(path, index=False)
    with pytest.warns(
        BNNWarning, match="mean or sd does not exist or hangs on few draws in 60 rows and is empty"
    ) as seen:
        found = predict_file(houses, path)
    assert len(seen) == 1
    predicted = read(found)
    for name in ("mean", "sd", "sd_epistemic"):
        assert predicted[f"predicted_{name}"].isna().all()
    assert (predicted["predicted_low"] < predicted["predicted_median"]).all()
    assert (predicted["predicted_median"] < predicted["predicted_high"]).all()
    error = np.sqrt(((predicted["predicted_median"] - table(seed=1)["price"]) ** 2).mean())
    match = re.search(r"RMSE of the median (\S+),", found.scores[0])
    assert match is not None
    assert float(match[1]) == pytest.approx(error, rel=1e-2)


def test_the_table_is_that_of_the_prediction(houses: SavedFit, new: Path) -> None:
    found = predict_file(houses, new, level=0.8, num_samples=200, seed=3)
    rows = pd.DataFrame(ENCODED, columns=["area", "town=Oslo", "town=Rome"], index=["a", 7, 7])
    assert houses.posterior.provenance.input_names == tuple(rows.columns)
    table_ = houses.posterior.predict(rows, 200, seed=3, raw=True).to_frame(0.8)
    assert list(table_.index) == ["a", 7, 7]
    assert [*table_.columns, DISTANCE, P_VALUE, RATIO] == list(found.columns)
    for name, values in table_.items():
        np.testing.assert_allclose(values, found.columns[str(name)], rtol=1e-6)


# --- classes -------------------------------------------------------------------------------------


def test_classes(kinds: SavedFit, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("area,kind,town\n35,tiny,Rome\n75,mid,Oslo\n140,large,Oslo\n145,tiny,Oslo\n")
    found = predict_file(kinds, path, seed=1)
    predicted = read(found)
    assert list(predicted.columns) == [
        *("area", "kind", "town", "predicted_class"),
        *("predicted_p_large", "predicted_p_mid", "predicted_p_tiny"),
        *("predicted_entropy", "predicted_mutual_information", DISTANCE, P_VALUE, RATIO),
    ]
    x = torch.tensor([[0, 1, 35], [1, 0, 75], [1, 0, 140], [1, 0, 145]], dtype=torch.float64)
    expected = kinds.posterior.predict(x, seed=1, raw=True)
    probs = predicted[["predicted_p_large", "predicted_p_mid", "predicted_p_tiny"]].to_numpy()
    frame = expected.to_frame()
    assert [*frame.columns, DISTANCE, P_VALUE, RATIO] == list(found.columns)
    assert list(frame["predicted_class"]) == list(predicted["predicted_class"])
    np.testing.assert_allclose(frame["predicted_p_mid"], probs[:, 1], rtol=1e-5)
    np.testing.assert_allclose(probs, expected.probs, rtol=1e-5)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
    assert list(predicted["predicted_class"]) == [
        ["large", "mid", "tiny"][c] for c in expected.probs.argmax(1).tolist()
    ]
    np.testing.assert_allclose(
        predicted["predicted_entropy"], stats.entropy(probs, axis=1), rtol=1e-4
    )
    np.testing.assert_allclose(
        predicted["predicted_mutual_information"], expected.mutual_information, rtol=1e-4
    )
    labels = np.array([2, 1, 0, 2])
    log_score = np.log(probs[np.arange(4), labels]).mean()
    hits = 100 * (probs.argmax(1) == labels).mean()
    match = re.fullmatch(
        r"Against 'kind' of 4 rows: log score (\S+) nats a row, accuracy (\S+) %", found.scores[0]
    )
    assert match is not None
    assert float(match[1].replace("−", "-")) == pytest.approx(log_score, rel=1e-2)
    assert float(match[2]) == pytest.approx(hits)


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, math.nan])
def test_levels_lie_between_0_and_1(houses: SavedFit, new: Path, level: float) -> None:
    expected = f"the level of an interval is between 0 and 1, such as 0.95, not {level}"
    with pytest.raises(OptionError, match=re.escape(expected)):
        predict_file(houses, new, level=level)


@pytest.mark.usefixtures("short_trajectories")
@pytest.mark.slow("a second or more")
def test_more_draws_than_are_stored(tmp_path: Path, new: Path) -> None:
    path = tmp_path / "houses.csv"
    table().to_csv(path, index=False)
    saved = fit(path, "nuts")
    assert len(read(predict_file(saved, new), sep=";")) == 3
    with pytest.raises(OptionError, match="the fit holds 10 draws: take at most that, not 1,000"):
        predict_file(saved, new, num_samples=1_000)


@pytest.mark.usefixtures("short_trajectories")
@pytest.mark.slow("samples chains")
def test_stored_draws_that_are_all_used_are_those_of_the_training_rows(
    tmp_path: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "houses.csv"
    table().to_csv(path, index=False)
    saved = fit(path, "nuts")
    calls: list[int] = []
    predict = predictions._predict

    def counted(*args: Any) -> Any:
        calls.append(len(args[2]))
        return predict(*args)

    monkeypatch.setattr(predictions, "_predict", counted)
    same = predict_file(saved, new)
    other = predict_file(saved, new, seed=saved.posterior.seed + 1)
    np.testing.assert_array_equal(other.epistemic, same.epistemic)
    assert calls == [10, 10]
    predict_file(saved, new, num_samples=4)
    assert calls[2:] == [4, 4]  # of the rows, then of the training rows


def test_many_draws_are_predicted_in_blocks_of_fewer_rows(
    houses: SavedFit, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with 60,000 draws of 1,000 rows, at a smaller bound."""
    expected = read(predict_file(houses, new, num_samples=4_000), sep=";")
    monkeypatch.setattr(predictions, "GIB", 1 << 20)
    sizes: list[int] = []
    predict = predictions._predict

    def counted(fit: SavedFit, x: torch.Tensor, *args: Any) -> Any:
        sizes.append(len(x))
        return predict(fit, x, *args)

    monkeypatch.setattr(predictions, "_predict", counted)
    found = read(predict_file(houses, new, num_samples=4_000), sep=";")
    assert sizes[:2] == [2, 1]
    assert set(sizes[2:]) == {2}  # training rows, in blocks as small
    for name in ("predicted_mean", "predicted_sd", RATIO):  # free of the noise of y
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
    with pytest.raises(
        OptionError, match=r"^9,000 draws are more than are kept of a row: take at most 8,192$"
    ):
        predict_file(houses, new, num_samples=9_000)


def test_columns_that_are_taken(houses: SavedFit, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("area,town,predicted_sd,distance_to_training\n80,Rome,1,2\n")
    with pytest.raises(DataError, match="has 'predicted_sd', 'distance_to_training' already, w"):
        predict_file(houses, path)


def test_the_file_that_is_predicted_is_not_replaced(houses: SavedFit, new: Path) -> None:
    found = predict_file(houses, new)
    with pytest.raises(OptionError, match="is the file that is predicted: choose another --out"):
        write_predictions(found, new.parent / "." / "new.csv", new)
    assert new.read_text() == NEW
    write_predictions(found, new.with_name("out.csv"), new)
    assert new.with_name("out.csv").read_text() == "".join(found.text())
    with pytest.raises(OutputError, match="cannot write to the folder"):
        write_predictions(found, new / "out.csv", new)


@pytest.mark.parametrize(
    "text", ["a,b\n1,2\n", "uncertainty_vs_training_of_mine,b\n", "PK\x03\udcff"]
)
def test_a_file_without_predictions_is_not_replaced(new: Path, text: str) -> None:
    out = new.with_name("out.csv")
    out.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(OptionError, match="exists and holds no predictions, so it is not replaced"):
        check_out(out, new)
    assert out.read_bytes() == text.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("name", ["posterior.safetensors", "fit.json"])
def test_the_fit_is_not_replaced(houses: SavedFit, new: Path, name: str) -> None:
    houses.save(new.parent / "fit")
    with pytest.raises(OptionError, match="exists and holds no predictions, so it is not replaced"):
        check_out(new.parent / "fit" / name, new)


def test_earlier_predictions_and_empty_files_are_replaced(
    houses: SavedFit, tmp_path: Path, new: Path
) -> None:
    path = tmp_path / "odd.csv"
    path.write_text('"a\nnote",area,town\nx,80,Rome\n')
    for source in (new, path):
        out = tmp_path / f"out_of_{source.name}"
        out.touch()
        for _ in range(2):
            write_predictions(predict_file(houses, source), out, source)
    with pytest.raises(OptionError, match="is a folder: choose a file as --out"):
        check_out(tmp_path, new)


def test_fields_are_quoted_where_they_need_it(houses: SavedFit, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text('note,area,town\n"a, ""b""",80,Rome\n')
    found = read(predict_file(houses, path))
    assert found["note"][0] == 'a, "b"'


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["plain", 'a "b"', "a\rb", "a\nb", "a,b;c\td", "é "])
def test_fields_and_ends_of_lines_come_back(
    houses: SavedFit, tmp_path: Path, separator: str, end: str, name: str
) -> None:
    """What the module csv reads in the file it reads in what is written too."""
    path, own = tmp_path / "new.csv", table(1, 5)[["area", "town"]].assign(id=name)
    with path.open("w", newline="") as file:
        make = partial(csv.writer, file, delimiter=separator, lineterminator=end)
        has_ends = not {"\r", "\n"}.isdisjoint(name)
        writer = make(quoting=csv.QUOTE_ALL) if has_ends else make()
        writer.writerows([list(own), *own.astype(str).to_numpy().tolist()])
        file.write(end)  # a blank line
    text = "".join(predict_file(houses, path).text())
    found = list(csv.reader(StringIO(text, newline=""), delimiter=separator))
    assert [row[:3] for row in found] == [list(own), *own.astype(str).to_numpy().tolist()]
    assert {len(row) for row in found} == {13}


def test_a_table_in_parquet_is_written_in_parts(
    houses: SavedFit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    own = table(1, 11).assign(whole=range(11), truth=[True] * 11)
    own.to_parquet(tmp_path / "new.parquet")
    whole = list(predict_file(houses, tmp_path / "new.parquet").text())
    monkeypatch.setattr(frames, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(predictions, "ROWS_WRITTEN", 3)
    parts = list(predict_file(houses, tmp_path / "new.parquet").text())
    assert "".join(parts) == "".join(whole)
    pd.testing.assert_frame_equal(pd.read_csv(StringIO("".join(whole)))[list(own)], own)


def test_a_band_takes_199_draws(houses: SavedFit, tmp_path: Path) -> None:
    table(1).to_csv(tmp_path / "new.csv", index=False)
    many, few = (predict_file(houses, tmp_path / "new.csv", num_samples=n) for n in (199, 198))
    assert "expected if the model is right" in many.scores[0]
    assert "too few draws to check it" in few.scores[0]
