"""Regular expressions over topic names and transactional ids, in time linear in the name.

Kafka uses RE2J, which has no back references and no look-around, so that no pattern of a client can run without end.
This module uses RE2 itself (google-re2), which is imported with the first pattern. The whole name must match. There are
limits for the length of a pattern, its memory, and the work for one set of names; a pattern beyond them is refused.
Compiling a pattern takes a millisecond or two. Matching takes up to a second, so do not match on the event loop.

RE2 accepts two things that RE2J does not, and this module refuses them: two groups with the same name, and `\\C`, a
single byte. Known gap: nested repetitions like `(a{100}){100}` may not exceed 1000 in total; RE2J has no such limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

MAX_LENGTH = 2_000
_MAX_MEMORY = 256 * 1024  # bytes of a compiled pattern, including its cached states
_MAX_WORK = 400_000_000  # instructions times characters for one set of names: a second for the worst patterns

_TOO_LONG = "it takes too long to match with the existing topics; make it simpler"

_TOKENS = (
    r"(?s)\\Q.*?(?:\\E|\z)"  # a quotation
    r"|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"  # a class
    r"|\\."
    r"|\(\?P?<(\w+)>"  # a group with a name
)


class TopicPatternError(ValueError):
    """A pattern that is not valid, or needs too much memory or time."""


@lru_cache(maxsize=128)
def compile_pattern(text: str) -> TopicPattern:
    """Compile a pattern. Raises TopicPatternError, whose message says what is not valid."""
    return TopicPattern(text)


class TopicPattern:
    """A compiled pattern. It remembers which names it matches."""

    def __init__(self, text: str) -> None:
        import re2  # here, because most brokers never get a pattern

        if len(text) > MAX_LENGTH:
            raise TopicPatternError(f"it has {len(text)} characters; at most {MAX_LENGTH} are allowed")
        options = re2.Options()
        options.max_mem = _MAX_MEMORY
        options.never_capture = True
        options.log_errors = False
        try:
            self._pattern = re2.compile(text, options)
        except re2.error as error:
            raise TopicPatternError(error.args[0].decode()) from None
        group_names = set()
        for token in re2.finditer(_TOKENS, text):
            if token[0] == r"\C":
                raise TopicPatternError(r"invalid escape sequence: \C")
            name = token[1]
            if name in group_names:
                raise TopicPatternError(f"duplicate capture group name: {name}")
            if name is not None:
                group_names.add(name)
        self._known: dict[str, bool] = {}

    def check_work(self, characters: int) -> None:
        """Raise TopicPatternError if it takes too long to match names with so many characters, plus one for each."""
        if self._pattern.programsize * characters > _MAX_WORK:
            raise TopicPatternError(_TOO_LONG)

    def matching(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names that the pattern matches as a whole, sorted.

        Raises TopicPatternError if that takes too long. The pattern remembers the names that it has checked until then,
        so that a later call gets further.
        """
        work = 0
        matches: dict[str, bool] = {}
        for name in names:
            known = self._known.get(name)
            if known is None:
                work += self._pattern.programsize * (len(name) + 1)
                if work > _MAX_WORK:
                    raise TopicPatternError(_TOO_LONG)
                known = self._known[name] = self._pattern.fullmatch(name) is not None
            matches[name] = known
        self._known = matches  # forgets topics that were deleted
        return tuple(sorted(name for name, is_match in matches.items() if is_match))
