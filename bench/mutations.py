"""Finds the mutations of a Python file with `ast`: text that can be replaced, with its replacement.

A mutation changes one expression or statement. Code that tests need not check is not mutated: docstrings, annotations,
imports for type checkers, `__all__`, `__slots__`, decorators, log calls, and the text of errors and asserts.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
NOT_MUTATED = {"__all__", "__slots__", "__match_args__"}


@dataclass(frozen=True)
class Mutation:
    """One change of one file. `start` and `end` are positions in its bytes; the lines count from 1."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str
    first_line: int = 0  # of the statement; a test that executes none of its lines can't notice the change
    last_line: int = 0
    at_import: bool = False  # outside of all functions

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {_one_line(self.before)} -> {_one_line(self.after)}"


def python_mutations(path: str, source: bytes) -> list[Mutation]:
    """Return every mutation of the file, in the order of their positions."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(finder.mutations, key=lambda mutation: (mutation.start, mutation.end))


def still_compiles(mutation: Mutation, source: bytes) -> bool:
    try:
        compile(mutation.apply(source), mutation.path, "exec")
    except SyntaxError:
        return False
    return True


def next_number(value: int) -> int:
    return 1 - value if value in (0, 1) else value + 1


class _Finder(ast.NodeVisitor):
    """Walks over one file, and keeps the current statement and function."""

    def __init__(self, path: str, source: bytes) -> None:
        self.mutations: list[Mutation] = []
        self._path = path
        self._source = source
        self._line_starts = [0, *(match.end() for match in re.finditer(rb"\n", source))]
        self._around = Mutation(path, 0, 0, 0, "", "", at_import=True)
        self._returns_value = False

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        outer = self._around
        body = getattr(node, "body", None)
        last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
        self._around = replace(outer, first_line=node.lineno, last_line=last)
        super().visit(node)
        self._around = outer

    # Code that is not mutated

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_defaults(node.args)
        outer, returned = self._around, self._returns_value
        self._around = replace(outer, at_import=False)
        self._returns_value = not (isinstance(node.returns, ast.Constant) and node.returns.value is None)
        self._visit_all(node.body)
        self._around, self._returns_value = outer, returned

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(node.body)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            self._visit_all(node.orelse)
        else:
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(isinstance(target, ast.Name) and target.id in NOT_MUTATED for target in node.targets):
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip the text: texts are not mutated, and positions in them are not reliable before Python 3.12."""

    def _visit_defaults(self, arguments: ast.arguments) -> None:
        self._visit_all([default for default in [*arguments.defaults, *arguments.kw_defaults] if default is not None])

    def _visit_all(self, nodes: list[ast.stmt] | list[ast.expr]) -> None:
        for node in nodes:
            self.visit(node)

    # Operators

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            self._between(left, right, *COMPARISONS[type(operator)])
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC and not any(_is_text(side) for side in (node.left, node.right)):
            self._between(node.left, node.right, *ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.Add | ast.Sub) and not _is_text(node.value):
            before, after = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
            self._between(node.target, node.value, before, after)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        before, after = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, before, after)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self._start(node)
            match = re.match(rb"not\s*", self._source[start:])
            if match is not None:
                self._add(node.lineno, start, start + match.end(), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace(node, str(next_number(node.value)))

    # Statements

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            if _is_log_call(call):
                return
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass")  # the text of the error is not mutated

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        if self._returns_value and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._replace(node, "return None")
        self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break")

    # Positions

    def _between(self, left: ast.expr, right: ast.expr, before: str, after: str) -> None:
        """Replace the operator between two expressions."""
        start, end = self._end(left), self._start(right)
        gap = self._source[start:end]
        words = rb"\s+".join(re.escape(word).encode() for word in before.split())
        pattern = rb"\b" + words + rb"\b" if before[0].isalpha() else words
        match = re.search(pattern, gap)
        if match is None or b"#" in gap:
            return
        line = (left.end_lineno or left.lineno) + gap[: match.start()].count(b"\n")
        self._add(line, start + match.start(), start + match.end(), after)

    def _replace(self, node: ast.stmt | ast.expr, after: str) -> None:
        self._add(node.lineno, self._start(node), self._end(node), after)

    def _add(self, line: int, start: int, end: int, after: str) -> None:
        before = self._source[start:end].decode()
        self.mutations.append(replace(self._around, line=line, start=start, end=end, before=before, after=after))

    def _start(self, node: ast.stmt | ast.expr) -> int:
        return self._line_starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.stmt | ast.expr) -> int:
        return self._line_starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_log_call(call: ast.Call) -> bool:
    """Return True for a call like `logger.warning(...)`. The log of a partition has no methods with these names."""
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LOG_METHODS
        and re.search(r"log", ast.unparse(function.value), re.IGNORECASE) is not None
    )


def _one_line(text: str) -> str:
    first, _, rest = text.strip().partition("\n")
    return (first + " ..." if rest else first) or "(nothing)"
