"""The syntax of regular expressions over topic names: RE2's, reduced to what matters for ASCII names. Pure.

A set of characters is an integer with a bit for each ASCII character. Greediness, multi-line and dot-all flags are read
and have no effect: the question is only whether the whole name matches, and a name has no line ends.
"""

from __future__ import annotations

import string
import unicodedata
from dataclasses import dataclass
from typing import TypeAlias

MAX_LENGTH = 2_000
_MAX_DEPTH = 40
_MAX_REPEAT = 1_000  # RE2's own
_ALL = (1 << 128) - 1


class TopicPatternError(ValueError):
    """A pattern that is not allowed, or can't be matched in the time given."""


@dataclass(frozen=True, slots=True)
class Characters:
    mask: int


@dataclass(frozen=True, slots=True)
class Assertion:
    kind: str  # start, end, boundary, no boundary


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Node
    least: int
    most: int | None


Node: TypeAlias = Characters | Assertion | Sequence | Alternatives | Repeat


def parse(text: str) -> Node:
    if len(text) > MAX_LENGTH:
        raise TopicPatternError(f"it has {len(text)} characters; {MAX_LENGTH} are allowed")
    parser = _Parser(text)
    node = parser.alternatives(depth=0)
    if parser.at < len(text):
        raise parser.error("unmatched )")
    return node


def _mask(characters: str) -> int:
    mask = 0
    for character in characters:
        if character.isascii():
            mask |= 1 << ord(character)
    return mask


