"""Classes of message size, and exact quantiles in each."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

SIZES_MAX = 60
"""Where there are no more sizes than this, each is a class of its own."""

CLASSES = 36
"""Classes of a range of sizes, each as much wider than the one before as the logarithm says."""

MESSAGES_MIN = 5
"""Fewer messages in a class have no quantiles worth drawing."""

SHARES = [0.05, 0.25, 0.5, 0.75, 0.95]


@dataclass(frozen=True)
class Classes:
    """Where classes of size end; the same for all set-ups of a run."""

    edges: np.ndarray
    """One more than there are classes; a class holds sizes from its edge up to below the next."""

    @classmethod
    def of(cls, sizes: np.ndarray) -> "Classes":
        """Those for messages of `sizes` bytes, of which there is at least one."""
        distinct = np.unique(sizes.astype(float))
        if len(distinct) <= SIZES_MAX:
            middles = np.sqrt((distinct[:-1] + 1) * (distinct[1:] + 1)) - 1
            return cls(np.concatenate([[-0.5], middles, [distinct[-1] + 1]]))
        exponents = np.linspace(np.log1p(distinct[0]), np.log1p(distinct[-1] + 1), CLASSES + 1)
        return cls(np.expm1(exponents))

    def number(self, sizes: np.ndarray) -> np.ndarray:
        """The class of each of `sizes`, from 0."""
        last = len(self.edges) - 2
        return np.clip(np.searchsorted(self.edges, sizes.astype(float), side="right") - 1, 0, last)


def bands(rows: pd.DataFrame, classes: Classes, values: pd.Series) -> pd.DataFrame:
    """Exact quantiles of `values` (one for each of `rows`) in each class: a row for each class that has
    messages enough, in order of `size_bytes`, with a column for each of `SHARES` and the number of
    `messages`.
    """
    table = pd.DataFrame(
        {
            "number": classes.number(rows["bytes"].to_numpy()),
            "size_bytes": rows["bytes"].to_numpy(dtype=float),
            "value": values.to_numpy(dtype=float),
        }
    )
    grouped = table.groupby("number")
    found = grouped["value"].quantile(SHARES).unstack()
    if found.empty:
        found = pd.DataFrame(columns=SHARES, dtype=float)
    found["size_bytes"] = grouped["size_bytes"].median()
    found["messages"] = grouped.size()
    return found[found["messages"] >= MESSAGES_MIN].sort_values("size_bytes")
