"""Send a million mutated frames of all keys and versions to a broker: `python -m bench.fuzz`.

`make test` sends 2,000 of them, `make test-slow` 20,000. After a failure, the output names the seed and the frames that
were in flight. To send those again: `python -m bench.fuzz --seed 5 --first 18000 --frames 2000`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tests.broker.bad_input.campaign import FuzzingFailedError, run_campaign

FRAMES = 1_000_000
SEED = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=FRAMES, help="number of frames")
    parser.add_argument("--first", type=int, default=0, help="number of the first frame")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the frames")
    options = parser.parse_args()
    console = Console()
    numbers = range(options.first, options.first + options.frames)
    with tempfile.TemporaryDirectory(prefix="stratalog-fuzz-") as where:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        try:
            with Progress(*columns, console=console) as progress:
                task = progress.add_task(f"frames of seed {options.seed}", total=len(numbers))
                outcome = run_campaign(
                    Path(where) / "data", options.seed, numbers, lambda count: progress.advance(task, count)
                )
        except FuzzingFailedError as failure:
            console.print(f"[red]{failure}[/red]", soft_wrap=True)
            log = Path(where) / "data.log"
            console.print(_last_error(log.read_text()) if log.exists() else "", markup=False, soft_wrap=True)
            return 1
    rate = outcome.frames.total() / outcome.seconds
    console.print(
        f"{outcome.frames.total():,} frames in {outcome.seconds:,.0f} s ({rate:,.0f} a second): "
        + ", ".join(f"{count:,} {name}" for name, count in outcome.frames.most_common())
        + f"; {outcome.grown / 1e6:+.0f} MB of memory"
    )
    return 0


def _last_error(log: str) -> str:
    """Return the last traceback, with the line before it."""
    lines = log.splitlines()
    at = max((number for number, line in enumerate(lines) if " ERROR " in line), default=len(lines))
    return "\n".join(lines[at : at + 40])


if __name__ == "__main__":
    sys.exit(main())
