"""DescribeAcls (key 29), CreateAcls (key 30), DeleteAcls (key 31), versions 1-3 each: always refused.

The broker has no authorizer, so there are no access control lists. Every response has SECURITY_DISABLED, with the
messages of a Kafka broker without an authorizer.
"""

from __future__ import annotations

from typing import Any

from stratalog.broker.requests import Handler, Reply, RequestContext
from stratalog.protocol.api_keys import ApiKey
from stratalog.protocol.error_codes import ErrorCode

_DISABLED: Reply = {"error_code": ErrorCode.security_disabled, "error_message": "No Authorizer is configured."}


class AclApis:
    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_ACLS: self.describe_acls,
            ApiKey.CREATE_ACLS: self.create_acls,
            ApiKey.DELETE_ACLS: self.delete_acls,
        }

    def describe_acls(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        return {**_DISABLED, "error_message": "No Authorizer is configured on the broker", "resources": ()}

    def create_acls(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        return {"results": [_DISABLED] * len(request.creations)}

    def delete_acls(self, request: Any, context: RequestContext) -> Reply:  # noqa: ARG002 - a handler
        return {"filter_results": [{**_DISABLED, "matching_acls": ()}] * len(request.filters)}
