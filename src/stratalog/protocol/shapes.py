"""The shapes of messages, made from kio's dataclasses, for _shape.check_shape.

kio trusts the counts that it reads, and allocates memory for as many elements. So bytes are checked before kio gets
them. Tagged fields are skipped and removed, even those that kio knows, because nothing here uses them.
"""

from __future__ import annotations

from array import array
from dataclasses import Field, fields, is_dataclass
from typing import Any, get_args, get_origin

from stratalog.protocol._shape import Operation
from stratalog.protocol.encoding import FIXED_TYPES, inner_type, is_nullable

_UUID_SIZE = 16
_SIZES = {"?": 1, "b": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8}


def compile_shape(entity: type[Any]) -> array[int]:
    return array("i", _entity(entity))


def _entity(entity: type[Any]) -> list[int]:
    return [number for step in _steps(entity) for number in step]


def _steps(entity: type[Any]) -> list[list[int]]:
    """Return the steps of an entity. Adjacent fields of fixed size are one step."""
    flexible: bool = entity.__flexible__
    steps: list[list[int]] = []
    for member in fields(entity):
        if "tag" in member.metadata:
            continue
        for step in _member(member, flexible):
            if steps and step[0] == steps[-1][0] == Operation.FIXED:
                steps[-1][1] += step[1]
            else:
                steps.append(step)
    if flexible:
        steps.append([Operation.TAGS, 0])
    return steps


def _member(member: Field[Any], flexible: bool) -> list[list[int]]:
    nullable = int(is_nullable(member))
    inner = inner_type(member.type)
    if get_origin(inner) is tuple:
        element = get_args(inner)[0]
        shape = _entity(element) if is_dataclass(element) else _scalar(member, 0, flexible)  # type: ignore[arg-type]
        return [[Operation.COMPACT_ARRAY if flexible else Operation.ARRAY, nullable, len(shape), *shape]]
    if is_dataclass(inner):
        if not nullable:
            return _steps(inner)  # type: ignore[arg-type]
        shape = _entity(inner)  # type: ignore[arg-type]
        return [[Operation.NULLABLE, len(shape), *shape]]
    return [_scalar(member, nullable, flexible)]


def _scalar(member: Field[Any], nullable: int, flexible: bool) -> list[int]:
    kind = member.metadata["kafka_type"]
    if kind in FIXED_TYPES:
        return [Operation.FIXED, _SIZES[FIXED_TYPES[kind]]]
    if kind == "uuid":
        return [Operation.FIXED, _UUID_SIZE]
    if flexible:
        return [Operation.COMPACT, nullable]
    return [Operation.STRING if kind == "string" else Operation.BYTES, nullable]
