"""Regular expressions over topic names and transactional ids, in time linear in the name.

Kafka matches with RE2J, which has no back references and no look-around, so that no pattern of a client can run for
ever. Here it is RE2 itself (google-re2), which is imported with the first pattern. The whole name must match. The
length of a pattern, its memory and the work for one set of names are bounded; one that goes beyond is refused. To
compile a pattern takes a millisecond or two, to match it up to a second, so that is not for the event loop.

RE2 accepts two things that RE2J doesn't, and they are refused here: two groups of one name, and `\\C`, a single byte.
Known gap: repetitions within repetitions, like `(a{100}){100}`, may not exceed 1000 in all; RE2J has no such bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

MAX_LENGTH = 2_000
_MAX_MEMORY = 256 * 1024  # bytes of a compiled pattern, with the states that it has seen
_MAX_WORK = 400_000_000  # instructions times characters for one set of names: a second, for the worst patterns

_TOO_LONG = "it takes too long to match with the topics that exist; make it simpler"

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
    """Raises TopicPatternError, which says what is not valid in the pattern."""
    return TopicPattern(text)


class TopicPattern:
    def __init__(self, text: str) -> None:
        import re2  # with the first pattern: most brokers never get one

        if len(text) > MAX_LENGTH:
            raise TopicPatternError(f"it has {len(text)} characters; {MAX_LENGTH} are allowed")
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
        """Raise TopicPatternError if it takes too long to match names of so many characters, each with one more."""
        if self._pattern.programsize * characters > _MAX_WORK:
            raise TopicPatternError(_TOO_LONG)

    def matching(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of the names that the pattern matches as a whole, sorted.

        Raises TopicPatternError if that would take too long. Names that were matched until then are remembered, so that
        a later call gets further.
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
