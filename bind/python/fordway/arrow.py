"""Listings as Arrow tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow

if TYPE_CHECKING:
    from collections.abc import Sequence


def listing_table(
    keys: Sequence[str],
    sizes: Sequence[int | None],
    etags: Sequence[str | None],
    modified_ns: Sequence[int | None],
) -> pyarrow.Table:
    """Returns a table with the columns of a listing. Called from Rust."""
    columns = {
        "key": pyarrow.array(keys, pyarrow.string()),
        "size": pyarrow.array(sizes, pyarrow.uint64()),
        "etag": pyarrow.array(etags, pyarrow.string()),
        "modified": pyarrow.array(modified_ns, pyarrow.int64()).cast(pyarrow.timestamp("ns", "UTC")),
    }
    return pyarrow.table(columns)
