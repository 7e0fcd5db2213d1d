"""The meaning of a tracker's error: by its status, its headers, and its rate limit."""

import pytest

from schemas.trackers.exchange import FailureKind, TrackerFailure, number
from schemas.trackers.failures import CONFIGURATION_CODES, failure_of, rate_limited
from tests.support.trackers.steps import answer

CONFIGURATION, PAYLOAD, RETRY = FailureKind.CONFIGURATION, FailureKind.PAYLOAD, FailureKind.RETRY


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        *((status, CONFIGURATION, "tracker_moved") for status in (301, 302, 303, 307, 308)),
        (401, CONFIGURATION, "tracker_token_rejected"),
        (403, CONFIGURATION, "tracker_forbidden"),
        (404, CONFIGURATION, "tracker_not_found"),
        (410, CONFIGURATION, "tracker_issues_disabled"),
        (423, CONFIGURATION, "tracker_archived"),
        *((status, PAYLOAD, "tracker_rejected") for status in (199, 300, 304, 400, 405, 409, 413, 422, 499)),
        *((status, RETRY, "tracker_unavailable") for status in (408, 425, 500, 502, 503, 504, 599)),
    ],
)
def test_each_status_has_a_kind_of_failure_and_a_code(status: int, kind: FailureKind, code: str) -> None:
    assert failure_of(answer(status)) == TrackerFailure(kind, code)
    assert (code in CONFIGURATION_CODES) is (kind is CONFIGURATION)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_a_success_is_no_failure(status: int) -> None:
    assert failure_of(answer(status)) is None


def test_a_temporary_failure_has_the_wait_of_its_retry_after_header() -> None:
    assert failure_of(answer(503, retry_after="7")) == TrackerFailure(RETRY, "tracker_unavailable", retry_after_s=7.0)
    limited = TrackerFailure(RETRY, "tracker_rate_limited", 7.0, is_rate_limit=True)
    assert failure_of(answer(429, retry_after="7")) == limited
    assert failure_of(answer(422, retry_after="7")) == TrackerFailure(PAYLOAD, "tracker_rejected")


def test_retry_after_may_be_a_date() -> None:
    date, at_s = "Wed, 21 Oct 2026 07:28:00 GMT", 1792567680.0
    assert failure_of(answer(503, retry_after=date)) == TrackerFailure(RETRY, "tracker_unavailable", retry_at_s=at_s)
    limited = TrackerFailure(RETRY, "tracker_rate_limited", retry_at_s=at_s, is_rate_limit=True)
    assert failure_of(answer(429, retry_after=date)) == limited
    # The header is about this request, the reset time about all requests.
    assert rate_limited(answer(429, retry_after=date, x_ratelimit_reset="100")) == limited


@pytest.mark.parametrize(
    ("header", "reset", "wait_s", "retry_at_s"),
    [
        ("7", "", 7.0, None),
        # The header is about this request, the reset time about all requests.
        ("7", "100", 7.0, None),
        ("", "100", None, 100.0),
        ("soon", "100", None, 100.0),
        ("", "", None, None),
        ("0", "", 0.0, None),
        # Never earlier than requested: fractions, very long numbers, several headers.
        ("120.5", "", 120.5, None),
        ("1234567890123456", "", 1234567890123456.0, None),
        ("7, 9", "", 9.0, None),
        ("7, Wed, 21 Oct 2026 07:28:00 GMT", "100", 7.0, 1792567680.0),
    ],
)
def test_a_rate_limit_has_the_wait_of_its_header_or_else_the_reset_time(
    header: str, reset: str, wait_s: float | None, retry_at_s: float | None
) -> None:
    found = rate_limited(answer(429, retry_after=header, x_ratelimit_reset=reset))
    assert found == TrackerFailure(RETRY, "tracker_rate_limited", wait_s, retry_at_s, is_rate_limit=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7.0),
        ("123456789012345", 123456789012345.0),
        ("1234567890123456", None),
        ("-7", None),
        ("7.5", None),
        ("\u0667", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("", None),
    ],
)
def test_a_header_s_number_is_a_plain_decimal(text: str, value: float | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    ("remaining", "reset", "at_s"),
    [("0", "100", 100.0), (" 0 ", "100", 100.0), ("1", "100", None), ("", "100", None), ("0", "", None), ("00", "1", None)],
)
def test_a_limit_is_used_up_when_nothing_remains(remaining: str, reset: str, at_s: float | None) -> None:
    assert answer(200, x_ratelimit_remaining=remaining, x_ratelimit_reset=reset).reset_at_s() == at_s
    assert answer(200, ratelimit_remaining=remaining, ratelimit_reset=reset).reset_at_s() == at_s
    assert answer(200, x_ratelimit_reset=reset).reset_at_s() is None
