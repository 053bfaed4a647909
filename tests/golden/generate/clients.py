"""The real clients: their versions, and how to run them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.compat.fetch_kafka import CACHE, KAFKA_VERSION, fetch_kafka
from tests.compat.jvm import QUICK_START, SILENT
from tests.golden.generate.plan import Topic

HERE = Path(__file__).parent
VERSIONS = {
    "java": KAFKA_VERSION,
    "kafka-python": "3.0.12",
    "aiokafka": "0.14.0",
    "confluent-kafka": "2.16.1",
}
CODEC_LIBRARIES = (
    "lz4",
    "zstandard",
    "python-snappy",
    "cramjam",
)  # the codecs of kafka-python and aiokafka
CLIENT_SECONDS = 120


def produce(client: str, bootstrap: str, topics: Sequence[Topic]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        plan = Path(scratch) / "plan.json"
        plan.write_text(json.dumps([topic.to_json() for topic in topics]))
        if client == "java":
            run_java("ProducePlan.java", fetch_kafka(), [bootstrap, str(plan)])
        else:
            script = str(HERE / "produce_with_python.py")
            run([str(python_with_clients()), script, client, bootstrap, str(plan)])


def read_back(bootstrap: str, topics: Sequence[str]) -> dict[str, Any]:
    records: dict[str, Any] = json.loads(run_java("ReadBack.java", fetch_kafka(), [bootstrap, *topics]))
    return records


def run_java(source: str, libs: Path, arguments: Sequence[str], *, options: Sequence[str] = ()) -> str:
    """Run a single-file Java program. It is compiled at its start, which needs a JDK, not only a JRE."""
    program = str(HERE / "java" / source)
    return run(["java", *QUICK_START, *SILENT, *options, "-cp", f"{libs}/*", program, *arguments])


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def python_with_clients() -> Path:
    """Create an environment with the clients, apart from the project's. Only the generator needs confluent-kafka."""
    requirements = [f"{name}=={version}" for name, version in VERSIONS.items() if name != "java"]
    home = CACHE / "golden-clients"
    stamp = home / ".installed"
    if not stamp.exists() or stamp.read_text() != " ".join(requirements):
        venv.create(home, with_pip=True, clear=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, *requirements, *CODEC_LIBRARIES])
        stamp.write_text(" ".join(requirements))
    return home / "bin" / "python"
