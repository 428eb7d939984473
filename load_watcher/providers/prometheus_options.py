"""Where Prometheus is and how to ask it, and how the settings say so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from load_watcher.providers.endpoint import Secret
from load_watcher.providers.prometheus_http import TlsSettings
from load_watcher.settings import Settings

# As in the Go load-watcher.
DEFAULT_ADDRESS: Final = "http://prometheus-k8s:9090"
# Kubernetes puts these files into every pod that does not refuse them.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class PrometheusOptions:
    """
    Where Prometheus is and how to ask it.

    Args:
        address: With its scheme, and with the path prefix if it has one.
        token: Bearer token, or what reads it; ``None`` for none.
        username: For basic authentication, where there is no token.
        password: Belongs to the user name.
        tls: How the server is checked.
        catalogue_path: The user's catalogue; ``None`` for the built-in one alone.
        host_labels: Labels that name the node, before those of the catalogue's own file.
        host_suffix: What the source appends to the names of nodes.
        go_scaling: Multiply every value by 100 whatever its unit, as the Go load-watcher does.
        timeout_seconds: For a whole refresh.
    """

    address: str = DEFAULT_ADDRESS
    token: Secret | None = field(default=None, repr=False)
    username: str = ""
    password: Secret | None = field(default=None, repr=False)
    tls: TlsSettings = field(default_factory=TlsSettings)
    catalogue_path: Path | None = None
    host_labels: tuple[str, ...] = ()
    host_suffix: str = ""
    go_scaling: bool = False
    timeout_seconds: float = 10.0


def read_options(settings: Settings) -> PrometheusOptions:
    """Read the settings; with ENABLE_OPENSHIFT_AUTH what is not set comes from the pod's service account."""
    token_file, ca_file = settings.provider_token_file, settings.provider_ca_file
    if settings.openshift_auth:
        ca_file = ca_file or SERVICE_ACCOUNT / "ca.crt"
        token_file = token_file or SERVICE_ACCOUNT / "token"
    return PrometheusOptions(
        address=settings.provider_address or DEFAULT_ADDRESS,
        token=_choose_secret(settings.provider_token, token_file),
        username=settings.provider_username,
        password=_choose_secret(settings.provider_password, settings.provider_password_file),
        tls=TlsSettings(
            ca_file=ca_file,
            verify=not settings.insecure_skip_verify,
            certificate=settings.provider_cert_file,
            key=settings.provider_key_file,
            server_name=settings.provider_server_name,
        ),
        catalogue_path=settings.catalogue,
        host_labels=settings.host_labels,
        host_suffix=settings.host_suffix,
        go_scaling=settings.go_scaling,
        # A little less than the watcher's own deadline, so that the error says more than that time is over.
        timeout_seconds=0.9 * settings.fetch_timeout_seconds,
    )


def _choose_secret(value: SecretStr | None, path: Path | None) -> Secret | None:
    if value is not None:
        return value.get_secret_value()
    return None if path is None else path.read_text
