"""Makes third-party text safe for terminals: characters that hide, reorder text or move a cursor become JSON escapes."""


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with escapes such as `\u202e` in place of every character that is not printable and not in `keep`.

    Printable is as `str.isprintable` defines it; a character beyond U+FFFF becomes a surrogate pair. JSON on one line
    still parses to the same value.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else escape(letter) for letter in text)


def escape(letter: str) -> str:
    """Return the JSON escape of a character."""
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
