"""Opens single logs by their paths, for Log.open(). The logs of one data directory share one LogDirectory, which is
opened with the first of them and closed with the last."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from stratalog.errors import InvalidTopicError, LogAlreadyOpenError
from stratalog.storage import names
from stratalog.storage.log import Log
from stratalog.storage.log_directory import Configs, LogDirectory, as_config

_shared: dict[Path, tuple[LogDirectory, int]] = {}
_shared_lock = threading.Lock()


def open_log(path: Path, config: Configs) -> Log:
    """Open a log for Log.open()."""
    path = path.expanduser()
    partition = names.parse_partition_directory(path.name)
    if partition is None:
        raise InvalidTopicError(
            f"{path}: not a partition directory's name; use <topic>-<partition>, like orders-0: a topic of letters, "
            "digits, '.', '_' and '-', and a number without leading zeros"
        )
    names.check_topic(partition.topic)
    parsed = as_config(config)
    home = path.parent.resolve()
    with _shared_lock:
        directory, uses = _shared.get(home) or (LogDirectory.open(home), 0)
        try:
            log = directory.log(*partition, parsed)
            if log.has_owner:
                raise LogAlreadyOpenError(
                    f"{path}: the log is already open in this process; use that Log, or close it first"
                )
        except BaseException:
            if uses == 0:
                directory.close()
            raise
        _shared[home] = (directory, uses + 1)
        log.on_close(lambda: _release(home))
    return log


def _release(home: Path) -> None:
    with _shared_lock:
        directory, uses = _shared.pop(home)
        if uses > 1:
            _shared[home] = (directory, uses - 1)
        else:
            directory.close()  # with the lock held, so that another thread that opens it waits and is not refused


def _forget_all() -> None:
    """Forget all directories in the child of a fork. They belong to the parent."""
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget_all)
