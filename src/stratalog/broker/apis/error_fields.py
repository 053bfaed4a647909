"""An error as the admin APIs answer with it: a code, and a message that an administrator reads."""

from __future__ import annotations

from typing import Any

from stratalog.errors import StratalogError

_LONGEST_MESSAGE = 1000  # messages name the value, and a client can send one of megabytes


class RefusedError(StratalogError):
    """What a request asks for and can't have, with a code that only requests know."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = int(code)  # type: ignore[misc]


def error_fields(error: StratalogError) -> dict[str, Any]:
    message = str(error)
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "..."
    return {"error_code": error.code, "error_message": message}
