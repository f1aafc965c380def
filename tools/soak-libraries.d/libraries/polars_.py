"""Polars: a Parquet file that is written, scanned and collected."""

import numpy
import polars
from work import Place, run


def write(place: Place, data: bytes) -> None:
    polars.DataFrame({"value": numpy.frombuffer(data, "int64")}).write_parquet(place.of("table.parquet"))


def read(place: Place) -> bytes:
    frame = polars.scan_parquet(place.of("table.parquet")).select("value").collect()
    return frame["value"].to_numpy().tobytes()


run(write, read)
