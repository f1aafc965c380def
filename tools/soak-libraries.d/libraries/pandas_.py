"""pandas: a CSV file and a Parquet file."""

import numpy
import pandas
from work import Place, run


def write(place: Place, data: bytes) -> None:
    frame = pandas.DataFrame({"value": numpy.frombuffer(data, "int64")})
    frame.to_csv(place.of("table.csv"), index=False)
    frame.to_parquet(place.of("table.parquet"))


def read(place: Place) -> bytes:
    text, columns = pandas.read_csv(place.of("table.csv")), pandas.read_parquet(place.of("table.parquet"))
    assert text.equals(columns)
    return columns["value"].to_numpy().tobytes()


run(write, read, 1 / 8)
