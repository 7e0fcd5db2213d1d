"""Finds forbidden content in a JSON value: a rule code and a path for each, never the value.

Credentials, cookies, payment details, order records, whole pages and database dumps are detected by field names and by text,
raw or decoded once (percent, HTML entities, base64). Ids, timestamps, barcodes, phone numbers and prose about passwords or
cookies pass: a false positive loses a customer's evidence.

Nearly every body is clean, so all texts are first checked as one; only if that finds something does a second pass check each
text to find its location.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

from schemas.base.checkpoint import Checkpoint, no_checkpoint
from schemas.base.errors import FieldProblem
from schemas.content_policy.detectors import (
    assignments,
    browser_state,
    card_numbers,
    credential_patterns,
    document_patterns,
    embedded_json,
    iban,
    tables,
    token_formats,
)
from schemas.content_policy.detectors.embedded_json import COOKIE_FIELDS
from schemas.content_policy.detectors.order_values import is_order_record
from schemas.content_policy.encoded_text import once_decoded
from schemas.content_policy.field_names import NOTHING, Meaning, meaning
from schemas.content_policy.text_parts import folded, joined, parts_with_digits

#: Enough to correct a sender; a body full of violations must not cause a larger response than itself.
MAX_PROBLEMS: Final = 50
#: Maximum number of checks to locate violations in a body, which take a quarter of a second. A legitimate body has
#: violations in a few locations, each of which takes about forty checks, however many texts there are.
MAX_CHECKS: Final = 5_000
#: Characters that are checked together; this takes the longest time between two checkpoints.
_BLOCK: Final = 64 * 1024
#: Field names, or values that may be parts of an order, that are checked between two checkpoints: this many take 5 ms, and a
#: body may have 100,000 names.
_NAMES: Final = 1_000
#: Characters by which two parts of a longer text overlap: more than any pattern matches.
_OVERLAP: Final = 8 * 1024
#: Texts that violate a rule together are split into this many parts.
_PARTS: Final = 8

Entry = TypeVar("Entry")


# Compared by identity: rules are members of sets, and hashing all their values takes as long as a search.
@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One kind of forbidden content in text; a text without any of the `marks` cannot violate it."""

    code: str
    breaks: Callable[[str], bool]
    marks: tuple[str, ...]


#: Words that a text must have to violate certain rules, in lower case; each is its own mark. Some are the end of a word
#: (secret, cookie, token), because it has a rarer first letter.
_MARK_WORDS: Final = (
    *("pass", "pwd", "cret", "curl", "dump", "stdin", "pragma", "storage", "address", "authorization", "eyj", "values"),
    *("kie", "ken", "key", "session", "mysql", *tables.PLACE_WORDS),
)
#: One pattern for all words with the same first letter takes little more time than one for a single word. A pattern that
#: begins with a literal takes a tenth of the time of other patterns.
_WORDS: Final = tuple(
    re.compile(f"{first}(?:{'|'.join(word[1:] for word in _MARK_WORDS if word[0] == first)})")
    for first in dict.fromkeys(word[0] for word in _MARK_WORDS)
)
#: Marks besides words, in lower case: a name, the first character, and a pattern. A text is searched for them once, for all
#: rules; if the first character is absent, this takes almost no time.
_MARKS: Final[tuple[tuple[str, str, re.Pattern[str]], ...]] = tuple(
    (mark, pattern[-1] if pattern[0] == "\\" else pattern[0], re.compile(pattern + rest))
    for mark, pattern, rest in (
        ("at", "@", ""),
        ("name", tables.CUSTOMER_NAME[0], tables.CUSTOMER_NAME[1:]),
        ("url", ":", "//"),
        ("html", "<", r"(?:html|!doctype|\\{0,3}/head)"),
        ("hash", r"\$", r"(?:2[abxy]|argon2i?d?|[phs1567y]|gy|apr1|sha1|md5|[0-9]{3,8})\$"),
        ("ldap", r"\{", "s?(?:sha|md5)"),
        ("jar", "\t", "(?:true|false)\t"),
        ("query", "=", r"(?<=[]0-9deghmnsty]=)(?![\"'])"),
        ("json", '"', r"\s?:"),
        ("dictionary", "'", r"\s?:"),
    )
)
#: The mark of every text, and the mark of a text with enough digits for a card or an account. Rules with the latter check
#: only the parts with so many digits.
_ANY: Final = "any"
_NUMBERS: Final = "numbers"


