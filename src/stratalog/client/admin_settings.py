"""Settings of an Admin: exactly the settings that all clients share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.client.settings import CommonOptions, CommonSettings


class AdminOptions(CommonOptions, total=False):
    """Keyword arguments of Admin's constructor, for type checkers."""


@dataclass(frozen=True, kw_only=True)
class AdminSettings(CommonSettings):
    kind: ClassVar[str] = "an admin"
