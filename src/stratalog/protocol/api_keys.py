"""Every API that the broker serves: its key, its versions, and the first flexible version (KIP-482).

The response to ApiVersions has this table. It contains only versions that are served completely.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class OwnApiKey(IntEnum):
    """APIs that Kafka does not have. They are advertised like the others, since clients ignore keys they don't know."""

    STRATALOG = 20_000


class Versions(NamedTuple):
    lowest: int
    highest: int
    first_flexible: int


_NEVER = 2**15

VERSIONS: dict[ApiKey, Versions] = {
    # librdkafka before 2.11.1 does not compress unless Produce 0-2 are advertised. They get an error as response.
    ApiKey.PRODUCE: Versions(0, 13, 9),
    ApiKey.FETCH: Versions(4, 18, 12),
    ApiKey.LIST_OFFSETS: Versions(1, 11, 6),
    ApiKey.METADATA: Versions(0, 13, 9),
    ApiKey.OFFSET_COMMIT: Versions(2, 10, 8),
    ApiKey.OFFSET_FETCH: Versions(1, 10, 6),
    ApiKey.FIND_COORDINATOR: Versions(0, 6, 3),
    ApiKey.JOIN_GROUP: Versions(0, 9, 6),
    ApiKey.HEARTBEAT: Versions(0, 4, 4),
    ApiKey.LEAVE_GROUP: Versions(0, 5, 4),
    ApiKey.SYNC_GROUP: Versions(0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: Versions(0, 6, 5),
    ApiKey.LIST_GROUPS: Versions(0, 5, 3),
    ApiKey.API_VERSIONS: Versions(0, 4, 3),
    ApiKey.CREATE_TOPICS: Versions(2, 7, 5),
    ApiKey.DELETE_TOPICS: Versions(1, 6, 4),
    ApiKey.DELETE_RECORDS: Versions(0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: Versions(0, 5, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Versions(2, 4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: Versions(0, 5, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: Versions(0, 4, 3),
    ApiKey.END_TXN: Versions(0, 5, 3),
    ApiKey.WRITE_TXN_MARKERS: Versions(1, 1, 1),
    ApiKey.TXN_OFFSET_COMMIT: Versions(0, 5, 3),
    ApiKey.DESCRIBE_ACLS: Versions(1, 3, 2),
    ApiKey.CREATE_ACLS: Versions(1, 3, 2),
    ApiKey.DELETE_ACLS: Versions(1, 3, 2),
    ApiKey.DESCRIBE_CONFIGS: Versions(1, 4, 4),
    ApiKey.ALTER_CONFIGS: Versions(0, 2, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Versions(1, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: Versions(1, 4, 2),
    ApiKey.CREATE_PARTITIONS: Versions(0, 3, 2),
    ApiKey.DELETE_GROUPS: Versions(0, 2, 2),
    ApiKey.ELECT_LEADERS: Versions(0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Versions(0, 1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Versions(0, 1, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Versions(0, 0, 0),
    ApiKey.OFFSET_DELETE: Versions(0, 0, _NEVER),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Versions(0, 1, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: Versions(0, 1, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Versions(0, 0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Versions(0, 0, 0),
    ApiKey.DESCRIBE_QUORUM: Versions(0, 2, 0),
    ApiKey.UPDATE_FEATURES: Versions(0, 2, 0),
    ApiKey.DESCRIBE_CLUSTER: Versions(0, 2, 0),
    ApiKey.DESCRIBE_PRODUCERS: Versions(0, 0, 0),
    ApiKey.UNREGISTER_BROKER: Versions(0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: Versions(0, 0, 0),
    ApiKey.LIST_TRANSACTIONS: Versions(0, 2, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Versions(0, 1, 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Versions(0, 1, 0),
    ApiKey.LIST_CONFIG_RESOURCES: Versions(0, 1, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Versions(0, 0, 0),
}

OWN_VERSIONS: dict[OwnApiKey, Versions] = {OwnApiKey.STRATALOG: Versions(0, 0, _NEVER)}
