"""A transaction that its producer has left open, for another process to commit or abort.

`Producer.prepare_transaction` returns one, once every record is acknowledged. It can be pickled. Any process that has
it can end the transaction with `Admin.finish_transactions`, even after the producer's process has stopped.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class PreparedTransaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
