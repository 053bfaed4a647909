"""Finds the mutations of a Cython file by its tokens: operators and constants.

There is no `ast` for Cython, so the text is split into tokens, and these into lines of code. Strings, comments,
imports, headers of functions and classes, declarations up to their `=`, casts, and the text of errors are not mutated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bench.mutations import Mutation, next_number

TOKEN = re.compile(
    r"""
    (?P<string>[rRbBuUfF]{0,2}(?:'{3}[\s\S]*?'{3}|"{3}[\s\S]*?"{3}|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
    | (?P<comment>\#[^\n]*)
    | (?P<newline>\n)
    | (?P<space>(?:[ \t\r]|\\\n)+)
    | (?P<number>0[xXbBoO][\da-fA-F_]+[uUlL]*|\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?[uUlL]*)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<operator><<=|>>=|//=|\*\*=|->|<=|>=|==|!=|//|\*\*|<<|>>|[-+*/%&|^@]=|.)
    """,
    re.VERBOSE,
)
SWAPPED = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "+": "-",
    "-": "+",
    "*": "//",
    "//": "*",
    "+=": "-=",
    "-=": "+=",
    "and": "or",
    "or": "and",
    "True": "False",
    "False": "True",
    "break": "continue",
    "continue": "break",
}
BINARY = {"<", ">", "+", "-", "*", "//"}  # these can also start a cast, a sign or a pointer
KEYWORDS = {"return", "and", "or", "not", "in", "is", "if", "else", "elif", "while", "yield", "await", "assert"}
SKIPPED_LINES = {"import", "from", "cimport", "include", "def", "cpdef", "class", "ctypedef", "DEF", "raise", "@"}
SKIPPED_LINES |= {"__all__", "__slots__"}
CAST = re.compile(r"<\s*[A-Za-z_][\w.]*(?:\s+[A-Za-z_]\w*)*[\s*&]*(?:\[[^\]]*\])?\s*\??>")
DECLARED_BLOCK = re.compile(
    r"(?:cdef|ctypedef)\s+(?:(?:public|packed|readonly)\s+)*(?:extern|struct|union|enum|cppclass)\b"
)


Change = tuple[int, str, str]  # position, text before, text after


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    start: int

    @property
    def is_operand(self) -> bool:
        """True if an operator after this token has it as its left operand."""
        if self.kind == "name":
            return self.text not in KEYWORDS
        return self.kind in ("number", "string") or self.text in (")", "]")


def pyx_mutations(path: str, source: bytes) -> list[Mutation]:
    """Return every mutation of the file, in the order of their positions."""
    text = source.decode()
    mutations = []
    for tokens in _lines_of_code(text):
        for start, before, after in _of_line(text, tokens):
            at = len(text[:start].encode())
            line = text.count("\n", 0, start) + 1
            mutations.append(Mutation(path, line, at, at + len(before.encode()), before, after, line, line))
    return mutations


def _lines_of_code(text: str) -> Iterator[list[Token]]:
    """Yield the tokens of each logical line that can be mutated, without spaces and comments."""
    declared_indent: int | None = None  # inside `cdef extern from`, `cdef struct`...: types only
    for tokens in _logical_lines(text):
        first = tokens[0]
        indent = first.start - (text.rfind("\n", 0, first.start) + 1)
        if declared_indent is not None and indent > declared_indent:
            continue
        is_declaration = DECLARED_BLOCK.match(text, first.start) is not None
        declared_indent = indent if is_declaration else None
        if is_declaration or first.text in SKIPPED_LINES:
            continue
        if first.text == "cdef":
            tokens = [] if tokens[-1].text == ":" else _values(tokens)
        if tokens:
            yield tokens


def _logical_lines(text: str) -> Iterator[list[Token]]:
    depth = 0
    line: list[Token] = []
    for match in TOKEN.finditer(text):
        token = Token(match.lastgroup or "", match.group(), match.start())
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if token.kind == "newline" and depth == 0:
            if line:
                yield line
            line = []
        elif token.kind not in ("newline", "space", "comment"):
            line.append(token)
    if line:
        yield line


def _values(tokens: list[Token]) -> list[Token]:
    """Return the tokens from the first `=` of a declaration on, or none. All names of a declaration have one type."""
    for number, token in enumerate(tokens):
        if token.text == "=":
            return tokens[number:]
    return []


def _of_line(text: str, tokens: list[Token]) -> Iterator[Change]:
    loops = 0  # the number of `for` whose `in` has not come yet
    cast_end = 0
    start = Token("newline", "", 0)
    for previous, token, following in zip([start, *tokens], tokens, [*tokens[1:], start], strict=False):
        if token.start < cast_end:
            continue
        cast = CAST.match(text, token.start) if token.text == "<" and not previous.is_operand else None
        if cast is not None:
            cast_end = cast.end()
            continue
        loops += token.text == "for"
        if token.text == "in" and loops:
            loops -= 1
        elif token.kind == "number":
            yield from _of_number(token)
        elif token.kind in ("operator", "name"):
            yield from _of_operator(text, previous, token, following)


def _of_number(token: Token) -> Iterator[Change]:
    match = re.fullmatch(r"(0[xX][\da-fA-F_]+|\d[\d_]*)([uUlL]*)", token.text)
    if match is not None:
        yield token.start, token.text, str(next_number(int(match[1], 0))) + match[2]


def _of_operator(text: str, previous: Token, token: Token, following: Token) -> Iterator[Change]:
    if token.text in BINARY:
        if previous.is_operand:
            yield token.start, token.text, SWAPPED[token.text]
    elif token.text in SWAPPED:
        yield token.start, token.text, SWAPPED[token.text]
    elif token.text == "in":
        if previous.text == "not":
            yield previous.start, text[previous.start : token.start + len("in")], "in"
        else:
            yield token.start, "in", "not in"
    elif token.text == "is":
        if following.text == "not":
            yield token.start, text[token.start : following.start + len("not")], "is"
        else:
            yield token.start, "is", "is not"
    elif token.text == "not" and previous.text != "is" and following.text != "in":
        yield token.start, text[token.start : following.start], ""
