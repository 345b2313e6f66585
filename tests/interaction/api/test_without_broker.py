"""The REST API while no broker answers: it says so, and goes on."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

from headwater.api.app import create_app
from headwater.api.topic_admin import TopicAdmin

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("path", ["/v3/clusters", "/v3/clusters/x", "/kafka/v3/clusters/x/topics"])
def test_a_broker_that_is_not_there_is_503(path: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        transport = httpx.ASGITransport(create_app(TopicAdmin(address)))

        async def get(url: str) -> httpx.Response:
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.get(url)

        answer = asyncio.run(get(path))
        assert (answer.status_code, answer.json()["error_code"]) == (503, 50301)
        assert address in answer.json()["message"]
        assert asyncio.run(get("/healthz")).status_code == 200
