"""Keeps a broker registered in its cluster, and its view of the cluster's metadata up to date.

One task does both, in *rounds*. A round reads what watches have reported as changed: the brokers first, then the change
entries. So the view that a round publishes has every change that ZooKeeper had before the brokers' registrations in it.
A cluster in which nothing changes costs nothing.

When the session ends, the registration is gone. The task registers the broker again in the next session, with a higher
broker epoch, and reads everything. If a round fails, the next one begins where it stopped, after a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stratalog.broker.metadata.change_entries import Change, KnownMetadata
from stratalog.broker.metadata.cluster_view import NO_BROKER, ClusterView, PartitionId, RegisteredBroker
from stratalog.broker.metadata.metadata_reader import (
    NO_ENTRY,
    MetadataReader,
    MissedChangesError,
    has_broker_changes,
)
from stratalog.broker.metadata.partition_state import PartitionState
from stratalog.broker.metadata.registration import (
    NodeIdInUseError,
    Registered,
    Registration,
    check_cluster,
    claim_cluster,
    register,
)
from stratalog.broker.metadata.session import SessionEvent, ZooKeeperSession
from stratalog.broker.metadata.zookeeper_errors import SessionEndedError, ZooKeeperError
from stratalog.errors import StratalogError

logger = logging.getLogger(__name__)

NO_EPOCH = -1
Listener = Callable[[ClusterView, ClusterView], None]

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_MOST_SECONDS_TO_CATCH_UP = 10.0
_MOST_REGISTRATIONS = 5  # in one round


class ClusterFollower:
    """The state and the task. All methods run on the event loop."""

    def __init__(self, session: ZooKeeperSession, registration: Registration) -> None:
        self.session = session
        self.reader = MetadataReader(session)
        self.node_id = registration.node_id
        self.view = ClusterView("")
        self.entry_numbers: list[int] = []
        """The numbers of the change entries that ZooKeeper has kept, oldest first."""
        self._registration = registration
        self._registered: Registered | None = None
        self._is_view_current = False  # whether the view was read under this registration
        self._is_leaving = False
        self._brokers: dict[int, RegisteredBroker] = {}
        self._controller = NO_BROKER
        self._known = KnownMetadata()
        self._last_entry = NO_ENTRY
        self._listeners: list[Listener] = []
        self._wake = asyncio.Event()
        self._session_renewed = asyncio.Event()
        self._brokers_changed = self._controller_changed = self._entries_changed = self._must_read_everything = True
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    async def join(self, cluster_id: str | None, *, may_found: bool) -> None:
        """Register the broker and read everything; then follow the changes. With `may_found`, a ZooKeeper without a
        cluster gets a new one. Raises the errors of claim_cluster, register, and of the session."""
        claim = claim_cluster if may_found else check_cluster
        self.view = ClusterView(await claim(self.session, cluster_id))
        self.session.on_session(self._session_changed)
        await self._round()
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Stop following. The registration stays as long as the session."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of the registration; NO_EPOCH while the broker is not registered, or while its view is from
        the time before."""
        registered = self._registered
        return NO_EPOCH if registered is None or not self._is_view_current else registered.broker_epoch

    def is_registered(self) -> bool:
        """Return whether the broker is registered, in a session that can't have ended, and has a view from then."""
        registered = self._registered
        return (
            registered is not None
            and self._is_view_current
            and registered.session_id == self.session.session_id
            and self.session.is_leased()
        )

    def check_registered(self) -> None:
        """Raise SessionEndedError unless the broker is registered."""
        if self.broker_epoch == NO_EPOCH:
            raise SessionEndedError(
                f"broker {self.node_id} is not registered in ZooKeeper now; it registers again soon"
            )

    def on_change(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def known_state(self, id: PartitionId) -> PartitionState | None:
        """Return the newest state that this broker has read or written; the view has it after the next round."""
        return self._known.states.get(id)

    def keep_leaving(self) -> None:
        """Register as shutting down from now on."""
        self._is_leaving = True

    def take(self, change: Change) -> None:
        """Apply a change that this broker has written itself. The next round publishes it."""
        self._known.apply(change)
        self._wake.set()

    async def catch_up(self, *, brokers: bool = False) -> None:
        """Wait until the view has everything that ZooKeeper has now. `brokers`: read the brokers too, even if no watch
        has reported a change. Returns after a limited time even if ZooKeeper does not respond."""
        self._entries_changed = True
        self._brokers_changed |= brokers
        published: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(published)
        self._wake.set()
        try:
            async with asyncio.timeout(_MOST_SECONDS_TO_CATCH_UP):  # wait_for would swallow a cancellation
                await published
        except TimeoutError:
            logger.warning("the view of the cluster is not up to date after %.0f s", _MOST_SECONDS_TO_CATCH_UP)

    # Events

    def _session_changed(self, event: SessionEvent) -> None:
        """Handle the end of a session, and its successor. After a lost connection, the watches fire by themselves."""
        if event is SessionEvent.EXPIRED:
            self._lose_registration("its ZooKeeper session has expired")
        elif event is SessionEvent.RENEWED:
            self._session_renewed.set()
            self._wake.set()

    def _read_all_kinds(self) -> None:
        self._brokers_changed = self._controller_changed = self._entries_changed = True
        self._wake.set()

    def _brokers_may_have_changed(self) -> None:
        self._brokers_changed = True
        self._wake.set()

    def _controller_may_have_changed(self) -> None:
        self._controller_changed = True
        self._wake.set()

    def _entries_may_have_changed(self) -> None:
        self._entries_changed = True
        self._wake.set()

    def _lose_registration(self, reason: str) -> None:
        if self._registered is not None:
            logger.warning("broker %d is not registered any more: %s", self.node_id, reason)
        self._registered = None
        self._is_view_current = False
        self._must_read_everything = True

    # The task

    async def _follow(self) -> None:
        pause, reported = _FIRST_PAUSE_SECONDS, ""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._round()
                pause, reported = _FIRST_PAUSE_SECONDS, ""
                continue
            except ZooKeeperError as error:
                logger.info("the metadata can't be read now: %s", error)
            except StratalogError as error:  # another cluster, another broker with this node id
                pause = _LONGEST_PAUSE_SECONDS
                if str(error) != reported:  # once, however long it lasts
                    logger.error("broker %d can't register in its cluster again: %s", self.node_id, error)
                reported = str(error)
            except Exception:
                pause = _LONGEST_PAUSE_SECONDS
                logger.exception("unexpected error while the metadata was read; everything is read again")
                self._must_read_everything = True
            self._read_all_kinds()
            await self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _sleep(self, seconds: float) -> None:
        """Sleep until there is a new session, but not longer."""
        self._session_renewed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._session_renewed.wait()
        except TimeoutError:
            pass

    async def _round(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            for _ in range(_MOST_REGISTRATIONS):
                if await self._read_changes():
                    break
                self._lose_registration("its znode was deleted or replaced")
            else:
                raise NodeIdInUseError(
                    f"node.id {self.node_id}: the znode of each registration was deleted or replaced"
                )
            self._publish()
        except BaseException:
            self._waiting += waiting
            raise
        for published in waiting:
            if not published.done():
                published.set_result(None)

    async def _read_changes(self) -> bool:
        """Register if necessary, and read everything that has changed. Return False if the registration is gone."""
        registered = self._registered
        if registered is None or registered.session_id != self.session.session_id:
            self._lose_registration("it has a new ZooKeeper session")
            await check_cluster(self.session, self.view.cluster_id)
            registered = await register(self.session, self._registration, self._is_leaving)
            self._registration = self._registration._replace(lost_tail=False)  # ZooKeeper remembers it
            self._registered = registered
            self._read_all_kinds()
        if self._brokers_changed:
            self._brokers_changed = False
            self._brokers = await self.reader.brokers(self._brokers_may_have_changed)
            own = self._brokers.get(self.node_id)
            if own is None or own.epoch != registered.broker_epoch:
                return False
        await self._read_entries()
        if self._controller_changed:
            self._controller_changed = False
            self._controller = await self.reader.controller(self._controller_may_have_changed)
        return True

    async def _read_entries(self) -> None:
        while self._entries_changed or self._must_read_everything:
            self._entries_changed = False
            if self._must_read_everything:
                known, numbers = await self.reader.everything(self._known, self._entries_may_have_changed)
                self._known, self.entry_numbers = known, numbers
                self._last_entry = numbers[-1] if numbers else NO_ENTRY
                self._must_read_everything = False
            try:
                changes, numbers = await self.reader.new_entries(self._last_entry, self._entries_may_have_changed)
                changes += await self.reader.states_of(changes)
            except MissedChangesError as error:
                logger.info("everything is read again: %s", error)
                self._must_read_everything = True
                continue
            for change in changes:
                self._known.apply(change)
            self.entry_numbers = numbers
            self._last_entry = numbers[-1] if numbers else self._last_entry
            if has_broker_changes(changes):
                self._brokers_changed = True
                self._wake.set()  # the next round reads them, before the change entries

    def _publish(self) -> None:
        known, old = self._known, self.view
        view = ClusterView(
            old.cluster_id,
            self._brokers,
            dict(known.topics),
            dict(known.states),
            self._controller,
            {node_id: change.settings for node_id, change in known.settings.items()},
            frozenset(known.unreadable_topics),
        )
        self._is_view_current = True
        if view == old:
            return
        self.view = view
        for listener in self._listeners:
            try:
                listener(old, view)
            except Exception:
                logger.exception("unexpected error while a change of the metadata was applied")
