"""Check whether a directory may be served: an empty one, or one that has a broker's logs. Writes nothing."""

from __future__ import annotations

from pathlib import Path

from stratalog.broker.disk_reserve import RESERVE_FILE
from stratalog.broker.metadata.store import META_PROPERTIES, METADATA_FILE
from stratalog.cli.program import CommandError
from stratalog.cli.wording import join_first, printable
from stratalog.storage import names

_OWN = {
    names.LOCK,
    names.CLEAN_SHUTDOWN,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.CLEANER_OFFSET_CHECKPOINT,
    names.REPLICATION_OFFSET_CHECKPOINT,
    names.BOOT_NOTE,
    META_PROPERTIES,
    METADATA_FILE,
    "lost+found",  # of a file system that is mounted there
    RESERVE_FILE,
}


def check_data_dir(path: Path) -> None:
    """Raise if the directory is not a broker's. The broker itself reports one that can't be read."""
    if not str(path).strip() or str(path) == ".":
        raise CommandError("--data-dir is empty, or the current directory; name one, like --data-dir stratalog-data")
    if path.exists() and not path.is_dir():
        raise CommandError(f"--data-dir is {path}, which is a file; give a directory")
    try:
        entries = sorted(entry.name for entry in path.iterdir())
    except OSError:
        return
    if META_PROPERTIES in entries:
        return
    segments = [name for name in entries if _is_segment(name)]
    if segments:
        raise CommandError(
            f"--data-dir is {path}, which is a partition directory: it has {segments[0]}; give the directory that "
            f"contains it: --data-dir {path.absolute().parent}"
        )
    foreign = [name for name in entries if name.removesuffix(names.TEMPORARY) not in _OWN]
    if foreign and not any(_has_segments(path, name) for name in foreign):
        shown = printable(join_first(foreign))
        raise CommandError(
            f"--data-dir is {path}, which is not a data directory: it has {shown}, and no {META_PROPERTIES}; give an "
            f"empty directory, or a new one, like --data-dir {path / 'stratalog-data'}"
        )


def _is_segment(name: str) -> bool:
    parsed = names.parse_segment_file(name)
    return parsed is not None and parsed[1] == names.LOG


def _has_segments(path: Path, name: str) -> bool:
    """Return whether it is a partition directory. An older data directory has them without meta.properties."""
    if names.parse_partition_directory(name) is None and not names.is_doomed_directory(name):
        return False
    try:
        return any(_is_segment(entry.name) for entry in (path / name).iterdir())
    except NotADirectoryError:
        return False
    except OSError:
        return True
