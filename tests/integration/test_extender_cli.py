"""``trimaran extender`` as a process: what it refuses, how it starts, and how it stops."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.extender import make_manifest, make_node_manifest, make_question, read_scores
from trimaran_client import cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

NO_WATCHER = ("--watcher", "http://127.0.0.1:1", "--no-cluster")


def run(*arguments: str) -> tuple[int, str, list[str]]:
    """Run it to its end: exit status, standard output, lines of standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "trimaran_client", "extender", *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stdout, done.stderr.splitlines()


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run it on a free port until the block ends: the process and its address."""
    command = [sys.executable, "-m", "trimaran_client", "extender", "--bind", "127.0.0.1:0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            event = json.loads(line)["event"]
            if event.startswith("listening on "):
                yield process, f"http://{event.split()[2].rstrip(';')}"
                break
        else:
            raise AssertionError("it ended before it listened")
    finally:
        process.kill()
        process.communicate()


def post(address: str, body: bytes) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(f"{address}/prioritize", data=body), timeout=10) as response:
        answer: bytes = response.read()
    return answer


def test_a_first_try_needs_no_file_and_nothing_else_running() -> None:
    with running(*NO_WATCHER) as (_, address):
        assert read_scores(post(address, make_question(make_manifest(), nodes=[make_node_manifest("a")]))) == {"a": 50}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_with_connections_open(number: signal.Signals) -> None:
    with running(*NO_WATCHER) as (process, address):
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(number)
            assert process.wait(timeout=20) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_log_that_nobody_reads_holds_up_no_answer() -> None:
    """A pipe takes 64 KiB; what reads it may hang with its disk."""
    with running("--shadow", *NO_WATCHER) as (process, address):
        for number in range(600):
            assert post(address, make_question(make_manifest(f"pod-{number}"), ["a"])) == b"[]"
        assert process.poll() is None


def test_all_connections_that_are_allowed_are_used() -> None:
    with running(*NO_WATCHER) as (process, _):
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard


def test_options_take_the_place_of_what_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("bind: 127.0.0.1:1\nwatcher: http://127.0.0.1:2\nlogFormat: json\n")
    with running("--config", str(tmp_path / "e.yaml"), "--shadow", *NO_WATCHER) as (_, address):
        assert post(address, make_question(make_manifest(), ["a"])) == b"[]"


def test_a_port_in_use_is_told_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        status, _, lines = run("--bind", bind, *NO_WATCHER)
    assert (status, lines[-1]) == (1, f"trimaran: cannot listen on {bind}: Address already in use; give another --bind")


def test_a_cluster_without_access_is_told(tmp_path: Path) -> None:
    status, _, lines = run("--kubeconfig", str(tmp_path / "none"), "--watcher", "http://127.0.0.1:1")
    assert status == 1
    assert str(tmp_path / "none") in lines[-1]


class TestFile:
    """In this process: nothing is served."""

    @pytest.fixture
    def main(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, list[str]]]:
        def call(*arguments: str) -> tuple[int, str, list[str]]:
            monkeypatch.setattr("sys.argv", ["trimaran", "extender", *arguments])
            with pytest.raises(SystemExit) as caught:
                cli.main()
            output, errors = capsys.readouterr()
            return int(caught.value.code or 0), output, errors.splitlines()

        return call

    def test_with_problems_has_a_line_for_each(self, main: Any, tmp_path: Path) -> None:
        (tmp_path / "bad.yaml").write_text("bnd: x\nscale: 7\nprofiles: [{policy: Nope}]\n")
        status, output, lines = main("--config", str(tmp_path / "bad.yaml"))
        assert (status, output, len(lines)) == (1, "", 3)
        assert [line.removeprefix("trimaran: ").startswith(f"{tmp_path}/bad.yaml: ") for line in lines] == [True] * 3
        assert "did you mean bind?" in lines[0]

    def test_that_is_not_there_is_told(self, main: Any) -> None:
        status, _, lines = main("--config", "/nowhere/e.yaml")
        assert (status, lines) == (1, ["trimaran: /nowhere/e.yaml: No such file or directory; check the path and who may read it"])

    def test_can_be_checked_alone(self, main: Any, tmp_path: Path) -> None:
        (tmp_path / "e.yaml").write_text("scale: 10")
        assert main("--check", "--config", str(tmp_path / "e.yaml")) == (0, "the configuration is fine\n", [])

    def test_options_are_checked_with_it(self, main: Any) -> None:
        status, _, lines = main("--check", "--bind", "here", "--watcher", "there")
        assert (status, len(lines)) == (1, 2)
