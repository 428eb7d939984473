"""The command as a process: how it starts, what it says when it cannot, and how it ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import load_watcher
from load_watcher.settings import list_variables

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 30
NODES = 60_000

Start = Callable[..., "Process"]

# Each test starts a process.
pytestmark = pytest.mark.slow


def make_environment(variables: dict[str, str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH", "COVERAGE_PROCESS_START") if name in os.environ}
    return {"LOAD_WATCHER_BIND": "127.0.0.1:0", **kept, **variables}


class Process:
    """A running ``load-watcher``, and its log as records."""

    def __init__(self, variables: dict[str, str]) -> None:
        command = [sys.executable, "-m", "load_watcher"]
        self.popen = subprocess.Popen(command, cwd=ROOT, env=make_environment(variables), stderr=subprocess.PIPE, text=True)
        self.records: list[dict[str, Any]] = []

    def wait_for(self, event: str) -> dict[str, Any]:
        """Find a record, read already or still to come; the test's own timeout ends a wait that is too long."""
        assert self.popen.stderr is not None
        for record in self.records:
            if record["event"] == event:
                return record
        for line in self.popen.stderr:
            self.records.append(json.loads(line))
            if self.records[-1]["event"] == event:
                return self.records[-1]
        pytest.fail(f"the process ended without {event!r}: {self.records}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(DEADLINE_SECONDS)

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        if self.popen.stderr is not None:
            self.popen.stderr.close()


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[Process] = []

    def start_process(**variables: str) -> Process:
        processes.append(Process(variables))
        return processes[-1]

    yield start_process
    for process in processes:
        process.end()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "day.jsonl"
    path.write_text(json.dumps({"at": 1.0, "nodes": ["n1", "n2"], "latest": {"CPU": [12.5, 50]}, "capacity": [{"cpu": "8"}, None]}) + "\n")
    return path


def replay(path: Path) -> dict[str, str]:
    return {"METRICS_PROVIDER_NAME": "Recorded", "METRICS_PROVIDER_ADDRESS": str(path)}


def fetch(url: str) -> Any:
    """Get a page as soon as it is there."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_SECONDS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 503 or time.monotonic() > deadline:
                raise


def run(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "load_watcher"],
        cwd=ROOT,
        env=make_environment(variables),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_says_where_and_ends_cleanly(start: Start, recording: Path, number: int) -> None:
    process = start(**replay(recording), LOAD_WATCHER_REFRESH_SECONDS="1")
    listening = process.wait_for("listening")
    assert (listening["provider"], listening["reason"]) == ("Recorded", "METRICS_PROVIDER_NAME names it")
    assert process.wait_for("try it")["command"] == f"curl -s {listening['url']}/watcher"
    reply = fetch(f"{listening['url']}/watcher")
    assert reply["source"] == "Recorded"
    assert reply["data"]["NodeMetricsMap"]["n2"]["metrics"][0]["value"] == 50
    assert reply["timestamp"] - reply["window"]["end"] in range(5)
    assert process.stop(number) == 0
    assert all(record["level"] == "info" for record in process.records)


def test_without_a_cluster_it_serves_this_machine_and_says_so(start: Start, tmp_path: Path) -> None:
    process = start(HOME=str(tmp_path))
    listening = process.wait_for("listening")
    assert listening["provider"] == "Local"
    assert "no access to a cluster" in listening["reason"]
    reply = fetch(f"{listening['url']}/watcher")
    assert reply["source"] == "Local"
    (entry,) = reply["data"]["NodeMetricsMap"].values()
    assert [metric["type"] for metric in entry["metrics"]] == ["CPU", "Memory"]
    assert process.stop() == 0


def test_a_request_in_flight_is_answered_before_the_end(start: Start, tmp_path: Path) -> None:
    """A client that reads slowly holds its answer in flight: the reply is larger than what the sockets between can take."""
    path = tmp_path / "large.jsonl"
    nodes = [f"node-with-a-long-name-{number:06}" for number in range(NODES)]
    path.write_text(json.dumps({"at": 1.0, "nodes": nodes, "latest": {"CPU": [1.5] * NODES}}) + "\n")
    process = start(**replay(path))
    listening = process.wait_for("listening")
    fetch(f"{listening['url']}/watcher?host={nodes[0]}")
    address = ("127.0.0.1", int(listening["url"].rpartition(":")[2]))
    with closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(DEADLINE_SECONDS)
        client.connect(address)
        client.sendall(b"GET /watcher HTTP/1.1\r\nHost: x\r\n\r\n")
        received = bytearray(client.recv(1024))
        process.popen.send_signal(signal.SIGTERM)
        process.wait_for("stopping")
        deadline = time.monotonic() + DEADLINE_SECONDS
        while is_accepting(address):
            assert time.monotonic() < deadline
        assert process.popen.poll() is None
        while chunk := client.recv(1 << 20):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
    assert len(json.loads(body)["data"]["NodeMetricsMap"]) == NODES
    assert process.popen.wait(DEADLINE_SECONDS) == 0


def is_accepting(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=DEADLINE_SECONDS).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    return True


def test_all_wrong_settings_are_told_at_once() -> None:
    done = run(LOG_LEVEL="loud", LOAD_WATCHER_BIND="2020", METRICS_PROVIDER_NAME="Lokal", LOAD_WATCHER_REFRESH="5")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("load-watcher: ") for line in lines)
    for name in ("LOG_LEVEL='loud'", "LOAD_WATCHER_BIND='2020'", "METRICS_PROVIDER_NAME='Lokal'", "LOAD_WATCHER_REFRESH is not"):
        assert name in done.stderr


def test_an_unknown_variable_is_a_warning_in_the_log(start: Start, recording: Path) -> None:
    process = start(**replay(recording), LOAD_WATCHER_REFRESH_SECOND="1", LOAD_WATCHER_PORT="tcp://10.0.0.1:2020")
    process.wait_for("listening")
    warnings = [record["event"] for record in process.records if record["level"] == "warning"]
    assert warnings == [
        "LOAD_WATCHER_REFRESH_SECOND is not a variable of the load watcher and changes nothing (did you mean LOAD_WATCHER_REFRESH_SECONDS?)"
    ]
    assert process.stop() == 0


def test_a_port_that_is_taken_is_one_clear_line(recording: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run(**replay(recording), LOAD_WATCHER_BIND=bind)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"load-watcher: cannot listen on {bind}: Address already in use; stop what uses it, or set LOAD_WATCHER_BIND to another address"
    ]


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_ipv6(start: Start, recording: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    process = start(**replay(recording), LOAD_WATCHER_BIND="[::1]:0")
    url = process.wait_for("listening")["url"]
    assert url.startswith("http://[::1]:")
    assert fetch(f"{url}/watcher")["source"] == "Recorded"
    assert process.stop() == 0


def test_a_provider_that_fails_leaves_it_serving_errors_that_say_why(start: Start, recording: Path) -> None:
    recording.write_text("not json\n")
    process = start(**replay(recording))
    url = process.wait_for("listening")["url"]
    failed = process.wait_for("refresh failed")
    assert failed["cause"] == "reply"
    assert "line 1: JSON is malformed" in failed["error"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{url}/readyz", timeout=DEADLINE_SECONDS)
    with caught.value as response:
        assert response.code == 503
        assert "line 1" in json.load(response)["message"]
    assert process.stop() == 0


def run_module(*arguments: str) -> str:
    command = [sys.executable, "-m", "load_watcher", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=DEADLINE_SECONDS).stdout


def test_help_names_every_setting_with_its_default_and_every_endpoint() -> None:
    text = run_module("--help")
    for variable in list_variables():
        assert variable.name + (f" [{variable.default}]" if variable.default else "") in text
    for endpoint in ("/watcher ", "?host=NODE", "/watcher/health", "/api/v1/snapshot", "/livez", "/readyz", "/metrics"):
        assert endpoint in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_version() -> None:
    assert run_module("--version") == f"load-watcher {load_watcher.__version__}\n"


def test_importing_the_package_does_nothing() -> None:
    code = "import sys; before = set(sys.modules); import load_watcher; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["__future__", "load_watcher"]


def test_a_client_that_waits_for_a_snapshot_is_answered_when_it_stops(start: Start, recording: Path) -> None:
    """Held for a minute, it would be cut off without an answer when the time for stopping is over."""
    slow = {"LOAD_WATCHER_REFRESH_SECONDS": "3600", "LOAD_WATCHER_STALE_SECONDS": "7200", "LOAD_WATCHER_EXPIRED_SECONDS": "9999"}
    process = start(**replay(recording), **slow)
    address = urllib.parse.urlsplit(process.wait_for("listening")["url"])
    fetch(f"{address.geturl()}/api/v1/snapshot")
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=DEADLINE_SECONDS)
    with closing(connection):
        connection.request("GET", "/api/v1/snapshot")
        first = connection.getresponse()
        first.read()
        connection.request("GET", "/api/v1/snapshot?wait=60", headers={"If-None-Match": first.headers["ETag"]})
        # One connection is served in order: what is asked on another afterwards finds this one waiting.
        fetch(f"{address.geturl()}/api/v1/status")
        process.popen.send_signal(signal.SIGTERM)
        assert connection.getresponse().status == 304
    assert process.popen.wait(DEADLINE_SECONDS) == 0
