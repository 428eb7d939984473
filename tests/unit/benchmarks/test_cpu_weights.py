from pathlib import Path

import pytest

from tests.benchmarks.burst_extender import read_cpu_requests
from tests.benchmarks.cpu_weights import CpuWeights, compute_shares, compute_weight, weighing

REQUESTS = {"kube-scheduler": 250, "load-watcher": 50, "extender": 250}


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which folders get and lose their files as those of control groups do."""
    mkdir, rmdir = Path.mkdir, Path.rmdir

    def make(folder: Path) -> None:
        mkdir(folder)
        (folder / "cgroup.procs").touch()

    def remove(folder: Path) -> None:
        for path in folder.iterdir():
            if path.is_file():
                path.unlink()
        rmdir(folder)

    monkeypatch.setattr(Path, "mkdir", make)
    monkeypatch.setattr(Path, "rmdir", remove)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    return tmp_path


@pytest.fixture
def first(kernel: Path) -> Path:
    (kernel / "cpu.shares").write_text("1024")
    return kernel


@pytest.fixture
def second(kernel: Path) -> Path:
    (kernel / "cgroup.controllers").write_text("cpuset cpu io\n")
    return kernel


def read(folder: Path, name: str) -> dict[str, str]:
    """Return the files of that name in the groups below *folder*: path, without the group of all pods, → content."""
    (node,) = (path for path in folder.iterdir() if path.is_dir())
    return {str(path.parent.relative_to(node)): path.read_text() for path in node.rglob(name)}


@pytest.mark.parametrize(
    ("request_millicores", "shares"),
    [(0, 2), (1, 2), (2, 2), (50, 51), (100, 102), (250, 256), (1000, 1024), (256_000, 262_144), (300_000, 262_144)],
)
def test_shares_are_1024_for_a_core(request_millicores: int, shares: int) -> None:
    assert compute_shares(request_millicores) == shares


@pytest.mark.parametrize(
    ("shares", "weight"),
    # By hand for 256 shares: l = 8, (64 + 1000) / 612 - 7/34 = 1.533, 10 to that power = 34.1.
    [(0, 1), (2, 1), (102, 17), (256, 35), (1024, 100), (2048, 174), (262_144, 10_000), (300_000, 10_000)],
)
def test_weight_is_100_for_a_core(shares: int, weight: int) -> None:
    assert compute_weight(shares) == weight


def test_pod_weighs_the_sum_of_its_containers(first: Path) -> None:
    with weighing([first]) as weights, weights.pod("ours", REQUESTS, {"kube-scheduler": 11, "extender": 12}):
        assert read(first, "cpu.shares") == {
            ".": "2048",  # two cores
            "ours": "563",  # 550m
            "ours/kube-scheduler": "256",
            "ours/load-watcher": "51",
            "ours/extender": "256",
        }
        pids = {name: text for name, text in read(first, "cgroup.procs").items() if text}
        assert pids == {"ours/kube-scheduler": "11", "ours/extender": "12"}


def test_second_version_has_weights_and_the_controller_down_to_the_containers(second: Path) -> None:
    with weighing([second]) as weights, weights.pod("etcd", {"etcd": 100}, {"etcd": 11}):
        assert read(second, "cpu.weight") == {".": "174", "etcd": "17", "etcd/etcd": "17"}
        assert read(second, "cgroup.subtree_control") == {".": "+cpu", "etcd": "+cpu"}
        assert (second / "cgroup.subtree_control").read_text() == "+cpu"
        assert read(second, "cgroup.procs")["etcd/etcd"] == "11"


def test_nothing_is_left_and_processes_go_back(first: Path) -> None:
    before = {*first.iterdir()}
    with pytest.raises(ZeroDivisionError), weighing([first]) as weights, weights.pod("etcd", {"etcd": 100}, {"etcd": 11}):
        raise ZeroDivisionError
    assert {*first.iterdir()} - before == {first / "cgroup.procs"}
    assert (first / "cgroup.procs").read_text() == "11"


def test_pods_stand_beside_each_other(first: Path) -> None:
    with weighing([first]) as weights, weights.pod("etcd", {"etcd": 100}, {}), weights.pod("api", {"api": 250}, {}):
        assert read(first, "cpu.shares") == {".": "2048", "etcd": "102", "etcd/etcd": "102", "api": "256", "api/api": "256"}


def test_next_controller_is_taken_where_the_first_is_missing(first: Path) -> None:
    with weighing([first / "missing", first]) as weights:
        assert weights.description.startswith(f"CPU weights: as in a cluster, by {first}/trimaran-pods-")


def test_without_a_controller_nothing_is_weighed_and_said_so(kernel: Path) -> None:
    """Where version 1 has the CPU, version 2 does not; and a folder is not a control group."""
    (kernel / "cgroup.controllers").write_text("io\n")
    folders = [kernel, kernel / "missing", kernel.parent]
    with weighing(folders) as weights, weights.pod("etcd", {"etcd": 100}, {"etcd": 11}):
        assert "no CPU controller of control groups is writable" in weights.description
    assert [*kernel.iterdir()] == [kernel / "cgroup.controllers"]


def test_equal_weights_make_no_groups() -> None:
    weights = CpuWeights()
    with weights.pod("etcd", {"etcd": 100}, {"etcd": 11}):
        assert weights.description == "CPU weights: all processes equal"


def test_requests_are_read_from_what_we_ship() -> None:
    assert read_cpu_requests() == REQUESTS
