"""Settings that every test shares."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from trimaran_client.kube import access

# The short form runs in every `make test`; `make prove` sets the long one. Both derive their examples from the test itself, so that a
# failure comes back; the time of one example never decides.
settings.register_profile("short", max_examples=100, derandomize=True, deadline=None)
settings.register_profile("long", max_examples=20_000, derandomize=False, deadline=None)
settings.load_profile("long" if os.environ.get("TRIMARAN_PROVE") else "short")


@pytest.fixture
def no_access(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any access to Kubernetes; each test adds some."""
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(access, "SERVICE_ACCOUNT_FOLDER", tmp_path / "serviceaccount")
