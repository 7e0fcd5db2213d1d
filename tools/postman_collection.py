"""Generates the Postman collection of the API, `examples/riskrelay.postman_collection.json`, from its OpenAPI description.

It contains every operation, ordered so that the collection can be run from top to bottom: requests use ids from earlier
responses. Credentials are variables without a value; nothing of an installation is read.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from runtime.wake_up_queue import WakeUpQueue, connect
from schemas.settings.definitions import DeploymentMode, default_settings
from service.app import api_resources
from service.openapi.document import document as description
from service.openapi.examples import example_id
from service.openapi.operations import EXPORT_ID, TARGET_ID
from service.openapi.subjects.exports import DIGEST
from service.openapi.subjects.targets import TARGET_URL
from service.operations.wiring import build_operations

_SCHEMA: Final = "https://schema.getpostman.com/json/collection/v2.1.0/collection.json"
_BASE: Final = "{{base_url}}"
_ABOUT: Final = """\
Every operation of the API, generated from its OpenAPI description. First set the variables `base_url`, `token` (created \
with every `--ability` of kind `api`, for a user of the operator's account), `platform_token` (created with \
`--kind platform`), the senders' secrets, `project_id`, and `target_url`: the URL of a receiver that the target policy \
allows. Requests whose ability the token lacks respond with 403.

A run from top to bottom adds records and changes no others: it renames the account to its present name, changes the \
project that it created, and erases the data of the shop `shop_domain`, which only its own upload names. It prepares an \
export and approves it for a target that it created, so `target_url` receives a ticket. These records remain: a target, a \
project, an account, a scan run, tickets, findings, emails and uploads. Prefer a test installation. A user, a grant, a \
token and an approval rule are removed again. Each request tests the status of the response. Scanner results, Email, \
Uploads and Compliance require a `DEPLOYMENT_MODE` that enables them; otherwise they return 404.
"""

#: A compliance webhook erases the data of its shop, so no project and no example of the documentation has this shop.
SHOP_DOMAIN: Final = "postman.shops.example"
_EXAMPLE_SHOP: Final = "snow.shops.example"

#: The inputs of a run, and the variables that its responses set.
_VARIABLES: Final[Mapping[str, str]] = {
    "base_url": "http://127.0.0.1:8000",
    "token": "",
    "platform_token": "",
    "scanner_secret": "",
    "email_secret": "",
    "storefront_secret": "",
    "project_id": "1",
    "shop_domain": SHOP_DOMAIN,
    "target_url": TARGET_URL,
    "target_id": "",
    "export_id": "",
    "ticket_digest": "",
    "recovery_id": "",
    "job_id": "",
    "rule_id": "",
    "handoff_id": "",
    "new_project_id": "",
    "account_name": "",
    "account_id": "",
    "user_id": "",
    "grant_id": "",
    "token_id": "",
    "scan_run_id": "",
    "compliance_id": example_id("cpl"),
    # An example; the list of findings returns the ids of the installation.
    "finding_id": example_id("fnd"),
}

#: Every request, in the order of a run: its operation, and the name of the example that it sends.
_STEPS: Final = (
    ("readHealth", ""),
    ("readReadiness", ""),
    ("readMetrics", ""),
    ("readDescription", ""),
    ("listProviders", ""),
    # Only a target that no export waits for can be removed.
    ("createTicketExportTarget", "With a rate limit"),
    ("editTicketExportTarget", "No rate limit"),
    ("removeTicketExportTarget", ""),
    ("createTicketExportTarget", "A target"),
    ("listTicketExportTargets", ""),
    ("readTicketExportTarget", ""),
    ("validateTicketExportTarget", "Empty body"),
    ("pingTicketExportTarget", "Empty body"),
    ("pauseTicketExportTarget", "Empty body"),
    ("disableTicketExportTarget", "Empty body"),
    # The approval below needs an active target.
    ("resumeTicketExportTarget", "Empty body"),
    ("prepareTicketExport", "Complete"),
    ("listTicketExports", ""),
    ("approveTicketExport", "With the reviewed digest"),
    ("readTicketExport", ""),
    ("listTicketExportAttempts", ""),
    ("listTicketExportEvents", ""),
    ("readDeliveryReceipt", ""),
    ("retryTicketExport", "Empty body"),
    # Only a prepared export can be dismissed.
    ("prepareTicketExport", "Minimal"),
    ("editTicketExport", "A title"),
    ("snoozeTicketExport", "Until it is seen again"),
    ("splitTicketExport", "Empty body"),
    ("dismissTicketExport", "A reason and a note"),
    ("restoreTicketExport", "Empty body"),
    ("dismissTicketExport", "Empty body"),
    ("decideTicketExports", "Restore"),
    ("decideTicketExports", "Old ones of a filter"),
    ("listBulkJobs", ""),
    ("readBulkJob", ""),
    ("cancelBulkJob", "Empty body"),
    ("listFindings", ""),
    ("readFinding", ""),
    ("createProject", "A website"),
    ("listProjects", ""),
    ("readProject", ""),
    ("changeProject", "One ticket for each finding"),
    ("readOwnAccount", ""),
    ("renameOwnAccount", "Rename"),
    ("createAccount", "Create"),
    ("listAccounts", ""),
    ("readAccount", ""),
    ("changeAccount", "Rename"),
    ("createUser", "Triager"),
    ("listUsers", ""),
    ("readUser", ""),
    ("changeUser", "Change the role"),
    ("createGrant", "Uploads to a project"),
    ("listGrants", ""),
    ("readGrant", ""),
    ("createToken", "For a client"),
    ("listTokens", ""),
    ("readToken", ""),
    ("revokeToken", ""),
    ("removeGrant", ""),
    ("removeUser", ""),
    ("createScanRun", "The next number"),
    ("listScanRuns", ""),
    ("readScanRun", ""),
    ("listAuditEntries", ""),
    ("listComplianceRequests", ""),
    ("readComplianceRequest", ""),
    ("beginTicketExportRecovery", "The last day"),
    ("listTicketExportRecoveries", ""),
    ("readTicketExportRecovery", ""),
    ("cancelTicketExportRecovery", "Empty body"),
    ("createApprovalRule", "Label"),
    ("listApprovalRules", ""),
    ("readApprovalRule", ""),
    ("changeApprovalRule", "Turn off"),
    ("testApprovalRule", "Empty body"),
    ("deleteApprovalRule", ""),
    ("postScannerResults", "One issue"),
    ("postScannerResults", "Minimal"),
    ("postEmail", "Plain"),
    ("postEmail", "Postmark"),
    ("browser-extension.evidence-captures.store", "Complete"),
    ("readHandoff", ""),
    ("cms-plugins.cms-commerce.diagnostics.store", "Complete"),
    ("storefront-app.diagnostics.store", "Complete"),
    ("storefront-app.webhooks.compliance", "customers/data_request"),
    ("storefront-app.webhooks.compliance", "customers/redact"),
    ("storefront-app.webhooks.compliance", "shop/redact"),
)

#: The variables that a response sets, with the field of the value.
_SET_VARIABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "createTicketExportTarget": {"target_id": "id"},
    "prepareTicketExport": {"export_id": "id", "ticket_digest": "ticket_digest"},
    "beginTicketExportRecovery": {"recovery_id": "id"},
    "createApprovalRule": {"rule_id": "id"},
    "decideTicketExports": {"job_id": "id"},
    "createProject": {"new_project_id": "id"},
    "createAccount": {"account_id": "id"},
    "createUser": {"user_id": "id"},
    "createGrant": {"grant_id": "id"},
    "createToken": {"token_id": "id"},
    "createScanRun": {"scan_run_id": "id"},
    # The handoff is absent if the mode disables uploads.
    "browser-extension.evidence-captures.store": {"handoff_id": "handoff?.id"},
}
#: The variables that a response sets to a text that it contains, as JSON.
_SET_TEXTS: Final[Mapping[str, Mapping[str, str]]] = {"readOwnAccount": {"account_name": "name"}}
#: Operations that change a project or add to it: they use the project that the run created.
_OF_NEW_PROJECT: Final = frozenset({"changeProject", "createGrant", "createScanRun"})
#: Members of bodies that are sent with their present values, so that nothing changes.
_UNCHANGED: Final[Mapping[str, Mapping[str, str]]] = {"renameOwnAccount": {"name": "{{account_name}}"}}
#: Other statuses that are expected in a run: only failed exports can be retried, and only groups can be split; a worker
#: may finish a recovery before it is cancelled. A bulk decision with a filter gets 202; the finding and the compliance
#: request of the examples do not exist.
_EXPECTED_ERRORS: Final[Mapping[str, tuple[int, ...]]] = {
    **dict.fromkeys(("retryTicketExport", "splitTicketExport", "cancelTicketExportRecovery", "readDeliveryReceipt"), (409,)),
    "decideTicketExports": (202,),
    "readFinding": (404,),
    "readComplianceRequest": (404,),
}

#: The variable of each security scheme.
_BEARERS: Final[Mapping[str, str]] = {"apiToken": "token", "platformToken": "platform_token"}
_SECRETS: Final[Mapping[str, str]] = {
    "scannerSecret": "scanner_secret",
    "emailSecret": "email_secret",
    "storefrontSignature": "storefront_signature",
}
_SIGN: Final = (
    'const crypto = require("crypto-js");',
    "const body = pm.variables.replaceIn(pm.request.body.raw);",
    'const signed = crypto.HmacSHA256(body, pm.variables.get("storefront_secret"));',
    'pm.variables.set("storefront_signature", crypto.enc.Base64.stringify(signed));',
)

#: Values of examples that are replaced by variables. A number has no quotes.
_VARIABLE_OF: Final[Mapping[Any, str]] = {
    EXPORT_ID: "{{export_id}}",
    TARGET_ID: "{{target_id}}",
    example_id("rec"): "{{recovery_id}}",
    example_id("blk"): "{{job_id}}",
    example_id("rul"): "{{rule_id}}",
    example_id("fnd"): "{{finding_id}}",
    example_id("cpl"): "{{compliance_id}}",
    DIGEST: "{{ticket_digest}}",
    TARGET_URL: "{{target_url}}",
    _EXAMPLE_SHOP: "{{shop_domain}}",
}
_NUMBERS: Final = ("project_id", "user_id")
#: Variables whose value is JSON: they have no quotes around them.
_JSON_VARIABLES: Final = (*_NUMBERS, "account_name")


def document() -> str:
    """Return the content of the file."""
    return json.dumps(collection(described()), indent=2, ensure_ascii=False) + "\n"


def described() -> dict[str, Any]:
    """Return the OpenAPI description of every route, with the base URL `{{base_url}}`."""
    settings = replace(default_settings(Path("/")), deployment_mode=DeploymentMode.CLOUD, public_base_url=_BASE)
    wake_ups = WakeUpQueue(connect(settings.redis_url))
    return description(api_resources(settings, wake_ups, build_operations(settings, wake_ups)), _BASE)


def collection(openapi: Mapping[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI description as a Postman collection, version 2.1, with one folder per tag."""
    about = {tag["name"]: tag["description"] for tag in openapi["tags"]}
    folders: dict[str, dict[str, Any]] = {}
    for step in _STEPS:
        operation = _Operation(openapi, *step)
        tag = operation.definition["tags"][0]
        folder = folders.setdefault(tag, {"name": tag, "description": about[tag], "item": []})
        folder["item"].append(operation.item())
    return {
        "info": {"name": openapi["info"]["title"], "description": _ABOUT, "schema": _SCHEMA},
        "item": list(folders.values()),
        "variable": [{"key": name, "value": value, "type": "string"} for name, value in _VARIABLES.items()],
    }


class _Operation:
    """One operation of an OpenAPI description, with one of its examples."""

    def __init__(self, openapi: Mapping[str, Any], operation_id: str, example: str) -> None:
        self._openapi = openapi
        self._example = example
        self.method, self.path, self.definition = next(
            (method.upper(), path, definition)
            for path, item in openapi["paths"].items()
            for method, definition in item.items()
            if definition["operationId"] == operation_id
        )
        self._parameters = [_resolved(openapi, each) for each in self.definition["parameters"]]

    def item(self) -> dict[str, Any]:
        """Return the request, with a test of the response's status."""
        has_several_examples = len([each for each, _ in _STEPS if each == self.definition["operationId"]]) > 1
        request = {
            "method": self.method,
            "header": list(self._headers()),
            "url": self._url(),
            "auth": self._auth(),
            "description": self.definition["description"],
        }
        body = self._body()
        if body is not None:
            request["body"] = {"mode": "raw", "raw": body, "options": {"raw": {"language": "json"}}}
        name = f"{self.definition['summary']}: {self._example}" if has_several_examples else self.definition["summary"]
        return {"name": name, "event": list(self._events()), "request": request, "response": []}

    def _headers(self) -> Iterator[dict[str, Any]]:
        if "requestBody" in self.definition:
            yield {"key": "Content-Type", "value": "application/json"}
        for each in self._of("header"):
            if each["name"] == "Idempotency-Key":
                yield {"key": each["name"], "value": "{{$guid}}", "description": each["description"]}
            elif each["required"]:
                yield {"key": each["name"], "value": self._value(each), "description": each["description"]}
            else:
                yield {"key": each["name"], "value": "", "description": each["description"], "disabled": True}

    def _value(self, parameter: Mapping[str, Any]) -> str:
        # The examples of a compliance webhook have the names of its topics.
        is_value = self._example in parameter["schema"].get("enum", ())
        example = str(parameter["example"])
        return self._example if is_value else _VARIABLE_OF.get(example, example)

    def _url(self) -> dict[str, Any]:
        path = self._in_project(self.path.replace("{", "{{").replace("}", "}}"))
        query = [
            {"key": each["name"], "value": _first(each["schema"]), "description": each["description"], "disabled": True}
            for each in self._of("query")
        ]
        return {"raw": f"{_BASE}{path}", "host": [_BASE], "path": path.strip("/").split("/")} | (
            {"query": query} if query else {}
        )

    def _auth(self) -> dict[str, Any]:
        if not self.definition["security"]:
            return {"type": "noauth"}
        [scheme] = self.definition["security"][0]
        if scheme in _BEARERS:
            return {"type": "bearer", "bearer": _pairs({"token": f"{{{{{_BEARERS[scheme]}}}}}"})}
        header = self._openapi["components"]["securitySchemes"][scheme]["name"]
        return {"type": "apikey", "apikey": _pairs({"key": header, "value": f"{{{{{_SECRETS[scheme]}}}}}", "in": "header"})}

    def _body(self) -> str | None:
        if "requestBody" not in self.definition:
            return None
        example = self.definition["requestBody"]["content"]["application/json"]["examples"][self._example]["value"]
        body = _with_variables(example) | _UNCHANGED.get(self.definition["operationId"], {})
        written = json.dumps(body, indent=2, ensure_ascii=False)
        return self._in_project(re.sub(rf'"({{{{(?:{"|".join(_JSON_VARIABLES)})}}}})"', r"\1", written))

    def _in_project(self, text: str) -> str:
        """Insert the project that the run created if the operation changes its project."""
        is_new = self.definition["operationId"] in _OF_NEW_PROJECT
        return text.replace("{{project_id}}", "{{new_project_id}}") if is_new else text

    def _events(self) -> Iterator[dict[str, Any]]:
        if {"storefrontSignature": []} in self.definition["security"]:
            yield _script("prerequest", *_SIGN)
        expected = f"pm.expect(pm.response.code).to.be.oneOf({list(self._expected())})"
        lines = [f'pm.test("The status is expected", () => {expected});']
        operation_id = self.definition["operationId"]
        values = {name: f'record.{member} || ""' for name, member in _SET_VARIABLES.get(operation_id, {}).items()}
        texts = {name: f'JSON.stringify(record.{member} || "")' for name, member in _SET_TEXTS.get(operation_id, {}).items()}
        if values or texts:
            lines.append("const record = pm.response.code < 300 ? pm.response.json() : {};")
        lines += [f'pm.collectionVariables.set("{name}", {value});' for name, value in (values | texts).items()]
        yield _script("test", *lines)

    def _expected(self) -> Iterator[int]:
        successes = [int(status) for status in self.definition["responses"] if status.startswith("2")]
        # A second success status is for dry runs.
        yield successes[0]
        yield from _EXPECTED_ERRORS.get(self.definition["operationId"], ())

    def _of(self, place: str) -> Iterator[dict[str, Any]]:
        return (each for each in self._parameters if each["in"] == place)


def _resolved(openapi: Mapping[str, Any], parameter: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = openapi["components"]["parameters"][parameter["$ref"].rpartition("/")[2]]
    return {"required": False, **found}


def _first(schema: Mapping[str, Any]) -> str:
    """Return an initial value."""
    choice = schema.get("enum") or schema.get("items", {}).get("enum") or [schema.get("default", "")]
    return str(choice[0])


def _with_variables(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: f"{{{{{name}}}}}" if name in _NUMBERS else _with_variables(member) for name, member in value.items()}
    return _VARIABLE_OF.get(value, value) if isinstance(value, str) else value


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": value, "type": "string"} for name, value in values.items()]


def _script(listen: str, *lines: str) -> dict[str, Any]:
    return {"listen": listen, "script": {"type": "text/javascript", "exec": list(lines)}}
