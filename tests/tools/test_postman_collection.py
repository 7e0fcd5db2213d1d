"""The Postman collection has every operation and no secret, runs from top to bottom, and changes only what it creates.

`test_reference` checks that the file matches the code.
"""

import base64
import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import requests

from runtime.clock import utc_now
from schemas.intake.grouping import TicketGrouping
from storage.accounts import accounts, projects
from tests.fuzz.described_api import DescribedApi
from tests.support.database.databases import on_sqlite
from tests.support.factories import make_project
from tests.support.http.storefront import SECRET as STOREFRONT_SECRET
from tools import postman_collection
from tools.reference import COLLECTION

# The requests do not depend on the database.
pytestmark = on_sqlite

_NAMED: Final = re.compile(r"\{\{(\$?\w+)\}\}")
_EXPECTED: Final = re.compile(r"oneOf\(\[([0-9, ]+)\]\)")
_SET: Final = re.compile(r'pm\.collectionVariables\.set\("(\w+)", (JSON\.stringify\()?record\.([\w?.]+) \|\| ""(?(2)\))\);')
#: A name with characters that JSON escapes.
NAME_TO_ESCAPE: Final = 'Ada "the shop" \\ Söhne'
#: Variables that a run sets.
_SET_BY_RUN: Final = {"target_id", "export_id", "ticket_digest", "recovery_id", "job_id", "rule_id", "handoff_id"} | {
    *("account_id", "user_id", "grant_id", "token_id", "scan_run_id", "new_project_id", "account_name")
}
_CREDENTIALS: Final = {"token", "platform_token", "scanner_secret", "email_secret", "storefront_secret"}


def the_collection() -> dict[str, Any]:
    collection: dict[str, Any] = json.loads(COLLECTION.read_text())
    return collection


