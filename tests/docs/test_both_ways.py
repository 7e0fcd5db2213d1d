"""What the documents name is there, and what is there is named: routes, commands, settings, codes, make targets, files.

That docs/commands.md and docs/settings.md have every command, option and setting is held in `tests/bin/test_reference.py`,
metrics are in `tests/journeys/test_metrics.py`, limits in `tests/test_limits_docs.py`.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

import pytest
from falcon.inspect import inspect_routes

from runtime.dns_resolver import DnsFailure
from schemas.base import fields
from schemas.base.errors import RiskRelayError
from schemas.content_policy import rules
from schemas.content_policy.field_names import FORBIDDEN_NAMES
from schemas.settings.definitions import FILE_SUFFIX, SETTINGS
from schemas.targets.pings import NO_WORKER, WORKER_LOST
from schemas.targets.target import BREAKER_OPEN, RATE_LIMITED, RECEIVER_UNAVAILABLE, RESTORED
from schemas.targets.validations import EXPIRES_SOON
from schemas.url_policy.policy import RefusalReason
from service.app import create_app
from service.http.error_responses import STATUS
from service.operations.targets import BY_CLIENT
from tests.docs.named import command_lines, inline_commands, is_target_word, make_targets, typed, wrong_in_inline, wrong_with
from tests.docs.snippets import PAGES, ROOT, inline_codes
from tests.support.factories import make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.raw_http import is_of_the_console
from worker.delivery.outcomes import RECEIVER_CODES
from worker.delivery.throttle import GIVEN_UP

TEXTS: Final = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
EVERYTHING: Final = "".join(TEXTS.values())
CODES: Final = {name: inline_codes(text) for name, text in TEXTS.items()}
API: Final = TEXTS["docs/api.md"]
ERROR_CODES: Final = TEXTS["docs/error-codes.md"]

#: Names in capitals that documents speak of and that are no settings, by what they are.
OTHERS: Final = {
    # the reader's own shell variables
    "TOKEN", "EXPORT", "TARGET", "SECRET", "PROJECT_ID",
    # what the example receivers read
    "WEBHOOK_SECRET_OLD", "RATE_PER_MINUTE", "STATE_FILE",
    # what the name of a variable in the README's code holds
    *RECEIVER_CODES,
    # make's, and what other programs read from the environment
    "ARGS", "EXTRAS", "PYTHON", "LANG", "HOME", "PATH", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
}  # fmt: skip
#: Variables of programs that have many of their own.
OTHER_FAMILIES: Final = ("OTEL_", "PG", "POSTGRES_", "PROMETHEUS_", "SSL_")
_METHODS: Final = "GET|POST|PUT|PATCH|DELETE"
#: Ids, variables and what else stands in place of a part of a path.
_A_PART: Final = r"[^/?\s\"'`]+"


# --- commands


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_that_a_document_names_is_there_with_its_options(name: str) -> None:
    named = [*command_lines(TEXTS[name]), *inline_commands(TEXTS[name])]
    assert [wrong for words in named if (wrong := wrong_with(words))] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("bin/riskrelay token create --user a", None),
        ("`bin/riskrelay token make`", "no command: token make"),
        ("`bin/riskrelay frobnicate`", "no command: frobnicate"),
        ("X=$(bin/riskrelay token create --usr a)", "token create has no --usr"),
        ("see `target resume ID`", None),
        ("see `target revive ID`", "no command: target revive ID"),
        ("see `target pause|revive`", "no command: target revive"),
        ("`target --all`", None),
        ("run riskrelay sweep --dry-run, then another", None),
        ("install -o riskrelay -g riskrelay riskrelay /srv", None),
        (
            'docker compose exec service /srv/riskrelay/bin/riskrelay account make "My company"',
            "no command: account make My company",
        ),
        ("`sweep`", None),
        ("`trigger --all`", None),
        ("`trigger --every`", "trigger has no --every"),
        ("`init` and `run`", None),
    ],
)
def test_a_command_that_is_not_there_is_found(text: str, wrong: str | None) -> None:
    found = [wrong_with(words) for words in (*command_lines(text), *inline_commands(text))]
    assert [each for each in found if each] == ([] if wrong is None else [wrong])


@pytest.mark.parametrize("name", TEXTS)
def test_every_option_and_module_that_a_document_names_alone_is_there(name: str) -> None:
    assert [wrong for code in CODES[name] for wrong in wrong_in_inline(code)] == []


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("--json", []),
        ("--retry-after=5", []),
        ("--fail 503 --times 2", []),
        ("--jsonl", ["no option: --jsonl"]),
        ("--fail 503 --tmes 2", ["no option: --tmes"]),
        ("python -m soak --seed 1", []),
        ("python -m soak --sed 1", ["soak has no --sed"]),
        ("python -m bench.nothing", ["no module: bench.nothing"]),
        ("systemctl disable --now", []),
    ],
)
def test_an_option_or_module_that_is_not_there_is_found(code: str, wrong: list[str]) -> None:
    assert wrong_in_inline(code) == wrong


# --- settings


def known_names() -> set[str]:
    return {setting.name + suffix for setting in SETTINGS for suffix in ("", FILE_SUFFIX)} | STATUS.keys() | OTHERS


@pytest.mark.parametrize("name", TEXTS)
def test_every_setting_that_a_document_names_is_there(name: str) -> None:
    named = {*re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=[^`]*)?`", TEXTS[name])}
    # Not behind a bracket or a percent sign, as the variables of other programs stand in blocks of nginx.
    named |= {*re.findall(r"(?:^| )([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)=", TEXTS[name], re.MULTILINE)} - assigned(name)
    assert sorted(each for each in named - known_names() if not each.startswith(OTHER_FAMILIES)) == []


def assigned(name: str) -> set[str]:
    """Return what a page's own shell reads again: its variables, which are no settings."""
    return {*re.findall(r"\$\{?([A-Z][A-Z0-9_]*)", TEXTS[name])}


