"""Fetches schemas from a schema registry (Confluent's, Apicurio's, Karapace's: the same HTTP API), if one is named.

Time, size of a response and number of schemas are limited.
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
    """The registry is not reachable, does not have the schema, or its response is not valid."""


def schemas_of_ids(url: str, ids: Iterable[int]) -> dict[int, str]:
    """Return the Avro schemas with these ids."""
    return {number: _avro(url, f"schemas/ids/{number}")["schema"] for number in sorted(ids)}


def schemas_of_subject(url: str, subject: str) -> dict[int, str]:
    """Return all versions of a subject, by id. The last one in the dictionary is the newest version."""
    path = f"subjects/{urllib.parse.quote(subject, safe='')}/versions"
    versions = _get(url, path)
    if not isinstance(versions, list) or not all(isinstance(version, int) for version in versions):
        raise SchemaRegistryError(f"{url}/{path} returned {str(versions)[:100]!r} instead of a list of versions")
    if len(versions) > MOST_SCHEMAS:
        raise SchemaRegistryError(
            f"subject {subject!r} has {len(versions)} versions, more than {MOST_SCHEMAS}; set schemas instead"
        )
    fetched = [_avro(url, f"{path}/{version}") for version in sorted(versions)]
    return {int(version["id"]): version["schema"] for version in fetched}


def check_url(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"registry is {url!r}; it must be like http://localhost:8081")
    return url.rstrip("/")


def _avro(url: str, path: str) -> dict[str, Any]:
    response = _get(url, path)
    if not isinstance(response, dict) or not isinstance(response.get("schema"), str):
        raise SchemaRegistryError(f"{url}/{path} returned {str(response)[:100]!r} instead of a schema")
    kind = response.get("schemaType", AVRO)
    if kind != AVRO:
        raise SchemaRegistryError(f"{url}/{path} is a schema of type {kind}; only Avro schemas are supported")
    if response.get("references"):
        raise SchemaRegistryError(f"{url}/{path} refers to other schemas, which is not supported; set schemas instead")
    return response


def _get(url: str, path: str) -> Any:
    request = urllib.request.Request(
        f"{check_url(url)}/{path}", headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            body = response.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise SchemaRegistryError(f"{url}/{path} returned {error.code} {error.reason}") from None
    except (urllib.error.URLError, OSError) as error:
        raise SchemaRegistryError(f"the schema registry {url} is not reachable: {error}") from None
    if len(body) > MOST_BYTES:
        raise SchemaRegistryError(f"{url}/{path} returned more than {MOST_BYTES} bytes")
    try:
        return json.loads(body)
    except ValueError:
        raise SchemaRegistryError(f"{url}/{path} returned {body[:100]!r} instead of JSON") from None
