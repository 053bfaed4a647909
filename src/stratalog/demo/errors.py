"""What can go wrong in the demo that is no fault of who runs it, and what is."""

from __future__ import annotations

from stratalog.errors import StratalogError


class DemoError(StratalogError):
    """The demo can't run: something that it needs is missing or did not start. The message says what to do."""


class WrongResultError(StratalogError):
    """What came out is not what pandas computes. Never expected: a fault in Stratalog."""
