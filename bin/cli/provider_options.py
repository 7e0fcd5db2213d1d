"""Options that become the settings of a target's provider."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from bin.cli.option_types import options
from bin.cli.request_bodies import present
from schemas.base.ticket_event_types import ALL_EVENTS
from schemas.targets.providers import PROVIDERS, setting_from
from schemas.targets.webhook_options import BodyFormat, Signature

#: The value of `--event` for no events.
NO_EVENTS: Final = "none"


settings_options: Final = options(
    click.option("--label", "labels", metavar="LABEL", multiple=True, help="A label of every issue; may be repeated."),
    click.option(
        "--setting",
        "settings",
        metavar="NAME=VALUE",
        multiple=True,
        help="A setting of the tracker; may be repeated, also for each value of a list. NAME.PART=VALUE sets a part of one.",
    ),
)
webhook_options: Final = options(
    click.option(
        "--signature",
        type=click.Choice([each.value for each in Signature]),
        help="The signature headers of deliveries to a webhook; all except service need `secret set target "
        "ID --standard-webhooks`.",
    ),
    click.option(
        "--format",
        type=click.Choice([each.value for each in BodyFormat]),
        help="The format of the body of deliveries to a webhook.",
    ),
    click.option(
        "--event",
        "events",
        multiple=True,
        type=click.Choice([*ALL_EVENTS, NO_EVENTS]),
        help="An event that the target receives about its tickets; may be repeated. Default: none for a "
        "webhook, all for a tracker.",
    ),
)


def webhook_members(events: Sequence[str], **named: str | None) -> dict[str, Any]:
    """Return these options as members of a form."""
    return present({**named, "events": [each for each in events if each != NO_EVENTS] if events else None})


def settings_from(
    provider_key: str, settings: Sequence[str], labels: Sequence[str], before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings `before`, changed by the options; an empty value removes a setting.

    Raises UsageError, with the names of the provider's settings.
    """
    named: dict[str, list[str]] = {"labels": list(labels)} if labels else {}
    for each in settings:
        name, sign, text = each.partition("=")
        if not sign or not name:
            raise click.UsageError("--setting has the form NAME=VALUE.")
        named.setdefault(name, []).append(text)
    known = PROVIDERS.get(provider_key)
    if known is None:
        return {}  # the form refuses the key
    properties = known.settings_schema["properties"]
    found = dict(before or {})
    for name, texts in named.items():
        if texts == [""]:
            found.pop(name, None)
            continue
        outer, dot, part = name.partition(".")
        if outer not in properties:
            allowed = f"it has {', '.join(properties)}" if properties else "it has none"
            raise click.UsageError(f"{provider_key} has no setting `{outer}`; {allowed}.")
        if dot:
            found[outer] = {**(found.get(outer) or {}), part: texts[-1]}
        else:
            found[name] = setting_from(properties[name], texts)
    return found
