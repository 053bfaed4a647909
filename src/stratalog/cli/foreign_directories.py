"""Whether a directory may be served: an empty one, or one that has a broker's logs. Only looks, writes nothing."""

from __future__ import annotations

from pathlib import Path

from stratalog.broker.disk_reserve import RESERVE_FILE
from stratalog.broker.metadata.store import META_PROPERTIES, METADATA_FILE
from stratalog.cli.program import CommandError, printable
from stratalog.cli.wording import listed
from stratalog.storage import names

_OWN = {
    names.LOCK,
    names.CLEAN_SHUTDOWN,
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.CLEANER_OFFSET_CHECKPOINT,
    names.REPLICATION_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    METADATA_FILE,
    "lost+found",  # of a file system that is mounted there
    RESERVE_FILE,
}


def check_data_directory(path: Path) -> None:
    """Raise where it holds what is not a broker's. One that can't be read is the broker's to complain about."""
    try:
        found = sorted(entry.name for entry in path.iterdir())
    except OSError:
        return
    if META_PROPERTIES in found:
        return
    segments = [name for name in found if _is_segment(name)]
    if segments:
        raise CommandError(
            f"--data-dir is {path}, which is the directory of one partition: it has {segments[0]}; give the directory "
            f"that it is in: --data-dir {path.absolute().parent}"
        )
    foreign = [name for name in found if name.removesuffix(names.TEMPORARY) not in _OWN]
    if foreign and not any(_has_a_log(path, name) for name in foreign):
        shown = printable(listed(foreign))
        raise CommandError(
            f"--data-dir is {path}, which is no data directory: it has {shown}, and no {META_PROPERTIES}; give an "
            f"empty directory, or a new one, like --data-dir {path / 'stratalog-data'}"
        )


def _is_segment(name: str) -> bool:
    parsed = names.parse_segment_file(name)
    return parsed is not None and parsed[1] == names.LOG


def _has_a_log(path: Path, name: str) -> bool:
    """Whether it is a partition's directory, as an older data directory has them without meta.properties."""
    if names.parse_partition_directory(name) is None and not names.is_doomed_directory(name):
        return False
    try:
        return any(_is_segment(entry.name) for entry in (path / name).iterdir())
    except NotADirectoryError:
        return False
    except OSError:
        return True
