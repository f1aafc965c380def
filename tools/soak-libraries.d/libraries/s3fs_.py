"""s3fs: a file that is written and read in blocks, a listing, and many small files at once."""

import fsspec
from work import Place, run


def write(place: Place, data: bytes) -> None:
    files, path = fsspec.url_to_fs(place.url)
    files.makedirs(path, exist_ok=True)
    with files.open(f"{path}/large", "wb", block_size=8 << 20) as file:
        file.write(data)
    files.pipe({f"{path}/small/{number}": b"x" for number in range(12)}) if place.is_s3 else None


def read(place: Place) -> bytes:
    files, path = fsspec.url_to_fs(place.url)
    if place.is_s3:
        assert set(files.cat(files.ls(f"{path}/small", detail=False)).values()) == {b"x"}
    with files.open(f"{path}/large", "rb") as file:
        return file.read()


run(write, read)
