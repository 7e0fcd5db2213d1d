"""Builds the OpenAPI document of the served routes, from their operations and descriptions.

If a route has no description, building the document fails; a test finds this before an installation does.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin

from schemas.api.errors import ErrorResponse, ProblemResponse
from schemas.base.fields import Form
from schemas.base.principal import ABILITIES, TokenKind
from schemas.intake.email_forms import EmailForm
from schemas.targets.forms import TargetForm
from schemas.version import VERSION
from service.http.auth import Bearer, SharedSecret, StorefrontSignature
from service.http.request_pipeline import Body, Operation
from service.openapi import error_responses
from service.openapi.docs_page import DocsPageResource
from service.openapi.examples import example_of
from service.openapi.operations import PARAMETERS, OperationDescription, SuccessResponse
from service.openapi.request_bodies import own_schema, require_a_part, with_aliases, with_mailboxes, with_target_or_targets
from service.openapi.subjects import (
    administration,
    approval_rules,
    deliveries,
    exports,
    findings,
    health,
    intake,
    jobs,
    targets,
    uploads,
)

_SUBJECTS: Final = (exports, jobs, targets, approval_rules, findings, administration, intake, uploads, health)
_OPERATIONS: Final = {route: each for subject in _SUBJECTS for route, each in subject.OPERATIONS.items()}


class _Tag(NamedTuple):
    """A group of operations.

    An operation belongs to the tag with the longest path in `paths` with which its own path begins.
    """

    name: str
    description: str
    paths: tuple[str, ...]


_TAGS: Final = (
    _Tag(
        "Ticket exports",
        "Exports, which are tickets and their delivery: prepare, approve, poll, retry, dismiss.",
        ("/api/ticket-exports",),
    ),
    _Tag(
        "Decisions on many exports",
        "One decision on many exports: approve, dismiss, restore or retry.",
        ("/api/ticket-exports/bulk", "/api/bulk-jobs"),
    ),
    _Tag(
        "Ticket export targets",
        "The receivers of tickets: webhooks and issue trackers.",
        ("/api/ticket-export-targets", "/api/providers"),
    ),
    _Tag("Recoveries", "Jobs that redeliver failed exports of a target.", ("/api/ticket-export-recoveries",)),
    _Tag("Approval rules", "Rules that approve, dismiss or label exports when they are prepared.", ("/api/approval-rules",)),
    _Tag("Findings", "The issues that scan runs found, and whether they are fixed.", ("/api/findings",)),
    _Tag("Projects", "The websites of an account.", ("/api/projects",)),
    _Tag("Accounts", "Accounts: their names, rights and usage.", ("/api/account",)),
    _Tag("Users", "Users, their roles, and the grants that let them manage projects.", ("/api/users", "/api/grants")),
    _Tag("Tokens", "The API tokens and platform tokens of users.", ("/api/tokens",)),
    _Tag(
        "Audit",
        "The audit log, and the compliance requests of the storefront platform.",
        ("/api/audit", "/api/compliance-requests"),
    ),
    _Tag("Scan runs", "Scan runs, which assign a scanner's results to a project.", ("/api/scan-runs",)),
    _Tag("Scanner results", "The results that a scanner posts, one page at a time.", ("/api/scanner",)),
    _Tag("Email", "Inbound emails, which become tickets.", ("/api/email",)),
    _Tag(
        "Uploads",
        "Uploads of the browser extension, the CMS plugin and the storefront app.",
        ("/api/browser-extension", "/api/cms-plugins", "/api/storefront-app", "/api/handoffs"),
    ),
    _Tag("Compliance", "The storefront platform's requests about personal data.", ("/api/storefront-app/webhooks",)),
    _Tag("Console sessions", "The sessions of users at the console.", ("/api/console-sessions",)),
    _Tag("Health", "Health, metrics and this description; no authentication.", ("/",)),
    _Tag(deliveries.TAG, "The requests that RiskRelay sends to receivers.", ()),
)
_ABOUT: Final = """\
Collects website-risk findings, and delivers approved tickets to issue trackers and as signed webhooks, at least once.

Every response has `X-Request-Id`. Every error has the same body, which never repeats submitted values; with
`Accept: application/problem+json` it is RFC 9457 problem details. Routes with GET support HEAD as well; an unsupported
method is a 405 `METHOD_NOT_ALLOWED`. Bodies are strict JSON, nested at most 32 levels: no duplicate fields, no NUL, no lone
surrogates. Credentials, payment details, customer orders and whole pages are rejected with the violated rule and not stored.

Malformed HTTP is rejected before routing: 400 `VALIDATION_FAILED`, 414 and 431 `PAYLOAD_TOO_LARGE`.

