"""Normalizes locations on a page, so that two spellings of the same location compare equal.

Scanners give the location of an issue as a CSS selector, an XPath, a URL or plain words. A rebuild of the site renames
generated classes and ids, a visit leaves a class such as `is-active` behind, and scanner versions spell the same selector
differently. `stable_selector` folds the spelling and removes what changes with a build or a visit. Tags, positions
(`:nth-child(2)`, `div[2]`), attributes and handwritten names are structure and are always kept. Text that is neither a
selector nor a path is compared as it is, and so is a location of more than MAX_PARTS parts.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from schemas.intake.page_url import page_key
from schemas.intake.stable_names import REACT_ID, stable_attribute, stable_classes, stable_name

_TAGS: Final = frozenset(
    name
    for names in (
        # document structure
        "html head body title base link meta style script noscript template slot header footer main nav section article",
        "aside hgroup h1 h2 h3 h4 h5 h6 div p hr pre blockquote ol ul menu li dl dt dd figure figcaption address search",
        # text
        "a em strong small s cite q dfn abbr ruby rt rp data time code var samp kbd sub sup i b u mark bdi bdo span br wbr",
        "ins del",
        # pictures, tables, forms and interactive elements
        "picture source img iframe embed object param video audio track map area canvas svg math",
        "table caption colgroup col tbody thead tfoot tr td th",
        "form label input button select datalist optgroup option textarea output progress meter fieldset legend",
        "details summary dialog",
        # obsolete HTML
        "acronym applet big blink center dir font frame frameset marquee nobr noframes strike tt",
        # SVG
        "animate animatemotion animatetransform circle clippath defs desc ellipse feblend fecolormatrix fegaussianblur",
        "feoffset filter foreignobject g image line lineargradient marker mask path pattern polygon polyline",
        "radialgradient rect stop symbol text textpath tspan use view",
    )
    for name in names.split()
)
#: A custom element has a hyphen; scripts report its name in capitals.
_OWN_TAG: Final = re.compile(r"[a-z][a-z0-9]*+-[a-z0-9-]*+|[A-Z][A-Z0-9]*+-[A-Z0-9-]*+")

#: Attributes whose values are names of elements, or classes.
_NAMING: Final = frozenset(
    {"id", "for", "class", "form", "list", "headers", "aria-labelledby", "aria-describedby", "aria-controls", "aria-owns"}
)

# --- syntax of locations

_ESCAPE: Final = r"\\[0-9a-fA-F]{1,6}\s?|\\[^\n]"
_NAME: Final = rf"(?:[\w-]|[^\x00-\x7f]|{_ESCAPE})"
_QUOTED: Final = r"\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+'"
_PART: Final = re.compile(
    rf"(?P<combinator>\s*+[>+~,]\s*+|\s++)|(?P<tag>{_NAME}++|\*)|\.(?P<class>{_NAME}++)|#(?P<id>(?:{_NAME}|{REACT_ID})++)"
    rf"|\[(?P<attribute>(?:[^\]\"']|{_QUOTED})*+)\]"
    rf"|(?P<pseudo>::?[A-Za-z-]++)(?:\((?P<argument>(?:[^()\"']|{_QUOTED}|\([^()]*+\))*+)\))?",
    re.DOTALL,
)
#: The start of an XPath; any other absolute path may be a file path or a JSON pointer.
_XPATH: Final = re.compile(r"//|/html(?![\w-])", re.IGNORECASE)
_STEP: Final = re.compile(
    r"(?P<axis>/{1,2}(?:[a-z-]++::)?@?)(?P<name>\*|\.\.?|(?:text|node)\(\)|(?:svg:)?[A-Za-z][\w-]*+)"
    rf"(?P<predicates>(?:\[(?:[^\[\]\"']|{_QUOTED}|\[[^\[\]]*+\])*+\])*+)",
    re.DOTALL,
)
_PREDICATE: Final = re.compile(rf"\[((?:[^\[\]\"']|{_QUOTED}|\[[^\[\]]*+\])*+)\]", re.DOTALL)
_ATTRIBUTE: Final = re.compile(
    rf"\s*+(?P<at>@?)(?P<name>[\w:-]++)\s*+(?:(?P<operator>[~|^$*]?=)\s*+(?:(?P<quoted>{_QUOTED})|(?P<bare>[^\s\"'\]]++))"
    r"(?:\s*+(?P<flag>[iIsS]))?\s*+)?",
    re.DOTALL,
)
_TEXT_OR_SPACE: Final = re.compile(rf"(?P<quoted>{_QUOTED})|\s*+(?P<sign>[^\w\s@.\"'-])\s*+|\s++", re.DOTALL)
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+://\S++")
#: Maximum number of names, steps and attributes of one location. A path through 60 nested elements has 120; 2,000 parts
#: would take 5 ms, and a postback of 500 such locations seconds.
MAX_PARTS: Final = 150
_PART_BEGINS: Final = re.compile(r"[\s.#\[:>+~,/]++")
#: Cached locations: templates repeat the same ones on every page; a location has at most 2,000 characters.
_MAX_CACHED: Final = 1024

_TO_ESCAPE: Final = re.compile(r"[^\w*-]")
_UNESCAPE: Final = re.compile(r"\\(?:([0-9a-fA-F]{1,6})\s?|(.))", re.DOTALL)


@lru_cache(maxsize=_MAX_CACHED)
def stable_selector(location: str) -> str:
    """Return the part of a location that builds and visits do not change; two locations of a page may share it."""
    text = " ".join(location.split())
    if _ADDRESS.fullmatch(text):
        return page_key(text)
    if len(_PART_BEGINS.findall(text)) > MAX_PARTS:
        return text
    spelled = _xpath(text) if _XPATH.match(text) else _selector(text)
    return text if spelled is None else spelled


@dataclass(slots=True)
class _Compound:
    """The parts of a selector that describe one element."""

    tag: str = ""
    ids: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.tag or self.ids or self.classes or self.rest)

    def add(self, found: re.Match[str]) -> bool:
        """Add a part; returns False if no selector can have it at this position."""
        kind = str(found.lastgroup)
        part: str = found[kind]
        match kind:
            case "tag" if self.is_empty and (part == "*" or _is_tag(part)):
                self.tag = part.lower()
            case "id":
                self.ids.append(_unescaped(part))
            case "class":
                self.classes.append(_unescaped(part))
            case "attribute":
                self.rest.append(f"[{_attribute(part)}]")
            case "pseudo" | "argument":
                self.rest.append(_pseudo(found[0]))
            case _:
                return False
        return True


def _selector(text: str) -> str | None:
    """Normalize a CSS selector; None if it is not one."""
    spelled: list[str] = []
    compound = _Compound()
    place = 0
    while place < len(text):
        found = _PART.match(text, place)
        if found is None:
            return None
        place = found.end()
        if combinator := found["combinator"]:
            if compound.is_empty:
                return None
            spelled += [_compound(compound), f" {combinator.strip()} " if combinator.strip() else " "]
            compound = _Compound()
        elif not compound.add(found):
            return None
    return None if compound.is_empty else "".join([*spelled, _compound(compound)])


def _pseudo(part: str) -> str:
    name, bracket, argument = part.partition("(")
    # `2n + 1` equals `2n+1`.
    argument = "".join(argument.split()) if name.lower().startswith(":nth-") else " ".join(argument[:-1].split()) + ")"
    return name.lower() + (bracket + argument if bracket else "")


def _compound(compound: _Compound) -> str:
    """Return the normal spelling of one element: tag, ids, sorted classes, then the rest in its order."""
    ids = [f"#{_escaped(stable_name(each))}" for each in compound.ids]
    qualifiers = "".join([*ids, *_classes(stable_classes(compound.classes)), *compound.rest])
    if compound.tag == "*":
        return qualifiers or "*"
    # A state class is kept if it is all that identifies the element.
    return compound.tag + qualifiers or "".join(_classes(compound.classes))


def _classes(names: Iterable[str]) -> list[str]:
    return [f".{_escaped(each)}" for each in sorted(set(names))]


def _xpath(text: str) -> str | None:
    """Normalize an XPath of elements; None if it is not one, such as a file path."""
    spelled: list[str] = []
    place = 0
    while place < len(text):
        step = _STEP.match(text, place)
        if step is None or not _is_step(step):
            return None
        place = step.end()
        predicates = "".join(f"[{_attribute(each)}]" for each in _PREDICATE.findall(step["predicates"]))
        spelled.append(f"{step['axis']}{step['name'].lower()}{predicates}")
    return "".join(spelled)


def _is_step(step: re.Match[str]) -> bool:
    name: str = step["name"].removeprefix("svg:")
    return not name[0].isalpha() or name.endswith("()") or step["axis"].endswith("@") or _is_tag(name)


def _is_tag(name: str) -> bool:
    return name.lower() in _TAGS or _OWN_TAG.fullmatch(name) is not None


def _attribute(text: str) -> str:
    """Normalize the text between brackets: an attribute with or without a value, or another XPath predicate."""
    found = _ATTRIBUTE.fullmatch(text)
    if found is None:
        return _TEXT_OR_SPACE.sub(_respelled, text.strip())
    name = found["name"].lower()
    shown = found["at"] + stable_attribute(name)
    if found["operator"] is None:
        return shown
    value = _unquoted(found["quoted"]) if found["quoted"] else _unescaped(found["bare"])
    if name in _NAMING:
        value = _names(value, are_classes=name == "class")
    return f"{shown}{found['operator']}{_quoted(value)}{(found['flag'] or '').lower()}"


def _names(value: str, *, are_classes: bool) -> str:
    names = value.split()
    return " ".join(sorted(set(stable_classes(names) or names)) if are_classes else map(stable_name, names))


def _respelled(found: re.Match[str]) -> str:
    if found["quoted"]:
        return _quoted(_unquoted(found["quoted"]))
    return found["sign"] or " "


def _unquoted(text: str) -> str:
    return _unescaped(text[1:-1])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unescaped(name: str) -> str:
    return _UNESCAPE.sub(_character, name) if "\\" in name else name


def _character(found: re.Match[str]) -> str:
    if found[1] is None:
        return found[2]
    code = int(found[1], 16)
    # As in browsers: zero, surrogates, and code points beyond Unicode are replaced.
    return "\ufffd" if code == 0 or 0xD800 <= code <= 0xDFFF or code > sys.maxunicode else chr(code)


def _escaped(name: str) -> str:
    return _TO_ESCAPE.sub(lambda found: f"\\{found[0]}", name)
