"""Checks the prose and the names of the code against the style page in CONTRIBUTING.md.

    python -m tests.style.prose [PATH ...]

Without paths it reads `src`. It prints each phrase, name and class name that the style page rules out, with what to
write instead, and exits with 1 if there is one. It sees words, not meaning: a page that passes can still be unclear.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PHRASES: dict[str, str] = {
    r"whoever|whosoever|whomever": "name the client, the caller, the thread",
    r"nobody": "no client, no thread, nothing",
    r"for ever": "permanently, without end",
    r"anew": "again",
    r"beside": "next to, in parallel with",
    r"lest": "so that it does not",
    r"shall": "must, will",
    r"but for": "except, without",
    r"under way": "in progress, in flight, running",
    r"(is|are|was|were) none|none that can be|is none that": "there is no, is not valid",
    r"(is|are|was|were) told": "receives, learns; report, notify",
    r"(is|are|was|were) wanted": "is expected, must be",
    r"asked (was )?for|is asked of": "requested",
    r"who (reads|waits|asks|writes|sends|wants|holds|uses|calls|has|is|does)": "name the client, the caller",
    r"look-ups?": "lookup (noun), look up (verb)",
    r"inflat(e|es|ed|ing|ion)": "decompress",
    r"see to (its|the|it)|sees to": "fix, handle",
    r"let(s|ting)? go of": "release, close",
    r"as it shall|be it|for all that": "plain words",
    r"forerunners?": "earlier ones",
    r"in the place of": "instead of",
    r"lies? behind|lay behind": "is after",
    r"takes? note of|took note of": "record",
    r"the like|its like": "name the thing",
    r"(has|have) (its|their) turn": "runs, is served",
    r"wholly": "completely",
    r"thereof|therein|thereby|hence|whence|hitherto|henceforth": "plain words",
}
"""Phrases that the style page rules out, and what to write instead."""

OPENINGS = re.compile(r"\s*(What|Whether|Who|Of|As|That|Those|For who|None where)\b")
"""A docstring starts with a verb (functions) or says what the thing is (classes, modules)."""

NAMES = frozenset(
    ("told", "said", "one", "place", "places", "who", "found", "given", "wanted", "asked", "news", "spread", "also_if")
)
"""Names that do not say what the thing is."""

_KAFKA_ERRORS = {Path("src/stratalog/errors.py"), Path("src/stratalog/client/errors.py")}
_PHRASES = [(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead) for pattern, instead in PHRASES.items()]
_SUFFIXES = (".py", ".pyx", ".pxd", ".pyi")


class Finding(NamedTuple):
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def findings(paths: Iterable[Path]) -> list[Finding]:
    files = [file for path in paths for file in sorted(_files(path))]
    return [*(finding for file in files for finding in _in_file(file)), *_repeated_classes(files)]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (file for file in path.rglob("*") if file.suffix in _SUFFIXES)


def _in_file(path: Path) -> Iterator[Finding]:
    for line, text in _prose(path):
        yield from phrases_in(path, line, text)
    if path.suffix == ".py":
        tree = ast.parse(path.read_text())
        yield from _openings(path, tree)
        yield from _vague_names(path, tree)


def phrases_in(path: Path, line: int, text: str) -> Iterator[Finding]:
    """Find ruled-out phrases in a text that starts at `line`, also across line breaks."""
    folded = re.sub(r"[\s#]", " ", text)  # one character for one, so that positions stay
    folded = re.sub(r" {2,}", lambda spaces: " " + "\0" * (len(spaces[0]) - 1), folded)
    positions = [index for index, character in enumerate(folded) if character != "\0"]
    squeezed = folded.replace("\0", "")
    for pattern, instead in _PHRASES:
        for match in pattern.finditer(squeezed):
            at = line + text.count("\n", 0, positions[match.start()])
            yield Finding(path, at, f"'{match[0]}'; write: {instead}")


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield comments and string literals with their first lines. Comments on lines that follow each other are one."""
    comment: list[str] = []
    first = last = 0
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                if comment and token.start[0] != last + 1:
                    yield first, "\n".join(comment)
                    comment = []
                if not comment:
                    first = token.start[0]
                comment.append(token.string)
                last = token.start[0]
            elif token.type == tokenize.STRING:
                yield token.start[0], token.string
    if comment:
        yield first, "\n".join(comment)


def _openings(path: Path, tree: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            text = ast.get_docstring(node, clean=False)
            match = OPENINGS.match(text) if text else None
            if match:
                line = 1 if isinstance(node, ast.Module) else node.body[0].lineno
                yield Finding(path, line, f"the docstring opens with '{match[1]}'; open with a verb or a noun")


def _vague_names(path: Path, tree: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name = node.name
        if name is not None and name.strip("_") in NAMES:
            yield Finding(path, getattr(node, "lineno", 0), f"the name '{name}'; say what the thing is")


def _repeated_classes(files: Iterable[Path]) -> Iterator[Finding]:
    """Find public classes of the same name in two modules. The client's error for one of Kafka's codes shares its name
    with the broker's: both stand for the code."""
    classes: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path in files:
        if path.suffix == ".py":
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    classes[node.name].append((path, node.lineno))
    for name, definitions in classes.items():
        if {path for path, _ in definitions} == _KAFKA_ERRORS:
            continue
        for path, line in definitions[1:]:
            yield Finding(path, line, f"class {name} also exists in {definitions[0][0]}; one name, one thing")


def main(arguments: list[str]) -> int:
    results = findings([Path(argument) for argument in arguments or ["src"]])
    for finding in results:
        print(finding)
    if results:
        print(f"{len(results)} findings; see 'How the prose is written' in CONTRIBUTING.md")
    return 1 if results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
