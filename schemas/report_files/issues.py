"""An issue of a scanner's report, in the fields of a postback.

Page, code and location identify an issue in later reports, so they contain no time, no number of a request and no value
that a scanner generates for each scan. Requests, responses, cookies and payloads are never copied: the service rejects
postbacks that contain them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: A few paragraphs; some tools write several pages for each rule.
MAX_DESCRIPTION: Final = 2000
#: One line of a list, in characters.
MAX_TITLE: Final = 200
#: The limit of the service.
MAX_CODE: Final = 200
#: Enough for a selector on a deeply nested page.
MAX_LOCATION: Final = 1000
MAX_REFERENCES: Final = 5
MAX_REFERENCE: Final = 300
#: Estimated size of an issue without its texts: the object, its evidence and the values made from it.
_SIZE_WITHOUT_TEXTS: Final = 1000

_SPACES: Final = re.compile(r"\s+")
_WEB: Final = re.compile(r"https?://[^\s<>\"'()\[\]]+")
#: A URL in a sentence: groups are scheme, and host with path; user, query and fragment are outside of them.
_ADDRESS: Final = re.compile(
    r"(https?://)(?:[^\s/?#@]{0,200}@)?([^\s?#<>\"'()\[\]]*)(?:[?#][^\s<>\"'()\[\]]*)?", re.IGNORECASE
)
#: The local part of an email address, also before an escaped @ as in a URL.
_MAILBOX_OWNER: Final = re.compile(
    r"(?<![\w.+%-])[\w.+%-]{1,64}?(?=(?:@|%40)(?:[\w-]{1,63}\.){1,8}[a-z]{2,24}(?!\w))", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ScanIssue:
    """One issue: `url` as in the report, and the attacked parameter, if any."""

    url: str
    code: str
    title: str
    severity: str
    description: str = ""
    location: str = ""
    parameter: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def size(self) -> int:
        """Return the approximate size of the issue in memory, in characters."""
        texts = (self.url, self.code, self.title, self.description, self.location, self.parameter)
        return _SIZE_WITHOUT_TEXTS + sum(map(len, texts))


@dataclass(frozen=True, slots=True)
class VisitedPages:
    """Pages that a scanner visited, also those without issues, and the rules that it checked there.

    `rules` are as in a postback. Other scanners' findings are not fixed by its reports.
    """

    urls: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def one_line(text: str, most: int) -> str:
    """Return a text as one line of at most `most` characters, without control characters."""
    printable = text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
    return cut(_SPACES.sub(" ", printable).strip(), most)


def paragraphs(*texts: str) -> str:
    """Return texts as paragraphs, without empty and repeated ones."""
    return cut("\n\n".join(dict.fromkeys(filter(None, map(str.strip, texts)))), MAX_DESCRIPTION)


def references(*texts: str) -> list[str]:
    """Return the distinct URLs in some texts, at most MAX_REFERENCES."""
    found = [each.rstrip(".,;:") for text in texts for each in _WEB.findall(text) if len(each) <= MAX_REFERENCE]
    return list(dict.fromkeys(found))[:MAX_REFERENCES]


def without_personal_data(text: str) -> str:
    """Remove personal data from a sentence: users, queries and fragments of URLs, and owners of mailboxes."""
    return without_mailbox_owner(_ADDRESS.sub(r"\1\2", text))


def without_mailbox_owner(text: str) -> str:
    """Remove the local part of email addresses: `@mail.example`."""
    return _MAILBOX_OWNER.sub("", text)


def evidence(**members: Any) -> dict[str, Any]:
    """Return the fields that are not empty."""
    return {name: value for name, value in members.items() if value not in ("", [], None)}


def cut(text: str, most: int) -> str:
    """Truncate a text to `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"
