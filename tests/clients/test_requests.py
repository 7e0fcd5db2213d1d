"""Requests, retries and errors of both clients, and the credentials that they never reveal."""

import asyncio
import logging
import pickle
import ssl
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final

import httpx
import pytest

from riskrelay_client import (
    ApiError,
    AsyncRiskRelay,
    Conflict,
    Forbidden,
    IdempotencyConflict,
    NotFound,
    RateLimited,
    RiskRelay,
    RiskRelayError,
    ServerError,
    Unauthorized,
    Unreachable,
    ValidationFailed,
    WaitTimeout,
)
from riskrelay_client.models import PostbackInput
from tests.support.fakes import LoopbackServer, Peer, ReceivedRequest
from tests.support.http.scripted_api import SECRET, TOKEN, URL, Run, Script, Scripted, failure, ok, run_async, run_blocking

EXPORT: Final = {"id": "exp_1", "status": "prepared"}


@pytest.fixture(params=[run_blocking, run_async], ids=["blocking", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def prepare(client: Any) -> Any:
    return client.exports.prepare({"title": "One"})


# ── requests ───────────────────────────────────────────────────────────────────


def test_a_request_has_the_documented_form(run: Run) -> None:
    script = Script([ok(EXPORT, 201)])
    assert run(script, prepare) == EXPORT
    [request] = script.requests
    assert (request.method, str(request.url)) == ("POST", f"{URL}/api/ticket-exports")
    assert script.bodies == [{"ticket": {"title": "One"}}]
    expected = {"authorization": f"Bearer {TOKEN}", "accept": "application/json", "content-type": "application/json"}
    assert {name: request.headers[name] for name in expected} == expected
    assert "x-scanner-secret" not in request.headers


def test_a_path_prefix_of_the_url_is_kept(run: Run) -> None:
    script = Script([ok(EXPORT)])
    run_blocking(script, lambda client: client.exports.get("exp_1"), url=f"{URL}/relay/")
    assert script.requests[0].url.path == "/relay/api/ticket-exports/exp_1"


def test_an_issue_may_have_further_members(run: Run) -> None:
    postback: PostbackInput = {
        "scanRunId": 1,
        "status": "completed",
        "page": {"url": URL},
        "issues": [{"code": "img-alt", "wcag": ["1.1.1"]}],
    }
    script = Script([ok({}, 202)])
    run(script, lambda client: client.scanner.submit(postback))
    assert script.bodies == [postback]


def test_scanner_results_are_sent_with_the_secret_instead_of_the_token(run: Run) -> None:
    script = Script([ok({}, 202)])
    run(script, lambda client: client.scanner.submit({"scanRunId": 1, "status": "completed", "page": {"url": URL}}))
    assert script.requests[0].headers["x-scanner-secret"] == SECRET
    assert "authorization" not in script.requests[0].headers


def test_filters_become_query_parameters(run: Run) -> None:
    script = Script([ok({"items": [], "next_cursor": None})])
    after = datetime(2026, 3, 1, tzinfo=UTC)
    filters: dict[str, Any] = {"status": ["failed", "blocked"], "project_id": 7, "created_after": after, "q": "a b"}
    assert run(script, lambda client: client.exports.list(**filters, page_size=5)) == []
    expected = {"status": "failed,blocked", "project_id": "7", "created_after": "2026-03-01T00:00:00+00:00", "q": "a b"}
    assert dict(script.requests[0].url.params) == {**expected, "limit": "5"}


def test_an_approval_can_disable_the_events(run: Run) -> None:
    script = Script([ok(EXPORT, 202), ok({"items": [EXPORT]}, 202)])
    run(script, lambda client: client.exports.approve("exp_1", "tgt_1", events=False))
    run(script, lambda client: client.exports.approve_for_each("exp_1", ["tgt_1", "tgt_2"], events=False))
    assert script.bodies == [{"target_id": "tgt_1", "events": False}, {"target_ids": ["tgt_1", "tgt_2"], "events": False}]


def test_commas_in_filter_values_are_escaped(run: Run) -> None:
    page = ok({"items": [], "next_cursor": None})
    script = Script([page, page, ok({"id": "job_1"})])
    run(script, lambda client: client.exports.list(rule="a,b", host="x.example", q="c, d"))
    run(script, lambda client: client.findings.list(rule=["a,b", "c"]))
    run(script, lambda client: client.exports.decide_matching({"action": "dismiss", "reason": "test"}, {"rule": "a,b"}, 2))
    *queries, decision = script.requests
    assert [dict(each.url.params) for each in queries] == [
        {"rule": "a\\,b", "host": "x.example", "q": "c, d"},
        {"rule": "a\\,b,c"},
    ]
    assert decision.url.path == "/api/ticket-exports/bulk"
    assert script.bodies[-1]["filter"] == {"rule": "a\\,b"}


def test_a_list_is_read_page_by_page(run: Run) -> None:
    script = Script([ok({"items": [1, 2], "next_cursor": "c1"}), ok({"items": [3], "next_cursor": None})])
    assert run(script, lambda client: client.findings.list(rule="img-alt")) == [1, 2, 3]
    assert [dict(request.url.params) for request in script.requests] == [
        {"rule": "img-alt"},
        {"rule": "img-alt", "cursor": "c1"},
    ]


BAD_PAGES: Final[dict[str, list[Scripted]]] = {
    "no list": [ok({})],
    "another type": [ok({"items": 3, "next_cursor": None})],
    "another type of cursor": [ok({"items": [1], "next_cursor": 3})],
    "an empty page before others": [ok({"items": [], "next_cursor": "same"})],
    "a page that leads to itself": [ok({"items": [1], "next_cursor": "same"})],
    "no content": [httpx.Response(204)],
}


@pytest.mark.parametrize("responses", BAD_PAGES.values(), ids=BAD_PAGES)
def test_an_invalid_list_response_raises_an_error(run: Run, responses: list[Scripted]) -> None:
    script = Script(responses)
    with pytest.raises(ApiError, match="may not be RiskRelay"):
        run(script, lambda client: client.findings.list())
    assert len(script.requests) <= 2


@pytest.mark.parametrize("wrong", ["..", "a/b", "a?b", "", "exp_1\n"])
def test_an_id_with_other_characters_is_refused(run: Run, wrong: str) -> None:
    script = Script([ok(EXPORT)])
    with pytest.raises(ValueError, match="An id consists of"):
        run(script, lambda client: client.exports.get(wrong))
    assert script.requests == []


def test_a_time_needs_a_time_zone(run: Run) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        run(Script([ok(EXPORT)]), lambda client: client.exports.snooze("exp_1", datetime(2030, 1, 1)))  # noqa: DTZ001 - the mistake


# ── repeats ────────────────────────────────────────────────────────────────────

TRANSIENT: Final[list[Scripted]] = [
    *(failure(status, "X") for status in (408, 429, 502, 503, 504)),
    failure(409, "IDEMPOTENCY_IN_PROGRESS", Retry_After="1"),
    httpx.Response(502, text="<html>no backend</html>"),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("slow"),
    httpx.RemoteProtocolError("incomplete"),
]


@pytest.mark.parametrize("first", TRANSIENT, ids=repr)
def test_a_request_is_repeated_with_the_same_key_and_body(run: Run, first: Scripted) -> None:
    script = Script([first, first, ok(EXPORT, 201)])
    assert run(script, prepare) == EXPORT
    assert len(script.requests) == 3
    assert len({*script.keys} | {None}) == 2
    assert len({request.content for request in script.requests}) == 1
    least = float("Retry-After" in first.headers) if isinstance(first, httpx.Response) else 0
    assert max(0.25, least) <= script.pauses[0] <= max(0.5, least) <= script.pauses[1] <= 1


def test_each_call_has_a_key_of_its_own_unless_one_is_given(run: Run) -> None:
    script = Script([ok(EXPORT, 201)])
    run(script, prepare)
    run(script, prepare)
    run(script, lambda client: client.exports.prepare({"title": "One"}, idempotency_key="note-7"))
    first, second, third = script.keys
    assert first != second
    assert third == "note-7"


PERMANENT: Final[list[tuple[int, str, type[ApiError]]]] = [
    (401, "UNAUTHORIZED", Unauthorized),
    (403, "FORBIDDEN", Forbidden),
    (404, "NOT_FOUND", NotFound),
    (409, "CONFLICT", Conflict),
    (409, "IDEMPOTENCY_CONFLICT", IdempotencyConflict),
    (413, "PAYLOAD_TOO_LARGE", ApiError),
    (422, "VALIDATION_FAILED", ValidationFailed),
    (500, "INTERNAL_ERROR", ServerError),
]


@pytest.mark.parametrize(("status", "code", "kind"), PERMANENT)
def test_a_permanent_error_is_raised_at_once(run: Run, status: int, code: str, kind: type[ApiError]) -> None:
    script = Script([failure(status, code)])
    with pytest.raises(ApiError) as raised:
        run(script, prepare)
    assert (type(raised.value), raised.value.status, raised.value.code) == (kind, status, code)
    assert (raised.value.message, raised.value.request_id) == (f"About {code}", "req_1")
    assert len(script.requests) == 1


def test_retry_after_is_the_minimum_pause(run: Run) -> None:
    in_ten_s = format_datetime(datetime.fromtimestamp(datetime.now(UTC).timestamp() + 10, UTC), usegmt=True)
    responses = [failure(429, "RATE_LIMITED", Retry_After="7"), failure(503, "X", Retry_After=in_ten_s), ok(EXPORT, 201)]
    script = Script([*responses])
    run(script, prepare)
    assert script.pauses[0] == 7
    assert 8 <= script.pauses[1] <= 10


@pytest.mark.parametrize("date", ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "soon", ""])
def test_an_invalid_retry_after_is_ignored(run: Run, date: str) -> None:
    script = Script([failure(503, "X", Retry_After=date), ok(EXPORT, 201)])
    assert run(script, prepare) == EXPORT
    assert script.pauses[0] <= 0.5


def test_retries_end_after_the_retry_time(run: Run) -> None:
    script = Script([failure(503, "SERVICE_UNAVAILABLE")])
    with pytest.raises(ServerError):
        run(script, prepare)
    assert 30 < script.now <= 60
    assert max(script.pauses) <= 30


def test_a_retry_after_longer_than_the_retry_time_is_raised(run: Run) -> None:
    script = Script([failure(429, "RATE_LIMITED", Retry_After="3600")])
    with pytest.raises(RateLimited) as raised:
        run(script, prepare)
    assert (raised.value.retry_after, script.pauses) == (3600, [])


def test_a_certificate_error_is_not_retried(run: Run) -> None:
    error = httpx.ConnectError("certificate verify failed")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed")
    script = Script([error])
    with pytest.raises(Unreachable, match=r"riskrelay\.example"):
        run(script, prepare)
    assert len(script.requests) == 1


def test_a_retried_removal_that_finds_nothing_succeeds(run: Run) -> None:
    script = Script([httpx.ReadError("lost"), failure(404, "NOT_FOUND")])
    assert run(script, lambda client: client.targets.remove("tgt_1")) is None
    with pytest.raises(NotFound):
        run(Script([failure(404, "NOT_FOUND")]), lambda client: client.targets.remove("tgt_1"))


def test_a_redirect_is_not_followed(run: Run) -> None:
    script = Script([httpx.Response(302, headers={"Location": "https://elsewhere.example/"})])
    with pytest.raises(ApiError, match="Redirects are not followed") as raised:
        run(script, prepare)
    assert (raised.value.status, raised.value.code, len(script.requests)) == (302, None, 1)


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("content", [b"", b"<html>", b'"text"', b"[]"])
def test_a_response_of_another_server_raises_an_error(run: Run, status: int, content: bytes) -> None:
    with pytest.raises(ApiError, match="may not be RiskRelay") as raised:
        run(Script([httpx.Response(status, content=content)]), prepare)
    assert (raised.value.status, raised.value.code) == (status, None)


@pytest.mark.parametrize("call", [prepare, lambda client: client.exports.get("exp_1")])
def test_an_empty_record_raises_an_error(run: Run, call: Callable[[Any], Any]) -> None:
    with pytest.raises(ApiError, match="may not be RiskRelay"):
        run(Script([httpx.Response(204)]), call)


@pytest.mark.parametrize("error", [[1], {"details": [1], "message": 7}, {"details": {"fields": [1, {}]}}])
def test_an_error_response_in_another_form_raises_a_readable_error(run: Run, error: Any) -> None:
    with pytest.raises(ApiError) as raised:
        run(Script([httpx.Response(400, json={"error": error})]), prepare)
    assert str(raised.value).startswith("400 without an error code: ")


@pytest.mark.parametrize(("seconds_each", "problem"), [(1.0, "took too long"), (0.0, "is too long")])
def test_a_response_is_limited_in_time_and_size(seconds_each: float, problem: str) -> None:
    script = Script([])

    def pieces() -> Iterator[bytes]:
        while True:
            script.now += seconds_each
            yield b" " * 1_000_000

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=pieces()))
    with RiskRelay(URL, TOKEN, transport=transport, retry_for=0) as client:
        client._sender._clock = lambda: script.now
        with pytest.raises(Unreachable, match=problem):
            client.exports.get("exp_1")


