"""zarr and xarray: a compressed array in chunks, through fsspec."""

import numpy
import xarray
from work import Place, run


def write(place: Place, data: bytes) -> None:
    values = numpy.frombuffer(data, "int64").reshape(-1, 8)
    dataset = xarray.Dataset({"value": (("row", "column"), values)})
    chunks = {"value": {"chunks": (max(1, len(values) // 16), 8)}}
    dataset.to_zarr(place.of("array.zarr"), mode="w", consolidated=True, zarr_format=3, encoding=chunks)


def read(place: Place) -> bytes:
    with xarray.open_zarr(place.of("array.zarr")) as dataset:
        return dataset["value"].to_numpy().astype(numpy.int64).tobytes()


run(write, read)
