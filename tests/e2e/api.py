"""The few calls to a test cluster's API server that the tests make, as any identity; manifests in and out as JSON objects."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Iterable
from typing import Any
from urllib.parse import urlencode

import aiohttp

REQUEST_SECONDS = 15.0
COLLECTION_SECONDS = 60.0  # the API server's own limit
# More connections make no more objects a second: the API server's CPU is the limit then.
CREATING_CONNECTIONS = 32

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
    """
    Plain requests to an API server, or to another of the control plane's servers.

    Args:
        server: Its address.
        context: What it is trusted by, and the client's certificate, if it has one.
        token: Bearer token, if that is the client's identity.
    """

    def __init__(self, server: str, context: ssl.SSLContext, *, token: str = "") -> None:
        self._session = aiohttp.ClientSession(
            server,
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        self._resources: dict[str, list[JsonObject]] = {}  # of API groups and versions that were asked for

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def fetch(self, path: str, **query: str) -> JsonObject:
        """GET an object or a list."""
        return _parse(await self._request("GET", path, query=query))

    async def fetch_text(self, path: str) -> str:
        """GET what is no JSON, such as ``/metrics``."""
        return (await self._request("GET", path)).decode()

    async def create(self, path: str, manifest: JsonObject) -> JsonObject:
        """POST *manifest* to the collection at *path*."""
        return _parse(await self._request("POST", path, body=_dump(manifest)))

    async def create_many(self, path: str, manifests: Iterable[JsonObject]) -> None:
        """POST all *manifests* to the collection at *path*, several at a time; about a thousand a second on two cores."""
        bodies = iter([_dump(manifest) for manifest in manifests])

        async def work() -> None:
            for body in bodies:
                await self._request("POST", path, body=body)

        async with asyncio.TaskGroup() as group:
            for _ in range(CREATING_CONNECTIONS):
                group.create_task(work())

    async def apply(self, path: str, manifest: JsonObject, *, is_dry_run: bool = False) -> JsonObject:
        """Create the object at *path*, or change what *manifest* names (server-side apply); a dry run only judges it."""
        query = {"fieldManager": "e2e", "force": "true"} | ({"dryRun": "All"} if is_dry_run else {})
        return _parse(await self._request("PATCH", path, body=_dump(manifest), query=query, content_type="application/apply-patch+yaml"))

    async def apply_all(self, manifests: Iterable[JsonObject], *, is_dry_run: bool = False) -> list[JsonObject]:
        """Apply manifests of any kind that the API server knows, in their order, and return the objects."""
        return [await self.apply(await self.find_path(manifest), manifest, is_dry_run=is_dry_run) for manifest in manifests]

    async def find_path(self, manifest: JsonObject) -> str:
        """Return the path of the object that *manifest* describes; without a namespace it is in ``default``."""
        version = manifest["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._resources:
            self._resources[version] = (await self.fetch(root))["resources"]
        (resource,) = (found for found in self._resources[version] if found["kind"] == manifest["kind"] and "/" not in found["name"])
        metadata = manifest["metadata"]
        namespace = f"/namespaces/{metadata.get('namespace', 'default')}" if resource["namespaced"] else ""
        return f"{root}{namespace}/{resource['name']}/{metadata['name']}"

    async def delete(self, path: str, **query: str) -> None:
        """Delete an object, or a collection, without a grace period; ``labelSelector`` chooses from a collection."""
        await self._request("DELETE", path, query={"gracePeriodSeconds": "0"} | query, timeout_seconds=COLLECTION_SECONDS)

    async def watch(self, path: str, *, resource_version: str, **query: str) -> AsyncGenerator[JsonObject, None]:
        """
        Yield the events of a collection after *resource_version* until the API server ends the stream.

        Raises:
            ApiError: When the watch is refused, at once or within the stream; 410 where that version is gone.
        """
        query |= {"watch": "true", "resourceVersion": resource_version}
        async with self._session.get(path, params=query, timeout=aiohttp.ClientTimeout(total=None)) as response:
            if not response.ok:
                raise ApiError("WATCH", path, response.status, await response.text())
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = _parse(line)
                    if event["type"] == "ERROR":
                        raise ApiError("WATCH", path, event["object"]["code"], event["object"]["message"])
                    yield event

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
        timeout_seconds: float = REQUEST_SECONDS,
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        headers = {"Content-Type": content_type}
        async with self._session.request(method, path, data=body, params=query, headers=headers, timeout=timeout) as response:
            answer = await response.read()
            if not response.ok:
                raise ApiError(method, f"{path}?{urlencode(query)}" if query else path, response.status, answer.decode(errors="replace"))
            return answer


def _dump(manifest: JsonObject) -> bytes:
    return json.dumps(manifest).encode()


def _parse(text: bytes) -> JsonObject:
    value: JsonObject = json.loads(text)
    return value
