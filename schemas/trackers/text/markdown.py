"""The text of an issue in Markdown, as GitHub, GitLab, Gitea and Forgejo read it, and as Linear does.

Strangers' text is in fences and inline code only: there it mentions nobody, links nothing and loads no image.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from schemas.trackers.events import TrackerEvent
from schemas.trackers.exchange import TrackerTicket
from schemas.trackers.text import event_text
from schemas.trackers.text.neutral import length
from schemas.trackers.text.outline import EVIDENCE, Flavor, fitted

#: Harmless text has no run of backticks, so nothing ends a fence of three. Older GitLab knows no longer ones.
_FENCE: Final = "```"


def body_of(ticket: TrackerTicket, max_chars: int) -> str:
    """Return the text of at most `max_chars` UTF-16 code units."""
    return fitted(ticket, max_chars, _Markdown(), "\n\n".join, length)


def linear_body_of(ticket: TrackerTicket, max_chars: int) -> str:
    """Return the text of at most `max_chars` UTF-16 code units; Linear reads no HTML, and has folds of its own."""
    return fitted(ticket, max_chars, _LinearMarkdown(), "\n\n".join, length)


def comment_of(event: TrackerEvent, max_chars: int) -> str:
    """Return the comment of an event, of at most `max_chars` UTF-16 code units; Linear reads it, too."""
    return event_text.comment(event, max_chars, _Markdown(), "\n\n".join, length)


def erased_of(event: TrackerEvent) -> str:
    """Return the text of an erased ticket."""
    return "\n\n".join(event_text.erased(event, _Markdown()))


class _Markdown(Flavor[str]):
    def facts(self, severity: str, page: str) -> Iterator[str]:
        yield f"- **Severity:** {severity}" + (f"\n- **Page:** {_code(page)}" if page else "")

    def heading(self, text: str) -> str:
        return f"### {text}"

    def description(self, text: str) -> Iterator[str]:
        yield _fenced(text)

    def places(self, places: Iterable[Iterable[str]], more: str) -> str:
        lines = [" ".join(map(_code, place)) for place in places]
        return "\n".join(f"- {line}" for line in filter(None, (*lines, more)))

    def evidence(self, text: str) -> Iterator[str]:
        yield f"<details>\n<summary>{EVIDENCE}</summary>"
        yield _fenced(text, "json")
        yield "</details>"

    def link(self, text: str, url: str) -> str:
        return f"[{text}]({url})"

    def line(self, text: str) -> str:
        return text


class _LinearMarkdown(_Markdown):
    def evidence(self, text: str) -> Iterator[str]:
        yield f"+++ {EVIDENCE}"
        yield _fenced(text, "json")
        yield "+++"


def _fenced(text: str, language: str = "") -> str:
    return f"{_FENCE}{language}\n{text}\n{_FENCE}"


def _code(line: str) -> str:
    """Return a line as inline code; it has single backticks at most, so two contain it, with spaces that are not shown."""
    return f"`` {line} ``" if "`" in line else f"`{line}`"