Served at `/openapi.json`, and as a page at [`/docs`]({page}).
"""
#: The components of the path parameters, by the name of the parameter.
_PATH_PARAMETERS: Final = {each["name"]: component for component, each in PARAMETERS.items() if each["in"] == "path"}
_DRY_RUN: Final = "With `dry_run`: the response as if the request were stored. Its ids do not exist."


def document(resources: Iterable[Any], public_base_url: str) -> dict[str, Any]:
    """Return the OpenAPI document of `resources`, which are reachable at `public_base_url`."""
    return _Writer(public_base_url).write(list(resources))


def _component_name(schema: Any) -> str:
    """Return the component name of a form or a response schema."""
    name: str = (schema if isinstance(schema, type) else type(schema)).__name__.lstrip("_")
    return f"{name.removesuffix('Form')}Input" if name.endswith("Form") else name.removesuffix("Response")


class _Writer:
    """Collects components while it writes operations."""

    def __init__(self, public_base_url: str) -> None:
        plugin = MarshmallowPlugin(schema_name_resolver=_component_name)
        self._spec = APISpec(
            title="RiskRelay",
            version=VERSION,
            openapi_version="3.1.0",
            plugins=[plugin],
            info={
                "description": _ABOUT.format(page=f"{public_base_url}{DocsPageResource.path}"),
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            servers=[{"url": public_base_url}],
            security=[],
        )
        converter: Any = plugin.converter
        converter.add_attribute_function(own_schema)
        #: Adds a schema to the components and returns its reference.
        self._resolve: Callable[[Any], dict[str, Any]] = converter.resolve_nested_schema
        self._responses: set[str] = set()

    def write(self, resources: list[Any]) -> dict[str, Any]:
        described_by = {
            (method, resource.path): (resource, _OPERATIONS[f"{method} {resource.path}"])
            for resource in resources
            for method in _methods(resource)
        }
        self._served = {described.id for _, described in described_by.values()}
        self._write_components()
        for path in dict.fromkeys(path for _, path in described_by):
            operations = {
                method.lower(): self._operation(resource, method, described)
                for (method, its_path), (resource, described) in described_by.items()
                if its_path == path
            }
            self._spec.path(path=path, operations=operations)
        return self._complete({_tag_of(path) for _, path in described_by})

    def _write_components(self) -> None:
        components = self._spec.components
        for name, scheme in _security_schemes().items():
            components.security_scheme(name, scheme)
        for name, parameter in PARAMETERS.items():
            components.parameter(name, parameter["in"], dict(parameter))
        for name, header in error_responses.HEADERS.items():
            components.header(
                name, {"description": header.description, "required": header.required, "schema": header.schema}
            )
        for error in (ErrorResponse, ProblemResponse):
            self._resolve(error)

    def _complete(self, tags: set[str]) -> dict[str, Any]:
        """Return the document with webhooks and tags, with completed schemas, and without unused components."""
        webhooks = deliveries.webhooks(self._resolve)
        whole = self._spec.to_dict()
        schemas = whole["components"]["schemas"]
        for name, completed in (
            ("IssueInput", with_aliases),
            ("PostmarkInput", with_mailboxes),
            ("EditInput", require_a_part),
            ("ApprovalInput", with_target_or_targets),
        ):
            if name in schemas:
                schemas[name] = completed(schemas[name])
        components = whole["components"]
        components["parameters"] = _used(components["parameters"], "#/components/parameters/{}'", whole["paths"])
        components["securitySchemes"] = _used(components["securitySchemes"], "{{'{}': [", whole["paths"])
        tags.add(deliveries.TAG)
        whole["tags"] = [{"name": tag.name, "description": tag.description} for tag in _TAGS if tag.name in tags]
        return {**whole, "webhooks": webhooks}

    def _operation(self, resource: Any, method: str, described: OperationDescription) -> dict[str, Any]:
        operation: Operation | None = getattr(resource, "operations", {}).get(method)
        object_: dict[str, Any] = {
            "operationId": described.id,
            "tags": [_tag_of(resource.path)],
            "summary": described.summary,
            "description": described.description,
            "parameters": list(_parameters(resource, operation, described)),
            "security": _security(operation),
        }
        if operation is not None and operation.form is not None:
            object_["requestBody"] = self._body(operation, operation.form, described)
        return {**object_, "responses": dict(self._responses_of(resource, operation, described))}

    def _body(self, operation: Operation, form: Form, described: OperationDescription) -> dict[str, Any]:
        examples = described.examples or {"Empty body": {}}
        media = {"schema": self._input(form), "examples": {name: {"value": each} for name, each in examples.items()}}
        return {"required": operation.body is not Body.OPTIONAL, "content": {"application/json": media}}

    def _input(self, form: Form) -> dict[str, Any]:
        if isinstance(form, EmailForm | TargetForm):
            return {"anyOf": [self._resolve(each) for each in form.forms]}
        return self._resolve(form)

    def _responses_of(
        self, resource: Any, operation: Operation | None, described: OperationDescription
    ) -> Iterator[tuple[str, Any]]:
        for good in described.responses:
            yield str(good.status), self._success_response(good, operation)
        if operation is not None and operation.has_dry_run:
            [first] = described.responses
            dry_run = described.dry_run_response or SuccessResponse(200, _DRY_RUN, first.schema, first.example)
            yield "200", self._success_response(dry_run, operation)
        challenges = operation is not None and isinstance(operation.authenticate, Bearer)
        found = error_responses.codes(operation, resource.path, described.error_codes)
        for status, codes in error_responses.by_status(found):
            name = error_responses.component_name(codes, challenges=challenges)
            if name not in self._responses:
                self._responses.add(name)
                self._spec.components.response(name, error_responses.response(status, codes, challenges=challenges))
            yield str(status), {"$ref": f"#/components/responses/{name}"}

    def _success_response(self, good: SuccessResponse, operation: Operation | None) -> dict[str, Any]:
        """Return the Response Object of a successful response."""
        object_: dict[str, Any] = {
            "description": good.description,
            "headers": error_responses.references(_headers(good, operation)),
        }
        if good.schema is not None or good.example is not None:
            example = example_of(good.schema) if good.schema is not None and good.example is None else good.example
            examples = {good.media_type: example, **good.others}
            object_["content"] = {
                kind: {"schema": self._shape(good, kind), "example": each} for kind, each in examples.items()
            }
        if good.links_to:
            object_["links"] = dict(self._links(good.links_to))
        return object_

    def _links(self, record: str) -> Iterator[tuple[str, Any]]:
        """Yield links to the operations on a new record: those whose ids end with `record`.

        The link takes the record's id from the response.
        """
        for route, described in _OPERATIONS.items():
            _, brace, rest = route.partition("{")
            if brace and described.id.endswith(record) and described.id in self._served:
                parameters = {rest.partition("}")[0]: "$response.body#/id"}
                link = {"operationId": described.id, "parameters": parameters, "description": f"{described.summary}."}
                yield described.id, link

    def _shape(self, good: SuccessResponse, media_type: str) -> dict[str, Any]:
        if good.schema is not None:
            shapes = [self._resolve(each) for each in (good.schema, good.alternative) if each is not None]
            return {"anyOf": shapes} if good.alternative else shapes[0]
        return {"type": "string" if media_type.startswith("text/") else "object"}


def _tag_of(path: str) -> str:
    return max((len(each), tag.name) for tag in _TAGS for each in tag.paths if path.startswith(each))[1]


def _methods(resource: Any) -> list[str]:
    """Return the documented methods of a resource; HEAD, which is GET without a body, is not among them."""
    return [method for method in ("GET", "POST", "PUT", "PATCH", "DELETE") if hasattr(resource, f"on_{method.lower()}")]


def _parameters(resource: Any, operation: Operation | None, described: OperationDescription) -> Iterator[str]:
    for member, name in _PATH_PARAMETERS.items():
        if f"{{{member}}}" in resource.path:
            yield name
    yield from described.parameters
    if any(response.status == 304 for response in described.responses):
        yield "IfNoneMatch"
    if operation is not None and operation.has_dry_run:
        yield "DryRun"
    if operation is not None and error_responses.has_key(operation):
        yield "IdempotencyKey"
    yield "RequestId"


def _headers(good: SuccessResponse, operation: Operation | None) -> Iterator[str]:
    yield "RequestId"
    if operation is not None:
        yield from ("RateLimit", "RateLimitPolicy")
        if error_responses.has_key(operation) and good.status != 304:
            yield "Replayed"
    for name in good.headers:
        yield name.removesuffix("?").replace("-", "") + ("Optional" if name.endswith("?") else "")


def _security(operation: Operation | None) -> list[dict[str, list[str]]]:
    if operation is None:
        return []
    who = operation.authenticate
    if isinstance(who, Bearer):
        abilities = [who.ability, *who.alternatives] if who.ability else [None]
        return [{f"{who.kind.value}Token": [] if each is None else [each.value]} for each in abilities]
    scheme, _ = _SHARED_SECRETS[who.header if isinstance(who, SharedSecret) else StorefrontSignature.HEADER]
    return [{scheme: []}]


#: The name and description of each shared secret's security scheme, by header.
_SHARED_SECRETS: Final = {
    "X-Scanner-Secret": ("scannerSecret", "The shared secret of the scanner."),
    "X-Email-Webhook-Secret": ("emailSecret", "The shared secret of the email provider."),
    StorefrontSignature.HEADER: (
        "storefrontSignature",
        "HMAC-SHA-256 of the raw body with the shared secret of the storefront platform, in base64 or as 64 hex digits.",
    ),
}


def _security_schemes() -> dict[str, dict[str, str]]:
    schemes: dict[str, dict[str, str]] = {}
    for kind in TokenKind:
        abilities = ", ".join(f"`{ability.value}`" for ability in ABILITIES[kind])
        description = (
            f"A token of kind `{kind.value}`, created with `bin/riskrelay token create`. Possible abilities: {abilities}."
        )
        scheme = {"type": "http", "scheme": "bearer", "bearerFormat": "rrt_…", "description": description}
        schemes[f"{kind.value}Token"] = scheme
    for header, (name, description) in _SHARED_SECRETS.items():
        schemes[name] = {"type": "apiKey", "in": "header", "name": header, "description": description}
    return schemes


def _used(components: dict[str, Any], mark: str, paths: Any) -> dict[str, Any]:
    """Return the components whose names, in the text `mark`, are in a path."""
    text = repr(paths)
    return {name: component for name, component in components.items() if mark.format(name) in text}
