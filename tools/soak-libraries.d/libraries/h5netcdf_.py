"""h5netcdf: a NetCDF file that is uploaded, and read through a file object."""

import tempfile

import fsspec
import h5netcdf
import numpy
from work import Place, run


def write(place: Place, data: bytes) -> None:
    values = numpy.frombuffer(data, "int64")
    with tempfile.NamedTemporaryFile(suffix=".nc") as made:
        with h5netcdf.File(made.name, "w") as file:
            file.dimensions = {"row": len(values)}
            file.create_variable("value", ("row",), "i8", data=values, chunks=(min(1 << 17, len(values)),))
        files, path = fsspec.url_to_fs(place.url)
        files.put_file(made.name, f"{path}/array.nc")


def read(place: Place) -> bytes:
    with fsspec.open(place.of("array.nc"), "rb") as opened, h5netcdf.File(opened, "r") as file:
        return file["value"][:].tobytes()


run(write, read)
