"""PySpark's workers collect garbage after each task and each plan, which goes through every object that any module has
made: with pandas, Arrow and the protocol's schemas some 50 ms, many times what a small micro-batch takes to read."""

from __future__ import annotations

import gc
import sys

from pyspark import TaskContext

_settled = False


def settle() -> None:
    """Call in a task or a plan, when all is imported that it needs: what is there now is not looked at again by any
    collection of this process. Once; what cycles there are in it are collected before. Nothing happens in a process
    that is not PySpark's own."""
    global _settled
    if not _settled and _is_pyspark():
        _settled = True
        gc.collect()
        gc.freeze()


def _is_pyspark() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return TaskContext.get() is not None or (main is not None and main.name.startswith("pyspark."))
