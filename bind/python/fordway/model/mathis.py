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


def bounds(points: Points, path: Path) -> pd.Series:
    """Returns the bound for each row, or NaN if it is unknown. Properties that `path` does not contain are
    taken from the row's TCP_INFO.

    TCP_INFO counts retransmitted segments, not lost segments. The share of retransmitted segments is used as
    the loss.
    """
    rows = points.rows
    mss_bytes = path.mss_bytes or rows["mss_bytes"]
    rtt_us = path.rtt_us or rows["tcp_rtt_us"]
    segments = (rows[REQUESTS] * rows[SIZE] / mss_bytes).clip(lower=1)
    loss = (rows["retransmits"] / segments).clip(upper=1) if path.loss is None else path.loss
    known = pd.DataFrame({"mss": mss_bytes, "rtt": rtt_us, "loss": loss}, index=rows.index, dtype="float64")
    # If the loss is 0, the bound is infinite. If a quantity is unknown, the bound is unknown (NaN).
    return known["mss"] * C / (known["rtt"] * np.sqrt(known["loss"]))


def exceeded(points: Points, bound: pd.Series) -> list[str]:
    """Returns a sentence if the throughput per connection of some rows exceeds the bound of eq. 4 by more
    than 5 %. In that case, the bound does not apply to these rows.
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
