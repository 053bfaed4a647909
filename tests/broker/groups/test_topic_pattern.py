"""Regular expressions over topic names: the names that they match, patterns that are refused, and their run time."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.broker.groups.topic_pattern import MAX_LENGTH, TopicPattern, TopicPatternError, compile_pattern

NAMES = ["orders", "orders-eu", "orders.dead", "payments", "payments_v2", "Orders", "a", "aa", "0"]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-eu", "orders.dead"]),
        ("orders[.]dead", ["orders.dead"]),
        (r"orders\.dead", ["orders.dead"]),
        (r"\Qorders.dead\E", ["orders.dead"]),
        (r"\Qorders.dead", ["orders.dead"]),
        ("^orders$", ["orders"]),
        ("(?i)ORDERS", ["Orders", "orders"]),
        ("(?i:O)rders", ["Orders", "orders"]),
        ("(?:(?i)o)RDERS|orders", ["orders"]),
        ("(?-i)orders", ["orders"]),
        ("(?sU)o.*", ["orders", "orders-eu", "orders.dead"]),
        ("[[:upper:]].*", ["Orders"]),
        ("[^[:lower:]].*", ["0", "Orders"]),
        ("[[:^alpha:]]", ["0"]),
        (r"\d", ["0"]),
        (r"[\d]", ["0"]),
        (r"\D", ["a"]),
        (r"\w+", ["0", "Orders", "a", "aa", "orders", "payments", "payments_v2"]),
        (r"orders\b.*", ["orders", "orders-eu", "orders.dead"]),
        (r"payments\B.+", ["payments_v2"]),
        (r"\Aa\z", ["a"]),
        ("a{1,2}", ["a", "aa"]),
        ("a{2}", ["aa"]),
        ("a{2,}", ["aa"]),
        ("a+?", ["a", "aa"]),
        ("(?P<x>a)(?<y>a)?", ["a", "aa"]),
        (r"\x61", ["a"]),
        (r"\x{61}", ["a"]),
        (r"\141", ["a"]),
        (r"\060", ["0"]),
        (r"\pL", ["a"]),
        (r"[\p{Lu}a][\p{Ll}]+", ["Orders", "aa"]),
        (r"\PL", ["0"]),
        (r"\p{^Nd}", ["a"]),
        (r"\P{^Nd}", ["0"]),
        (r"\p{Latin}|\p{Any}", ["0", "a"]),
        (r"(?i)\p{Lu}", ["a"]),
        (r"\p{Greek}|a", ["a"]),
        (r"\Q(?<x>\E|[(?<x>]|(?<x>a)", ["a"]),
        ("(" * 100 + "a" + ")" * 100, ["a"]),
        ("[]a]", ["a"]),
        ("[a-]", ["a"]),
        ("(orders|payments)(-eu|_v2)", ["orders-eu", "payments_v2"]),
        ("", []),
        ("()|a", ["a"]),
        ("ä|a", ["a"]),
        ("(a*)*", ["a", "aa"]),
        ("(a|a)*$", ["a", "aa"]),
        (".", ["0", "a"]),
        ("a$b|aa", ["aa"]),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, matched: list[str]) -> None:
    assert compile_pattern(pattern).matching(NAMES) == tuple(matched)


def test_a_brace_without_a_count_is_literal() -> None:
    assert TopicPattern("a{,2}").matching(["a{,2}", "a"]) == ("a{,2}",)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", r"missing \)"),
        ("(a", r"missing \)"),
        ("a)", r"unexpected \)"),
        ("*a", "no argument for repetition"),
        ("a|+", "no argument for repetition"),
        ("(?i)*", "no argument for repetition"),
        ("a**", "bad repetition operator"),
        ("a*+", "bad repetition operator"),
        ("a{2}{3}", "bad repetition operator"),
        ("a{1001}", r"repetition size: \{1001}"),
        ("a{3,2}", r"repetition size: \{3,2}"),
        ("[", "missing ]"),
        ("[a", "missing ]"),
        ("[z-a]", "class range: z-a"),
        ("[[:nope:]]", r"class range: \[:nope:]"),
        (r"(a)\1", r"escape sequence: \\1"),
        (r"\8", r"escape sequence: \\8"),
        (r"\C", r"escape sequence: \\C"),
        (r"\p{Lx}", "class range: .*Lx"),
        (r"\p{L", "class range"),
        (r"\p", "class range"),
        (r"\k<x>", "escape sequence"),
        ("a\\", "trailing"),
        ("(?=a)a", "perl operator"),
        ("(?!a)a", "perl operator"),
        ("(?<=a)a", "perl operator"),
        ("(?<!a)a", "perl operator"),
        ("(?>a)", "perl operator"),
        ("(?P=x)", "perl operator"),
        ("(?P<>a)", "named capture group"),
        ("(?P<x>a)(?<x>a)", "duplicate capture group name: x"),
        (r"\xzz", "escape sequence"),
        ("a" * (MAX_LENGTH + 1), "allowed"),
        ("((a{1000}){1000}){1000}", "repetition size"),
        ("((()*){1000}){1000}", "repetition size"),
        (r"\pL{1000}", "too large"),
    ],
)
def test_a_pattern_that_is_not_allowed_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(TopicPatternError, match=problem):
        TopicPattern(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", ".*.*.*.*.*.*.*.*b", "(.*a){20}b", "(a?){200}a{200}b"])
def test_patterns_that_hang_a_backtracking_matcher_are_fast(pattern: str) -> None:
    assert TopicPattern(pattern).matching(["a" * 249]) == ()


def test_a_pattern_that_would_take_seconds_is_refused() -> None:
    names = ["ab" * 120 + str(number) for number in range(5_000)]
    with pytest.raises(TopicPatternError, match="too long"):
        TopicPattern("(" + "(a|b|.)?" * 150 + "){5}x").matching(names)


def test_a_broker_without_patterns_does_not_load_the_matcher() -> None:
    code = "import sys, stratalog.broker.broker; sys.exit('re2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_known_topics_are_not_matched_again() -> None:
    pattern = TopicPattern("a.*")
    assert pattern.matching(["ab", "b"]) == ("ab",)
    assert pattern.matching(["ab", "ac", "b"]) == ("ab", "ac")
    assert pattern.matching(["ac"]) == ("ac",)
    assert pattern.matching([]) == ()


characters = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\.", r"\w", "^", "$", r"\b", r"\B"])
patterns = st.recursive(
    characters,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda part: f"(?:{part}|)"),
    ),
    max_leaves=6,
)


@given(patterns, st.lists(st.text("ab.-_", min_size=1, max_size=6), min_size=1, max_size=6))
def test_patterns_match_the_same_names_as_pythons_matcher(pattern: str, names: list[str]) -> None:
    expected = {name for name in names if re.fullmatch(pattern.replace("$", r"\Z"), name)}
    assert set(TopicPattern(pattern).matching(names)) == expected
