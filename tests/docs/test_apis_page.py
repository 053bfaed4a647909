"""docs/apis.md is made from what is served: `python -m stratalog.broker.apis_page` prints it."""

from __future__ import annotations

from pathlib import Path

from stratalog.broker.apis_page import apis_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "apis.md"


def test_apis_page_is_up_to_date() -> None:
    assert PAGE.read_text() == apis_page(), "run: .venv/bin/python -m stratalog.broker.apis_page > docs/apis.md"
