"""The few calls to a test cluster's API server that the tests make, with the administrator's certificate."""

from __future__ import annotations

import json
import ssl
from typing import Any

import aiohttp

REQUEST_SECONDS = 15.0

JsonObject = dict[str, Any]


class ApiError(Exception):
    """
    The API server refused a request.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, method: str, path: str, status: int, text: str) -> None:
        super().__init__(f"{method} {path}: {status} {text}")
        self.status = status


class ApiClient:
    """Plain requests to an API server, manifests in and out as JSON objects."""

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        self._session = aiohttp.ClientSession(
            server, connector=aiohttp.TCPConnector(ssl=context), timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def fetch(self, path: str) -> JsonObject:
        """GET an object or a list."""
        return await self._request("GET", path)

    async def create(self, path: str, manifest: JsonObject) -> JsonObject:
        """POST *manifest* to the collection at *path*."""
        return await self._request("POST", path, manifest)

    async def apply(self, path: str, manifest: JsonObject) -> JsonObject:
        """Create the object at *path*, or change what *manifest* names (server-side apply)."""
        return await self._request(
            "PATCH", f"{path}?fieldManager=e2e&force=true", manifest, headers={"Content-Type": "application/apply-patch+yaml"}
        )

    async def delete(self, path: str) -> None:
        """Delete an object, or a collection, without a grace period."""
        await self._request("DELETE", f"{path}?gracePeriodSeconds=0")

    async def _request(
        self, method: str, path: str, body: JsonObject | None = None, *, headers: dict[str, str] | None = None
    ) -> JsonObject:
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, path, data=data, headers=headers or {"Content-Type": "application/json"}) as response:
            text = await response.text()
            if not response.ok:
                raise ApiError(method, path, response.status, text)
            answer: JsonObject = json.loads(text)
            return answer
