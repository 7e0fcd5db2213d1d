"""The settings of a provider as fields of a form: one field per setting, or one for each part of an object."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from schemas.base.errors import FieldProblem
from schemas.targets.providers import PROVIDERS, Provider, setting_from
from service.console.form_fields import Fields, Problems, entries_of

#: The prefix of the names of these fields.
PREFIX: Final = "setting."
#: The index of a list entry at the end of a problem's path.
_LIST_INDEX: Final = re.compile(r"/[0-9]+$")
#: Optional settings that the form shows at once; the others are folded.
_SHOWN_AT_ONCE: Final = frozenset({"labels"})
_LABELS: Final[Mapping[str, str]] = {"api_base": "Address of the API", "on_fixed": "When the ticket is fixed"}


class SettingInput(NamedTuple):
    """A field. `kind` is text, number, list or choice; `path` is the path of the field's problems."""

    name: str
    label: str
    description: str
    kind: str
    path: str
    value: str
    choices: tuple[str, ...] = ()
    is_required: bool = False
    max_length: int | None = None
    is_first: bool = False


def setting_inputs(provider: Provider, typed: Mapping[str, str]) -> list[SettingInput]:
    """Return the fields of a provider, required ones first.

    `typed` contains their values: the entered texts, or the result of `typed_settings`.
    """
    schema = provider.settings_schema
    inputs = [
        each
        for name, setting in schema["properties"].items()
        for each in _inputs(name, setting, typed, is_required=name in schema.get("required", ()))
    ]
    return sorted(inputs, key=lambda each: not each.is_required)


def target_texts() -> dict[str, str]:
    """Return the labels of the text fields in the forms of targets, by field name; none of these fields is secret."""
    settings = {each.name: each.label for provider in PROVIDERS.values() for each in setting_inputs(provider, {})}
    return {"name": "Name", "base_url": "URL", **settings, "max_per_minute": "Deliveries per minute"}


def settings_in(provider: Provider, form: Fields) -> dict[str, Any]:
    """Return the settings of a form as the API accepts them; empty fields are omitted."""
    found: dict[str, Any] = {}
    for name, schema in provider.settings_schema["properties"].items():
        for part, inner in schema.get("properties", {}).items():
            if (value := _value(form.get(f"{PREFIX}{name}.{part}", ""), inner)) is not None:
                found.setdefault(name, {})[part] = value
        if (value := _value(form.get(f"{PREFIX}{name}", ""), schema)) is not None:
            found[name] = value
    return found


def by_setting(problems: Problems) -> list[FieldProblem]:
    """Return the problems of a form; a problem of a list entry gets the path of the list's field."""
    return [replace(each, path=_LIST_INDEX.sub("", each.path)) for each in problems]


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the value of a field, or None if the field is empty."""
    texts = entries_of(text) if schema.get("type") == "array" else [text.strip()]
    return setting_from(schema, texts) if any(texts) else None


def typed_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return stored settings as texts of form fields, by field name."""
    typed: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            typed |= {f"{PREFIX}{name}.{part}": _typed(each) for part, each in value.items()}
        else:
            typed[f"{PREFIX}{name}"] = _typed(value)
    return typed


def _typed(value: Any) -> str:
    """Return a stored value as the text of its field; a list has one entry per line."""
    return "\n".join(value) if isinstance(value, list) else str(value)


def shown_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each stored setting."""
    in_one_line = {name: ", ".join(value) if isinstance(value, list) else value for name, value in settings.items()}
    for name, text in typed_settings(in_one_line).items():
        yield _label(name.removeprefix(PREFIX)), text


def _inputs(name: str, schema: Mapping[str, Any], typed: Mapping[str, str], *, is_required: bool) -> Iterator[SettingInput]:
    if "properties" in schema:
        for part, inner in schema["properties"].items():
            description = schema["description"] if part == next(iter(schema["properties"])) else ""
            yield _input(f"{name}.{part}", {**inner, "description": description}, typed)
    else:
        yield _input(name, schema, typed)._replace(is_required=is_required, is_first=is_required or name in _SHOWN_AT_ONCE)


def _input(name: str, schema: Mapping[str, Any], typed: Mapping[str, str]) -> SettingInput:
    kind = "choice" if "enum" in schema else {"array": "list", "integer": "number"}.get(schema["type"], "text")
    return SettingInput(
        name=f"{PREFIX}{name}",
        label=_label(name),
        description=schema["description"],
        kind=kind,
        path=f"/provider_settings/{name.replace('.', '/')}",
        value=typed.get(f"{PREFIX}{name}", ""),
        choices=tuple(schema.get("enum", ())),
        max_length=schema.get("maxLength"),
    )


def _label(name: str) -> str:
    outer, _, part = name.partition(".")
    label = _LABELS.get(outer) or outer.replace("_", " ").replace("api", "API")
    return f"{label[0].upper()}{label[1:]}{f': {part}' if part else ''}"
