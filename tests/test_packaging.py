"""The wheel holds the package, all of it, under the names that users import."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS = CONFIG["tool"]["setuptools"]
TOP_FILES = (
    *("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("Makefile", "constraints.txt", "CITATION.cff", "CODE_OF_CONDUCT.md", "SECURITY.md"),
)
TEST_FOLDERS = (".ci", ".github", "benchmarks", "docs", "tests", "tutorials")  # and what tests read
GUARD = "this folder is the package 'pyro_bnn.guides', not 'guides'"


class Installation(NamedTuple):
    """A wheel and the clean environment it was installed into, and the sdist it was built from."""

    python: Path
    site_packages: Path
    wheel: Path
    sdist: Path


def folders(root: Path, package: str, suffix: str) -> dict[str, Path]:
    """Dotted name and path of every folder below ``root`` that holds a file with that ending.

    Args:
        root: Folder of the package.
        package: Its dotted name.
        suffix: End of a file's name, as ``".py"`` or ``"__init__.py"``.
    """
    found = {}
    for folder, subfolders, files in os.walk(root):  # does not follow the link to guides
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        if any(name.endswith(suffix) for name in files):
            relative = Path(folder).relative_to(root)
            found[".".join([package, *relative.parts])] = Path(folder)
    return found


def folders_of_the_project(root: Path, suffix: str) -> dict[str, Path]:
    """The same for ``pyro_bnn`` and ``guides`` together."""
    return folders(root / "pyro_bnn", "pyro_bnn", suffix) | folders(
        root / "guides", "pyro_bnn.guides", suffix
    )


def files_of_the_project(root: Path) -> set[str]:
    """Every file of the packages as a wheel names it, ``guides/`` in its place."""
    names = set()
    for prefix, folder in (("pyro_bnn", root / "pyro_bnn"), ("pyro_bnn/guides", root / "guides")):
        for parent, subfolders, files in os.walk(folder):
            subfolders[:] = [name for name in subfolders if name != "__pycache__"]
            relative = Path(prefix) / Path(parent).relative_to(folder)
            names |= {(relative / name).as_posix() for name in files}
    return {name for name in names if not name.endswith((".pyc", "~", ".swp"))}


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its output is text."""
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )


def named_alike(path: str, copy: str) -> None:
    """An empty file in the place of a copy."""
    Path(copy).touch()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads, so that nothing is written into the repository.

    Holds one template more than the repository, so that the check for templates cannot pass unseen.
    What the sdist alone holds is empty: packing it would take longer than all else, and the names
    are what is looked at.
    """
    copy = tmp_path_factory.mktemp("source")
    for name in TOP_FILES:
        shutil.copy(ROOT / name, copy / name)
    ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in ("pyro_bnn", "guides"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
    for name in TEST_FOLDERS:
        shutil.copytree(
            ROOT / name, copy / name, symlinks=True, ignore=ignore, copy_function=named_alike
        )
    (copy / "tests" / "__pycache__").mkdir()
    (copy / "tests" / "__pycache__" / "planted.pyc").touch()
    (copy / "pyro_bnn" / "report" / "planted.html").write_text("<p>{{ verdict }}</p>\n", "utf-8")
    return copy


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The wheel, built from the sdist, in an environment that sees our dependencies but not us."""
    folder = tmp_path_factory.mktemp("installed")
    build = run(
        sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check",
        "--outdir", folder, source, cwd=source,
    )  # fmt: skip
    assert build.returncode == 0, build.stdout + build.stderr
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")

    environment = folder / "venv"
    venv.create(environment, with_pip=False, symlinks=os.name != "nt")
    variables = {"base": str(environment), "platbase": str(environment)}
    python = Path(sysconfig.get_path("scripts", "venv", variables)) / Path(sys.executable).name
    pip = run(
        sys.executable, "-m", "pip", "--python", python,
        "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel,
        cwd=folder,
    )  # fmt: skip
    assert pip.returncode == 0, pip.stdout + pip.stderr

    # A folder named by a .pth file is searched for packages, but its own .pth files are not read:
    # the dependencies are shared, the editable installation of this repository is not.
    site_packages = Path(sysconfig.get_path("purelib", "venv", variables))
    shared = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "shared.pth").write_text("\n".join(sorted(shared)) + "\n", "utf-8")
    yield Installation(python, site_packages, wheel, sdist)
    shutil.rmtree(environment)


# --- what is declared ----------------------------------------------------------------------------


