"""TensorStore: an array in Zarr's format, written and read in chunks."""

import numpy
import tensorstore
from work import Place, run, settings


def array(place: Place, count: int | None = None) -> tensorstore.TensorStore:
    said = settings() if place.is_s3 else {}
    where = (
        {
            "driver": "s3",
            "bucket": place.bucket,
            "path": f"{place.prefix}/array/",
            "endpoint": said["endpoint"],
            "aws_region": said["region"],
        }
        if place.is_s3
        else {"driver": "file", "path": place.of("array/")}
    )
    made = {"dtype": tensorstore.int64, "shape": [count], "create": True} if count else {}
    chunks = {"chunk_layout": tensorstore.ChunkLayout(chunk_shape=[1 << 17])} if count else {}
    return tensorstore.open({"driver": "zarr3", "kvstore": where}, open=True, **made, **chunks).result()


def write(place: Place, data: bytes) -> None:
    values = numpy.frombuffer(data, "int64")
    array(place, len(values)).write(values).result()


def read(place: Place) -> bytes:
    return array(place).read().result().tobytes()


run(write, read)
