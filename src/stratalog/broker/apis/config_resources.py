"""ListConfigResources (key 74), versions 0-1: lists the resources that DescribeConfigs can describe.

A request without types is for all types. The broker lists topics (2), itself (4), and the groups (32) that have
settings of their own. Loggers (8) and client metrics (16) have no settings here, so none is listed. A request of
version 0 is for client metrics only. Other types get UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Any

from stratalog.broker.apis.configs import Resource
from stratalog.broker.groups.group_settings import GroupSettings
from stratalog.broker.metadata.membership import BrokersAndPlacements
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode


class ConfigResourcesApi:
    def __init__(self, topics: TopicRegistry, membership: BrokersAndPlacements, groups: GroupSettings) -> None:
        self._topics = topics
        self._groups = groups
        self._membership = membership

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.LIST_CONFIG_RESOURCES: self.list_config_resources}

    def list_config_resources(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        types = set(getattr(request, "resource_types", (Resource.CLIENT_METRICS,)) or Resource)
        if not types <= set(Resource):
            return {"error_code": ErrorCode.unsupported_version, "config_resources": ()}
        resources: list[tuple[Resource, str]] = []
        if Resource.BROKER in types:
            resources += [(Resource.BROKER, str(broker.node_id)) for broker in self._membership.brokers()]
        if Resource.TOPIC in types:
            resources += [(Resource.TOPIC, topic.name) for topic in self._topics.all()]
        if Resource.GROUP in types:
            resources += [(Resource.GROUP, group_id) for group_id in self._groups.group_ids()]
        return {
            "error_code": ErrorCode.none,
            "config_resources": [{"resource_type": kind, "resource_name": name} for kind, name in resources],
        }
