"""Names of topics and groups, asked from a broker: to complete them in a shell, and to suggest one for a mistyped name.

Both are optional help: a broker that does not respond within a second gives no names, and no error is shown.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

from stratalog.cli.options import DEFAULT_SERVER, BrokerAddress

if TYPE_CHECKING:
    from stratalog.client.admin import Admin

_SECONDS = 1.0


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the topics that begin with a text. Internal topics are offered only after an underscore."""
    names = _ask(_server(context), lambda admin: list(admin.list_topics(include_internal=True, timeout=_SECONDS)))
    offers_internal = incomplete.startswith("_")
    return [name for name in names if name.startswith(incomplete) and (offers_internal or not name.startswith("__"))]


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    names = _ask(_server(context), _groups)
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def similar_topic(name: str, server: str) -> str | None:
    return nearest(name, _ask(server, lambda admin: list(admin.list_topics(timeout=_SECONDS))))


def similar_group(name: str, server: str) -> str | None:
    return nearest(name, _ask(server, _groups))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that a mistyped one most likely means."""
    return next(iter(difflib.get_close_matches(name, [other for other in names if other != name], 1)), None)


def _groups(admin: Admin) -> list[str]:
    return sorted(group.name for group in admin.list_groups(timeout=_SECONDS))


def _server(context: typer.Context) -> str:
    return context.params.get("bootstrap_server") or DEFAULT_SERVER


def _ask(server: str, request: Callable[[Admin], list[str]]) -> list[str]:
    from stratalog.errors import StratalogError

    disabled_level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a log message would appear in the line that the user is typing
    try:
        with BrokerAddress(server).admin(int(_SECONDS * 1000)) as admin:
            return request(admin)
    except (StratalogError, OSError, ValueError, TimeoutError):
        return []
    finally:
        logging.disable(disabled_level)