def items(collection: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for folder in collection["item"]:
        yield from folder["item"]


def script(item: Mapping[str, Any], listen: str) -> str:
    return "\n".join(line for event in item["event"] if event["listen"] == listen for line in event["script"]["exec"])


class Runner:
    """Sends a collection's requests like Postman, and emulates the statements of its scripts."""

    def __init__(self, collection: Mapping[str, Any], values: Mapping[str, str]) -> None:
        self.values = {**{each["key"]: each["value"] for each in collection["variable"]}, **values}
        self.statuses: dict[str, int] = {}

    def run(self, item: Mapping[str, Any]) -> requests.Response:
        """Send one request, record its status and set the variables of its test script."""
        asked = item["request"]
        body = self.filled(asked["body"]["raw"]).encode() if "body" in asked else None
        if "storefront_signature" in script(item, "prerequest"):
            signed = hmac.digest(self.values["storefront_secret"].encode(), body or b"", hashlib.sha256)
            self.values["storefront_signature"] = base64.b64encode(signed).decode()
        headers = {each["key"]: self.filled(each["value"]) for each in asked["header"] if not each.get("disabled")}
        url = self.filled(asked["url"]["raw"])
        answer = requests.request(
            asked["method"], url, data=body, headers=headers | self.credential(asked["auth"]), timeout=60
        )
        self.statuses[item["name"]] = answer.status_code
        for name, as_json, member in _SET.findall(script(item, "test")):
            # A script sets an empty value if the response has none.
            value = answer.json() if answer.status_code < 300 else {}
            for step in member.split("?."):
                value = value.get(step) or {}
            self.values[name] = json.dumps(value or "") if as_json else str(value or "")
        return answer

    def filled(self, text: str) -> str:
        """Replace variables by values; a variable without a value is an error."""

        def value(found: re.Match[str]) -> str:
            given = str(uuid.uuid4()) if found[1] == "$guid" else self.values[found[1]]
            assert given, found[1]
            return given

        return _NAMED.sub(value, text)

    def credential(self, auth: Mapping[str, Any]) -> dict[str, str]:
        """Return the header that a request authenticates with."""
        fields = {each["key"]: self.filled(each["value"]) for each in auth.get(auth["type"], ())}
        if auth["type"] == "bearer":
            return {"Authorization": f"Bearer {fields['token']}"}
        return {fields["key"]: fields["value"]} if auth["type"] == "apikey" else {}


#: Operations for browsers, and for administrators of the console.
LEFT_OUT = {"readPage", "readPageFile", "listConsoleSessions", "revokeConsoleSession"}


def test_the_collection_contains_every_operation() -> None:
    described = postman_collection.described()
    operations = {
        (method.upper(), path.replace("{", "{{").replace("}", "}}"))
        for path, item in described["paths"].items()
        for method, operation in item.items()
        if operation["operationId"] not in LEFT_OUT
    }
    asked = {
        (item["request"]["method"], item["request"]["url"]["raw"].removeprefix("{{base_url}}").replace("{{new_", "{{"))
        for item in items(the_collection())
    }
    assert asked == operations
    assert {tag["name"]: tag["description"] for tag in described["tags"]}.items() >= {
        (folder["name"], folder["description"]) for folder in the_collection()["item"]
    }


def test_the_collection_defines_each_variable_and_contains_no_secret() -> None:
    collection = the_collection()
    values = {each["key"]: each["value"] for each in collection["variable"]}
    named = {name for name in _NAMED.findall(json.dumps(collection["item"])) if not name.startswith("$")}
    # A script computes the signature from the secret.
    assert named - {"storefront_signature"} == values.keys() - {"storefront_secret"}
    assert [name for name in _CREDENTIALS | _SET_BY_RUN if values[name]] == []
    assert json.loads(postman_collection.document()) == collection, "run: make docs"


def test_the_collection_does_not_depend_on_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYMENT_MODE", "no such mode")
    monkeypatch.setenv("SCANNER_SHARED_SECRET_FILE", "/nowhere")
    assert postman_collection.document() == COLLECTION.read_text()


def test_every_post_with_an_idempotency_key_has_a_new_one() -> None:
    without = [
        item["name"]
        for item in items(the_collection())
        if item["request"]["method"] == "POST" and "{{$guid}}" not in [each["value"] for each in item["request"]["header"]]
    ]
    assert len(without) == 3
    assert all("storefront_signature" in json.dumps(item) for item in items(the_collection()) if item["name"] in without)


def test_the_collection_runs_from_top_to_bottom(database: str, tmp_path: Path) -> None:
    api = DescribedApi(tmp_path, {})
    customer = api.customer
    accounts.rename(customer.account_id, NAME_TO_ESCAPE, utc_now(), "test")
    projects.set_ticket_grouping(customer.project_id, None, TicketGrouping.RULE, utc_now(), "test")
    shop_id = make_project(customer, "snow.shops.example")
    present = accounts.get_account(customer.account_id), *map(projects.get_project, (customer.project_id, shop_id))
    with api.served() as url:
        secrets = {name: next(iter(held.values())) for name, held in api.credentials.items()}
        collection = the_collection()
        runner = Runner(
            collection,
            {
                "base_url": url,
                "token": secrets["apiToken"],
                "platform_token": secrets["platformToken"],
                "scanner_secret": secrets["scannerSecret"],
                "email_secret": secrets["emailSecret"],
                "storefront_secret": STOREFRONT_SECRET,
                "project_id": str(customer.project_id),
            },
        )
        for item in items(collection):
            response = runner.run(item)
            [expected] = _EXPECTED.findall(script(item, "test"))
            assert str(response.status_code) in expected.split(", "), (item["name"], response.text)
    assert len(runner.statuses) == len(list(items(collection))), "names are unique"
    # Only a delivered export has a receipt, only a failed one can be retried, and only a group can be split. The example's
    # finding and compliance request do not exist.
    assert [name for name, status in runner.statuses.items() if status >= 300] == [
        "Get the delivery receipt of an export",
        "Retry a failed or blocked export",
        "Split a group into one export per finding",
        "Read a finding with its history",
        "Read a compliance request",
    ]
    assert [name for name in _SET_BY_RUN if not runner.values[name]] == []
    # It changes only what it creates.
    assert present == (accounts.get_account(customer.account_id), *map(projects.get_project, (customer.project_id, shop_id)))
