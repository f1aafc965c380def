"""What a network adds to what was measured on loopback."""

from dataclasses import dataclass

import numpy as np

MSS_BYTES, HEADERS_BYTES = 1_448, 52
"""A full segment on Ethernet with time stamps, and its headers of IP and TCP."""
WINDOW_BYTES = 10 * MSS_BYTES
"""What a new connection sends before the first answer (RFC 6928)."""
KEYS_PER_PAGE = 1_000
"""What one request of a listing returns at most."""
CONTENT = ("put", "get", "range")


@dataclass(frozen=True)
class Link:
    """A network path; `None` is what the machine's loopback has."""

    rtt_us: float | None = None
    bandwidth_bytes_per_us: float | None = None

    @property
    def is_given(self) -> bool:
        """Whether there is anything to add."""
        return self.rtt_us is not None or self.bandwidth_bytes_per_us is not None

    @property
    def content_bytes_per_us(self) -> float:
        """What is left of the bandwidth for content."""
        whole = self.bandwidth_bytes_per_us
        return np.inf if whole is None else whole * MSS_BYTES / (MSS_BYTES + HEADERS_BYTES)

    def operation_us(self, size: np.ndarray, byte_us: np.ndarray, phase: str) -> np.ndarray:
        """What each operation takes longer: a round trip, and the time by which the line is slower with its
        bytes than the lane, whose own bytes take `byte_us`.
        """
        moved = size if phase in CONTENT else np.zeros_like(size)
        return (self.rtt_us or 0.0) + np.maximum(moved / self.content_bytes_per_us - byte_us, 0)

    def listing_us(self, objects: float) -> float:
        """What one listing takes longer: a round trip for each page."""
        return (self.rtt_us or 0.0) * max(np.ceil(objects / KEYS_PER_PAGE), 1)

    def slow_start_us(self, size_max: float, phase: str) -> float:
        """What a kept connection takes, once, until its window is as large as the largest object, or as the
        line holds: a round trip for each time that the window doubles.
        """
        if phase not in CONTENT or not self.rtt_us:
            return 0.0
        window = min(size_max, self.content_bytes_per_us * self.rtt_us)
        return self.rtt_us * max(np.ceil(np.log2(max(window, 1) / WINDOW_BYTES + 1)) - 1, 0)


def crosses(lane: str) -> bool:
    """Whether a lane's bytes would go over a network: those of HTTP do, the others stay on the node."""
    return lane.startswith("http")
