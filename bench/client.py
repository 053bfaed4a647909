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
    parser.add_argument("--only", choices=list(PARTS), help="run one part")
    parser.add_argument("--only-confluent", action="store_true", help="leave out the slow clients")
    parser.add_argument("--records", type=int, help="records per round")
    parser.add_argument("--directory", type=Path, help="directory for the broker's data")
    options = parser.parse_args()
    arguments = ["--only-confluent"] if options.only_confluent else []
    for option in ("records", "directory"):
        if getattr(options, option) is not None:
            arguments += [f"--{option}", str(getattr(options, option))]
    parts = [PARTS[options.only]] if options.only else list(PARTS.values())
    codes = [subprocess.run([sys.executable, "-m", part, *arguments]).returncode for part in parts]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
