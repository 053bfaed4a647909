"""Schemas out of a schema registry (Confluent's, Apicurio's, Karapace's: the same HTTP API), only where one was named.

Everything that comes from it is bounded: the time, the size of an answer, the number of schemas.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import Any

from stratalog.errors import ConfigError, StratalogError

MOST_SCHEMAS = 100
SECONDS = 10.0
MOST_BYTES = 4 * 1024 * 1024
AVRO = "AVRO"


class SchemaRegistryError(StratalogError):
    """The registry can't be reached, does not know what it was asked for, or answered something else."""


def schemas_of_ids(url: str, ids: Iterable[int]) -> dict[int, str]:
    """The schemas with these ids, all of them Avro's."""
    return {number: _avro(url, f"schemas/ids/{number}")["schema"] for number in sorted(ids)}


def schemas_of_subject(url: str, subject: str) -> dict[int, str]:
    """All versions of a subject, by their ids; the last in the dictionary is the newest version."""
    path = f"subjects/{urllib.parse.quote(subject, safe='')}/versions"
    versions = _get(url, path)
    if not isinstance(versions, list) or not all(isinstance(version, int) for version in versions):
        raise SchemaRegistryError(f"{url}/{path} did not answer with a list of versions, but {str(versions)[:100]!r}")
    if len(versions) > MOST_SCHEMAS:
        raise SchemaRegistryError(
            f"subject {subject!r} has {len(versions)} versions, more than {MOST_SCHEMAS}; give schemas instead"
        )
    found = [_avro(url, f"{path}/{version}") for version in sorted(versions)]
    return {int(version["id"]): version["schema"] for version in found}


def check_url(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"registry is {url!r}; it must be like http://localhost:8081")
    return url.rstrip("/")


def _avro(url: str, path: str) -> dict[str, Any]:
    answer = _get(url, path)
    if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
        raise SchemaRegistryError(f"{url}/{path} did not answer with a schema, but {str(answer)[:100]!r}")
    kind = answer.get("schemaType", AVRO)
    if kind != AVRO:
        raise SchemaRegistryError(f"{url}/{path} is a schema of type {kind}; only Avro's are fetched")
    if answer.get("references"):
        raise SchemaRegistryError(f"{url}/{path} refers to other schemas, which is not supported; give it as schemas")
    return answer


def _get(url: str, path: str) -> Any:
    request = urllib.request.Request(
        f"{check_url(url)}/{path}", headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            body = response.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise SchemaRegistryError(f"{url}/{path} answered {error.code} {error.reason}") from None
    except (urllib.error.URLError, OSError) as error:
        raise SchemaRegistryError(f"the schema registry {url} can't be asked: {error}") from None
    if len(body) > MOST_BYTES:
        raise SchemaRegistryError(f"{url}/{path} answered with more than {MOST_BYTES} bytes")
    try:
        return json.loads(body)
    except ValueError:
        raise SchemaRegistryError(f"{url}/{path} did not answer with JSON, but {body[:100]!r}") from None
