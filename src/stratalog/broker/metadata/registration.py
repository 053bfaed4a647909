"""The registration of a broker in its cluster.

Two znodes make it: an ephemeral one, which ends with the broker's session, and a permanent one, whose version is the
*fence*: it changes with every registration. The permanent znode keeps `lost_tail` until the controller has dealt with
it, however often the broker registers in between.

A broker that crashed finds its own ephemeral znode of before, which stays until ZooKeeper has ended the old session.
Another broker with the same node id looks the same, so a broker waits for as long as a dead session can last.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from typing import NamedTuple

from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.change_entries import BrokersChanged, format_entry
from stratalog.broker.metadata.session import ZooKeeperSession
from stratalog.broker.metadata.znodes import BrokerCondition, BrokerEndpoint, UnreadableZnodeError
from stratalog.broker.metadata.zookeeper_errors import ConflictError, OutcomeUnknownError
from stratalog.broker.metadata.zookeeper_requests import Create, Delete, Operation, SetData, Znode
from stratalog.errors import StorageError, StratalogError

logger = logging.getLogger(__name__)

_MARGIN_SECONDS = 2.0  # ZooKeeper ends sessions at ticks, later than their timeout
_MOST_ATTEMPTS = 20


class WrongClusterError(StorageError):
    """A data directory that belongs to another cluster than the one in ZooKeeper."""


class NodeIdInUseError(StratalogError):
    """A node id that another broker with a live session has."""

    code = 101  # DUPLICATE_BROKER_REGISTRATION


class Registration(NamedTuple):
    """Describes a broker to its cluster. `lost_tail`: the ends of its logs may be lost in a power cut."""

    node_id: int
    host: str
    port: int
    rack: str | None
    lost_tail: bool


class Registered(NamedTuple):
    """A registration that ZooKeeper has."""

    session_id: int
    broker_epoch: int


async def claim_cluster(session: ZooKeeperSession, cluster_id: str | None) -> str:
    """Return the id of the cluster in ZooKeeper. A new cluster takes over `cluster_id`, the one of the data directory,
    or a new id. Raises WrongClusterError, or UnreadableZnodeError for a newer format version."""
    if await session.get(znodes.CLUSTER_ID) is None:
        await asyncio.gather(*(session.ensure(path) for path in znodes.PARENTS))
        await _create_if_missing(session, znodes.CONTROLLER_EPOCH, znodes.format_controller_epoch(0))
        await _create_if_missing(session, znodes.PRODUCER_IDS, znodes.format_producer_ids(0))
        proposed = cluster_id or base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        await _create_if_missing(session, znodes.CLUSTER_ID, znodes.format_cluster_id(proposed))
    return await check_cluster(session, cluster_id)


async def check_cluster(session: ZooKeeperSession, cluster_id: str | None) -> str:
    """Return the id of the cluster in ZooKeeper. Raises WrongClusterError if there is no cluster, or another one:
    without this check, brokers would take an emptied ZooKeeper for the deletion of all topics."""
    znode = await session.get(znodes.CLUSTER_ID)
    if znode is None:
        raise WrongClusterError(
            f"ZooKeeper has no znode {znodes.CLUSTER_ID} any more, and the broker belongs to cluster {cluster_id}; "
            "restore ZooKeeper's data"
        )
    existing = znodes.parse_cluster_id(znode.data)
    if cluster_id not in (None, existing):
        raise WrongClusterError(
            f"the broker's data belongs to cluster {cluster_id}, and ZooKeeper has cluster {existing}; set "
            "zookeeper.connect to the broker's own cluster, or start with an empty data directory"
        )
    return existing


async def _create_if_missing(session: ZooKeeperSession, path: str, data: bytes) -> None:
    try:
        await session.commit([Create(path, data)])
    except ConflictError:
        pass


async def register(session: ZooKeeperSession, registration: Registration, is_leaving: bool) -> Registered:
    """Register the broker in the current session, or return the registration that it has in this session.
    `is_leaving`: the broker is shutting down. Raises NodeIdInUseError, and the errors of the session."""
    path = znodes.broker_id_path(registration.node_id)
    for _ in range(_MOST_ATTEMPTS):
        session_id = session.session_id
        endpoint = BrokerEndpoint(registration.host, registration.port, registration.rack, session.timeout_ms)
        data = znodes.format_endpoint(endpoint)
        present = await session.get(path)
        if present is not None and present.owner != session_id:
            await _wait_until_deleted(session, path, present, registration)
            continue
        if present is not None and present.data == data and await _has_condition(session, registration.node_id):
            logger.info("broker %d is registered with broker epoch %d", registration.node_id, present.created)
            return Registered(session_id, present.created)
        operations: list[Operation] = [] if present is None else [Delete(path, present.version)]
        operations += [
            await _condition_write(session, registration, is_leaving),
            Create(path, data, ephemeral=True),
            Create(znodes.CHANGE_PREFIX, format_entry([BrokersChanged()]), sequential=True),
        ]
        try:
            await session.commit(operations)
        except (ConflictError, OutcomeUnknownError) as error:  # the next attempt reads what happened
            logger.info("broker %d: registration is repeated: %s", registration.node_id, error)
    raise NodeIdInUseError(
        f"node.id {registration.node_id}: {_MOST_ATTEMPTS} attempts to register failed, because other brokers register "
        "with the same node id; give each broker its own node.id"
    )


async def _has_condition(session: ZooKeeperSession, node_id: int) -> bool:
    """Return whether the permanent znode can be read. If not, other brokers ignore this broker until it registers
    again."""
    path = znodes.registration_path(node_id)
    znode = await session.get(path)
    try:
        return znode is not None and bool(znodes.parse_condition(path, znode.data))
    except UnreadableZnodeError:
        return False


async def _condition_write(session: ZooKeeperSession, registration: Registration, is_leaving: bool) -> Operation:
    """Return the operation that writes the permanent znode. A loss that was reported before and that the controller has
    not dealt with is reported again; an unreadable znode may have reported one."""
    path = znodes.registration_path(registration.node_id)
    before = await session.get(path)
    lost_tail = registration.lost_tail
    if before is not None:
        try:
            lost_tail |= znodes.parse_condition(path, before.data).lost_tail
        except UnreadableZnodeError as error:
            logger.error("%s; the broker registers as if the ends of its logs were lost", error)
            lost_tail = True
    data = znodes.format_condition(BrokerCondition(lost_tail, is_leaving))
    return Create(path, data) if before is None else SetData(path, data, before.version)


async def _wait_until_deleted(session: ZooKeeperSession, path: str, present: Znode, registration: Registration) -> None:
    """Wait until another session's registration has gone. Raises NodeIdInUseError if it stays."""
    timeout_ms = session.timeout_ms
    try:
        timeout_ms = max(timeout_ms, znodes.parse_endpoint(path, present.data).session_timeout_ms)
    except UnreadableZnodeError:
        pass
    logger.info(
        "node.id %d is registered in session 0x%x: waiting until that session ends", registration.node_id, present.owner
    )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000 + _MARGIN_SECONDS
    changed = asyncio.Event()
    while True:
        now = await session.watch(path, changed.set)
        if now is None or now.created != present.created:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await changed.wait()
            changed.clear()
        except TimeoutError:
            raise NodeIdInUseError(
                f"node.id {registration.node_id} is in use: another broker is registered with it in ZooKeeper session "
                f"0x{present.owner:x}; stop that broker, or give this one another node.id"
            ) from None
