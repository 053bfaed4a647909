"""Transactions: the owner of each transactional id, and whether the records that it wrote are committed.

- `state.py`: the states of a transaction and the transitions between them. Pure.
- `records.py`, `transactions_topic.py`: the state in `__transaction_state`. `loading.py`: reading it at the start.
- `coordinator.py`: owns every transaction, and the timers.
- `admission.py`: refuses batches that belong to no open transaction.
- `markers.py`: writes the ends of transactions to the logs of their partitions.
- `two_phase.py`: prepared transactions, any number of which end by one append.
- `orphans.py`: transactions that a power cut left open in partitions only.
"""
