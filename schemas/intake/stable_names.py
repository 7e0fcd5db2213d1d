"""Which names of classes, ids and attributes outlast a build of the site and a visit to it.

Tools that scope styles put a hash into a name, frameworks count the elements of a visit, scripts set a class while something
is open. Of a name that is made up, the part that a person gave stays and `*` stands for the rest; a class that comes and
goes is left out. A name is taken for a person's own unless it has the very shape that a known tool gives: `card__title`
stays, `Card_title__x7Fq2` becomes `Card_title__*`. Every shape is tried in linear time.
"""

import re
from collections.abc import Sequence
from typing import Final

#: A word as people write them: lower, Capitalised, camelCase, CAPITALS, a number, 2xl, 16by9.
_WORD: Final = re.compile(
    r"[a-z]|[A-Z]?[a-z]{2,}(?:[A-Z][a-z]{2,})*+[0-9]{0,2}|[A-Z]{2,}[0-9]{0,2}|[0-9]+|[0-9]{1,2}[a-z]{1,4}"
    r"|[0-9]{1,2}(?:x|by)[0-9]{1,2}"
)

#: Names that a tool makes up. `kept` and `tail` stay; where there is a `hash`, it must be no word that a person writes.
_MADE_UP: Final = tuple(
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
#: Most names are plain words, and none of the shapes: those where a hash may have letters alone begin otherwise.
_PLAIN: Final = re.compile(r"(?!css-|svelte-|astro-)_{0,2}[a-z]++(?:[_-]{1,2}[a-z]++)*+")
#: How React counts elements, up to version 18; selectors often have it as it is, though its colons ought to be escaped.
REACT_ID: Final = r":[rR](?:[0-9a-z]{1,2}|(?=[A-Za-z]{0,20}[0-9])[0-9A-Za-z]{3,40}):"
#: What is made up wherever it stands in a name: React's counters of all versions, and UUIDs.
_MADE_UP_PART: Final = re.compile(
    rf"{REACT_ID}|«[rR][0-9A-Za-z]{{0,40}}»|_[rR]_[0-9a-z]{{1,40}}_"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
)
#: The second class of a styled component is six or so letters alone.
_STYLED: Final = "sc-"
#: Attributes by which Angular, Vue and Astro scope styles.
_MADE_UP_ATTRIBUTE: Final = re.compile(r"(_ng(?:content|host)-|data-v-(?=[0-9a-f]{8}$)|data-astro-cid-)[a-z0-9-]+")

#: What a class says while somebody visits.
_STATES: Final = frozenset(
    {"active", "animated", "animating", "closed", "collapsed", "current", "dirty", "dragging", "entered", "entering"}
    | {"exited", "exiting", "expanded", "focus", "focus-visible", "focus-within", "focused", "hidden", "hover", "hovered"}
    | {"hydrated", "in-view", "in-viewport", "initialized", "inview", "lazy-loaded", "lazyload", "lazyloaded"}
    | {"lazyloading", "loaded", "loading", "open", "opened", "pressed", "pristine", "scrolled", "selected", "show", "shown"}
    | {"stuck", "touched", "untouched", "visible", "visited"}
)
#: What stands before such a word: is-active, hasFocus, swiper-slide-active.
_STATE_PREFIX: Final = re.compile(r"(?:is|has|ng|aos|slick|swiper-slide|swiper)[-_]|(?:is|has)(?=[A-Z])")
#: States that frameworks have words of their own for.
_OWN_STATES: Final = frozenset(
    {"ng-valid", "ng-invalid", "ng-pending", "ng-star-inserted", "swiper-slide-next", "swiper-slide-prev", "aos-init"}
    | {"aos-animate", "cdk-mouse-focused", "cdk-keyboard-focused", "cdk-program-focused"}
)


def stable_name(name: str) -> str:
    """Return a class or an id with `*` for what a tool made up."""
    if _PLAIN.fullmatch(name):
        return name
    told = _MADE_UP_PART.sub("*", name)
    for shape in _MADE_UP:
        found = shape.fullmatch(told)
        if found and _may_be_made_up(found.groupdict().get("hash")):
            return f"{found['kept']}*{found.groupdict().get('tail') or ''}"
    return told


def stable_classes(names: Sequence[str]) -> list[str]:
    """Return the classes of one element that last; none where all of them come and go."""
    lasting = [name for name in names if not _is_state(name)]
    is_styled = any(name.startswith(_STYLED) for name in lasting)
    return ["*" if is_styled and _is_second_of_styled(name) else stable_name(name) for name in lasting]


def stable_attribute(name: str) -> str:
    """Return the name of an attribute with `*` for what a tool made up."""
    return _MADE_UP_ATTRIBUTE.sub(r"\1*", name, count=1)


def _is_state(name: str) -> bool:
    """Tell whether a class comes and goes: `active`, `is-active`, `tab--active`."""
    word = _STATE_PREFIX.sub("", name.rpartition("--")[2], count=1)
    return name in _OWN_STATES or word.lower() in _STATES


def _is_second_of_styled(name: str) -> bool:
    return name.isalpha() and _may_be_made_up(name)


def _may_be_made_up(text: str | None) -> bool:
    """Tell whether no person would write this; a shape without a hash says enough by itself."""
    return text is None or any(_WORD.fullmatch(word) is None for word in re.split("[-_+]", text) if word)
