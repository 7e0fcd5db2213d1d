"""The storefront's compliance webhooks: requests for a customer's data, and to erase a customer or a shop.

The platform signs the body, not the headers. So the body must name the same shop as the header, and must not have a field of
another topic: a captured body is valid only for its own topic and shop. Other fields are ignored and never stored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from marshmallow import ValidationError, fields, post_load

from schemas.base.errors import FieldProblem, ValidationFailed
from schemas.base.fields import MAX_ID, AnyObject, Array, LenientForm, RecordForm, Text, optional, problem, required
from schemas.base.shop_domain import MAX_HOST, normalized_shop_domain
from schemas.base.timestamps import format_rfc3339

TOPIC_HEADER: Final = "X-Platform-Topic"
SHOP_HEADER: Final = "X-Platform-Shop-Domain"

#: Maximum length of an id: a number, a UUID or a resource name of the platform.
MAX_IDENTIFIER: Final = 255
#: RFC 5321 allows 254 characters; some senders exceed it.
MAX_ADDRESS: Final = 320
MAX_PHONE: Final = 64
#: More orders do not fit in a body of 1 MiB.
MAX_ORDERS: Final = 50_000


class Topic(StrEnum):
    """The kind of a compliance request."""

    DATA_REQUEST = "customers/data_request"
    CUSTOMER_REDACT = "customers/redact"
    SHOP_REDACT = "shop/redact"


class ComplianceStatus(StrEnum):
    """The status of a compliance request."""

    RECEIVED = "received"
    DONE = "done"


class ComplianceResult(StrEnum):
    """The result of a compliance request."""

    REPORTED = "reported"
    NOTHING_HELD = "nothing_held"
    REDACTED = "redacted"
    UNKNOWN_SHOP = "unknown_shop"


@dataclass(frozen=True, slots=True)
class Subject:
    """The person that a request is about; at least one field is set."""

    customer_id: str | None = None
    email: str | None = None
    phone: str | None = None
    order_ids: tuple[str, ...] = ()

    @property
    def identity(self) -> str | None:
        """A text that identifies the person in every request about them; None if there are only orders."""
        if self.customer_id is not None:
            return f"id:{self.customer_id}"
        if self.email is not None:
            return f"email:{self.email.casefold()}"
        return None if self.phone is None else f"phone:{''.join(filter(str.isdecimal, self.phone))}"

    def record(self) -> dict[str, Any]:
        """Return the subject as JSON."""
        return {**asdict(self), "order_ids": list(self.order_ids)}


def subject_from(record: Mapping[str, Any]) -> Subject:
    """Return the subject of a record that `Subject.record` made."""
    return Subject(record["customer_id"], record["email"], record["phone"], tuple(record["order_ids"]))


@dataclass(frozen=True, slots=True)
class ComplianceBody:
    """The body of a compliance webhook; a field that was not sent is None."""

    shop_domain: str
    customer: Subject | None
    orders_requested: Sequence[str] | None
    orders_to_redact: Sequence[str] | None
    data_request: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ComplianceWebhook:
    """A compliance webhook; a request about a shop has no subject, nor has one whose body is not read yet."""

    topic: Topic
    shop_domain: str
    subject: Subject | None = None


@dataclass(frozen=True, slots=True)
class ComplianceRequest:
    """A stored compliance request; it has a pseudonym of the person and no personal data."""

    id: str
    topic: Topic
    shop_domain: str
    subject_pseudonym: str | None
    status: ComplianceStatus
    result: ComplianceResult | None
    counts: Mapping[str, int]
    attempts: int
    last_error: str | None
    has_report: bool
    received_at: datetime
    due_at: datetime
    next_run_at: datetime | None
    finished_at: datetime | None


#: Fields that belong to other topics.
_FOREIGN: Final[Mapping[Topic, tuple[str, ...]]] = {
    Topic.DATA_REQUEST: ("orders_to_redact",),
    Topic.CUSTOMER_REDACT: ("orders_requested", "data_request"),
    Topic.SHOP_REDACT: ("customer", "orders_requested", "orders_to_redact", "data_request"),
}


class Identifier(Text):
    """An id as platforms write them, a number or a text; read as text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min_length=1, max_length=MAX_IDENTIFIER, **options)

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the accepted values."""
        return {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_ID}, super().json_schema]}

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> str:
        if type(value) is int:
            if not 0 <= value <= MAX_ID:
                raise ValidationError("out_of_range")
            return str(value)
        text: str = super()._deserialize(value, attr, data, **kwargs)
        return text.strip()


class _CustomerForm(LenientForm):
    id = Identifier(**optional("The person's id at the platform."))
    email = Text(max_length=MAX_ADDRESS, **optional("The person's email address."))
    phone = Text(max_length=MAX_PHONE, **optional("The person's phone number."))

    @post_load
    def _make(self, customer: dict[str, Any], **_: Any) -> Subject:
        return Subject(customer["id"], _stripped_or_none(customer["email"]), _stripped_or_none(customer["phone"]))


def _orders(description: str) -> Array:
    return Array(Identifier(), at_most=MAX_ORDERS, **optional(description))


class ComplianceForm(LenientForm, RecordForm):
    """The body of `POST /api/storefront-app/webhooks/compliance`, whatever its topic."""

    makes = ComplianceBody
    shop_domain = Text(max_length=MAX_HOST + 1, **required("The domain of the shop; equal to `X-Platform-Shop-Domain`."))
    customer = fields.Nested(_CustomerForm, **optional("The person; absent with `shop/redact`."))
    orders_requested = _orders("The ids of the person's orders; with `customers/data_request`.")
    orders_to_redact = _orders("The ids of the person's orders; with `customers/redact`.")
    data_request = AnyObject(**optional("The platform's own record of the request; with `customers/data_request`."))


def read_headers(topic: str | None, shop_domain: str | None) -> ComplianceWebhook:
    """Validate the two headers, which the signature does not cover; a missing one is None.

    Raises ValidationFailed with the problems of both.
    """
    problems: list[FieldProblem] = []
    if topic not in {each.value for each in Topic}:
        path = f"/{TOPIC_HEADER}"
        problems.append(problem(path, "not_allowed", ", ".join(Topic)) if topic else problem(path, "required"))
    domain = normalized_shop_domain(shop_domain or "")
    if domain is None:
        problems.append(problem(f"/{SHOP_HEADER}", "invalid_shop_domain" if shop_domain else "required"))
    if problems or topic is None or domain is None:
        raise ValidationFailed(*problems)
    return ComplianceWebhook(Topic(topic), domain)


def read_webhook(headers: ComplianceWebhook, body: ComplianceBody) -> ComplianceWebhook:
    """Return the webhook. Raises ValidationFailed if headers and body contradict each other."""
    problems = [problem(f"/{name}", "other_topic") for name in _FOREIGN[headers.topic] if getattr(body, name) is not None]
    if normalized_shop_domain(body.shop_domain) != headers.shop_domain:
        problems.append(problem("/shop_domain", "not_the_headers_shop"))
    subject = None if headers.topic is Topic.SHOP_REDACT else _subject(body)
    if subject == Subject():
        problems.append(problem("/customer", "required"))
    if problems:
        raise ValidationFailed(*problems)
    return replace(headers, subject=subject)


def report_record(
    request_id: str,
    shop_domain: str,
    subject: Subject,
    result: ComplianceResult,
    records: Sequence[Mapping[str, Any]],
    now: datetime,
) -> dict[str, Any]:
    """Return the report of a data request for the shop's owner; `result` also says if nothing is stored."""
    return {
        "request_id": request_id,
        "shop_domain": shop_domain,
        "subject": subject.record(),
        "searched_at": format_rfc3339(now),
        "result": result.value,
        "records": list(records),
    }


def without_mentions(report: Mapping[str, Any], mentions: Callable[[str], bool]) -> dict[str, Any] | None:
    """Return a report without the records that mention somebody; None if it is about that person or no record is left."""
    subject = subject_from(report["subject"])
    if any(mentions(text) for text in (subject.customer_id, subject.email, subject.phone, *subject.order_ids) if text):
        return None
    records = [record for record in report["records"] if not any(mentions(text) for text in record["texts"].values())]
    return None if report["records"] and not records else {**report, "records": records}


def _subject(body: ComplianceBody) -> Subject:
    customer = body.customer or Subject()
    order_ids = body.orders_requested or body.orders_to_redact or ()
    return Subject(customer.customer_id, customer.email, customer.phone, tuple(dict.fromkeys(order_ids)))


def _stripped_or_none(text: str | None) -> str | None:
    return (text or "").strip() or None
