"""Names that a broker knows, for a shell that completes them and for the message about one that is mistyped.

Both are a courtesy: a broker that does not answer within a second gives no names, and nothing is said about it.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from stratalog.cli.cluster_options import DEFAULT_SERVER, client_config

if TYPE_CHECKING:
    from stratalog.client.admin import Admin

_SECONDS = 1.0


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Internal topics only for who begins to type one."""
    names = _ask(_server(context), lambda admin: list(admin.list_topics(include_internal=True, timeout=_SECONDS)))
    is_internal = incomplete.startswith("_")
    return [name for name in names if name.startswith(incomplete) and (is_internal or not name.startswith("__"))]


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    names = _ask(_server(context), _groups)
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def similar_topic(name: str, server: str) -> str | None:
    return nearest(name, _ask(server, lambda admin: list(admin.list_topics(timeout=_SECONDS))))


def similar_group(name: str, server: str) -> str | None:
    return nearest(name, _ask(server, _groups))


def _groups(admin: Admin) -> list[str]:
    return sorted(one.name for one in admin.list_groups(timeout=_SECONDS))


def nearest(name: str, names: list[str]) -> str | None:
    others = [other for other in names if other != name]
    return next(iter(difflib.get_close_matches(name, others, 1)), None)


def _server(context: typer.Context) -> str:
    return context.params.get("bootstrap_server") or DEFAULT_SERVER


def _ask(server: str, question: Callable[[Admin], list[str]]) -> list[str]:
    from stratalog.client.admin import Admin
    from stratalog.errors import StratalogError

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # what a client has to say would be written into the line that is being typed
    try:
        own = {"default.api.timeout.ms": int(_SECONDS * 1000), "request.timeout.ms": int(_SECONDS * 1000)}
        with Admin.from_config(client_config(server, own, None)) as admin:
            return question(admin)
    except (StratalogError, OSError, ValueError, TimeoutError):
        return []
    finally:
        logging.disable(before)