# --- routes


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    settings = make_settings(tmp_path_factory.mktemp("app"), {"DEPLOYMENT_MODE": "cloud"})
    return {
        (method.method, route.path)
        for route in inspect_routes(create_app(settings, FakeWakeUpQueue(), FakeResolver({})))
        for method in route.methods
        # HEAD is GET without a body; OPTIONS is the framework's.
        if not method.internal and method.method != "HEAD"
        # what the page of the description loads, and what persons look at, of which docs/console.md tells
        if not route.path.startswith("/docs/") and not is_of_the_console(route.path)
    }


def shape(path: str) -> str:
    """Return a path with the same word in place of each of its parts that vary."""
    return re.sub(r"\{[^}]+\}", "{id}", path)


def test_the_table_of_routes_has_those_that_are_served_and_no_other(served: set[tuple[str, str]]) -> None:
    table = API.partition("\n## Routes\n")[2].partition("\n## ")[0]
    assert {*re.findall(r"^\| `([A-Z]+) (/[^`]*)`", table, re.MULTILINE)} == {
        (method, shape(path)) for method, path in served
    }


def routes_named(name: str) -> Iterator[tuple[str, str]]:
    """Yield every method and path that a document names; a path alone is read."""
    yield from re.findall(rf"(?:\b({_METHODS}) )?(?<![\w./])(/api/{_A_PART}(?:/{_A_PART})*)", TEXTS[name])
    for code in CODES[name]:
        if found := re.match(rf"({_METHODS}) (/\S+)", code):
            yield found[1], found[2].partition("?")[0]


@pytest.mark.parametrize("name", TEXTS)
def test_every_route_that_a_document_names_is_served(name: str, served: set[tuple[str, str]]) -> None:
    def is_served(method: str, path: str) -> bool:
        return any(
            method in {"", real} and re.fullmatch(re.sub(r"\\\{.+?\\\}", "[^/]+", re.escape(route)), path)
            for real, route in served
        )

    named = {(method, path.rstrip("/.,:;)\\")) for method, path in routes_named(name)}
    assert sorted(each for each in named if not is_served(*each)) == []


# --- codes of errors


def rows_under(heading: str) -> set[str]:
    """Return the codes in the first column of the table under a heading of the page of error codes."""
    section = ERROR_CODES.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {code for cell in first for code in re.findall(r"`([^`]+)`", cell)}


