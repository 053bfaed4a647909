"""Results of a call that names many items: each item succeeds or fails on its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from stratalog.client.errors import ClientError, error_of
from stratalog.protocol.error_codes import ErrorCode

K = TypeVar("K")
V = TypeVar("V")


class Outcomes(Mapping[K, V], Generic[K, V]):
    """Results by item. `outcomes[item]` returns the result of an item or raises its error. `errors` has the errors of
    all failed items, and `check()` raises the first of them, if any."""

    def __init__(self, results: Mapping[K, V], errors: Mapping[K, ClientError]) -> None:
        self._results = dict(results)
        self.errors: dict[K, ClientError] = dict(errors)

    def check(self) -> dict[K, V]:
        """Return all results, or raise the first error."""
        for error in self.errors.values():
            raise error
        return dict(self._results)

    def succeeded(self) -> dict[K, V]:
        """Return the results of the items that succeeded."""
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
    """Collects outcomes as responses arrive. It ignores items that were not requested. A requested item that no
    response mentions has failed."""

    def __init__(self, items: Mapping[K, str]) -> None:
        """Take the requested items, with the name of each in error messages."""
        self._called = dict(items)
        self._items = {item: item for item in items}  # a response's item may be equal, and of another class
        self.results: dict[K, V] = {}
        self.errors: dict[K, ClientError] = {}

    def take(self, item: K, part: Any, result: V) -> None:
        """Record the outcome of an item. `part` is the part of a response about it, with an error code."""
        self.take_code(item, part.error_code, getattr(part, "error_message", None), result)

    def take_code(self, item: K, code: int, message: str | None, result: V) -> None:
        if item not in self._called:
            return
        item = self._items[item]
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
                self.errors[item] = ClientError(f"{called}: the broker's response does not mention it")
        return Outcomes(self.results, self.errors)
