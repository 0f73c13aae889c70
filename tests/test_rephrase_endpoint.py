"""Rephrasing through an endpoint that misbehaves: rate limits, quota, dead hosts, malformed bodies, budgets."""

import json
import time
from email.utils import formatdate
from itertools import pairwise

import pytest
from chat_server import Answer, ChatServer, limit

from branchwise import ConfigError
from branchwise.config_rephrase import RephraseConfig
from branchwise.data.load import Rows
from branchwise.rephrase.endpoint import read_completion
from branchwise.rephrase.reply import read_reply
from branchwise.rephrase.run import rephrase
from branchwise.rephrase.trouble import read_retry_after

QUESTION = "A crate holds 24 jars; 3 jars break. How many of 5 crates' jars are whole?"
OPENINGS = ("In a store, ", "In a shed, ", "At a shop, ", "At the market, ", "On a farm, ", "On a boat, ")


def reworded(question, number):
    """A sound rephrasing, another for each number."""
    return f"{OPENINGS[number % len(OPENINGS)]}{question[0].lower()}{question[1:]}"


def sound(seen, number=0):
    return Answer(text=reworded(seen.question, seen.body["seed"] % 1000))


def table(count=1):
    rows = [{"id": f"q{i}", "question": QUESTION.replace("24", str(24 + i)), "answer": "105"} for i in range(count)]
    return Rows("the dataset", rows)


def ask(server, store, n=1, count=1, **settings):
    url = server if isinstance(server, str) else server.url
    config = RephraseConfig(writer="openai:tiny", base_url=url, **settings)
    return rephrase(table(count), n, config, store)


@pytest.fixture
def store(tmp_path):
    return tmp_path / "replies.sqlite"


def gaps(seen):
    return [after.at - before.at for before, after in pairwise(seen)]


def test_retry_after_is_read_as_seconds_or_as_a_date():
    assert read_retry_after("3") == 3 and read_retry_after("0.5") == 0.5 and read_retry_after("-2") == 0
    assert 8 < read_retry_after(formatdate(time.time() + 10, usegmt=True)) <= 10
    assert [read_retry_after(text) for text in (None, "abc", "", "nan", "inf")] == [None] * 5


@pytest.mark.slow
@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_waited_for_and_three_requests_are_sent(store, as_date):
    def behave(seen, number):
        wait = formatdate(time.time() + 4, usegmt=True) if as_date else "3"  # a date has whole seconds
        return limit(wait) if number < 2 else sound(seen)

    with ChatServer(behave) as server:
        result = ask(server, store)
    assert len(server.seen) == result.sent == 3 and result.tally.accepted == 1
    assert all(3 <= gap < 5.5 for gap in gaps(server.seen))


@pytest.mark.slow
def test_a_queue_of_twenty_waits_together_and_does_not_come_back_at_once(store):
    began = time.monotonic()
    with ChatServer(lambda seen, number: limit("3") if seen.at < began + 2 else sound(seen)) as server:
        result = ask(server, store, count=20, concurrency=20)
    assert result.tally.accepted == 20 and result.stopped is None
    first = [seen.at for seen in server.seen if seen.at < began + 2.5]
    again = sorted(seen.at for seen in server.seen if seen.at >= began + 2.5)
    assert len(first) == len(again) == 20
    assert again[0] - first[0] >= 3
    assert max(sum(t <= other < t + 0.05 for other in again) for t in again) <= 12  # half of them at most, spread


def test_a_header_that_cannot_be_read_falls_back_to_backing_off(store):
    with ChatServer(lambda seen, number: limit("abc") if number < 2 else sound(seen)) as server:
        result = ask(server, store)
    assert result.tally.accepted == 1 and len(server.seen) == 3
    first, second = gaps(server.seen)
    assert 0.7 < first < 2.5 and 1.4 < second < 4


def test_a_wait_of_a_day_is_given_up_with_a_clear_message(store):
    with ChatServer(lambda seen, number: limit("86400")) as server:
        result = ask(server, store)
    assert len(server.seen) == 1 and result.tally.done == 0
    assert "86400 s" in result.stopped and "max_wait" in result.stopped


def test_a_spent_quota_stops_at_once_and_keeps_finished_work(store):
    def behave(seen, number):
        return limit("1", code="insufficient_quota") if "26 jars" in seen.prompt else sound(seen)

    with ChatServer(behave) as server:
        result = ask(server, store, count=4, concurrency=1)
        assert "quota" in result.stopped and len(server.seen) == 3
        assert [o.done for o in result.outcomes] == [True, True, False, False]
        server.behave = sound
        result = ask(server, store, count=4, concurrency=1)
    assert result.stopped is None and result.tally.accepted == 4
    assert (result.found, result.sent) == (2, 2)


