"""
What it takes to reach a hosted source: its address, TLS, a secret that never shows, and what a refusal means.

Shared by the providers of hosted sources, which know nothing of each other.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from load_watcher.errors import ProviderAuthError, ProviderConfigError, ProviderError, ProviderReplyError, ProviderUnavailableError

# A secret itself, or what reads it anew for every request: one that rotates is used from the moment it changes.
Secret = str | Callable[[], str]

ADDRESS_VARIABLE: Final = "METRICS_PROVIDER_ADDRESS"
TOKEN_VARIABLE: Final = "METRICS_PROVIDER_TOKEN"  # noqa: S105 - a name
CA_FILE_REMEDY: Final = "if your own CA signed the certificate, give its PEM file as METRICS_PROVIDER_CA_FILE"

# What a header can carry (RFC 9110, field values) without a space; the HTTP libraries refuse anything else in words that show the secret.
_HEADER_TOKEN: Final = re.compile(r"[\x21-\x7e]*")
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
# Enough for the sentence in which a server says what is wrong; more is a page of HTML.
_MAX_DETAIL_CHARACTERS: Final = 200


def parse_address(provider: str, address: str) -> str:
    """
    Read the address of a source: ``https://HOST[:PORT][/PREFIX]``; without a scheme it is https.

    Args:
        provider: Who asks, for the error.
        address: As it was configured.

    Returns:
        The address with its scheme and without a slash at the end.

    Raises:
        ProviderConfigError: If it is not one.

    >>> parse_address("Datadog", "api.datadoghq.eu/")
    'https://api.datadoghq.eu'
    """
    remedy = f"set {ADDRESS_VARIABLE} to https://HOST, with :PORT and a path where they are needed"
    text = address.strip() if "://" in address else f"https://{address.strip()}"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ProviderConfigError(f"{provider}: the address cannot be read: {error}; {remedy}") from error
    if parts.username is not None or parts.password is not None:
        raise ProviderConfigError(f"{provider}: the address holds a user or a password, which this source does not take; {remedy}")
    if parts.scheme not in {"http", "https"} or not host or parts.query or parts.fragment or re.search(r"\s", text):
        raise ProviderConfigError(f"{provider}: {address!r} is not the address of an HTTP API; {remedy}")
    return text.rstrip("/")


def make_tls_context(provider: str, ca_file: Path | None, *, verify_tls: bool) -> ssl.SSLContext:
    """
    Make the TLS settings of a source; reads files, so call it in a thread.

    Args:
        provider: Who asks, for the error.
        ca_file: The only CAs to trust, as PEM; ``None`` for those of the system.
        verify_tls: False admits every certificate.

    Raises:
        ProviderConfigError: If the file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # an SSLError is one
        raise ProviderConfigError(f"{provider}: CA file {ca_file}: {error}; give a PEM file that this user can read") from error
    if not verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def choose_secret(file: Path | None, value: SecretStr | None) -> Secret | None:
    """Take the file of a secret, read anew each time it is needed, else its value."""
    if file is not None:
        return partial(file.read_text, encoding="utf-8")
    return None if value is None else value.get_secret_value()


async def read_secret(provider: str, variable: str, secret: Secret | None) -> str:
    """
    Get a secret as it is now, without white space around it; empty if there is none.

    Args:
        provider: Who asks, for the error.
        variable: The setting that holds it, for the error.
        secret: The secret, or what reads it; that runs in a thread.

    Raises:
        ProviderConfigError: If it cannot be read, or no header can carry it; the message does not show it.
    """
    try:
        text = await asyncio.to_thread(secret) if callable(secret) else secret or ""
    except (OSError, UnicodeDecodeError) as error:
        raise ProviderConfigError(f"{provider}: {variable} cannot be read: {error}; may this user read it?") from error
    text = text.strip()
    if not _HEADER_TOKEN.fullmatch(text):
        raise ProviderConfigError(f"{provider}: {variable} holds a character that no header can carry; copy it again (value not shown)")
    return text


def shorten(text: str, secrets: Iterable[str] = ()) -> str:
    r"""
    Put what a server said into one short line, without our secrets, should it repeat them.

    >>> shorten("token abc\nis unknown", ["abc"])
    'token *** is unknown'
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    line = " ".join(text.split())
    return line if len(line) <= _MAX_DETAIL_CHARACTERS else f"{line[:_MAX_DETAIL_CHARACTERS]}…"


def make_status_error(provider: str, status: int, detail: str, *, auth_remedy: str) -> ProviderError:
    """
    Say what a status other than 200 means.

    Args:
        provider: Who asked.
        status: The HTTP status.
        detail: What the server said, shortened; may be empty.
        auth_remedy: What to do on 401 and 403.
    """
    said = f"{provider}: {status} {_PHRASES.get(status, '')}".rstrip() + (f": {detail}" if detail else "")
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return ProviderAuthError(f"{said}; {auth_remedy}")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return ProviderUnavailableError(said)
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return ProviderConfigError(f"{said}: our token does not go elsewhere; set {ADDRESS_VARIABLE} to the final address")
    if status == HTTPStatus.NOT_FOUND:
        return ProviderConfigError(f"{said}; check {ADDRESS_VARIABLE}: the API is not at that address")
    return ProviderReplyError(said)
