"""Every documented route, command, setting, code, make target and file exists, and all existing ones are documented.

`tests/tools/test_reference.py` covers docs/commands.md and docs/settings.md,
`tests/journeys/operating/test_metrics.py` the metrics, `tests/test_limits_docs.py` the limits.
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
from schemas.exports.next_attempt import next_attempt
from schemas.settings.definitions import FILE_SUFFIX, SETTINGS
from schemas.targets.pings import NO_WORKER, WORKER_LOST
from schemas.targets.target import BREAKER_OPEN, RATE_LIMITED, RECEIVER_UNAVAILABLE, RESTORED, TargetStatus
from schemas.targets.validations import EXPIRES_SOON
from schemas.trackers import failures
from schemas.trackers.registry import TRACKERS, provider_keys
from schemas.url_policy.policy import RefusalReason
from service.app import create_app
from service.http.error_responses import STATUS
from service.operations.targets import BY_CLIENT
from storage.targets.targets import NO_WEBHOOKS
from tests.docs.names import (
    command_lines,
    error_in_command,
    errors_in_inline_code,
    inline_commands,
    is_target_word,
    make_targets,
    shell_commands,
)
from tests.docs.snippets import PAGES, ROOT, inline_codes
from tests.support.factories import make_settings
from tests.support.fakes import FakeResolver, FakeWakeUpQueue
from tests.support.http.raw_http import is_of_the_console
from worker.delivery.outcomes import RECEIVER_CODES
from worker.delivery.throttle import GIVEN_UP

TEXTS: Final = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PAGES}
EVERYTHING: Final = "".join(TEXTS.values())
CODES: Final = {name: inline_codes(text) for name, text in TEXTS.items()}
API: Final = TEXTS["docs/api.md"]
ERROR_CODES: Final = TEXTS["docs/error-codes.md"]

#: Upper-case names in the documentation that are not settings, by kind.
OTHERS: Final = {
    # the reader's own shell variables
    "TOKEN", "EXPORT", "TARGET", "SECRET", "PROJECT_ID",
    # variables of the example receivers
    "WEBHOOK_SECRET_OLD", "RATE_PER_MINUTE", "STATE_FILE",
    # the variable that names the settings file, and two that have no effect
    "RISKRELAY_ENV_FILE", "SSLKEYLOGFILE", "GUNICORN_CMD_ARGS",
    # variables of commands against another host
    "RISKRELAY_URL", "RISKRELAY_TOKEN", "RISKRELAY_CREDENTIALS", "REQUESTS_CA_BUNDLE",
    # codes in the bodies of receivers' responses
    *RECEIVER_CODES,
    # variables of make and of other programs
    "ARGS", "EXTRAS", "PYTHON", "LANG", "HOME", "PATH", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
}  # fmt: skip
#: Prefixes of variables of other programs.
OTHER_FAMILIES: Final = ("OTEL_", "PG", "POSTGRES_", "PROMETHEUS_", "SSL_")
_METHODS: Final = "GET|POST|PUT|PATCH|DELETE"
#: A path segment: an id, a variable or a placeholder.
_A_PART: Final = r"[^/?\s\"'`]+"


# --- commands


@pytest.mark.parametrize("name", TEXTS)
def test_every_documented_command_exists_with_its_options(name: str) -> None:
    named = [*command_lines(TEXTS[name]), *inline_commands(TEXTS[name])]
    assert [wrong for words in named if (wrong := error_in_command(words))] == []


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
def test_an_unknown_command_is_detected(text: str, wrong: str | None) -> None:
    found = [error_in_command(words) for words in (*command_lines(text), *inline_commands(text))]
    assert [each for each in found if each] == ([] if wrong is None else [wrong])


@pytest.mark.parametrize("name", TEXTS)
def test_every_documented_option_and_module_exists(name: str) -> None:
    assert [wrong for code in CODES[name] for wrong in errors_in_inline_code(code)] == []


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
def test_an_unknown_option_or_module_is_detected(code: str, wrong: list[str]) -> None:
    assert errors_in_inline_code(code) == wrong


# --- settings


def known_names() -> set[str]:
    return {setting.name + suffix for setting in SETTINGS for suffix in ("", FILE_SUFFIX)} | STATUS.keys() | OTHERS


@pytest.mark.parametrize("name", TEXTS)
def test_every_documented_setting_exists(name: str) -> None:
    named = {*re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=[^`]*)?`", TEXTS[name])}
    # Not after a bracket or a percent sign, which precede variables of other programs such as nginx.
    named |= {*re.findall(r"(?:^| )([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)=", TEXTS[name], re.MULTILINE)} - assigned(name)
    assert sorted(each for each in named - known_names() if not each.startswith(OTHER_FAMILIES)) == []


def assigned(name: str) -> set[str]:
    """Return the shell variables that a page assigns; they are not settings."""
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
        # the files of the API page, and the console, which docs/console.md describes
        if not route.path.startswith("/docs/") and not is_of_the_console(route.path)
    }


def shape(path: str) -> str:
    """Return a path with every parameter named `id`."""
    return re.sub(r"\{[^}]+\}", "{id}", path)


def test_the_table_of_routes_lists_exactly_the_served_routes(served: set[tuple[str, str]]) -> None:
    table = API.partition("\n## Routes\n")[2].partition("\n## ")[0]
    assert {*re.findall(r"^\| `([A-Z]+) (/[^`]*)`", table, re.MULTILINE)} == {
        (method, shape(path)) for method, path in served
    }


def routes_named(name: str) -> Iterator[tuple[str, str]]:
    """Yield every method and path in a document; a path without a method yields an empty method."""
    yield from re.findall(rf"(?:\b({_METHODS}) )?(?<![\w./])(/api/{_A_PART}(?:/{_A_PART})*)", TEXTS[name])
    for code in CODES[name]:
        if found := re.match(rf"({_METHODS}) (/\S+)", code):
            yield found[1], found[2].partition("?")[0]


@pytest.mark.parametrize("name", TEXTS)
def test_every_documented_route_is_served(name: str, served: set[tuple[str, str]]) -> None:
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


def test_the_documented_response_codes_are_those_of_the_errors() -> None:
    assert rows_under("Codes of responses") == {kind.code for kind in every_error(RiskRelayError)}
    documented = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", API.partition("\n## Errors\n")[2], re.MULTILINE)
    assert {code: int(status) for code, status in documented} == STATUS


@cache
def trees(folder: str) -> tuple[ast.Module, ...]:
    return tuple(ast.parse(path.read_text()) for path in sorted((ROOT / folder).rglob("*.py")))


def field_codes_in_code() -> Iterator[str]:
    """Yield the codes of field errors: the second argument of `problem`, and the argument of `ValidationError`."""
    for tree in (tree for folder in ("schemas", "service", "storage") for tree in trees(folder)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "problem":
                yield from texts(node.args[1])
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ValidationError":
                yield from (text for text in texts(node.args[0]) if re.fullmatch("[a-z_]+", text))


def texts(node: ast.expr | None) -> Iterator[str]:
    """Yield the string literals that an expression may evaluate to."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*texts(node.body), *texts(node.orelse))
    elif isinstance(node, ast.BoolOp):
        yield from (text for value in node.values for text in texts(value))


