"""The additional time of operations over a network, compared with loopback."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np

MSS_BYTES, HEADERS_BYTES = 1_448, 52
"""Payload of a full TCP segment over Ethernet with TCP timestamps, and the size of its IP and TCP headers."""
WINDOW_BYTES = 10 * MSS_BYTES
"""Initial congestion window of a new connection (RFC 6928)."""
KEYS_PER_PAGE = 1_000
"""Maximum number of keys in one response to a listing."""
CONTENT = ("put", "get", "range")
SCHEMES = ("http", "https")
"""Schemes of the URLs of services that are reached over HTTP."""


@dataclass(frozen=True)
class NetworkPath:
    """A network path. `None` means that a property is the same as on the machine's loopback interface."""

    rtt_us: float | None = None
    bandwidth_bytes_per_us: float | None = None

    @property
    def is_given(self) -> bool:
        """True if the path differs from loopback."""
        return self.rtt_us is not None or self.bandwidth_bytes_per_us is not None

    @property
    def content_bytes_per_us(self) -> float:
        """The bandwidth that is available for content, without headers."""
        whole = self.bandwidth_bytes_per_us
        return np.inf if whole is None else whole * MSS_BYTES / (MSS_BYTES + HEADERS_BYTES)

    def round_trips_us(self, count: float, threads: int) -> float:
        """Returns the additional time of the round trips of `count` operations, one for each operation.

        `threads` operations wait at the same time.
        """
        return (self.rtt_us or 0.0) * float(np.ceil(count / threads))

    def transfer_us(self, size: np.ndarray, byte_us: np.ndarray, phase: str) -> np.ndarray:
        """Returns the time by which the transfer of each operation exceeds `byte_us`. All operations share
        the bandwidth.

        `byte_us` is the lane's own time for the bytes of each operation.
        """
        moved = size if phase in CONTENT else np.zeros_like(size)
        return np.maximum(moved / self.content_bytes_per_us - byte_us, 0)

    def listing_us(self, objects: float) -> float:
        """Returns the additional time of one listing: a round trip for each page."""
        return (self.rtt_us or 0.0) * max(np.ceil(objects / KEYS_PER_PAGE), 1)

    def slow_start_us(self, size_max: float, phase: str) -> float:
        """Returns the additional time of slow start, which occurs once on a persistent connection.

        The additional time is one round trip for each doubling of the congestion window, until the window is
        as large as the largest object or the bandwidth-delay product.
        """
        if phase not in CONTENT or not self.rtt_us:
            return 0.0
        window = min(size_max, self.content_bytes_per_us * self.rtt_us)
        return self.rtt_us * max(np.ceil(np.log2(max(window, 1) / WINDOW_BYTES + 1)) - 1, 0)


def uses_http(lane: str, targets: Mapping[str, str]) -> bool:
    """Returns whether a lane uses HTTP. `targets` contains the URLs of the lanes that are separate services,
    because the names of these lanes do not identify the protocol.
    """
    return urlsplit(targets[lane]).scheme in SCHEMES if lane in targets else lane.startswith("http")


def is_over_network(lane: str, targets: Mapping[str, str]) -> bool:
    """Returns whether a lane was measured over a network, in which case its times already include the
    network.

    Host names are not resolved: only `localhost` and loopback addresses count as this machine.
    """
    return lane in targets and uses_http(lane, targets) and not _is_loopback(urlsplit(targets[lane]).hostname)


def crosses(lane: str, targets: Mapping[str, str]) -> bool:
    """Returns whether a lane would use the network, but was measured without a network. Returns false for
    lanes that do not use HTTP.
    """
    return uses_http(lane, targets) and not is_over_network(lane, targets)


def _is_loopback(host: str | None) -> bool:
    if host is None or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # A connection to the unspecified address, such as 0.0.0.0, also reaches this machine.
    return address.is_loopback or address.is_unspecified
