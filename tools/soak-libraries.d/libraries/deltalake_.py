"""delta-rs: two commits to a table."""

import numpy
import pyarrow
from deltalake import DeltaTable, write_deltalake
from work import Place, run


def write(place: Place, data: bytes) -> None:
    values = numpy.frombuffer(data, "int64")
    half = len(values) // 2
    for number, piece in enumerate((values[:half], values[half:])):
        rows = numpy.arange(len(piece)) + number * half
        write_deltalake(place.of("table"), pyarrow.table({"row": rows, "value": piece}), mode="append")


def read(place: Place) -> bytes:
    table = DeltaTable(place.of("table"))
    assert table.version() == 1, table.version()
    found = pyarrow.table(table.to_pyarrow_table()).sort_by("row")
    return found.column("value").to_numpy().tobytes()


run(write, read)