def test_folders_of_a_made_up_tree(tmp_path: Path) -> None:
    for name in ("pyro_bnn/a/__init__.py", "pyro_bnn/b/x.py", "guides/flow/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    (tmp_path / "pyro_bnn" / "__pycache__").mkdir()
    (tmp_path / "pyro_bnn" / "__pycache__" / "__init__.py").touch()
    (tmp_path / "pyro_bnn" / "guides").symlink_to("../guides")
    assert set(folders_of_the_project(tmp_path, "__init__.py")) == {
        "pyro_bnn.a",
        "pyro_bnn.guides.flow",
    }
    assert set(folders_of_the_project(tmp_path, ".py")) == {
        "pyro_bnn.a",
        "pyro_bnn.b",
        "pyro_bnn.guides.flow",
    }
    assert files_of_the_project(tmp_path) == {
        "pyro_bnn/a/__init__.py",
        "pyro_bnn/b/x.py",
        "pyro_bnn/guides/flow/__init__.py",
    }


def test_declared_packages_are_the_folders() -> None:
    declared = SETUPTOOLS["packages"]
    assert declared == sorted(set(declared))
    assert declared == sorted(folders_of_the_project(ROOT, "__init__.py"))


def test_every_folder_with_modules_is_a_package() -> None:
    assert sorted(folders_of_the_project(ROOT, ".py")) == SETUPTOOLS["packages"]


def test_guides_are_mapped_to_the_top_level_folder() -> None:
    assert SETUPTOOLS["package-dir"] == {"pyro_bnn": "pyro_bnn", "pyro_bnn.guides": "guides"}


def test_link_to_guides_is_relative() -> None:
    link = ROOT / "pyro_bnn" / "guides"
    assert link.is_symlink()
    assert link.readlink() == Path("../guides")
    assert link.resolve() == ROOT / "guides"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository's history")
def test_link_to_guides_is_committed() -> None:
    listed = run("git", "ls-files", "--stage", "pyro_bnn/guides", cwd=ROOT).stdout
    assert listed.startswith("120000 ")  # git's mode of a symbolic link
    blob = listed.split()[1]
    assert run("git", "cat-file", "blob", blob, cwd=ROOT).stdout == "../guides"


def test_guides_refuse_to_be_imported_under_their_folders_name() -> None:
    done = run(sys.executable, "-c", "import guides", cwd=ROOT)
    assert done.returncode == 1
    assert GUARD in done.stderr
    assert "write 'from pyro_bnn import guides'" in done.stderr


def test_constraints_pin_every_dependency() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert {str(pin.specifier)[:2] for pin in pins} == {"=="}
    project = CONFIG["project"]
    wanted = [
        *project["dependencies"],
        *itertools.chain(*project["optional-dependencies"].values()),
    ]
    for version in ("3.11", "3.12", "3.13"):
        environment = {"python_version": version}
        found = {
            canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
            for pin in pins
            if pin.marker is None or pin.marker.evaluate(environment)
        }
        for requirement in map(Requirement, wanted):
            if requirement.marker is None or requirement.marker.evaluate(environment):
                name = canonicalize_name(requirement.name)
                assert name in found, f"{name} has no pin on Python {version}"
                assert requirement.specifier.contains(found[name]), f"{requirement} on {version}"


def test_typers_lower_bound_has_literal_options_and_help_of_arguments() -> None:
    from packaging.requirements import Requirement

    (typer,) = (
        found for found in map(Requirement, CONFIG["project"]["dependencies"])
        if found.name == "typer"
    )  # fmt: skip
    # up to 0.18 every command ends with "Type not yet supported: typing.Literal"; up to 0.25, with
    # click 8.5, arguments have no help
    assert list(typer.specifier.filter(["0.18.0", "0.25.0", "0.26.0"])) == ["0.26.0"]


def test_what_the_build_requires_is_here() -> None:
    """Which the build below does not ask itself: that takes two processes more."""
    import importlib.metadata as metadata

    from packaging.requirements import Requirement

    required = [*map(Requirement, CONFIG["build-system"]["requires"])]
    assert [found.name for found in required] == ["setuptools"]
    for found in required:
        assert found.specifier.contains(metadata.version(found.name)), found


# --- what is built -------------------------------------------------------------------------------


@pytest.mark.slow("builds and installs the package")
def test_wheel_holds_every_file_and_nothing_else(source: Path, installed: Installation) -> None:
    with ZipFile(installed.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == files_of_the_project(source)
    assert {"pyro_bnn/py.typed", "pyro_bnn/report/planted.html"} <= names


@pytest.mark.slow("builds and installs the package")
def test_sdist_holds_the_tests_and_what_they_need(source: Path, installed: Installation) -> None:
    with tarfile.open(installed.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    folders = [source / name for name in TEST_FOLDERS]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    files = [path for path in files if not {"_build", "made"} & {*path.parts}]  # of 'make docs'
    wanted = {path.relative_to(source).as_posix() for path in files if path.suffix != ".pyc"}
    assert {"tests/conftest.py", "tests/oracle.py", "tests/mutations.toml"} <= wanted
    assert {*wanted, *TOP_FILES} - names == set()
    assert [name for name in names if name.endswith(".pyc")] == []


@pytest.fixture(scope="module")
def imported(installed: Installation) -> dict[str, Any]:
    """What one process of the clean environment finds: the versions, the script, every module."""
    code = """
import importlib, json, pkgutil, pyro_bnn
import importlib.metadata as metadata
(script,) = metadata.distribution("pyro-bnn").entry_points
version = [metadata.version("pyro-bnn"), pyro_bnn.__version__, script.name, script.value]
modules = pkgutil.walk_packages(pyro_bnn.__path__, "pyro_bnn.")
names = ["pyro_bnn", *(m.name for m in modules if not m.name.endswith("__main__"))]
files = {name: importlib.import_module(name).__file__ for name in names}
print(json.dumps({"version": version, "files": files}))
"""
    done = run(installed.python, "-I", "-c", code, cwd=installed.wheel.parent)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow("builds and installs the package")
def test_every_module_imports_from_the_wheel(
    installed: Installation, imported: dict[str, Any]
) -> None:
    files = imported["files"]
    assert set(SETUPTOOLS["packages"]) <= set(files)
    outside = {
        n: f for n, f in files.items() if not Path(f).is_relative_to(installed.site_packages)
    }
    assert outside == {}
    expected = {
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for name in files_of_the_project(ROOT)
        if name.endswith(".py") and not name.endswith("__main__.py")
    }
    assert set(files) == expected


@pytest.mark.slow("builds and installs the package")
def test_wheel_carries_the_version_and_the_script(imported: dict[str, Any]) -> None:
    version = CONFIG["project"]["version"]
    assert imported["version"] == [version, version, "pyro-bnn", "pyro_bnn.cli.main:main"]


@pytest.mark.slow("builds and installs the package")
def test_console_script_runs(installed: Installation) -> None:
    done = run(installed.python.parent / "pyro-bnn", "--help", cwd=installed.wheel.parent)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout
