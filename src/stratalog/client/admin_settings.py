"""Settings of an Admin: those that all clients share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.client.settings import CommonOptions, CommonSettings


class AdminOptions(CommonOptions, total=False):
    """What Admin's constructor takes beside the servers, for type checkers."""


@dataclass(frozen=True, kw_only=True)
class AdminSettings(CommonSettings):
    kind: ClassVar[str] = "an admin"
