"""Tests every route of the API against its OpenAPI document, with data that matches the schemas and data that does not.

Schemathesis reads `/openapi.json` as a client would and generates requests from it: the examples, the limits of every
schema, random data, and sequences in which a response provides data for the next request. No response may be a 5xx, or
have an undocumented status or shape. Data that does not match its schema must be rejected. Data that matches may be
rejected only for rules that a schema cannot express.
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
#: Examples for each operation and phase; with 100, there are 10,000 requests.
EXAMPLES: Final = max(3, settings().max_examples // 20)
UNLIMITED: Final = {"RATE_LIMIT_PER_MINUTE": "1000000", "AUTH_FAILURES_PER_MINUTE": "1000000"}
LIMITED: Final = {"RATE_LIMIT_PER_MINUTE": "30", "AUTH_FAILURES_PER_MINUTE": "20"}

#: Error codes for rules that a schema cannot express, such as relations between members and existence of records.
NOT_IN_SCHEMA: Final = frozenset(
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
        # A pattern can describe neither the allowed hosts of a URL nor the dates in a mail header.
        "invalid_url",
        "invalid_timestamp",
        # The time must exist, and must be in the past or in the future.
        "invalid_since",
        "in_the_future",
        "in_the_past",
        # Which members can be combined.
        "not_of_this_action",
        "ids_or_filter",
        "no_members",
        # Equal entries, line breaks, and the form of patterns and paths.
        "repeated",
        "not_one_line",
        "empty_match",
        "not_a_path",
        *rules.MESSAGES,
        *(reason.value for reason in RefusalReason),
        *(reason.value for reason in DnsFailure),
    }
)

#: Filters that contain several values in one text, separated by commas.
_SEPARATED: Final = ("status", "severity", "project_id", "source", "rule", "target_id", "host")
#: Error codes that are allowed for one field only. For instance, a webhook's topic decides whether it needs a customer.
NOT_IN_SCHEMA_OF: Final = frozenset(
    {
        ("/customer", "required"),
        # The form of an email address, and the abilities of each kind of token.
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
        # An issue needs one of several members.
        ("/issues/*/title", "required"),
        # An edit does not contain the provider, which determines the allowed settings.
        ("/provider_settings", "unknown_member"),
        # A blank text: the schema of a setting only has its length.
        ("/provider_settings/*", "too_short"),
        # An empty text, a text of punctuation only, and a text with too many words.
        *((f"{parent}/q", code) for parent in ("", "/filter") for code in ("too_short", "no_word", "too_many")),
    }
)
VALID_DATA_STATUSES: Final = ["2xx", "3xx", "401", "403", "404", "409", "422", "429"]

#: Checks that do not apply to an operation, with the reason.
EXCLUDED: Final = {
    # If a member is present, its alternative name counts as evidence, which may have any value.
    "postScannerResults": ("negative_data_rejection",)
}


@dataclass
class Tried:
    """The results of a run."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)

    @property
    def operations(self) -> set[str]:
        """Every operation that received a request."""
        return {operation for operation, _ in self.answers}

    @property
    def statuses(self) -> set[int]:
        """Every status of a response."""
        return {status for _, status in self.answers}

    def let_through(self) -> set[str]:
        """Return the operations that succeeded at least once."""
        return {operation for operation, status in self.answers if status < 300}


def tried(api: DescribedApi, phases: tuple[str, ...], without: tuple[str, ...] = ()) -> Tried:
    """Test the API in some phases, `without` some checks. Quick runs always send the same requests."""
    with api.served() as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=_config(api, url, phases, without))
        _use_existing_ids(schema, api)
        found = Tried()
        for event in from_schema(schema).execute():
            _note(event, found)
    return found


