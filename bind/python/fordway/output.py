"""The standard output of Fordway's Python commands."""

import os
import sys
from pathlib import Path


class OutputError(Exception):
    """Standard output cannot be written. The message gives the reason."""


def write(text: str) -> None:
    """Writes `text` to standard output, without a delay. Raises `OutputError`."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Python writes the rest again when it exits, would print a second error, and would change the exit
        # status.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the exit)
        raise OutputError(f"the output cannot be written: {error}") from error