def test_an_error_lists_its_fields_and_can_be_pickled(run: Run) -> None:
    field = {"path": "/ticket/title", "code": "required", "message": "Required."}
    error = {"code": "VALIDATION_FAILED", "message": "Validation failed", "details": {"fields": [field], "count": 3}}
    with pytest.raises(ValidationFailed) as raised:
        run(Script([httpx.Response(422, json={"error": error})]), prepare)
    again = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - our own
    for each in (raised.value, again):
        assert (each.fields, each.details) == ([field], {"count": 3})
        assert str(each) == "422 VALIDATION_FAILED: Validation failed; /ticket/title: Required. (required) [None]"


# ── polling ────────────────────────────────────────────────────────────────────


def test_a_wait_sends_the_etag_and_pauses_for_retry_after(run: Run) -> None:
    retried = {"id": "exp_1", "status": "retry_scheduled"}
    script = Script(
        [
            ok(EXPORT, ETag='"1"'),
            httpx.Response(304),
            ok(retried, ETag='"2"', Retry_After="45"),
            ok({"id": "exp_1", "status": "exported"}),
        ]
    )
    seen: list[str] = []
    done = run(script, lambda client: client.exports.wait("exp_1", 600, on_change=lambda each: seen.append(each["status"])))
    assert (done["status"], seen) == ("exported", ["prepared", "retry_scheduled", "exported"])
    assert [request.headers.get("If-None-Match") for request in script.requests] == [None, '"1"', '"1"', '"2"']
    assert script.pauses == [1.0, 1.5, 45.0]


