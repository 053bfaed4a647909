"""Formats of a query's result: which there are, and what each needs."""

from __future__ import annotations

import pytest

from stratalog.cli.program import CommandError
from stratalog.cli.query_results import FORMATS, PRINTED_FORMATS, check_format


def test_a_prompt_that_only_prints_does_not_offer_files() -> None:
    for given in ("xml", "parquet"):
        with pytest.raises(CommandError, match=r"it must be one of: table, json, csv$"):
            check_format(given, None, PRINTED_FORMATS)
    with pytest.raises(CommandError, match="needs --output"):
        check_format("parquet", None)
    assert set(FORMATS) - set(PRINTED_FORMATS) == {"parquet"}
