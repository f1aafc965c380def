"""DuckDB: a Parquet file that is written and queried. Its own S3 client is an extension that it downloads, so the query
uses s3fs, as DuckDB's documentation describes for fsspec.
"""

import duckdb
import fsspec
import numpy
import pyarrow
from work import Place, run


def connection(place: Place) -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    if place.is_s3:
        made.register_filesystem(fsspec.filesystem("s3"))
    return made


def write(place: Place, data: bytes) -> None:
    table = pyarrow.table({"value": numpy.frombuffer(data, "int64")})
    with connection(place) as database:
        database.register("values_written", table)
        database.execute(f"COPY values_written TO '{place.of('table.parquet')}' (FORMAT parquet)")


def read(place: Place) -> bytes:
    with connection(place) as database:
        found = database.execute(f"SELECT value FROM read_parquet('{place.of('table.parquet')}')")
        return found.fetchnumpy()["value"].tobytes()


run(write, read)
