"""Certificates and kubeconfig files of a test cluster, all below one folder."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority and the certificates that it has issued."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ca = trustme.CA(organization_name=name)
        self._folder = folder
        self.certificate = folder / f"{name}.crt"
        self._ca.cert_pem.write_to_path(self.certificate)

    def issue_server(self, name: str, *hosts: str) -> KeyPair:
        """Issue a certificate for a server that clients reach as *hosts*."""
        return self._write(name, self._ca.issue_cert(*hosts, common_name=name))

    def issue_client(self, user: str, *, group: str = "") -> KeyPair:
        """Issue a certificate that the API server reads as *user* in *group*."""
        # Without a host name trustme writes an empty list of names and marks it critical, which Go refuses.
        return self._write(user, self._ca.issue_cert("localhost", common_name=user, organization_name=group or None))

    def make_client_context(self, identity: KeyPair | None = None) -> ssl.SSLContext:
        """Return a context that trusts this authority and presents *identity*, if any."""
        context = ssl.create_default_context(cafile=self.certificate)
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        return context

    def _write(self, name: str, leaf: trustme.LeafCert) -> KeyPair:
        pair = KeyPair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        leaf.cert_chain_pems[0].write_to_path(pair.certificate)
        leaf.private_key_pem.write_to_path(pair.key)
        return pair


def write_kubeconfig(path: Path, *, server: str, authority: Authority, identity: KeyPair | str) -> Path:
    """Write a kubeconfig for *server* that presents *identity*, a certificate or a bearer token, and return its path; JSON is YAML too."""
    if isinstance(identity, str):
        user = {"token": identity}
    else:
        user = {"client-certificate": str(identity.certificate), "client-key": str(identity.key)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority": str(authority.certificate)}}],
        "users": [{"name": "e2e", "user": user}],
    }
    path.write_text(json.dumps(document, indent=2))
    return path
