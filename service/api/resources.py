"""The base class of API resources: the dependencies of responders, and the checks that run before them."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, wraps

import falcon

from schemas.settings.definitions import RouteFamily, Settings
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.request_pipeline import Operation
from service.operations.accounts.authority import OperatorAccount
from service.operations.wiring import Operations
from storage.accounts.account_limits import AccountLimits, account_limits


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The dependencies of responders."""

    executor: IdempotentExecutor
    operations: Operations
    operator_account: OperatorAccount
    limits: AccountLimits
    public_base_url: str

    @classmethod
    def of(cls, settings: Settings, operations: Operations) -> "ApiContext":
        """Return the dependencies for one installation."""
        executor = IdempotentExecutor(settings.idempotency_ttl)
        return cls(executor, operations, OperatorAccount(settings), account_limits(settings), settings.public_base_url)


def by_method(**checks: Operation) -> Mapping[str, Operation]:
    """Return the keyword arguments as a mapping from method to its checks."""
    return checks


class ApiResource:
    """A route; subclasses set `path` and the `checks` before each method. A route with GET also supports HEAD."""

    path: str
    family = RouteFamily.EXPORTS
    checks: Mapping[str, Operation]
    on_get: Callable[..., None]

    def __init__(self, api: ApiContext, checks: Mapping[str, Operation] | None = None) -> None:
        self._api = api
        self._executor = api.executor
        self._url = api.public_base_url + self.path
        self.operations = dict(checks or self.checks)
        if "GET" in self.operations:
            self.operations["HEAD"] = self.operations["GET"]
            self.on_head = self.on_get


def once_per_key(work: Callable[..., ApiResponse]) -> Callable[..., None]:
    """Turn a method that returns an ApiResponse into a responder; it runs in a transaction, once per Idempotency-Key."""
    return once_per_key_with()(work)


def once_per_key_with(
    before: Callable[..., None] | None = None, *, makes_due: bool = False
) -> Callable[[Callable[..., ApiResponse]], Callable[..., None]]:
    """Return a decorator like `once_per_key` for methods that also work outside their transaction.

    `before` is a method that waits for the network before the transaction; a replay skips it. If `makes_due`, a target whose
    URL the policy refuses is blocked, and the workers are woken after the commit.
    """

    def decorate(work: Callable[..., ApiResponse]) -> Callable[..., None]:
        @wraps(work)
        def respond(resource: ApiResource, req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
            preparation = None if before is None else partial(before, resource, req, **ids)
            operations = resource._api.operations
            with operations.exports.blocking_refused_target(req.context.principal) if makes_due else nullcontext():
                resource._executor.respond(req, resp, lambda: work(resource, req, **ids), preparation)
            if makes_due:
                operations.wake_workers()

        return respond

    return decorate
