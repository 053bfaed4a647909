"""Every shell and Python snippet of docs/tools.md runs, in one directory, from top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_snippets_of_the_page_run(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert len(snippets("sh")) > 7
    for snippet in snippets("sh"):
        done = subprocess.run(["bash", "-ec", snippet], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), snippet
        assert done.stdout
    for snippet in snippets("python"):
        subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, env=environment, check=True)
