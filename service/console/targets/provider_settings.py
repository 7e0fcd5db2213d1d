"""The settings of a provider as fields of a form: one for each, or for each part of an object."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from schemas.targets.providers import Provider, setting_from

_PREFIX: Final = "setting."
#: Shown at once; the others are folded.
_FIRST: Final = frozenset({"labels"})
_LABELS: Final[Mapping[str, str]] = {"api_base": "Address of the API", "on_fixed": "When the ticket is fixed"}


class SettingInput(NamedTuple):
    """A field: `kind` is text, number, list or choice; `path` is that of its problems."""

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
    """Return the fields of a provider, required ones first, with what was typed, or what `typed_settings` returns."""
    schema = provider.settings_schema
    inputs = [
        each
        for name, setting in schema["properties"].items()
        for each in _inputs(name, setting, typed, is_required=name in schema.get("required", ()))
    ]
    return sorted(inputs, key=lambda each: not each.is_required)


def settings_in(provider: Provider, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a form as the API takes them; empty fields are none."""
    found: dict[str, Any] = {}
    for name, schema in provider.settings_schema["properties"].items():
        for part, inner in schema.get("properties", {}).items():
            if text := form.get(f"{_PREFIX}{name}.{part}", "").strip():
                found.setdefault(name, {})[part] = setting_from(inner, [text])
        if text := form.get(f"{_PREFIX}{name}", "").strip():
            texts = [each.strip() for each in text.split(",")] if schema.get("type") == "array" else [text]
            found[name] = setting_from(schema, [each for each in texts if each])
    return found


def typed_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return stored settings as the texts of a form."""
    typed: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            typed |= {f"{_PREFIX}{name}.{part}": str(each) for part, each in value.items()}
        else:
            typed[f"{_PREFIX}{name}"] = ", ".join(value) if isinstance(value, list) else str(value)
    return typed


def shown_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each stored setting."""
    for name, text in typed_settings(settings).items():
        yield _label(name.removeprefix(_PREFIX)), text


def _inputs(name: str, schema: Mapping[str, Any], typed: Mapping[str, str], *, is_required: bool) -> Iterator[SettingInput]:
    if "properties" in schema:
        for part, inner in schema["properties"].items():
            description = schema["description"] if part == next(iter(schema["properties"])) else ""
            yield _input(f"{name}.{part}", {**inner, "description": description}, typed)
    else:
        yield _input(name, schema, typed)._replace(is_required=is_required, is_first=is_required or name in _FIRST)


def _input(name: str, schema: Mapping[str, Any], typed: Mapping[str, str]) -> SettingInput:
    kind = "choice" if "enum" in schema else {"array": "list", "integer": "number"}.get(schema["type"], "text")
    return SettingInput(
        name=f"{_PREFIX}{name}",
        label=_label(name),
        description=schema["description"],
        kind=kind,
        path=f"/provider_settings/{name.replace('.', '/')}",
        value=typed.get(f"{_PREFIX}{name}", ""),
        choices=tuple(schema.get("enum", ())),
        max_length=schema.get("maxLength"),
    )


def _label(name: str) -> str:
    outer, _, part = name.partition(".")
    label = _LABELS.get(outer) or outer.replace("_", " ").replace("api", "API")
    return f"{label[0].upper()}{label[1:]}{f': {part}' if part else ''}"
