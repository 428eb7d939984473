"""Where access to a cluster comes from, and how a session is opened there; the only importer of kubernetes_asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from trimaran_client.errors import KubernetesConfigError

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient, Configuration

logger = logging.getLogger(__name__)

# Where every pod finds its own identity (Kubernetes documentation, "Accessing the Kubernetes API from a Pod").
SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# An exec plugin may talk to a cloud, or ask its user; one that takes longer hangs.
ACCESS_TIMEOUT_SECONDS = 60
# The name under which kubernetes-asyncio keeps the authorization header.
_TOKEN_KEY = "BearerToken"  # noqa: S105 - a key, not a token


@dataclass(frozen=True, slots=True)
class AccessPlace:
    """
    A place where access to a cluster may be found.

    Args:
        name: What to call it in messages.
        absence: Why there is nothing there; ``None`` if there is something, which may still turn out unusable.
        kubeconfig: The file, or several as ``KUBECONFIG`` lists them; ``None`` for the in-cluster files.
    """

    name: str
    absence: str | None
    kubeconfig: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """An open ``ApiClient`` of kubernetes-asyncio, and what it was opened with: equal credentials mean that opening again is useless."""

    place: AccessPlace
    api: ApiClient
    credentials: tuple[object, ...]


def find_access(kubeconfig: Path | None = None) -> tuple[AccessPlace, ...]:
    """
    List the places where access may be found, in the order in which they are tried.

    Cheap: looks at names only, opens nothing. A given *kubeconfig* is the only place; else these are the in-cluster files, then
    ``KUBECONFIG`` or, where that is not set, ``~/.kube/config``.
    """
    if kubeconfig is not None:
        return (_kubeconfig_place(f"kubeconfig {kubeconfig}", str(kubeconfig)),)
    paths = os.environ.get("KUBECONFIG")
    user = _kubeconfig_place(f"KUBECONFIG {paths}", paths) if paths else _kubeconfig_place("~/.kube/config", "~/.kube/config")
    return (AccessPlace("in-cluster files", _in_cluster_absence()), user)


async def open_first(places: tuple[AccessPlace, ...]) -> Session:
    """
    Open a session at the first place that works.

    Raises:
        KubernetesConfigError: If none does; lists each place with the reason.
    """
    problems = []
    for place in places:
        if place.absence is not None:
            problems.append(f"{place.name}: {place.absence}")
            continue
        try:
            async with asyncio.timeout(ACCESS_TIMEOUT_SECONDS):
                session = await open_session(place)
        except KubernetesConfigError as error:
            problems.append(str(error))
            continue
        except TimeoutError:
            problems.append(f"{place.name}: no credentials within {ACCESS_TIMEOUT_SECONDS} s; run its exec plugin by hand")
            continue
        if not session.api.configuration.verify_ssl:
            logger.warning("%s turns the verification of the API server's certificate off", place.name)
        return session
    remedy = "give a kubeconfig, set KUBECONFIG, or run in a pod that has a service account token"
    raise KubernetesConfigError(f"no usable access to a Kubernetes cluster ({'; '.join(problems)}); {remedy}")


async def open_session(place: AccessPlace) -> Session:
    """
    Read the credentials of a place and make a client of them; connects to nothing, but may run an exec plugin, however long it takes.

    Raises:
        KubernetesConfigError: If they cannot be used.
    """
    try:
        # In a thread, so that the event loop goes on meanwhile.
        library = await asyncio.to_thread(importlib.import_module, "kubernetes_asyncio")
    except ImportError as error:
        raise KubernetesConfigError(f"kubernetes-asyncio is not installed: pip install 'trimaran[service]' ({error})") from error
    try:
        configuration = await _read_configuration(library, place)
        credentials = _credentials(configuration)
        api: ApiClient = library.client.ApiClient(configuration)
    # Loaders of foreign files, plugins and certificates raise anything; whatever it is, it is the reason.
    except Exception as error:
        raise KubernetesConfigError(f"{place.name}: {_explain(error)}") from error
    api.user_agent = "trimaran"
    return Session(place, api, credentials)


async def _read_configuration(library: ModuleType, place: AccessPlace) -> Configuration:
    configuration: Configuration = library.client.Configuration(host="")
    if place.kubeconfig is None:
        token_file = SERVICE_ACCOUNT_FOLDER / "token"
        library.config.load_incluster_config(
            client_configuration=configuration,
            try_refresh_token=False,
            token_filename=str(token_file),
            cert_filename=str(SERVICE_ACCOUNT_FOLDER / "ca.crt"),
        )
        configuration.refresh_api_key_hook = _token_reader(token_file)
    else:
        # Without persist_config: its writer takes no argument and is called with one, so that refreshing an OIDC token would fail.
        await library.config.load_kube_config(place.kubeconfig, client_configuration=configuration, persist_config=False)
        if not configuration.host:
            raise ValueError("the cluster of the current context has no server")
    if _TOKEN_KEY in configuration.api_key:
        # Files end in a newline, which a header must not.
        configuration.api_key[_TOKEN_KEY] = configuration.api_key[_TOKEN_KEY].strip()
    return configuration


def _token_reader(token_file: Path) -> Callable[[Configuration], None]:
    """Make a hook that reads the token before each request: kubelet replaces it within the hour, and a small file costs microseconds."""

    def read_token(configuration: Configuration) -> None:
        with contextlib.suppress(OSError):  # being replaced: the one we have is good for minutes yet
            token = token_file.read_text().strip()
            if token:
                configuration.api_key[_TOKEN_KEY] = f"Bearer {token}"

    return read_token


def _credentials(configuration: Configuration) -> tuple[object, ...]:
    files = [name for name in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file) if name]
    written_at = [Path(name).stat().st_mtime_ns for name in files]
    return (configuration.host, configuration.api_key.get(_TOKEN_KEY), *files, *written_at)


def _explain(error: Exception) -> str:
    if isinstance(error, TypeError | AttributeError | KeyError | AssertionError):
        # How kubernetes-asyncio stumbles over keys that are missing or of another type, for example a context without a user.
        return f"it needs a current context with a cluster and a user ({error!r}); compare it with `kubectl config view`"
    if "context" in str(error):
        return f"{error}; choose a context with `kubectl config use-context`"
    return str(error) or type(error).__name__


def _kubeconfig_place(name: str, paths: str) -> AccessPlace:
    reasons = [_absence(Path(path)) for path in paths.split(os.pathsep) if path]
    # Several files make one kubeconfig, and those that are not there are passed over, as in kubectl.
    absent = reasons and all(reasons)
    return AccessPlace(name, reasons[0] if absent else None, paths)


def _in_cluster_absence() -> str | None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        if not os.environ.get(name):
            return f"{name} is not set"
    token_file = SERVICE_ACCOUNT_FOLDER / "token"
    reason = _absence(token_file)
    return reason and f"{token_file}: {reason} (is automountServiceAccountToken off?)"


def _absence(path: Path) -> str | None:
    try:
        path.expanduser().stat()
    except OSError as error:
        return error.strerror
    except RuntimeError:
        return "this user has no home folder"
    return None
