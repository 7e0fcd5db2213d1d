"""Changes lines of `.env` atomically.

The new text is written to a temporary file with mode 0600, which replaces `.env` once it is on the disk: an interruption
leaves either the old or the new file.
"""

import base64
import os
import re
from pathlib import Path
from typing import Final

from bin.cli.output import Refused, writing
from runtime.files import replacing

#: What stands before the value of a setting in the file; `{}` is its name.
_BEFORE: Final = r"^[ \t]*(?:export[ \t]+)?{}[ \t]*=[ \t]*"


def by_hand(where: str) -> str:
    """Return the steps to add a key by hand, for keys that this command cannot write."""
    return (
        f"ENCRYPTION_KEYS {where}. Add a new key and a comma in front of it there (`openssl rand -base64 32` prints one), "
        "restart service and workers, then run: bin/riskrelay rotate-keys"
    )


def put_in_front(env_file: Path, key: bytes) -> None:
    """Put `key` in front of the keys in `env_file`. Raises Refused unless the file has a line for them."""
    path = env_file.resolve()
    with writing(path, "Nothing was changed."):
        text, encoded = path.read_bytes().decode(), base64.b64encode(key).decode()
        changed, count = re.subn(_BEFORE.format("ENCRYPTION_KEYS") + "['\"]?", rf"\g<0>{encoded},", text, flags=re.MULTILINE)
        if not count:
            raise Refused(by_hand(f"does not come from a line of {path}"))
        _replace(path, changed)


def set_line(env_file: Path, name: str, value: str) -> None:
    """Replace the value of a setting in `env_file`, or add a line for it. Raises OSError."""
    path = env_file.resolve()
    text = path.read_text(encoding="utf-8")
    changed, count = re.subn(f"({_BEFORE.format(name)}).*$", rf"\g<1>{value}", text, flags=re.MULTILINE)
    _replace(path, changed if count else f"{text.removesuffix(chr(10))}\n{name}={value}\n".lstrip("\n"))


def _replace(path: Path, text: str) -> None:
    with replacing(path) as file:
        _give_to_owner(file.fileno(), path)
        file.write(text)


def _give_to_owner(descriptor: int, path: Path) -> None:
    """Keep the file's owner: a service that runs as another user must still be able to read it."""
    owner, ours = path.stat(), os.fstat(descriptor)
    if (owner.st_uid, owner.st_gid) != (ours.st_uid, ours.st_gid):
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
