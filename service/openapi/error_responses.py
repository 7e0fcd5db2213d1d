"""Documents error responses: the codes that an operation can return, and one response per status.

The codes of the request pipeline are derived from the `Operation`, so no code can be missing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from schemas.base import errors
from service.http.auth import Bearer
from service.http.error_responses import PROBLEM_JSON, STATUS, problem_body
from service.http.request_pipeline import Body, Operation
from service.openapi.operations import REQUEST_ID

_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "UNAUTHORIZED": "The token or secret is missing, wrong, expired or revoked.",
    "SIGNATURE_INVALID": "The signature does not match the raw body.",
    "FORBIDDEN": "The token lacks the ability or is of the wrong kind, or the account or network is not allowed to do this.",
    "NOT_FOUND": "No such path or record, or it belongs to another account.",
    "NOT_ACCEPTABLE": "`Accept` excludes JSON.",
    "REQUEST_TIMEOUT": "The body did not arrive in time; send it again.",
    "CONFLICT": "The state of the record does not allow this action; read the record again, after `Retry-After` if present.",
    "IDEMPOTENCY_CONFLICT": "The key was used with a different payload; use a new key for a new request.",
    "IDEMPOTENCY_IN_PROGRESS": "The first request with this key is still running; retry after `Retry-After`.",
    "PAYLOAD_TOO_LARGE": "The body is larger than this installation allows.",
    "UNSUPPORTED_MEDIA_TYPE": "The body is not `application/json`, or compressed.",
    "VALIDATION_FAILED": "`details.fields` names every invalid field and the reason. Nothing was stored.",
    "RATE_LIMITED": "Too many requests, or too many failed authentications from this address; retry after `Retry-After`.",
    "INTERNAL_ERROR": "Internal error; repeat a few times with the same key, then report the request id to the operator.",
    "SERVICE_UNAVAILABLE": "The database is unavailable, locked or full, a secret is not configured, or too many large "
    "bodies are being processed; retry with the same key, after `Retry-After` if present.",
}
#: One schema for all statuses; the examples of a status show its codes. With a schema per status, generated clients would
#: have several error classes for each operation.
_ERROR: Final = {"$ref": "#/components/schemas/Error"}
_PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}
_EXAMPLE_FIELD: Final = errors.FieldProblem("/page/url", "invalid_url", "Not a valid URL.")


def codes(operation: Operation | None, path: str, further: Iterable[str]) -> set[str]:
    """Return every code that an operation at `path` can return; an open route has no `operation`."""
    if operation is None:
        return set(further)
    found = {"UNAUTHORIZED", "NOT_ACCEPTABLE", "PAYLOAD_TOO_LARGE", "VALIDATION_FAILED", "RATE_LIMITED", *further}
    found |= {"INTERNAL_ERROR", "SERVICE_UNAVAILABLE"}
    if isinstance(operation.authenticate, Bearer):
        found.add("FORBIDDEN")
    if "{" in path:
        found.add("NOT_FOUND")
    if operation.form is not None:
        found |= {"UNSUPPORTED_MEDIA_TYPE", "REQUEST_TIMEOUT"}
        if has_key(operation):
            found |= {"IDEMPOTENCY_CONFLICT", "IDEMPOTENCY_IN_PROGRESS"}
    return found


def has_key(operation: Operation) -> bool:
    """Return whether an operation supports Idempotency-Key: all do that have a body, except a signed one."""
    return operation.form is not None and operation.body is not Body.SIGNED


def by_status(found: Collection[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield each status with its codes, in order."""
    for status in sorted({STATUS[code] for code in found}):
        yield status, tuple(sorted(code for code in found if STATUS[code] == status))


def component_name(group: tuple[str, ...], *, challenges: bool) -> str:
    """Return the component name of a response with these codes."""
    name = "Or".join("".join(word.capitalize() for word in code.split("_")) for code in group)
    return f"{name}WithChallenge" if challenges and group == ("UNAUTHORIZED",) else name


def response(status: int, group: tuple[str, ...], *, challenges: bool) -> dict[str, Any]:
    """Return the response of one status; `challenges` adds the challenge header to a 401."""
    return {
        "description": " ".join(f"`{code}`: {_DESCRIPTIONS[code]}" for code in group),
        "headers": _headers(status, group, challenges=challenges),
        "content": {
            "application/json": {"schema": _ERROR, "examples": _examples(group, as_problem=False)},
            PROBLEM_JSON: {"schema": _PROBLEM, "examples": _examples(group, as_problem=True)},
        },
    }


