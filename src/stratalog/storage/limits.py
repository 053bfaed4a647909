"""How much of what a process may open goes to segments: file descriptors (ulimit -n) and mappings (vm.max_map_count).

Segments are opened when they are needed and let go again, so no number of partitions uses up either. A quarter of the
descriptors is for sealed segments and a quarter for the ones that grow; the rest is left to clients and to the program
around. An open segment has two mappings besides.
"""

from __future__ import annotations

import functools
import resource
from pathlib import Path

_MAPPINGS_A_SEGMENT = 2
_USUAL_MAPPINGS = 65_530


def sealed_segments(wanted: int) -> int:
    """How many sealed segments may be open at a time: `wanted`, or as many as there is room for."""
    return max(min(wanted, _descriptors() // 4, most_mappings() // 4 // _MAPPINGS_A_SEGMENT), 1)


def active_segments() -> int:
    """How many growing segments may be open at a time."""
    return max(min(_descriptors() // 4, most_mappings() // 2 // _MAPPINGS_A_SEGMENT), 1)


@functools.cache
def first_scarce_descriptor() -> int:
    """The system gives out the lowest number that is free: one from here on says that half of them are in use."""
    return max(_descriptors() // 2, 1)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def most_mappings() -> int:
    """vm.max_map_count, or its usual value where the kernel does not tell."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return _USUAL_MAPPINGS
