"""Descriptions of operations: the parts of the documentation that the code of a route does not contain.

Path, security, body, dry run and common errors are read from the resources, so that they cannot differ from the code.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from marshmallow import Schema, fields

from schemas.accounts.forms import MAX_ROW_ID
from schemas.api.response_fields import ResponseSchema, page_schema
from schemas.base.fields import MAX_ID, Form
from schemas.compliance.requests import SHOP_HEADER, TOPIC_HEADER, Topic
from schemas.targets.target import TargetStatus
from schemas.triage.export_filter import MAX_PROJECT_ID, ExportFilterForm, ExportSort, OneOrMore, ProjectIdValues, SearchText
from schemas.triage.finding_filter import FindingFilterForm
from service.http.paging import DEFAULT_LIMIT, MAX_LIMIT
from service.openapi.docs_page import FILES
from service.openapi.examples import example_id

#: The ids in examples.
EXPORT_ID: Final = example_id("exp")
TARGET_ID: Final = example_id("tgt")
REQUEST_ID: Final = "req_01KJM8B4C2D6E8F0G1H3J5K7M9"


@dataclass(frozen=True, slots=True)
class SuccessResponse:
    """A successful response; `headers` are added to the common ones.

    Without an `example`, the response has the example of the schema.
    """

    status: int
    description: str
    schema: type[Schema] | None = None
    example: Any = None
    headers: tuple[str, ...] = ()
    #: The response links to the operations on the new record, whose ids end with this text.
    links_to: str = ""
    media_type: str = "application/json"
    #: A second schema of the same response, for another form of the request.
    alternative: type[Schema] | None = None
    #: Examples of other media types, by media type.
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperationDescription:
    """The description of one operation."""

    id: str
    summary: str
    description: str
    responses: tuple[SuccessResponse, ...]
    #: Error codes in addition to the common ones.
    error_codes: tuple[str, ...] = ()
    #: Names of parameters in `PARAMETERS`.
    parameters: tuple[str, ...] = ()
    #: The response to a dry run, if it differs from the first response.
    dry_run_response: SuccessResponse | None = None
    #: Example bodies by name.
    examples: Mapping[str, Any] = field(default_factory=dict)


#: Descriptions by method and path, such as `GET /api/users`.
Operations = Mapping[str, OperationDescription]

#: The response to a client that has the current version.
NOT_MODIFIED: Final = SuccessResponse(304, "Your version is the current one.", headers=("ETag",))
PAGING: Final = ("Limit", "Cursor")


def operation(
    operation_id: str, summary: str, description: str, *responses: SuccessResponse, **more: Any
) -> OperationDescription:
    """Return the description of an operation; `more` are further fields of it."""
    return OperationDescription(operation_id, summary, description, responses, **more)


@dataclass(frozen=True, slots=True)
class Record:
    """A kind of record: its name, its schema, and its name in ids of operations.

    `title` is the name in summaries, if that differs from `name`.
    """

    name: str
    schema: type[ResponseSchema]
    id: str = ""
    title: str = ""

    def response(self, description: str = "") -> SuccessResponse:
        """Return a response with the record."""
        return SuccessResponse(200, description or f"The {self.name}.", self.schema)

    def created(self, description: str = "", status: int = 201) -> SuccessResponse:
        """Return the response with the new record and its URL."""
        return replace(self.response(description), status=status, headers=("Location",), links_to=self._id)

    def operation(self, verb: str, description: str, *responses: SuccessResponse, **more: Any) -> OperationDescription:
        """Return the description of the operation `verb` on one record; `more` are further fields of it."""
        summary = f"{verb.capitalize()} {'an' if self._title[0] in 'aeio' else 'a'} {self._title}"
        return operation(f"{verb}{self._id}", summary, description, *responses, **more)

    def read(self, description: str, response: str = "", summary: str = "") -> OperationDescription:
        """Return the description of the operation that reads one record."""
        described = self.operation("read", description, self.response(response))
        return replace(described, summary=summary) if summary else described

    def listed(
        self, description: str, *parameters: str, summary: str = "", many: str = "", order: str = "newest first"
    ) -> OperationDescription:
        """Return the description of the operation that lists the records; `many` is their plural, by default with an s."""
        summary = summary or f"List {many or f'{self._title}s'}"
        many = many or f"{self.name}s"
        schema = page_schema(self.schema, f"The {many.removeprefix('bulk ')}, {order}.")
        page = SuccessResponse(200, f"A page of {many}, {order}.", schema, headers=("Link",))
        named = f"list{self._id}s" if not self._id.endswith("y") else f"list{self._id[:-1]}ies"
        return operation(named, summary, description, page, parameters=(*parameters, *PAGING))

    @property
    def _id(self) -> str:
        return self.id or self.name.title().replace(" ", "")

    @property
    def _title(self) -> str:
        return self.title or self.name


_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#: The last label must begin with a letter: a name whose last label is numeric is an IP address.
_TOP_LABEL: Final = "[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"


def _query(name: str, description: str, schema: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"in": "query", "name": name, "description": description, "schema": dict(schema), **more}


def _header(name: str, description: str, schema: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"in": "header", "name": name, "description": description, "schema": dict(schema), "required": False, **more}


def _id(prefix: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{prefix}_[0-9A-HJKMNP-TV-Z]{{26}}$"}


def _in_path(name: str, description: str, schema: Mapping[str, Any], example: object) -> dict[str, Any]:
    return {"in": "path", "name": name, "description": description, "required": True, "schema": schema, "example": example}


def _path(name: str, prefix: str, description: str) -> dict[str, Any]:
    return _in_path(name, description, _id(prefix), example_id(prefix))


def _row(name: str, description: str, maximum: int = MAX_ROW_ID, example: int = 7) -> dict[str, Any]:
    return _in_path(name, description, {"type": "integer", "minimum": 1, "maximum": maximum}, example)


def _id_filter(name: str, description: str) -> dict[str, Any]:
    return _query(name, f"{description}.", {"type": "integer", "minimum": 1, "maximum": MAX_ID})


def _id_of(noun: str, owner: str = "account") -> str:
    return f"The id of the {noun}. If the {noun} belongs to another {owner}, the response is 404."


def _words(words: Iterable[str]) -> list[str]:
    return [str(word) for word in words]


def _filters(of: str, form: Form) -> dict[str, dict[str, Any]]:
    """Return the filters of a list as parameters, by component name."""
    return {f"{of}{name.title().replace('_', '')}": _filter(name, field) for name, field in form.fields.items()}


def _filter(name: str, values: fields.Field[Any]) -> dict[str, Any]:
    description = values.metadata["description"]
    if isinstance(values, SearchText):
        return _query(name, description, {"type": "string", "minLength": 1, "maxLength": values.max_length})
    if not isinstance(values, OneOrMore):
        return _query(name, description, _TIME)
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": values.at_most, "items": _TEXT}
    if isinstance(values, ProjectIdValues):
        schema["items"] = {"type": "integer", "minimum": 1, "maximum": MAX_PROJECT_ID}
    elif name == "target_id":
        schema["items"] = _id("tgt")
    elif values.allowed:
        schema = {"type": "array", "minItems": 1, "items": {"type": "string", "enum": _words(values.allowed)}}
    return _query(name, f"{description} Several are separated by commas.", schema, style="form", explode=False)


#: Up to 200 printable ASCII characters, without spaces.
_WORD: Final = {"type": "string", "pattern": "^[!-~]{1,200}$"}
_TIME: Final = {"type": "string", "format": "date-time"}
_TEXT: Final = {"type": "string"}

EXPORT_FILTERS: Final = _filters("Export", ExportFilterForm())
FINDING_FILTERS: Final = _filters("Finding", FindingFilterForm())
#: Every parameter, by component name.
PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    **EXPORT_FILTERS,
    **FINDING_FILTERS,
    "ExportId": _path("export_id", "exp", _id_of("export")),
    "TargetId": _path("target_id", "tgt", _id_of("target")),
    "RecoveryId": _path("recovery_id", "rec", _id_of("recovery")),
    "BulkJobId": _path("job_id", "blk", _id_of("job")),
    "RuleId": _path("rule_id", "rul", _id_of("rule")),
    "HandoffId": _path("handoff_id", "hof", _id_of("handoff", "user")),
    "FindingId": _path("finding_id", "fnd", _id_of("finding")),
    "SessionId": _path("session_id", "ses", _id_of("session")),
    "ProjectId": _row("project_id", _id_of("project"), example=1),
    "AccountId": _row("account_id", "The id of the account."),
    "UserId": _row("user_id", _id_of("user")),
    "GrantId": _row("grant_id", _id_of("grant")),
    "TokenId": _row("token_id", _id_of("token")),
    "ScanRunId": _row("scan_run_id", _id_of("scan run"), MAX_ID),
    "ComplianceRequestId": _path("compliance_id", "cpl", "The id of the request."),
    "AuditActor": _query("actor", "Only entries about actions of this actor, such as `user:7` or `operator`.", _WORD),
    "AuditAction": _query("action", "Only entries about this action.", _WORD),
    "AuditObject": _query("object", "Only entries about the record with this id, such as `exp_…` or `user:7`.", _WORD),
    "AuditAfter": _query("created_after", "Only entries written at this time or later.", _TIME),
    "AuditBefore": _query("created_before", "Only entries written before this time.", _TIME),
    "OfAccount": _id_filter("account_id", "Only records of this account; allowed only with the ability `admin`"),
    "OfUser": _id_filter("user_id", "Only records of this user"),
    "OfProject": _id_filter("project_id", "Only records of this project"),
    "Email": _query("email", "Only the user with this email address.", _TEXT),
    "RequestId": _header(
        "X-Request-Id",
        "An id that you choose for this request: 1 to 128 letters, digits, `.`, `_` or `-`. RiskRelay "
        "replaces any other value.",
        _TEXT,
    ),
    "IdempotencyKey": _header(
        "Idempotency-Key",
        "A key that you choose for this request: 1 to 255 printable ASCII characters. A repeated request "
        "with the same key and payload gets the stored response.",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
    ),
    "DryRun": _query(
        "dry_run",
        "`true` or `1`: run every check and store nothing. The response is 200, with the body that the "
        "stored request would get.",
        {"type": "string", "enum": ["true", "1", "false", "0"]},
    ),
    "PageFile": _in_path("file", "The name of the file.", {"type": "string", "enum": list(FILES)}, "page.js"),
    "Limit": _query(
        "limit",
        "The maximum number of records per page.",
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    ),
    "Cursor": _query("cursor", "The `next_cursor` of the previous page; without it, the response is the first page.", _TEXT),
    "ExportSort": _query(
        "sort",
        "The order: newest, oldest, highest severity or most findings first. Among equal exports, the newest is first.",
        {"type": "string", "enum": _words(ExportSort), "default": ExportSort.NEWEST.value},
    ),
    "Facets": _query(
        "facets", "`true` adds the number of exports with each value.", {"type": "string", "enum": ["true", "false"]}
    ),
    "TargetStatus": _query("status", "Only targets with this status.", {"type": "string", "enum": _words(TargetStatus)}),
    "IfNoneMatch": _header(
        "If-None-Match", "The `ETag` of the version that you have; the response is 304 while it is current.", _TEXT
    ),
    "Topic": _header(
        TOPIC_HEADER,
        "The topic of the request.",
        {"type": "string", "enum": _words(Topic)},
        required=True,
        example=Topic.CUSTOMER_REDACT.value,
    ),
    "ShopDomain": _header(
        SHOP_HEADER,
        "The domain of the shop; equal to `shop_domain` in the body.",
        {"type": "string", "maxLength": 254, "pattern": rf"^({_LABEL}\.)+{_TOP_LABEL}\.?$"},
        required=True,
        example="snow.shops.example",
    ),
}
