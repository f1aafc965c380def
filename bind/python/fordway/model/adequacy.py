"""Whether a model holds on the rows it was fitted to. A coefficient of a model that does not hold is no
constant of anything, however small its standard error is.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from fordway.model.fitting import Fit
from fordway.model.terms import Terms

MEDIAN_ERROR_MAX_PCT = 20
"""A model that misses half of its rows by more than this describes something else."""

GROUPS_RATIO_MIN = 3
"""Times of the same request that are this far apart are of two kinds: noise does not leave a gap."""

LACK_OF_FIT_P_MAX = 0.001
LACK_OF_FIT_MIN_PCT = 10
"""A lack of fit that is certain, and too small to matter, is none."""

FALLING_MAX = -0.7
"""Spearman's rank correlation of sizes and times below which times fall as sizes grow."""
FALLING_SIZES_MIN = 4


def doubts(found: Fit, terms: Terms) -> list[str]:
    """Why the model does not hold, in sentences without a full stop; empty if nothing speaks against it."""
    return [*_groups(terms), *_falling(terms), *_far_off(found), *_lack_of_fit(found, terms)]


def repeated(terms: Terms) -> Iterator[pd.DataFrame]:
    """Rows of the same size, connections and frequency (to 10 %), where there are two or more."""
    columns = terms.columns.assign(
        load=terms.columns["connections"].fillna(0),
        speed=np.round(np.log(terms.columns["mhz"].fillna(1).clip(lower=1e-9)) / 0.1),
        row=range(len(terms)),
    )
    for _, rows in columns.groupby(["size", "load", "speed"], sort=True):
        if len(rows) > 1:
            yield rows


def _groups(terms: Terms) -> Iterator[str]:
    """Times of one kind of request that leave a gap."""
    for rows in repeated(terms):
        times = np.sort(rows["time_us"].to_numpy())
        ratios = times[1:] / times[:-1]
        at = int(ratios.argmax()) + 1
        if ratios[at - 1] < GROUPS_RATIO_MIN:
            continue
        low, high = np.median(times[:at]), np.median(times[at:])
        yield (
            f"{len(rows)} rows of {rows['size'].iloc[0]:,.0f} B are of two kinds, around {low:,.4g} µs and "
            f"around {high:,.4g} µs: two protocols, machines or states are in one table; fit them apart"
        )
        return


def _falling(terms: Terms) -> Iterator[str]:
    times = terms.columns.groupby("size")["time_us"].median()
    if len(times) < FALLING_SIZES_MIN:
        return
    rank = stats.spearmanr(times.index, times).statistic
    if rank <= FALLING_MAX and times.iloc[-1] < times.iloc[0]:
        yield (
            f"times fall as sizes grow (rank correlation {rank:.2f}): look whether columns are swapped or "
            "sorted each by itself"
        )


def _far_off(found: Fit) -> Iterator[str]:
    errors_pct = 100 * np.abs(found.times_us - found.predicted_us) / found.times_us
    median = float(np.median(errors_pct))
    if median > MEDIAN_ERROR_MAX_PCT:
        yield f"half of the rows are off by more than {median:.0f} %"


def _lack_of_fit(found: Fit, terms: Terms) -> Iterator[str]:
    """The F test of the errors at repeated rows' means against the scatter of the repetitions (Draper and
    Smith, Applied Regression Analysis, section 2.2), in shares of the times.
    """
    shares = (found.times_us - found.predicted_us) / found.times_us
    scatter, off, repetitions, sets = 0.0, 0.0, 0, 0
    for rows in repeated(terms):
        own = shares[rows["row"].to_numpy()]
        scatter += float(((own - own.mean()) ** 2).sum())
        off += len(own) * float(own.mean()) ** 2
        repetitions += len(own) - 1
        sets += 1
    freedom = sets - len(found.values)
    if freedom <= 0 or repetitions < 3 or scatter == 0:
        return
    rms_pct = 100 * float(np.sqrt(off / (repetitions + sets)))
    p = float(stats.f.sf(off / freedom / (scatter / repetitions), freedom, repetitions))
    if p < LACK_OF_FIT_P_MAX and rms_pct > LACK_OF_FIT_MIN_PCT:
        yield (
            f"repetitions agree with each other and not with the model (lack of fit {rms_pct:.0f} %, "
            f"p {p:.1g}): something that is no term of it decides"
        )
