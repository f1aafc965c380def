"""The standard output of Fordway's Python commands."""

import os
import re
import sys
from pathlib import Path

CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that control a terminal or the direction of text, and surrogates, which cannot be written."""


class OutputError(Exception):
    """Standard output cannot be written. The message gives the reason."""


def escaped(text: str) -> str:
    r"""Returns `text` with control characters as `\u001b`, so that names in a run file cannot control the
    terminal. These escapes are also valid in JSON. Line ends and tabs remain.
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def line(text: str) -> str:
    """Returns `text` as one line: line ends and tabs are escaped too."""
    return escaped(text).replace("\n", "\\n").replace("\t", "\\t")


def write_error(text: str) -> None:
    """Writes `text` to standard error, with control characters escaped."""
    sys.stderr.write(escaped(text))


def write(text: str) -> None:
    """Writes `text` to standard output, without a delay, with control characters escaped. Raises
    `OutputError`.
    """
    try:
        sys.stdout.write(escaped(text))
        sys.stdout.flush()
    except OSError as error:
        # At exit, Python would write the rest again, print a second error, and change the exit status.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the exit)
        raise OutputError(f"the output cannot be written: {error}") from error
