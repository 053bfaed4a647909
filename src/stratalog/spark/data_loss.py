"""Reports records that were deleted before they were read: as an error, or with failOnDataLoss=false as a warning."""

from __future__ import annotations

import logging

from stratalog.errors import StratalogError

logger = logging.getLogger("stratalog.spark")


class DataLossError(StratalogError):
    """Records of a read no longer exist: retention or a user deleted them, or the topic."""


def report_data_loss(what: str, fail: bool) -> None:
    if fail:
        raise DataLossError(f"{what}. Set failOnDataLoss=false to continue without them")
    logger.warning("%s; continuing without them, because failOnDataLoss is false", what)