@pytest.mark.parametrize(
    "broken",
    [
        Answer(500, raw="oops"),
        Answer(503, raw=""),
        Answer(200, raw="<html>a proxy's page</html>"),
        Answer(200, raw='{"choices": []}'),
        Answer(200, raw='{"choices": [{"mess'),
        Answer(200, raw='{"error": {"message": "overloaded", "code": 503}}'),
        Answer(200, raw="null"),
        Answer(200, raw="[" * 100_000),
        Answer(200, raw='{"choices": [{"message": {"content": 5}}]}'),
        Answer(hang_up=True),
    ],
    ids=lambda answer: str(answer)[:80],
)
def test_servers_that_stumble_are_asked_again(store, broken):
    with ChatServer(lambda seen, number: sound(seen) if number else broken) as server:
        result = ask(server, store)
    assert result.tally.accepted == 1 and len(server.seen) == 2 and not result.tally.rejected


def test_a_server_that_never_answers_times_out_and_is_asked_again(store):
    slow = Answer(text="x", delay=1.5)
    with ChatServer(lambda seen, number: sound(seen) if number else slow) as server:
        assert ask(server, store, timeout=0.5).tally.accepted == 1


@pytest.mark.parametrize(("status", "words"), [(401, "key"), (403, "key"), (404, "no such model"), (402, "quota")])
def test_what_no_retry_can_mend_stops_the_work(store, status, words):
    with ChatServer(lambda seen, number: Answer(status, raw='{"error": {"message": "no"}}')) as server:
        result = ask(server, store, count=3, concurrency=1)
    assert words in result.stopped and len(server.seen) == 1


def test_a_question_that_the_server_refuses_is_left_and_the_others_go_on(store):
    def behave(seen, number):
        return Answer(400, raw='{"error": {"message": "too long"}}') if "25 jars" in seen.prompt else sound(seen)

    with ChatServer(behave) as server:
        result = ask(server, store, count=3)
    assert result.stopped is None and [len(o.accepted) for o in result.outcomes] == [1, 0, 1]
    assert "too long" in next(iter(result.tally.given_up)) and len(server.seen) == 3


def test_requests_that_are_all_refused_stop_the_work_soon(store):
    with ChatServer(lambda seen, number: Answer(400, raw='{"error": {"message": "no max_tokens"}}')) as server:
        result = ask(server, store, count=30, concurrency=1)
    assert "no max_tokens" in result.stopped and len(server.seen) == 3


def test_a_limit_that_lets_others_through_does_not_use_up_tries(store):
    """Three places in eight at a time: each request is refused oftener than `retries` allows in a row."""
    import threading

    places, lock = [0], threading.Lock()

    def behave(seen, number):
        with lock:
            places[0] += 1
            if places[0] % 3:
                return limit("0.05")
        return sound(seen)

    with ChatServer(behave) as server:
        result = ask(server, store, count=20, concurrency=8, retries=2)
    assert result.tally.accepted == 20 and len(server.seen) > 40


def test_tokens_are_estimated_where_the_server_counts_none(store):
    def behave(seen, number):
        message = {"role": "assistant", "content": sound(seen).text}
        return Answer(raw=json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}))

    with ChatServer(behave) as server:
        assert 100 < ask(server, store).tokens < 300


@pytest.mark.parametrize(
    "usage", ["none", [1], {"prompt_tokens": "abc"}, {"prompt_tokens": -5}, {"prompt_tokens": 1e400}]
)
def test_tokens_that_are_no_count_are_estimated(usage):
    body = {"choices": [{"message": {"content": "four words are here"}, "finish_reason": "stop"}], "usage": usage}
    reply = read_completion(json.dumps(body), "a prompt")
    assert reply.text == "four words are here" and reply.prompt_tokens > 0 and reply.reply_tokens > 0


def test_parts_half_pairs_and_refusals_are_read():
    def read(**message):
        return read_completion(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}))

    assert read(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]).text == "ab"
    assert read(content="a\ud800").text == "a\ufffd"
    refused = read(content=None, refusal="24 3 5: no.")
    assert read_reply(refused.text, refused.finish, QUESTION)[1] == "reply: the model refused"
    assert read(content=None, refusal={"code": 1}).finish == "refusal"


@pytest.mark.parametrize("address", ["localhost:8000/v1", "http://", "ftp://x", "http://[::1"])
def test_what_is_no_address_is_told_before_anything_is_sent(store, address):
    with pytest.raises(ConfigError, match=r"rephrase\.base_url: .* is no address"):
        ask(address, store)


def test_a_dead_host_stops_the_work_with_its_address(store):
    with ChatServer(sound) as server:
        pass
    result = ask(server.url, store, count=8, retries=1)
    assert server.url in result.stopped and "no connection" in result.stopped


