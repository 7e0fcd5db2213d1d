"""What the modules of all trackers share: the settings that each has, the labels of an issue, the URL of its page."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from marshmallow import ValidationError, validates

from schemas.base.fields import Form, Several, Text, WebUrl
from schemas.trackers.exchange import TrackerAccess, TrackerTicket

#: What happens to the issue when its ticket is fixed.
ON_FIXED: Final = ("comment", "close", "nothing")
MAX_LABELS: Final = 20
MAX_LABEL: Final = 100
MAX_KEY: Final = 50
#: The key of a project or a team, with which the names of its issues begin.
_KEY: Final = re.compile(r"[A-Z][A-Z0-9_]*")
#: Longer URLs of issues are left out: they come from the tracker's response.
MAX_ISSUE_URL: Final = 500


class TrackerSettingsForm(Form):
    """`provider_settings` that every tracker has; closed."""

    labels = Several(
        Text(min_length=1, max_length=MAX_LABEL),
        at_most=MAX_LABELS,
        metadata={"description": "Labels of every issue, beside those of its ticket."},
    )
    on_fixed = Text(
        allowed=ON_FIXED,
        metadata={"description": "What happens to the issue when its ticket is fixed; by default `comment`."},
    )
    api_base = WebUrl(
        metadata={"description": "Where the API is, if it has another address than usual; without a trailing slash."},
    )

    @validates("api_base")
    def _is_a_prefix(self, url: str, data_key: str) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc or re.search(r"[?#\s\\]", url):
            raise ValidationError("invalid_url")


class PriorityBySeverityForm(Form):
    """The tracker's name of a priority for each severity that has one."""

    critical = Text(min_length=1, max_length=MAX_LABEL)
    high = Text(min_length=1, max_length=MAX_LABEL)
    medium = Text(min_length=1, max_length=MAX_LABEL)
    low = Text(min_length=1, max_length=MAX_LABEL)
    info = Text(min_length=1, max_length=MAX_LABEL)


def require_key(key: str) -> None:
    """Raise ValidationError if a text is not the key of a project or a team."""
    if not _KEY.fullmatch(key):
        raise ValidationError("not_a_key")


def api_base_of(settings: Mapping[str, Any], usual: str) -> str:
    """Return `api_base` of the settings without a trailing slash; without one, the `usual` address."""
    return str(settings.get("api_base") or usual).rstrip("/")


def labels_of(access: TrackerAccess, ticket: TrackerTicket) -> list[str]:
    """Return the labels of the ticket and those of the target's settings, each once."""
    return list(dict.fromkeys([*ticket.labels, *access.settings.get("labels", ())]))


def issue_url(value: Any) -> str | None:
    """Return an issue's URL from a response; None if it is no http(s) URL of at most 500 printable characters."""
    if not isinstance(value, str) or len(value) > MAX_ISSUE_URL or not value.isprintable():
        return None
    return value if re.fullmatch(r"https?://[^\s/?#\\@]+(?:[/?#]\S*)?", value) else None


def text_at(value: Any, *path: str | int) -> str | None:
    """Return the text at `path` (names of objects, indexes of lists) in a parsed response; None where there is none."""
    found = value_at(value, *path)
    return found if isinstance(found, str) else None


def value_at(value: Any, *path: str | int) -> Any:
    """Return what is at `path` in a parsed response; None where there is nothing, whatever the response is."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and 0 <= step < len(value):
            value = value[step]
        else:
            return None
    return value
