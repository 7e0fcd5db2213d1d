"""Links to a scanner's artifacts, such as screenshots: a submitted path below the setting ARTIFACTS_BASE_URL.

The path comes from a scanner. It never leaves the base: it is quoted as a path, and one with empty or dot segments, which
browsers resolve, stays text.
"""

from typing import Final
from urllib.parse import quote

#: Segments that browsers resolve or drop.
_RESOLVED: Final = frozenset({"", ".", ".."})


def artifact_url(base_url: str, path: str | None) -> str | None:
    """Return the URL of an artifact; None without a base, or if the path may only be shown as text."""
    if not base_url or not path or not path.isprintable() or "\\" in path or "://" in path:
        return None
    segments = path.removeprefix("/").split("/")
    if _RESOLVED.intersection(segments):
        return None
    # A percent sign is quoted too: the path is a name in the scanner's storage, not a part of a URL.
    return "/".join((base_url.rstrip("/"), *(quote(segment, safe="") for segment in segments)))