def test_a_wait_timeout_contains_the_last_version(run: Run) -> None:
    script = Script([ok(EXPORT, ETag='"1"'), httpx.Response(304)])
    with pytest.raises(WaitTimeout, match="the last status was prepared") as raised:
        run(script, lambda client: client.exports.wait("exp_1", 20))
    assert (raised.value.last, script.now) == (EXPORT, 20)
    assert isinstance(raised.value, TimeoutError)


@pytest.mark.parametrize("record", [{}, {"status": None}])
def test_a_wait_with_an_invalid_response_raises_an_error(run: Run, record: Any) -> None:
    seen: list[Any] = []
    with pytest.raises(ApiError, match="may not be RiskRelay"):
        run(Script([ok(record)]), lambda client: client.exports.wait("exp_1", 20, on_change=seen.append))
    assert seen == []


def test_a_wait_for_an_unreachable_service_ends_in_time(run: Run) -> None:
    script = Script([httpx.ConnectError("refused")] * 10)
    with pytest.raises(Unreachable):
        run(script, lambda client: client.exports.wait("exp_1", 5))
    assert script.now <= 5


def test_a_wait_ends_at_once_if_the_retry_is_due_later(run: Run) -> None:
    scheduled = {"id": "exp_1", "status": "retry_scheduled", "next_attempt_at": "2030-01-01T00:00:00.000Z"}
    script = Script([ok(scheduled, Retry_After="60")])
    with pytest.raises(WaitTimeout):
        run(script, lambda client: client.exports.wait("exp_1", 20))
    assert script.pauses == []


