"""A transaction that its producer has left open, for another process to commit or abort.

`Producer.prepare_transaction` makes one, once every record is acknowledged. It can be pickled; whoever has it ends the
transaction with `Admin.finish_transactions`, also when the producer and its process are gone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class PreparedTransaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
