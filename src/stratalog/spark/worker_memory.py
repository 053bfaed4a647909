"""PySpark's workers collect garbage after each task, which goes through every object that any module has made: with
pandas, Arrow and the protocol's schemas some 50 ms, many times what a small micro-batch takes to read."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_settled = False


def settle() -> None:
    """Call in a task, when all is imported that it needs: what is there now is not looked at again by any collection of
    this process. Once; what cycles there are in it are collected before. Nothing happens outside of a task."""
    global _settled
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.collect()
        gc.freeze()
