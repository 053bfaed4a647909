"""Makes garbage collection cheap in PySpark's workers.

They collect after each task and each plan, and visit every object of every module. With pandas, Arrow and the
protocol's schemas that takes some 50 ms, much longer than reading a small micro-batch.
"""

from __future__ import annotations

import gc
import sys

from pyspark import TaskContext

_frozen = False


def freeze_modules() -> None:
    """Exclude all existing objects from later collections of this process. Call when a task or plan has imported what
    it needs. Only the first call has an effect, and only in PySpark's own processes; it collects existing garbage
    first.
    """
    global _frozen
    if not _frozen and _is_pyspark():
        _frozen = True
        gc.collect()
        gc.freeze()


def _is_pyspark() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return TaskContext.get() is not None or (main is not None and main.name.startswith("pyspark."))
