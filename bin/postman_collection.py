"""The API as a Postman collection, made from its description: `examples/riskrelay.postman_collection.json`.

Every operation is in it, in an order in which a collection can be run from top to bottom: what one answer names, the next
request asks for. Credentials are variables without a value; nothing of an installation is read.
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
from service.openapi.exports import PREPARED
from service.openapi.operations import RECOVERY_ID, TARGET_ID
from service.openapi.targets import TARGET
from service.operations.wiring import build_operations

_SCHEMA: Final = "https://schema.getpostman.com/json/collection/v2.1.0/collection.json"
_BASE: Final = "{{base_url}}"
_ABOUT: Final = """\
Every operation of the API, made from its OpenAPI description. Give the variables a value first: `token` and \
`platform_token` (`bin/riskrelay token create`), the shared secrets, `project_id`, and as `target_url` a receiver that this \
installation may dial.

Run from top to bottom it makes a target, prepares an export and approves it for that target; each request expects what the \
API says it answers. Scanner results, Email, Uploads and Compliance are there where `DEPLOYMENT_MODE` has them switched on, \
and answer 404 elsewhere.
"""

#: What a run needs, and what its own answers fill in.
_VARIABLES: Final[Mapping[str, str]] = {
    "base_url": "http://127.0.0.1:8000",
    "token": "",
    "platform_token": "",
    "scanner_secret": "",
    "email_secret": "",
    "storefront_secret": "",
    "project_id": "1",
    "target_url": str(TARGET["base_url"]),
    "target_id": "",
    "export_id": "",
    "ticket_digest": "",
    "recovery_id": "",
}

#: Every request, in the order of a run: its operation, and which of the examples it sends.
_STEPS: Final = (
    ("readHealth", ""),
    ("readReadiness", ""),
    ("readMetrics", ""),
    ("readDescription", ""),
    ("createTicketExportTarget", "A target"),
    ("listTicketExportTargets", ""),
    ("readTicketExportTarget", ""),
    ("validateTicketExportTarget", "Nothing"),
    ("pingTicketExportTarget", "Nothing"),
    ("pauseTicketExportTarget", "Nothing"),
    ("disableTicketExportTarget", "Nothing"),
    # What is approved below needs it.
    ("resumeTicketExportTarget", "Nothing"),
    ("prepareTicketExport", "Everything"),
    ("listTicketExports", ""),
    ("approveTicketExport", "With the digest that was seen"),
    ("readTicketExport", ""),
    ("listTicketExportAttempts", ""),
    ("retryTicketExport", "Nothing"),
    # Only what is not approved can be put aside.
    ("prepareTicketExport", "The least"),
    ("dismissTicketExport", "Nothing"),
    ("beginTicketExportRecovery", "The last day"),
    ("listTicketExportRecoveries", ""),
    ("readTicketExportRecovery", ""),
    ("cancelTicketExportRecovery", "Nothing"),
    ("postScannerResults", "One issue"),
    ("postScannerResults", "The least"),
    ("postEmail", "Plain"),
    ("postEmail", "Postmark"),
    ("uploadEvidenceCapture", "Everything"),
    ("uploadCmsDiagnostics", "Everything"),
    ("uploadStorefrontDiagnostics", "Everything"),
    ("postComplianceWebhook", "customers/data_request"),
    ("postComplianceWebhook", "customers/redact"),
    ("postComplianceWebhook", "shop/redact"),
)
#: For browsers, and for whoever looks after the console.
LEFT_OUT: Final = frozenset({"readPage", "readPageFile", "listConsoleSessions", "revokeConsoleSession"})

#: Which variables an answer fills in, by the member that it is.
_KEPT: Final[Mapping[str, Mapping[str, str]]] = {
    "createTicketExportTarget": {"target_id": "id"},
    "prepareTicketExport": {"export_id": "id", "ticket_digest": "ticket_digest"},
    "beginTicketExportRecovery": {"recovery_id": "id"},
}
#: Statuses beside the good ones that a run meets: what has not failed is not retried, and a worker may have ended
#: a recovery before it is cancelled.
_ALSO_MET: Final[Mapping[str, tuple[int, ...]]] = {"retryTicketExport": (409,), "cancelTicketExportRecovery": (409,)}

#: What stands for a credential, by the security scheme.
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

#: Values of examples that stand for something of the installation. A number stands outside of quotes.
_STANDS_FOR: Final[Mapping[Any, str]] = {
    TARGET_ID: "{{target_id}}",
    RECOVERY_ID: "{{recovery_id}}",
    PREPARED["ticket_digest"]: "{{ticket_digest}}",
    TARGET["base_url"]: "{{target_url}}",
}
_NUMBERS: Final = ("project_id",)


def document() -> str:
    """Return the collection as the file has it."""
    return json.dumps(collection(described()), indent=2, ensure_ascii=False) + "\n"


def described() -> dict[str, Any]:
    """Return the description of every route, of an installation that is reached at `{{base_url}}`."""
    settings = replace(default_settings(Path("/")), deployment_mode=DeploymentMode.CLOUD, public_base_url=_BASE)
    wake_ups = WakeUpQueue(connect(settings.redis_url))
    return description(api_resources(settings, wake_ups, build_operations(settings, wake_ups)), _BASE)


def collection(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description as a Postman collection, version 2.1; a folder a tag."""
    about = {tag["name"]: tag["description"] for tag in told["tags"]}
    folders: dict[str, dict[str, Any]] = {}
    for step in _STEPS:
        operation = _Operation(told, *step)
        tag = operation.its["tags"][0]
        folder = folders.setdefault(tag, {"name": tag, "description": about[tag], "item": []})
        folder["item"].append(operation.item())
    return {
        "info": {"name": told["info"]["title"], "description": _ABOUT, "schema": _SCHEMA},
        "item": list(folders.values()),
        "variable": [{"key": name, "value": value, "type": "string"} for name, value in _VARIABLES.items()],
    }