RULES: Final = (
    Rule("card_number", card_numbers.found_in, (_NUMBERS,)),
    Rule("iban", iban.found_in, (_NUMBERS,)),
    Rule("private_key", credential_patterns.has_private_key, ("key",)),
    Rule("token", token_formats.found_in, (_ANY,)),
    Rule("jwt", credential_patterns.has_jwt, ("eyj",)),
    Rule("authorization_line", credential_patterns.has_authorization, ("authorization",)),
    Rule("cookie_line", browser_state.has_cookies, ("kie",)),
    Rule("cookie_line", browser_state.has_cookie_jar, ("jar",)),
    Rule("browser_storage", browser_state.has_browser_storage, ("storage",)),
    Rule("url_credentials", credential_patterns.has_url_password, ("url",)),
    Rule("url_credentials", assignments.has_url_token, ("query",)),
    Rule("command_credentials", credential_patterns.has_command_credentials, ("curl",)),
    Rule("command_credentials", browser_state.has_command_cookies, ("curl",)),
    Rule("command_credentials", credential_patterns.has_login_of_machine, ("pass",)),
    Rule("command_credentials", credential_patterns.has_database_password, ("mysql",)),
    Rule("assigned_secret", assignments.has_assignment, ("pass", "pwd", "cret", "key", "ken")),
    Rule("forbidden_json", embedded_json.has_forbidden_names, ("json", "dictionary")),
    Rule("html_document", document_patterns.is_page, ("html",)),
    Rule("sql_dump", document_patterns.is_dump, ("values", "dump", "stdin", "pragma")),
    Rule("password_hash", tables.has_password_hash, ("hash", "ldap")),
    Rule("credential_table", tables.has_credential_table, ("pass", "pwd", "cret", "key", "ken", "session")),
    Rule("order_record", embedded_json.has_order_record, ("json", "dictionary")),
    Rule("order_record", tables.has_customer_table, ("at", "name", "address", *tables.PLACE_WORDS)),
)

MESSAGES: Final[Mapping[str, str]] = {
    "forbidden_name": "Fields with this name are not accepted; omit the field.",
    "forbidden_header": "This header is not accepted; remove Set-Cookie and similar headers before posting.",
    "card_number": "Contains a payment card number; remove it.",
    "iban": "Contains a bank account number (IBAN); remove it.",
    "private_key": "Contains a private key; remove it.",
    "token": "Contains an access token or key of a known format; remove it.",
    "jwt": "Contains a JSON Web Token; remove it.",
    "authorization_line": "Contains an Authorization header with its value; remove it.",
    "cookie_line": "Contains a cookie with its value; remove it.",
    "browser_storage": "Contains entries of local or session storage; remove them.",
    "url_credentials": "Contains a URL with a password, token or key; remove it from the URL.",
    "command_credentials": "Contains a command with a password, key or cookie; remove it.",
    "assigned_secret": "Contains a password, key or secret with its value; remove it.",
    "forbidden_json": "Contains JSON with a forbidden field name and its value; remove that field.",
    "html_document": "Contains a whole HTML document; send only the relevant part.",
    "sql_dump": "Contains a database dump; remove it.",
    "password_hash": "Contains the hash of a password; remove it.",
    "credential_table": "Contains a table with passwords or keys; remove that column.",
    "order_record": "Looks like a customer's order: two or more of name, address, email, total and line items. Remove them.",
}

#: Fields that hold the response headers of a page.
_RESPONSE_HEADERS: Final = ("responseHeaders", "response_headers")
#: Headers with credentials; their values are checked both as header lines and as list entries.
_CREDENTIAL_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "cookie2", "set-cookie", "set-cookie2", "x-api-key", "x-auth-token"}
)
#: Fields that hold the name of a header; another field of the object holds its value.
_NAME_FIELDS: Final = ("name", "key", "header", "field", "Name", "Key", "Header", "Field")
#: Minimum number of digits of a card number or an IBAN: a Dutch IBAN has ten, and two check digits.
_MIN_DIGITS: Final = 12
#: Minimum length of a violation; the shortest are a card number, and `a:b@c` after a scheme.
_MIN_TEXT: Final = 10


@dataclass(frozen=True, slots=True)
class _Location:
    """The location of a value: its path, whether names still extend it, whether it holds the headers of a page."""

    path: str = ""
    is_open: bool = True
    is_headers: bool = False

    def below(self, step: str | None, is_headers: bool = False) -> "_Location":
        """Return the location of a field; an unknown name is reported at the path of its parent."""
        if not self.is_open or step is None:
            return _Location(self.path, False, is_headers)
        return _Location(f"{self.path}/{step}", True, is_headers)


class _Verdict(NamedTuple):
    """The result for a whole body: the rules that its joined texts violate, and the names that may be forbidden."""

    rules: Sequence[Rule]
    forbidden: Set[str]
    #: Names of parts of an order record, if there are two or more, and of customers.
    parts: Set[str]


