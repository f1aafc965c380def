"""pyarrow: a dataset of Parquet files in several directories."""

import numpy
import pyarrow
import pyarrow.dataset
from pyarrow import fs
from work import Place, run, settings

FILES = 4


def file_system(place: Place) -> tuple[fs.FileSystem, str]:
    if not place.is_s3:
        return fs.LocalFileSystem(), place.url
    said = settings()
    made = fs.S3FileSystem(endpoint_override=said["endpoint"], region=said["region"])
    return made, place.url.removeprefix("s3://")


def write(place: Place, data: bytes) -> None:
    values = numpy.frombuffer(data, "int64")
    rows = numpy.arange(len(values))
    table = pyarrow.table({"row": rows, "value": values, "part": rows * FILES // len(values)})
    files, path = file_system(place)
    pyarrow.dataset.write_dataset(table, f"{path}/table", filesystem=files, format="parquet", partitioning=["part"])


def read(place: Place) -> bytes:
    files, path = file_system(place)
    dataset = pyarrow.dataset.dataset(f"{path}/table", filesystem=files, format="parquet", partitioning=["part"])
    parts = [
        dataset.to_table(filter=pyarrow.dataset.field("part") == part).sort_by("row").column("value").to_numpy()
        for part in range(FILES)
    ]
    return numpy.concatenate(parts).tobytes()


run(write, read)
