"""The wheel, as a stranger gets it: into an empty environment, on a machine without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(__file__).with_name("produce_and_consume.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, and the wheel that is built from it."""
    output = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", output, ROOT)
    return output


def run(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == 0, result.stdout[-5000:]
    return result.stdout


def test_source_distribution_has_sources_and_nothing_that_was_made_of_them(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "setup.py", "LICENSE", "src/stratalog/py.typed"} <= set(names)
    assert "src/stratalog/records/_records.pyx" in names
    assert not [name for name in names if name.endswith((".c", ".so", ".pyc"))]


def test_wheel_has_every_module_and_kernel(built: Path) -> None:
    (path,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(path).namelist())
    source = ROOT / "src"
    modules = {str(file.relative_to(source)) for file in source.rglob("*.py")}
    assert modules <= names
    kernels = {str(file.relative_to(source).with_suffix("")) for file in source.rglob("*.pyx")}
    assert {name.partition(".")[0] for name in names if name.endswith(".so")} == kernels


def test_wheel_produces_consumes_and_reads_with_spark_where_no_compiler_is(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = os.environ | {
        "CC": "/bin/false",
        "CXX": "/bin/false",
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[spark]", environment=environment)
    assert run(python, PROGRAM, "spark", environment=environment).endswith("all is well\n")
