"""The providers as clients see them: settings as JSON Schema, the secret, an example of the URL."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from marshmallow import Schema, fields

from schemas.targets.forms import settings_form
from schemas.trackers.registry import GENERIC_WEBHOOK, TRACKERS

_WEBHOOK_EXAMPLE: Final = "https://tracker.example.com/hook"
_WEBHOOK_HELP: Final = (
    "A random text of at least 8 bytes, which signs deliveries and which your receiver verifies; by default WEBHOOK_SECRET."
)

#: Maximum number of digits of a number; limits of settings have fewer.
_MAX_DIGITS: Final = 9


class Provider(NamedTuple):
    """A kind of target: `credential_help` describes its secret and the least scope, `credential_url` where to create it."""

    key: str
    name: str
    base_url_example: str
    credential_help: str
    credential_url: str | None

    @property
    def secret(self) -> str:
        """The kind of secret, and where it is created."""
        return self.credential_help if self.credential_url is None else f"{self.credential_help} See {self.credential_url}"

    @property
    def is_webhook(self) -> bool:
        """Whether the provider is the webhook, not a tracker."""
        return self.key == GENERIC_WEBHOOK

    @property
    def settings_schema(self) -> dict[str, Any]:
        """The JSON Schema of the provider's `provider_settings`."""
        return _object(settings_form(self.key))


#: Every provider by its key, in the order in which people see them.
PROVIDERS: Final = {GENERIC_WEBHOOK: Provider(GENERIC_WEBHOOK, "Webhook", _WEBHOOK_EXAMPLE, _WEBHOOK_HELP, None)} | {
    each.key: Provider(each.key, each.name, each.base_url_example, each.credential_help, each.credential_url)
    for each in TRACKERS.values()
}


def _object(form: Schema) -> dict[str, Any]:
    required = [name for name, field in form.fields.items() if field.required]
    return {
        "type": "object",
        "properties": {name: {**_value(field), **_description(field)} for name, field in form.fields.items()},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _value(field: Any) -> dict[str, Any]:
    schema: dict[str, Any] = _object(field.schema) if isinstance(field, fields.Nested) else field.json_schema
    return schema


def _description(field: fields.Field[Any]) -> dict[str, Any]:
    return {name: text for name, text in field.metadata.items() if name == "description"}


def setting_from(schema: Mapping[str, Any], texts: Sequence[str]) -> Any:
    """Return a setting, as its schema requires it, from what a person typed: all texts for a list, else the last one."""
    if schema.get("type") == "array":
        return list(texts)
    text = texts[-1]
    # The form refuses other texts, with the limits; a text with more digits than any limit stays text.
    is_number = schema.get("type") == "integer" and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else text