class _Operation:
    """One operation of a description, with one of its examples."""

    def __init__(self, told: Mapping[str, Any], operation_id: str, example: str) -> None:
        self._told = told
        self._example = example
        self.method, self.path, self.its = next(
            (method.upper(), path, its)
            for path, item in told["paths"].items()
            for method, its in item.items()
            if its["operationId"] == operation_id
        )
        self._parameters = [_resolved(told, each) for each in self.its["parameters"]]

    def item(self) -> dict[str, Any]:
        """Return the request, with what its answer is to be."""
        is_one_of_many = len([each for each, _ in _STEPS if each == self.its["operationId"]]) > 1
        request = {
            "method": self.method,
            "header": list(self._headers()),
            "url": self._url(),
            "auth": self._auth(),
            "description": self.its["description"],
        }
        body = self._body()
        if body is not None:
            request["body"] = {"mode": "raw", "raw": body, "options": {"raw": {"language": "json"}}}
        name = f"{self.its['summary']}: {self._example}" if is_one_of_many else self.its["summary"]
        return {"name": name, "event": list(self._events()), "request": request, "response": []}

    def _headers(self) -> Iterator[dict[str, Any]]:
        if "requestBody" in self.its:
            yield {"key": "Content-Type", "value": "application/json"}
        for each in self._of("header"):
            if each["name"] == "Idempotency-Key":
                yield {"key": each["name"], "value": "{{$guid}}", "description": each["description"]}
            elif each["required"]:
                yield {"key": each["name"], "value": self._value(each), "description": each["description"]}
            else:
                yield {"key": each["name"], "value": "", "description": each["description"], "disabled": True}

    def _value(self, parameter: Mapping[str, Any]) -> str:
        # An example of a webhook is called by its topic.
        is_told = self._example in parameter["schema"].get("enum", ())
        return self._example if is_told else str(parameter["example"])

    def _url(self) -> dict[str, Any]:
        path = self.path.replace("{", "{{").replace("}", "}}")
        asked = [
            {"key": each["name"], "value": _first(each["schema"]), "description": each["description"], "disabled": True}
            for each in self._of("query")
        ]
        return {"raw": f"{_BASE}{path}", "host": [_BASE], "path": path.strip("/").split("/")} | (
            {"query": asked} if asked else {}
        )

    def _auth(self) -> dict[str, Any]:
        if not self.its["security"]:
            return {"type": "noauth"}
        [scheme] = self.its["security"][0]
        if scheme in _BEARERS:
            return {"type": "bearer", "bearer": _pairs({"token": f"{{{{{_BEARERS[scheme]}}}}}"})}
        header = self._told["components"]["securitySchemes"][scheme]["name"]
        return {"type": "apikey", "apikey": _pairs({"key": header, "value": f"{{{{{_SECRETS[scheme]}}}}}", "in": "header"})}

    def _body(self) -> str | None:
        if "requestBody" not in self.its:
            return None
        example = self.its["requestBody"]["content"]["application/json"]["examples"][self._example]["value"]
        written = json.dumps(_with_variables(example), indent=2, ensure_ascii=False)
        return re.sub(rf'"({{{{(?:{"|".join(_NUMBERS)})}}}})"', r"\1", written)

    def _events(self) -> Iterator[dict[str, Any]]:
        if {"storefrontSignature": []} in self.its["security"]:
            yield _script("prerequest", *_SIGN)
        expected = f"pm.expect(pm.response.code).to.be.oneOf({list(self._expected())})"
        lines = [f'pm.test("The answer is as described", () => {expected});']
        kept = _KEPT.get(self.its["operationId"], {})
        if kept:
            lines.append("const told = pm.response.code < 300 ? pm.response.json() : {};")
        lines += [f'pm.collectionVariables.set("{name}", told.{member} || "");' for name, member in kept.items()]
        yield _script("test", *lines)

    def _expected(self) -> Iterator[int]:
        good = [int(status) for status in self.its["responses"] if status.startswith("2")]
        # Of two, one is a dry run's.
        yield good[0]
        yield from _ALSO_MET.get(self.its["operationId"], ())

    def _of(self, place: str) -> Iterator[dict[str, Any]]:
        return (each for each in self._parameters if each["in"] == place)


def _resolved(told: Mapping[str, Any], parameter: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = told["components"]["parameters"][parameter["$ref"].rpartition("/")[2]]
    return {"required": False, **found}


def _first(schema: Mapping[str, Any]) -> str:
    """Return a value to begin with."""
    choice = schema.get("enum") or schema.get("items", {}).get("enum") or [schema.get("default", "")]
    return str(choice[0])


def _with_variables(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: f"{{{{{name}}}}}" if name in _NUMBERS else _with_variables(member) for name, member in value.items()}
    return _STANDS_FOR.get(value, value) if isinstance(value, str) else value


def _pairs(told: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": value, "type": "string"} for name, value in told.items()]


def _script(listen: str, *lines: str) -> dict[str, Any]:
    return {"listen": listen, "script": {"type": "text/javascript", "exec": list(lines)}}
