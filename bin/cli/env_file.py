"""Changes lines of `.env` atomically.

The new text is written to a temporary file with mode 0600, which replaces `.env` once it is on the disk: an interruption
leaves either the old or the new file.

A new first key is refused if the line of the keys cannot be parsed, and if the file is not the source of the keys in use: a
key added there would have no effect.
"""

import base64
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bin.cli.output import Refused
from runtime.files import replacing

_LINE: Final = re.compile(
    r"^(?P<name>[ \t]*(?:export[ \t]+)?ENCRYPTION_KEYS[ \t]*=[ \t]*)(?P<quote>['\"]?)(?P<keys>[A-Za-z0-9+/=, ]+)(?P=quote)"
    r"(?=[ \t]*(?:#.*)?\r?$)",
    re.MULTILINE,
)


def by_hand(where: str) -> str:
    """Return the steps to add a key by hand, for keys that this command cannot write."""
    return (
        f"ENCRYPTION_KEYS {where}. Add a new key and a comma in front of it there (`openssl rand -base64 32` prints one), "
        "restart service and workers, then run: bin/riskrelay rotate-keys"
    )


def put_in_front(env_file: Path, key: bytes, in_use: Sequence[bytes]) -> None:
    """Put `key` in front of the keys of `env_file`. Raises Refused unless those are the keys `in_use`."""
    path = env_file.resolve()
    try:
        text = path.read_bytes().decode()
        changed = _with_key(text, key, in_use)
        if changed is None:
            raise Refused(by_hand(f"does not come from a line of {path} that can be changed here"))
        _replace(path, changed)
    except OSError as failed:
        raise Refused(f"{path} cannot be written: {failed.strerror}; nothing was changed.") from None


def set_line(env_file: Path, name: str, value: str) -> None:
    """Replace the value of a setting in `env_file`, or add a line for it. Raises OSError."""
    path = env_file.resolve()
    text = path.read_text(encoding="utf-8")
    line = re.compile(rf"^([ \t]*(?:export[ \t]+)?{name}[ \t]*=).*$", re.MULTILINE)
    changed, count = line.subn(rf"\g<1>{value}", text)
    _replace(path, changed if count else f"{text.removesuffix(chr(10))}\n{name}={value}\n".lstrip("\n"))


def _with_key(text: str, key: bytes, in_use: Sequence[bytes]) -> str | None:
    lines = list(_LINE.finditer(text))
    if len(lines) != 1:
        return None
    [line] = lines
    if [base64.b64decode(part) for part in line["keys"].split(",") if part.strip()] != list(in_use):
        return None
    at = line.start("keys")
    return f"{text[:at]}{base64.b64encode(key).decode()},{text[at:]}"


def _replace(path: Path, text: str) -> None:
    with replacing(path) as file:
        _give_to_owner(file.fileno(), path)
        file.write(text)


def _give_to_owner(descriptor: int, path: Path) -> None:
    """Keep the file's owner: a service that runs as another user must still be able to read it."""
    owner, ours = path.stat(), os.fstat(descriptor)
    if (owner.st_uid, owner.st_gid) != (ours.st_uid, ours.st_gid):
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
