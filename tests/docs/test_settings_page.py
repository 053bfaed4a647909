"""docs/settings.md is made from the settings themselves: `python -m stratalog.broker.settings_page` prints it."""

from __future__ import annotations

from pathlib import Path

from stratalog.broker.settings_page import settings_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_settings_page_is_up_to_date() -> None:
    assert PAGE.read_text() == settings_page(), (
        "run: .venv/bin/python -m stratalog.broker.settings_page > docs/settings.md"
    )
