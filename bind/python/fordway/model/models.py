"""The models: the equations of the paper, named by their numbers, and simpler models whose coefficients can
be distinguished.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fordway.model.points import MeasurementError
from fordway.model.terms import Terms

BREAKS_MAX = 50
"""Maximum number of sizes that are tried as a break. The number is limited because each size needs a fit."""

Structure = float | None
"""The part of a model that is not a coefficient: the size or number of connections at its break, or
`None`.
"""


@dataclass(frozen=True)
class Coefficient:
    """A coefficient, and the column that it multiplies."""

    name: str
    unit: str
    column: Callable[[Terms], np.ndarray]
    meaning: str
    high: float = np.inf
    """Upper bound of the coefficient in bounded fits. The lower bound is 0, because no cost is negative."""


@dataclass(frozen=True)
class Model:
    """A sum of columns, each multiplied by its coefficient."""

    name: str
    equation: str
    coefficients: tuple[Coefficient, ...]
    needs: tuple[str, ...]
    """Columns of `Terms` that the model needs."""
    published: tuple[float, ...] | None = None
    """Published coefficients. A model with published coefficients is checked, not fitted."""

    @property
    def names(self) -> list[str]:
        """Names of the coefficients."""
        return [each.name for each in self.coefficients]

    def structures(self, terms: Terms) -> list[Structure]:
        """Returns the possible breaks for these rows, or `[None]` for a model without a break."""
        del terms
        return [None]

    def design(
        self, terms: Terms, structure: Structure, coefficients: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the design matrix: one row for each measurement, one column for each coefficient."""
        del structure, coefficients
        return np.column_stack([each.column(terms) for each in self.coefficients])

    def predict(self, terms: Terms, coefficients: np.ndarray, structure: Structure) -> np.ndarray:
        """Returns the predicted times, in µs."""
        return self.design(terms, structure, coefficients) @ coefficients


