"""Mutation testing: which code of a file is changed, to what, and which is not."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
from bench.mutations import Mutation, python_mutations, still_compiles
from bench.mutations_pyx import pyx_mutations

Finder = Callable[[str, bytes], list[Mutation]]


def changed(source: str, find: Finder = python_mutations) -> list[str]:
    """Return the file with each of its mutations."""
    data = textwrap.dedent(source).encode()
    return [mutation.apply(data).decode() for mutation in find("a.py", data)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", "a <= b"),
        ("a <= b", "a < b"),
        ("a > b", "a >= b"),
        ("a >= b", "a > b"),
        ("a == b", "a != b"),
        ("a != b", "a == b"),
        ("a in b", "a not in b"),
        ("a not in b", "a in b"),
        ("a is b", "a is not b"),
        ("a is not b", "a is b"),
        ("a + b", "a - b"),
        ("a - b", "a + b"),
        ("a * b", "a // b"),
        ("a // b", "a * b"),
        ("a and b", "a or b"),
        ("a or b", "a and b"),
        ("not a", "a"),
        ("(a) < (b)", "(a) <= (b)"),
        ("x = 0", "x = 1"),
        ("x = 1", "x = 0"),
        ("x = 41", "x = 42"),
        ("x = True", "x = False"),
        ("x += y", "x -= y"),
        ("'ä' + a < b", "'ä' + a <= b"),
    ],
)
@pytest.mark.parametrize("find", [python_mutations, pyx_mutations])
def test_operator_or_constant_becomes_its_counterpart(find: Finder, before: str, after: str) -> None:
    assert after in changed(before, find)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(x)", "pass"),
        ("async def f():\n    await g(x)\n", "async def f():\n    pass\n"),
        ("def f():\n    raise ValueError('x is 0')\n", "def f():\n    pass\n"),
        ("def f() -> int:\n    return (\n        x\n    )\n", "def f() -> int:\n    return None\n"),
        ("for a in b:\n    break\n", "for a in b:\n    continue\n"),
        ("for a in b:\n    continue\n", "for a in b:\n    break\n"),
    ],
)
def test_statement_is_removed_or_replaced(before: str, after: str) -> None:
    assert changed(before) == [after]


@pytest.mark.parametrize(
    "source",
    [
        '"""x < 1"""',
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "x: Literal[1]",
        "if TYPE_CHECKING:\n    f(1)\n",
        "__all__ = [f(1)]",
        "class C:\n    __slots__ = ('a', f(1))\n",
        "@dataclass(frozen=True)\nclass C: ...",
        "logger.warning('x is %s', 1 + 2)",
        "assert x, f(1)",
        "x = f'{a + 1}'",
        "def f() -> None:\n    return\n",
        "def f() -> None:\n    return None\n",
    ],
)
def test_code_that_tests_need_not_check_is_not_mutated(source: str) -> None:
    assert changed(source) == []


def test_text_of_an_error_is_not_mutated() -> None:
    assert changed("def f(a):\n    raise ValueError(a + 1, 'of 3')\n") == ["def f(a):\n    pass\n"]


def test_mutation_of_a_long_statement_has_all_its_lines() -> None:
    source = b"def f(a, b):\n    if (\n        a\n        < b\n    ):\n        return a\n"
    first = python_mutations("a.py", source)[0]
    assert (first.line, first.first_line, first.last_line, first.at_import) == (4, 2, 5, False)
    assert str(first) == "a.py:4  < -> <="


def test_mutation_outside_of_functions_is_marked() -> None:
    assert python_mutations("a.py", b"LIMIT = 5\n")[0].at_import
    assert python_mutations("a.py", b"class C:\n    def f(self, a=1): ...\n")[0].at_import
    assert not python_mutations("a.py", b"class C:\n    def f(self): return 1\n")[0].at_import


def test_mutant_that_does_not_compile_is_recognised() -> None:
    source = b"x = 1\n"
    assert still_compiles(Mutation("a.py", 1, 4, 5, "1", "0"), source)
    assert not still_compiles(Mutation("a.py", 1, 4, 5, "1", "break"), source)


@pytest.mark.parametrize(
    "source",
    [
        '"""a < 1"""  # b + 1',
        "from a cimport b, c",
        "cdef int f(int a=1, b=2) except -1:",
        "def f(a=1):",
        "cdef int[5] a",
        "cdef const unsigned char *p",
        "cdef extern from 'x.h':\n    int f(int *a)\n    enum: SIZE = 5\n",
        "cdef enum State:\n    FIRST = 1\n    SECOND = 2\n",
        "raise ValueError(a + 1)",
        "p = <const unsigned char *>view.buf",
        "x = <int>-y",
        "x = f(*values)",
        "for a in b:",
        "__all__ = ['a', 1]",
    ],
)
def test_types_headers_and_texts_of_cython_are_not_mutated(source: str) -> None:
    assert changed(source, pyx_mutations) == []


def test_cython_after_a_cast_or_a_declaration_is_mutated() -> None:
    assert changed("cdef char *p = <char *>a + b\n", pyx_mutations) == ["cdef char *p = <char *>a - b\n"]
    assert changed("cdef enum S:\n    A = 1\nx = 0x10ULL\n", pyx_mutations) == ["cdef enum S:\n    A = 1\nx = 17ULL\n"]
    assert changed("x = [a for a in b if a in c]\n", pyx_mutations) == ["x = [a for a in b if a not in c]\n"]
