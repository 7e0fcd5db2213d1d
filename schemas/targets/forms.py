"""The bodies that create and edit targets: a new target has the form of its provider, with that provider's settings."""

from collections.abc import Iterator
from typing import Any, Final

from marshmallow import ValidationError, fields, post_load, pre_load, validates

from schemas.base.fields import MAX_URL, AnyObject, Array, ChangeForm, Form, Integer, MayName, NoMembers, Text, optional
from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.settings.definitions import DeploymentMode
from schemas.targets.target import MAX_PER_MINUTE, TargetEdit, TargetRequest
from schemas.targets.webhook_options import BodyFormat, Signature
from schemas.trackers.registry import GENERIC_WEBHOOK, TRACKERS
from schemas.url_policy.credentials import has_credential

_PROVIDER: Final = "The kind of receiver: a webhook, or an issue tracker."
_SETTINGS: Final = "The settings of the tracker, which `GET /api/providers` describes; a webhook has none."


def _url_field(**options: Any) -> Text:
    description = (
        "The URL that deliveries are posted to; for a tracker, the page of its project. It needs "
        "https, a public address and an allowed port."
    )
    return Text(max_length=MAX_URL, metadata={"description": description}, **options)


def _name_field(**options: Any) -> Text:
    return Text(min_length=1, max_length=200, metadata={"description": "The name of the target."}, **options)


def _limit_field(**options: Any) -> Integer:
    description = "The maximum number of delivery attempts per minute; null: no limit."
    return Integer(minimum=1, maximum=MAX_PER_MINUTE, metadata={"description": description}, **options)


def _signature_field(**options: Any) -> Text:
    description = (
        "The signature headers of deliveries: those of RiskRelay (`service`), those of Standard Webhooks "
        "(`standard-webhooks`), or `both`. The target needs the secret of each."
    )
    return Text(allowed=[each.value for each in Signature], metadata={"description": description}, **options)


def _format_field(**options: Any) -> Text:
    description = (
        "The format of the body of deliveries: the ticket, a CloudEvents 1.0 event in structured "
        "(`cloudevents`) or binary mode (`cloudevents-binary`), or a SARIF 2.1.0 log."
    )
    return Text(allowed=[each.value for each in BodyFormat], metadata={"description": description}, **options)


def _events_field(**options: Any) -> Array:
    description = (
        "The events that the target receives about tickets that were delivered to it: `ticket.updated`, `ticket.fixed`, "
        "`ticket.reopened`, `ticket.redact`. Default: no events for a webhook, all for a tracker."
    )
    entry = Text(allowed=ALL_EVENTS)
    return Array(entry, at_most=len(ALL_EVENTS), metadata={"description": description}, **options)


class _FormWithUrl(Form):
    """A form with `base_url`."""

    @validates("base_url")
    def _has_no_credential(self, url: str, data_key: str) -> None:
        if has_credential(url):
            raise ValidationError("credential_in_query")


class _NewTargetForm(_FormWithUrl):
    """The fields of a new target of any provider."""

    base_url = _url_field(required=True)
    deployment_mode = Text(
        allowed=[mode.value for mode in DeploymentMode],
        **optional("The deployment mode that the target is meant for; default: the mode of this installation."),
    )
    name = _name_field(required=True)
    max_per_minute = _limit_field(load_default=None)

    @pre_load
    def _has_settings(self, body: Any, **_: Any) -> Any:
        """Add empty settings if there are none, so that each missing setting is reported at its own path."""
        return {"provider_settings": {}, **body} if isinstance(body, dict) else body

    @post_load
    def _make(self, request: dict[str, Any], **_: Any) -> TargetRequest:
        return TargetRequest(**request)


class TargetForm(Form):
    """The body of `POST /api/ticket-export-targets`, which cannot contain the secret of a receiver.

    Each tracker defines the form of its settings and its default rate limit.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_provider = dict(_forms_by_provider())
        #: The form of each provider.
        self.forms: tuple[Form, ...] = tuple(self._by_provider.values())
        self._other = _form("OtherTargetForm", tuple(self._by_provider), AnyObject())

    def read_reduced(self, value: Any, may_name: MayName = lambda _: False) -> Any:
        """Return a body as a TargetRequest. Raises ValidationFailed with every problem."""
        named = value.get("provider_key") if isinstance(value, dict) else None
        form = self._by_provider.get(named) if isinstance(named, str) else None
        return (form or self._other).read_reduced(value, may_name)

    def member_names(self) -> frozenset[str]:
        """Return the field names of every provider's form."""
        return frozenset[str]().union(*(form.member_names() for form in self.forms))


class TargetEditForm(ChangeForm, _FormWithUrl):
    """The body of `PATCH /api/ticket-export-targets/{target_id}`: at least one member."""

    name = _name_field()
    base_url = _url_field()
    max_per_minute = _limit_field(allow_none=True)
    provider_settings = AnyObject(metadata={"description": f"{_SETTINGS} They replace all settings of the target."})
    signature = _signature_field()
    format = _format_field()
    events = _events_field()

    @post_load
    def _make(self, edited: dict[str, Any], **_: Any) -> TargetEdit:
        return TargetEdit(**edited, sets_limit="max_per_minute" in edited)


def settings_form(provider_key: str) -> Form:
    """Return the form of a provider's settings."""
    return NoMembers() if provider_key == GENERIC_WEBHOOK else TRACKERS[provider_key].settings_form()


def _forms_by_provider() -> Iterator[tuple[str, Form]]:
    options: dict[str, fields.Field[Any]] = {
        "signature": _signature_field(load_default=Signature.SERVICE.value),
        "format": _format_field(load_default=BodyFormat.TICKET.value),
        "events": _events_field(load_default=()),
    }
    yield GENERIC_WEBHOOK, _form("WebhookTargetForm", (GENERIC_WEBHOOK,), _settings_field(NoMembers), **options)
    for key, tracker in TRACKERS.items():
        limit = _limit_field(load_default=tracker.max_per_minute, allow_none=True)
        settings, events = _settings_field(tracker.settings_form), _events_field(load_default=ALL_EVENTS)
        yield key, _form(f"{key.title()}TargetForm", (key,), settings, max_per_minute=limit, events=events)


def _settings_field(form: type[Form]) -> fields.Nested:
    is_required = any(setting.required for setting in form().fields.values())
    return fields.Nested(form, required=is_required, metadata={"description": _SETTINGS})


def _form(name: str, keys: tuple[str, ...], settings: fields.Field[Any], **more: fields.Field[Any]) -> Form:
    """Return the form of a new target for the providers `keys`."""
    provider = Text(allowed=keys, required=True, metadata={"description": _PROVIDER})
    made: type[Form] = type(name, (_NewTargetForm,), {"provider_key": provider, "provider_settings": settings, **more})
    return made()
