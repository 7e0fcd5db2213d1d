"""Options that become the settings of a target's provider."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from bin.cli.records import Command
from schemas.targets.providers import provider, setting_from


def settings_options(command: Command) -> Command:
    """Add `--label` and `--setting`."""
    label = click.option(
        "--label", "labels", metavar="LABEL", multiple=True, help="A label of every issue; may be repeated."
    )
    setting = click.option(
        "--setting",
        "settings",
        metavar="NAME=VALUE",
        multiple=True,
        help="A setting of the tracker; may be repeated, also for each value of a list. NAME.PART=VALUE sets a part of one.",
    )
    return label(setting(command))


def settings_from(
    provider_key: str, settings: Sequence[str], labels: Sequence[str], before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings that the options name, over those `before`; an empty value removes one. Raises UsageError."""
    named: dict[str, list[str]] = {"labels": list(labels)} if labels else {}
    for each in settings:
        name, sign, text = each.partition("=")
        if not sign or not name:
            raise click.UsageError("--setting has the form NAME=VALUE.")
        named.setdefault(name, []).append(text)
    known = provider(provider_key)
    schema = known.settings_schema if known else {}
    found = dict(before or {})
    for name, texts in named.items():
        if texts == [""]:
            found.pop(name, None)
            continue
        outer, dot, part = name.partition(".")
        if dot:
            found[outer] = {**found.get(outer, {}), part: texts[-1]}
        else:
            found[name] = setting_from(schema["properties"].get(name, {}), texts)
    return found
