"""Routes of the API, and the endpoints that most of them consist of: list, read, create, change, remove.

An endpoint calls a use case with the ids of the path and the caller, and shows the record that the use case returns.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import falcon

from schemas.api.response_fields import ResponseSchema, dump
from schemas.base.fields import Form, NoMembers
from schemas.base.principal import TokenPrincipal
from schemas.intake.sources import InboundSource
from schemas.settings.definitions import RouteFamily
from service.http.auth import Authenticate
from service.http.idempotency import ApiResponse, IdempotentExecutor
from service.http.paging import read_page, send_page, send_record
from service.http.request_pipeline import Body, Operation
from service.operations.accounts.authority import OperatorAccount
from service.operations.wiring import Operations
from storage.accounts.account_limits import AccountLimits

#: Returns the JSON object of a record.
Show = Callable[[Any], Mapping[str, Any]]


class Endpoint(NamedTuple):
    """One method of a route: the checks before it, and its responder."""

    checks: Operation
    respond: Callable[..., None]


class ApiRoute:
    """A path with its methods; a route with GET also supports HEAD. `source` is the inbound source that uses the route."""

    def __init__(
        self,
        path: str,
        *,
        get: Endpoint | None = None,
        post: Endpoint | None = None,
        patch: Endpoint | None = None,
        delete: Endpoint | None = None,
        family: RouteFamily = RouteFamily.EXPORTS,
        source: InboundSource | None = None,
    ) -> None:
        self.path = path
        self.family = family
        self.source = source
        methods = {"GET": get, "HEAD": get, "POST": post, "PATCH": patch, "DELETE": delete}
        self.operations = {method: each.checks for method, each in methods.items() if each is not None}
        if get is not None:
            self.on_get = self.on_head = get.respond
        if post is not None:
            self.on_post = post.respond
        if patch is not None:
            self.on_patch = patch.respond
        if delete is not None:
            self.on_delete = delete.respond


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The dependencies of responders, and the endpoints that need them."""

    executor: IdempotentExecutor
    operations: Operations
    operator_account: OperatorAccount
    limits: AccountLimits
    public_base_url: str

    def url(self, req: falcon.Request) -> str:
        """Return the public URL of a request's path."""
        return self.public_base_url + str(req.uri_template).format(**req.context.params)

    def listed(self, bearer: Authenticate, prefix: str, list_page: Callable[..., Sequence[Any]], show: Show) -> Endpoint:
        """List records whose ids have a prefix, newest first: `list_page` gets the ids, the caller, a limit and a cursor."""

        def respond(req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
            page = read_page(req, prefix)
            found = list_page(*ids.values(), caller(req), page.fetch_limit, page.before)
            send_page(resp, self.url(req), page, [show(each) for each in found])

        return Endpoint(Operation(bearer), respond)

    def created(self, bearer: Authenticate, form: Form, create: Callable[[falcon.Request], Any], show: Show) -> Endpoint:
        """Create a record, and respond with it and its URL."""
        return self.once_per_key(Operation(bearer, form), lambda req: self.created_response(req, show(create(req))))

    def created_response(
        self, req: falcon.Request, record: Mapping[str, Any], status: int = 201, **log_fields: str | None
    ) -> ApiResponse:
        """Return the response with a new record of the list at the path of the request."""
        return ApiResponse(status, record, {"Location": f"{self.url(req)}/{record['id']}"}, log_fields)

    def changed(self, bearer: Authenticate, form: Form, change: Callable[..., Any], show: Show) -> Endpoint:
        """Change a record, and respond with it: `change` gets the ids, the payload and the caller."""

        def work(req: falcon.Request, **ids: str) -> ApiResponse:
            return ApiResponse(200, show(change(*ids.values(), req.context.payload, caller(req))))

        return self.once_per_key(Operation(bearer, form), work)

    def acted(self, bearer: Authenticate, act: Callable[..., Any], show: Show) -> Endpoint:
        """Do something with a record, without further values, and respond with it: `act` gets the ids and the caller."""

        def work(req: falcon.Request, **ids: str) -> ApiResponse:
            return ApiResponse(200, show(act(*ids.values(), caller(req))))

        return self.once_per_key(Operation(bearer, NoMembers(), Body.OPTIONAL), work)

    def once_per_key(
        self,
        checks: Operation,
        work: Callable[..., ApiResponse],
        before: Callable[..., object] | None = None,
        *,
        makes_due: bool = False,
    ) -> Endpoint:
        """Do some work in a transaction, once per Idempotency-Key.

        `before` waits for the network before the transaction, and `work` finds its result in `req.context.prepared`; a
        replay skips it. If `makes_due`, a target whose URL the policy refuses is blocked, and the workers are woken after
        the commit.
        """

        def respond(req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
            def prepare() -> None:
                req.context.prepared = before(req, **ids) if before is not None else None

            operations = self.operations
            with operations.exports.blocking_refused_target(req.context.principal) if makes_due else nullcontext():
                self.executor.respond(req, resp, lambda: work(req, **ids), prepare if before is not None else None)
            if makes_due:
                operations.wake_workers()

        return Endpoint(checks, respond)


def read(bearer: Authenticate, get: Callable[..., Any], show: Show = dict) -> Endpoint:
    """Read a record: `get` gets the ids and the caller."""

    def respond(req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        send_record(resp, show(get(*ids.values(), caller(req))))

    return Endpoint(Operation(bearer), respond)


def removed(bearer: Authenticate, remove: Callable[..., object]) -> Endpoint:
    """Remove a record, and respond with 204: `remove` gets the ids and the caller."""

    def respond(req: falcon.Request, resp: falcon.Response, **ids: str) -> None:
        remove(*ids.values(), caller(req))
        resp.status = falcon.HTTP_204

    return Endpoint(Operation(bearer), respond)


def shown_as(schema: type[ResponseSchema]) -> Show:
    """Return the function that returns the JSON object of a record, as `schema` documents it."""
    return partial(dump, schema)


def of_account(query: Callable[..., Any]) -> Callable[..., Any]:
    """Return a use case that makes a query with the id of the caller's account in place of the caller."""
    return lambda *given: query(*(each.account_id if isinstance(each, TokenPrincipal) else each for each in given))


def caller(req: falcon.Request) -> Any:
    """Return who acts: an administrator of all accounts, or the principal of the request."""
    return req.context.get("actor") or req.context.principal
