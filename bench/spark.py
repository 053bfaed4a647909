"""The data source beside Spark's own Kafka connector, both with the same broker. Needs that connector, which is fetched
from Maven Central, and with ten million records an hour: `make bench` leaves it out.

    python -m bench.spark [--only read] [--records 1000000] [--rounds 3]

The parts say what they measure and how; each runs in a process and a Spark session of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

PARTS = {"read": "bench.spark_read", "stream": "bench.spark_stream", "write": "bench.spark_write"}


def main() -> int:
    parts = {name: module for name, module in PARTS.items() if importlib.util.find_spec(module) is not None}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(parts), help="one part")
    parser.add_argument("--records", type=int, help="in the topic")
    parser.add_argument("--rounds", type=int, help="of which the median counts")
    parser.add_argument("--directory", type=Path, help="where the broker's data goes meanwhile")
    given = parser.parse_args()
    arguments = []
    for option in ("records", "rounds", "directory"):
        if getattr(given, option) is not None:
            arguments += [f"--{option}", str(getattr(given, option))]
    chosen = [parts[given.only]] if given.only else list(parts.values())
    codes = [subprocess.run([sys.executable, "-m", part, *arguments]).returncode for part in chosen]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
