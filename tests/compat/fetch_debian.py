"""Downloads kcat and strace into .cache/ from Debian's packages, without installing anything on the machine.

`python -m tests.compat.fetch_debian` leaves each in a directory of its own, such as `.cache/kcat`, with the libraries
that the machine lacks. A second call does nothing. A program on the path is used as it is. apt's own settings decide
which mirror it uses.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.compat.fetch_kafka import CACHE, CannotFetchError

APT_SECONDS = 300
PROGRAMS = ("kcat", "strace")


@dataclass(frozen=True)
class DebianProgram:
    program: str
    library_path: str  # for LD_LIBRARY_PATH; empty if the machine has all libraries

    def environment(self) -> dict[str, str]:
        return dict(os.environ, LD_LIBRARY_PATH=self.library_path) if self.library_path else dict(os.environ)


def fetch(name: str) -> DebianProgram:
    """Return the program of the package with this name. Raises CannotFetchError."""
    installed = shutil.which(name)
    if installed is not None:
        return DebianProgram(installed, "")
    home = CACHE / name
    if not home.is_dir():
        download(name, home)
    libraries = sorted({str(library.parent) for library in home.rglob("*.so*")})
    return DebianProgram(str(home / "usr" / "bin" / name), ":".join(libraries))


def download(name: str, home: Path) -> None:
    """Download a package. The directory gets its name with one rename, when it is complete."""
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise CannotFetchError(
            f"{name} comes from Debian's packages, and there is no {missing[0]} here; install {name}"
        )
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=home.parent) as partial_name:
        partial = Path(partial_name)
        run(["apt-get", "download", *needed_packages(name)], partial)
        for package in partial.glob("*.deb"):
            run(["dpkg-deb", "--extract", str(package), str(partial / "root")], partial)
        try:
            (partial / "root").rename(home)
        except OSError:
            if not home.is_dir():  # otherwise another fetch was faster, and its result is the same
                raise


def needed_packages(name: str) -> list[str]:
    """Return the package and those of its dependencies that this machine lacks."""
    simulation = ["apt-get", "install", "--simulate", "--no-install-recommends", name]
    try:
        plan = run(simulation)
    except CannotFetchError:
        run(["apt-get", "update", "-qq"])  # the package lists may be missing; without root this fails with a message
        plan = run(simulation)
    return re.findall(r"^Inst (\S+)", plan, re.MULTILINE)


def run(command: Sequence[str], directory: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=APT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CannotFetchError(f"`{' '.join(command)}` did not finish within {APT_SECONDS} s") from None
    if done.returncode != 0:
        raise CannotFetchError(
            f"`{' '.join(command)}` failed; install the package by hand:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def main() -> int:
    for name in PROGRAMS:
        try:
            print(f"{name}: {os.path.relpath(fetch(name).program)}")
        except CannotFetchError as error:
            print(f"fetch_debian: {error}\nThe tests with {name} are skipped.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
