"""Tries the whole API by its own description: every route, with data that fits and data that does not.

Schemathesis reads `/openapi.json` as a client would and makes requests of it: the examples, the edges of every schema,
random data, and sequences in which one answer feeds the next request. No answer may be a 5xx, of an undocumented status,
or of another shape than described; what does not fit is refused, and what fits is refused only for what no schema can
say.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import settings
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import FatalError, NonFatalError, ScenarioFinished
from schemathesis.generation import GenerationMode

from runtime.dns_resolver import DnsFailure
from schemas.base.fields import MAX_ID
from schemas.content_policy import rules
from schemas.url_policy.policy import RefusalReason
from tests.fuzz.described_api import DescribedApi
from tests.support.database.databases import on_sqlite

IS_LONG: Final = settings.get_current_profile_name() == "long"
PHASES: Final = ("examples", "coverage", "fuzzing", "stateful")
#: Examples of one operation in one phase; a hundred of each are ten thousand requests.
EXAMPLES: Final = max(3, settings().max_examples // 20)
UNLIMITED: Final = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "1000000"}
LIMITED: Final = {"RATE_LIMIT_PER_MINUTE": "30", "AUTH_FAILURES_PER_MINUTE": "20"}

#: Why data that fits its schema may be refused all the same: what members mean together, and what they hold.
MEANT: Final = frozenset(
    {
        "unknown_scan_run",
        "unknown_project",
        "no_project",
        "unknown_account",
        "unknown_user",
        "unknown_report",
        "project_or_report",
        "invalid_email",
        "invalid_shop_domain",
        "other_shop",
        "report_not_in_project",
        "not_the_headers_shop",
        "other_topic",
        "unknown_target",
        "credential_in_query",
        "no_tracker_page",
        "not_a_key",
        "standard_secret_needed",
        "target_not_active",
        "target_unavailable",
        "preview_not_safe",
        "invalid_address",
        "invalid_cursor",
        # Which host a URL may name is more than a pattern can tell, and so is what a mail header may call a date.
        "invalid_url",
        "invalid_timestamp",
        # A moment that there is, and that is over.
        "invalid_since",
        "in_the_future",
        "in_the_past",
        # Which members belong together, and what a comma separates in one text.
        "not_of_this_action",
        "ids_or_filter",
        "no_members",
        # What is the same in two entries, and which control characters end a line.
        "repeated",
        "not_one_line",
        "empty_match",
        "not_a_path",
        *rules.MESSAGES,
        *(reason.value for reason in RefusalReason),
        *(reason.value for reason in DnsFailure),
    }
)

#: Filters whose values are separated by commas, each with a form of its own.
_SEPARATED: Final = ("status", "severity", "project_id", "source", "rule", "target_id", "host")
#: The same of one member: whether a webhook needs a customer is said by its topic, what an action needs by its type.
MEANT_OF: Final = frozenset(
    {
        ("/customer", "required"),
        # What is an address, and which abilities a kind of token has.
        ("/email", "not_allowed"),
        ("/abilities", "not_allowed"),
        ("/target_id", "required"),
        ("/expected_count", "required"),
        *((f"/action/{name}", "required") for name in ("target_id", "reason", "labels")),
        *(
            (f"{parent}/{name}", code)
            for parent in ("", "/filter")
            for name in _SEPARATED
            for code in ("not_allowed", "too_many")
        ),
        # One of several members may name an issue.
        ("/issues/*/title", "required"),
        # An edit does not name the provider, whose settings these are.
        ("/provider_settings", "unknown_member"),
        # Blank: the schema of a setting has its length alone.
        ("/provider_settings/*", "too_short"),
        # An empty text, one of punctuation alone, and one of too many words.
        *((f"{parent}/q", code) for parent in ("", "/filter") for code in ("too_short", "no_word", "too_many")),
    }
)
ANSWERS_TO_WHAT_FITS: Final = ["2xx", "3xx", "401", "403", "404", "409", "422", "429"]

#: Checks that cannot hold for an operation, and why.
EXCLUDED: Final = {
    # Another name of a member is evidence where the member itself is there, whatever it holds.
    "postScannerResults": ("negative_data_rejection",)
}


@dataclass
class Tried:
    """What came of it."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def operations(self) -> set[str]:
        """Every operation that was tried."""
        return {operation for operation, _ in self.answers}

    @property
    def statuses(self) -> set[int]:
        """Every status that was met."""
        return {status for _, status in self.answers}

    def let_through(self) -> set[str]:
        """Return the operations that did what they are for."""
        return {operation for operation, status in self.answers if status < 300}


def tried(api: DescribedApi, phases: tuple[str, ...], without: tuple[str, ...] = ()) -> Tried:
    """Try the API by its description in some phases, `without` some checks; the requests of quick runs are the same."""
    with api.served() as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=_config(api, url, phases, without))
        _use_what_there_is(schema, api)
        found = Tried()
        for event in from_schema(schema).execute():
            _note(event, found)
    return found


