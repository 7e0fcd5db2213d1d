"""Forbidden content: what must never be stored, with a rule id and a path, never the value.

Credentials, cookies, payment details, order records, whole pages and database dumps are refused by the names of members and
by what their texts hold, raw or once decoded (percent, HTML entities, base64). Ids, timestamps, barcodes, telephone numbers
and prose about passwords or cookies pass: a false alarm loses a customer's evidence.

Nearly everything is innocent, so all texts of a body are first judged as one; only where that finds something does a second
walk ask each text, to name its place.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias, TypeVar

from schemas.base.errors import FieldProblem
from schemas.content_policy import card_numbers, credential_patterns, document_patterns, token_formats
from schemas.content_policy.encoded_text import once_decoded
from schemas.content_policy.field_names import is_order_record, meaning
from schemas.content_policy.text_parts import joined

#: Enough to mend a sender; a body of nothing else must not make a larger answer than itself.
MAX_TOLD: Final = 50
#: How often parts of a body are judged to find the places of what it breaks: a quarter of a second. An honest body breaks
#: something in a few places, each of which takes a dozen looks.
MAX_LOOKS: Final = 5_000
#: How much text is judged as one: nobody waits for longer than for so much, unless a single text is longer.
_BLOCK: Final = 64 * 1024
#: Into how many parts texts are taken apart that break something together.
_PARTS: Final = 8


GiveWay: TypeAlias = Callable[[], object]
Entry = TypeVar("Entry")


def _go_on() -> None:
    """Give way to nobody."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of forbidden content in text; a text without any of `marks`, in lower case, cannot break it."""

    code: str
    breaks: Callable[[str], bool]
    marks: tuple[str, ...] = ()


RULES: Final = (
    Rule("card_number", card_numbers.found_in),
    Rule("private_key", credential_patterns.has_private_key, ("private key", "putty-user-key")),
    Rule("token", token_formats.found_in),
    Rule("jwt", credential_patterns.has_jwt, ("eyj",)),
    Rule("authorization_line", credential_patterns.has_authorization, ("authorization",)),
    Rule("cookie_line", credential_patterns.has_cookies, ("cookie",)),
    Rule("url_credentials", credential_patterns.has_url_password, ("://",)),
    Rule("url_credentials", credential_patterns.has_url_token, ("password=", "passwd=", "pwd=", "secret=", "token=")),
    Rule("command_credentials", credential_patterns.has_command_credentials, ("curl",)),
    Rule("assigned_secret", credential_patterns.has_assignment, ("passw", "passphrase", "secret")),
    Rule("html_document", document_patterns.is_page, ("<html", "<!doctype", "</head")),
    Rule("sql_dump", document_patterns.is_dump, ("insert", "dump", "from stdin", "pragma")),
)

MESSAGES: Final[Mapping[str, str]] = {
    "forbidden_name": "Members of this name are never taken; leave them out.",
    "forbidden_header": "This header is never taken; a scanner runtime strips Set-Cookie and its like before it posts.",
    "card_number": "This holds a payment card number.",
    "private_key": "This holds a private key.",
    "token": "This holds an access token or key of a known format.",
    "jwt": "This holds a JSON Web Token.",
    "authorization_line": "This holds an Authorization header with its value.",
    "cookie_line": "This holds a Cookie or Set-Cookie header with its value.",
    "url_credentials": "This holds a URL with a password or token in it.",
    "command_credentials": "This holds a command with a password or key in it.",
    "assigned_secret": "This holds a password or secret with its value.",
    "html_document": "This holds a whole HTML document; send the part that matters.",
    "sql_dump": "This holds a dump of a database.",
    "order_record": "This object looks like a customer's order: two or more of name, address, email, total and line items.",
}

#: Where a scanner puts the headers of a page, folded.
_RESPONSE_HEADERS: Final = ("responseHeaders", "response_headers")
#: Headers that say who somebody is; as lines they are judged by their values, and so they are where they are listed.
_TELLING_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "cookie2", "set-cookie", "set-cookie2"}
)
#: A card number, the shortest thing that is searched for without any mark, and `a:b@c` behind a scheme.
_MIN_TEXT: Final = 10


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value stands: its path, whether names still continue it, whether it is the headers of a page."""

    path: str = ""
    is_open: bool = True
    is_headers: bool = False

    def below(self, step: str | None, is_headers: bool = False) -> "_Place":
        """Return the place of a member; without a name of ours for it, it is told at its parent's path."""
        if not self.is_open or step is None:
            return _Place(self.path, False, is_headers)
        return _Place(f"{self.path}/{step}", True, is_headers)


