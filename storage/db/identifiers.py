"""Identifiers: a prefix that names the type, and a ULID. They sort by time, so new ones are close together in an index."""

import base64
import re
from datetime import datetime
from functools import lru_cache
from typing import Final

from ulid import ULID

from schemas.base.timestamps import to_ms

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
RULE: Final = "rul"
EVENT: Final = "evt"
BULK_JOB: Final = "blk"
REPORT_UPLOAD: Final = "rpt"
REQUEST: Final = "req"
LEASE: Final = "lse"
SESSION: Final = "ses"
SIGN_IN_LINK: Final = "lnk"
ALERT: Final = "alr"
ALERT_MESSAGE: Final = "alm"

_ULID: Final = re.compile("[0-9A-HJKMNP-TV-Z]{26}")
#: A ULID has 6 bytes of milliseconds and 10 random bytes.
_TIME_BYTES: Final = 6
_RANDOM_BYTES: Final = 10
_RANDOM_CHARACTERS: Final = 16
#: Maps the base-32 alphabet of RFC 4648 to that of ULIDs; in both, each character has five bits.
_TO_ULID_ALPHABET: Final = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ")
_MAX_MOMENTS: Final = 64


def new_id(prefix: str, now: datetime) -> str:
    """Return a new identifier such as `exp_01J…`, which sorts by `now`; those of one millisecond sort by creation."""
    # Whole milliseconds, as the tables store them: a conversion from a fraction of a second may lose one.
    made_at = to_ms(now)
    # A postback of 500 issues creates 1,000 identifiers. Each takes three times as long with the library's text of the
    # bytes.
    random_part = base64.b32encode(ULID.provider.randomness(made_at)).translate(_TO_ULID_ALPHABET).decode()
    return f"{prefix}_{_moment(made_at)}{random_part}"


def first_id(prefix: str, moment: datetime) -> str:
    """Return a bound that sorts after every identifier created before `moment`, and after no later one."""
    # No identifier is older than 1970, however long the retention is.
    return f"{prefix}_{_moment(max(0, to_ms(moment)))}{'0' * _RANDOM_CHARACTERS}"


def is_id(prefix: str, text: str) -> bool:
    """Return whether `text` has the form of an identifier with this prefix; for other texts, no query is needed.

    PostgreSQL's text type refuses some characters that a URL may contain.
    """
    return text.startswith(f"{prefix}_") and _ULID.fullmatch(text, len(prefix) + 1) is not None


@lru_cache(maxsize=_MAX_MOMENTS)
def _moment(made_at: int) -> str:
    return str(ULID.from_bytes(made_at.to_bytes(_TIME_BYTES, "big") + bytes(_RANDOM_BYTES)))[:-_RANDOM_CHARACTERS]
