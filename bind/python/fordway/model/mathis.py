"""The bound on TCP throughput by Mathis et al., eq. 4 of the paper: mss C / (rtt sqrt(loss))."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fordway.model.points import RATE, REQUESTS, SIZE, Points

C = 1.0
"""The paper's constant. The derivation without delayed acknowledgements gives sqrt(3/2)."""


@dataclass(frozen=True)
class Path:
    """Properties of a network path. `None` means unknown."""

    mss_bytes: float | None = None
    rtt_us: float | None = None
    loss: float | None = None


def bound_bytes_per_us(mss_bytes: float, rtt_us: float, loss: float) -> float:
    """Returns the maximum throughput of one connection, in B/µs.

    It is infinite without loss, because then the window is the limit.
    """
    return mss_bytes * C / (rtt_us * np.sqrt(loss)) if loss > 0 else float("inf")


def bounds(points: Points, path: Path) -> pd.Series:
    """Returns the bound for each row, from `path` or else from the row's TCP_INFO; NaN if it is unknown.

    TCP_INFO counts retransmitted segments, not lost ones. Their share of all segments serves as the loss.
    """
    return points.rows.apply(lambda row: _bound(row, path), axis=1).astype("float64")


def _bound(row: pd.Series, path: Path) -> float:
    mss_bytes = path.mss_bytes or row["mss_bytes"]
    segments = row[REQUESTS] * row[SIZE] / mss_bytes
    loss = path.loss if path.loss is not None else min(row["retransmits"] / max(segments, 1), 1)
    rtt_us = path.rtt_us or row["tcp_rtt_us"]
    if pd.isna([mss_bytes, loss, rtt_us]).any():
        return float("nan")
    return bound_bytes_per_us(mss_bytes, rtt_us, loss)


def exceeded(points: Points, bound: pd.Series) -> list[str]:
    """Returns a sentence if rows exceed the bound of eq. 4 by more than 5 %, per connection.

    The bound then does not apply to these rows.
    """
    rows = points.rows
    each = (rows[RATE] * rows[SIZE] / 1e6).fillna(rows[SIZE] / rows["time_us"]) / rows["connections"].fillna(
        1
    )
    over = each > 1.05 * bound
    if not over.any():
        return []
    worst = (each / bound).idxmax()
    return [
        f"{int(over.sum())} row(s) moved more than eq. 4 allows ({rows['source'][worst]}: "
        f"{each[worst]:,.0f} of at most {bound[worst]:,.0f} MB/s): rtt and loss do not belong to these "
        "transfers, or the losses were not random"
    ]
