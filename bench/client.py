"""Compare the client with confluent-kafka, kafka-python and aiokafka on the same broker. `make bench` runs this.

    python -m bench.client [--only produce] [--only-confluent]

client_produce.py and client_consume.py describe the measurements. Each runs in a process of its own, so that one does
not leave memory behind for the other.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = {"produce": "bench.client_produce", "consume": "bench.client_consume"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    parser.add_argument("--only-confluent", action="store_true", help="leave out the slow ones")
    parser.add_argument("--records", type=int, help="a round")
    parser.add_argument("--directory", type=Path, help="where the broker's data goes meanwhile")
    given = parser.parse_args()
    arguments = ["--only-confluent"] if given.only_confluent else []
    for option in ("records", "directory"):
        if getattr(given, option) is not None:
            arguments += [f"--{option}", str(getattr(given, option))]
    parts = [PARTS[given.only]] if given.only else list(PARTS.values())
    codes = [subprocess.run([sys.executable, "-m", part, *arguments]).returncode for part in parts]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
