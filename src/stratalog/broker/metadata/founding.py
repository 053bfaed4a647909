"""Founds a cluster with the data directory of a single broker: its topics become topics of the cluster.

Each topic keeps its id, its settings and its records; this broker has the only replica of each partition. A crash in
between does no harm: the next start registers what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from stratalog.broker.metadata.cluster_metadata import ClusterMetadata, PlannedTopic
from stratalog.broker.metadata.store import MetadataStore
from stratalog.errors import StratalogError, TopicExistsError
from stratalog.storage.config import LogConfig

logger = logging.getLogger(__name__)


async def register_own_topics(
    metadata: ClusterMetadata,
    store: MetadataStore,
    topic_config: Callable[[Mapping[str, str]], LogConfig],
    in_thread: Callable[[Callable[[], object]], Awaitable[object]],
) -> None:
    """Register the topics in the metadata file of the data directory, and then remove them from the file: from here on,
    only ZooKeeper decides which topics exist. Raises StratalogError if a topic can't be registered."""
    own = [topic for topic in store.metadata.topics.values() if not topic.deleting]
    if not own:
        return
    if store.metadata.next_producer_id:
        await metadata.producer_ids(store.metadata.next_producer_id)  # none is given twice
    new = [
        PlannedTopic(
            topic.name,
            topic.id,
            topic.settings,
            [[metadata.node_id]] * topic.partition_count,
            topic_config(topic.settings).min_insync_replicas,
        )
        for topic in own
    ]
    for topic, error in zip(own, await metadata.create_topics(new), strict=True):
        known = metadata.view.topics.get(topic.name)
        if isinstance(error, TopicExistsError) and known is not None and known.id == topic.id:
            continue  # an earlier start has registered it
        if error is not None:
            raise StratalogError(
                f"topic {topic.name} of the data directory can't become a topic of the cluster: {error}; delete or "
                "rename one of the two, or start the broker with an empty data directory"
            ) from error
    await in_thread(lambda: store.change(topics={}, next_producer_id=0))
    logger.info("%d topics of the data directory belong to the cluster now", len(own))
