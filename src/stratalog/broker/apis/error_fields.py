"""Errors in responses of the admin APIs: a code, and a message for an administrator."""

from __future__ import annotations

from typing import Any

from stratalog.errors import StratalogError

_LONGEST_MESSAGE = 1000  # messages quote values, and a client can send a value of megabytes


class RefusedError(StratalogError):
    """A refused request, with an error code that no other exception has."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = int(code)  # type: ignore[misc]


def error_fields(error: StratalogError) -> dict[str, Any]:
    message = str(error)
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "..."
    return {"error_code": error.code, "error_message": message}
