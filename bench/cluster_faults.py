"""Random faults of a cluster of three brokers under load: `make faults` runs this too, as the part "cluster".

    python -m bench.cluster_faults --kills 20 --stops 10 --cuts 6 --zookeeper 3 --seconds 600

Nothing that was acknowledged may be lost or doubled, the order must hold, and the replicas must become equal. A failure
names the seed and the round; `--seed` repeats the same faults.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.campaign import Campaign

ROUNDS = {"kill": 200, "stop": 100, "cut": 50, "zookeeper": 20}
SECONDS = 3 * 60 * 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=ROUNDS["kill"], help="leaders that are killed")
    parser.add_argument("--stops", type=int, default=ROUNDS["stop"], help="leaders that are paused")
    parser.add_argument("--cuts", type=int, default=ROUNDS["cut"], help="leaders whose links are cut")
    parser.add_argument("--zookeeper", type=int, default=ROUNDS["zookeeper"], help="restarts of ZooKeeper")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no round begins later than this")
    parser.add_argument("--seed", type=int, default=None, help="the seed of the faults; random by default")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    counts = {
        "kill": arguments.kills,
        "stop": arguments.stops,
        "cut": arguments.cuts,
        "zookeeper": arguments.zookeeper,
    }
    where = Path(tempfile.mkdtemp(prefix="stratalog-cluster-faults-"))
    print(f"seed {seed}, data and logs in {where}", flush=True)
    campaign = Campaign(where, seed, lambda line: print(line, flush=True))
    begin = time.monotonic()
    failure = None
    try:
        campaign.run(counts, arguments.seconds)
    except AssertionError as error:
        failure = str(error)
    rounds = ", ".join(f"{campaign.done[kind]} of {count} {kind}" for kind, count in counts.items())
    print(
        f"{rounds}; {campaign.acknowledged:,} records acknowledged and checked; at most {campaign.slowest:.1f} s until "
        f"all partitions took writes again; {time.monotonic() - begin:.0f} s in all"
    )
    if failure is not None:
        print(f"failed: {failure}")
        return 1
    shutil.rmtree(where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
