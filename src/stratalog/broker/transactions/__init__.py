"""Transactions: who writes under which transactional id, and whether what was written counts.

`state.py` knows what may follow what, `records.py` how it is written, `transactions_topic.py` where, `loading.py` when
it is known. `coordinator.py` owns every transaction, with the timers; `admission.py` keeps batches out that belong to
none, and `markers.py` writes the ends of transactions into the logs of their partitions.
"""
