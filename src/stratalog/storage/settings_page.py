"""The documentation page of all settings, made from them: python -m stratalog.storage.settings_page."""

from __future__ import annotations

import sys

from stratalog.storage.config import DirectoryConfig, LogConfig

_INTRODUCTION = """\
# Settings

Names and meanings are Kafka's. In Python they are `LogConfig(segment_bytes=...)` or a dictionary with the dotted names;
values may be text. A name that does not exist, or a value of the wrong kind, is an error that says so.

This page is made by `python -m stratalog.storage.settings_page`; a test fails when it is out of date.
"""


def settings_page() -> str:
    parts = [_INTRODUCTION, *_table("Of a log", LogConfig), *_table("Of a data directory", DirectoryConfig)]
    return "\n".join(parts) + "\n"


def _table(title: str, settings: type[LogConfig | DirectoryConfig]) -> list[str]:
    rows = [f"## {title}", "", "| setting | default | what it does |", "|---|---|---|"]
    rows += [f"| `{one.name}` | {one.default} | {one.doc} |" for one in settings.described()]
    return [*rows, ""]


if __name__ == "__main__":
    sys.stdout.write(settings_page())
