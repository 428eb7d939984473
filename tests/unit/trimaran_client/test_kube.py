"""The parts of the Kubernetes access that need no server."""

import subprocess
import sys
from pathlib import Path

import pytest

from trimaran_client.kube import WatchTimes, find_access

pytestmark = pytest.mark.usefixtures("no_access")


def in_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")


def test_find_access_names_each_place_and_why_there_is_nothing() -> None:
    cluster, home = find_access()
    assert (cluster.name, cluster.absence) == ("in-cluster files", "KUBERNETES_SERVICE_HOST is not set")
    assert (home.name, home.absence) == ("~/.kube/config", "No such file or directory")


def test_find_access_needs_the_token_in_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_cluster(monkeypatch)
    absence = find_access()[0].absence
    assert absence is not None
    assert "automountServiceAccountToken" in absence
    (tmp_path / "serviceaccount").mkdir()
    (tmp_path / "serviceaccount" / "token").write_text("secret")
    assert find_access()[0].absence is None


def test_find_access_prefers_kubeconfig_variable_to_the_home_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home_file = tmp_path / "home" / ".kube" / "config"
    home_file.parent.mkdir(parents=True)
    home_file.touch()
    assert find_access()[1].absence is None
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert find_access()[1].absence == "No such file or directory"


def test_find_access_passes_over_absent_files_of_a_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "present").touch()
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{tmp_path / 'present'}")
    assert find_access()[1].absence is None


def test_find_access_takes_a_given_path_as_the_only_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_cluster(monkeypatch)
    (place,) = find_access(tmp_path / "absent")
    assert place.absence == "No such file or directory"


def test_find_access_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user id without an entry in the user database."""

    def no_home(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert find_access()[1].absence == "this user has no home folder"


def test_pauses_double_up_to_the_cap_with_jitter() -> None:
    times = WatchTimes(first_pause_seconds=0.5, max_pause_seconds=30)
    for failures, longest in ((0, 0.5), (1, 1.0), (3, 4.0), (7, 30.0), (5000, 30.0)):
        pauses = [times.pause_seconds(failures) for _ in range(200)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


def test_import_is_cheap() -> None:
    code = "import sys, trimaran_client.kube; sys.exit(bool({'kubernetes_asyncio', 'aiohttp'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
