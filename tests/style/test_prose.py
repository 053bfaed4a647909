"""The style checker finds what it looks for, and the source has none of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.style.prose import findings

ROOT = Path(__file__).resolve().parents[2]


def check(tmp_path: Path, code: str) -> list[str]:
    path = tmp_path / "module.py"
    path.write_text(code)
    return [f"{finding.line}: {finding.message}" for finding in findings([tmp_path])]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("# Nobody waits.\n", 1),
        ("x = 1\n# the client\n# is\n# told\n", 3),
        ('raise ValueError(f"id {7} is none that can be")\n', 1),
        ('"""A module.\n\nBut\nfor this.\n"""\n', 3),
        ('def f() -> int:\n    """What is left."""\n    return 1\n', 2),
        ("def f(given: int) -> int:\n    return given\n", 1),
        ("found = 1\n", 1),
        ("self._said = 1\n", 1),
    ],
)
def test_dialect_passes_unseen(code: str, line: int, tmp_path: Path) -> None:
    reported = check(tmp_path, code)
    assert reported
    assert all(message.startswith(f"{line}: ") for message in reported), reported


def test_two_classes_of_one_name_pass_unseen(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("class Batch: ...\n")
    assert any("class Batch also exists" in message for message in check(tmp_path, "class Batch: ...\n"))


def test_plain_english_is_refused(tmp_path: Path) -> None:
    code = '"""The log of a partition."""\n\n# The roll syncs first: a reader must not see a torn batch.\nend = 0\n'
    assert check(tmp_path, code) == []


def test_source_leaves_the_style_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert [str(finding) for finding in findings([Path("src")])] == []
