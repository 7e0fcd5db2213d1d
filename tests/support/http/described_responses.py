"""Compares responses with `/openapi.json`: status, media type, headers and every member of the body.

`Call.send` checks every response with `require_described`, so that the document must describe each response of the tests.
"""

from functools import lru_cache
from typing import Any, Final

from falcon.testing import Result, TestClient
from jsonschema_rs import Draft202012Validator

from service.openapi.document import document
from service.openapi.error_responses import HEADER_NAMES
from service.openapi.resource import OpenApiResource

#: RiskRelay's own headers that only some responses have.
_HEADERS: Final = frozenset(HEADER_NAMES.values())
#: Statuses that every route may have without a description: 405 for a method that is not allowed.
_OF_ANY_ROUTE: Final = frozenset({405})


class OpenApiDescription:
    """An OpenAPI document, with which responses are compared."""

    def __init__(self, reported: dict[str, Any]) -> None:
        self.reported = reported
        self._validators: dict[int, Draft202012Validator] = {}

    def complaints(self, method: str, path: str, answer: Result) -> list[str]:
        """Return every part of a route's response that the document does not describe."""
        operation = self.reported["paths"][path].get("get" if method == "HEAD" else method.lower())
        if operation is None:
            return [] if answer.status_code in _OF_ANY_ROUTE or method == "OPTIONS" else [f"{method} is not described"]
        response = self._resolved(operation["responses"].get(str(answer.status_code)))
        if response is None:
            return [f"status {answer.status_code} is not described"]
        return [*self._of_headers(response, answer), *self._of_body(response, answer, is_head=method == "HEAD")]

    def _of_headers(self, response: Any, answer: Result) -> list[str]:
        reported = response.get("headers", {})
        found = [f"{name} is not described" for name in _HEADERS - {*reported} if answer.headers.get(name) is not None]
        for name, reference in reported.items():
            header, value = self._resolved(reference), answer.headers.get(name)
            if value is None:
                found += [f"{name} is missing"] if header["required"] else []
                continue
            read = int(value) if header["schema"]["type"] == "integer" and value.isdecimal() else value
            if not self._validator(header["schema"]).is_valid(read):
                found.append(f"{name} is {value!r}")
        return found

    def _of_body(self, response: Any, answer: Result, *, is_head: bool) -> list[str]:
        content = response.get("content")
        if is_head or content is None:
            return [f"a body of {len(answer.content)} bytes"] if answer.content else []
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        if media_type not in content:
            return [f"the media type {media_type} is not described"]
        if not media_type.endswith("json"):
            return []
        validator = self._validator(content[media_type]["schema"])
        found = [f"{'/'.join(map(str, each.instance_path))}: {each.message}" for each in validator.iter_errors(answer.json)]
        # The examples of a status list its error codes.
        codes = content[media_type].get("examples")
        if codes and not found and _code(answer.json) not in codes:
            found.append(f"the code {_code(answer.json)} is not described")
        return found

    def _validator(self, schema: dict[str, Any]) -> Draft202012Validator:
        # Creating a validator takes longer than a request. The key is the identity of the schema: the document does not
        # change, and contains the schemas that responses share, such as headers and errors, once.
        if id(schema) not in self._validators:
            whole = {**schema, "components": {"schemas": self.reported["components"]["schemas"]}}
            self._validators[id(schema)] = Draft202012Validator(whole, validate_formats=True)
        return self._validators[id(schema)]

    def _resolved(self, reported: Any) -> Any:
        while reported is not None and "$ref" in reported:
            found = self.reported
            for part in reported["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            reported = found
        return reported


def _code(body: Any) -> str:
    """Return the code of an error in RiskRelay's form or in that of RFC 9457."""
    return str(body.get("error", body)["code"])


def require_described(client: TestClient, method: str, path: str, answer: Result) -> None:
    """Fail if the application's OpenAPI document does not describe this response. Unknown paths are not checked."""
    found = client.app._router.find(path)  # finds the route's template, such as /api/users/{user_id}
    description = client.app._router.find(OpenApiResource.path)
    if found is None or description is None:
        return
    resource, template = description[0], str(found[3])
    assert isinstance(resource, OpenApiResource)
    assert _described(resource).complaints(method, template, answer) == [], (method, template, answer.status_code)


def _described(description: OpenApiResource) -> OpenApiDescription:
    return _of_paths(_Key(description))


class _Key:
    """A cache key: resources with the same paths have the same document. Generating it takes longer than most tests."""

    def __init__(self, description: OpenApiResource) -> None:
        self.resources = description.resources
        self._paths = tuple(resource.path for resource in self.resources)

    def __hash__(self) -> int:
        return hash(self._paths)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._paths == other._paths


@lru_cache
def _of_paths(key: _Key) -> OpenApiDescription:
    return OpenApiDescription(document(key.resources, "https://risk.example.com"))