def every_error(kind: type[RiskRelayError]) -> Iterator[type[RiskRelayError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from every_error(child)


def test_the_codes_of_answers_are_those_of_the_errors() -> None:
    assert rows_under("Of answers") == {kind.code for kind in every_error(RiskRelayError)}
    told = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", API.partition("\n## Errors\n")[2], re.MULTILINE)
    assert {code: int(status) for code, status in told} == STATUS


@cache
def trees(room: str) -> tuple[ast.Module, ...]:
    return tuple(ast.parse(path.read_text()) for path in sorted((ROOT / room).rglob("*.py")))


def field_codes_in_code() -> Iterator[str]:
    """Yield what is refused with: the second argument of `problem`, and what validators raise or are given."""
    for tree in (tree for room in ("schemas", "service", "storage") for tree in trees(room)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "problem":
                yield from texts(node.args[1])
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ValidationError":
                yield from (text for text in texts(node.args[0]) if re.fullmatch("[a-z_]+", text))


def texts(node: ast.expr | None) -> Iterator[str]:
    """Yield the texts that an expression may come to, as far as they stand in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*texts(node.body), *texts(node.orelse))
    elif isinstance(node, ast.BoolOp):
        yield from (text for value in node.values for text in texts(value))


def test_the_codes_of_fields_are_those_that_have_a_message_and_every_refusal_has_one() -> None:
    told = fields.MESSAGES.keys() | rules.MESSAGES.keys()
    assert rows_under("Of fields") == told
    assert {*field_codes_in_code()} - told == set()


def test_every_rule_and_name_of_forbidden_content_stands_in_its_document() -> None:
    told = {*CODES["docs/forbidden-content.md"]}
    assert {*rules.MESSAGES, *FORBIDDEN_NAMES} - told == set()


def test_the_codes_of_addresses_are_the_policys() -> None:
    assert rows_under("Of addresses") == {*RefusalReason} | {"address_refused"}


#: What a worker calls what it met: arguments and variables of these names, and what these functions return.
_ERRORS: Final = {"error", "error_code"}
_NAMING: Final = {"_error_name", "_fault_in"}
#: Reasons stand in arguments of this name, and in statements.
_REASONS: Final = {"reason"}


def texts_called(names: set[str], room: str) -> Iterator[str]:
    for node in (node for tree in trees(room) for node in ast.walk(tree)):
        is_named = isinstance(node, ast.keyword) and node.arg in names
        if isinstance(node, ast.Assign):
            is_named = bool({each.id for each in node.targets if isinstance(each, ast.Name)} & names)
        if is_named and isinstance(node, (ast.keyword, ast.Assign)):
            yield from texts(node.value)


def texts_returned(names: set[str], room: str) -> Iterator[str]:
    for node in (node for tree in trees(room) for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            yield from (text for each in ast.walk(node) if isinstance(each, ast.Return) for text in texts(each.value))


def attempt_codes() -> set[str]:
    found = {*texts_called(_ERRORS, "worker"), *texts_returned(_NAMING, "worker")}
    found |= {*texts_called(_REASONS, "worker")} - {"attempts_exhausted"}
    return found | {*RECEIVER_CODES} | {*DnsFailure} | {NO_WORKER, WORKER_LOST}


def test_the_codes_of_attempts_are_those_that_a_worker_gives() -> None:
    assert rows_under("Of attempts") | rows_under("Of addresses") == attempt_codes() | {*RefusalReason}


def test_the_reasons_of_exports_and_targets_are_those_that_the_code_gives() -> None:
    statements = "".join(path.read_text() for path in sorted((ROOT / "storage").rglob("*.py")))
    of_exports = {*re.findall(r"status_reason = '([a-z_]+)'", statements), "attempts_exhausted"}
    # made of the status: `f"target_{off.value}"`
    assert 'reason = MOVES[move].target, f"target_{off.value}"' in statements
    assert rows_under("Of exports") == of_exports | {"target_blocked", "target_disabled"}
    constants = {RATE_LIMITED, RECEIVER_UNAVAILABLE, BREAKER_OPEN, RESTORED, GIVEN_UP, EXPIRES_SOON, BY_CLIENT}
    assert {"no_secret", "operator"} <= {*re.findall(r'"([a-z_]+)"', statements)}
    assert rows_under("Of targets") == constants | {"no_secret", "operator", "receiver_gone"}


# --- make targets and files


def test_every_make_target_that_is_named_is_there_and_every_target_is_named() -> None:
    calls = [words for codes in CODES.values() for code in codes for words in typed(code) if words[0] == "make"]
    # Those in blocks are looked at with the blocks.
    assert {word for words in calls for word in words[1:] if is_target_word(word)} - make_targets() == set()
    assert {target for target in make_targets() if not re.search(rf"\bmake {target}\b", EVERYTHING)} == set()


#: What only a run of `make bench` writes.
WRITTEN_LATER: Final = {"bench/latest.json"}


@pytest.mark.parametrize("name", TEXTS)
def test_every_file_that_a_document_names_is_there(name: str) -> None:
    rooms = "bin|deploy|docs|examples|tests|schemas|service|storage|worker|bench|soak"
    named = {code.split()[0].partition("::")[0] for code in CODES[name] if re.match(rf"({rooms})/\S", code)} - WRITTEN_LATER
    assert sorted(path for path in named if not (ROOT / path).exists() and not any(ROOT.glob(path))) == []


def test_every_example_is_named_by_a_page() -> None:
    files = [path for path in sorted((ROOT / "examples").rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    assert [path.name for path in files if path.name not in EVERYTHING] == []
