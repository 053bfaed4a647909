"""What became of each item of a call that names many: some may succeed where others fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from stratalog.client.errors import ClientError, error_of
from stratalog.protocol.error_codes import ErrorCode

K = TypeVar("K")
V = TypeVar("V")


class Outcomes(Mapping[K, V], Generic[K, V]):
    """Results by item. `outcomes[item]` is its result, or raises what went wrong with it; `errors` has all that failed,
    and `check()` raises the first of those, if there is one."""

    def __init__(self, results: Mapping[K, V], errors: Mapping[K, ClientError]) -> None:
        self._results = dict(results)
        self.errors: dict[K, ClientError] = dict(errors)

    def check(self) -> dict[K, V]:
        """All results, where nothing failed."""
        for error in self.errors.values():
            raise error
        return dict(self._results)

    def succeeded(self) -> dict[K, V]:
        """The results of those that did."""
        return dict(self._results)

    def __getitem__(self, item: K) -> V:
        if item in self.errors:
            raise self.errors[item]
        return self._results[item]

    def __contains__(self, item: object) -> bool:
        return item in self._results or item in self.errors

    def __iter__(self) -> Iterator[K]:
        yield from self._results
        yield from self.errors

    def __len__(self) -> int:
        return len(self._results) + len(self.errors)

    def __repr__(self) -> str:
        return f"Outcomes({self._results!r}, errors={self.errors!r})"


class Collected(Generic[K, V]):
    """Outcomes while they come in. What a broker says of items that nobody asked about is not taken up, and items that
    it says nothing of have failed."""

    def __init__(self, items: Mapping[K, str]) -> None:
        """Items with what they are called in messages."""
        self._called = dict(items)
        self.results: dict[K, V] = {}
        self.errors: dict[K, ClientError] = {}

    def take(self, item: K, answer: Any, result: V) -> None:
        """`answer` is the part of a response about this item, with an error code in it."""
        self.take_code(item, answer.error_code, getattr(answer, "error_message", None), result)

    def take_code(self, item: K, code: int, message: str | None, result: V) -> None:
        if item not in self._called:
            return
        if code == ErrorCode.none:
            self.results[item] = result
            self.errors.pop(item, None)
        else:
            self.fail(item, error_of(code, message, about=self._called[item]))

    def fail(self, item: K, error: ClientError) -> None:
        self.errors[item] = error

    def outcomes(self) -> Outcomes[K, V]:
        for item, called in self._called.items():
            if item not in self.results and item not in self.errors:
                self.errors[item] = ClientError(f"{called}: the broker's answer says nothing of it")
        return Outcomes(self.results, self.errors)
