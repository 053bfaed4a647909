"""Regular expressions over topic names, in RE2's syntax, in time linear in the name. Pure.

Kafka matches with RE2J, which has no back references and no look-around and can't be made to run for ever. Python's
`re` can, and a pattern is a stranger's text. So a pattern is parsed here into a small automaton, which is walked with
all its states at once; the sets of states that come up are remembered, so that most steps are one look-up. The whole
name must match. Pattern, nesting, automaton and the work for one set of topics are bounded.

Known gap: of the Unicode classes (`\\pL`, `\\p{Greek}`), scripts other than Latin are refused; topic names are ASCII.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from stratalog.broker.groups.topic_pattern_syntax import (
    Alternatives,
    Assertion,
    Characters,
    Node,
    Repeat,
    Sequence,
    TopicPatternError,
    parse,
)

_MAX_INSTRUCTIONS = 5_000
_MAX_NODES_COMPILED = 50_000  # parts that need no instruction can be repeated too
_MAX_REMEMBERED_STEPS = 20_000
_MAX_WORK = 2_000_000  # instructions looked at while one set of topics is matched: about half a second

_START, _WORD, _OTHER = "start", "word", "other"  # what lies before a position
_END = ""  # what lies behind the last character

_State = tuple[frozenset[int], str]


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> TopicPattern:
    """Raises TopicPatternError, whose text says what is wrong with the pattern."""
    return TopicPattern(text)


class TopicPattern:
    def __init__(self, text: str) -> None:
        self._program = _Program()
        self._start: _State = (frozenset((self._program.compile(parse(text), _Program.MATCH),)), _START)
        self._steps: dict[tuple[_State, str], _State] = {}
        self._known: dict[str, bool] = {}
        self._work = 0

    def matching(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the names that the pattern matches as a whole, sorted.

        Raises TopicPatternError where that would take too long; what was found so far is remembered.
        """
        self._work = 0
        found: dict[str, bool] = {}
        for name in names:
            known = self._known.get(name)
            if known is None:
                known = self._known[name] = self._matches(name)
            found[name] = known
        self._known = found  # forgets topics that were deleted
        return tuple(sorted(name for name, matches in found.items() if matches))

    def _matches(self, name: str) -> bool:
        state = self._start
        for character in name:
            state = self._step(state, character)
            if not state[0]:
                return False
        return _Program.MATCH in self._reachable(state, _END)

    def _step(self, state: _State, character: str) -> _State:
        step = (state, character)
        following = self._steps.get(step)
        if following is None:
            bit = 1 << ord(character) if character.isascii() else 0
            program = self._program
            following = (
                frozenset(program.next[at] for at in self._reachable(state, character) if program.characters[at] & bit),
                _WORD if _is_word(character) else _OTHER,
            )
            if len(self._steps) >= _MAX_REMEMBERED_STEPS:
                self._steps.clear()
            self._steps[step] = following
        return following

    def _reachable(self, state: _State, ahead: str) -> set[int]:
        """Every instruction that can be reached from these without a character, given what lies on both sides."""
        instructions, behind = state
        program = self._program
        seen = set(instructions)
        pending = list(instructions)
        while pending:
            at = pending.pop()
            for following in program.free[at]:
                if following not in seen and _holds(program.assertions[at], behind, ahead):
                    seen.add(following)
                    pending.append(following)
        self._work += len(seen) + 1
        if self._work > _MAX_WORK:
            raise TopicPatternError("it takes too long to match against the topics that exist; make it simpler")
        return seen


class _Program:
    """Instructions by number. One either takes a character, or leads on for free, under an assertion or none."""

    MATCH = 0

    def __init__(self) -> None:
        self.characters = [0]  # a bit for each ASCII character that the instruction takes
        self.next = [0]
        self.free: list[tuple[int, ...]] = [()]
        self.assertions = [""]
        self._compiled = 0

    def compile(self, node: Node, following: int) -> int:
        """The number of the first instruction of `node`, which leads to `following` at its end."""
        self._compiled += 1
        if self._compiled > _MAX_NODES_COMPILED:
            raise TopicPatternError("its repetitions make it too large")
        match node:
            case Characters(mask):
                return self._add(characters=mask, next_=following)
            case Assertion(kind):
                return self._add(free=(following,), assertion=kind)
            case Sequence(parts):
                for part in reversed(parts):
                    following = self.compile(part, following)
                return following
            case Alternatives(parts):
                return self._add(free=tuple(self.compile(part, following) for part in parts))
            case Repeat(part, least, most):
                return self._repeat(part, least, most, following)

    def _repeat(self, part: Node, least: int, most: int | None, following: int) -> int:
        if most is None:
            loop = self._add(free=(following,))
            self.free[loop] = (self.compile(part, loop), following)
            following = loop
        else:
            after = following
            for _ in range(most - least):
                following = self._add(free=(self.compile(part, following), after))
        for _ in range(least):
            following = self.compile(part, following)
        return following

    def _add(self, characters: int = 0, next_: int = 0, free: tuple[int, ...] = (), assertion: str = "") -> int:
        if len(self.next) >= _MAX_INSTRUCTIONS:
            raise TopicPatternError("its repetitions make it too large")
        self.characters.append(characters)
        self.next.append(next_)
        self.free.append(free)
        self.assertions.append(assertion)
        return len(self.next) - 1


def _holds(assertion: str, behind: str, ahead: str) -> bool:
    match assertion:
        case "":
            return True
        case "start":
            return behind == _START
        case "end":
            return ahead == _END
        case _:
            at_boundary = (behind == _WORD) != _is_word(ahead)
            return at_boundary == (assertion == "boundary")


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")
