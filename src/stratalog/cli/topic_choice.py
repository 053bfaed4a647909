"""Which topics to read: some by name, or all that match a pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from stratalog.cli.program import CommandError

if TYPE_CHECKING:
    from stratalog.client.admin import Admin
    from stratalog.client.metadata import TopicInfo


@dataclass(frozen=True)
class TopicChoice:
    topics: Sequence[str]
    pattern: re.Pattern[str] | None = None

    @classmethod
    def parse(cls, topics: Sequence[str], pattern: str | None) -> Self:
        if bool(topics) == (pattern is not None):
            raise CommandError("name the topics to read, or give --pattern, one of them")
        lists = [name for name in topics if "," in name]
        if lists:
            apart = " ".join(name for name in lists[0].split(",") if name)
            raise CommandError(f"TOPIC is {lists[0]!r}; several topics go with blanks between: {apart}")
        if pattern is None:
            return cls(tuple(dict.fromkeys(topics)))
        try:
            return cls((), re.compile(pattern))
        except re.error as error:
            raise CommandError(f"--pattern is {pattern!r}, which is no regular expression: {error}") from None

    def find(self, admin: Admin) -> list[TopicInfo]:
        """Raises where there is none, or one that is named is not there."""
        if self.pattern is None:
            return list(admin.describe_topics(self.topics).check().values())
        pattern = self.pattern
        found = [info for name, info in admin.list_topics().items() if pattern.fullmatch(name)]
        if not found:
            raise CommandError(
                f"--pattern is {pattern.pattern!r}, which matches no topic as a whole; `stratalog topic list` shows all"
            )
        return found
