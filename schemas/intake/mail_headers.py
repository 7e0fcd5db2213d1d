"""The headers of mail: mailboxes, encoded words and dates, read with the standard library.

Any text has an answer here, and the work is linear in its size. What is no address is left out, what is no date is None, and
words that do not decode stay as they are.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.errors import HeaderParseError
from email.header import decode_header
from email.utils import getaddresses, parsedate_to_datetime
from typing import Final

from schemas.base.timestamps import moment_from

#: A local part of 64, an @ and a domain of 255.
MAX_ADDRESS: Final = 320
#: A date with a weekday, a zone and a remark; what is longer is none.
MAX_DATE: Final = 100
#: More encoded words in a row than any header that is kept can hold; the standard library's work grows with their square.
MAX_ENCODED: Final = 20_000
#: Comments and groups of an address header may be nested, and the standard library calls itself for each.
MAX_NESTINGS: Final = 100

#: Charsets by the names they have in mail; Python also has codecs that are none, and some of them take their time.
_CHARSET: Final = (
    r"(?:utf-?8|us-ascii|iso-8859-[0-9]{1,2}|windows-[0-9]{3,4}|cp[0-9]{3,4}|koi8-[ru]|gb2312|gbk|gb18030|big5"
    r"|euc-(?:jp|kr)|iso-2022-(?:jp|kr)|shift_jis|ks_c_5601-1987)"
)
_ENCODED_WORD: Final = rf"=\?{_CHARSET}\?[bq]\?[!->@-~]*+\?="
#: The space between encoded words is none, and a character may begin in one and end in the next.
_ENCODED_WORDS: Final = re.compile(rf"{_ENCODED_WORD}(?:\s*+{_ENCODED_WORD})*+", re.IGNORECASE)
#: A display name without quotes; with an @ in it, versions of Python differ in whose address they read.
_BARE_NAME: Final = re.compile(r"""(?:^|(?<=[<>",;:()\\]))[^<>",;:()\\]++(?=<)""")
_QUOTED: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """An address, and the name that stood beside it."""

    name: str
    address: str

    @property
    def shown(self) -> str:
        """`Name <address>`, or the address alone."""
        return f"{self.name} <{self.address}>" if self.name else self.address

    @property
    def tag(self) -> str:
        """What stands behind the last + of the local part."""
        _, plus, tag = self.address.rpartition("@")[0].rpartition("+")
        return tag if plus else ""


def mailboxes_in(header: str) -> list[Mailbox]:
    """Return the mailboxes of an address header, without what is none; nothing of one that could be read in two ways."""
    if header.count("(") + header.count(":") > MAX_NESTINGS:
        return []
    quoted = _BARE_NAME.sub(lambda name: f'"{name[0].strip()}" ' if "@" in name[0] else name[0], header.strip(", \t\r\n"))
    marks = _QUOTED.sub("", quoted)
    found = getaddresses([quoted])
    # Newer versions of Python look at the same, older ones at neither; then one address may pass for another.
    if marks.count("(") != marks.count(")") or len(found) != marks.count(",") + 1:
        return []
    return [mailbox for name, address in found if (mailbox := mailbox_of(name, address))]


def mailbox_of(name: str, address: str) -> Mailbox | None:
    """Return a mailbox whose name is one line; None where there is no address."""
    local, _, domain = address.rpartition("@")
    # What does not print, a space among it, belongs to no address that mail is sent to.
    if not (local and domain and len(address) <= MAX_ADDRESS and address.isprintable()) or " " in address:
        return None
    shown = " ".join(decoded_words(name).split())
    return Mailbox("" if shown == address else shown, address)


def decoded_words(text: str) -> str:
    """Decode the encoded words in a header's text; the rest of it, and words that are none after all, stay as they are."""
    return _ENCODED_WORDS.sub(lambda words: _plain_words(words[0]), text)


def _plain_words(words: str) -> str:
    if len(words) > MAX_ENCODED:
        return words
    try:
        decoded = "".join(_characters(part, charset) for part, charset in decode_header(words))
    except (HeaderParseError, LookupError, ValueError):
        return words
    # No JSON text brings this character in, and PostgreSQL takes it in no column.
    return decoded.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _characters(part: bytes | str, charset: str | None) -> str:
    return part if isinstance(part, str) else part.decode(charset or "ascii", "replace")


def date_from(text: str) -> datetime | None:
    """Return the instant of an RFC 3339 timestamp or a mail header's date, without a zone in UTC; None for anything else."""
    if len(text) > MAX_DATE:
        return None
    try:
        moment = moment_from(text) or parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):  # each of them for some text, by the version of Python
        return None