@dataclass(frozen=True, slots=True)
class _Judgement:
    """What all of a body breaks: rules its texts read as one, and what its names may mean."""

    rules: Sequence[Rule]
    forbidden: Set[str]
    #: Names of parts of an order record, where there are two of them.
    parts: Set[str]

    @property
    def is_innocent(self) -> bool:
        return not (self.rules or self.forbidden or self.parts)


def find(value: Any, known_names: Set[str], give_way: GiveWay = _go_on) -> tuple[FieldProblem, ...]:
    """Return what is forbidden in a JSON value, at most `MAX_TOLD` problems: names first, then texts, then order records.

    Paths are made of `known_names`, list indices and forbidden names alone; any other name ends its path at the parent. The
    work is linear in the size of `value`; `give_way` is called between parts of it.
    """
    judged = _judged(value, give_way)
    if judged.is_innocent:
        return ()
    told: dict[FieldProblem, None] = {}
    for place, code in _problems(value, known_names, judged, give_way):
        told[FieldProblem(place.path, code, MESSAGES[code])] = None
        if len(told) == MAX_TOLD:
            break
    return tuple(told)


def find_each(values: Sequence[Any], known_names: Set[str]) -> list[tuple[FieldProblem, ...]]:
    """Return what `find` does of each value.

    Judged as one, a hundred tickets take a third of the time, and nearly always that is all.
    """
    if _judged(list(values), _go_on).is_innocent:
        return [()] * len(values)
    return [find(value, known_names) for value in values]


def _judged(value: Any, give_way: GiveWay) -> _Judgement:
    texts, names = _texts_and_names(value)
    give_way()
    rules = _broken_by_any([text for text in (*texts, *names) if len(text) >= _MIN_TEXT], give_way)
    meanings = {name: meaning(name) for name in names}
    parts = {name: told.part for name, told in meanings.items() if told.part}
    several = len(set(parts.values())) > 1
    return _Judgement(rules, {name for name, told in meanings.items() if told.forbidden}, {*parts} if several else set())


def _broken_by_any(texts: Sequence[str], give_way: GiveWay) -> list[Rule]:
    """Return the rules that texts break, read block by block as one."""
    broken: set[Rule] = set()
    for block in _blocks(texts, len):
        broken.update(_broken_rules(joined(block), [rule for rule in RULES if rule not in broken], give_way))
    return [rule for rule in RULES if rule in broken]


def _blocks(entries: Sequence[Entry], size_of: Callable[[Entry], int]) -> Iterator[Sequence[Entry]]:
    """Cut texts, or what holds one, into pieces of some `_BLOCK` characters; nearly always it is one piece."""
    sizes = [size_of(entry) for entry in entries]
    if sum(sizes) <= _BLOCK:
        yield from [entries] if entries else []
        return
    began_at, size = 0, 0
    for at, more in enumerate(sizes):
        if size and size + more > _BLOCK:
            yield entries[began_at:at]
            began_at, size = at, 0
        size += more
    yield entries[began_at:]


def _texts_and_names(value: Any) -> tuple[list[str], set[str]]:
    """Return all texts of a body, numbers that could be a card's among them, and all names of members."""
    texts: list[str] = []
    names: set[str] = set()
    nodes = [value]
    while nodes:
        node = nodes.pop()
        kind = type(node)
        if kind is str:
            texts.append(node)
        elif kind is dict:
            names.update(node)
            nodes += node.values()
            texts += _header_lines(node)
        elif kind is list:
            nodes += node
            texts += _header_lines(node)
        elif kind is int or kind is float:
            texts += card_numbers.as_text(node)
    return texts, names


def _problems(value: Any, known_names: Set[str], judged: _Judgement, give_way: GiveWay) -> Iterator[tuple[_Place, str]]:
    """Yield the codes of a body with their places; no text can break another rule than the body as a whole."""
    give_way()
    if judged.forbidden:
        yield from _forbidden_names(value, known_names, judged.forbidden)
    if judged.rules:
        texts = [(place, text) for place, node in _nodes(value, known_names) if len(text := _text_of(node)) >= _MIN_TEXT]
        give_way()
        yield from _Search(give_way).problems(texts, judged.rules)
        give_way()
    if judged.parts:
        yield from _order_records(value, known_names, judged.parts)


