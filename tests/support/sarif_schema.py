"""A JSON Schema for the SARIF 2.1.0 logs of RiskRelay: the members that it writes, and the standard's rules for them.

Source: sections 3.13 to 3.49 of https://docs.oasis-open.org/sarif/sarif/v2.1.0/. No object allows additional members,
so that a member that the standard does not define at this place is an error.
"""

from typing import Any, Final

_LEVEL: Final = {"enum": ["none", "note", "warning", "error"]}
_PROPERTIES: Final = {
    "type": "object",
    "properties": {"tags": {"type": "array", "uniqueItems": True, "items": {"type": "string"}}},
}


def _closed(required: tuple[str, ...] = (), **members: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": [*required], "properties": members}


def _list_of(items: dict[str, Any], **bounds: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **bounds}


_TEXT: Final = {"type": "string"}
_LINE: Final = {"type": "integer", "minimum": 1}
_MESSAGE: Final = _closed(("text",), text=_TEXT)
_RULE: Final = _closed(
    ("id",),
    id=_TEXT,
    shortDescription=_MESSAGE,
    fullDescription=_MESSAGE,
    defaultConfiguration=_closed(level=_LEVEL),
    help=_MESSAGE,
    properties=_PROPERTIES,
)
_LOCATION: Final = _closed(
    physicalLocation=_closed(
        ("artifactLocation",),
        artifactLocation=_closed(uri={"type": "string", "format": "uri-reference"}),
        region=_closed(startLine=_LINE, startColumn=_LINE, endLine=_LINE, endColumn=_LINE),
    ),
    logicalLocations=_list_of(_closed(fullyQualifiedName=_TEXT, kind=_TEXT), uniqueItems=True),
)
_RESULT: Final = _closed(
    ("message",),
    ruleId=_TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level=_LEVEL,
    message=_MESSAGE,
    locations=_list_of(_LOCATION),
    partialFingerprints={"type": "object", "additionalProperties": _TEXT},
    properties=_PROPERTIES,
)
_RUN: Final = _closed(
    ("tool",),
    tool=_closed(("driver",), driver=_closed(("name",), name=_TEXT, rules=_list_of(_RULE, uniqueItems=True))),
    automationDetails=_closed(id=_TEXT),
    results=_list_of(_RESULT),
    properties=_PROPERTIES,
)
SARIF_LOG: Final = _closed(
    ("version", "runs"), **{"$schema": {"type": "string", "format": "uri"}}, version={"enum": ["2.1.0"]}, runs=_list_of(_RUN)
)
