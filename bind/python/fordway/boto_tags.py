"""The tags in the calls that `fordway.boto` executes. Tags that a gateway refuses cause its errors."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from fordway.boto_responses import RefusedError
from fordway.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    Pairs = list[tuple[str, str]]

TAGS_MAX = 10
NAME_CHARS_MAX, VALUE_CHARS_MAX = 128, 256
PUNCTUATION = "+-=._:/@"
ENCLOSED_LETTERS = frozenset(
    chr(code)
    for first, end in ((0x24B6, 0x24EA), (0x1F130, 0x1F14A), (0x1F150, 0x1F16A), (0x1F170, 0x1F18A))
    for code in range(first, end)
)
"""Letters in circles and squares: alphabetic in Unicode, although `str.isalnum` is false for them."""
RESERVED = "aws:"
"""The prefix of names that S3 reserves for its own tags."""

HEADER = "x-amz-tagging"
NOT_ENCODED = re.compile(r"%(?![0-9a-fA-F]{2})")
UNREADABLE = (
    f"The header '{HEADER}' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name "
    "duplicates."
)


def of_header(text: str | None) -> dict[str, str] | None:
    """Returns the tags in `x-amz-tagging`, or `None` if there is no text. Raises `InvalidArgumentError`."""
    if not text:
        return None
    try:
        listed = [_pair(part) for part in text.split("&") if part]
    except ValueError:
        listed = [("", "")]
    tags = dict(listed)
    if len(tags) < len(listed) or "" in tags or NOT_ENCODED.search(text):
        raise RefusedError(UNREADABLE, "InvalidArgument", {"ArgumentName": HEADER, "ArgumentValue": text})
    check(listed)
    return tags


def _pair(part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    return unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict")


def check(listed: Pairs) -> None:
    """Raises `InvalidArgumentError` for tags that S3 refuses."""
    if len(listed) > TAGS_MAX:
        why = f"Object tags cannot be greater than {TAGS_MAX}"
        raise InvalidArgumentError(why, "BadRequest", detail="send fewer tags")
    known: set[str] = set()
    for name, value in listed:
        if not 1 <= len(name) <= NAME_CHARS_MAX or not _is_of_tags(name):
            raise _invalid("The TagKey you have provided is invalid", TagKey=name)
        if name.lower().startswith(RESERVED):
            raise _invalid("System tags cannot be added/updated by requester", TagKey=name)
        if len(value) > VALUE_CHARS_MAX or not _is_of_tags(value):
            raise _invalid("The TagValue you have provided is invalid", TagKey=name, TagValue=value)
        if name in known:
            raise _invalid("Cannot provide multiple Tags with the same key", TagKey=name)
        known.add(name)


def _is_of_tags(text: Iterable[str]) -> bool:
    """Returns whether the store may accept all characters. All combining marks, and all characters that this
    version of Python does not know, pass this check; the store then refuses those that are not alphabetic.
    """
    return all(
        character.isalnum()
        or character.isspace()
        or character in PUNCTUATION
        or character in ENCLOSED_LETTERS
        or unicodedata.category(character) in ("Mn", "Mc", "Me", "Cn")
        for character in text
    )


def _invalid(words: str, **facts: str) -> RefusedError:
    return RefusedError(words, "InvalidTag", facts)
