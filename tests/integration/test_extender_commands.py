"""The commands that a person types beside a running extender: why a decision, and whether the scheduler's configuration fits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from tests.fakes.extender import Asked, always, make_load, make_manifest, serving
from tests.fakes.peer import Peer
from tests.fakes.watcher import eventually
from trimaran_client import cli
from trimaran_client.cli.extender_answer import ExtenderAnswerError

pytestmark = pytest.mark.timeout(30)

SAMPLE = Path(__file__).parents[2] / "k8s/overlays/scheduler/scheduler-config.yaml"
LOAD = {"a": 20.0, "b": 0.0, "hot": 90.0}


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    peer = Peer()
    await peer.serve(always(make_load(LOAD)))
    async with serving({}, load=peer) as serving_now:
        await eventually(lambda: serving_now.decider._load.snapshot.nodes)
        yield serving_now
    await peer.stop()


async def call(*arguments: str) -> Result:
    """Run a command beside the loop that serves."""
    return await asyncio.to_thread(CliRunner().invoke, cli.cli, arguments, standalone_mode=False)


async def explain(asked: Asked, *arguments: str, pod: str = "default/web") -> str:
    result = await call("explain", "--extender", asked.address, "--pod", pod, *arguments)
    if result.exception is not None:
        raise result.exception
    return result.output


class TestExplain:
    async def test_tells_the_decision_and_every_node(self, asked: Asked) -> None:
        await asked.prioritize(make_manifest(), LOAD)
        lines = (await explain(asked)).splitlines()
        assert lines[0] == "decided 2023-11-14 22:13:20 UTC for trimaran, not seen bound yet"
        assert lines[1] == "TargetLoadPacking (default) for pod default/web; load from fake, its reply 0 s old"
        assert [line for line in lines if line.startswith("#")] == [
            "#1 of 3: a, score 98, at_or_below_target",
            "#2 of 3: b, score 68, at_or_below_target",
            "#3 of 3: hot, score 0, over_capacity",
        ]

    async def test_tells_where_the_pod_was_bound_and_what_was_missing(self, asked: Asked) -> None:
        await asked.prioritize(make_manifest(), [*LOAD, "stranger"])
        [decision] = asked.decider.log
        for bound_to, told in (("b", "bound to b, which had 68"), ("elsewhere", "bound to elsewhere, which was no candidate")):
            decision.bound_to = bound_to
            lines = (await explain(asked)).splitlines()
            assert lines[0].endswith(told)
            assert lines[1] == "degraded: 1 of 4 nodes without usable metrics"

    async def test_some_nodes_keep_their_rank(self, asked: Asked) -> None:
        await asked.prioritize(make_manifest(), [*LOAD, *(f"n{number:02}" for number in range(40))])
        for arguments, told in (((), 13), (("--node", "b"), 1), (("--all",), 43)):
            output = await explain(asked, *arguments)
            assert sum(line.startswith("#") for line in output.splitlines()) == told
            assert "#2 of 43: b, score 68" in output

    async def test_json_has_everything(self, asked: Asked) -> None:
        await asked.prioritize(make_manifest(), [*LOAD, *(f"n{number:02}" for number in range(40))])
        answer = json.loads(await explain(asked, "--output", "json"))
        assert (len(answer["explanation"]["nodes"]), len(answer["candidates"]), answer["asDecided"]) == (43, 43, True)

    async def test_an_old_decision_is_told_as_one(self, asked: Asked) -> None:
        await asked.prioritize(make_manifest(), LOAD)
        for number in range(64):
            await asked.prioritize(make_manifest(f"later-{number}", cpu="0"), ["b"])
        output = await explain(asked)
        assert "the numbers of this decision are gone" in " ".join(output.split())

    @pytest.mark.parametrize(
        ("pod", "arguments", "message"),
        [
            ("default/other", (), "there is no decision on it; the scheduler does not ask where only one node is feasible"),
            ("other", (), "write namespace/name"),
            ("default/web", ("--node", "elsewhere"), "node elsewhere: not among the 3 candidates"),
        ],
    )
    async def test_what_is_not_known_is_told(self, asked: Asked, pod: str, arguments: tuple[str, ...], message: str) -> None:
        await asked.prioritize(make_manifest(), LOAD)
        with pytest.raises(ExtenderAnswerError, match=message):
            await explain(asked, *arguments, pod=pod)

    @pytest.mark.parametrize("address", ["http://127.0.0.1:1", "127.0.0.1:1", "nowhere"])
    async def test_nobody_there_is_told(self, address: str) -> None:
        result = await call("explain", "--extender", address, "--pod", "default/web")
        assert isinstance(result.exception, ExtenderAnswerError)
        assert str(result.exception).startswith(f"{address}: no answer of an extender: ")

    async def test_another_program_is_told(self) -> None:
        peer = Peer()
        await peer.serve(always(b"<html>"))
        result = await call("explain", "--extender", f"{peer.address}/watcher?", "--pod", "default/web")
        await peer.stop()
        assert "no answer of an extender" in str(result.exception)

    async def test_its_own_sources_are_refused_beside_it(self) -> None:
        result = await call("explain", "--extender", "http://x", "--pod", "a/b", "--watcher", "http://y", "--target", "50")
        assert isinstance(result.exception, click.UsageError)
        assert "leave --target, --watcher out" in result.exception.message


class TestSchedulerConfig:
    @pytest.fixture
    def sample(self) -> Any:
        return yaml.safe_load(SAMPLE.read_bytes())

    async def test_the_shipped_one_is_fine(self) -> None:
        result = await call("check-scheduler-config", str(SAMPLE), "--config", str(SAMPLE.with_name("extender.yaml")))
        assert (result.exit_code, result.output) == (0, "the configuration is fine\n")

    async def test_each_finding_is_a_line(self, sample: Any, tmp_path: Path) -> None:
        sample["extenders"][0] |= {"bindVerb": "bind", "ignorable": False}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(sample))
        result = await call("check-scheduler-config", str(tmp_path / "s.yaml"))
        assert isinstance(result.exception, SystemExit)
        assert result.exception.code == 1
        assert [line.split(":")[0] for line in result.output.splitlines()] == ["extenders[0].bindVerb", "extenders[0].ignorable"]

    async def probe(self, sample: Any, folder: Path, address: str, name: str = "trimaran") -> str:
        sample["extenders"][0]["urlPrefix"] = address
        sample["profiles"][0]["schedulerName"] = name
        (folder / "s.yaml").write_text(yaml.safe_dump(sample))
        return (await call("check-scheduler-config", str(folder / "s.yaml"), "--probe")).output

    async def test_a_probe_asks_as_the_scheduler_would(self, asked: Asked, sample: Any, tmp_path: Path) -> None:
        assert await self.probe(sample, tmp_path, asked.address) == "the configuration is fine\n"
        assert "pods of other are left alone" in await self.probe(sample, tmp_path, asked.address, "other")
        assert "pods of trimaran are left alone" not in await self.probe(sample, tmp_path, asked.address)

    async def test_a_probe_tells_who_does_not_answer(self, sample: Any, tmp_path: Path) -> None:
        peer = Peer()
        assert "see whether the extender runs there" in await self.probe(sample, tmp_path, peer.address)
        await peer.serve(always(b"{}"))
        assert "404, which is no answer of the extender" in await self.probe(sample, tmp_path, peer.address)
        await peer.stop()
