"""DescribeConfigs (key 32) 1-4, AlterConfigs (key 33) 0-2, IncrementalAlterConfigs (key 44) 0-1.

Topics: DescribeConfigs shows all settings. Settings that can't be set here are read-only, and show the value that
applies. A change is durable and applies to every partition before the broker responds. AlterConfigs replaces all of a
topic's own settings. IncrementalAlterConfigs changes single settings (SET, DELETE, and for lists APPEND, SUBTRACT).

Brokers: the resource is this broker, by its node id, or the defaults for all brokers, by an empty name. Only settings
that can be changed while the broker runs are changed; a change of any other is refused with INVALID_REQUEST. In a
cluster, the settings of every broker can be changed on any of them. DescribeConfigs for another broker shows only those
that were changed while it ran, because the broker itself has the others.

Groups: the settings are the session timeout and the heartbeat interval of KIP-848 members, within the broker's limits.
The group need not exist. A change applies at once.

Each resource is changed independently: a refused resource does not stop the others. A value that is not valid for a
setting, and an unknown name, get INVALID_CONFIG. So does an unknown name in a DELETE, which Kafka ignores.

Known gaps: requests for loggers and client metrics are refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from stratalog.broker import described_settings
from stratalog.broker.apis.error_fields import RefusedError, error_fields
from stratalog.broker.background import RunInBackground
from stratalog.broker.groups.group_settings import OwnGroupConfig
from stratalog.broker.live_settings import LiveSettings
from stratalog.broker.metadata.topics import Topic, TopicRegistry
from stratalog.broker.refused_settings import why_refused
from stratalog.broker.requests import Handler, LongReply, Reply, RequestContext
from stratalog.broker.settings import ALIASES, BrokerConfig, unknown_broker_setting
from stratalog.broker.topic_defaults import topic_config
from stratalog.errors import ConfigError, StratalogError, UnknownTopicError
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.encoding import Elements
from stratalog.protocol.error_codes import ErrorCode
from stratalog.settings import Described, ValueType, unknown_setting
from stratalog.storage import names
from stratalog.storage.config import REFUSED, LogConfig

_ALL_BROKERS = ""
_SHOWN = 10  # node ids in a message
_PORTION = 20  # resources; after each portion the event loop serves other requests


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class SettingOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class SettingChange(NamedTuple):
    """One change of an IncrementalAlterConfigs request."""

    name: str
    operation: SettingOperation
    value: str


Alteration = list[SettingChange] | dict[str, str]
"""Changes of single settings, or all own settings that a resource will have."""

Alterations = dict[str, tuple[Alteration, Reply]]
"""The alterations of resources by name, each with the result that will report an error."""


class Alter(Protocol):
    def __call__(self, alterations: Mapping[str, Alteration], /, *, validate_only: bool) -> dict[str, StratalogError]:
        """Alter these resources, and return the errors by name."""


class ConfigApis:
    def __init__(
        self,
        topics: TopicRegistry,
        live: LiveSettings,
        run_in_background: RunInBackground,
        derived: Callable[[], Mapping[str, str]],
    ) -> None:
        """`derived` returns the values of "listeners" and "log.dirs", which are shown with the settings, and the value
        that "advertised.listeners" has if it is not set."""
        self._topics = topics
        self._live = live
        self._run_in_background = run_in_background
        self._derived = derived

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.ALTER_CONFIGS: self.alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter_configs,
        }

    # Showing

    def describe_new_topic(self, settings: Mapping[str, str]) -> list[Reply]:
        """Return the entries of a topic with these own settings, for CreateTopics."""
        config = topic_config(self._live.current.log_defaults, settings)
        return described_settings.topic_entries(settings, config, self._live.layers)

    def describe_configs(self, request: Any, context: RequestContext) -> LongReply:  # noqa: ARG002 - a handler
        """Return a reply that is encoded piece by piece: it may be thirty times as long as the request, or longer, and
        the broker must not hold its entries in addition to its bytes."""
        return LongReply(results=Elements(len(request.resources), self._results(request)))

    def _results(self, request: Any) -> Iterator[Reply]:
        synonyms = request.include_synonyms
        documentation = getattr(request, "include_documentation", False)
        times = Counter(map(_key, request.resources))
        for resource in request.resources:
            result = _result_of(resource)
            try:
                _check_once(resource, times)
                entries = self._entries(resource)
            except StratalogError as error:
                yield {**result, **error_fields(error), "configs": ()}
            else:
                keys = resource.configuration_keys
                configs = described_settings.as_asked(entries, keys, synonyms=synonyms, documentation=documentation)
                # As in Kafka, the message is empty here, and null in responses to alterations.
                yield {**result, "error_message": "", "configs": configs}

    def _entries(self, resource: Any) -> list[Reply]:
        live = self._live
        if resource.resource_type == Resource.TOPIC:
            topic = self._topic(resource.resource_name)
            config = topic_config(live.current.log_defaults, topic.settings)
            return described_settings.topic_entries(topic.settings, config, live.layers)
        if resource.resource_type == Resource.BROKER:
            node_id = self._node_id(resource.resource_name)
            if node_id == _ALL_BROKERS:
                return described_settings.changed_entries(live.layers.cluster, described_settings.Source.CLUSTER)
            if node_id != str(live.current.node_id):
                return described_settings.changed_entries(live.of(node_id), described_settings.Source.BROKER)
            return described_settings.broker_entries(live.current, live.layers, self._derived())
        if resource.resource_type == Resource.GROUP:
            if not resource.resource_name:
                raise _invalid("the group's name is empty")
            name = resource.resource_name
            return described_settings.group_entries(live.groups.own(name), live.groups.effective(name), live.layers)
        raise _unsupported(resource.resource_type)

    # Changing

    async def alter_configs(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        return await self._alter_all(request, _replacement)

    async def incremental_alter_configs(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002
        return await self._alter_all(request, _increments)

    async def _alter_all(self, request: Any, parse: Callable[[Any], Alteration]) -> Reply:
        times = Counter(_key(resource) for resource in request.resources)
        responses = []
        topics: Alterations = {}
        groups: Alterations = {}
        for number, resource in enumerate(request.resources):
            response = _result_of(resource)
            try:
                _check_once(resource, times)
                alteration = parse(resource)
                if resource.resource_type == Resource.TOPIC:
                    topics[self._topic(resource.resource_name).name] = alteration, response
                elif resource.resource_type == Resource.GROUP:
                    groups[_group_name(resource)] = alteration, response
                elif resource.resource_type == Resource.BROKER:
                    await self._alter_broker(resource, alteration, validate_only=request.validate_only)
                else:
                    raise _unsupported(resource.resource_type)
            except StratalogError as error:
                response |= error_fields(error)
            responses.append(response)
            await _yield_between_portions(number)
        await self._alter_together(topics, self._alter_topics, validate_only=request.validate_only)
        await self._alter_together(groups, self._alter_groups, validate_only=request.validate_only)
        return {"responses": responses}

    async def _alter_together(self, resources: Alterations, alter: Alter, *, validate_only: bool) -> None:
        """Alter resources of one type in the background thread, with one save for all of them: each save writes the
        whole metadata file. Add errors to the results."""
        if not resources:
            return
        alterations = {name: alteration for name, (alteration, _) in resources.items()}
        try:
            errors = await self._run_in_background(lambda: alter(alterations, validate_only=validate_only))
        except StratalogError as failure:
            errors = dict.fromkeys(resources, failure)
        for name, error in errors.items():
            resources[name][1].update(error_fields(error))

    def _alter_topics(self, alterations: Mapping[str, Alteration], *, validate_only: bool) -> dict[str, StratalogError]:
        """Alter topics, and return the errors by topic. Runs in the background thread, so that no other change comes
        between reading the settings and replacing them."""
        defaults = self._live.current.log_defaults
        altered: dict[str, dict[str, str]] = {}
        errors: dict[str, StratalogError] = {}
        for name, alteration in alterations.items():
            try:
                topic = self._topic(name)
                effective = topic_config(defaults, topic.settings).texts()
                settings = _applied(alteration, topic.settings, effective, _OF_TOPICS, _check_topic_setting)
                topic_config(defaults, settings)
                altered[name] = settings
            except StratalogError as error:
                errors[name] = error
        if altered and not validate_only:
            try:
                self._topics.alter_settings_of_all(altered)
            except StratalogError as failure:
                errors |= dict.fromkeys(altered, failure)
        return errors

    async def _alter_broker(self, resource: Any, alteration: Alteration, *, validate_only: bool) -> None:
        node_id = self._node_id(resource.resource_name)
        await self._run_in_background(lambda: self._change_broker(node_id, alteration, validate_only=validate_only))

    def _change_broker(self, node_id: str, alteration: Alteration, *, validate_only: bool) -> None:
        layers, live = self._live.layers, self._live
        is_cluster = node_id == _ALL_BROKERS
        effective = live.current.all_texts()
        if node_id not in (_ALL_BROKERS, str(live.current.node_id)):
            own = live.of(node_id)
            settings = _applied(alteration, own, {**effective, **own}, _OF_BROKERS, _check_broker_setting)
            live.change_other(node_id, settings, validate_only=validate_only)
            return
        own = layers.cluster if is_cluster else layers.broker
        settings = _applied(alteration, own, effective, _OF_BROKERS, _check_broker_setting)
        change = {"cluster": settings} if is_cluster else {"broker": settings}
        if validate_only:
            live.check(**change)
        else:
            live.change(**change)
            if is_cluster:
                self._topics.renew_min_insync()

    def _alter_groups(self, alterations: Mapping[str, Alteration], *, validate_only: bool) -> dict[str, StratalogError]:
        groups = self._live.groups
        changes: dict[str, dict[str, str]] = {}
        errors: dict[str, StratalogError] = {}
        for name, alteration in alterations.items():
            own, effective = groups.own(name), groups.effective(name).texts()
            try:
                changes[name] = _applied(alteration, own, effective, _OF_GROUPS, _check_group_setting)
            except StratalogError as error:
                errors[name] = error
        return {**errors, **groups.change(changes, validate_only=validate_only)}

    # Naming

    def _topic(self, name: str) -> Topic:
        if not name:
            raise _invalid("the topic's name is empty; defaults for all topics are settings of the broker")
        names.check_topic(name)
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopicError(f"topic {name!r} does not exist")
        return topic

    def _node_id(self, name: str) -> str:
        """Return the broker that the resource is, by its node id; an empty one for all brokers. Raises if there is no
        such broker."""
        own, others = str(self._live.current.node_id), self._live.others()
        if name in (_ALL_BROKERS, own) or name in others:
            return name
        if others:
            raise _invalid(f"no broker {name!r} is known; the others are {', '.join(sorted(others)[:_SHOWN])}")
        raise _invalid(f"broker is {name!r}; it must be {own}, this broker's node.id, or empty for all brokers")


_OF_TOPICS = {described.name: described for described in LogConfig.described()}
_OF_BROKERS = {described.name: described for described in BrokerConfig.all_described()}
_OF_GROUPS = {described.name: described for described in OwnGroupConfig.described()}


def _replacement(resource: Any) -> dict[str, str]:
    """Return the settings in an AlterConfigs request, which replace all own settings of the resource."""
    return {entry.name: _value_of(entry) for entry in _once(resource.configs)}


def _increments(resource: Any) -> list[SettingChange]:
    changes = []
    for entry in _once(resource.configs):
        if entry.config_operation not in set(SettingOperation):
            raise _invalid(f"{entry.name}: operation is {entry.config_operation}; it must be 0 to 3")
        operation = SettingOperation(entry.config_operation)
        value = "" if operation is SettingOperation.DELETE else _value_of(entry)
        changes.append(SettingChange(entry.name, operation, value))
    return changes


def _once(configs: Iterable[Any]) -> Iterable[Any]:
    for name, times in Counter(entry.name for entry in configs).items():
        if times > 1:
            raise _invalid(f"{name} is in the request {times} times for the same resource; it must be there once")
    return configs


def _value_of(entry: Any) -> str:
    if entry.value is None:
        raise _invalid(f"{entry.name} has no value; DELETE it for the default")
    value: str = entry.value
    return value


def _applied(
    alteration: Alteration,
    own: Mapping[str, str],
    effective: Mapping[str, str | None],
    described: Mapping[str, Described],
    check: Callable[[str], None],
) -> dict[str, str]:
    """Return the resource's own settings after an alteration. Raises if it is not valid."""
    if isinstance(alteration, dict):
        for name in alteration:
            check(name)
        return alteration
    settings = dict(own)
    for change in alteration:
        is_deletion = change.operation is SettingOperation.DELETE
        # An existing setting can always be deleted, also one that only older brokers allow to set. Kafka's tools delete
        # throttles that they have not set.
        if not is_deletion or (change.name not in own and why_refused(change.name) is None):
            check(change.name)
        if change.operation is SettingOperation.SET:
            settings[change.name] = change.value
        elif change.operation is SettingOperation.DELETE:
            settings.pop(change.name, None)
        else:
            settings[change.name] = _changed_list(change, effective.get(change.name), described.get(change.name))
    return settings


