"""DescribeConfigs (key 32) 1-4, AlterConfigs (key 33) 0-2, IncrementalAlterConfigs (key 44) 0-1.

Topics: all settings are shown; those that can't be set here are shown read-only, with the value that holds. A change is
durable and counts for every partition when the answer comes. AlterConfigs replaces all of a topic's own settings,
IncrementalAlterConfigs changes single ones (SET, DELETE, and for lists APPEND, SUBTRACT).

Brokers: this one, by its number, or the defaults for all, by an empty name. Those settings that can be changed while
the broker runs are changed, the others are refused with INVALID_REQUEST. Each resource is done for itself: one that is
refused does not stop the others. A value that a setting can't take, and a name that does not exist, is INVALID_CONFIG;
so is the name in a DELETE, where Kafka would not look at it.

Groups: how long KIP-848 members may be silent and how often they send heartbeats, within the broker's bounds. The group
need not exist. A change counts at once.

Known gaps: loggers and client metrics are refused.
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

_A_FEW = 20  # resources between two looks at what else there is to do


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


Wanted = list[SettingChange] | dict[str, str]
"""Changes of single settings, or all that a resource shall have of its own."""

Changes = dict[str, tuple[Wanted, Reply]]
"""What is to change, by the resource's name, and the response that gets the error."""


class Change(Protocol):
    def __call__(self, changes: Mapping[str, Wanted], /, *, validate_only: bool) -> dict[str, StratalogError]: ...


class ConfigApis:
    def __init__(
        self,
        topics: TopicRegistry,
        live: LiveSettings,
        run_in_background: RunInBackground,
        elsewhere: Callable[[], Mapping[str, str]],
    ) -> None:
        """`elsewhere` gives the values of "listeners" and "log.dirs", which are shown with the settings, and of
        "advertised.listeners", for when it is not set."""
        self._topics = topics
        self._live = live
        self._run_in_background = run_in_background
        self._elsewhere = elsewhere

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.ALTER_CONFIGS: self.alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter_configs,
        }

    # Showing

    def describe_new_topic(self, settings: Mapping[str, str]) -> list[Reply]:
        """For CreateTopics: the entries of a topic with these settings."""
        config = topic_config(self._live.current.log_defaults, settings)
        return described_settings.topic_entries(settings, config, self._live.layers)

    def describe_configs(self, request: Any, context: RequestContext) -> LongReply:  # noqa: ARG002 - a handler
        """Thirty times as long as the request, or longer: nothing but what is written already may be held."""
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
                asked = described_settings.as_asked(entries, keys, synonyms=synonyms, documentation=documentation)
                yield {**result, "error_message": "", "configs": asked}  # as in Kafka; when altering it is null

    def _entries(self, resource: Any) -> list[Reply]:
        live = self._live
        if resource.resource_type == Resource.TOPIC:
            topic = self._topic(resource.resource_name)
            config = topic_config(live.current.log_defaults, topic.settings)
            return described_settings.topic_entries(topic.settings, config, live.layers)
        if resource.resource_type == Resource.BROKER:
            if self._is_cluster(resource.resource_name):
                return described_settings.cluster_entries(live.layers)
            return described_settings.broker_entries(live.current, live.layers, self._elsewhere())
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

    async def _alter_all(self, request: Any, changes_of: Callable[[Any], Wanted]) -> Reply:
        times = Counter(_key(resource) for resource in request.resources)
        responses = []
        topics: Changes = {}
        groups: Changes = {}
        for number, resource in enumerate(request.resources):
            response = _result_of(resource)
            try:
                _check_once(resource, times)
                changes = changes_of(resource)
                if resource.resource_type == Resource.TOPIC:
                    topics[self._topic(resource.resource_name).name] = changes, response
                elif resource.resource_type == Resource.GROUP:
                    groups[_group_name(resource)] = changes, response
                elif resource.resource_type == Resource.BROKER:
                    await self._alter_broker(resource, changes, validate_only=request.validate_only)
                else:
                    raise _unsupported(resource.resource_type)
            except StratalogError as error:
                response |= error_fields(error)
            responses.append(response)
            await _let_others_on(number)
        await self._alter_together(topics, self._change_topics, validate_only=request.validate_only)
        await self._alter_together(groups, self._change_groups, validate_only=request.validate_only)
        return {"responses": responses}

    async def _alter_together(self, resources: Changes, change: Change, *, validate_only: bool) -> None:
        """Change resources of one type in the background thread, with one save for all of them: each save writes the
        whole metadata file. Put errors into the responses."""
        if not resources:
            return
        changes = {name: wanted for name, (wanted, _) in resources.items()}
        try:
            errors = await self._run_in_background(lambda: change(changes, validate_only=validate_only))
        except StratalogError as failure:
            errors = dict.fromkeys(resources, failure)
        for name, error in errors.items():
            resources[name][1].update(error_fields(error))

    def _change_topics(self, changes: Mapping[str, Wanted], *, validate_only: bool) -> dict[str, StratalogError]:
        """Runs in the background thread, so no other change comes between reading the settings and replacing them."""
        defaults = self._live.current.log_defaults
        altered: dict[str, dict[str, str]] = {}
        errors: dict[str, StratalogError] = {}
        for name, wanted in changes.items():
            try:
                topic = self._topic(name)
                effective = topic_config(defaults, topic.settings).texts()
                settings = _applied(wanted, topic.settings, effective, _OF_TOPICS, _check_topic_setting)
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

    async def _alter_broker(self, resource: Any, wanted: Wanted, *, validate_only: bool) -> None:
        is_cluster = self._is_cluster(resource.resource_name)
        await self._run_in_background(
            lambda: self._change_broker(wanted, is_cluster=is_cluster, validate_only=validate_only)
        )

    def _change_broker(self, wanted: Wanted, *, is_cluster: bool, validate_only: bool) -> None:
        layers, live = self._live.layers, self._live
        effective = live.current.all_texts()
        own = layers.cluster if is_cluster else layers.broker
        settings = _applied(wanted, own, effective, _OF_BROKERS, _check_broker_setting)
        change = {"cluster": settings} if is_cluster else {"broker": settings}
        if validate_only:
            live.check(**change)
        else:
            live.change(**change)

    def _change_groups(self, wanted: Mapping[str, Wanted], *, validate_only: bool) -> dict[str, StratalogError]:
        groups = self._live.groups
        changes: dict[str, dict[str, str]] = {}
        errors: dict[str, StratalogError] = {}
        for name, each in wanted.items():
            own, effective = groups.own(name), groups.effective(name).texts()
            try:
                changes[name] = _applied(each, own, effective, _OF_GROUPS, _check_group_setting)
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

    def _is_cluster(self, name: str) -> bool:
        """Whether all brokers are meant, not this one."""
        if not name:
            return True
        node_id = self._live.current.node_id
        if name != str(node_id):
            raise _invalid(f"broker is {name!r}; it must be {node_id}, this broker's node.id, or empty for all")
        return False


