"""A client of RiskRelay: submit tickets, approve them, wait for their delivery, administer accounts, verify webhooks."""

from riskrelay_client import _version
from riskrelay_client._async.client import AsyncRiskRelay
from riskrelay_client._sync.client import RiskRelay
from riskrelay_client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    IdempotencyConflict,
    NotFound,
    RateLimited,
    RiskRelayError,
    ServerError,
    Unauthorized,
    Unreachable,
    ValidationFailed,
    WaitTimeout,
)

__version__ = _version.VERSION

__all__ = [
    "ApiError",
    "AsyncRiskRelay",
    "Conflict",
    "Forbidden",
    "IdempotencyConflict",
    "NotFound",
    "RateLimited",
    "RiskRelay",
    "RiskRelayError",
    "ServerError",
    "Unauthorized",
    "Unreachable",
    "ValidationFailed",
    "WaitTimeout",
    "__version__",
]
