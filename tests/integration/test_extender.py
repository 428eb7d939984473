"""The extender over real connections: what a scheduler gets for whatever it sends, and what people get who ask why."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.fakes.extender import Asked, always, make_load, make_manifest, make_node_manifest, make_question, read_scores, serving
from tests.fakes.peer import Peer
from tests.fakes.watcher import eventually
from trimaran_client.explain import Explanation, explain_columns
from trimaran_client.extender import handlers
from trimaran_client.extender.handlers import MAX_BODY_BYTES
from trimaran_client.policies.target_load_packing import TargetLoadPacking

pytestmark = pytest.mark.timeout(30)

# 1500m of 8 cores: 60 · 38.75 / 40 + 40 = 98; 60 · 18.75 / 40 + 40 = 68; over capacity.
LOAD = {"a": 20.0, "b": 0.0, "hot": 90.0}
SCORES = {"a": 98, "b": 68, "hot": 0}
VERBS = ("/prioritize", "/filter")
NAMED = make_question(make_manifest(), LOAD)


@pytest.fixture
async def load() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.serve(always(make_load(LOAD)))
    yield peer
    await peer.stop()


async def wait_for_load(asked: Asked) -> Asked:
    await eventually(lambda: asked.decider._load.snapshot.nodes)
    return asked


@pytest.fixture
async def asked(load: Peer) -> AsyncIterator[Asked]:
    async with serving({"filter": {"enabled": True}}, load=load) as serving_now:
        yield await wait_for_load(serving_now)


class TestScheduler:
    async def test_names_are_scored(self, asked: Asked) -> None:
        assert await asked.prioritize(make_manifest(), LOAD) == SCORES

    async def test_whole_nodes_are_scored_by_their_own_capacity(self, asked: Asked) -> None:
        """1500m of 2 cores: 20 + 75 = 95 % → 40 · 5 / 60 = 3; 75 % → 17."""
        scores = await asked.prioritize(make_manifest(), nodes=[make_node_manifest("a", "2"), make_node_manifest("b", "2")])
        assert scores == {"a": 3, "b": 17}

    async def test_every_node_is_listed_once_and_none_other(self, asked: Asked) -> None:
        names = ["stranger", "b", 'quote"d', "a", "b", "stranger", "línea", ""]
        scores = await asked.prioritize(make_manifest(), names)
        assert list(scores) == ["stranger", "b", 'quote"d', "a", "línea", ""]
        assert {name: scores[name] for name in ("a", "b")} == {"a": 98, "b": 68}

    async def test_thousands_of_names_in_their_order(self, asked: Asked) -> None:
        names = [f"node-{number:04}.some-longer-suffix.example" for number in range(5000)]
        assert list(await asked.prioritize(make_manifest(), names)) == names

    async def test_other_schedulers_pods_are_left_alone(self, asked: Asked) -> None:
        for pod in (make_manifest(scheduler="default-scheduler"), make_manifest(scheduler=""), {}, None):
            status, body, _ = await asked.post("/prioritize", make_question(pod, LOAD))
            assert (status, body) == (200, b"[]")

    async def test_hot_nodes_are_taken_out_with_the_reason(self, asked: Asked) -> None:
        _, body, _ = await asked.post("/filter", NAMED)
        assert json.loads(body) == {
            "Nodes": None,
            "NodeNames": ["a", "b"],
            "FailedAndUnresolvableNodes": {"hot": "CPU 90.0 % is above the threshold of 80 %"},
            "Error": "",
        }
        assert (await asked.metrics())["refused_nodes_total"] == 1

    async def test_other_schedulers_pods_go_to_hot_nodes(self, asked: Asked) -> None:
        _, body, _ = await asked.post("/filter", make_question(make_manifest(scheduler="other"), LOAD))
        assert json.loads(body)["NodeNames"] == list(LOAD)

    @pytest.mark.parametrize(
        ("question", "scores", "filtered"),
        [
            (b'{"Pod":{},"Nodes":null,"NodeNames":null}', [], {"items": []}),
            (b'{"pod":{"spec":{"schedulerName":"trimaran"}},"nodenames":["b"]}', [{"Host": "b", "Score": 40}], ["b"]),
            (b'{"Pod":{"spec":{"schedulerName":"trimaran"}},"Nodes":{"items":null},"NodeNames":null}', [], {"items": []}),
            (b'{"Pod":null,"Nodes":null,"NodeNames":["a"]}', [], ["a"]),
        ],
    )
    async def test_report_69_null_and_missing_fields(self, asked: Asked, question: bytes, scores: Any, filtered: Any) -> None:
        status, body, _ = await asked.post("/prioritize", question)
        assert (status, json.loads(body)) == (200, scores)
        status, body, _ = await asked.post("/filter", question)
        reply = json.loads(body)
        assert (status, reply["NodeNames"] if reply["Nodes"] is None else reply["Nodes"]) == (200, filtered)

    @pytest.mark.parametrize("path", VERBS)
    @pytest.mark.parametrize(
        "body", [b"", b"[]", b"null", b"<html>", b'{"Pod":', b"\xff\xfe", b'{"Pod":{},"Nodes":{"items":[{}]}}', b'{"Nodes":{"items":[1]}}']
    )
    async def test_report_69_what_is_no_question_is_400_and_nothing(
        self, asked: Asked, path: str, body: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        status, answer, headers = await asked.post(path, body)
        assert (status, answer, headers["Content-Length"]) == (400, b"", "0")
        assert "cannot be read is answered with 400" in caplog.text
        assert (await asked.metrics())['answers_total{outcome="bad_body"}'] == 1

    async def test_a_body_that_is_too_large_is_413_and_nothing(self, asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
        status, answer, _ = await asked.post("/prioritize", b" " * (MAX_BODY_BYTES + 1024 * 1024))
        assert (status, answer) == (413, b"")
        assert "set nodeCacheCapable: true" in caplog.text
        assert await asked.prioritize(make_manifest(), LOAD) == SCORES

    async def test_a_large_body_is_read(self, asked: Asked) -> None:
        padding = json.dumps("x" * 8 * 1024 * 1024).encode()
        status, body, _ = await asked.post("/prioritize", NAMED[:-1] + b',"Padding":' + padding + b"}")
        assert (status, read_scores(body)) == (200, SCORES)

    @pytest.mark.parametrize(
        ("method", "path", "status"), [("GET", "/prioritize", 405), ("PUT", "/filter", 405), ("DELETE", "/filter", 405)]
    )
    async def test_errors_of_the_verbs_are_empty(self, asked: Asked, method: str, path: str, status: int) -> None:
        async with asked.session.request(method, asked.address + path) as response:
            assert (response.status, await response.read(), response.headers["Allow"]) == (status, b"", "POST")

    async def test_a_connection_is_kept_and_every_answer_tells_its_length(self, asked: Asked) -> None:
        """Go drops a connection whose reply is chunked or not read to the end, and each new one costs the scheduler a round trip."""
        questions = [("/prioritize", NAMED), ("/filter", NAMED), ("/prioritize", b""), ("/filter", b"[]"), ("/prioritize", NAMED)]
        opened: list[object] = []
        trace = aiohttp.TraceConfig()

        async def note(*_: object) -> None:
            opened.append(None)

        trace.on_connection_create_end.append(note)
        async with aiohttp.ClientSession(trace_configs=[trace]) as session:
            for path, body in questions * 5:
                async with session.post(asked.address + path, data=body) as response:
                    assert int(response.headers["Content-Length"]) == len(await response.read())
                    assert "Transfer-Encoding" not in response.headers
        assert len(opened) == 1

    async def test_a_verb_that_there_is_not_is_logged_once(self, asked: Asked, caplog: pytest.LogCaptureFixture) -> None:
        """The scheduler does not show it, and pods just go elsewhere."""
        for _ in range(3):
            status, _, _ = await asked.post("/scheduler/prioritize", NAMED)
            assert status == 404
        assert caplog.text.count("POST /scheduler/prioritize is answered with 404; a scheduler is to ask for /prioritize or /filter") == 1


class TestSettings:
    async def test_report_73_the_short_scale(self, load: Peer) -> None:
        """98 and 28 become 10 and 3: with 1500m more, b has 18.75 % of its own and a second pod would bring a to 57.5 %."""
        async with serving({"scale": 10}, load=load) as asked:
            await wait_for_load(asked)
            assert await asked.prioritize(make_manifest("one"), ["a"]) == {"a": 10}
            assert await asked.prioritize(make_manifest("two"), ["a"]) == {"a": 3}

    async def test_shadow_answers_nothing_and_logs_what_it_would(self, load: Peer, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        async with serving({"shadow": True, "filter": {"enabled": True}}, load=load) as asked:
            await wait_for_load(asked)
            assert (await asked.post("/prioritize", NAMED))[1] == b"[]"
            _, body, _ = await asked.post("/filter", NAMED)
            assert json.loads(body)["NodeNames"] == list(LOAD)
            assert "would take out {'hot': 'CPU 90.0 %" in caplog.text
            decision = await asked.decision()
            assert "pod default/web would go to a with 98" in caplog.text
            assert (decision["shadow"], decision["nodes"][0]) == (True, {"node": "a", "score": 98, "reason": "at_or_below_target"})
            assert (await asked.metrics())['answers_total{outcome="shadow"}'] == 1

    async def test_without_its_setting_the_filter_keeps_all(self, load: Peer) -> None:
        async with serving({}, load=load) as asked:
            await wait_for_load(asked)
            _, body, _ = await asked.post("/filter", NAMED)
            assert json.loads(body)["NodeNames"] == list(LOAD)

    async def test_each_profile_has_its_policy(self, load: Peer) -> None:
        profiles = [{"schedulerName": "low", "args": {"target_percent": 20}}, {"schedulerName": "risk", "policy": "LowRiskOverCommitment"}]
        async with serving({"profiles": profiles}, load=load) as asked:
            await wait_for_load(asked)
            scores = {name: await asked.prioritize(make_manifest(name, scheduler=name), LOAD) for name in ("low", "risk", "trimaran")}
        # 20 · (100 - 38.75) / 80 = 15; 80 · 18.75 / 20 + 20 = 95.
        assert scores["low"] == {"a": 15, "b": 95, "hot": 0}
        assert set(scores["risk"]) == set(LOAD)
        assert scores["trimaran"] == {}

    async def test_a_pods_wish_is_followed_and_a_bad_one_counted(self, load: Peer) -> None:
        async with serving({"profiles": [{"overrides": ["target-cpu-percent"]}]}, load=load) as asked:
            await wait_for_load(asked)
            wished: dict[str, Any] = {"annotations": {"trimaran.io/target-cpu-percent": "20"}}
            assert await asked.prioritize(make_manifest("one", **wished), ["b"]) == {"b": 95}
            assert await asked.prioritize(make_manifest("two", annotations={"trimaran.io/target-cpu-percent": "x"}), ["hot"]) == {"hot": 0}
            assert (await asked.metrics())["ignored_overrides_total"] == 1


async def test_report_75_a_policy_that_raises_is_answered_with_200(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(TargetLoadPacking, "score_nodes", fail)
    assert await asked.prioritize(make_manifest(), LOAD) == dict.fromkeys(LOAD, 50)
    metrics = await asked.metrics()
    assert (metrics['failures_total{cause="policy"}'], metrics['answers_total{outcome="neutral"}']) == (1, 1)


async def test_report_74_no_question_is_a_count_of_zero(asked: Asked) -> None:
    """A scheduler does not ask where only one node is feasible: the count is there, and stays 0."""
    metrics = await asked.metrics()
    assert {name for name in metrics if name.startswith("answers_total")} == {
        f'answers_total{{outcome="{outcome}"}}' for outcome in ("scored", "neutral", "other_scheduler", "shadow", "filtered", "bad_body")
    }
    assert {value for name, value in metrics.items() if name.startswith("answers_total")} == {0}


async def test_report_71_a_thousand_whole_nodes_and_five_thousand_names(asked: Asked) -> None:
    filler = {f"annotation-{number}": "x" * 100 for number in range(50)}
    nodes = [make_node_manifest(f"n{number}") for number in range(1000)]
    for node in nodes:
        node["metadata"]["annotations"] = filler
    status, body, _ = await asked.post("/prioritize", make_question(make_manifest(), nodes=nodes))
    assert (status, len(read_scores(body))) == (200, 1000)
    assert len(await asked.prioritize(make_manifest(), [f"n{number}" for number in range(5000)])) == 5000


class TestPeople:
    async def test_the_last_decisions_newest_first(self, asked: Asked) -> None:
        for name in ("one", "two", "three"):
            await asked.prioritize(make_manifest(name), LOAD)
        _, body = await asked.get("/api/v1/decisions?limit=2&nodes=1")
        assert ([each["pod"] for each in body["decisions"]], body["total"]) == (["default/three", "default/two"], 3)
        assert [len(each["nodes"]) for each in body["decisions"]] == [1, 1]
        _, body = await asked.get("/api/v1/decisions?pod=default/one")
        assert [each["pod"] for each in body["decisions"]] == ["default/one"]

    async def test_a_decision_tells_scores_and_reasons(self, asked: Asked) -> None:
        await asked.prioritize(make_manifest(), LOAD)
        decision = await asked.decision()
        assert decision["nodes"] == [
            {"node": "a", "score": 98, "reason": "at_or_below_target"},
            {"node": "b", "score": 68, "reason": "at_or_below_target"},
            {"node": "hot", "score": 0, "reason": "over_capacity"},
        ]
        assert decision["reasons"] == {"at_or_below_target": 2, "over_capacity": 1}
        assert (decision["schedulerName"], decision["policy"], decision["nodeCount"]) == ("trimaran", "TargetLoadPacking", 3)
        assert (decision["boundTo"], decision["boundScore"], decision["degraded"], decision["shadow"]) == ("", None, "", False)

    async def test_the_ring_is_bounded(self, load: Peer) -> None:
        async with serving({"decisions": 2}, load=load) as asked:
            for name in ("one", "two", "three"):
                await asked.prioritize(make_manifest(name), LOAD)
            _, body = await asked.get("/api/v1/decisions")
            assert ([each["pod"] for each in body["decisions"]], body["total"]) == (["default/three", "default/two"], 2)

    async def test_why_each_node_had_its_score(self, asked: Asked) -> None:
        await asked.prioritize(make_manifest(), LOAD)
        _, body = await asked.get("/api/v1/explain?pod=default/web")
        assert body["asDecided"] is True
        assert [(each["node"], each["score"]) for each in body["explanation"]["nodes"]] == [("a", 98), ("b", 68), ("hot", 0)]
        assert any("38.75" in step for step in body["explanation"]["nodes"][0]["steps"])
        _, body = await asked.get("/api/v1/explain?pod=default/web&node=hot&node=b")
        assert [each["node"] for each in body["explanation"]["nodes"]] == ["b", "hot"]

    async def test_of_many_nodes_the_best_and_the_last_are_told(self, asked: Asked) -> None:
        names = [f"n{number:03}" for number in range(100)]
        await asked.prioritize(make_manifest(), names)
        for query, count in (("", 13), ("&nodes=2", 5), ("&nodes=1000", 100)):
            _, body = await asked.get(f"/api/v1/explain?pod=default/web{query}")
            assert (len(body["explanation"]["nodes"]), len(body["candidates"])) == (count, 100)

    async def test_one_answer_to_people_is_made_at_a_time(self, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each thread takes its share of the interpreter from the scheduler, which waited a third of a second beside eight of them."""
        await asked.prioritize(make_manifest(), LOAD)
        makers: list[int] = []

        def explain(*arguments: Any, **options: Any) -> Explanation:
            makers.append(threading.get_ident())
            return explain_columns(*arguments, **options)

        monkeypatch.setattr(handlers, "explain_columns", explain)
        paths = ["/api/v1/explain?pod=default/web"] * 8 + ["/api/v1/decisions"] * 2
        assert [status for status, _ in await asyncio.gather(*map(asked.get, paths))] == [200] * 10
        assert len(makers) == 8
        assert len({*makers} - {threading.get_ident()}) == 1

    async def test_many_nodes_that_are_none_are_told_once(self, asked: Asked) -> None:
        await asked.prioritize(make_manifest(), LOAD)
        status, body = await asked.get("/api/v1/explain?pod=default/web" + "&node=no&node=none&node=a" * 3)
        assert (status, body["error"]) == (404, "unknown_node")
        assert body["message"].startswith("node no, none: ")

    async def test_an_older_decision_is_explained_by_what_is_known_now(self, asked: Asked) -> None:
        await asked.prioritize(make_manifest(), LOAD)
        for number in range(64):
            await asked.prioritize(make_manifest(f"later-{number}", cpu="0"), ["b"])
        _, body = await asked.get("/api/v1/explain?pod=default/web")
        assert body["asDecided"] is False
        assert body["decision"]["nodes"][0] == {"node": "a", "score": 98, "reason": "at_or_below_target"}
        assert "explained by what is known now" in body["explanation"]["hints"][0]

    @pytest.mark.parametrize(
        ("path", "status", "error"),
        [
            ("/api/v1/explain", 400, "bad_parameter"),
            ("/api/v1/explain?pod=web", 400, "bad_parameter"),
            ("/api/v1/explain?pod=default/", 400, "bad_parameter"),
            ("/api/v1/explain?pod=default/other", 404, "unknown_pod"),
            ("/api/v1/explain?pod=default/web&node=elsewhere", 404, "unknown_node"),
            ("/api/v1/decisions?limit=0", 400, "bad_parameter"),
            ("/api/v1/decisions?limit=-1", 400, "bad_parameter"),
            ("/api/v1/decisions?nodes=x", 400, "bad_parameter"),
            ("/api/v1/decisions?limit=1000&nodes=10000", 400, "bad_parameter"),
            ("/", 404, "not_found"),
            ("/bind", 404, "not_found"),
        ],
    )
    async def test_an_error_tells_what_to_do(self, asked: Asked, path: str, status: int, error: str) -> None:
        await asked.prioritize(make_manifest(), LOAD)
        got, body = await asked.get(path)
        assert (got, body["status"], body["error"]) == (status, status, error)
        assert len(body["message"]) > 20

    async def test_a_pod_without_a_decision_is_told_why_that_may_be(self, asked: Asked) -> None:
        _, body = await asked.get("/api/v1/explain?pod=default/other")
        assert "does not ask where only one node is feasible" in body["message"]

    async def test_probes_are_well(self, asked: Asked) -> None:
        assert (await asked.get("/livez"))[0] == (await asked.get("/readyz"))[0] == 200

    async def test_metrics_tell_what_was_done(self, asked: Asked) -> None:
        await asked.prioritize(make_manifest(), LOAD)
        metrics = await asked.metrics()
        assert metrics['answers_total{outcome="scored"}'] == 1
        assert metrics['scored_nodes_total{reason="at_or_below_target"}'] == 2
        assert metrics['request_duration_seconds_count{verb="prioritize"}'] == 1
        assert (metrics["nodes"], metrics["pods_in_flight"], metrics["degraded"], metrics["snapshot_age_seconds"]) == (3, 1, 0, 0)