def test_every_field_code_is_documented_and_has_a_message() -> None:
    known = fields.MESSAGES.keys() | rules.MESSAGES.keys()
    assert rows_under("Codes of fields") == known
    assert {*field_codes_in_code()} - known == set()


def test_every_rule_and_name_of_forbidden_content_is_documented() -> None:
    documented = {*CODES["docs/forbidden-content.md"]}
    assert {*rules.MESSAGES, *FORBIDDEN_NAMES} - documented == set()


def test_every_rule_of_forbidden_content_is_documented_with_its_accepted_content() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]{20,} \| [^|]{10,} \|$", TEXTS["docs/forbidden-content.md"], re.MULTILINE)
    assert {*rows} == {*rules.MESSAGES}


def test_every_tracker_and_tracker_setting_is_in_the_tables_of_the_targets_page() -> None:
    page = TEXTS["docs/targets/index.md"]
    assert {*re.findall(r"^\| \[`(\w+)`\]\(", page, re.MULTILINE)} == {*provider_keys()}
    section = page.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
    trackers = {name: {*TRACKERS} if named == "all" else {*re.findall(r"`(\w+)`", named)} for name, named in rows.items()}
    settings = [(name, key) for key, tracker in TRACKERS.items() for name in tracker.settings_form().fields]
    assert trackers == {name: {key for other, key in settings if other == name} for name, _ in settings}


def test_the_documented_address_codes_are_those_of_the_policy() -> None:
    assert rows_under("Codes of addresses") == {*RefusalReason} | {"address_refused"}


