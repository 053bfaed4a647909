"""Fetching without a network, with an apt that fails, is interrupted, or succeeds: the files that remain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.compat import fetch_debian as module
from tests.compat.fetch_debian import fetch
from tests.compat.fetch_kafka import CannotFetchError

SIMULATION = "Inst libyajl2 (2.1.0-3)\nInst kcat (1.7.1-2)\nConf libyajl2 (2.1.0-3)\nConf kcat (1.7.1-2)\n"


class Apt:
    """Behaves like apt-get and dpkg-deb; `fails` is the command that fails."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.fails = ""

    def run(self, command: Sequence[str], directory: Path | None = None) -> str:
        line = " ".join(command)
        self.commands.append(line)
        if self.fails and self.fails in line:
            raise CannotFetchError(f"{line} failed")
        if "--simulate" in command:
            return SIMULATION
        if command[1] == "download":
            assert directory is not None
            for package in command[2:]:
                (directory / f"{package}.deb").touch()
        if command[0] == "dpkg-deb":
            (Path(command[3]) / "usr" / "bin").mkdir(parents=True, exist_ok=True)
            (Path(command[3]) / "usr" / "bin" / "kcat").touch()
        return ""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "CACHE", tmp_path)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool in ("kcat",) else f"/bin/{tool}")
    return tmp_path


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> Apt:
    apt = Apt()
    monkeypatch.setattr(module, "run", apt.run)
    return apt


def test_missing_packages_are_fetched_once(cache: Path, apt: Apt) -> None:
    kcat = fetch("kcat")
    assert kcat.program == str(cache / "kcat" / "usr" / "bin" / "kcat")
    assert "apt-get download libyajl2 kcat" in apt.commands
    count = len(apt.commands)
    assert fetch("kcat") == kcat
    assert len(apt.commands) == count


@pytest.mark.parametrize("fails", ["download", "dpkg-deb"])
def test_an_interrupted_fetch_is_not_used(cache: Path, apt: Apt, fails: str) -> None:
    apt.fails = fails
    with pytest.raises(CannotFetchError):
        fetch("kcat")
    assert list(cache.iterdir()) == []


def test_missing_package_lists_are_downloaded(cache: Path, apt: Apt, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: Sequence[str], directory: Path | None = None) -> str:
        if "--simulate" in command and "apt-get update -qq" not in apt.commands:
            raise CannotFetchError("Unable to locate package kcat")
        return apt.run(command, directory)

    monkeypatch.setattr(module, "run", run)
    fetch("kcat")


def test_an_installed_kcat_is_used(cache: Path, apt: Apt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: f"/bin/{tool}")
    assert fetch("kcat").program == "/bin/kcat"
    assert apt.commands == []


def test_without_apt_the_message_says_what_is_missing(cache: Path, apt: Apt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(CannotFetchError, match="there is no apt-get here; install kcat"):
        fetch("kcat")
