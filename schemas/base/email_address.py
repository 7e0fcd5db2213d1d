"""The form of an email address that names a user: `ada@example.com`, or `admin@localhost` on one machine."""

import re
from typing import Final

#: RFC 5321: a path of 256 characters, without its brackets.
MAX_CHARACTERS: Final = 254

#: The unquoted form of RFC 5322, with the letters of RFC 6531; other forms are never used for accounts.
_LOCAL: Final = r"[^\W_](?:[\w.!#$%&'*+/=?^`{|}~-]{0,62}[\w!#$%&'*+/=?^`{|}~-])?"
_LABEL: Final = r"[^\W_](?:[^\W_]|-(?=[^.])){0,62}"
_ADDRESS: Final = re.compile(rf"(?!.*\.\.){_LOCAL}@{_LABEL}(?:\.{_LABEL})*")


def is_email_address(text: str) -> bool:
    """Return whether a text is one email address and nothing else."""
    return len(text) <= MAX_CHARACTERS and _ADDRESS.fullmatch(text) is not None
