"""Parses the fenced blocks of the documentation, determines their use, and validates their syntax.

Pages are parsed as Markdown. A comment above a block, invisible to readers, declares its use:

- `<!-- prints -->`: the expected output of the previous block
- `<!-- file: NAME -->`: a file that is written to NAME
- `<!-- in another terminal -->`: sh that runs until the page ends
- `<!-- not run: REASON -->`: only its names are checked
- `<!-- story: PART -->`: sh of docs/first-ticket.md that `tests/journeys/setup/test_readme.py` runs
- `<!-- installation: NAME=value … -->`, anywhere on a page: settings of the installation that its blocks use

Errors, reported by page and line: a block without a language, an unknown comment or language, a syntax error, and facts
that only the comment contains: the name of a file, or that a block needs another terminal.
"""

import configparser
import json
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).resolve().parents[2]
#: All documentation pages.
PAGES: Final = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Matches anything in expected output.
ANYTHING: Final = "…"


class Use(StrEnum):
    """The use of a block."""

    RUN = "run"
    BACKGROUND = "in another terminal"
    PRINTS = "prints"
    FILE = "file"
    NOT_RUN = "not run"
    STORY = "story"
    SHOWN = "shown"


#: Comments above a block, and whether they have an argument after a colon.
_COMMENTS: Final[Mapping[Use, bool]] = {
    Use.BACKGROUND: False,
    Use.PRINTS: False,
    Use.FILE: True,
    Use.NOT_RUN: True,
    Use.STORY: True,
}
#: The use of a block without a comment. Blocks in other languages need a comment.
_BY_LANGUAGE: Final[Mapping[str, Use]] = {"sh": Use.RUN, "python": Use.RUN, "json": Use.SHOWN, "text": Use.SHOWN}
_ALLOWED: Final[Mapping[Use, frozenset[str]]] = {
    Use.BACKGROUND: frozenset({"sh"}),
    Use.STORY: frozenset({"sh"}),
    Use.PRINTS: frozenset({"json", "text"}),
}
_COMMENT: Final = re.compile(r"<!--\s*(?P<what>.*?)\s*-->", re.DOTALL)
#: Start and end markers of generated tables.
_MARKERS: Final = re.compile(r"/?[a-z-]+")

