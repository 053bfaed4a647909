"""The commands of docs/client.md run one after the other, with a new broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from stratalog.testing import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_commands_of_the_page_run(tmp_path: Path, stratalog_fresh_broker: BrokerProcess) -> None:
    section = re.search(r"## On the command line\n+```\w*\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert section is not None
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "STRATALOG_BOOTSTRAP_SERVER": stratalog_fresh_broker.bootstrap_servers,
    }
    done = subprocess.run(["bash", "-ec", section[1]], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "stratalog: 2 records acknowledged\n" * 2)
    assert len((tmp_path / "orders.jsonl").read_text().splitlines()) == 2
    assert "kitchen  would continue at" in done.stdout
