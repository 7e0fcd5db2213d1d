"""Parses mail headers with the standard library: mailboxes, encoded words and dates.

Any text is accepted, and the work is linear in its size. Entries without an address are left out, text that is not a date
becomes None, and words that cannot be decoded stay as they are.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.errors import HeaderParseError
from email.header import decode_header
from email.utils import getaddresses, parsedate_to_datetime
from typing import Final

from schemas.base.timestamps import parse_rfc3339

#: A local part of 64, an @ and a domain of 255.
MAX_ADDRESS: Final = 320
#: A date with weekday, zone and comment; longer text is not a date.
MAX_DATE: Final = 100
#: Characters of consecutive encoded words: more than any stored header has. The standard library's work grows with their
#: square.
MAX_ENCODED: Final = 20_000
#: Comments and groups of an address header may be nested, and the standard library parses them recursively.
MAX_NESTINGS: Final = 100
#: Syntax characters in a header with a group: twice those of 100 mailboxes with names. The standard library copies the
#: mailboxes of a group for each further one.
MAX_MARKS_WITH_GROUP: Final = 2000

#: Charsets of mail; Python also has codecs that are not charsets, and some of them are slow.
_CHARSET: Final = (
    r"(?:utf-?8|us-ascii|iso-8859-[0-9]{1,2}|windows-[0-9]{3,4}|cp[0-9]{3,4}|koi8-[ru]|gb2312|gbk|gb18030|big5"
    r"|euc-(?:jp|kr)|iso-2022-(?:jp|kr)|shift_jis|ks_c_5601-1987)"
)
_ENCODED_WORD: Final = rf"=\?{_CHARSET}\?[bq]\?[!->@-~]*+\?="
#: White space between encoded words is ignored, and a character may span two of them.
_ENCODED_WORDS: Final = re.compile(rf"{_ENCODED_WORD}(?:\s*+{_ENCODED_WORD})*+", re.IGNORECASE)
#: A display name without quotes; with an @ in it, Python versions differ in which address they parse.
_BARE_NAME: Final = re.compile(r"""(?:^|(?<=[<>",;:()\\]))[^<>",;:()\\]++(?=<)""")
_QUOTED: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
#: A display name without quotes that has a character of the syntax; one with an @ may be an address.
_UNQUOTED_NAME: Final = re.compile(r"""(?:^|(?<=[,;]))(?=[^<>",;@]*+<)[^<>",;@()\[\]\\]*+[()\[\]\\][^<>",;@]*+""")
_BACKSLASH: Final = "\\"
#: Parts of a header in which the marks of a group have no effect, and these marks.
_PART: Final = re.compile(rf"{_QUOTED.pattern}|\([^()]*+\)|<[^<>]*+>|[:;]", re.DOTALL)
_GROUP_MARKS: Final = frozenset(":;")
#: Characters that may end a mailbox of a group, or an entry that is not a mailbox.
_MARK: Final = re.compile(r"""[<>@,:;."\[\]()]""")
_EMPTY_GROUP: Final = re.compile(r"\s*+(?:[^<>\"@,;:()\[\]\\]++|\"[^\"\\]*+\"\s*+):\s*+;\s*+")


@dataclass(frozen=True, slots=True)
class Mailbox:
    """An address and its display name."""

    name: str
    address: str

    @property
    def shown(self) -> str:
        """`Name <address>`, or the address alone."""
        return f"{self.name} <{self.address}>" if self.name else self.address

    @property
    def tag(self) -> str:
        """The tag after the last + of the local part."""
        _, plus, tag = self.address.rpartition("@")[0].rpartition("+")
        return tag if plus else ""


def mailboxes_in(header: str) -> list[Mailbox]:
    """Return the mailboxes of an address header; none if the header is ambiguous, or a group with very many entries."""
    if header.count("(") + header.count(":") > MAX_NESTINGS:
        return []
    if ":" in header and len(_MARK.findall(header)) > MAX_MARKS_WITH_GROUP:
        return []
    as_written = _entries(header)
    # A header that can be parsed as it is written is never corrected.
    if as_written and all(as_written):
        return [mailbox for mailbox in as_written if mailbox]
    corrected = _corrected(header)
    # The reading with more mailboxes; an entry without an address is None.
    entries = max(as_written, _entries(corrected), key=lambda each: len(each) - each.count(None))
    return [mailbox for mailbox in entries if mailbox]


def is_empty_group(header: str) -> bool:
    """Return whether an address header has no mailbox because its sender hides them: `undisclosed-recipients:;`."""
    return _EMPTY_GROUP.fullmatch(header) is not None


def _entries(header: str) -> list[Mailbox | None]:
    """Return the mailbox of each entry of an address header, None for one without an address; empty if ambiguous."""
    quoted = _BARE_NAME.sub(lambda name: f'"{name[0].strip()}" ' if "@" in name[0] else name[0], header.strip(", \t\r\n"))
    marks = _QUOTED.sub("", quoted)
    found = getaddresses([quoted])
    # Newer Python versions check this too; with older ones, one address could pass for another.
    if marks.count("(") != marks.count(")") or len(found) != marks.count(",") + 1:
        return []
    return [mailbox_of(name, address) for name, address in found]


def _corrected(header: str) -> str:
    """Return an address header with display names in quotes that need them, and commas between mailboxes.

    People write `[Shop] Support <…>` and `Ada :) <…>`, and Outlook separates mailboxes with semicolons.
    """
    quoted = _UNQUOTED_NAME.sub(lambda name: f'"{name[0].strip().replace(_BACKSLASH, _BACKSLASH * 2)}" ', header)
    is_group = False

    def separated(mark: re.Match[str]) -> str:
        nonlocal is_group
        if mark[0] not in _GROUP_MARKS:
            return mark[0]
        was_group, is_group = is_group, mark[0] == ":"
        return "," if mark[0] == ";" and not was_group else mark[0]

    return _PART.sub(separated, quoted).rstrip(", \t\r\n")


def mailbox_of(name: str, address: str) -> Mailbox | None:
    """Return a mailbox with a one-line name; None if there is no address."""
    local, _, domain = address.rpartition("@")
    # No deliverable address has spaces or characters that do not print.
    if not (local and domain and len(address) <= MAX_ADDRESS and address.isprintable()) or " " in address:
        return None
    shown = " ".join(decoded_words(name).split())
    return Mailbox("" if shown == address else shown, address)


def decoded_words(text: str) -> str:
    """Decode the encoded words of a header; other text and invalid encoded words stay as they are."""
    return _ENCODED_WORDS.sub(lambda words: _plain_words(words[0]), text)


def _plain_words(words: str) -> str:
    if len(words) > MAX_ENCODED:
        return words
    try:
        decoded = "".join(
            part if isinstance(part, str) else part.decode(charset or "ascii", "replace")
            for part, charset in decode_header(words)
        )
    except (HeaderParseError, LookupError, ValueError):
        return words
    # JSON text cannot contain NUL, and PostgreSQL rejects it.
    return decoded.replace("\0", "\N{REPLACEMENT CHARACTER}")


def date_from(text: str) -> datetime | None:
    """Return the time of an RFC 3339 timestamp or a mail date (UTC if it has no zone); None for anything else."""
    if len(text) > MAX_DATE:
        return None
    try:
        moment = parse_rfc3339(text) or parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, TypeError, IndexError, OverflowError):  # some text raises each, in some version of Python
        return None
