"""Replaces curl on a machine without it, for the options that docs/first-ticket.md uses: -s, -H, -d, -w and one URL."""

import argparse
import sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def main() -> None:
    """Send one request and print the body, for every status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-H", action="append", default=[], dest="headers")
    parser.add_argument("-d", dest="body")
    parser.add_argument("-w", default="", dest="after")
    parser.add_argument("url")
    asked = parser.parse_args()
    headers = dict(line.split(": ", 1) for line in asked.headers)
    request = Request(asked.url, data=asked.body and asked.body.encode(), headers=headers)  # noqa: S310 - loopback
    try:
        with urlopen(request) as answer:  # noqa: S310 - loopback
            body = answer.read()
    except HTTPError as refused:
        body = refused.read()
    sys.stdout.write(body.decode() + asked.after.replace("\\n", "\n"))


if __name__ == "__main__":
    main()
