"""Conversion of fsspec's slices to ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def one_each(given: Sequence[int | None] | int | None, count: int) -> Sequence[int | None]:
    """Returns one bound for each of `count` ranges. A single value of `given` applies to all ranges.

    Raises `ValueError` if the length of `given` is not `count`.
    """
    if given is None or isinstance(given, int):
        return [given] * count
    if len(given) != count:
        raise ValueError("there are as many starts and ends as paths")
    return given


def within(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Returns the offset and length of a slice, limited to a file of `size` bytes."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(last - first, 0)
