"""Every Python snippet of the documentation runs as it stands, and every example too."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Snippets that build on each other, or are tests: tests/cli/test_tools_page.py, tests/testing/test_testing_page.py,
# tests/spark/test_spark_page.py and tests/pipelines/test_pipelines_page.py.
ELSEWHERE = {"tools.md", "testing.md", "spark.md", "pipelines.md"}
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        if page.name in ELSEWHERE:
            continue
        text = page.read_text()
        for match in SNIPPET.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            found.append((f"{page.relative_to(ROOT)}:{line}", match[1]))
    return found


@pytest.mark.parametrize(("place", "code"), snippets(), ids=[place for place, _ in snippets()])
def test_snippet_runs_as_it_stands(place: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, place, "exec"), {"__name__": "__snippet__"})


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example_runs(example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


def test_pages_that_promise_snippets_have_them() -> None:
    pages = {place.split(":")[0] for place, _ in snippets()}
    assert {"README.md", "docs/embedding.md"} <= pages


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
