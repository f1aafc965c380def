"""Classes of message sizes, with exact quantiles of each class."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

SIZES_MAX = 60
"""Maximum number of distinct sizes for which each size has a separate class."""

CLASSES = 36
"""Number of classes in a range of sizes, of equal width on a logarithmic scale."""

MESSAGES_MIN = 5
"""Classes with fewer messages are not drawn."""

SHARES = [0.05, 0.25, 0.5, 0.75, 0.95]


@dataclass(frozen=True)
class Classes:
    """The bounds of size classes, which are the same for all set-ups of a run."""

    edges: np.ndarray
    """The bounds of the classes in ascending order. A class includes its lower bound but not its upper
    bound.
    """

    @classmethod
    def of(cls, sizes: np.ndarray) -> "Classes":
        """Returns the classes for messages of `sizes` bytes. `sizes` must not be empty."""
        distinct = np.unique(sizes.astype(float))
        if len(distinct) <= SIZES_MAX:
            middles = np.sqrt((distinct[:-1] + 1) * (distinct[1:] + 1)) - 1
            return cls(np.concatenate([[-0.5], middles, [distinct[-1] + 1]]))
        exponents = np.linspace(np.log1p(distinct[0]), np.log1p(distinct[-1] + 1), CLASSES + 1)
        return cls(np.expm1(exponents))

    def number(self, sizes: np.ndarray) -> np.ndarray:
        """Returns the class of each of `sizes`, counted from 0."""
        last = len(self.edges) - 2
        return np.clip(np.searchsorted(self.edges, sizes.astype(float), side="right") - 1, 0, last)


def bands(rows: pd.DataFrame, classes: Classes, values: pd.Series) -> pd.DataFrame:
    """Returns exact quantiles of `values` (one for each of `rows`) in each class.

    Each class with enough messages has a row, in order of `size_bytes`. The columns are `SHARES`,
    `size_bytes` and the number of `messages`.
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
