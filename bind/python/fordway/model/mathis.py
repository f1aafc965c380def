"""The bound of TCP's throughput by Mathis et al., eq. 4 of the paper: mss C / (rtt sqrt(loss))."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fordway.model.points import RATE, REQUESTS, SIZE, Points

C = 1.0
"""As the paper has it; sqrt(3/2) is what the derivation gives without delayed acknowledgements."""


@dataclass(frozen=True)
class Path:
    """What is known of a network path; `None` is not known."""

    mss_bytes: float | None = None
    rtt_us: float | None = None
    loss: float | None = None


def bound_bytes_per_us(mss_bytes: float, rtt_us: float, loss: float) -> float:
    """The most that a connection carries, in B/µs; infinite without loss, where the window is the limit."""
    return mss_bytes * C / (rtt_us * np.sqrt(loss)) if loss > 0 else float("inf")


def bounds(points: Points, path: Path) -> pd.Series:
    """The bound of each row by `path`, or by the TCP_INFO it came with; NaN where that is not known.

    TCP_INFO has retransmitted segments, and not lost ones: their share of all stands in for the loss.
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
    """A sentence if rows moved more than eq. 4 allows each of their connections: then it is no bound of
    them.
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
        f"{each[worst]:,.0f} of at most {bound[worst]:,.0f} MB/s): rtt and loss are not those of these "
        "transfers, or the losses were not random"
    ]
