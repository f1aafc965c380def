"""Checks whether a model describes the rows to which it was fitted.

If a model does not describe the rows, its coefficients have no meaning, even if their standard errors are
small.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from fordway.model.fitting import Fit, robust_shares
from fordway.model.terms import Terms

MEDIAN_ERROR_MAX_PCT = 20
"""Maximum median error, in per cent. A model with a larger median error does not describe the rows."""

FAR_OFF_MIN_PCT = 50
NAMED_MAX = 5
"""Maximum number of outliers that a message names."""
FAR_OFF_SHARE = 0.1
"""Maximum share of rows whose error exceeds `FAR_OFF_MIN_PCT`. A smaller share may be outliers. A larger
share indicates rows of another kind.
"""

GROUPS_RATIO_MIN = 3
"""If the ratio between successive sorted times of one kind of request is at least this number, the times form
two groups. Noise does not cause a gap of this size.
"""

GROUP_ROWS_MIN, GROUP_SHARE_MIN = 3, 0.1
"""Minimum number and share of rows that form a group. Fewer rows are outliers."""

LACK_OF_FIT_P_MAX = 0.001
LACK_OF_FIT_MIN_PCT = 10
"""Minimum relevant lack of fit, in per cent. A smaller lack of fit is ignored even if it is significant."""

FALLING_MAX = -0.7
"""Maximum rank correlation (Spearman) of sizes and times at which the times count as decreasing with size."""
FALLING_SIZES_MIN = 4


def doubts(found: Fit, terms: Terms) -> list[str]:
    """Returns the reasons why the model does not describe the rows, as sentences without a full stop. The
    list is empty if the model describes the rows.
    """
    return [*_groups(terms), *_falling(terms), *_far_off(found), *_lack_of_fit(found, terms)]


def repeated(terms: Terms) -> Iterator[pd.DataFrame]:
    """Yields groups of two or more rows of the same size, connections and frequency (in steps of 10 %)."""
    columns = terms.columns.assign(
        load=terms.columns["connections"].fillna(0),
        speed=np.round(np.log(terms.columns["mhz"].fillna(1).clip(lower=1e-9)) / 0.1),
        row=range(len(terms)),
    )
    for _, rows in columns.groupby(["size", "load", "speed"], sort=True):
        if len(rows) > 1:
            yield rows


def _groups(terms: Terms) -> Iterator[str]:
    """Yields a reason if the times of one kind of request form two groups."""
    for rows in repeated(terms):
        times = np.sort(rows["time_us"].to_numpy())
        ratios = times[1:] / times[:-1]
        least = max(GROUP_ROWS_MIN, int(np.ceil(GROUP_SHARE_MIN * len(times))))
        if len(times) < 2 * GROUP_ROWS_MIN:
            # With this few rows, outliers cannot be distinguished from a group of another kind.
            least = 1
        ratios = ratios[least - 1 : len(ratios) - least + 1]
        if not len(ratios) or ratios.max() < GROUPS_RATIO_MIN:
            continue
        at = int(ratios.argmax()) + least
        low, high = np.median(times[:at]), np.median(times[at:])
        yield (
            f"{len(rows)} rows of {rows['size'].iloc[0]:,.0f} B are of two kinds, around {low:,.4g} µs and "
            f"around {high:,.4g} µs: the table mixes two protocols, machines or states; fit them separately"
        )
        return


def outliers(found: Fit, terms: Terms) -> list[str]:
    """Returns a sentence about the rows that are far off, if they are too few to refute the model."""
    errors_pct = 100 * np.abs(found.times_us - found.predicted_us) / found.times_us
    far = np.flatnonzero(errors_pct > FAR_OFF_MIN_PCT)
    if not len(far) or list(_far_off(found)):
        return []
    named = ", ".join(terms.columns["source"].iloc[far[:NAMED_MAX]]) + (
        ", ..." if len(far) > NAMED_MAX else ""
    )
    robust = "" if found.method == "robust" else "; --method robust gives outliers less weight"
    return [
        f"{len(far)} outlier(s) of {len(errors_pct)} rows are off by more than {FAR_OFF_MIN_PCT} % "
        f"({named}){robust}"
    ]


def _falling(terms: Terms) -> Iterator[str]:
    times = terms.columns.groupby("size")["time_us"].median()
    if len(times) < FALLING_SIZES_MIN or times.nunique() == 1:
        return
    rank = stats.spearmanr(times.index, times).statistic
    if rank <= FALLING_MAX and times.iloc[-1] < times.iloc[0]:
        yield (
            f"times fall as sizes grow (rank correlation {rank:.2f}): check whether columns are "
            "swapped or were sorted separately"
        )


def _far_off(found: Fit) -> Iterator[str]:
    errors_pct = 100 * np.abs(found.times_us - found.predicted_us) / found.times_us
    median = float(np.median(errors_pct))
    if median > MEDIAN_ERROR_MAX_PCT:
        yield f"half of the rows are off by more than {median:.0f} %"
        return
    far = int((errors_pct > FAR_OFF_MIN_PCT).sum())
    if far > max(FAR_OFF_SHARE * len(errors_pct), 1):
        yield (
            f"{far} of {len(errors_pct)} rows are off by more than {FAR_OFF_MIN_PCT} %: the table mixes two "
            "protocols, machines or states, or a quantity that is not a term of the model affects the times"
        )


def _lack_of_fit(found: Fit, terms: Terms) -> Iterator[str]:
    """Yields a reason if the F test shows a lack of fit.

    The test compares the mean errors of repeated rows with the scatter of the repetitions. Both are relative
    to the mean time of the repetitions (Draper and Smith, Applied Regression Analysis, section 2.2).
    """
    errors_us = found.times_us - found.predicted_us
    # A robust fit describes the rows apart from outliers, so the test limits the errors of outliers, too.
    shares = robust_shares(found) if found.method == "robust" else np.ones(len(errors_us))
    scatter, off, repetitions, sets = 0.0, 0.0, 0, 0
    for rows in repeated(terms):
        at = rows["row"].to_numpy()
        own = shares[at] * errors_us[at] / rows["time_us"].mean()
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
            f"repetitions agree with each other but not with the model (lack of fit {rms_pct:.0f} %, "
            f"p {p:.1g}): a quantity that is not a term of the model affects the times"
        )