def find(value: Any, known_names: Set[str], checkpoint: Checkpoint = no_checkpoint) -> tuple[FieldProblem, ...]:
    """Return at most `MAX_PROBLEMS` problems of a JSON value: names first, then texts, then order records.

    Paths consist of `known_names`, list indices and forbidden names; any other name ends its path at the parent. The work is
    linear in the size of `value`; `checkpoint` is called between parts of it.
    """
    judged = _judge_whole(value, checkpoint)
    if not any(judged):
        return ()
    problems: dict[FieldProblem, None] = {}
    for place, code in _problems(value, known_names, judged, checkpoint):
        problems[FieldProblem(place.path, code, MESSAGES[code])] = None
        if len(problems) == MAX_PROBLEMS:
            break
    return tuple(problems)


def find_each(
    values: Sequence[Any], known_names: Set[str], checkpoint: Checkpoint = no_checkpoint
) -> list[tuple[FieldProblem, ...]]:
    """Return the result of `find` for each value.

    Checking a hundred tickets together takes a third of the time, and nearly always all of them are clean.
    """
    if not any(_judge_whole(list(values), checkpoint)):
        return [()] * len(values)
    return [find(value, known_names, checkpoint) for value in values]


def _judge_whole(value: Any, checkpoint: Checkpoint) -> _Verdict:
    texts, names = _texts_and_names(value)
    checkpoint()
    rules = _broken_by_any([text for text in (*texts, *names) if len(text) >= _MIN_TEXT], checkpoint)
    meanings: list[tuple[str, Meaning]] = []
    for number, name in enumerate(names):
        if number % _NAMES == 0:
            checkpoint()
        if (each := meaning(name)) is not NOTHING:
            meanings.append((name, each))
    forbidden = {name for name, each in meanings if each.forbidden}
    parts = {name for name, each in meanings if each.part or each.is_customer}
    several = len({each.part for _, each in meanings} - {None}) > 1 or any(each.is_customer for _, each in meanings)
    return _Verdict(rules, forbidden, parts if several else set())


def _broken_by_any(texts: Sequence[str], checkpoint: Checkpoint) -> list[Rule]:
    """Return the rules that texts violate; the texts of a block are checked together."""
    broken: set[Rule] = set()
    for block in _blocks(texts, len):
        broken.update(_broken_rules(joined(block), [rule for rule in RULES if rule not in broken], checkpoint))
    return [rule for rule in RULES if rule in broken]


def _blocks(entries: Sequence[Entry], size_of: Callable[[Entry], int]) -> Iterator[Sequence[Entry]]:
    """Split entries into blocks of about `_BLOCK` characters; nearly always there is one block."""
    began_at, size = 0, 0
    for at, more in enumerate(map(size_of, entries)):
        if size and size + more > _BLOCK:
            yield entries[began_at:at]
            began_at, size = at, 0
        size += more
    if entries:
        yield entries[began_at:]


def _texts_and_names(value: Any) -> tuple[list[str], set[str]]:
    """Return all texts of a body, including numbers that could be card numbers, and all field names."""
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


def _problems(
    value: Any, known_names: Set[str], judged: _Verdict, checkpoint: Checkpoint
) -> Iterator[tuple[_Location, str]]:
    """Yield the codes of a body with their locations; only rules that the whole body violates are checked for its texts."""
    checkpoint()
    if judged.forbidden:
        yield from _forbidden_names(value, known_names, judged.forbidden)
    if judged.rules:
        texts = [(place, text) for place, node in _nodes(value, known_names) if len(text := _text_of(node)) >= _MIN_TEXT]
        checkpoint()
        yield from _violations(texts, judged.rules, checkpoint)
        checkpoint()
    if judged.parts:
        yield from _order_records(value, known_names, judged.parts, checkpoint)


