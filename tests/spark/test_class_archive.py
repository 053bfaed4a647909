"""The archive of Spark's classes: used if it exists and fits, unless the caller sets options for an archive."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stratalog.spark.class_archive import ClassArchiveError, archive_path, create, java_options

JAVA = Path("/usr/lib/jvm/some-java")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "stratalog"


def test_existing_archive_is_used_only_by_its_java(cache: Path) -> None:
    assert java_options(JAVA) == ""
    archive = archive_path(JAVA)
    archive.touch()
    assert archive.parent == cache
    assert f"-XX:SharedArchiveFile={archive}" in java_options(JAVA)
    assert java_options(Path("/usr/lib/jvm/another")) == ""


def test_archive_of_the_user_takes_precedence() -> None:
    archive_path(JAVA).touch()
    assert java_options(JAVA, "-Xmx1g -Xshare:off") == ""
    assert java_options(JAVA, "-XX:SharedArchiveFile=mine.jsa") == ""


def test_failed_archive_is_an_error_and_leaves_no_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ClassArchiveError, match="jobs run without it"):
        create()
    assert list(cache.glob("*.jsa")) == []
    assert list(cache.glob("class-archive-*")) == []
