"""The shell snippets of docs/cluster.md run in one shell, from top to bottom, with a real ZooKeeper."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.lab.zookeeper import ZooKeeperServer, free_ports

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
_SECONDS = 240
_STOP_ALL = "trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT\n"


def script(zookeeper: int, ports: list[int]) -> str:
    """Return the snippets with free ports instead of those of the page."""
    text = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert text.count("127.0.0.1:2181") > 2
    text = text.replace("127.0.0.1:2181", f"127.0.0.1:{zookeeper}")
    text = text.replace("127.0.0.1:909$id", "127.0.0.1:${ports[$id]}")
    for number, port in enumerate(ports, start=1):
        text = text.replace(f"127.0.0.1:909{number}", f"127.0.0.1:{port}")
    return f"{_STOP_ALL}ports=(0 {' '.join(map(str, ports))})\n{text}"


@pytest.mark.slow
def test_shell_snippets_of_the_page_fail(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    zookeeper = ZooKeeperServer(tmp_path / "zookeeper")
    zookeeper.start()
    try:
        done = subprocess.run(
            ["bash", "-ec", script(zookeeper.port, free_ports(4))],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    finally:
        zookeeper.kill()
    assert (done.returncode, done.stderr) == (0, "stratalog: 1 record acknowledged\n"), done.stdout
    for line in ("created orders: 3 partitions, 3 replicas each", "; --execute does it", "all replicas are in sync"):
        assert line in done.stdout
