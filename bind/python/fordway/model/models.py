"""The models: equations of the paper (by its numbers), and those with few coefficients that can be told
apart.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fordway.model.points import DataError
from fordway.model.terms import Terms

Structure = float | None
"""What of a model is not a factor: where it breaks."""


@dataclass(frozen=True)
class Coefficient:
    """A factor of one column."""

    name: str
    unit: str
    column: Callable[[Terms], np.ndarray]
    meaning: str
    high: float = np.inf
    """The most it may be where fits have bounds; the least is 0: nothing takes less than no time."""


@dataclass(frozen=True)
class Model:
    """A sum of columns with factors."""

    name: str
    equation: str
    coefficients: tuple[Coefficient, ...]
    needs: tuple[str, ...]
    """The columns of `Terms` without which it is nothing."""
    published: tuple[float, ...] | None = None
    """The factors, where somebody has named them: such a model is checked, not fitted."""

    @property
    def names(self) -> list[str]:
        """The coefficients' names."""
        return [each.name for each in self.coefficients]

    def structures(self, terms: Terms) -> list[Structure]:
        """Where it may break, on these rows."""
        del terms
        return [None]

    def design(
        self, terms: Terms, structure: Structure, coefficients: np.ndarray | None = None
    ) -> np.ndarray:
        """One row for each measurement, one column for each coefficient."""
        del structure, coefficients
        return np.column_stack([each.column(terms) for each in self.coefficients])

    def predict(self, terms: Terms, coefficients: np.ndarray, structure: Structure) -> np.ndarray:
        """The times in µs."""
        return self.design(terms, structure, coefficients) @ coefficients


class Break(Model):
    """Two lines, for small and for large objects: eager and rendezvous protocols of MPI, or a cache that
    ends.
    """

    def structures(self, terms: Terms) -> list[Structure]:
        """Sizes with three rows or more up to them and above them."""
        sizes = terms.columns["size"].to_numpy()
        kept = [float(at) for at in np.unique(sizes) if min((sizes <= at).sum(), (sizes > at).sum()) >= 3]
        if not kept:
            raise DataError(
                "no size has three rows up to it and three above it: there is no place for a break"
            )
        return kept

    def design(
        self, terms: Terms, structure: Structure, coefficients: np.ndarray | None = None
    ) -> np.ndarray:
        """Columns of each line are 0 on the other's rows."""
        del coefficients
        size = terms.columns["size"].to_numpy()
        small = size <= structure
        return np.column_stack([small, small * size, ~small, ~small * size]).astype(float)


class Concurrent(Model):
    """max(one request alone, its turn at what all share): the asymptotic bounds of a closed queueing
    network.
    """

    def structures(self, terms: Terms) -> list[Structure]:
        """Numbers of connections at which sharing may begin to count; only where a fit starts from."""
        found = np.unique(terms.columns["connections"].to_numpy())
        if len(found) < 3:
            raise DataError(
                "there are fewer than three different numbers of connections: nothing shows what they share"
            )
        return [float(at) for at in found[:-1]]

    def design(
        self, terms: Terms, structure: Structure, coefficients: np.ndarray | None = None
    ) -> np.ndarray:
        """Columns of the greater branch; with no coefficients yet, `structure` says which that is."""
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
    "k2", "cycles/B", _cycles("small"), "cycles more for each byte of the first 64 KiB (--small-bytes)"
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
    """Terms whose factor is published as 0 are not there: what they are made of need not be known."""
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
