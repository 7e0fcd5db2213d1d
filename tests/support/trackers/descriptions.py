"""Validates requests to trackers against their official descriptions: OpenAPI 3.0, or Swagger 2.0."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from openapi_schema_validator import OAS30Validator
from referencing import Registry
from referencing.jsonschema import DRAFT4

from schemas.trackers.exchange import TrackerRequest
from tests.support.corpora import tracker_file

_URI: Final = "urn:description"


class TrackerDescription:
    """A tracker's official API description, against which requests are validated."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._described = described
        self._registry: Registry[Any] = Registry().with_resource(_URI, DRAFT4.create_resource(described))

    def complaints(self, request: TrackerRequest, api_base: str) -> list[str]:
        """Return the errors of a request, or ["not described"]. The described paths are relative to the URL `api_base`."""
        assert request.url.startswith(api_base), (request.url, api_base)
        parts = urlsplit(request.url.removeprefix(api_base))
        found = self._operation(request.method.lower(), parts.path)
        if found is None:
            return ["not described"]
        operation, parameters, in_path = found
        in_query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        return [
            *self._of_parameters(parameters, in_path, "path"),
            *self._of_parameters(parameters, dict(in_query), "query"),
            *([] if len(dict(in_query)) == len(in_query) else ["a parameter of the query is repeated"]),
            *self._of_body(request, operation, parameters),
        ]

    def _operation(self, method: str, path: str) -> tuple[Any, list[Any], dict[str, str]] | None:
        """Return the operation, its parameters and the values in the path. Templates with few variables are tried first."""
        for template in sorted(self._described["paths"], key=lambda each: each.count("{")):
            match = re.fullmatch(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(template)), path)
            item = self._described["paths"][template]
            if match and method in item:
                listed = [*item.get("parameters", ()), *item[method].get("parameters", ())]
                values = {name: unquote(value) for name, value in match.groupdict().items()}
                return item[method], [self._resolved(each) for each in listed], values
        return None

    def _of_parameters(self, parameters: list[Any], values: Mapping[str, str], place: str) -> Iterator[str]:
        declared = {each["name"]: each for each in parameters if each["in"] == place}
        yield from (f"{place}: {name} is unknown" for name in values.keys() - declared.keys())
        for name, parameter in declared.items():
            if name in values:
                # In Swagger 2.0, the parameter itself has the members of its schema.
                kept = {"type", "enum", "items", "format", "minimum", "maximum"}
                schema = parameter.get("schema") or {key: parameter[key] for key in kept & parameter.keys()}
                yield from (f"{place}/{name}: {each}" for each in self._of_value(schema, _read(values[name], schema)))
            elif parameter.get("required"):
                yield f"{place}: {name} is missing"

    def _of_body(self, request: TrackerRequest, operation: Any, parameters: list[Any]) -> Iterator[str]:
        schema = self._body_schema(operation, parameters)
        if not request.body:
            yield from ["the body is missing"] if schema is not None and request.method == "POST" else []
        elif schema is None:
            yield "no body is described"
        elif {name.lower(): value for name, value in request.headers.items()}.get("content-type") != "application/json":
            yield "Content-Type is not application/json"
        else:
            body = json.loads(request.body)
            known = self._resolved(schema).get("properties")
            yield from (f"body: {name} is unknown" for name in body if known is not None and name not in known)
            yield from (f"body{each}" for each in self._of_value(schema, body))

    def _body_schema(self, operation: Any, parameters: list[Any]) -> Any:
        if "requestBody" in operation:
            return self._resolved(operation["requestBody"])["content"]["application/json"]["schema"]
        return next((each["schema"] for each in parameters if each["in"] == "body"), None)

    def _of_value(self, schema: Any, value: Any) -> list[str]:
        # Pointers in the description are relative to its root.
        validator = OAS30Validator(_absolute(schema), registry=self._registry)
        return [f"/{'/'.join(map(str, each.absolute_path))}: {each.message}" for each in validator.iter_errors(value)]

    def _resolved(self, described: Any) -> Any:
        while "$ref" in described:
            found: Any = self._described
            for part in described["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            described = found
        return described


def _absolute(schema: Any) -> Any:
    """Return the schema with every pointer made absolute."""
    if isinstance(schema, dict):
        pointer = schema.get("$ref")
        if isinstance(pointer, str) and pointer.startswith("#"):
            return {"$ref": _URI + pointer}
        return {name: _absolute(value) for name, value in schema.items()}
    return [_absolute(each) for each in schema] if isinstance(schema, list) else schema


def _read(text: str, schema: Any) -> Any:
    """Convert a parameter's text to the type that its schema declares."""
    match schema.get("type"):
        case "integer" if text.lstrip("-").isdecimal():
            return int(text)
        case "boolean" if text in {"true", "false"}:
            return text == "true"
        case "array":
            return text.split(",")
        case _:
            return text


@cache
def description_of(name: str) -> TrackerDescription:
    """Return the description in the corpus' file `name`. Skips the test if the file is absent."""
    return TrackerDescription(json.loads(tracker_file(name).read_bytes()))