def _config(api: DescribedApi, url: str, phases: tuple[str, ...], without: tuple[str, ...]) -> SchemathesisConfig:
    named: dict[str, Any] = {name: {"enabled": name in phases} for name in PHASES}
    if not IS_LONG:
        # The edges of what does not fit are two thousand requests.
        named["coverage"]["generation"] = {"mode": "positive"}
    return SchemathesisConfig.from_dict(
        {
            **({} if IS_LONG else {"seed": 7}),
            "base-url": url,
            # NUL is refused in every text, which a schema can say of none.
            "generation": {
                "max-examples": EXAMPLES,
                "allow-x00": False,
                "deterministic": not IS_LONG,
                "database": "none",
                "no-shrink": not IS_LONG,
            },
            "auth": {"openapi": api.credentials},
            "checks": {
                # Refusals of what fits are looked at one by one in `_unmeant`.
                "positive_data_acceptance": {"expected-statuses": ANSWERS_TO_WHAT_FITS},
                **{check: {"enabled": False} for check in without},
            },
            "phases": named,
            "operations": [
                {"include-operation-id": operation, "checks": {check: {"enabled": False} for check in checks}}
                for operation, checks in EXCLUDED.items()
            ],
        }
    )


@schemathesis.hook
def before_call(_context: Any, case: Any, _options: Any) -> None:
    """Write an id that is a number as text where a sequence puts it into a header."""
    for name, value in (case.headers or {}).items():
        if isinstance(value, int):
            case.headers[name] = str(value)


def _use_what_there_is(schema: Any, api: DescribedApi) -> None:
    """Let made-up ids, projects and addresses mostly be those that there are: what names nothing gets no further."""

    def map_path_parameters(context: Any, path_parameters: dict[str, Any]) -> dict[str, Any]:
        return _known(context, path_parameters or {})

    def map_body(context: Any, body: Any) -> Any:
        reported = _without_fractions(body)
        return _known(context, reported) if isinstance(reported, dict) else reported

    def _known(context: Any, reported: dict[str, Any]) -> dict[str, Any]:
        return {name: api.known(context.operation.path, name, value) for name, value in reported.items()}

    # By what they are called.
    schema.hook(map_path_parameters)
    schema.hook(map_body)


def _without_fractions(value: Any) -> Any:
    """Write whole numbers as such: 1.0 is an integer to a schema, and refused here for what somebody may mean by it."""
    if isinstance(value, dict):
        return {name: _without_fractions(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_without_fractions(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_ID else value


def _note(event: Any, found: Tried) -> None:
    if isinstance(event, FatalError):
        raise event.exception
    if isinstance(event, NonFatalError):
        found.wrong[f"{event.label}: {event.value}"] = str(event.phase)
    if isinstance(event, ScenarioFinished):
        for case_id, node in event.recorder.cases.items():
            interaction = event.recorder.interactions.get(case_id)
            if interaction is None or interaction.response is None:
                continue
            operation = node.value.operation.label
            found.answers[operation, interaction.response.status_code] += 1
            for reported, shown in _complaints(event, case_id, node.value, interaction.response):
                found.wrong.setdefault(f"{operation}: {reported}", shown)


def _complaints(event: ScenarioFinished, case_id: str, case: Any, response: Any) -> Iterator[tuple[str, str]]:
    shown = f"{response.status_code} {response.content[:500]!r}"
    for check in event.recorder.checks.get(case_id, ()):
        if check.failure_info is not None:
            failure = check.failure_info.failure
            yield (
                f"{check.name}: {failure.title}: {failure.message[:300]}",
                f"{check.failure_info.code_sample[:1500]} {shown}",
            )
    unmeant = _unmeant(case, response)
    if unmeant:
        yield f"what fits is refused: {unmeant}", f"{case.as_curl_command()[:1500]} {shown}"


def _unmeant(case: Any, response: Any) -> set[str]:
    """Return why data that fits was refused, without what no schema can say."""
    if response.status_code != 422 or case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return set()
    reported = json.loads(response.content)
    refused = {
        (re.sub(r"/\d+|(?<=^/provider_settings)/\w+", "/*", each["path"]), each["code"])
        for each in reported["error"]["details"].get("fields", ())
    }
    return {f"{path} {code}" for path, code in refused - MEANT_OF if code not in MEANT}


def _shown(wrong: Mapping[str, str]) -> str:
    return "\n\n".join(f"{reported}\n{shown}" for reported, shown in wrong.items())


# PostgreSQL only where there is time: what is read and refused is the same code.
# A thousand requests, each with a dozen checks; a busy machine takes several times as long.
@pytest.mark.timeout(0 if IS_LONG else 600)
@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"] if IS_LONG else ["sqlite"], indirect=True)
def test_the_api_is_as_it_describes_itself(database: str, tmp_path: Path) -> None:
    api = DescribedApi(tmp_path, UNLIMITED)

    found = tried(api, PHASES)

    assert found.wrong == {}, _shown(found.wrong)
    # Nothing would be wrong with what was never asked, or never got through.
    # Who reads the description by its address does not try that address.
    assert found.operations == api.operations - {"GET /openapi.json"}
    assert found.operations - found.let_through() == set()
    assert {200, 201, 202, 204, 401, 403, 404, 409, 422} <= found.statuses
    if IS_LONG:
        assert {405, 415} <= found.statuses


@on_sqlite
def test_a_rate_limit_is_answered_as_described(database: str, tmp_path: Path) -> None:
    # An address with too many failed authentications gets 429 for every request.
    found = tried(DescribedApi(tmp_path, LIMITED), ("examples",), without=("ignored_auth",))

    assert found.wrong == {}, _shown(found.wrong)
    assert 429 in found.statuses