def _changed_list(change: SettingChange, current: str | None, described: Described | None) -> str:
    if described is None or described.values.type is not ValueType.LIST:
        raise ConfigError(f"{change.name} is not a list: it can't be changed with {change.operation.name}; use SET")
    items, operand = _items(current or ""), _items(change.value)
    if change.operation is SettingOperation.APPEND:
        return ",".join(dict.fromkeys([*items, *operand]))
    return ",".join(item for item in items if item not in operand)


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def _check_topic_setting(name: str) -> None:
    """Raise if the name does not exist. topic_config() checks the value."""
    if name not in _OF_TOPICS and name not in REFUSED:
        raise unknown_setting(name, "a topic", list(_OF_TOPICS))


def _check_group_setting(name: str) -> None:
    if name not in _OF_GROUPS:
        raise unknown_setting(name, "a group", list(_OF_GROUPS))


def _check_broker_setting(name: str) -> None:
    described = _OF_BROKERS.get(ALIASES.get(name, name))
    if described is None:
        raise unknown_broker_setting(name)
    if not described.dynamic:
        raise _invalid(f"{name} can't be changed while the broker runs; start it with --set {name}=...")


def _group_name(resource: Any) -> str:
    name: str = resource.resource_name
    if not name:
        raise _invalid("the group's name is empty; defaults for all groups are settings of the broker")
    return name


def _result_of(resource: Any) -> Reply:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


_key: Callable[[Any], tuple[int, str]] = attrgetter("resource_type", "resource_name")


def _check_once(resource: Any, times: Counter[tuple[int, str]]) -> None:
    if times[_key(resource)] > 1:
        raise _invalid("the resource is in the request more than once; it must be there once")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, message)


def _unsupported(resource_type: int) -> RefusedError:
    if resource_type == Resource.BROKER_LOGGER:
        return _invalid("clients can't read or change the broker's loggers")
    if resource_type == Resource.CLIENT_METRICS:
        return _invalid("the broker does not collect metrics of clients")
    return _invalid(f"resource type is {resource_type}; it must be 2 (topic), 4 (broker) or 32 (group)")


async def _yield_between_portions(number: int) -> None:
    """Let the event loop serve other requests after each portion: a request may have very many resources."""
    if number % _PORTION == _PORTION - 1:
        await asyncio.sleep(0)
