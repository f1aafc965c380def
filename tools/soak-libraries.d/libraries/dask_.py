"""Dask: a data frame in several Parquet files, and blocks of bytes."""

import dask
import dask.bytes
import dask.dataframe
import numpy
import pandas
from work import Place, run


def write(place: Place, data: bytes) -> None:
    frame = pandas.DataFrame({"value": numpy.frombuffer(data, "int64")})
    dask.dataframe.from_pandas(frame, npartitions=4).to_parquet(place.of("table"))


def read(place: Place) -> bytes:
    _, blocks = dask.bytes.read_bytes(place.of("table/*.parquet"), include_path=False)
    assert all(content.startswith(b"PAR1") for content in dask.compute(*(parts[0] for parts in blocks)))
    return dask.dataframe.read_parquet(place.of("table")).compute()["value"].to_numpy().tobytes()


run(write, read)
