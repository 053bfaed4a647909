"""The documentation page of all APIs, made from what is served: python -m stratalog.broker.apis_page."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys

from stratalog.broker import apis
from stratalog.protocol.api_keys import VERSIONS, ApiKey

_INTRODUCTION = """\
# APIs

Every API of Kafka's protocol that the broker serves, with its versions. Clients learn the same from ApiVersions. An API
that is not in the table, or a version that is not, ends the connection, as with Kafka.

This page is made by `python -m stratalog.broker.apis_page`; a test fails when it is out of date.

| API | key | versions | flexible from |
|---|---|---|---|
"""


def apis_page() -> str:
    rows = [
        f"| {_name(key)} | {int(key)} | {_range(lowest, highest)} | {_from(first_flexible, highest)} |\n"
        for key, (lowest, highest, first_flexible) in sorted(VERSIONS.items())
    ]
    return _INTRODUCTION + "".join(rows) + "\n## What each does, and its known gaps\n" + "".join(_families())


def _families() -> list[str]:
    sections = []
    for module in pkgutil.iter_modules(apis.__path__):
        documentation = inspect.getdoc(importlib.import_module(f"{apis.__name__}.{module.name}")) or ""
        if "key" in documentation:  # others are parts of these
            sections.append(f"\n### {module.name.replace('_', ' ').capitalize()}\n\n{documentation}\n")
    return sections


def _name(key: ApiKey) -> str:
    return "".join(word.capitalize() for word in key.name.split("_"))


def _range(lowest: int, highest: int) -> str:
    return str(lowest) if lowest == highest else f"{lowest}-{highest}"


def _from(first_flexible: int, highest: int) -> str:
    return "never" if first_flexible > highest else str(first_flexible)


if __name__ == "__main__":
    sys.stdout.write(apis_page())
