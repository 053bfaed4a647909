"""The common part of all kinds of settings: Kafka's dotted names, types, checks, and errors that say what to do.

    @dataclass(frozen=True, kw_only=True)
    class CacheConfig(Settings):
        kind: ClassVar[str] = "a cache"
        cache_max_bytes: int = setting(1024, integer(0), "largest size of all entries together")

    CacheConfig.parse({"cache.max.bytes": "4096"})

The Python name has underscores, the setting's name dots. An unknown name, a value of the wrong type, and a setting of
Kafka that is not supported are refused with ConfigError, which names the setting. No setting is accepted and ignored.
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
    """The values that a setting accepts. `check(name, value)` returns the typed value, or raises ConfigError."""

    type: ValueType
    check: Callable[[str, object], object]
    allowed: str = ""  # the accepted values in words, for the documentation


def integer(minimum: int, maximum: int = LONG_MAX) -> Values:
    """Accept whole numbers between two limits."""

    def check(name: str, value: object) -> int:
        if isinstance(value, str):
            # int() alone would also accept "1_000" and digits of other scripts, which Kafka does not.
            if not _WHOLE_NUMBER.fullmatch(value.strip()):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number")
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; it must be a whole number")
        if not minimum <= value <= maximum:
            raise ConfigError(f"{name} is {value}; it must lie between {minimum} and {maximum}")
        return value

    allowed = f"{minimum} or more" if maximum in (INT_MAX, LONG_MAX) else f"{minimum} to {maximum}"
    return Values(ValueType.INT if maximum <= INT_MAX else ValueType.LONG, check, allowed)


def decimal(minimum: float, maximum: float) -> Values:
    """Accept numbers between two limits."""

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
    """Accept true and false."""

    def check(name: str, value: object) -> bool:
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; it must be true or false")
        return value

    return Values(ValueType.BOOLEAN, check, "true, false")


def one_of(*choices: str) -> Values:
    """Accept some texts."""

    def check(name: str, value: object) -> str:
        if value not in choices:
            raise ConfigError(f"{name} is {value!r}; it must be one of: {', '.join(choices)}")
        return str(value)

    return Values(ValueType.STRING, check, ", ".join(choices))


def text() -> Values:
    """Accept any text."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r}; it must be text")
        return value

    return Values(ValueType.STRING, check, "text")


def list_of(item: Values | None = None, *, at_least: int = 0) -> Values:
    """Accept items with commas between them, or a list in Python. The typed value is a tuple."""

    def check(name: str, value: object) -> tuple[object, ...]:
        if isinstance(value, str):
            items: list[object] = [part.strip() for part in value.split(",") if part.strip()]
        elif isinstance(value, list | tuple):
            items = list(value)
        else:
            raise ConfigError(f"{name} is {value!r}; it must be a list, with commas between the items")
        try:
            checked = tuple((item or text()).check(name, element) for element in items)
        except ConfigError as error:
            hint = (
                f", or several with commas: {item.allowed.replace(', ', ',')}" if item and ", " in item.allowed else ""
            )
            raise ConfigError(f"{error}{hint}") from None
        if len(checked) < at_least:
            raise ConfigError(f"{name} has {len(checked)} items; it must have at least {at_least}")
        if len(set(checked)) != len(checked):
            raise ConfigError(f"{name} is {value!r}; it must not have the same item twice")
        return checked

    return Values(ValueType.LIST, check, f"list of: {item.allowed}" if item else "list")


def nullable(values: Values) -> Values:
    """Accept the same values, and None or empty text for "not set"."""

    def check(name: str, value: object) -> object:
        return None if value is None or value == "" else values.check(name, value)

    return Values(values.type, check, f"{values.allowed}, or nothing" if values.allowed else "")


def setting(default: object, values: Values, doc: str, *, dynamic: bool = False) -> Any:
    """Define a field of a Settings class. A `dynamic` setting can be changed while the broker runs."""
    return field(default=default, metadata={"values": values, "doc": doc, "dynamic": dynamic})


@dataclass(frozen=True)
class Described:
    """A setting without its current value."""

    name: str
    default: Any
    values: Values
    doc: str
    dynamic: bool


@dataclass(frozen=True)
class Refused:
    """A setting of Kafka that is not supported. `reason` says why, and what to do instead. `default` is the value in
    effect, which tools can show, or None."""

    reason: str
    default: str | None = None
    type: ValueType = ValueType.STRING

    def is_in_effect(self, value: object) -> bool:
        """Return True if this value is in effect anyway, so that it can be accepted."""
        return self.default is not None and (as_text(value) or "").strip() == self.default


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base class of all settings. The values are checked when an object is created, and never change."""

    kind: ClassVar[str]  # the owner of the settings in messages, such as "a log"

    def __post_init__(self) -> None:
        for described in self.described():
            python_name = underscored(described.name)
            object.__setattr__(self, python_name, described.values.check(described.name, getattr(self, python_name)))

    @classmethod
    def described(cls) -> list[Described]:
        return [Described(dotted(field.name), field.default, **field.metadata) for field in cls._fields()]

    @classmethod
    def names(cls) -> list[str]:
        return [dotted(field.name) for field in cls._fields()]

    @classmethod
    def _fields(cls) -> list[Field[Any]]:
        """Return the fields that setting() defines. A class may also have other fields."""
        return [field for field in fields(cls) if "values" in field.metadata]

    @classmethod
    def refused(cls) -> Mapping[str, Refused]:
        """Return the settings of Kafka that are not supported."""
        return {}

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> Self:
        """Create the settings from Kafka's dotted names. Values may be text. Raises ConfigError."""
        return cls(**cls._arguments(settings))

    def override(self, settings: Mapping[str, object]) -> Self:
        """Return these settings with some replaced, given by Kafka's dotted names. Raises ConfigError."""
        return replace(self, **self._arguments(settings))

    @classmethod
    def _arguments(cls, settings: Mapping[str, object]) -> dict[str, Any]:
        known, refused = set(cls.names()), cls.refused()
        arguments = {}
        for name, value in settings.items():
            if name in known:
                arguments[underscored(name)] = value
            elif name not in refused or not refused[name].is_in_effect(value):
                raise unknown_setting(name, cls.kind, cls.names(), refused)
        return arguments

    def settings(self) -> dict[str, Any]:
        return {dotted(field.name): getattr(self, field.name) for field in self._fields()}

    def texts(self) -> dict[str, str | None]:
        """Return the values as text, as in Kafka's protocol and files."""
        return {name: as_text(value) for name, value in self.settings().items()}


def unknown_setting(
    name: str, kind: str, known: Iterable[str], refused: Mapping[str, Refused] | None = None
) -> ConfigError:
    """Return the error for a name that is not supported, for the caller to raise."""
    names = list(known)
    if refused and name in refused:
        return ConfigError(f"{name} can't be set: {refused[name].reason}")
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return ConfigError(f"{name!r} is not a setting of {kind}; did you mean {near[0]}?")
    hint = f"; known are: {', '.join(names)}" if len(names) <= 40 else "; docs/settings.md lists all settings"
    return ConfigError(f"{name!r} is not a setting of {kind}{hint}")


def dotted(name: str) -> str:
    return name.replace("_", ".")


def underscored(name: str) -> str:
    return name.replace(".", "_")


def as_text(value: object) -> str | None:
    """Return a typed value as Kafka writes it, or None if it is not set."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, float):
        return str(value).replace("e+", "E").replace("e", "E")  # Java's notation
    return str(value)
