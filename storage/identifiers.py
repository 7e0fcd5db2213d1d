"""Identifiers: a prefix that tells the noun and a ULID, so that they sort by time and stay local in an index."""

import re
from datetime import datetime
from typing import Final

from ulid import ULID

TARGET: Final = "tgt"
EXPORT: Final = "exp"
ATTEMPT: Final = "att"
FINDING: Final = "fnd"
CAPTURE: Final = "evc"
DIAGNOSTIC: Final = "dia"
HANDOFF: Final = "hof"
EMAIL: Final = "eml"
COMPLIANCE: Final = "cpl"
PING: Final = "png"
RECOVERY: Final = "rec"
REQUEST: Final = "req"
LEASE: Final = "lse"

_ULID: Final = re.compile("[0-9A-HJKMNP-TV-Z]{26}")


def new_id(prefix: str, now: datetime) -> str:
    """Return a fresh identifier such as `exp_01J…`, sortable by `now`."""
    return f"{prefix}_{ULID.from_datetime(now)}"


def is_id(prefix: str, text: str) -> bool:
    """Tell whether `text` has the form of such an identifier; what has not is unknown without asking the database.

    PostgreSQL's text refuses some characters that a URL may hold.
    """
    return text.startswith(f"{prefix}_") and _ULID.fullmatch(text, len(prefix) + 1) is not None
