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

LEVELS_RATIO_MIN, LEVELS_SPREADS_MIN = 1.25, 8
"""Minimum ratio of two levels of the times, and their minimum distance in standard deviations of the times at
one level. With normal, exponential or log-normal noise, fewer than 1 in 100 tables exceed the distance by
chance.
"""

LEVEL_ROWS_MIN, LEVEL_FREEDOM_MIN = 4, 6
"""Minimum number of rows of one kind of request, and of degrees of freedom of all kinds, for the search for
levels.
"""

CLOCK_TICKS_MIN = 4
"""Minimum distance of two levels, in ticks of the clock."""

REPETITIONS_MIN = 3
"""Minimum number of rows of one kind of request that show which of these rows is an outlier."""

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
    sets = [np.sort(rows["time_us"].to_numpy()) for rows in repeated(terms)]
    sizes = [rows["size"].iloc[0] for rows in repeated(terms)]
    many = [at for at, times in enumerate(sets) if len(times) >= 2 * GROUP_ROWS_MIN and _gap(times)]
    few = [at for at, times in enumerate(sets) if len(times) < 2 * GROUP_ROWS_MIN]
    far = [at for at in few if _gap(sets[at])]
    if not many and len(far) >= max(2, len(few) / 2):
        # In a set of a few rows, an outlier looks like a group. Outliers in half of the sets are no accident.
        many = far
    if many:
        times, size = sets[many[0]], sizes[many[0]]
        split = _gap(times)
        low, high = np.median(times[:split]), np.median(times[split:])
        said = (
            f"{len(times)} rows of {size:,.0f} B are of two kinds, around {low:,.4g} µs and around "
            f"{high:,.4g} µs"
        )
    elif factor := _two_levels(sets):
        said = f"rows of the same size are of two kinds, whose times differ by a factor of {factor:.2f}"
    else:
        return
    yield f"{said}: the table mixes two protocols, machines or states; fit them separately"


def _gap(times: np.ndarray) -> int:
    """Returns the number of sorted times below a gap of `GROUPS_RATIO_MIN` between two groups; 0 if there is
    no such gap.
    """
    ratios = times[1:] / times[:-1]
    least = max(GROUP_ROWS_MIN, int(np.ceil(GROUP_SHARE_MIN * len(times))))
    if len(times) < 2 * GROUP_ROWS_MIN:
        least = 1
    ratios = ratios[least - 1 : len(ratios) - least + 1]
    if not len(ratios) or ratios.max() < GROUPS_RATIO_MIN:
        return 0
    return int(ratios.argmax()) + least


def _two_levels(sets: list[np.ndarray]) -> float | None:
    """Returns the ratio between two levels of the times, if the repetitions of most kinds of request have two
    levels. Unlike `_gap`, compares the distance of the levels with the scatter of the times at each level.
    """
    tick_us = _tick_us(sets)
    distances, variances, freedom = [], [], 0
    for times in sets:
        if len(times) < LEVEL_ROWS_MIN:
            continue
        split, scatter = _best_split(np.log(times))
        low, high = times[:split].mean(), times[split:].mean()
        # A coarse clock has few values, whose distance is not an effect.
        is_coarse = high - low < CLOCK_TICKS_MIN * tick_us
        distances.append(0.0 if is_coarse else float(np.log(high / low)))
        variances.append(scatter / (len(times) - 2))
        freedom += len(times) - 2
    if freedom < LEVEL_FREEDOM_MIN:
        return None
    distance = float(np.median(distances))
    # The median of a variance with few degrees of freedom is about 0.7 of its mean.
    spread = float(np.sqrt(np.median(variances) / 0.7))
    is_clear = distance > np.log(LEVELS_RATIO_MIN) and distance > LEVELS_SPREADS_MIN * spread
    return float(np.exp(distance)) if is_clear else None


def _tick_us(sets: list[np.ndarray]) -> float:
    """Returns the smallest difference between two times."""
    steps = np.diff(np.unique(np.concatenate(sets))) if sets else np.empty(0)
    return float(steps.min()) if len(steps) else 0.0


def _best_split(logs: np.ndarray) -> tuple[int, float]:
    """Returns the split of sorted values into two groups with the smallest sum of squares within the groups,
    and this sum.
    """
    count = len(logs)
    least = max(2 if count < 2 * GROUP_ROWS_MIN else GROUP_ROWS_MIN, int(np.ceil(GROUP_SHARE_MIN * count)))
    below, total = np.cumsum(logs)[:-1], logs.sum()
    low = np.arange(1, count)
    between = below**2 / low + (total - below) ** 2 / (count - low)
    inside = slice(least - 1, count - least)
    split = int(np.argmax(between[inside])) + least
    scatter = ((logs[:split] - logs[:split].mean()) ** 2).sum()
    scatter += ((logs[split:] - logs[split:].mean()) ** 2).sum()
    return split, float(scatter)


def _far_repetitions(terms: Terms) -> np.ndarray:
    """Returns the rows that are far from the other rows of their kind of request. There are none if they are
    too many to be outliers.
    """
    far: list[int] = []
    for rows in repeated(terms):
        times = rows["time_us"].to_numpy()
        if len(times) >= REPETITIONS_MIN:
            off = np.abs(np.log(times / np.median(times))) > np.log(GROUPS_RATIO_MIN)
            far += rows["row"].to_numpy()[off].tolist()
    return np.array(sorted(far) if len(far) <= FAR_OFF_SHARE * len(terms) else [], dtype=int)


def outliers(found: Fit, terms: Terms) -> list[str]:
    """Returns a sentence about outliers: rows that are far from repetitions of the same request, or, if the
    model describes the rows, far from the model.
    """
    errors_pct = 100 * np.abs(found.times_us - found.predicted_us) / found.times_us
    far = np.flatnonzero(errors_pct > FAR_OFF_MIN_PCT)
    off = f"off by more than {FAR_OFF_MIN_PCT} %"
    if list(_far_off(found)):
        # An outlier may itself be the reason why the model is far off.
        far = _far_repetitions(terms)
        off = f"off from rows of the same size by a factor of {GROUPS_RATIO_MIN} or more"
    if not len(far):
        return []
    named = ", ".join(terms.columns["source"].iloc[far[:NAMED_MAX]]) + (
        ", ..." if len(far) > NAMED_MAX else ""
    )
    robust = "" if found.method == "robust" else "; --method robust gives outliers less weight"
    return [f"{len(far)} outlier(s) of {len(errors_pct)} rows are {off} ({named}){robust}"]


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
