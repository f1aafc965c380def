"""obstore: an upload in parts, a listing, and reads of ranges."""

import obstore
from obstore.store import LocalStore, S3Store
from work import Place, run

PIECE = 1 << 20


def store(place: Place) -> LocalStore | S3Store:
    return S3Store(place.bucket, prefix=place.prefix) if place.is_s3 else LocalStore(place.url)


def write(place: Place, data: bytes) -> None:
    obstore.put(store(place), "large", data, chunk_size=5 << 20)


def read(place: Place) -> bytes:
    opened = store(place)
    (entry,) = obstore.list(opened).collect()
    starts = range(0, entry["size"], PIECE)
    ends = [min(start + PIECE, entry["size"]) for start in starts]
    return b"".join(map(bytes, obstore.get_ranges(opened, "large", starts=list(starts), ends=ends)))


run(write, read)
