"""Limits on the file descriptors (ulimit -n) and mappings (vm.max_map_count) that segments use.

Segments are opened when they are needed and closed again, so no number of partitions uses up either. A quarter of the
descriptors is for sealed segments and a quarter for active segments. The rest is left to clients and to the program. An
open segment also has two mappings.
"""

from __future__ import annotations

import functools
import resource
from pathlib import Path

_MAPPINGS_PER_SEGMENT = 2
_USUAL_MAPPINGS = 65_530


def sealed_segments(configured: int) -> int:
    """Return how many sealed segments may be open at a time: the configured number, or fewer if the process may not
    open as many."""
    return max(min(configured, _descriptors() // 4, most_mappings() // 4 // _MAPPINGS_PER_SEGMENT), 1)


def active_segments() -> int:
    """Return how many active segments may be open at a time."""
    return max(min(_descriptors() // 4, most_mappings() // 2 // _MAPPINGS_PER_SEGMENT), 1)


@functools.cache
def first_scarce_descriptor() -> int:
    """Return the first descriptor number of the upper half. The system assigns the lowest free number, so such a number
    means that half of all descriptors are in use."""
    return max(_descriptors() // 2, 1)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def most_mappings() -> int:
    """Return vm.max_map_count, or its usual value if it can't be read."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return _USUAL_MAPPINGS
