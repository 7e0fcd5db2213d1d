"""Documents error responses: the codes that an operation can return, and one response per status.

The codes of the request pipeline are derived from the `Operation`, so none can be left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

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
#: The same for every status, whose examples show its codes. In generated clients a schema per status would become several
#: classes per status of each operation.
_ERROR: Final = {"$ref": "#/components/schemas/Error"}
_PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}
_EXAMPLE_FIELD: Final = errors.FieldProblem("/page/url", "invalid_url", "Not a valid URL.")


def codes(operation: Operation, path: str, further: Iterable[str]) -> set[str]:
    """Return every code that an operation at `path` can return."""
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
    """Return whether an operation supports Idempotency-Key: all with a body, except a signed one."""
    return operation.form is not None and operation.body is not Body.SIGNED


def by_status(found: Iterable[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield each status with its codes, in order."""
    known = set(found)
    for status in sorted({STATUS[code] for code in known}):
        yield status, tuple(sorted(code for code in known if STATUS[code] == status))


def component_name(group: tuple[str, ...], *, challenges: bool) -> str:
    """Return the component name of the response with these codes."""
    name = "Or".join("".join(word.capitalize() for word in code.split("_")) for code in group)
    return f"{name}WithChallenge" if challenges and group == ("UNAUTHORIZED",) else name


def response(status: int, group: tuple[str, ...], *, challenges: bool) -> dict[str, Any]:
    """Return the response of one status; a bearer's 401 has a challenge."""
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


#: The header of a component; "optional" ones are absent in some responses of that status.
HEADER_NAMES: Final[Mapping[str, str]] = {
    "RequestId": "X-Request-Id",
    "Challenge": "WWW-Authenticate",
    "RetryAfter": "Retry-After",
    "RetryAfterOptional": "Retry-After",
    "RateLimit": "RateLimit",
    "RateLimitPolicy": "RateLimit-Policy",
    "RateLimitOptional": "RateLimit",
    "RateLimitPolicyOptional": "RateLimit-Policy",
    "Location": "Location",
    "ETag": "ETag",
    "Link": "Link",
    "Replayed": "Idempotency-Replayed",
}


def references(names: Iterable[str]) -> dict[str, Any]:
    """Return header components by the names of their headers."""
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