class Break(Model):
    """Two lines, one for small objects and one for large objects.

    Examples are the eager and rendezvous protocols of MPI, or objects that exceed a cache.
    """

    def structures(self, terms: Terms) -> list[Structure]:
        """Returns the sizes that have at least three rows at or below them and three rows above them. If
        there are too many such sizes, returns an evenly spread selection. Raises `MeasurementError` if no
        size qualifies.
        """
        sizes = terms.columns["size"].to_numpy()
        found, counts = np.unique(sizes, return_counts=True)
        upto = np.cumsum(counts)
        kept = found[(upto >= 3) & (len(sizes) - upto >= 3)]
        if not len(kept):
            raise MeasurementError("a breakpoint needs at least three rows on each side")
        if len(kept) > BREAKS_MAX:
            kept = kept[np.linspace(0, len(kept) - 1, BREAKS_MAX).round().astype(int)]
        return [float(at) for at in kept]

    def design(
        self, terms: Terms, structure: Structure, coefficients: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the columns of both lines. The columns of one line are 0 on the rows of the other line."""
        del coefficients
        size = terms.columns["size"].to_numpy()
        small = size <= structure
        return np.column_stack([small, small * size, ~small, ~small * size]).astype(float)


class Concurrent(Model):
    """The maximum of two times: the time of one request alone, and the time that a shared resource needs to
    serve one request of each connection.

    These are the asymptotic bounds of a closed queueing network.
    """

    def structures(self, terms: Terms) -> list[Structure]:
        """Returns the numbers of connections above which the shared resource may limit the time. Fits start
        from these numbers.
        """
        found = np.unique(terms.columns["connections"].to_numpy())
        if len(found) < 3:
            raise MeasurementError(
                "there are fewer than three different numbers of connections: the rows do not show what "
                "connections share"
            )
        return [float(at) for at in found[:-1]]

    def design(
        self, terms: Terms, structure: Structure, coefficients: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the columns of the greater branch. Without coefficients, `structure` selects the branch."""
        size, connections = (terms.columns[name].to_numpy() for name in ("size", "connections"))
        alone = np.column_stack([np.ones(len(size)), size])
        shared = alone * connections[:, None]
        if coefficients is None:
            first = connections <= structure
        else:
            first = alone @ coefficients[:2] >= shared @ coefficients[2:]
        return np.hstack([alone * first[:, None], shared * ~first[:, None]])


def _column(name: str) -> Callable[[Terms], np.ndarray]:
    return lambda terms: terms.columns[name].to_numpy(dtype=float)


def _cycles(name: str) -> Callable[[Terms], np.ndarray]:
    return lambda terms: (terms.columns[name] / terms.columns["mhz"]).to_numpy(dtype=float)


PAPER = (
    Coefficient("alpha", "", _column("rtt"), "share of a round trip", high=1.0),
    Coefficient("beta1", "", _column("server_cpu"), "server's cycles / R"),
    Coefficient("beta2", "", _column("server_memory"), "server's evicted bytes / mem_tp"),
    Coefficient("beta3", "", _column("client_cpu"), "client's cycles / R"),
    Coefficient("beta4", "", _column("client_memory"), "client's evicted bytes / mem_tp"),
    Coefficient("beta5", "", _column("network"), "size / net_tp"),
)
PAPER_NEEDS = ("rtt", "server_cpu", "server_memory", "client_cpu", "client_memory", "network")
T0 = Coefficient("t0", "µs", _column("one"), "a request without its bytes")
K = Coefficient("k", "cycles/B", _cycles("size"), "cycles for each byte, at the client's frequency")
K2 = Coefficient(
    "k2", "cycles/B", _cycles("small"), "additional cycles for each byte of the first 64 KiB (--small-bytes)"
)
BW = Coefficient("1/bw", "µs/B", _column("size"), "time for each byte, at any frequency")
LINES = (
    Coefficient("t0", "µs", _column("one"), "a request without its bytes, up to the break"),
    Coefficient("1/bw", "µs/B", _column("size"), "time for each byte, up to the break"),
    Coefficient("t1", "µs", _column("one"), "the same above the break"),
    Coefficient("1/bw1", "µs/B", _column("size"), "time for each byte, above the break"),
)
SHARES = (
    Coefficient("t0", "µs", _column("one"), "a request alone, without its bytes"),
    Coefficient("1/bw", "µs/B", _column("size"), "time for each byte, alone"),
    Coefficient("d0", "µs", _column("connections"), "a request's turn at what connections share"),
    Coefficient("1/bwd", "µs/B", _column("connections"), "time for each byte at what connections share"),
)


def _paper(number: int, published: tuple[float, ...] | None, equation: str) -> Model:
    """Returns an equation of the paper as a model.

    The model omits terms whose published coefficient is 0, so the columns of these terms may be unknown.
    """
    used = [at for at in range(len(PAPER)) if published is None or published[at]]
    factors = None if published is None else tuple(published[at] for at in used)
    coefficients, needs = tuple(PAPER[at] for at in used), tuple(PAPER_NEEDS[at] for at in used)
    return Model(f"eq{number}", f"eq. {number}: t = {equation}", coefficients, needs, factors)


MODELS = {
    model.name: model
    for model in (
        Model("linear", "t = t0 + S/bw", (T0, BW), ("size",)),
        Model("frequency-simple", "t = t0 + k S/f", (T0, K), ("size", "mhz")),
        Model("frequency", "t = t0 + k S/f + k2 min(S, 64 KiB)/f", (T0, K, K2), ("size", "mhz")),
        Model("frequency-bandwidth", "t = t0 + k S/f + S/bw", (T0, K, BW), ("size", "mhz")),
        Model(
            "frequency-full", "t = t0 + k S/f + k2 min(S, 64 KiB)/f + S/bw", (T0, K, K2, BW), ("size", "mhz")
        ),
        Break("break", "t = t0 + S/bw up to a size, t1 + S/bw1 above it", LINES, ("size",)),
        Concurrent("concurrency", "t = max(t0 + S/bw, c (d0 + S/bwd))", SHARES, ("size", "connections")),
        _paper(8, (0, 1, 1, 1, 1, 1), "CUCs/Rs + L3EVs/mem + CUCc/Rc + L3EVc/mem + S/net"),
        _paper(9, None, "α rtt + β1 CUCs/Rs + β2 L3EVs/mem + β3 CUCc/Rc + β4 L3EVc/mem + β5 S/net"),
        _paper(11, (1, 1, 6, 1, 1, 1.5), "rtt + CUCs/Rs + 6 L3EVs/mem + CUCc/Rc + L3EVc/mem + 3/2 S/net"),
        _paper(12, (0.1, 1, 1, 1, 1, 2.7), "0.1 rtt + CUCs/Rs + L3EVs/mem + CUCc/Rc + L3EVc/mem + 2.7 S/net"),
        _paper(13, (0, 0.5, 1, 0.5, 1, 1), "1/2 CUCs/Rs + L3EVs/mem + 1/2 CUCc/Rc + L3EVc/mem + S/net"),
    )
}
FITTED = [name for name, model in MODELS.items() if model.published is None]
PUBLISHED = [name for name, model in MODELS.items() if model.published is not None]