_DIGITS = _mask(string.digits)
_WORD = _mask(string.ascii_letters + string.digits + "_")
_SPACE = _mask("\t\n\f\r ")
_ESCAPED_CLASSES = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _SPACE,
    "D": _ALL & ~_DIGITS,
    "W": _ALL & ~_WORD,
    "S": _ALL & ~_SPACE,
}
_ESCAPED_CHARACTERS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ASSERTIONS = {"A": "start", "z": "end", "b": "boundary", "B": "no boundary"}
_NAMED_CLASSES = {
    "alnum": _mask(string.ascii_letters + string.digits),
    "alpha": _mask(string.ascii_letters),
    "ascii": _ALL,
    "blank": _mask("\t "),
    "cntrl": _mask("".join(map(chr, range(32))) + "\x7f"),
    "digit": _DIGITS,
    "graph": _mask("".join(map(chr, range(33, 127)))),
    "lower": _mask(string.ascii_lowercase),
    "print": _mask("".join(map(chr, range(32, 127)))),
    "punct": _mask(string.punctuation),
    "space": _SPACE | _mask("\v"),
    "upper": _mask(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": _mask(string.hexdigits),
}
_OCTAL = tuple(string.octdigits)
_CATEGORIES = frozenset(unicodedata.category(chr(code)) for code in range(0x3000))
_NOT_LINE_END = _ALL & ~_mask("\n")


def _unicode_class(name: str) -> int | None:
    if name in ("Any", "Latin"):
        return _ALL if name == "Any" else _NAMED_CLASSES["alpha"]
    if not any(category == name or category[0] == name for category in _CATEGORIES):
        return None
    return _mask("".join(chr(code) for code in range(128) if unicodedata.category(chr(code)).startswith(name)))


def _both_cases(mask: int) -> int:
    for lower, upper in zip(string.ascii_lowercase, string.ascii_uppercase, strict=True):
        both = _mask(lower + upper)
        if mask & both:
            mask |= both
    return mask


class _Parser:
    def __init__(self, text: str) -> None:
        self.at = 0
        self._text = text
        self._ignore_case = False
        self._group_names: set[str] = set()

    def error(self, problem: str) -> TopicPatternError:
        return TopicPatternError(f"{problem} at character {self.at}")

    def alternatives(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} groups inside each other")
        ignore_case = self._ignore_case  # flags hold up to the end of the group they are in
        parts = [self._sequence(depth)]
        while self._accept("|"):
            parts.append(self._sequence(depth))
        self._ignore_case = ignore_case
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.at < len(self._text) and self._text[self.at] not in "|)":
            part = self._quotation() if self._accept("\\Q") else self._quantified(depth)
            if part is not None:
                parts.append(part)
        return Sequence(tuple(parts))

    def _quotation(self) -> Node:
        """\\Q...\\E: every character stands for itself."""
        end = self._text.find("\\E", self.at)
        quoted = self._text[self.at : end if end >= 0 else None]
        self.at = len(self._text) if end < 0 else end + 2
        return Sequence(tuple(self._literal(character) for character in quoted))

    def _quantified(self, depth: int) -> Node | None:
        began = self.at
        part = self._atom(depth)
        bounds = self._quantifier()
        if bounds is None:
            return part
        if part is None:
            self.at = began
            raise self.error("nothing to repeat")
        self._accept("?")
        if self._quantifier() is not None:
            raise self.error("a repetition of a repetition")
        least, most = bounds
        if least > _MAX_REPEAT or (most is not None and (most > _MAX_REPEAT or most < least)):
            raise self.error(f"a repetition of {least} to {most} times; {_MAX_REPEAT} is the most, the least first")
        return Repeat(part, least, most)

    def _quantifier(self) -> tuple[int, int | None] | None:
        if self._accept("*"):
            return 0, None
        if self._accept("+"):
            return 1, None
        if self._accept("?"):
            return 0, 1
        if self._text.startswith("{", self.at):
            end = self._text.find("}", self.at)
            least, comma, most = self._text[self.at + 1 : end if end >= 0 else self.at + 1].partition(",")
            if _is_count(least) and (not most or _is_count(most)):
                self.at = end + 1
                return int(least), int(most) if most else None if comma else int(least)
        return None  # a brace that counts nothing stands for itself, as in RE2

    def _atom(self, depth: int) -> Node | None:
        character = self._take()
        match character:
            case "(":
                return self._group(depth)
            case "[":
                return self._class()
            case ".":
                return Characters(_NOT_LINE_END)
            case "^":
                return Assertion("start")
            case "$":
                return Assertion("end")
            case "*" | "+" | "?":
                self.at -= 1
                raise self.error("nothing to repeat")
            case "\\":
                return self._escape()
            case _:
                return self._literal(character)

    def _group(self, depth: int) -> Node | None:
        ignore_case = self._ignore_case
        if self._accept("?"):
            if self._accept("P<") or (self._accept("<") and not self._text.startswith(("=", "!"), self.at)):
                self._group_name()
            elif self._flags():
                return None  # (?i): holds for what follows in this group
        node = self.alternatives(depth + 1)
        if not self._accept(")"):
            raise self.error("missing )")
        self._ignore_case = ignore_case
        return node

    def _group_name(self) -> None:
        end = self._text.find(">", self.at)
        name = self._text[self.at : max(end, 0)]
        if not name.isascii() or not name.replace("_", "a").isalnum():
            raise self.error("a group's name must be letters, digits and _")
        if name in self._group_names:
            raise self.error(f"a second group of the name {name}")
        self._group_names.add(name)
        self.at = end + 1

    def _flags(self) -> bool:
        """Read (?flags) or (?flags:, true for the first. Look-around has no flags, and ends here."""
        value = True
        while True:
            character = self._take()
            match character:
                case ")":
                    return True
                case ":":
                    return False
                case "-" if value:
                    value = False
                case "i":
                    self._ignore_case = value
                case "m" | "s" | "U":
                    pass
                case _:
                    self.at -= 1
                    raise self.error("a group that RE2 does not have (look-around?)")

    def _class(self) -> Node:
        negated = self._accept("^")
        mask = 0
        first = True
        while first or not self._accept("]"):
            first = False
            mask |= self._class_part()
        if self._ignore_case:
            mask = _both_cases(mask)
        return Characters(_ALL & ~mask if negated else mask)

    def _class_part(self) -> int:
        if self._accept("[:"):
            negated = self._accept("^")
            end = self._text.find(":]", self.at)
            mask = _NAMED_CLASSES.get(self._text[self.at : max(end, 0)])
            if mask is None:
                raise self.error("a class that does not exist")
            self.at = end + 2
            return _ALL & ~mask if negated else mask
        low = self._class_character()
        if isinstance(low, int):
            return low
        if not self._text.startswith("-", self.at) or self._text.startswith("-]", self.at):
            return _mask(low)
        self.at += 1
        high = self._class_character()
        if isinstance(high, int) or high < low:
            raise self.error("a range that ends before it begins")
        return sum(1 << code for code in range(ord(low), min(ord(high), 127) + 1))

    def _class_character(self) -> str | int:
        """A character, or the mask of a class like \\d."""
        character = self._take()
        if character != "\\":
            return character
        escaped = self._take()
        mask = self._escaped_class(escaped)
        return self._escaped_character(escaped) if mask is None else mask

    def _escape(self) -> Node:
        escaped = self._take()
        if escaped in _ASSERTIONS:
            return Assertion(_ASSERTIONS[escaped])
        mask = self._escaped_class(escaped)
        if mask is not None:
            return Characters(_both_cases(mask) if self._ignore_case else mask)
        return self._literal(self._escaped_character(escaped))

    def _escaped_class(self, escaped: str) -> int | None:
        """\\d and the like; \\pL, \\p{Lu}, \\P{^N}: Unicode's categories, as far as ASCII has characters of them."""
        if escaped not in "pP":
            return _ESCAPED_CLASSES.get(escaped)
        negated = escaped == "P"
        name = self._take()
        if name == "{":
            end = self._text.find("}", self.at)
            name = self._text[self.at : max(end, 0)]
            self.at = end + 1
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        mask = _unicode_class(name)
        if mask is None:
            raise self.error(f"the class {name}, which is not supported")
        return _ALL & ~mask if negated else mask

    def _escaped_character(self, escaped: str) -> str:
        if escaped in _ESCAPED_CHARACTERS:
            return _ESCAPED_CHARACTERS[escaped]
        if escaped == "x":
            return self._hexadecimal()
        if escaped == "0" or (escaped in "1234567" and self._text[self.at : self.at + 1] in _OCTAL):
            return self._octal()
        if not escaped.isascii() or escaped.isalnum():
            self.at -= 1
            raise self.error(f"\\{escaped}, which is not supported (back references are not)")
        return escaped

    def _hexadecimal(self) -> str:
        if self._accept("{"):
            end = self._text.find("}", self.at)
            digits = self._text[self.at : max(end, 0)]
            self.at = end + 1
        else:
            digits = self._text[self.at : self.at + 2]
            self.at += 2
        if not digits or len(digits) > 6 or set(digits) - set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
            raise self.error("\\x without hexadecimal digits")
        return chr(int(digits, 16))

    def _octal(self) -> str:
        """Up to three digits, of which the first was taken. A single one but 0 would be a back reference."""
        begin = self.at - 1
        while self.at < begin + 3 and self._text[self.at : self.at + 1] in _OCTAL:
            self.at += 1
        return chr(int(self._text[begin : self.at], 8))

    def _literal(self, character: str) -> Characters:
        mask = _mask(character)
        return Characters(_both_cases(mask) if self._ignore_case else mask)

    def _take(self) -> str:
        if self.at >= len(self._text):
            raise self.error("it ends too early")
        character = self._text[self.at]
        self.at += 1
        return character

    def _accept(self, text: str) -> bool:
        accepted = self._text.startswith(text, self.at)
        if accepted:
            self.at += len(text)
        return accepted


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6
