"""The text of an issue in Markdown, as GitHub, GitLab, Gitea and Forgejo read it, and as Linear does.

Untrusted text is in fences and inline code only: there it mentions nobody, links nothing and loads no image.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from schemas.trackers.text.outline import EVIDENCE, TextFlavor

#: Harmless text has no run of backticks, so nothing ends a fence of three. Older versions of GitLab support no longer
#: fences.
_FENCE: Final = "```"


class _Markdown(TextFlavor):
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


class _LinearMarkdown(_Markdown):
    def evidence(self, text: str) -> Iterator[str]:
        yield f"+++ {EVIDENCE}"
        yield _fenced(text, "json")
        yield "+++"


def _fenced(text: str, language: str = "") -> str:
    return f"{_FENCE}{language}\n{text}\n{_FENCE}"


def _code(line: str) -> str:
    """Return a line as inline code; backticks in it are single, so two delimit it, with spaces that are not shown."""
    return f"`` {line} ``" if "`" in line else f"`{line}`"


body_of: Final = _Markdown().body_of
#: Linear supports no HTML, but has its own syntax for folds.
linear_body_of: Final = _LinearMarkdown().body_of
#: Linear uses these, too.
comment_of: Final = _Markdown().comment_of
erased_of: Final = _Markdown().erased_of
