"""The controller: the broker that decides for partitions when no broker asks for it.

Every broker contends for the znode /controller. The winner raises the controller epoch, and each of its transactions
checks that this is still its epoch: a controller that was paused, and whose successor decides already, can't write.

The controller follows its view. After each change of it, one pass looks at the partitions that may be affected, and
writes the states that follow (`partition_decisions.py`). A pass waits only for ZooKeeper. The controller also admits
brokers that lost their tails, once no ISR has them because of their old logs; trims the change entries; and restores
preferred leaders.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from stratalog.broker.controller.partition_decisions import (
    has_unhandled_loss,
    imbalanced_partitions,
    next_state,
    preferred_state,
)
from stratalog.broker.metadata import znodes
from stratalog.broker.metadata.change_entries import BrokersChanged, format_entry
from stratalog.broker.metadata.cluster_metadata import ClusterMetadata
from stratalog.broker.metadata.cluster_view import NO_BROKER, ClusterView, PartitionId, RegisteredBroker
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.session import ZooKeeperSession
from stratalog.broker.metadata.transaction_sizes import Sized, chunks, operation_size
from stratalog.broker.metadata.znodes import BrokerCondition, ControllerClaim, UnreadableZnodeError
from stratalog.broker.metadata.zookeeper_errors import ConflictError, ZooKeeperError
from stratalog.broker.metadata.zookeeper_requests import Check, Create, Delete, SetData
from stratalog.errors import StratalogError

logger = logging.getLogger(__name__)

_MOST_ENTRIES = 1000
_KEPT_ENTRIES = 500
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_NO_CONTROLLER_SECONDS = 0.5


class Reign(NamedTuple):
    """The time in which this broker is the controller. `check`: fails in a transaction once another one has begun."""

    epoch: int
    session_id: int
    check: Check


class Controller:
    """Contends for the controller's znode, and acts while it holds it. All methods run on the event loop."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        session: ZooKeeperSession,
        *,
        unclean: Callable[[str], bool],
    ) -> None:
        """`unclean`: whether a topic allows a leader that lacks committed records, by its name."""
        self._metadata = metadata
        self._session = session
        self._unclean = unclean
        self._reign: Reign | None = None
        self._is_new = False
        self._wake = asyncio.Event()
        self._pending: set[PartitionId] = set()
        self._all_pending = True
        self._task: asyncio.Task[None] | None = None

    @property
    def is_controller(self) -> bool:
        """Return whether this broker was the controller when it last wrote or contended."""
        return self._reign is not None

    def start(self) -> None:
        self._metadata.on_change(self._view_changed)
        self._wake.set()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop, and give the controller's znode back."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        reign, self._reign = self._reign, None
        if reign is not None:
            try:
                await self._session.commit([reign.check, Delete(znodes.CONTROLLER)])
            except ZooKeeperError as error:
                logger.info("the controller's znode goes with the session: %s", error)

    def look_at_all(self) -> None:
        """Look at all partitions again, after a change that the view does not show, such as one of settings."""
        self._all_pending = True
        self._wake.set()

    async def restore_preferred(self, imbalance_percentage: int) -> None:
        """Elect the preferred leaders of the brokers that lack more than this percentage of the leaderships that they
        should have, if this broker is the controller."""
        if self._reign is not None:
            imbalanced = imbalanced_partitions(self._metadata.view, imbalance_percentage)
            if imbalanced:
                logger.info("the controller elects the preferred leaders of %d partitions", len(imbalanced))
            await self._metadata.change_states(
                imbalanced, lambda _, state: preferred_state(state, self._metadata.view), [self._reign.check]
            )

    # The task

    def _view_changed(self, old: ClusterView, new: ClusterView) -> None:
        own = self._metadata.node_id
        if old.controller == own and new.controller != own:
            self._reign = None  # its znode is gone
        if self._reign is None or (old.brokers, old.broker_settings) != (new.brokers, new.broker_settings):
            self._all_pending = True
        elif not self._all_pending:
            self._pending |= {id for id, state in new.states.items() if old.states.get(id) is not state}
            for name, topic in new.topics.items():
                if old.topics.get(name) is not topic:
                    self._pending |= {PartitionId(topic.id, number) for number in range(topic.partition_count)}
        self._wake.set()

    async def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if await self._reigns():
                    await self._act()
                pause = _FIRST_PAUSE_SECONDS
                if self._metadata.view.controller == NO_BROKER:
                    # The znode is being created, or holds rubbish: its deletion would not change the view.
                    asyncio.get_running_loop().call_later(_NO_CONTROLLER_SECONDS, self._wake.set)
                continue
            except ConflictError as error:
                logger.info("broker %d is not the controller any more: %s", self._metadata.node_id, error)
                self._reign = None
            except (ZooKeeperError, UnreadableZnodeError) as error:
                logger.info("the controller can't act now: %s", error)
            except Exception:
                logger.exception("unexpected error in the controller; it looks at all partitions again")
            self._all_pending = True
            self._wake.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _reigns(self) -> bool:
        """Return whether this broker is the controller. Contend if no broker is."""
        if self._reign is not None and self._reign.session_id != self._session.session_id:
            self._reign = None
        controller = self._metadata.view.controller
        if self._reign is not None and controller == NO_BROKER and await self._session.get(znodes.CONTROLLER) is None:
            self._reign = None  # somebody has deleted the znode
        if self._reign is not None:
            return True
        if not self._metadata.can_lead() or controller not in (NO_BROKER, self._metadata.node_id):
            return False
        await self._contend()
        return self._reign is not None

    async def _contend(self) -> None:
        session, node_id = self._session, self._metadata.node_id
        present = await session.get(znodes.CONTROLLER)
        counted = await session.get(znodes.CONTROLLER_EPOCH)
        if counted is None:
            raise UnreadableZnodeError(f"znode {znodes.CONTROLLER_EPOCH} is missing; restore ZooKeeper's data")
        if present is not None:
            if present.owner == session.session_id:  # an attempt whose response was lost
                epoch = _epoch_after(counted.data, counted.version) - 1
                self._begin(Reign(epoch, session.session_id, Check(znodes.CONTROLLER_EPOCH, counted.version)))
            return
        epoch = _epoch_after(counted.data, counted.version)
        claim = znodes.format_claim(ControllerClaim(node_id, epoch))
        session_id = session.session_id
        try:
            await session.commit(
                [
                    SetData(znodes.CONTROLLER_EPOCH, znodes.format_controller_epoch(epoch), counted.version),
                    Check(znodes.broker_id_path(node_id), -1),
                    Create(znodes.CONTROLLER, claim, ephemeral=True),
                ]
            )
        except ConflictError:
            return  # another broker was faster: its znode's watch says so
        self._begin(Reign(epoch, session_id, Check(znodes.CONTROLLER_EPOCH, counted.version + 1)))

    def _begin(self, reign: Reign) -> None:
        logger.info("broker %d is the controller, in controller epoch %d", self._metadata.node_id, reign.epoch)
        self._reign = reign
        self._all_pending = True
        self._is_new = True

    async def _act(self) -> None:
        """Look at the partitions that may be affected by what has changed, then do the rest of the work."""
        reign = self._reign
        assert reign is not None
        metadata = self._metadata
        if self._is_new:
            await metadata.catch_up()
        view = metadata.view
        lossy = [broker for broker in view.brokers.values() if broker.lost_tail]
        ids = set(view.states) if self._all_pending else self._pending & view.states.keys()
        self._all_pending, self._pending = False, set()
        if ids:
            await self._look_at(ids, reign)
        if lossy:
            await self._admit(lossy, reign)
        await self._trim(reign)
        if self._is_new:
            await metadata.remove_abandoned()
            self._is_new = False

    async def _look_at(self, ids: Collection[PartitionId], reign: Reign) -> None:
        topics = {topic.id: topic for topic in self._metadata.view.topics.values()}

        def decide(id: PartitionId, state: PartitionState) -> PartitionState:
            topic = topics.get(id.topic_id)
            return next_state(
                state,
                self._metadata.view,
                min_insync=None if topic is None else topic.min_insync,
                unclean=topic is not None and self._unclean(topic.name),
            )

        before = {id: self._metadata.view.states.get(id) for id in ids}
        outcomes = await self._metadata.change_states(ids, decide, [reign.check])
        changed = 0
        for id, outcome in outcomes.items():
            if isinstance(outcome, StratalogError):
                logger.warning("partition %d of topic id %s: %s", id.partition, id.topic_id, outcome)
                self._pending.add(id)
                self._wake.set()
            elif outcome != before[id]:
                changed += 1
        if changed:
            logger.info("the controller has changed the states of %d partitions", changed)

    async def _admit(self, brokers: Collection[RegisteredBroker], reign: Reign) -> None:
        """Admit brokers that lost their tails, if no ISR has them because of their old logs."""
        await self._metadata.catch_up()
        view = self._metadata.view
        for broker in brokers:
            if view.brokers.get(broker.node_id) != broker:
                continue  # it has registered again: the next pass looks at it
            if any(has_unhandled_loss(state, broker) for state in view.states.values()):
                self.look_at_all()
                continue
            condition = BrokerCondition(lost_tail=False, is_leaving=broker.is_leaving)
            path = znodes.registration_path(broker.node_id)
            try:
                await self._session.commit(
                    [
                        reign.check,
                        SetData(path, znodes.format_condition(condition), broker.fence),
                        Create(znodes.CHANGE_PREFIX, format_entry([BrokersChanged()]), sequential=True),
                    ]
                )
            except ConflictError as error:
                if error.index == 0:
                    raise
                continue
            logger.info("broker %d has lost the ends of its logs; it may join ISRs again", broker.node_id)

    async def _trim(self, reign: Reign) -> None:
        """Delete old change entries, when there are many. A broker that has not read them reads everything."""
        numbers = self._metadata.entry_numbers
        if len(numbers) <= _MOST_ENTRIES:
            return
        paths = map(znodes.change_path, numbers[:-_KEPT_ENTRIES])
        for part in chunks(Sized(path, operation_size(path)) for path in paths):
            try:
                await self._session.commit([reign.check, *map(Delete, part)])
            except ConflictError as error:
                if error.index == 0:
                    raise
                await self._metadata.catch_up()  # they are gone already
                return


def _epoch_after(data: bytes, version: int) -> int:
    """Return the next controller epoch. If the znode can't be read, its version tells how often it was raised."""
    try:
        return znodes.parse_controller_epoch(data) + 1
    except UnreadableZnodeError as error:
        logger.error("%s; controller epochs continue from the znode's version %d", error, version)
        return version + 1
