"""What the Kubernetes API writes: lists, events of a watch and errors, decoded into only the fields that are used."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from trimaran_client.errors import KubernetesReplyError, KubernetesStatusError

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

_BODY_START_CHARACTERS = 200
_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_BEARER = re.compile(r"(?i)\b(bearer)[\s:]+[^\s\"',;]+")
# What msgspec raises of a body that is not what was asked for.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

ReplyT = TypeVar("ReplyT")


class ObjectMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What identifies an object; a resource version says equal or not equal, never older or newer."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class ListMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Where a list stands: the version to watch from, and the token of the next page."""

    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class ObjectList(msgspec.Struct, Generic[ReplyT], frozen=True):
    """
    A list as the API writes it; ``null`` stands for no items.

    An answer without ``items`` is no list, whatever its status: taking it for an empty one would lose every object.
    """

    items: list[ReplyT] | None
    metadata: ListMeta = ListMeta()


@dataclass(frozen=True, slots=True)
class ListPage(Generic[ReplyT]):
    """
    A part of a list.

    Args:
        items: Its objects.
        resource_version: The version to watch from after the last page.
        is_first: Whether the list begins with it; a list that begins again makes the pages before it void.
    """

    items: list[ReplyT]
    resource_version: str
    is_first: bool


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[ReplyT]):
    """
    One line of a watch.

    Args:
        kind: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``.
        metadata: Of the object; a bookmark's has only the resource version.
        object: Given when added or modified; a deletion may carry metadata only, so that nobody should read more of it.
        error: Why the object could not be read; the events after it can.
    """

    kind: str
    metadata: ObjectMeta
    object: ReplyT | None
    error: KubernetesReplyError | None = None


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Reference(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    code: int = 0


def decode(body: bytes | msgspec.Raw, reply_type: type[ReplyT], path: str) -> ReplyT:
    """
    Read an answer, or an object of one.

    Raises:
        KubernetesReplyError: If it is not a *reply_type*; *path* is told.
    """
    try:
        return msgspec.json.decode(body, type=reply_type)
    except _UNREADABLE as error:
        start = bytes(body)[:_BODY_START_CHARACTERS]
        told = redact(f"{error}; it starts {start!r}")
        raise KubernetesReplyError(f"GET {path}: not what the API documents: {told}; check the address") from error


def read_metadata(body: msgspec.Raw, path: str) -> ObjectMeta:
    """
    Read what identifies an object, and nothing else of it.

    Raises:
        KubernetesReplyError: If it cannot be read.
    """
    return decode(body, _Reference, path).metadata


def read_event(line: bytes, object_type: type[ReplyT], path: str) -> WatchEvent[ReplyT]:
    """
    Read a line of a watch.

    Raises:
        KubernetesStatusError: If it tells of an error.
        KubernetesReplyError: If it is no line of a watch; an object in it that cannot be read is told in the event.
    """
    told = decode(line, _Line, path)
    if told.type == "ERROR":
        status = decode(told.object, _Status, path)
        message = f"GET {path}: the watch ended with {status.code}: {status.message}"
        raise KubernetesStatusError(message, status=status.code, reason=status.message)
    metadata = ObjectMeta()
    try:
        metadata = read_metadata(told.object, path)
        value = decode(told.object, object_type, path) if told.type in ("ADDED", "MODIFIED") else None
    except KubernetesReplyError as error:
        return WatchEvent(told.type, metadata, None, error)
    return WatchEvent(told.type, metadata, value)


def read_reason(body: bytes) -> str:
    """Get the message of a ``Status``, or the start of a body that is not one."""
    with contextlib.suppress(*_UNREADABLE):
        if message := msgspec.json.decode(body, type=_Status).message:
            return message
    return body[:_BODY_START_CHARACTERS].decode(errors="replace").strip()


def redact(text: str, configuration: Configuration | None = None) -> str:
    """
    Take secrets out of text that others will read: credentials in an address, bearer tokens, and the token in use.

    >>> redact("502 from https://admin:secret@host:6443; authorization: Bearer abc.def")
    '502 from https://…@host:6443; authorization: Bearer …'
    """
    text = _BEARER.sub(r"\1 …", _CREDENTIALS.sub("//…@", text))
    for value in configuration.api_key.values() if configuration is not None else ():
        token = str(value).removeprefix("Bearer ").strip()
        if token:
            text = text.replace(token, "…")
    return text
