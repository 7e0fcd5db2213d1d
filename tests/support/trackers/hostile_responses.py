"""Responses that no real tracker sends: malformed, very large, or with contradictory content."""

from itertools import product
from typing import Any, Final

from schemas.trackers.exchange import TrackerResponse
from tests.support.trackers.steps import answer

_NUMBERS: Final[tuple[Any, ...]] = (0, -1, 1.5, True, None, "7", 2**63, 10**400, [], {})
_BODIES: Final[tuple[Any, ...]] = (
    b"",
    b"<html>Sign in</html>",
    b"\xff\xfe{",
    b'{"number": 1',
    b"9" * 5000,
    b"[" * 5000 + b"]" * 5000,
    b'{"a":' * 900 + b"{}" + b"}" * 900,
    b'[{"body":' + b"[" * 900 + b"]" * 900 + b"}]",
    b"x" * 5_000_000,
    None,
    True,
    "text",
    [],
    {},
    [None, 1, "x", [], {}],
    [{"number": number, "id": number, "name": number, "body": number, "login": number} for number in _NUMBERS],
    {"number": 1, "id": 1, "key": "A-1", "issue": {"id": 7}},
    {"issues": [None, {"id": "x", "description": 5}], "errors": {"a": []}, "message": {"a": 1}},
    {"project": {"status": [], "trackers": {}, "enabled_modules": [None]}, "total_count": 10**18},
    {"memberships": [{"user": 5}], "issue_priorities": [[]], "total_count": 10**18},
)
_STATUSES: Final = (200, 201, 204, 299, 301, 400, 401, 403, 404, 410, 412, 422, 423, 429, 499, 500, 503, 599, 999)
_HEADERS: Final = {"link": "<" * 900 + '>; rel="next"', "retry_after": "nan", "x_ratelimit_remaining": "0"}

#: Each status with each body, with the malformed headers in _HEADERS.
HOSTILE_RESPONSES: Final[list[TrackerResponse]] = [
    answer(status, body, **_HEADERS) for status, body in product(_STATUSES, _BODIES)
]
