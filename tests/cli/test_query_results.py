"""The formats of a query's result, and the options that each needs."""

from __future__ import annotations

import pytest

from stratalog.cli.program import CommandError
from stratalog.cli.query_results import FORMATS, PRINTED_FORMATS, check_format


def test_prompt_offers_printed_formats_only() -> None:
    for name in ("xml", "parquet"):
        with pytest.raises(CommandError, match=r"it must be one of: table, json, csv$"):
            check_format(name, None, PRINTED_FORMATS)
    with pytest.raises(CommandError, match="needs --output"):
        check_format("parquet", None)
    assert set(FORMATS) - set(PRINTED_FORMATS) == {"parquet"}
