"""Removes generated parts from names of classes, ids and attributes, so that they survive a build of the site and a visit.

Tools that scope styles add a hash to a name, frameworks number the elements of a visit, scripts set state classes. In a
generated name the handwritten part is kept and `*` replaces the rest; a state class is dropped. A name counts as handwritten
unless it has exactly the shape of a known tool: `card__title` stays, `Card_title__x7Fq2` becomes `Card_title__*`. Every
shape matches in linear time.
"""

import re
from collections.abc import Sequence
from typing import Final

#: A handwritten word: lower, Capitalized, camelCase, CAPITALS, a number, 2xl, 16by9.
_WORD: Final = re.compile(
    r"[a-z]|[A-Z]?[a-z]{2,}(?:[A-Z][a-z]{2,})*+[0-9]{0,2}|[A-Z]{2,}[0-9]{0,2}|[0-9]+|[0-9]{1,2}[a-z]{1,4}"
    r"|[0-9]{1,2}(?:x|by)[0-9]{1,2}"
)

#: Shapes of generated names. `kept` and `tail` stay; a `hash` must not be a handwritten word.
_GENERATED: Final = tuple(
    re.compile(shape, re.DOTALL)
    for shape in (
        r"(?P<kept>.+_)_(?P<hash>[A-Za-z0-9_+-]{5,8})",  # CSS modules: Button_root__a8F3k
        r"(?P<kept>_[A-Za-z][\w-]*_)[A-Za-z0-9+-]{5}_[0-9]+",  # Vite: _root_1x2y3_1
        r"(?P<kept>.+--)(?P<hash>[A-Za-z0-9]{5})",  # Gatsby: nav-module--link--a8f3k
        r"(?P<kept>sc-)(?P<hash>[A-Za-z0-9]{5,9})(?:-[0-9]+)?",  # styled-components: sc-bdvvtL
        r"(?P<kept>css-)[a-z0-9]{5,8}(?P<tail>(?:-\w++)*+)",  # Emotion: css-1q2w3e4
        r"(?P<kept>svelte-)[a-z0-9]{5,8}",
        r"(?P<kept>astro-)[A-Za-z0-9]{8}",
        r"(?P<kept>jsx-)[0-9]{6,}",  # styled-jsx
        r"(?P<kept>jss)[0-9]+",
        r"(?P<kept>(?:makeStyles|Mui[A-Za-z]++)-[A-Za-z]++-)[0-9]+",
        r"(?P<kept>ng-tns-)c[0-9]+-[0-9]+",  # Angular's animations
        r"(?P<kept>_)(?P<hash>[a-z0-9]{6,9})",  # vanilla-extract
        r"(?P<kept>ember|ui-id-|ext-gen|ext-(?:comp|element)-|yui-gen|gwt-uid-|__BVID__)[0-9]+(?P<tail>\D.*)?",
        r"(?P<kept>(?:mat|cdk|headlessui)-[a-z-]+-)[0-9]+(?P<tail>\D.*)?",
        r"(?P<kept>radix-|mui-|downshift-|react-(?:select|aria)-|rc_unique_|tippy-)[0-9]+(?P<tail>\D.*)?",
        r"(?P<kept>popover|tooltip)[0-9]{3,}",  # Bootstrap
        r"(?P<kept>yui_)[0-9_]+",
        r"(?P<kept>swiper-wrapper-)[0-9a-f]{10,}",
    )
)
#: Most names are plain words and match no shape: shapes whose hash may be all letters start differently.
_PLAIN: Final = re.compile(r"(?!css-|svelte-|astro-)_{0,2}[a-z]++(?:[_-]{1,2}[a-z]++)*+")
#: React's generated ids up to version 18; selectors often contain them without escaping the colons.
REACT_ID: Final = r":[rR](?:[0-9a-z]{1,2}|(?=[A-Za-z]{0,20}[0-9])[0-9A-Za-z]{3,40}):"
#: Generated wherever it is in a name: React's ids of all versions, and UUIDs.
_GENERATED_PART: Final = re.compile(
    rf"{REACT_ID}|«[rR][0-9A-Za-z]{{0,40}}»|_[rR]_[0-9a-z]{{1,40}}_"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
)
#: The prefix of a styled component's first class; its second class has about six letters and nothing else.
_STYLED: Final = "sc-"
#: Attributes by which Angular, Vue and Astro scope styles.
_GENERATED_ATTRIBUTE: Final = re.compile(r"(_ng(?:content|host)-|data-v-(?=[0-9a-f]{8}$)|data-astro-cid-)[a-z0-9-]+")

#: State classes.
_STATES: Final = frozenset(
    {"active", "animated", "animating", "closed", "collapsed", "current", "dirty", "dragging", "entered", "entering"}
    | {"exited", "exiting", "expanded", "focus", "focus-visible", "focus-within", "focused", "hidden", "hover", "hovered"}
    | {"hydrated", "in-view", "in-viewport", "initialized", "inview", "lazy-loaded", "lazyload", "lazyloaded"}
    | {"lazyloading", "loaded", "loading", "open", "opened", "pressed", "pristine", "scrolled", "selected", "show", "shown"}
    | {"stuck", "touched", "untouched", "visible", "visited"}
)
#: Prefixes of state classes: is-active, hasFocus, swiper-slide-active.
_STATE_PREFIX: Final = re.compile(r"(?:is|has|ng|aos|slick|swiper-slide|swiper)[-_]|(?:is|has)(?=[A-Z])")
#: State classes of single frameworks.
_OWN_STATES: Final = frozenset(
    {"ng-valid", "ng-invalid", "ng-pending", "ng-star-inserted", "swiper-slide-next", "swiper-slide-prev", "aos-init"}
    | {"aos-animate", "cdk-mouse-focused", "cdk-keyboard-focused", "cdk-program-focused"}
)


def stable_name(name: str) -> str:
    """Return a class or an id with `*` for its generated part."""
    if _PLAIN.fullmatch(name):
        return name
    starred = _GENERATED_PART.sub("*", name)
    for shape in _GENERATED:
        found = shape.fullmatch(starred)
        if found and _may_be_generated(found.groupdict().get("hash")):
            return f"{found['kept']}*{found.groupdict().get('tail') or ''}"
    return starred


def stable_classes(names: Sequence[str]) -> list[str]:
    """Return the classes of one element without state classes."""
    lasting = [name for name in names if not _is_state(name)]
    is_styled = any(name.startswith(_STYLED) for name in lasting)
    return ["*" if is_styled and name.isalpha() and _may_be_generated(name) else stable_name(name) for name in lasting]


def stable_attribute(name: str) -> str:
    """Return the name of an attribute with `*` for its generated part."""
    return _GENERATED_ATTRIBUTE.sub(r"\1*", name, count=1)


def _is_state(name: str) -> bool:
    """Return whether a class is a state: `active`, `is-active`, `tab--active`."""
    word = _STATE_PREFIX.sub("", name.rpartition("--")[2], count=1)
    return name in _OWN_STATES or word.lower() in _STATES


def _may_be_generated(text: str | None) -> bool:
    """Return whether a hash is not a handwritten word; a shape without a hash is always generated."""
    return text is None or any(_WORD.fullmatch(word) is None for word in re.split("[-_+]", text) if word)
