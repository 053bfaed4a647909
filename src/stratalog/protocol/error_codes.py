"""Kafka's error codes, by kio's names."""

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode"]
