"""The client has a method for every route, and imports no module of the product."""

import ast
import inspect
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from riskrelay_client import RiskRelay, models
from tests.support.http.scripted_api import Run, Script, ok, run_async, run_blocking
from tools.client_library import files
from tools.postman_collection import described

PACKAGE: Final = Path(__file__).resolve().parents[2] / "clients" / "python" / "riskrelay_client"

#: Routes for providers that send requests to RiskRelay, and for the installation's operator.
WITHOUT_METHOD: Final = {"/api/email/webhook", "/api/storefront-app/webhooks/compliance"}

#: Arguments of methods by parameter name; all other parameters get a text.
ARGUMENTS: Final[dict[str, Any]] = {
    "timeout": 1.0,
    "expected_count": 1,
    "target_ids": ["tgt_1", "tgt_2"],
    "until": datetime(2030, 1, 1, tzinfo=UTC),
    **dict.fromkeys(("account_id", "project_id", "user_id", "grant_id", "token_id", "scan_run_id"), 1),
    **{name: {} for name in ("ticket", "decision", "matching", "rule", "target", "postback", "capture", "diagnostics")},
}
#: A response that every method accepts as a record, a page or a job.
ANSWER: Final[dict[str, Any]] = {"id": "x", "items": [], "next_cursor": None, "ticket_exports": [], "status": "done"}


def methods() -> list[str]:
    with RiskRelay("https://riskrelay.example", "rrt_x") as client:
        resources = {name: value for name, value in vars(client).items() if not name.startswith("_")}
    return [
        f"{resource}.{name}"
        for resource, value in resources.items()
        for name, _ in inspect.getmembers(value, inspect.ismethod)
        if not name.startswith("_")
    ]


METHODS: Final = methods()


def call_everything(run: Run) -> Script:
    """Call every method with the arguments that it requires."""
    script = Script([ok({**ANSWER})])
    for each in METHODS:
        resource, name = each.split(".")

        def call(client: Any, resource: str = resource, name: str = name) -> Any:
            method = getattr(getattr(client, resource), name)
            parameters = inspect.signature(method).parameters.values()
            required = [each for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
            return method(**{each.name: ARGUMENTS.get(each.name, "x") for each in required})

        # The final status of an export is "exported"; that of a job is "done".
        run(Script([ok({**ANSWER, "status": "exported"})]) if each == "exports.wait" else script, call)
    return script


@pytest.mark.parametrize("run", [run_blocking, run_async], ids=["blocking", "async"])
def test_every_route_has_a_method(run: Run) -> None:
    sent = {(request.method, request.url.path) for request in call_everything(run).requests}
    paths = {path: item for path, item in described()["paths"].items() if path.startswith("/api/")}
    missing = [
        f"{method.upper()} {path}"
        for path, item in paths.items()
        for method in item
        if path not in WITHOUT_METHOD and not any(_is_at(path, method, *request) for request in sent)
    ]
    assert missing == []


def _is_at(path: str, method: str, sent_method: str, sent_path: str) -> bool:
    return method.upper() == sent_method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), sent_path) is not None


def test_every_request_that_changes_something_has_a_key() -> None:
    requests = call_everything(run_blocking).requests
    without = [request for request in requests if "Idempotency-Key" not in request.headers]
    assert {request.method for request in without} == {"GET", "DELETE"}
    assert {request.method for request in requests} == {"GET", "DELETE", "POST", "PATCH"}


def test_every_public_method_has_a_docstring() -> None:
    with RiskRelay("https://riskrelay.example", "rrt_x") as client:
        found = [each for each in METHODS if not getattr(getattr(client, each.split(".")[0]), each.split(".")[1]).__doc__]
    assert found == []


def test_the_package_imports_only_httpx_and_the_standard_library() -> None:
    imported = {
        name.partition(".")[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
    }
    assert imported - sys.stdlib_module_names == {"httpx", "riskrelay_client"}


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [name.name for name in names]
        case ast.ImportFrom(module=str(module)):
            return [module]
    return []


def test_models_have_the_fields_of_the_description() -> None:
    """Another test compares the generated text; this test evaluates the annotations."""
    schemas = described()["components"]["schemas"]
    for name in ("Export", "Target", "TicketInput", "NoMembers"):
        model, schema = getattr(models, name), schemas[name]
        assert {*model.__annotations__} == {*schema.get("properties", ())}
        assert model.__required_keys__ == {*schema.get("required", ())}


def test_the_blocking_client_contains_no_asynchronous_code() -> None:
    blocking = {path.name: text for path, text in files().items() if path.parent.name == "_sync"}
    assert {*blocking} == {path.name for path in (PACKAGE / "_async").glob("[a-z]*.py")}
    words = re.compile(r"\b(?:async|await|asyncio|Async\w+|Awaitable|__a\w+__|_async)\b")
    assert {name: words.findall(text) for name, text in blocking.items() if words.search(text)} == {}