_OF_TOPICS = {one.name: one for one in LogConfig.described()}
_OF_BROKERS = {one.name: one for one in BrokerConfig.all_described()}
_OF_GROUPS = {one.name: one for one in OwnGroupConfig.described()}


def _replacement(resource: Any) -> dict[str, str]:
    """What AlterConfigs wants a resource's settings to be."""
    return {one.name: _value_of(one) for one in _once(resource.configs)}


def _increments(resource: Any) -> list[SettingChange]:
    changes = []
    for one in _once(resource.configs):
        if one.config_operation not in set(SettingOperation):
            raise _invalid(f"{one.name}: operation is {one.config_operation}; it must be 0 to 3")
        operation = SettingOperation(one.config_operation)
        changes.append(
            SettingChange(one.name, operation, "" if operation is SettingOperation.DELETE else _value_of(one))
        )
    return changes


def _once(configs: Iterable[Any]) -> Iterable[Any]:
    for name, times in Counter(one.name for one in configs).items():
        if times > 1:
            raise _invalid(f"{name} is in the request {times} times for the same resource")
    return configs


def _value_of(one: Any) -> str:
    if one.value is None:
        raise _invalid(f"{one.name} has no value; DELETE it for the default")
    value: str = one.value
    return value


def _applied(
    wanted: Wanted,
    own: Mapping[str, str],
    effective: Mapping[str, str | None],
    described: Mapping[str, Described],
    check: Callable[[str], None],
) -> dict[str, str]:
    """The settings of a resource after a change of those that it had of its own."""
    if isinstance(wanted, dict):
        for name in wanted:
            check(name)
        return wanted
    settings = dict(own)
    for change in wanted:
        if change.operation is not SettingOperation.DELETE or change.name not in own:
            check(change.name)  # what an older broker let be changed can be taken back
        if change.operation is SettingOperation.SET:
            settings[change.name] = change.value
        elif change.operation is SettingOperation.DELETE:
            settings.pop(change.name, None)
        else:
            settings[change.name] = _changed_list(change, effective.get(change.name), described.get(change.name))
    return settings


def _changed_list(change: SettingChange, current: str | None, one: Described | None) -> str:
    if one is None or one.values.type is not ValueType.LIST:
        raise ConfigError(f"{change.name} is no list: {change.operation.name} can't be used, only SET and DELETE")
    items, given = _items(current or ""), _items(change.value)
    if change.operation is SettingOperation.APPEND:
        return ",".join(dict.fromkeys([*items, *given]))
    return ",".join(item for item in items if item not in given)


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def _check_topic_setting(name: str) -> None:
    """That the name exists; what value it takes is seen when the settings are put together."""
    if name not in _OF_TOPICS and name not in REFUSED:
        raise unknown_setting(name, "a topic", list(_OF_TOPICS))


def _check_group_setting(name: str) -> None:
    if name not in _OF_GROUPS:
        raise unknown_setting(name, "a group", list(_OF_GROUPS))


def _check_broker_setting(name: str) -> None:
    one = _OF_BROKERS.get(ALIASES.get(name, name))
    if one is None:
        raise unknown_broker_setting(name)
    if not one.dynamic:
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
        raise _invalid("the resource is in the request more than once")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, message)


def _unsupported(resource_type: int) -> RefusedError:
    if resource_type == Resource.BROKER_LOGGER:
        return _invalid("the broker's loggers can't be read or changed by clients")
    if resource_type == Resource.CLIENT_METRICS:
        return _invalid("clients' metrics are not collected")
    return _invalid(f"resource type is {resource_type}; 2 (topic), 4 (broker) and 32 (group) are known")


async def _let_others_on(number: int) -> None:
    """A request may have very many resources."""
    if number % _A_FEW == _A_FEW - 1:
        await asyncio.sleep(0)
