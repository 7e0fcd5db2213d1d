"""The fenced blocks of the documents: what each is, by its language and the comments above it, and whether it can be right.

A page is read as a renderer of Markdown reads it. What a block is for stands in a comment above it, which no reader sees:

- `<!-- prints -->`: the output of the block before it
- `<!-- file: NAME -->`: a file, which is written to NAME
- `<!-- in another terminal -->`: sh that goes on until the page ends
- `<!-- not run: REASON -->`: only its words are checked
- `<!-- story: PART -->`: sh of the README that `tests/journeys/test_readme.py` runs
- `<!-- installation: NAME=value … -->`, anywhere on a page: settings of the installation that its blocks talk to

Refused, by page and line: a block without a language, a comment or a language nobody knows, what does not parse, and what a
reader cannot know, because the comment alone says it: the name of a file, or another terminal.
"""

import configparser
import json
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).resolve().parents[2]
#: Every document that people read, with the folders that others may add pages to.
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

#: What stands for anything in what is printed.
ANYTHING: Final = "…"


class Use(StrEnum):
    """What a block is for."""

    RUN = "run"
    BACKGROUND = "in another terminal"
    PRINTS = "prints"
    FILE = "file"
    NOT_RUN = "not run"
    STORY = "story"
    SHOWN = "shown"


#: Comments above a block, and whether they say more after a colon.
_COMMENTS: Final[Mapping[Use, bool]] = {
    Use.BACKGROUND: False,
    Use.PRINTS: False,
    Use.FILE: True,
    Use.NOT_RUN: True,
    Use.STORY: True,
}
#: What a block without a comment is for. Any other language has to say.
_BY_LANGUAGE: Final[Mapping[str, Use]] = {"sh": Use.RUN, "python": Use.RUN, "json": Use.SHOWN, "text": Use.SHOWN}
_ALLOWED: Final[Mapping[Use, frozenset[str]]] = {
    Use.BACKGROUND: frozenset({"sh"}),
    Use.STORY: frozenset({"sh"}),
    Use.PRINTS: frozenset({"json", "text"}),
}
_COMMENT: Final = re.compile(r"<!--\s*(?P<what>.*?)\s*-->", re.DOTALL)
#: Where the tables begin and end that are made from the code.
_MARKERS: Final = re.compile(r"/?[a-z-]+")

_MARKDOWN: Final = MarkdownIt("gfm-like", {"linkify": False})


@dataclass(frozen=True, slots=True)
class Snippet:
    """One block of a page: `line` is that of its fence, counted from 1; `said` what its comment says after the colon."""

    page: str
    line: int
    language: str
    text: str
    use: Use
    said: str = ""
    above: str = ""
    """The paragraph or heading before it, as readers see it."""

    @property
    def unsaid(self) -> str | None:
        """What a reader has to guess, None where the paragraph above tells it."""
        if self.use is Use.FILE and f"`{self.said}`" not in self.above:
            return f"nobody is told to save this as `{self.said}`"
        if self.use is Use.BACKGROUND and "terminal" not in self.above:
            return "nobody is told that this needs a terminal of its own"
        return None

    @property
    def place(self) -> str:
        """Where it stands, as an editor opens it."""
        return f"{self.page}:{self.line}"

    @property
    def in_place(self) -> str:
        """The text with empty lines before it, so that whoever complains of a line names the page's."""
        return "\n" * self.line + self.text


@dataclass(frozen=True, slots=True)
class Page:
    """A page as the tests see it; `problems` are told by place."""

    name: str
    snippets: tuple[Snippet, ...]
    settings: Mapping[str, str]
    problems: tuple[str, ...]

    @property
    def is_pasted(self) -> bool:
        """Whether anything on it is for a shell to do."""
        return any(each.language == "sh" and each.use in {Use.RUN, Use.BACKGROUND} for each in self.snippets)