@pytest.mark.parametrize(
    ("budget", "sent"), [({"budget_requests": 5}, 5), ({"budget_tokens": 45}, 3), ({"budget_cost": 0.045}, 3)]
)
def test_a_budget_stops_the_work_and_a_larger_one_goes_on(store, budget, sent):
    with ChatServer(sound) as server:
        prices = {"price_in": 1000.0, "price_out": 1000.0, "concurrency": 1}
        result = ask(server, store, count=8, **budget, **prices)
        assert "budget" in result.stopped and len(server.seen) == sent
        assert ask(server, store, count=8, **budget, **prices).sent == 0  # what is in the store counts
        result = ask(server, store, count=8, **prices)
    assert result.stopped is None and len(server.seen) == 8
    assert result.tokens == 120 and result.cost == pytest.approx(0.12)


def test_a_budget_in_money_needs_a_price(store):
    with pytest.raises(ConfigError, match="price_in"):
        ask("http://127.0.0.1:1/v1", store, budget_cost=1.0)


def test_samples_settings_and_prompts_make_another_request_and_a_rerun_makes_none(store, tmp_path):
    def texts(result):
        return [outcome.texts for outcome in result.outcomes]

    same = {"kinds": ["wording"], "n": 3}
    with ChatServer(lambda seen, number: Answer(text=reworded(seen.question, len(server.seen)))) as server:
        first = ask(server, store, **same)
        assert len(set(first.outcomes[0].texts)) == 3 and len(server.seen) == 3
        again = ask(server, store, **same)
        assert (again.sent, again.found) == (0, 3) and texts(again) == texts(first) and len(server.seen) == 3
        assert ask(server, store, **same, temperature=0.2).sent == 3
        assert ask(server, store, **same, max_tokens=99).sent == 3
        assert ask(server, store, **same, seed=1).sent == 3
        (tmp_path / "wording.txt").write_text("Say it otherwise.\n\nQuestion:\n{question}")
        assert ask(server, store, **same, prompts=str(tmp_path)).sent == 3
        assert ask(server, store, **same).sent == 0


def test_a_larger_n_asks_for_what_is_missing_alone(store):
    with ChatServer(sound) as server:
        ask(server, store, n=2)
        result = ask(server, store, n=3)
    assert (result.sent, result.found) == (1, 2)


def test_a_reply_that_is_cut_off_is_rejected_and_asked_for_again(store):
    def behave(seen, number):
        cut = seen.body["seed"] < 1000
        return Answer(text=seen.question[:20], finish="length") if cut else sound(seen)

    with ChatServer(behave) as server:
        result = ask(server, store)
    outcome = result.outcomes[0]
    assert outcome.texts == [reworded(QUESTION, 0)] and len(server.seen) == 2
    assert [r["reason"] for r in outcome.rejected] == ["reply: cut off at max_tokens"]


def test_the_same_question_twice_is_paid_for_once(store):
    rows = Rows("the dataset", [{"question": QUESTION, "answer": "105"}] * 2)
    with ChatServer(lambda seen, number: Answer(text=reworded(seen.question, 0), delay=0.1)) as server:
        result = rephrase(rows, 1, RephraseConfig(writer="openai:tiny", base_url=server.url), store)
    assert len(server.seen) == 1 and [len(o.texts) for o in result.outcomes] == [1, 1]


def test_a_record_tells_where_a_rephrasing_came_from(store):
    with ChatServer(sound) as server:
        record = ask(server, store, temperature=0.7, seed=4).outcomes[0].accepted[0]
    assert record["model"] == "openai:tiny" and record["served_by"] == "tiny-1"
    assert record["prompt"].startswith(record["kind"] + "-") and record["id"] == "q0" and record["row"] == 1
    assert record["settings"]["temperature"] == 0.7 and record["settings"]["seed"] == 4
    assert (record["prompt_tokens"], record["reply_tokens"]) == (10, 5) and record["seed"] == server.seen[0].body[
        "seed"
    ]


def test_a_judge_and_a_solver_may_reject(store):
    def behave(seen, number):
        if seen.body["model"] == "judge":
            return Answer(text="They differ.\nNO" if "At a shop" in seen.prompt else "Same.\nYES")
        if seen.body["model"] == "solver":
            return Answer(text="\\boxed{7}" if "In a shed" in seen.prompt else "\\boxed{105}")
        return sound(seen)

    with ChatServer(behave) as server:
        outcome = ask(server, store, n=3, attempts=1, judge="openai:judge", solver="openai:solver").outcomes[0]
    assert outcome.texts == [reworded(QUESTION, 0)]
    assert sorted(r["reason"].partition(":")[0] for r in outcome.rejected) == ["judge", "solver"]


def test_two_runs_on_one_store_are_refused(store):
    from branchwise.rephrase.store import Store

    first = Store(store)
    with pytest.raises(ConfigError, match="another run"):
        Store(store)
    first.close()
    Store(store).close()


def test_a_file_that_is_no_store_is_refused(store):
    store.write_text(json.dumps({"not": "a store"}) * 100)
    with pytest.raises(ConfigError, match="not a store"):
        ask("http://127.0.0.1:1/v1", store)
