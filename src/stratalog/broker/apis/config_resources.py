"""ListConfigResources (key 74), versions 0-1: what DescribeConfigs can be asked for.

No types means all. There are topics (2), this broker (4), and the groups (32) that have settings of their own. Loggers
(8) and client metrics (16) have no settings here, so none is listed. Version 0 asks for client metrics alone. Other
types are UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import Any

from stratalog.broker.apis.configs import Resource
from stratalog.broker.groups.group_settings import GroupSettings
from stratalog.broker.metadata.topics import TopicRegistry
from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode


class ConfigResourcesApi:
    def __init__(self, topics: TopicRegistry, node_id: int, groups: GroupSettings) -> None:
        self._topics = topics
        self._groups = groups
        self._node_id = node_id

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.LIST_CONFIG_RESOURCES: self.list_config_resources}

    def list_config_resources(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        asked = set(getattr(request, "resource_types", (Resource.CLIENT_METRICS,)) or Resource)
        if not asked <= set(Resource):
            return {"error_code": ErrorCode.unsupported_version, "config_resources": ()}
        found = [(Resource.BROKER, str(self._node_id))] if Resource.BROKER in asked else []
        if Resource.TOPIC in asked:
            found += [(Resource.TOPIC, topic.name) for topic in self._topics.all()]
        if Resource.GROUP in asked:
            found += [(Resource.GROUP, group_id) for group_id in self._groups.group_ids()]
        return {
            "error_code": ErrorCode.none,
            "config_resources": [{"resource_type": kind, "resource_name": name} for kind, name in found],
        }
