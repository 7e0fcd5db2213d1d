"""Verdicts about outcomes: the table of statuses, the schedule, Retry-After, and hostile responses."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.exports.delivery import Outcome, TargetHealth, Verdict
from schemas.exports.response_excerpt import response_excerpt
from schemas.exports.state_machine import Transition
from schemas.targets.target import TargetStatus
from worker.delivery import outcomes
from worker.delivery.outcomes import SIGNATURE_INVALID, Schedule, Try, decide_outcome

NOW: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DAY_S: Final = 24 * 3600
PLAN: Final = Schedule((5, 30, 120), timedelta(hours=72))
#: A schedule that no age limit ends early.
LONG_PLAN: Final = Schedule((5, 30, 120), timedelta(days=365))


def judged(
    outcome: Outcome,
    try_number: int = 1,
    jitter: float = 0.0,
    began_at: datetime = NOW,
    plan: Schedule = PLAN,
    now: datetime = NOW,
) -> Verdict:
    return decide_outcome(outcome, Try(try_number, plan, began_at, now, jitter))


def answer(status: int, body: object = None, retry_after: str | None = None) -> Outcome:
    return Outcome(status=status, retry_after=retry_after, body=b"" if body is None else json.dumps(body).encode())


def wait_s(verdict: Verdict, now: datetime = NOW) -> float:
    assert verdict.next_attempt_at is not None, verdict
    return (verdict.next_attempt_at - now).total_seconds()


# Columns: status, code in the body; then transition, its reason, error code, the target's connection and new status.
TABLE: Final = [
    # 2xx: delivered, whatever the exact status
    (200, None, Transition.DELIVER, None, None, "connected", None),
    (201, None, Transition.DELIVER, None, None, "connected", None),
    (202, "ACCEPTED", Transition.DELIVER, None, None, "connected", None),
    (204, None, Transition.DELIVER, None, None, "connected", None),
    (299, None, Transition.DELIVER, None, None, "connected", None),
    # a success whose body reports another problem than the rate is still a success
    (200, "WEBHOOK_VALIDATION_FAILED", Transition.DELIVER, None, None, "connected", None),
    # 3xx: redirects are never followed
    (300, None, Transition.FAIL, "redirect_refused", "redirect_refused", "failing", None),
    (301, None, Transition.FAIL, "redirect_refused", "redirect_refused", "failing", None),
    (302, None, Transition.FAIL, "redirect_refused", "redirect_refused", "failing", None),
    (304, None, Transition.FAIL, "redirect_refused", "redirect_refused", "failing", None),
    (307, SIGNATURE_INVALID, Transition.FAIL, "redirect_refused", "redirect_refused", "failing", None),
    (308, None, Transition.FAIL, "redirect_refused", "redirect_refused", "failing", None),
    # the body of any 4xx may report a wrong signature
    *(
        (status, SIGNATURE_INVALID, Transition.FAIL, SIGNATURE_INVALID, SIGNATURE_INVALID, "failing", None)
        for status in (400, 401, 403, 404, 408, 409, 410, 422, 425, 429, 451, 499)
    ),
    # beside any other status, the status decides
    (200, SIGNATURE_INVALID, Transition.DELIVER, None, None, "connected", None),
    (500, SIGNATURE_INVALID, Transition.RESCHEDULE, None, SIGNATURE_INVALID, None, None),
    (501, SIGNATURE_INVALID, Transition.FAIL, "receiver_rejected", "receiver_rejected", None, None),
    # 401 and 403: the receiver refuses our authentication for another reason
    (401, None, Transition.FAIL, "receiver_unauthorized", "receiver_unauthorized", "failing", None),
    (403, "WEBHOOK_VALIDATION_FAILED", Transition.FAIL, "receiver_unauthorized", "receiver_unauthorized", "failing", None),
    (403, "FORBIDDEN", Transition.FAIL, "receiver_unauthorized", "receiver_unauthorized", "failing", None),
    # 410: the receiver is gone for good, and the target is disabled
    (410, None, Transition.FAIL, "receiver_gone", "receiver_gone", "failing", TargetStatus.DISABLED),
    (410, "WEBHOOK_VALIDATION_FAILED", Transition.FAIL, "receiver_gone", "receiver_gone", "failing", TargetStatus.DISABLED),
    # retried: 408, 425, 429 and every 5xx except two
    (408, None, Transition.RESCHEDULE, None, "receiver_unavailable", None, None),
    (425, None, Transition.RESCHEDULE, None, "receiver_unavailable", None, None),
    (429, None, Transition.RESCHEDULE, None, "receiver_rate_limited", None, None),
    (500, None, Transition.RESCHEDULE, None, "receiver_unavailable", None, None),
    (500, "WEBHOOK_VALIDATION_FAILED", Transition.RESCHEDULE, None, "WEBHOOK_VALIDATION_FAILED", None, None),
    (502, None, Transition.RESCHEDULE, None, "receiver_unavailable", None, None),
    (503, None, Transition.RESCHEDULE, None, "receiver_unavailable", None, None),
    (504, None, Transition.RESCHEDULE, None, "receiver_unavailable", None, None),
    (520, None, Transition.RESCHEDULE, None, "receiver_unavailable", None, None),
    (599, None, Transition.RESCHEDULE, None, "receiver_unavailable", None, None),
    # not retried: other 4xx, and the two 5xx that waiting does not change
    (400, None, Transition.FAIL, "receiver_rejected", "receiver_rejected", None, None),
    (
        400,
        "WEBHOOK_VALIDATION_FAILED",
        Transition.FAIL,
        "WEBHOOK_VALIDATION_FAILED",
        "WEBHOOK_VALIDATION_FAILED",
        None,
        None,
    ),
    (404, None, Transition.FAIL, "receiver_rejected", "receiver_rejected", None, None),
    (409, "SOMETHING_OF_ITS_OWN", Transition.FAIL, "receiver_rejected", "receiver_rejected", None, None),
    (413, None, Transition.FAIL, "receiver_rejected", "receiver_rejected", None, None),
    (
        422,
        "WEBHOOK_VALIDATION_FAILED",
        Transition.FAIL,
        "WEBHOOK_VALIDATION_FAILED",
        "WEBHOOK_VALIDATION_FAILED",
        None,
        None,
    ),
    (501, None, Transition.FAIL, "receiver_rejected", "receiver_rejected", None, None),
    (505, None, Transition.FAIL, "receiver_rejected", "receiver_rejected", None, None),
    # a body that reports "rate limited" counts as a 429, whatever its status, unless the status is a success
    (200, "WEBHOOK_RATE_LIMITED", Transition.DELIVER, None, None, "connected", None),
    (302, "WEBHOOK_RATE_LIMITED", Transition.RESCHEDULE, None, "WEBHOOK_RATE_LIMITED", None, None),
    (400, "WEBHOOK_RATE_LIMITED", Transition.RESCHEDULE, None, "WEBHOOK_RATE_LIMITED", None, None),
    (401, "WEBHOOK_RATE_LIMITED", Transition.RESCHEDULE, None, "WEBHOOK_RATE_LIMITED", None, None),
    (410, "WEBHOOK_RATE_LIMITED", Transition.RESCHEDULE, None, "WEBHOOK_RATE_LIMITED", None, None),
    (429, "WEBHOOK_RATE_LIMITED", Transition.RESCHEDULE, None, "WEBHOOK_RATE_LIMITED", None, None),
    (501, "WEBHOOK_RATE_LIMITED", Transition.RESCHEDULE, None, "WEBHOOK_RATE_LIMITED", None, None),
    # numbers that are no HTTP statuses
    (199, None, Transition.FAIL, "receiver_rejected", "receiver_rejected", None, None),
    (600, None, Transition.FAIL, "receiver_rejected", "receiver_rejected", None, None),
    (999, None, Transition.FAIL, "receiver_rejected", "receiver_rejected", None, None),
]


@pytest.mark.parametrize(("status", "code", "transition", "reason", "error", "connected", "turns_to"), TABLE)
@pytest.mark.parametrize("nested", [False, True], ids=["code", "error.code"])
def test_each_response_has_the_outcome_in_the_table(
    status: int,
    code: str | None,
    transition: Transition,
    reason: str | None,
    error: str | None,
    connected: str | None,
    turns_to: TargetStatus | None,
    nested: bool,
) -> None:
    body = None if code is None else {"error": {"code": code}} if nested else {"code": code}
    verdict = judged(answer(status, body))
    assert (verdict.transition, verdict.reason, verdict.error_code) == (transition, reason, error)
    assert (verdict.effect.connected, verdict.effect.status) == (connected, turns_to)
    assert (verdict.next_attempt_at is not None) == (transition is Transition.RESCHEDULE)


@pytest.mark.parametrize(
    "error",
    [
        "dns_not_found",
        "connect_refused",
        "tls_certificate",
        "deadline_exceeded",
        "connection_closed",
        "bad_answer",
        "no_secret",
        "no_standard_secret",
        "secret_unreadable",
        "internal_error",
    ],
)
def test_without_a_response_the_export_is_retried_and_the_target_is_failing(error: str) -> None:
    verdict = judged(Outcome(error=error))
    assert (verdict.transition, verdict.outcome, verdict.error_code) == (Transition.RESCHEDULE, "retryable", error)
    assert (verdict.effect.connected, verdict.effect.status) == ("failing", None)
    assert wait_s(verdict) == 5


def test_an_outcome_without_response_and_error_is_no_answer() -> None:
    assert judged(Outcome()).error_code == "no_answer"


def test_an_address_that_the_policy_refuses_blocks_the_export_and_its_target() -> None:
    verdict = judged(Outcome(error="address_private", refused=True))
    assert (verdict.transition, verdict.outcome) == (Transition.BLOCK, "refused")
    assert (verdict.reason, verdict.error_code) == ("address_private", "address_private")
    effect = verdict.effect
    assert (effect.connected, effect.status, effect.reason) == ("failing", TargetStatus.BLOCKED, "address_private")


# Columns: outcome; then the target's health, whether it is overloaded, seconds of the hold, reason of the hold.
TARGETS: Final = [
    (answer(202), TargetHealth.HEALTHY, False, None, None),
    # a ticket that is refused for its content shows nothing about the receiver
    (answer(422), TargetHealth.UNKNOWN, False, None, None),
    (answer(501), TargetHealth.UNKNOWN, False, None, None),
    # nothing will be accepted before somebody corrects a secret or a clock
    (answer(422, {"code": SIGNATURE_INVALID}), TargetHealth.UNHEALTHY, False, None, None),
    (answer(429, {"code": SIGNATURE_INVALID}), TargetHealth.UNHEALTHY, False, None, None),
    # Unauthorized or moved: nothing will be accepted.
    (answer(401), TargetHealth.UNHEALTHY, False, None, None),
    (answer(302), TargetHealth.UNHEALTHY, False, None, None),
    (answer(410), TargetHealth.UNHEALTHY, False, None, None),
    (answer(500), TargetHealth.UNHEALTHY, False, None, None),
    (answer(408), TargetHealth.UNHEALTHY, False, None, None),
    (Outcome(error="connect_refused"), TargetHealth.UNHEALTHY, False, None, None),
    # a timeout counts as overload
    (Outcome(error="deadline_exceeded"), TargetHealth.UNHEALTHY, True, None, None),
    (Outcome(error="connect_timeout"), TargetHealth.UNHEALTHY, True, None, None),
    # a 503 holds the target only if it names a time, a 429 always does
    (answer(503), TargetHealth.UNHEALTHY, True, None, None),
    (answer(503, retry_after="7"), TargetHealth.UNHEALTHY, True, 7, "receiver_unavailable"),
    (answer(503, retry_after="soon"), TargetHealth.UNHEALTHY, True, None, None),
    (answer(500, retry_after="7"), TargetHealth.UNHEALTHY, False, None, None),
    (answer(429), TargetHealth.UNHEALTHY, True, 30, "rate_limited"),
    (answer(429, retry_after="7"), TargetHealth.UNHEALTHY, True, 7, "rate_limited"),
    (answer(429, retry_after="0"), TargetHealth.UNHEALTHY, True, None, None),
    (answer(400, {"code": "WEBHOOK_RATE_LIMITED"}), TargetHealth.UNHEALTHY, True, 30, "rate_limited"),
]


@pytest.mark.parametrize(("outcome", "health", "is_overloaded", "hold_s", "hold_reason"), TARGETS)
@pytest.mark.parametrize("try_number", [1, 4], ids=["to be tried again", "the last try"])
def test_a_response_shows_the_health_of_its_target(
    outcome: Outcome,
    health: TargetHealth,
    is_overloaded: bool,
    hold_s: float | None,
    hold_reason: str | None,
    try_number: int,
) -> None:
    effect = judged(outcome, try_number).effect
    assert (effect.health, effect.is_overloaded) == (health, is_overloaded)
    assert (effect.hold_s, effect.hold_reason) == (hold_s, hold_reason)


def test_no_attempt_is_scheduled_within_the_hold_of_the_same_response() -> None:
    # The schedule says 5 s; a 429 that names no time holds the target for 30 s.
    assert wait_s(judged(answer(429))) == 30
    # A longer delay of the schedule applies.
    assert wait_s(judged(answer(429), try_number=3)) == 120


def test_a_410_response_disables_the_target_with_the_reason() -> None:
    assert judged(answer(410)).effect.reason == "receiver_gone"


# Columns: try number, starting at 1; seconds until the next attempt, or None if there is none.
SCHEDULE: Final = [
    (1, 5),  # after the first failure
    (2, 30),
    (3, 120),  # the last retry: a schedule of three delays has three retries
    (4, None),  # the fourth attempt is the last one
    (5, None),  # one attempt too many, as after a crash
]


@pytest.mark.parametrize(("try_number", "expected_s"), SCHEDULE)
@pytest.mark.parametrize("outcome", [answer(503), Outcome(error="connect_refused")], ids=["answer", "no answer"])
def test_a_schedule_of_n_delays_allows_n_plus_one_attempts(
    try_number: int, expected_s: int | None, outcome: Outcome
) -> None:
    verdict = judged(outcome, try_number)
    if expected_s is not None:
        assert (verdict.transition, wait_s(verdict)) == (Transition.RESCHEDULE, expected_s)
        return
    assert (verdict.transition, verdict.outcome, verdict.reason) == (Transition.FAIL, "exhausted", "attempts_exhausted")
    assert verdict.error_code == ("receiver_unavailable" if outcome.status else "connect_refused")
    assert verdict.effect.connected == "failing"


def test_an_empty_schedule_allows_one_attempt() -> None:
    assert judged(answer(500), plan=Schedule((), timedelta(hours=1))).reason == "attempts_exhausted"


# Columns: jitter; seconds after a scheduled delay of 120 s.
JITTERS: Final = [(-1.0, 102.0), (-0.5, 111.0), (0.0, 120.0), (0.5, 129.0), (1.0, 138.0)]


@pytest.mark.parametrize(("jitter", "expected_s"), JITTERS)
def test_jitter_moves_a_scheduled_delay_by_15_percent_at_most(jitter: float, expected_s: float) -> None:
    assert wait_s(judged(answer(500), 3, jitter)) == pytest.approx(expected_s, abs=1e-3)


# Columns: Retry-After; its seconds, or None if it is ignored.
RETRY_AFTER: Final = [
    ("1", 1),
    ("120", 120),
    (" 7 ", 7),  # whitespace around it
    ("0007", 7),
    (str(DAY_S), DAY_S),
    (str(DAY_S + 1), DAY_S),  # limited to a day
    ("999999999", DAY_S),
    ("0" * 400, None),
    ("0" * 400 + "9", 9),
    ("9" * 400, DAY_S),  # a number that is too long to parse
    ("0", None),  # now: the schedule applies
    ("-5", None),
    ("+5", None),
    ("1.5", 2),  # a fraction is rounded up, so that no attempt is too early
    ("120.001", 121),
    (f"{DAY_S}.5", DAY_S),
    ("120, 7", 120),  # several headers: the latest time applies
    ("7, Sun, 01 Mar 2026 12:01:00 GMT", 60),
    ("Sun, 01 Mar 2026 12:01:00 GMT, 90", 90),
    ("Sunday, 01-Mar-26 12:01:00 GMT, Sun, 01 Mar 2026 12:02:00 GMT", 120),
    ("soon, 7", 7),
    ("0, Sun, 01 Mar 2026 11:59:59 GMT", None),
    ("1e3", None),
    ("0x10", None),
    ("soon", None),
    ("", None),
    ("   ", None),
    ("²", None),  # str.isdigit() accepts it
    ("٣", None),  # a decimal of another script is not HTTP
    ("\x00", None),
    (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
    ("Sun, 01 Mar 2026 12:01:00 GMT", 60),
    ("Sunday, 01-Mar-26 12:01:00 GMT", 60),  # RFC 850: obsolete, but recipients must accept it
    ("Sun Mar  1 12:01:00 2026", 60),  # asctime: obsolete, too; always GMT
    ("Sun, 01 Mar 2026 13:01:00 +0100", 60),
    ("Sun, 01 Mar 2026 11:59:59 GMT", None),  # in the past
    ("Sun, 01 Mar 2026 12:00:00 GMT", None),  # now
    ("Mon, 01 Jan 1900 00:00:00 GMT", None),
    ("Fri, 31 Dec 9999 23:59:59 GMT", DAY_S),
    ("Fri, 31 Dec 99999 23:59:59 GMT", None),
    ("Fri, 31 Dec 99999999999999999999 23:59:59 GMT", None),
    ("Sun, 99 Mar 2026 12:01:00 GMT", None),
    ("Sun, 01 Mar 2026 12:01:00 +999999999", None),
]


#: The values above whose time is not in the future.
NOW_OR_BEFORE: Final = {
    "0",
    "0" * 400,
    "0, Sun, 01 Mar 2026 11:59:59 GMT",
    "Sun, 01 Mar 2026 11:59:59 GMT",
    "Sun, 01 Mar 2026 12:00:00 GMT",
    "Mon, 01 Jan 1900 00:00:00 GMT",
}


@pytest.mark.parametrize(("text", "expected_s"), RETRY_AFTER)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honored_to_the_second(text: str, expected_s: int | None, status: int) -> None:
    verdict = judged(answer(status, retry_after=text), plan=LONG_PLAN)
    assert verdict.retry_after_s == expected_s
    # A 429 that names no time holds its target for 30 s. If it names a past time, the schedule applies.
    unsaid_s = 30 if status == 429 and text not in NOW_OR_BEFORE else 5
    assert wait_s(verdict) == (unsaid_s if expected_s is None else expected_s)
    assert verdict.effect.hold_s == (expected_s or (30 if unsaid_s == 30 else None))


@pytest.mark.parametrize("status", [408, 425, 500, 502, 504])
def test_retry_after_of_other_statuses_is_ignored(status: int) -> None:
    verdict = judged(answer(status, retry_after="120"))
    assert (verdict.retry_after_s, wait_s(verdict)) == (None, 5)


def test_retry_after_is_honored_if_the_body_has_a_rate_limit_code() -> None:
    verdict = judged(answer(400, {"code": "WEBHOOK_RATE_LIMITED"}, retry_after="120"))
    assert (verdict.retry_after_s, wait_s(verdict)) == (120, 120)


def test_a_date_between_two_seconds_is_rounded_up_never_down() -> None:
    now = NOW + timedelta(milliseconds=250)
    verdict = judged(answer(503, retry_after="Sun, 01 Mar 2026 12:01:00 GMT"), now=now)
    assert wait_s(verdict, now) == 60
    assert verdict.next_attempt_at is not None
    assert verdict.next_attempt_at >= NOW + timedelta(seconds=60)


# Columns: jitter; seconds after a Retry-After of 20 s; seconds after a Retry-After of 3600 s.
LATENESS: Final = [(-1.0, 23.0, 3610.0), (-0.5, 21.5, 3605.0), (0.0, 20.0, 3600.0), (0.5, 21.5, 3605.0), (1.0, 23.0, 3610.0)]


@pytest.mark.parametrize(("jitter", "after_20_s", "after_an_hour"), LATENESS)
def test_jitter_makes_a_retry_after_later_only_and_by_ten_seconds_at_most(
    jitter: float, after_20_s: float, after_an_hour: float
) -> None:
    assert wait_s(judged(answer(429, retry_after="20"), jitter=jitter)) == pytest.approx(after_20_s, abs=1e-3)
    assert wait_s(judged(answer(429, retry_after="3600"), jitter=jitter)) == pytest.approx(after_an_hour, abs=1e-3)


@pytest.mark.parametrize("text", ["86399", "86400", "9999999"])
def test_no_retry_after_waits_for_more_than_a_day_with_its_jitter(text: str) -> None:
    assert wait_s(judged(answer(429, retry_after=text), jitter=1.0, plan=LONG_PLAN)) == DAY_S


def test_a_shorter_retry_after_takes_precedence_over_the_schedule() -> None:
    assert wait_s(judged(answer(429, retry_after="2"), try_number=3)) == 2


# Columns: seconds since the schedule began; whether the next attempt is made. It is due 5 s later; the age limit is 100 s.
AGES: Final = [
    (0, True),
    (94, True),  # due at second 99
    (95, True),  # due at second 100 exactly
    (96, False),  # due at second 101
    (1000, False),
]


@pytest.mark.parametrize(("age_s", "is_tried_again"), AGES)
def test_no_attempt_is_planned_beyond_the_age_limit(age_s: int, is_tried_again: bool) -> None:
    plan = Schedule((5, 30), timedelta(seconds=100))
    verdict = judged(answer(500), began_at=NOW - timedelta(seconds=age_s), plan=plan)
    assert verdict.reason == (None if is_tried_again else "attempts_exhausted")
    assert verdict.transition is (Transition.RESCHEDULE if is_tried_again else Transition.FAIL)


def test_a_retry_after_beyond_the_age_limit_ends_the_export() -> None:
    verdict = judged(answer(503, retry_after="101"), plan=Schedule((5,), timedelta(seconds=100)))
    assert (verdict.reason, verdict.retry_after_s) == ("attempts_exhausted", 101)


# Columns: body of a 201; the ticket's ID; the ticket's link.
TICKETS: Final = [
    ({"id": "T-1", "url": "https://t.example/1"}, "T-1", "https://t.example/1"),
    ({"ticket_id": "T-2", "ticket_url": "https://t.example/2"}, "T-2", "https://t.example/2"),
    ({"id": "other", "ticket_id": "T-3", "url": "https://o.example/", "ticket_url": "http://t.example/3"}, "T-3", "http://t.example/3"),
    ({"id": 42, "url": None}, "42", None),  # a number may be an ID
    ({"id": True}, None, None),  # a boolean may not
    ({"id": 4.2}, None, None),
    ({"id": ""}, None, None),
    ({"id": "7"}, "7", None),
    ({"id": "x" * 500}, "x" * 500, None),
    ({"id": "x" * 501}, None, None),  # longer than the column
    ({"id": "a\nb"}, None, None),  # not printable
    ({"id": "a\u0000b"}, None, None),  # no database accepts it
    ({"id": "a\u202eb"}, None, None),  # changes the direction of text
    ({"id": "\ud800"}, None, None),  # half of a surrogate pair
    ({"id": ["T-1"], "ticket_id": {"T": 1}}, None, None),
    ({"id": "T-4", "url": "javascript:alert(1)"}, "T-4", None),
    ({"id": "T-5", "url": "//t.example/5"}, "T-5", None),
    ({"ticket_id": None, "id": "T-6"}, "T-6", None),
    ({"data": {"id": "T-7"}}, None, None),
    ([{"id": "T-8"}], None, None),
    ("T-9", None, None),
    (None, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "ticket_id", "url"), TICKETS)
def test_a_ticket_is_read_from_a_success(body: Any, ticket_id: str | None, url: str | None) -> None:
    verdict = judged(answer(201, body))
    assert (verdict.provider_ticket_id, verdict.provider_ticket_url) == (ticket_id, url)
    assert verdict.transition is Transition.DELIVER


@pytest.mark.parametrize("filler", ["", "long " * 600], ids=["looked at already", "longer than what is looked at"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_forbidden_content_becomes_neither_a_ticket_id_nor_a_link(filler: str, is_kept: bool) -> None:
    actual = {"filler": filler, "id": "4242 4242 4242 4242", "url": "https://ada:Zk3jD92kd0qLw81m@tracker.example.com/1"}
    outcome = answer(201, actual)
    verdict = judged(outcome._replace(kept=response_excerpt(outcome.body) if is_kept else None))
    assert (verdict.provider_ticket_id, verdict.provider_ticket_url) == (None, None)
    assert verdict.transition is Transition.DELIVER


def test_an_id_beyond_the_excerpt_is_checked_too() -> None:
    # Redaction makes compact JSON longer, so that the ID comes after the end of the excerpt.
    body = json.dumps({"codes": [1] * 900, "id": "4242 4242 4242 4242"}, separators=(",", ":")).encode()
    verdict = judged(Outcome(status=201, body=body, kept=response_excerpt(body)))
    assert verdict.provider_ticket_id is None


def test_leading_white_space_of_a_response_is_ignored() -> None:
    outcome = Outcome(status=201, body=b' \r\n{"id": "T-1"}\n')
    assert judged(outcome).provider_ticket_id == "T-1"


def test_a_failure_names_no_ticket() -> None:
    assert judged(answer(503, {"id": "T-1"})).provider_ticket_id is None


HOSTILE: Final = [
    b'{"code":' * 100_000,  # deep objects
    b'{"a":' + b"[" * 200_000,  # an integer that int() rejects
    b'{"id": ' + b"9" * 60_000 + b"}",  # an integer that int() rejects
    b'{"id": 1e999, "code": NaN}',
    b'{"code": "\xff\xfe"}',  # not UTF-8
    b"\xff\xfe{\x00}\x00",  # UTF-16
    b"\xef\xbb\xbf{}",  # a byte order mark
    b'{"error": null, "code": {"code": "WEBHOOK_RATE_LIMITED"}}',
    b'{"error": [{"code": "WEBHOOK_RATE_LIMITED"}]}',
    b'{"code": ["WEBHOOK_RATE_LIMITED"]}',
    b'{"id": "T-1"',  # truncated
    b"[" * 65_536,
    b"{" * 65_536,
    b"\x00" * 65_536,
    b"null",
    b"",
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize(
    ("status", "transition"), [(200, Transition.DELIVER), (401, Transition.FAIL), (500, Transition.RESCHEDULE)]
)
def test_a_hostile_body_does_not_change_the_verdict(body: bytes, status: int, transition: Transition) -> None:
    verdict = judged(Outcome(status=status, body=body))
    assert verdict.transition is transition
    assert verdict == judged(Outcome(status=status))


_names: Final = st.sampled_from(["code", "error", "id", "url", "ticket_id", "ticket_url"]) | st.text()
_json: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(sorted(outcomes.RECEIVER_CODES)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
_bodies: Final = st.binary() | _json.map(lambda value: json.dumps(value).encode())
_dates: Final = st.from_regex(
    r"(Mon, )?\d{1,3} [A-Z][a-z]{2} \d{1,25} \d\d:\d\d(:\d\d)? ([+-]\d{1,12}|GMT|[A-Z]{1,4})", fullmatch=True
)


@given(
    status=st.none() | st.integers(100, 999),
    body=_bodies,
    retry_after=st.none() | st.text() | _dates | st.integers().map(str),
    try_number=st.integers(1, 5),
    jitter=st.floats(-1, 1),
)
def test_every_response_has_one_outcome_within_the_limits(
    status: int | None, body: bytes, retry_after: str | None, try_number: int, jitter: float
) -> None:
    outcome = Outcome(status=status, error="x" if status is None else None, body=body, retry_after=retry_after)
    verdict = judged(outcome, try_number, jitter)
    assert verdict.transition in {Transition.DELIVER, Transition.RESCHEDULE, Transition.FAIL}
    assert (verdict.next_attempt_at is not None) == (verdict.transition is Transition.RESCHEDULE)
    assert verdict.retry_after_s is None or 0 < verdict.retry_after_s <= DAY_S
    if verdict.transition is Transition.RESCHEDULE:
        scheduled = PLAN.delays_s[try_number - 1]
        least = scheduled * 0.85 if verdict.retry_after_s is None else verdict.retry_after_s
        most = scheduled * 1.15 if verdict.retry_after_s is None else verdict.retry_after_s + 10
        # A 429 without Retry-After holds its target for longer than the schedule's first delays.
        pause_s = verdict.effect.hold_s or 0
        assert max(least, pause_s) - 1e-3 <= wait_s(verdict) <= max(most, pause_s) + 1e-3
    for text in (verdict.provider_ticket_id, verdict.provider_ticket_url):
        assert text is None or (0 < len(text) <= 500 and text.isprintable())
    assert verdict == judged(outcome._replace(), try_number, jitter)
