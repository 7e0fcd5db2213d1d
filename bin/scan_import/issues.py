"""A flaw as a scanner's report tells it, in the words of a postback.

What makes a flaw the same one in the next report is its page, its code and its location, so these hold no time, no number
of a request and nothing that a scanner invents anew for each scan. What a scanner sent and what it got back is never taken
over: requests, responses, cookies and payloads are what a postback is refused for.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: A ticket wants a few paragraphs; some tools bring a whole chapter for each rule.
MAX_DESCRIPTION: Final = 2000
#: One line of a list.
MAX_TITLE: Final = 200
#: As much as the service takes.
MAX_CODE: Final = 200
#: A selector of a deep page; what is longer is no place that anybody looks up.
MAX_LOCATION: Final = 1000
#: Of pages to read on.
MAX_REFERENCES: Final = 5
MAX_REFERENCE: Final = 300

_SPACES: Final = re.compile(r"\s+")
_WEB: Final = re.compile(r"https?://[^\s<>\"'()\[\]]+")
#: An address of the web in a sentence: where it leads, and the user, the query and the fragment in it.
_ADDRESS: Final = re.compile(
    r"(https?://)(?:[^\s/?#@]{0,200}@)?([^\s?#<>\"'()\[\]]*)(?:[?#][^\s<>\"'()\[\]]*)?", re.IGNORECASE
)
#: Who has a mailbox, also where the sign is escaped, as it is in an address.
_WHO: Final = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}?(?=(?:@|%40)(?:[\w-]{1,63}\.){1,8}[a-z]{2,24}(?!\w))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Flaw:
    """One flaw: `url` as the report writes it, and the parameter that was attacked, if one was."""

    url: str
    code: str
    title: str
    severity: str
    description: str = ""
    location: str = ""
    parameter: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


def one_line(text: str, most: int) -> str:
    """Return a text as one line of at most `most` characters, without what a terminal would take for an order."""
    printable = text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
    return cut(_SPACES.sub(" ", printable).strip(), most)


def paragraphs(*texts: str) -> str:
    """Return texts as paragraphs, without those that say nothing or the same again."""
    return cut("\n\n".join(dict.fromkeys(said for text in texts if (said := text.strip()))), MAX_DESCRIPTION)


def references(*texts: str) -> list[str]:
    """Return the addresses in some texts, each once, as many as a reader follows."""
    found = [each.rstrip(".,;:") for text in texts for each in _WEB.findall(text) if len(each) <= MAX_REFERENCE]
    return list(dict.fromkeys(found))[:MAX_REFERENCES]


def impersonal(text: str) -> str:
    """Return a sentence about a visit without what is a visitor's: users, queries and fragments of addresses, mailboxes."""
    return without_who(_ADDRESS.sub(r"\1\2", text))


def without_who(text: str) -> str:
    """Return a text in which mailboxes have lost their owner: `@mail.example`."""
    return _WHO.sub("", text)


def evidence(**members: Any) -> dict[str, Any]:
    """Return the members that say anything."""
    return {name: value for name, value in members.items() if value not in ("", [], None)}


def cut(text: str, most: int) -> str:
    """Return the beginning of a text where it is too long."""
    return text if len(text) <= most else text[: most - 1] + "…"
