"""The UCI regression benchmark in its standard splits, regenerated from the published seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pyro_bnn.data.fetch import fetch_uci
from pyro_bnn.data.split import NUM_SPLITS, Split, Table, check_index, make_split, published_rows
from pyro_bnn.data.tables import read_table
from pyro_bnn.errors import DataError


@dataclass(frozen=True, kw_only=True)
class UCISet:
    """What is known about one set; columns 0 .. ``num_inputs - 1`` are inputs, the next the target.

    Args:
        folder: In the public repository and below ``$PYRO_BNN_DATA/uci``.
        num_columns: Columns of the file.
        num_inputs: I; also the column of the target. Later columns are dropped.
        sha256: Checksum of ``data.txt``, None where unknown.
        target_name: Target with its unit.
        input_names: Names of the inputs, separated by commas; empty where unknown.
        num_splits: Splits of the protocol.
        note: What a reader of results should know.
    """

    folder: str
    num_columns: int
    num_inputs: int
    sha256: str | None
    target_name: str
    input_names: str = ""
    num_splits: int = NUM_SPLITS
    note: str = ""


UCI_SETS = {
    "uci/boston": UCISet(
        folder="bostonHousing",
        num_columns=14,
        num_inputs=13,
        sha256="baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
        target_name="median value (1000 USD)",
        input_names="CRIM, ZN, INDUS, CHAS, NOX, RM, AGE, DIS, RAD, TAX, PTRATIO, B, LSTAT",
        note="The target is capped at 50 (3 % of the rows). Column B is a function of the share of "
        "Black residents; scikit-learn withdrew the set for that reason.",
    ),
    "uci/concrete": UCISet(
        folder="concrete",
        num_columns=9,
        num_inputs=8,
        sha256="43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",
        target_name="compressive strength (MPa)",
        input_names="cement, slag, fly ash, water, superplasticizer, coarse aggregate, "
        "fine aggregate, age",
        note="3.4 % of the test rows also occur in the training rows.",
    ),
    "uci/energy": UCISet(
        folder="energy",
        num_columns=9,
        num_inputs=8,
        sha256="7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",
        target_name="heating load",
        input_names="compactness, surface area, wall area, roof area, height, orientation, "
        "glazing area, glazing distribution",
    ),
    "uci/kin8nm": UCISet(
        folder="kin8nm", num_columns=9, num_inputs=8, sha256=None, target_name="distance"
    ),
    "uci/naval": UCISet(
        folder="naval-propulsion-plant",
        num_columns=18,  # the last, turbine decay, is a second target and no input
        num_inputs=16,
        sha256="de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6",
        target_name="compressor decay",
        input_names="lever position, ship speed, shaft torque, turbine rate, generator rate, "
        "starboard propeller torque, port propeller torque, turbine exit temperature, "
        "compressor inlet temperature, compressor outlet temperature, turbine exit pressure, "
        "compressor inlet pressure, compressor outlet pressure, exhaust pressure, "
        "injection control, fuel flow",
        note="Inputs 8 and 11 are constant, 5 and 6 identical; the target takes 51 values in "
        "[0.95, 1], so an RMSE rounds to 0.00.",
    ),
    "uci/power-plant": UCISet(
        folder="power-plant", num_columns=5, num_inputs=4, sha256=None, target_name="energy (MW)"
    ),
    "uci/protein": UCISet(
        folder="protein-tertiary-structure",
        num_columns=10,
        num_inputs=9,
        sha256="d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727",
        target_name="RMSD (Angstrom)",
        input_names="F1, F2, F3, F4, F5, F6, F7, F8, F9",
        num_splits=5,
        note="6.5 % of the test rows occur in the training rows; the target is bimodal.",
    ),
    "uci/wine-red": UCISet(
        folder="wine-quality-red",
        num_columns=12,
        num_inputs=11,
        sha256="3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",
        target_name="quality",
        input_names="fixed acidity, volatile acidity, citric acid, residual sugar, chlorides, "
        "free sulphur dioxide, total sulphur dioxide, density, pH, sulphates, alcohol",
        note="The target takes 6 values, so narrow peaks on them get any log score; 26.6 % of the "
        "test rows also occur in the training rows.",
    ),
    "uci/yacht": UCISet(
        folder="yacht",
        num_columns=7,
        num_inputs=6,
        sha256="00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1",
        target_name="residuary resistance",
        input_names="buoyancy position, prismatic coefficient, length-displacement, "
        "beam-draught, length-beam, Froude number",
    ),
}
"""The sets by name, in alphabetical order."""


def load_uci(name: str, index: int = 0) -> Split:
    """Load one standard split of a UCI set.

    Args:
        name: A key of ``UCI_SETS``.
        index: Number of the split: 0 .. 19, for protein 0 .. 4.

    Returns:
        The split, by the published protocol (see :func:`published_rows`).

    Raises:
        OptionError: If ``index`` is out of range.
        DataError: If the file cannot be had, fails its checksum or has other columns.

    References:
        Hernandez-Lobato & Adams, "Probabilistic Backpropagation for Scalable Learning of Bayesian
        Neural Networks", ICML 2015, arXiv:1502.05336; files of Gal & Ghahramani, "Dropout as a
        Bayesian Approximation", ICML 2016, arXiv:1506.02142.
    """
    spec = UCI_SETS[name]
    check_index(index, spec.num_splits, name)
    path = fetch_uci(spec.folder, spec.sha256)
    rows = read_table(path)
    if rows.shape[1] != spec.num_columns:
        raise DataError(
            f"{name}: expected {spec.num_columns} columns in {str(path)!r}, got {rows.shape[1]}"
        )
    table = Table(
        x=torch.tensor(rows[:, : spec.num_inputs]),
        y=torch.tensor(rows[:, spec.num_inputs]),
        task="regression",
        name=name,
        input_names=tuple(spec.input_names.split(", ")) if spec.input_names else None,
        target_name=spec.target_name,
        note=spec.note,
    )
    return make_split(table, *published_rows(len(rows), index, table.name), index=index)
