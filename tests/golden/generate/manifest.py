"""Write MANIFEST.md: each golden directory with its client, its broker and its size."""

from __future__ import annotations

import json
from pathlib import Path

HEAD = """\
# Where each golden directory comes from

Written by `python -m tests.golden.generate`; README.md says what the files are.

| directory | client | broker | codec | magic | mode, topic settings besides the usual | records | bytes |
|---|---|---|---|---|---|---|---|
"""
USUAL = {"retention.ms", "index.interval.bytes", "segment.index.bytes"}
FOREVER = "9223372036854775807"


def write_manifest(golden: Path) -> None:
    rows = []
    for path in sorted(golden.glob("*/expected.json")):
        expected = json.loads(path.read_text())
        settings = [
            f"{name}={value}"
            for name, value in expected.get("topic_config", {}).items()
            if name not in USUAL and value != FOREVER
        ]
        size = sum((path.parent / name).stat().st_size for name in expected["files"])
        columns = (
            f"`{path.parent.name}`",
            expected["client"],
            expected["broker"],
            expected.get("codec", ""),
            str(expected.get("magic", "")),
            ", ".join([expected.get("mode", ""), *settings]),
            str(len(expected["records"])),
            str(size),
        )
        rows.append(f"| {' | '.join(columns)} |\n")
    (golden / "MANIFEST.md").write_text(HEAD + "".join(rows))
