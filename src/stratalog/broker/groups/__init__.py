"""Consumer groups and their committed offsets: the members of a group, and the partitions that each of them reads.

- `group.py`: what every kind of group promises. `classic_group.py` and `consumer_group.py`: the two kinds.
- `group_migration.py`: turns a running group of one kind into the other.
- `offsets.py`, `pending_offsets.py`: committed offsets, and those of open transactions.
- `coordinator.py`: owns all groups and offsets. `consumer_coordinator.py`: runs KIP-848 groups.
- `offsets_topic.py`: keeps their records in `__consumer_offsets`.
"""
