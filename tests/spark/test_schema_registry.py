from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stratalog.errors import ConfigError
from stratalog.spark import schema_registry
from stratalog.spark.schema_registry import SchemaRegistryError, schemas_of_ids, schemas_of_subject

TEXT, LONG = '"string"', '"long"'
ANSWERS: dict[str, object] = {
    "/schemas/ids/7": {"schema": TEXT},
    "/schemas/ids/300": {"schema": LONG, "schemaType": "AVRO"},
    "/schemas/ids/8": {"schema": "syntax = ...", "schemaType": "PROTOBUF"},
    "/schemas/ids/9": {"schema": TEXT, "references": [{"name": "other"}]},
    "/schemas/ids/10": ["not", "a", "schema"],
    "/subjects/tea%2Fcups-value/versions": [1, 2],
    "/subjects/tea%2Fcups-value/versions/1": {"id": 300, "schema": LONG},
    "/subjects/tea%2Fcups-value/versions/2": {"id": 7, "schema": TEXT},
    "/subjects/odd/versions": {"versions": 2},
    "/subjects/many/versions": list(range(1, schema_registry.MOST_SCHEMAS + 2)),
}


class _Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = ANSWERS.get(self.path)
        body = b"<html>" if self.path == "/schemas/ids/11" else json.dumps(answer).encode()
        if self.path == "/schemas/ids/12":
            body = b" " * (schema_registry.MOST_BYTES + 1)
        self.send_response(404 if answer is None and self.path not in ("/schemas/ids/11", "/schemas/ids/12") else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Registry) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_schemas_are_fetched_by_their_ids(registry: str) -> None:
    assert schemas_of_ids(registry, [300, 7]) == {7: TEXT, 300: LONG}
    assert schemas_of_ids(registry + "/", [7]) == {7: TEXT}


def test_newest_version_of_a_subject_is_last(registry: str) -> None:
    assert list(schemas_of_subject(registry, "tea/cups-value").items()) == [(300, LONG), (7, TEXT)]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (8, "PROTOBUF"),
        (9, "refers to other"),
        (10, "instead of a schema"),
        (11, "JSON"),
        (12, "more than"),
        (13, "404"),
    ],
)
def test_unusable_schemas_are_refused(registry: str, number: int, message: str) -> None:
    with pytest.raises(SchemaRegistryError, match=message):
        schemas_of_ids(registry, [number])


@pytest.mark.parametrize(("subject", "message"), [("odd", "list of versions"), ("many", "101 versions"), ("no", "404")])
def test_unusable_subjects_are_refused(registry: str, subject: str, message: str) -> None:
    with pytest.raises(SchemaRegistryError, match=message):
        schemas_of_subject(registry, subject)


def test_only_http_urls_are_accepted() -> None:
    for url in ("file:///etc/passwd", "localhost:8081", "ftp://localhost", "http://"):
        with pytest.raises(ConfigError, match="http://localhost:8081"):
            schemas_of_ids(url, [1])


def test_unreachable_registry_is_an_error_with_its_url() -> None:
    with pytest.raises(SchemaRegistryError, match=r"http://127\.0\.0\.1:1 is not reachable"):
        schemas_of_ids("http://127.0.0.1:1", [1])
