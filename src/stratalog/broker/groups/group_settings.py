"""Settings of single groups (`ConfigResource` GROUP): `consumer.session.timeout.ms`, `consumer.heartbeat.interval.ms`.

The broker's `group.consumer.*` are the defaults. The broker's `group.consumer.min.*` and `group.consumer.max.*` limit
the values of groups. If those limits change later, a value beyond a limit counts as the limit. A group need not exist
to have settings: they apply when it is created, and stay when it is deleted.

Any thread may read them; the background thread changes them. A change is durable before it applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from stratalog.broker.groups.config import GroupConfig
from stratalog.broker.metadata.store import MetadataStore
from stratalog.errors import ConfigError
from stratalog.settings import INT_MAX, Settings, integer, nullable, setting

MOST_BYTES = 4 * 1024**2  # of all groups' names and settings: each change writes their file as a whole

BROKER_SETTING = {
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
}


@dataclass(frozen=True, kw_only=True)
class OwnGroupConfig(Settings):
    """The settings of one group. None: the broker's setting applies."""

    kind: ClassVar[str] = "a group"

    consumer_session_timeout_ms: int | None = setting(
        None,
        nullable(integer(1, INT_MAX)),
        "a KIP-848 member of the group that sends no heartbeat for this time is removed",
    )
    consumer_heartbeat_interval_ms: int | None = setting(
        None,
        nullable(integer(1, INT_MAX)),
        "the interval of heartbeats that the broker gives to KIP-848 members of the group",
    )


class EffectiveGroupSettings(NamedTuple):
    """The values that apply to a group: its own, within the limits, or the broker's."""

    session_timeout_ms: int
    heartbeat_interval_ms: int

    def texts(self) -> dict[str, str]:
        return {
            "consumer.session.timeout.ms": str(self.session_timeout_ms),
            "consumer.heartbeat.interval.ms": str(self.heartbeat_interval_ms),
        }


class GroupSettings:
    def __init__(self, store: MetadataStore, config: Callable[[], GroupConfig]) -> None:
        self._store = store
        self._config = config
        self._listeners: list[Callable[[str], None]] = []
        self._parsed = {
            group_id: OwnGroupConfig.parse(settings) for group_id, settings in store.metadata.group_settings.items()
        }

    def group_ids(self) -> list[str]:
        """Return the groups that have settings of their own."""
        return list(self._store.metadata.group_settings)

    def own(self, group_id: str) -> Mapping[str, str]:
        return self._store.metadata.group_settings.get(group_id, {})

    def effective(self, group_id: str) -> EffectiveGroupSettings:
        return _effective(self._parsed.get(group_id), self._config())

    def on_change(self, call: Callable[[str], None]) -> None:
        """Register `call`, which gets the group id after each change, in the thread that made the change."""
        self._listeners.append(call)

    def change(
        self, changes: Mapping[str, Mapping[str, str]], *, validate_only: bool = False
    ) -> dict[str, ConfigError]:
        """Replace all settings of groups. Return an error for each group whose new settings are not valid: it keeps its
        settings, and the others get theirs.

        All changes are saved at once. On StorageError nothing has changed.
        """
        stored, parsed = dict(self._store.metadata.group_settings), dict(self._parsed)
        size = sum(_size(group_id, settings) for group_id, settings in stored.items())
        errors = {}
        for group_id, settings in changes.items():
            try:
                own = self._check(settings)
                rest = size - (_size(group_id, stored[group_id]) if group_id in stored else 0)
                if settings and rest + _size(group_id, settings) > MOST_BYTES:
                    raise ConfigError(
                        f"settings of group {group_id[:200]!r}: there is no room for them, as those of {len(stored)} "
                        f"groups have {rest} of the allowed {MOST_BYTES} bytes; DELETE what is not needed any more"
                    )
            except ConfigError as error:
                errors[group_id] = error
                continue
            stored.pop(group_id, None)
            parsed.pop(group_id, None)
            size = rest
            if settings:
                stored[group_id], parsed[group_id] = dict(settings), own
                size += _size(group_id, settings)
        changed = [group_id for group_id in changes if group_id not in errors]
        if changed and not validate_only:
            self._store.change(group_settings=stored)
            self._parsed = parsed
            for group_id in changed:
                for call in self._listeners:
                    call(group_id)
        return errors

    def _check(self, settings: Mapping[str, str]) -> OwnGroupConfig:
        own = OwnGroupConfig.parse(settings)
        config = self._config()
        for name, value, least, most in (
            (
                "consumer.session.timeout.ms",
                own.consumer_session_timeout_ms,
                config.group_consumer_min_session_timeout_ms,
                config.group_consumer_max_session_timeout_ms,
            ),
            (
                "consumer.heartbeat.interval.ms",
                own.consumer_heartbeat_interval_ms,
                config.group_consumer_min_heartbeat_interval_ms,
                config.group_consumer_max_heartbeat_interval_ms,
            ),
        ):
            if value is not None and not least <= value <= most:
                limits = BROKER_SETTING[name].replace("group.consumer.", "group.consumer.{}.")
                raise ConfigError(
                    f"{name} is {value}; it must be {least} to {most}: the broker's {limits.format('min')} and "
                    f"{limits.format('max')}"
                )
        session, heartbeat = _effective(own, config)
        if session <= heartbeat:
            raise ConfigError(
                f"consumer.session.timeout.ms is {session}; it must be more than consumer.heartbeat.interval.ms, "
                f"{heartbeat}"
            )
        return own


def _effective(own: OwnGroupConfig | None, config: GroupConfig) -> EffectiveGroupSettings:
    session, heartbeat = config.group_consumer_session_timeout_ms, config.group_consumer_heartbeat_interval_ms
    if own is not None and own.consumer_session_timeout_ms is not None:
        least, most = config.group_consumer_min_session_timeout_ms, config.group_consumer_max_session_timeout_ms
        session = min(max(own.consumer_session_timeout_ms, least), most)
    if own is not None and own.consumer_heartbeat_interval_ms is not None:
        least, most = config.group_consumer_min_heartbeat_interval_ms, config.group_consumer_max_heartbeat_interval_ms
        heartbeat = min(max(own.consumer_heartbeat_interval_ms, least), most)
    return EffectiveGroupSettings(session, heartbeat)


def _size(group_id: str, settings: Mapping[str, str]) -> int:
    return len(group_id.encode()) + sum(len(name) + len(value) for name, value in settings.items())
