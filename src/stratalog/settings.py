"""What every kind of settings shares: Kafka's dotted names, types, checks, and errors that say what to do.

    @dataclass(frozen=True, kw_only=True)
    class CacheConfig(Settings):
        kind: ClassVar[str] = "a cache"
        cache_max_bytes: int = setting(1024, integer(0), "room for entries")

    CacheConfig.parse({"cache.max.bytes": "4096"})

A Python name with underscores is the setting's name with dots. A name that does not exist, a value of the wrong kind,
and a setting of Kafka's that is known but not available here, are refused with the name in the message. A setting is
never taken and then ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from enum import Enum
from typing import Any, ClassVar, Self

from stratalog.errors import ConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


class ValueType(Enum):
    """Kafka's types of a setting, with the numbers that DescribeConfigs gives them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True)
class Values:
    """Which values a setting takes. `check(name, value)` gives the typed value, or raises ConfigError."""

    type: ValueType
    check: Callable[[str, object], object]
    said: str = ""  # what is allowed, in words, for the documentation


def integer(minimum: int, maximum: int = LONG_MAX) -> Values:
    def check(name: str, value: object) -> int:
        if isinstance(value, str):
            # int() alone would also take "1_000" and digits of other scripts, which Kafka does not.
            if not _WHOLE_NUMBER.fullmatch(value.strip()):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number")
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; it must be a whole number")
        if not minimum <= value <= maximum:
            raise ConfigError(f"{name} is {value}; it must lie between {minimum} and {maximum}")
        return value

    said = f"{minimum} or more" if maximum in (INT_MAX, LONG_MAX) else f"{minimum} to {maximum}"
    return Values(ValueType.INT if maximum <= INT_MAX else ValueType.LONG, check, said)


def decimal(minimum: float, maximum: float) -> Values:
    def check(name: str, value: object) -> float:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise ConfigError(f"{name} is {value!r}; it must be a number") from None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; it must be a number")
        if not minimum <= value <= maximum:  # which is false for NaN too
            raise ConfigError(f"{name} is {value}; it must lie between {minimum:g} and {maximum:g}")
        return float(value)

    return Values(ValueType.DOUBLE, check, f"{minimum:g} to {maximum:g}")


def boolean() -> Values:
    def check(name: str, value: object) -> bool:
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; it must be true or false")
        return value

    return Values(ValueType.BOOLEAN, check, "true, false")


def one_of(*choices: str) -> Values:
    def check(name: str, value: object) -> str:
        if value not in choices:
            raise ConfigError(f"{name} is {value!r}; it must be one of: {', '.join(choices)}")
        return str(value)

    return Values(ValueType.STRING, check, ", ".join(choices))


def text() -> Values:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r}; it must be text")
        return value

    return Values(ValueType.STRING, check, "text")


def list_of(item: Values | None = None, *, at_least: int = 0) -> Values:
    """Items with commas between them, or a list in Python; the typed value is a tuple."""

    def check(name: str, value: object) -> tuple[object, ...]:
        if isinstance(value, str):
            items: list[object] = [part.strip() for part in value.split(",") if part.strip()]
        elif isinstance(value, list | tuple):
            items = list(value)
        else:
            raise ConfigError(f"{name} is {value!r}; it must be a list, with commas between the items")
        try:
            checked = tuple((item or text()).check(name, one) for one in items)
        except ConfigError as error:
            several = f", or several with commas: {item.said.replace(', ', ',')}" if item and ", " in item.said else ""
            raise ConfigError(f"{error}{several}") from None
        if len(checked) < at_least:
            raise ConfigError(f"{name} has {len(checked)} items; it must have at least {at_least}")
        if len(set(checked)) != len(checked):
            raise ConfigError(f"{name} is {value!r}; an item is in it twice")
        return checked

    return Values(ValueType.LIST, check, f"list of: {item.said}" if item else "list")


def nullable(values: Values) -> Values:
    """None, or empty text, for "not set"."""

    def check(name: str, value: object) -> object:
        return None if value is None or value == "" else values.check(name, value)

    return Values(values.type, check, f"{values.said}, or nothing" if values.said else "")


def setting(default: object, values: Values, doc: str, *, dynamic: bool = False) -> Any:
    """A field of a Settings class. `dynamic`: it can be changed while the broker runs."""
    return field(default=default, metadata={"values": values, "doc": doc, "dynamic": dynamic})


@dataclass(frozen=True)
class Described:
    """All that is known of one setting but its value."""

    name: str
    default: Any
    values: Values
    doc: str
    dynamic: bool


@dataclass(frozen=True)
class Refused:
    """A setting of Kafka's that can't be given here: why, and what to do. `default` is the value that holds, and that
    tools are shown; None: there is nothing to show."""

    reason: str
    default: str | None = None
    type: ValueType = ValueType.STRING

    def holds(self, value: object) -> bool:
        """Whether giving this value asks for nothing that is not so already."""
        return self.default is not None and (as_text(value) or "").strip() == self.default


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Names, parsing and checking."""

    kind: ClassVar[str]  # whose settings they are, for messages: "a log"

    def __post_init__(self) -> None:
        for one in self.described():
            python_name = underscored(one.name)
            object.__setattr__(self, python_name, one.values.check(one.name, getattr(self, python_name)))

    @classmethod
    def described(cls) -> list[Described]:
        return [Described(dotted(one.name), one.default, **one.metadata) for one in cls._fields()]

    @classmethod
    def names(cls) -> list[str]:
        return [dotted(one.name) for one in cls._fields()]

    @classmethod
    def _fields(cls) -> list[Field[Any]]:
        """Those made with setting(): a class may have other fields beside them."""
        return [one for one in fields(cls) if "values" in one.metadata]

    @classmethod
    def refused(cls) -> Mapping[str, Refused]:
        """Settings that are known and can't be given."""
        return {}

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> Self:
        """From Kafka's dotted names; values may be text."""
        return cls(**cls._arguments(settings))

    def override(self, settings: Mapping[str, object]) -> Self:
        """These settings with others on top, from Kafka's dotted names."""
        return replace(self, **self._arguments(settings))

    @classmethod
    def _arguments(cls, settings: Mapping[str, object]) -> dict[str, Any]:
        known, refused = set(cls.names()), cls.refused()
        arguments = {}
        for name, value in settings.items():
            if name in known:
                arguments[underscored(name)] = value
            elif name not in refused or not refused[name].holds(value):
                raise unknown_setting(name, cls.kind, cls.names(), refused)
        return arguments

    def settings(self) -> dict[str, Any]:
        return {dotted(one.name): getattr(self, one.name) for one in self._fields()}

    def texts(self) -> dict[str, str | None]:
        """As Kafka's protocol and files have them."""
        return {name: as_text(value) for name, value in self.settings().items()}


def unknown_setting(
    name: str, kind: str, known: Iterable[str], refused: Mapping[str, Refused] | None = None
) -> ConfigError:
    """The error for a name that can't be given, to be raised."""
    names = list(known)
    if refused and name in refused:
        return ConfigError(f"{name} can't be set: {refused[name].reason}")
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return ConfigError(f"{name!r} is not a setting of {kind}; did you mean {near[0]}?")
    hint = f"; known are: {', '.join(names)}" if len(names) <= 40 else "; docs/settings.md lists what there is"
    return ConfigError(f"{name!r} is not a setting of {kind}{hint}")


def dotted(name: str) -> str:
    return name.replace("_", ".")


def underscored(name: str) -> str:
    return name.replace(".", "_")


def as_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, float):
        return str(value).replace("e+", "E").replace("e", "E")  # as Java writes it
    return str(value)
