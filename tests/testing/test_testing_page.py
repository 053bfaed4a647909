"""Each example of docs/testing.md passes with pytest and the installed plugin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
# Warnings of the clients are not the subject of the page.
CONFIGURATION = "[pytest]\naddopts = -p no:cacheprovider\n"


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_every_example_of_the_page_passes(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    expected = 0
    for number, example in enumerate(examples()):
        name = f"test_example_{number}.py" if "\ndef test_" in example else f"script_{number}.py"
        (tmp_path / name).write_text(example)
        expected += len(re.findall(r"^def test_", example, re.MULTILINE))
    done = _python(tmp_path, "-m", "pytest", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{expected} passed" in done.stdout
    (script,) = tmp_path.glob("script_*.py")
    done = _python(tmp_path, script.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:")


def test_all_clients_are_on_the_page() -> None:
    imported = "\n".join(examples())
    for client in ("confluent_kafka", "kafka", "aiokafka", "stratalog.client"):
        assert f"from {client} import" in imported


def test_settings_of_the_page_reach_the_broker(tmp_path: Path) -> None:
    text = PAGE.read_text()
    (fixture,) = re.findall(r"^```python conftest\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (toml,) = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for source, files in (("ini", {"pyproject.toml": toml}), ("fixture", {"conftest.py": fixture, "pytest.ini": ""})):
        directory = tmp_path / source
        directory.mkdir()
        for name, content in files.items():
            (directory / name).write_text(content)
        (directory / "test_it.py").write_text(
            "def test_it(stratalog_broker):\n"
            "    settings = stratalog_broker.settings\n"
            "    assert settings['num.partitions'] == '3'\n"
            "    assert settings['auto.create.topics.enable'] == 'false'\n"
        )
        done = _python(directory, "-m", "pytest", "-q", "-p", "no:cacheprovider")
        assert done.returncode == 0, done.stdout


def _python(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=200,
        stdin=subprocess.DEVNULL,
    )
