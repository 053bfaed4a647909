"""Consumer groups and their committed offsets: who belongs to a group, who reads what, and how far each has read.

`group.py` is what every kind of group promises, `classic_group.py` and `consumer_group.py` are the two kinds,
`coordinator.py` owns them all with their timers, `offsets_topic.py` keeps their records in `__consumer_offsets`.
"""