_MARKDOWN: Final = MarkdownIt("gfm-like", {"linkify": False})
#: Two modules read every page, and each process of a test run imports both.
_parsed: Final = cache(_MARKDOWN.parse)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of a page: `line` is the line of its fence, counted from 1; `argument` follows the colon of its comment."""

    page: str
    line: int
    language: str
    text: str
    use: Use
    argument: str = ""
    above: str = ""
    """The visible paragraph or heading before it."""

    @property
    def missing(self) -> str | None:
        """Information missing in the paragraph above the block, or None."""
        if self.use is Use.FILE and f"`{self.argument}`" not in self.above:
            return f"the text above does not name the file `{self.argument}`"
        if self.use is Use.BACKGROUND and "terminal" not in self.above:
            return "the text above does not mention another terminal"
        return None

    @property
    def place(self) -> str:
        """Page and line, in the form that editors open."""
        return f"{self.page}:{self.line}"

    @property
    def padded_text(self) -> str:
        """The text with empty lines before it, so that line numbers in errors are those of the page."""
        return "\n" * self.line + self.text


@dataclass(frozen=True, slots=True)
class MarkdownPage:
    """A parsed page; `problems` name page and line."""

    name: str
    snippets: tuple[Snippet, ...]
    settings: Mapping[str, str]
    problems: tuple[str, ...]

    @property
    def is_pasted(self) -> bool:
        """Whether a shell runs any of its blocks."""
        return any(each.language == "sh" and each.use in {Use.RUN, Use.BACKGROUND} for each in self.snippets)


def read_page(path: Path, root: Path = ROOT) -> MarkdownPage:
    """Return the blocks of a page and the errors in their comments."""
    return page_of(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


def page_of(name: str, text: str) -> MarkdownPage:
    """Return the parsed page with this text."""
    snippets: list[Snippet] = []
    problems: list[str] = []
    settings: dict[str, str] = {}
    comments: list[str] = []
    above = ""
    for token in _parsed(text):
        if token.type == "html_block":
            comments += _COMMENT.findall(token.content)
            continue
        if token.type == "fence":
            parsed = _parse_block(name, token, comments, above)
            snippets += [parsed] if isinstance(parsed, Snippet) else []
            problems += [parsed] if isinstance(parsed, str) else []
            problems += [f"{parsed.place}: {parsed.missing}"] if isinstance(parsed, Snippet) and parsed.missing else []
        if token.type in {"fence", "code_block"} or token.nesting == 1:
            problems += [f"{name}:{_line(token)}: a block without a fence"] if token.type == "code_block" else []
            settings |= _settings(comments)
            comments = []
        if token.type in {"inline", "fence"}:
            above = token.content if token.type == "inline" else ""
    return MarkdownPage(name, tuple(snippets), settings | _settings(comments), tuple(problems))


def inline_codes(text: str) -> tuple[str, ...]:
    """Return the contents of all inline code in a text."""
    inside = (child for token in _parsed(text) for child in token.children or ())
    return tuple(child.content for child in inside if child.type == "code_inline")


def _parse_block(page: str, token: Token, comments: list[str], above: str) -> Snippet | str:
    language, place = token.info.strip(), f"{page}:{_line(token)}"
    use, argument = _BY_LANGUAGE.get(language), ""
    for comment in comments:
        word, colon, rest = (part.strip() for part in comment.partition(":"))
        if word == "installation" or (_MARKERS.fullmatch(comment) and comment not in set(Use)):
            continue
        if word not in set(_COMMENTS) or _COMMENTS[Use(word)] != bool(colon and rest):
            return f"{place}: unknown comment {comment!r}"
        use, argument = Use(word), rest
    if not language:
        return f"{place}: a block without a language"
    if language not in PARSERS:
        return f"{place}: unknown language {language!r}"
    if use is None or language not in _ALLOWED.get(use, PARSERS.keys()):
        return f"{place}: {language} needs a comment: file, or not run with a reason"
    return Snippet(page, _line(token), language, token.content, use, argument, above)


def _line(token: Token) -> int:
    return (token.map or [0])[0] + 1


def _settings(comments: list[str]) -> dict[str, str]:
    found = [comment.partition(":")[2].split() for comment in comments if comment.startswith("installation:")]
    return {name: value for words in found for name, _, value in (word.partition("=") for word in words)}


# --- syntax of blocks


def problem_with(snippet: Snippet) -> str | None:
    """Return the syntax error of a block with its place, or None."""
    try:
        PARSERS[snippet.language](snippet)
    except (ValueError, SyntaxError, configparser.Error, yaml.YAMLError) as wrong:
        return f"{snippet.place}: invalid {snippet.language}: {wrong}"
    return None


def _sh(snippet: Snippet) -> None:
    _checked(["bash", "-n", "/dev/stdin"], snippet)


def _checked(words: list[str], snippet: Snippet) -> None:
    done = subprocess.run(words, input=snippet.padded_text, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip() or done.stdout.strip())


def _python(snippet: Snippet) -> None:
    compile(snippet.padded_text, snippet.page, "exec")


def _json(snippet: Snippet) -> None:
    json.loads(snippet.text)


def _yaml(snippet: Snippet) -> None:
    list(yaml.safe_load_all(snippet.text))


def _ini(snippet: Snippet) -> None:
    # `.env` has settings without a section.
    configparser.RawConfigParser(strict=False, allow_no_value=False).read_string(f"[settings]\n{snippet.text}")


def _sql(snippet: Snippet) -> None:
    if not sqlite3.complete_statement(snippet.text.strip()):
        raise ValueError("incomplete statement")


def _http(snippet: Snippet) -> None:
    head = snippet.text.partition("\n\n")[0].splitlines()
    first = re.compile(r"[A-Z]+ /\S*( HTTP/[\d.]+)?|HTTP/[\d.]+ \d{3}( .*)?|[\w-]+: .+")
    wrong = [line for line in head if not (first if line is head[0] else re.compile(r"[\w-]+: ?.*")).fullmatch(line)]
    if wrong:
        raise ValueError(wrong[0])


def _accept_any(snippet: Snippet) -> None:
    """Accept any text: languages without a parser here are tested by running them."""


PARSERS: Final[Mapping[str, Callable[[Snippet], None]]] = {
    "sh": _sh,
    "python": _python,
    "json": _json,
    "yaml": _yaml,
    "ini": _ini,
    "sql": _sql,
    "http": _http,
    "text": _accept_any,
    "cron": _accept_any,
    "nginx": _accept_any,
    "js": _accept_any,
    "php": _accept_any,
    "go": _accept_any,
    "ruby": _accept_any,
    "java": _accept_any,
}


# --- comparison of expected and actual output


def difference(snippet: Snippet, printed: str) -> str | None:
    """Return how the actual output differs from the expected output, or None."""
    if snippet.language == "text":
        return _line_difference(snippet.text, printed)
    try:
        real = json.loads(printed)
    except ValueError:
        return f"not JSON: {printed!r}"
    return next(_member_differences(json.loads(snippet.text), real, ""), None)


def _line_difference(shown: str, printed: str) -> str | None:
    lines = (
        r"(?:.*\n)*" if line.strip() == ANYTHING else re.escape(line.rstrip()).replace(ANYTHING, ".*") + r"[ \t]*\n"
        for line in shown.strip("\n").splitlines()
    )
    if re.fullmatch("".join(lines), printed.strip("\n") + "\n"):
        return None
    return f"actual output:\n{printed}"


def _member_differences(shown: Any, real: Any, path: str) -> Iterator[str]:
    if shown == ANYTHING:
        return
    if _kind(shown) != _kind(real):
        yield f"{path or '/'} is {_kind(real)}, not {_kind(shown)}"
    elif isinstance(shown, dict):
        yield from (f"{path}/{name} is missing" for name in shown if name not in real and name != ANYTHING)
        if ANYTHING not in shown:
            yield from (f"{path}/{name} is unexpected" for name in real if name not in shown)
        for name in shown.keys() & real.keys():
            yield from _member_differences(shown[name], real[name], f"{path}/{name}")
    elif isinstance(shown, list):
        for index, (one, other) in enumerate(zip(shown, real, strict=False)):
            yield from _member_differences(one, other, f"{path}/{index}")


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
