"""The text of an issue as an Atlassian Document Format document, which Jira Cloud reads.

Untrusted text is in text nodes only: Jira interprets no markup in them.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from schemas.trackers.text.neutral import length
from schemas.trackers.text.outline import EVIDENCE, Flavor

_Node: TypeAlias = dict[str, Any]

#: Each line needs nodes, which take time and space.
_MAX_LINES: Final = 200

_STRONG: Final[_Node] = {"type": "strong"}
_CODE: Final[_Node] = {"type": "code"}


class _Document(Flavor[_Node, _Node]):
    def write(self, blocks: Iterable[_Node]) -> _Node:
        return {"type": "doc", "version": 1, "content": list(blocks)}

    def size(self, text: _Node) -> int:
        """Return the UTF-16 code units of the document as JSON."""
        return length(json.dumps(text, ensure_ascii=False, separators=(",", ":")))

    def facts(self, severity: str, page: str) -> Iterator[_Node]:
        lines = [[_text("Severity: ", _STRONG), _text(severity)]]
        if page:
            lines.append([_text("Page: ", _STRONG), _text(page, _CODE)])
        yield _paragraph(_joined(lines, {"type": "hardBreak"}))

    def heading(self, text: str) -> _Node:
        return {"type": "heading", "attrs": {"level": 3}, "content": [_text(text)]}

    def description(self, text: str) -> Iterator[_Node]:
        """Yield paragraphs, whose lines are wrapped; a long list of lines is a block of code."""
        if text.count("\n") > _MAX_LINES:
            yield {"type": "codeBlock", "content": [_text(text)]}
            return
        for paragraph in text.split("\n\n"):
            # Jira rejects text nodes without text.
            lines = [[_text(line)] for line in paragraph.split("\n") if line]
            if lines:
                yield _paragraph(_joined(lines, {"type": "hardBreak"}))

    def places(self, places: Iterable[Iterable[str]], more: str) -> _Node:
        items = [_joined([[_text(part, _CODE)] for part in place], _text(" ")) for place in places]
        if more:
            items.append([_text(more)])
        return {"type": "bulletList", "content": [{"type": "listItem", "content": [_paragraph(item)]} for item in items]}

    def evidence(self, text: str) -> Iterator[_Node]:
        code = {"type": "codeBlock", "attrs": {"language": "json"}, "content": [_text(text)]}
        yield {"type": "expand", "attrs": {"title": EVIDENCE}, "content": [code]}

    def link(self, text: str, url: str) -> _Node:
        return _paragraph([_text(text, {"type": "link", "attrs": {"href": url}})])

    def line(self, text: str) -> _Node:
        return _paragraph([_text(text)])


def _text(text: str, *marks: _Node) -> _Node:
    return {"type": "text", "text": text, **({"marks": list(marks)} if marks else {})}


def _paragraph(content: list[_Node]) -> _Node:
    return {"type": "paragraph", "content": content}


def _joined(groups: Iterable[list[_Node]], separator: _Node) -> list[_Node]:
    """Return the nodes of all groups, with a separator between two groups."""
    nodes: list[_Node] = []
    for group in groups:
        nodes += [separator, *group] if nodes else group
    return nodes


body_of: Final = _Document().body_of
comment_of: Final = _Document().comment_of
erased_of: Final = _Document().erased_of