def read_page(path: Path, root: Path = ROOT) -> Page:
    """Return the blocks of a page and what is wrong with how they are marked."""
    return page_of(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


def page_of(name: str, text: str) -> Page:
    """Return the blocks of a page that has this text."""
    snippets: list[Snippet] = []
    problems: list[str] = []
    settings: dict[str, str] = {}
    comments: list[str] = []
    above = ""
    for token in _MARKDOWN.parse(text):
        if token.type == "html_block":
            comments += _COMMENT.findall(token.content)
            continue
        if token.type == "fence":
            told = _told(name, token, comments, above)
            snippets += [told] if isinstance(told, Snippet) else []
            problems += [told] if isinstance(told, str) else []
            problems += [f"{told.place}: {told.unsaid}"] if isinstance(told, Snippet) and told.unsaid else []
        if token.type in {"fence", "code_block"} or token.nesting == 1:
            problems += [f"{name}:{_line(token)}: a block without a fence"] if token.type == "code_block" else []
            settings |= _settings(comments)
            comments = []
        if token.type in {"inline", "fence"}:
            above = token.content if token.type == "inline" else ""
    return Page(name, tuple(snippets), settings | _settings(comments), tuple(problems))


def inline_codes(text: str) -> tuple[str, ...]:
    """Return what stands in inline code in a text."""
    inside = (child for token in _MARKDOWN.parse(text) for child in token.children or ())
    return tuple(child.content for child in inside if child.type == "code_inline")


def _told(page: str, token: Token, comments: list[str], above: str) -> Snippet | str:
    language, place = token.info.strip(), f"{page}:{_line(token)}"
    use, said = _BY_LANGUAGE.get(language), ""
    for comment in comments:
        word, colon, rest = (part.strip() for part in comment.partition(":"))
        if word == "installation" or (_MARKERS.fullmatch(comment) and comment not in set(Use)):
            continue
        if word not in set(_COMMENTS) or _COMMENTS[Use(word)] != bool(colon and rest):
            return f"{place}: nobody knows the comment {comment!r}"
        use, said = Use(word), rest
    if not language:
        return f"{place}: a block without a language"
    if language not in PARSERS:
        return f"{place}: nobody knows the language {language!r}"
    if use is None or language not in _ALLOWED.get(use, PARSERS.keys()):
        return f"{place}: {language} has to say what it is for: file, or not run and why"
    return Snippet(page, _line(token), language, token.content, use, said, above)


def _line(token: Token) -> int:
    return (token.map or [0])[0] + 1


def _settings(comments: list[str]) -> dict[str, str]:
    found = [comment.partition(":")[2].split() for comment in comments if comment.startswith("installation:")]
    return {name: value for words in found for name, _, value in (word.partition("=") for word in words)}


# --- whether a block is in its language


def problem_with(snippet: Snippet) -> str | None:
    """Return why a block is not in its language, by its place; None where it is."""
    try:
        PARSERS[snippet.language](snippet)
    except (ValueError, SyntaxError, configparser.Error, yaml.YAMLError) as wrong:
        return f"{snippet.place}: no {snippet.language}: {wrong}"
    return None


def _sh(snippet: Snippet) -> None:
    _checked(["bash", "-n", "/dev/stdin"], snippet)


def _checked(words: list[str], snippet: Snippet) -> None:
    told = subprocess.run(words, input=snippet.in_place, capture_output=True, text=True, timeout=30, check=False)
    if told.returncode:
        raise ValueError(told.stderr.strip() or told.stdout.strip())


def _python(snippet: Snippet) -> None:
    compile(snippet.in_place, snippet.page, "exec")


def _json(snippet: Snippet) -> None:
    json.loads(snippet.text)


def _yaml(snippet: Snippet) -> None:
    list(yaml.safe_load_all(snippet.text))


def _ini(snippet: Snippet) -> None:
    # Settings without a section are what `.env` has.
    configparser.RawConfigParser(strict=False, allow_no_value=False).read_string(f"[settings]\n{snippet.text}")


def _sql(snippet: Snippet) -> None:
    if not sqlite3.complete_statement(snippet.text.strip()):
        raise ValueError("a statement has no end")


def _http(snippet: Snippet) -> None:
    head = snippet.text.partition("\n\n")[0].splitlines()
    first = re.compile(r"[A-Z]+ /\S*( HTTP/[\d.]+)?|HTTP/[\d.]+ \d{3}( .*)?|[\w-]+: .+")
    wrong = [line for line in head if not (first if line is head[0] else re.compile(r"[\w-]+: ?.*")).fullmatch(line)]
    if wrong:
        raise ValueError(wrong[0])


def _anything(snippet: Snippet) -> None:
    """Say yes: what has no parser here is held by being run, as a file."""


PARSERS: Final[Mapping[str, Callable[[Snippet], None]]] = {
    "sh": _sh,
    "python": _python,
    "json": _json,
    "yaml": _yaml,
    "ini": _ini,
    "sql": _sql,
    "http": _http,
    "text": _anything,
    "cron": _anything,
    "nginx": _anything,
    "js": _anything,
    "php": _anything,
    "go": _anything,
    "ruby": _anything,
    "java": _anything,
}


# --- whether something printed is what a page shows


def difference(snippet: Snippet, printed: str) -> str | None:
    """Return how what was printed differs from what a page shows; None where it does not."""
    if snippet.language == "text":
        return _other_lines(snippet.text, printed)
    try:
        real = json.loads(printed)
    except ValueError:
        return f"this is no JSON: {printed!r}"
    return next(_other_members(json.loads(snippet.text), real, ""), None)


def _other_lines(shown: str, printed: str) -> str | None:
    lines = (
        r"(?:.*\n)*" if line.strip() == ANYTHING else re.escape(line.rstrip()).replace(ANYTHING, ".*") + r"[ \t]*\n"
        for line in shown.strip("\n").splitlines()
    )
    if re.fullmatch("".join(lines), printed.strip("\n") + "\n"):
        return None
    return f"this was printed instead:\n{printed}"


def _other_members(shown: Any, real: Any, path: str) -> Iterator[str]:
    if shown == ANYTHING:
        return
    if _kind(shown) != _kind(real):
        yield f"{path or '/'} is {_kind(real)}, not {_kind(shown)}"
    elif isinstance(shown, dict):
        yield from (f"{path}/{name} is not there" for name in shown if name not in real and name != ANYTHING)
        if ANYTHING not in shown:
            yield from (f"{path}/{name} is there too" for name in real if name not in shown)
        for name in shown.keys() & real.keys():
            yield from _other_members(shown[name], real[name], f"{path}/{name}")
    elif isinstance(shown, list):
        for index, (one, other) in enumerate(zip(shown, real, strict=False)):
            yield from _other_members(one, other, f"{path}/{index}")


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