def _headers(status: int, group: tuple[str, ...], *, challenges: bool) -> dict[str, Any]:
    names = ["RequestId"]
    if challenges and group == ("UNAUTHORIZED",):
        names.append("Challenge")
    if status == STATUS["RATE_LIMITED"]:
        names.append("RetryAfter")
    if {"CONFLICT", "IDEMPOTENCY_IN_PROGRESS", "SERVICE_UNAVAILABLE"} & {*group}:
        names.append("RetryAfterOptional")
    if status != STATUS["UNAUTHORIZED"]:
        names += ["RateLimitOptional", "RateLimitPolicyOptional"]
    return references(names)


class _Header(NamedTuple):
    name: str
    description: str
    schema: dict[str, Any]
    required: bool = True


_LIMIT: Final = {"type": "string", "pattern": '^"principal";r=[0-9]+;t=[0-9]+$'}
_POLICY: Final = {"type": "string", "pattern": '^"principal";q=[0-9]+;w=[0-9]+$'}
_REMAINING: Final = "You can send `r` more requests within `t` seconds"
_ALLOWED: Final = "You can send `q` requests within any `w` seconds"
_AUTHENTICATED: Final = "present if the caller is authenticated."
_WAIT: Final = {"type": "integer", "minimum": 1}
#: The headers, by component name; some responses of a status do not have the "optional" headers.
HEADERS: Final[Mapping[str, _Header]] = {
    "RequestId": _Header(
        "X-Request-Id", "Your `X-Request-Id`, or a generated one.", {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"}
    ),
    "RateLimit": _Header("RateLimit", f"{_REMAINING}.", _LIMIT),
    "RateLimitPolicy": _Header("RateLimit-Policy", f"{_ALLOWED}.", _POLICY),
    "RateLimitOptional": _Header("RateLimit", f"{_REMAINING}; {_AUTHENTICATED}", _LIMIT, required=False),
    "RateLimitPolicyOptional": _Header("RateLimit-Policy", f"{_ALLOWED}; {_AUTHENTICATED}", _POLICY, required=False),
    "RetryAfter": _Header("Retry-After", "Whole seconds to wait before you repeat the request.", _WAIT),
    "RetryAfterOptional": _Header(
        "Retry-After",
        "Whole seconds to wait before you repeat the request; absent if waiting does not help.",
        _WAIT,
        required=False,
    ),
    "Challenge": _Header(
        "WWW-Authenticate", "The authentication scheme that the route requires.", {"type": "string", "pattern": "^Bearer "}
    ),
    "Location": _Header("Location", "The URL of the record.", {"type": "string", "format": "uri"}),
    "ETag": _Header(
        "ETag",
        "The version of the response; send it as `If-None-Match` in the next request.",
        {"type": "string", "pattern": '^"[^"]+"$'},
    ),
    "Link": _Header("Link", 'The next page, as `<…>; rel="next"`; absent on the last one.', {"type": "string"}, False),
    "Replayed": _Header(
        "Idempotency-Replayed",
        "`true` if this is the stored response of the first request. If its data has been erased since, "
        'the body is `{"redacted": true}`.',
        {"type": "string", "enum": ["true"]},
        required=False,
    ),
}
HEADER_NAMES: Final = {component: header.name for component, header in HEADERS.items()}


def references(names: Iterable[str]) -> dict[str, Any]:
    """Return references to header components, by header name."""
    return {HEADER_NAMES[name]: {"$ref": f"#/components/headers/{name}"} for name in names}


def _examples(group: tuple[str, ...], *, as_problem: bool) -> dict[str, Any]:
    bodies = {code: errors.error_body(_error(code), REQUEST_ID) for code in group}
    return {code: {"value": problem_body(body["error"]) if as_problem else body} for code, body in bodies.items()}


def _error(code: str) -> errors.RiskRelayError:
    if code == errors.ValidationFailed.code:
        return errors.ValidationFailed(_EXAMPLE_FIELD)
    if code == errors.RateLimited.code:
        return errors.RateLimited(17)
    [kind] = [kind for kind in _kinds(errors.RiskRelayError) if kind.code == code and "code" in vars(kind)]
    return kind()


def _kinds(kind: type[errors.RiskRelayError]) -> Iterator[type[errors.RiskRelayError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)
