"""URLs and resource names in Confluent v3's shapes, built from the request's base URL."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Request


class Links:
    """Builds `self` and `related` URLs below the prefix of the request (`/v3` or `/kafka/v3`).

    >>> links = Links("http://localhost:8082/v3", "c1")
    >>> links.url("topics", "flights", "configs")
    'http://localhost:8082/v3/clusters/c1/topics/flights/configs'
    >>> links.resource_name(topic="flights", partition=0)
    'crn:///kafka=c1/topic=flights/partition=0'
    """

    def __init__(self, root: str, cluster_id: str) -> None:
        self._root = root
        self._cluster_id = cluster_id

    def url(self, *parts: str | int) -> str:
        """Return the URL of a resource of the cluster; without parts, the URL of the cluster."""
        path = [self._root, "clusters", quote(self._cluster_id, safe="")]
        return "/".join(path + [quote(str(part), safe="") for part in parts])

    def resource_name(self, **parts: str | int) -> str:
        """Return Confluent's resource name, with the parts in the given order."""
        return "/".join([f"crn:///kafka={self._cluster_id}", *(f"{kind}={value}" for kind, value in parts.items())])


def request_root(request: Request) -> str:
    """Return scheme, host and prefix of the request, ending in `/v3`."""
    prefix = "/kafka/v3" if request.scope["path"].startswith(f"{request.scope.get('root_path', '')}/kafka/") else "/v3"
    return str(request.base_url).rstrip("/") + prefix


Root = Annotated[str, Depends(request_root)]