# ── secrecy ────────────────────────────────────────────────────────────────────


def submit(client: Any) -> Any:
    return client.scanner.submit({"scanRunId": 1, "status": "running", "page": {"url": URL}})


@pytest.mark.parametrize("call", [prepare, submit])
@pytest.mark.parametrize("response", [failure(403, "FORBIDDEN"), httpx.ConnectError("refused")], ids=["response", "none"])
def test_no_credential_is_shown_or_logged(
    run: Run, response: Scripted, call: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(RiskRelayError) as raised:
        run(Script([response]), call)
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)
    frames = traceback.TracebackException.from_exception(raised.value, capture_locals=True).stack
    of_package = [repr(frame.locals) for frame in frames if "riskrelay_client" in frame.filename]
    assert len(of_package) >= 2
    shown = [str(raised.value), repr(raised.value), caplog.text, *of_package]
    assert [text for text in shown if TOKEN in text or SECRET in text] == []


def test_no_credential_is_in_a_representation_or_log_of_a_client(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown = run(Script([ok(EXPORT)]), lambda client: f"{client!r} {vars(client)!r} {vars(client._sender)!r}")
    run(Script([ok(EXPORT, 201)]), prepare)
    assert "riskrelay.example" in shown
    assert [text for text in (shown, caplog.text) if TOKEN in text or SECRET in text] == []


@pytest.mark.parametrize("kind", [RiskRelay, AsyncRiskRelay])
@pytest.mark.parametrize(
    "url",
    [
        "http://riskrelay.example",
        "ftp://riskrelay.example",
        "https://user:password@riskrelay.example",
        "https://riskrelay.example/?token=x",
        "riskrelay.example",
    ],
)
def test_an_unsafe_url_is_refused(kind: type[RiskRelay], url: str) -> None:
    with pytest.raises(ValueError, match="The URL must be"):
        kind(url, TOKEN)


def test_http_is_allowed_only_to_this_machine_or_by_option() -> None:
    for client in (
        RiskRelay("http://127.0.0.1:8000", TOKEN),
        RiskRelay("http://[::1]", TOKEN),
        RiskRelay("http://localhost"),
    ):
        client.close()
    with RiskRelay("http://riskrelay.internal", TOKEN, allow_http=True) as client:
        assert repr(client) == "RiskRelay('http://riskrelay.internal')"


class RecordingPeer:
    """Responds to each request with a record, and keeps the requests."""

    def __init__(self) -> None:
        self.received: list[ReceivedRequest] = []

    def __call__(self, peer: Peer) -> None:
        while request := peer.read():
            self.received.append(request)
            peer.answer(200, b"{}")


async def get_async(url: str, **options: Any) -> object:
    async with AsyncRiskRelay(url, TOKEN, scanner_secret=SECRET, retry_for=0, **options) as client:
        return await client.exports.get("exp_1")


def get_blocking(url: str, **options: Any) -> object:
    with RiskRelay(url, TOKEN, scanner_secret=SECRET, retry_for=0, **options) as client:
        return client.exports.get("exp_1")


GET: Final = {"blocking": get_blocking, "async": lambda url, **options: asyncio.run(get_async(url, **options))}


@pytest.mark.parametrize("get", GET.values(), ids=GET)
def test_no_proxy_of_the_environment_gets_an_unencrypted_request(get: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackServer(service := RecordingPeer()) as server, LoopbackServer(proxy := RecordingPeer()) as other:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{other.port}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert get(server.url(path="")) == {}
        assert len(service.received) == 1
        # The server does not support TLS: it waits for the rest of a request.
        for url in ("http://riskrelay.invalid", f"https://127.0.0.1:{server.port}"):
            with pytest.raises(Unreachable):
                get(url, allow_http=True, timeout=1)
        assert proxy.received == []
        # https to another host needs a tunnel, which does not read the request.
        with pytest.raises(Unreachable):
            get("https://riskrelay.invalid", timeout=1)
        assert proxy.received[0].line == "CONNECT riskrelay.invalid:443 HTTP/1.1"


@pytest.mark.parametrize("token", ["", "rrt_x\n", " rrt_x", "rrt_\u00e9"])
def test_a_token_with_invalid_characters_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="The value of Authorization") as raised:
        RiskRelay(URL, token)
    assert "rrt_" not in str(raised.value)


def test_a_missing_credential_is_not_replaced_by_another() -> None:
    script = Script([ok({})])
    with pytest.raises(ValueError, match="needs a token or secret"):
        run_blocking(script, lambda client: client.scanner.submit({"scanRunId": 1}), scanner_secret=None)  # type: ignore[typeddict-item]  # is not sent
    assert script.requests == []
