"""The errors of the demo."""

from __future__ import annotations

from stratalog.errors import StratalogError


class DemoError(StratalogError):
    """The demo can't run: something that it needs is missing or did not start. The message says what to do."""


class WrongResultError(StratalogError):
    """The result is not what pandas computes. This is always a bug in Stratalog."""