class _Search:
    """Finds which texts break rules: all of them as one, then parts of them, as far as a part breaks any.

    A text is looked at by itself where little else is left of its part. What only several texts make together, such as
    statements of a dump that are one to a text, could lead to each of ten thousand; so looks are counted, and a body that
    takes too many is refused as a whole.
    """

    def __init__(self, give_way: GiveWay) -> None:
        self._give_way = give_way
        self._told: set[tuple[str, str]] = set()
        self._looks = 0

    def problems(self, texts: Sequence[tuple[_Place, str]], rules: Sequence[Rule]) -> Iterator[tuple[_Place, str]]:
        """Yield the codes of those of `rules` that texts break, with their places, in the order of the texts."""
        for block in _blocks(texts, lambda each: len(each[1])):
            yield from self._within(block, rules)
        if self._looks >= MAX_LOOKS:
            yield from ((_Place(), rule.code) for rule in rules)

    def _within(self, texts: Sequence[tuple[_Place, str]], rules: Sequence[Rule]) -> Iterator[tuple[_Place, str]]:
        if self._looks >= MAX_LOOKS:
            return
        place, text = texts[0]
        if len(texts) == 1 or len({place.path for place, _ in texts}) == 1:
            # Many texts may share a path; what is told of it need not be found once more.
            rules = [rule for rule in rules if (place.path, rule.code) not in self._told]
        if not rules:
            return
        self._looks += 1
        if len(texts) == 1:
            for rule in _broken_rules(text, rules, self._give_way):
                self._told.add((place.path, rule.code))
                yield place, rule.code
            return
        broken = _broken_rules(joined(text for _, text in texts), rules, self._give_way)
        size = -(-len(texts) // _PARTS)
        for at in range(0, len(texts) if broken else 0, size):
            yield from self._within(texts[at : at + size], broken)


def _forbidden_names(value: Any, known_names: Set[str], forbidden: Set[str]) -> Iterator[tuple[_Place, str]]:
    for place, node in _nodes(value, known_names):
        for name in node if isinstance(node, dict) else ():
            if name in forbidden:
                yield _member(place, name, known_names), "forbidden_header" if place.is_headers else "forbidden_name"


def _order_records(value: Any, known_names: Set[str], parts: Set[str]) -> Iterator[tuple[_Place, str]]:
    for place, node in _nodes(value, known_names):
        if isinstance(node, dict) and len(parts & node.keys()) > 1 and is_order_record(node):
            yield place, "order_record"


def _nodes(value: Any, known_names: Set[str]) -> Iterator[tuple[_Place, Any]]:
    """Yield every value with its place, parents first, in the order of the body."""
    waiting: list[tuple[_Place, Any]] = [(_Place(), value)]
    while waiting:
        place, node = waiting.pop()
        yield place, node
        if isinstance(node, dict):
            waiting += [(_member(place, name, known_names), member) for name, member in reversed(node.items())]
        elif isinstance(node, list):
            waiting += [(place.below(str(index)), node[index]) for index in reversed(range(len(node)))]


def _member(place: _Place, name: str, known_names: Set[str]) -> _Place:
    step = name if name in known_names else meaning(name).forbidden
    return place.below(step, name in _RESPONSE_HEADERS)


def _text_of(node: Any) -> str:
    """Return what a value says by itself: its text, its digits, the names of its members, the headers it lists."""
    if isinstance(node, str):
        return node
    if isinstance(node, dict):
        return joined((*node, *_header_lines(node)))
    if isinstance(node, list):
        return joined(_header_lines(node))
    is_number = isinstance(node, int | float) and not isinstance(node, bool)
    return "".join(card_numbers.as_text(node)) if is_number else ""


def _header_lines(node: dict[str, Any] | list[Any]) -> list[str]:
    """Return the headers that name and value tell apart: as members of an object, or one behind the other in a list."""
    if isinstance(node, dict):
        pairs = [(node.get("name"), node["value"])] if "value" in node else []
    else:
        pairs = list(pairwise(node))
    return [
        f"{name}: {value}"
        for name, value in pairs
        if isinstance(name, str) and isinstance(value, str) and name.lower() in _TELLING_HEADERS
    ]


def _broken_rules(text: str, rules: Sequence[Rule], give_way: GiveWay) -> list[Rule]:
    """Return those of the rules that a text breaks as it is or once decoded, in their order."""
    if len(text) < _MIN_TEXT:
        return []
    versions = [(version, version.lower()) for version in (text, *once_decoded(text))]
    broken = []
    for rule in rules:
        give_way()
        if _is_broken(rule, versions):
            broken.append(rule)
    return broken


def _is_broken(rule: Rule, versions: Sequence[tuple[str, str]]) -> bool:
    for text, folded in versions:  # noqa: SIM110 - any() over generators adds 12 µs to a look at a short text, which takes 20
        if (not rule.marks or _holds_any(rule.marks, folded)) and rule.breaks(text):
            return True
    return False


def _holds_any(marks: Sequence[str], folded: str) -> bool:
    for mark in marks:  # noqa: SIM110 - as above
        if mark in folded:
            return True
    return False
