"""What is done about records that were to be read and are gone: an error, or with failOnDataLoss=false a warning."""

from __future__ import annotations

import logging

from stratalog.errors import StratalogError

logger = logging.getLogger("stratalog.spark")


class DataLossError(StratalogError):
    """Records that a read was to give can't be had any more: retention, or who deleted the topic, was faster."""


def report_data_loss(what: str, fail: bool) -> None:
    if fail:
        raise DataLossError(f"{what}. To go on without them, set failOnDataLoss=false")
    logger.warning("%s; failOnDataLoss=false: going on without them", what)
