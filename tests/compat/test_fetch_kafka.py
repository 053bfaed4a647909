"""Fetching without a network, with a Maven that fails, is interrupted, or succeeds: the files that remain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import fetch_kafka
from tests.compat.fetch_kafka import CannotFetchError, fetch

ARTIFACTS = ("org.example:thing:1.0",)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fetch_kafka, "CACHE", tmp_path)
    monkeypatch.setattr(fetch_kafka, "needed_packages", lambda: [("maven", True)])
    return tmp_path


def maven_that_copies(directory: Path) -> None:
    assert "<artifactId>thing</artifactId>" in (directory / "pom.xml").read_text()
    (directory / "libs").mkdir()
    (directory / "libs" / "thing-1.0.jar").write_bytes(b"jar")


def maven_that_is_cut_off(directory: Path) -> None:
    maven_that_copies(directory)
    raise CannotFetchError("cut off")


def test_a_second_fetch_downloads_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_kafka, "run_maven", maven_that_copies)
    libs = fetch("thing-1.0", ARTIFACTS)
    assert [jar.name for jar in libs.iterdir()] == ["thing-1.0.jar"]
    monkeypatch.setattr(fetch_kafka, "run_maven", maven_that_is_cut_off)
    assert fetch("thing-1.0", ARTIFACTS) == libs


def test_an_interrupted_download_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_kafka, "run_maven", maven_that_is_cut_off)
    with pytest.raises(CannotFetchError):
        fetch("thing-1.0", ARTIFACTS)
    assert list((cache / "thing-1.0").iterdir()) == []
    monkeypatch.setattr(fetch_kafka, "run_maven", maven_that_copies)
    assert fetch("thing-1.0", ARTIFACTS).is_dir()


def test_two_fetches_at_once_agree(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def maven_that_comes_second(directory: Path) -> None:
        maven_that_copies(directory)
        others = cache / "thing-1.0" / "libs"
        others.mkdir()
        (others / "thing-1.0.jar").write_bytes(b"jar")

    monkeypatch.setattr(fetch_kafka, "run_maven", maven_that_comes_second)
    libs = fetch("thing-1.0", ARTIFACTS)
    assert [entry.name for entry in (cache / "thing-1.0").iterdir()] == ["libs"]
    assert (libs / "thing-1.0.jar").read_bytes() == b"jar"


def test_without_java_and_root_the_message_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_kafka, "needed_packages", lambda: [("default-jdk-headless", False), ("maven", False)])
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CannotFetchError, match="apt-get install default-jdk-headless maven"):
        fetch("thing-1.0", ARTIFACTS)