#: Arguments and variables that hold error codes in the worker, a function that returns them, and one that takes them.
_ERRORS: Final = {"error", "error_code"}
_RETURNS_ERROR: Final = {"_reason"}
_TAKES_ERROR: Final = {"rejected", "transport_error", "_MissingSecret"}
#: The argument that holds reasons.
_REASONS: Final = {"reason"}


def texts_called(names: set[str], folder: str) -> Iterator[str]:
    for node in (node for tree in trees(folder) for node in ast.walk(tree)):
        is_named = isinstance(node, ast.keyword) and node.arg in names
        if isinstance(node, ast.Assign):
            is_named = bool({each.id for each in node.targets if isinstance(each, ast.Name)} & names)
        if is_named and isinstance(node, (ast.keyword, ast.Assign)):
            yield from texts(node.value)


def texts_returned(names: set[str], folder: str) -> Iterator[str]:
    for node in (node for tree in trees(folder) for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            yield from (text for each in ast.walk(node) if isinstance(each, ast.Return) for text in texts(each.value))


def texts_passed_to(names: set[str], folder: str) -> Iterator[str]:
    for node in (node for tree in trees(folder) for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield from texts(node.args[0])


def attempt_codes() -> set[str]:
    found = {*texts_called(_ERRORS, "worker"), *texts_returned(_RETURNS_ERROR, "worker")}
    found |= {*texts_passed_to(_TAKES_ERROR, "worker")}
    found |= {*texts_called(_REASONS, "worker")} - {"attempts_exhausted"}
    return found | {*RECEIVER_CODES} | {*DnsFailure} | {NO_WORKER, WORKER_LOST}


def test_the_documented_attempt_codes_are_those_of_the_worker() -> None:
    assert rows_under("Codes of attempts") | rows_under("Codes of addresses") == attempt_codes() | {*RefusalReason}


def test_the_documented_codes_of_trackers_are_those_of_their_failures() -> None:
    codes = {each for each in vars(failures).values() if str(each).startswith(("tracker_", "issue_"))}
    assert rows_under("Codes of trackers") == codes


def test_the_documented_reasons_are_those_in_the_code() -> None:
    statements = "".join(path.read_text() for path in sorted((ROOT / "storage").rglob("*.py")))
    # The only constant reason in calls of `transition_many`; other finished exports have the reason of their last attempt.
    of_exports = {*re.findall(r'transition,\s+now,\s+actor,\s+"([a-z_]+)"', statements), "attempts_exhausted"}
    assert "redacted" in of_exports
    # derived from the status: `f"target_{off.value}"`
    assert 'f"target_{off.value}"' in statements
    waiting = {next_attempt("approved", 0, status, None, 0).reason for status in TargetStatus} - {None}
    assert rows_under("Codes of exports") == of_exports | {"target_blocked", "target_disabled"} | waiting
    constants = {RATE_LIMITED, RECEIVER_UNAVAILABLE, BREAKER_OPEN, RESTORED, GIVEN_UP, EXPIRES_SOON, BY_CLIENT, NO_WEBHOOKS}
    named = {"no_secret", "no_standard_secret", "operator"}
    assert named <= {*re.findall(r'"([a-z_]+)"', statements)}
    assert rows_under("Codes of targets") == constants | named | {"receiver_gone"}


# --- make targets and files


def test_every_make_target_is_documented_and_every_documented_target_exists() -> None:
    calls = [words for codes in CODES.values() for code in codes for words in shell_commands(code) if words[0] == "make"]
    # test_snippets.py checks the targets in blocks.
    assert {word for words in calls for word in words[1:] if is_target_word(word)} - make_targets() == set()
    assert {target for target in make_targets() if not re.search(rf"\bmake {target}\b", EVERYTHING)} == set()


#: Written only by `make bench`.
WRITTEN_LATER: Final = {"bench/latest.json"}


@pytest.mark.parametrize("name", TEXTS)
def test_every_documented_file_exists(name: str) -> None:
    folders = "bin|deploy|docs|examples|tests|schemas|runtime|service|storage|tools|worker|bench|soak"
    named = {
        code.split()[0].partition("::")[0] for code in CODES[name] if re.match(rf"({folders})/\S", code)
    } - WRITTEN_LATER
    assert sorted(path for path in named if not (ROOT / path).exists() and not any(ROOT.glob(path))) == []


def test_every_example_is_documented() -> None:
    files = [path for path in sorted((ROOT / "examples").rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    assert [path.name for path in files if path.name not in EVERYTHING] == []