def _config(api: DescribedApi, url: str, phases: tuple[str, ...], without: tuple[str, ...]) -> SchemathesisConfig:
    named: dict[str, Any] = {name: {"enabled": name in phases} for name in PHASES}
    if not IS_LONG:
        # Invalid data at the limits of schemas would be 2,000 requests.
        named["coverage"]["generation"] = {"mode": "positive"}
    return SchemathesisConfig.from_dict(
        {
            **({} if IS_LONG else {"seed": 7}),
            "base-url": url,
            # NUL is rejected in every text; the schemas do not express this.
            "generation": {
                "max-examples": EXAMPLES,
                "allow-x00": False,
                "deterministic": not IS_LONG,
                "database": "none",
                "no-shrink": not IS_LONG,
            },
            "auth": {"openapi": api.credentials},
            "checks": {
                # `_unexpected` checks each rejection of valid data.
                "positive_data_acceptance": {"expected-statuses": VALID_DATA_STATUSES},
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
    """Convert a numeric id to text where a sequence of requests puts it into a header."""
    for name, value in (case.headers or {}).items():
        if isinstance(value, int):
            case.headers[name] = str(value)


def _use_existing_ids(schema: Any, api: DescribedApi) -> None:
    """Replace most generated ids, projects and URLs by existing ones, because requests with unknown ones end early."""

    def map_path_parameters(context: Any, path_parameters: dict[str, Any]) -> dict[str, Any]:
        return _known(context, path_parameters or {})

    def map_body(context: Any, body: Any) -> Any:
        reported = _without_fractions(body)
        return _known(context, reported) if isinstance(reported, dict) else reported

    def _known(context: Any, reported: dict[str, Any]) -> dict[str, Any]:
        return {name: api.known(context.operation.path, name, value) for name, value in reported.items()}

    # Schemathesis identifies hooks by the names of the functions.
    schema.hook(map_path_parameters)
    schema.hook(map_body)


def _without_fractions(value: Any) -> Any:
    """Convert floats without a fraction to integers: a schema accepts 1.0 as an integer, but the API rejects it."""
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
    unexpected = _unexpected(case, response)
    if unexpected:
        yield f"valid data is rejected: {unexpected}", f"{case.as_curl_command()[:1500]} {shown}"


def _unexpected(case: Any, response: Any) -> set[str]:
    """Return the errors with which valid data was rejected, without those for rules that no schema can express."""
    if response.status_code != 422 or case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return set()
    reported = json.loads(response.content)
    refused = {
        (re.sub(r"/\d+|(?<=^/provider_settings)/\w+", "/*", each["path"]), each["code"])
        for each in reported["error"]["details"].get("fields", ())
    }
    return {f"{path} {code}" for path, code in refused - NOT_IN_SCHEMA_OF if code not in NOT_IN_SCHEMA}


def _shown(wrong: Mapping[str, str]) -> str:
    return "\n\n".join(f"{reported}\n{shown}" for reported, shown in wrong.items())


# PostgreSQL only in long runs, because the code that validates requests is the same.
# A thousand requests, each with a dozen checks; a busy machine takes several times as long.
@pytest.mark.timeout(0 if IS_LONG else 600)
@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"] if IS_LONG else ["sqlite"], indirect=True)
def test_the_api_behaves_as_its_openapi_description(database: str, tmp_path: Path) -> None:
    api = DescribedApi(tmp_path, UNLIMITED)

    found = tried(api, PHASES)

    assert found.wrong == {}, _shown(found.wrong)
    # Every operation received requests and succeeded: otherwise, the checks above would prove nothing.
    # Schemathesis does not test the URL from which it reads the document.
    assert found.operations == api.operations - {"GET /openapi.json"}
    assert found.operations - found.let_through() == set()
    assert {200, 201, 202, 204, 401, 403, 404, 409, 422} <= found.statuses
    if IS_LONG:
        assert {405, 415} <= found.statuses


@on_sqlite
def test_rate_limit_responses_match_the_openapi_description(database: str, tmp_path: Path) -> None:
    # An address with too many failed authentications gets 429 for every request.
    found = tried(DescribedApi(tmp_path, LIMITED), ("examples",), without=("ignored_auth",))

    assert found.wrong == {}, _shown(found.wrong)
    assert 429 in found.statuses