def _violations(
    texts: Sequence[tuple[_Location, str]], rules: Sequence[Rule], checkpoint: Checkpoint
) -> Iterator[tuple[_Location, str]]:
    """Yield the codes of `rules` that texts violate, with their locations, in the order of the texts.

    The texts of a block are checked together; a block that violates a rule is split, again and again, down to single texts.
    Many texts may form a violation together that no single one is, such as a dump with one statement per text. So checks are
    counted, and a body that needs too many is refused as a whole.
    """
    reported: set[tuple[str, str]] = set()
    checks = 0
    waiting = [(block, rules) for block in _blocks(texts, lambda each: len(each[1]))][::-1]
    while waiting:
        part, wanted = waiting.pop()
        place, _ = part[0]
        if len({each.path for each, _ in part}) == 1:
            # Many texts may share a path; a violation is reported once per path.
            wanted = [rule for rule in wanted if (place.path, rule.code) not in reported]
        if not wanted:
            continue
        if checks == MAX_CHECKS:
            yield from ((_Location(), rule.code) for rule in rules)
            return
        checks += 1
        broken = _broken_rules(joined(each for _, each in part), wanted, checkpoint)
        if len(part) > 1:
            size = -(-len(part) // _PARTS)
            waiting += [(part[at : at + size], broken) for at in range(0, len(part) if broken else 0, size)][::-1]
            continue
        for rule in broken:
            reported.add((place.path, rule.code))
            yield place, rule.code


def _forbidden_names(value: Any, known_names: Set[str], forbidden: Set[str]) -> Iterator[tuple[_Location, str]]:
    for place, node in _nodes(value, known_names):
        for name in node if isinstance(node, dict) else ():
            if name in forbidden:
                yield _member(place, name, known_names), "forbidden_header" if place.is_headers else "forbidden_name"


def _order_records(
    value: Any, known_names: Set[str], parts: Set[str], checkpoint: Checkpoint
) -> Iterator[tuple[_Location, str]]:
    for number, (place, node) in enumerate(_nodes(value, known_names)):
        if number % _NAMES == 0:
            checkpoint()
        if isinstance(node, dict) and not parts.isdisjoint(node) and is_order_record(node):
            yield place, "order_record"


def _nodes(value: Any, known_names: Set[str]) -> Iterator[tuple[_Location, Any]]:
    """Yield every value with its location, parents first, in the order of the body."""
    waiting: list[tuple[_Location, Any]] = [(_Location(), value)]
    while waiting:
        place, node = waiting.pop()
        yield place, node
        if isinstance(node, dict):
            waiting += [(_member(place, name, known_names), member) for name, member in reversed(node.items())]
        elif isinstance(node, list):
            waiting += [(place.below(str(index)), node[index]) for index in reversed(range(len(node)))]


def _member(place: _Location, name: str, known_names: Set[str]) -> _Location:
    step = name if name in known_names else meaning(name).forbidden
    return place.below(step, name in _RESPONSE_HEADERS)


def _text_of(node: Any) -> str:
    """Return the text of one value: its text, its digits, its field names, the headers it lists."""
    if isinstance(node, str):
        return node
    if isinstance(node, dict):
        return joined((*node, *_header_lines(node)))
    if isinstance(node, list):
        return joined(_header_lines(node))
    is_number = isinstance(node, int | float) and not isinstance(node, bool)
    return "".join(card_numbers.as_text(node)) if is_number else ""


def _header_lines(node: dict[str, Any] | list[Any]) -> list[str]:
    """Return headers and cookies that are given as name and value: as fields of an object, or as neighbors in a list."""
    if isinstance(node, dict):
        value = node.get("value", node.get("Value"))
        pairs = [] if value is None else [(node[name], value) for name in _NAME_FIELDS if name in node]
        if pairs and not COOKIE_FIELDS.isdisjoint(map(str.lower, node)):
            pairs = [(node.get("name", node.get("Name")), value)]
            return [f"Cookie: {name}={value}" for name, value in pairs if isinstance(name, str) and isinstance(value, str)]
    else:
        pairs = list(pairwise(node))
    return [
        f"{name}: {value}"
        for name, value in pairs
        if isinstance(name, str) and isinstance(value, str) and name.lower().replace("_", "-") in _CREDENTIAL_HEADERS
    ]


def _broken_rules(text: str, rules: Sequence[Rule], checkpoint: Checkpoint) -> list[Rule]:
    """Return the rules that a text violates, raw or decoded once, in their order."""
    if len(text) < _MIN_TEXT:
        return []
    broken: list[Rule] = []
    for version in (text, *once_decoded(text)):
        for window in _windows(version):
            checkpoint()
            numbers = parts_with_digits(window, _MIN_DIGITS)
            marks = _marks(window)
            marks.update((_ANY, _NUMBERS) if numbers else (_ANY,))
            for rule in rules:
                if marks.isdisjoint(rule.marks) or rule in broken:
                    continue
                checkpoint()
                if rule.breaks(numbers if _NUMBERS in rule.marks else window):
                    broken.append(rule)
    return [rule for rule in rules if rule in broken] if broken else broken


def _windows(text: str) -> Iterator[str]:
    """Split a long text into parts that overlap, so that other requests can be processed between their checks."""
    if len(text) <= _BLOCK + _OVERLAP:
        yield text
        return
    for start in range(0, len(text) - _OVERLAP, _BLOCK):
        yield text[start : start + _BLOCK + _OVERLAP]


def _marks(text: str) -> set[str]:
    lower = folded(text)
    found: set[str] = {word for pattern in _WORDS for word in pattern.findall(lower)}
    found.update(mark for mark, first, pattern in _MARKS if first in lower and pattern.search(lower))
    return found
