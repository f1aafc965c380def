"""icechunk: two commits to a repository of Zarr arrays."""

import icechunk
import numpy
import zarr
from work import Place, run, settings


def storage(place: Place) -> icechunk.Storage:
    if not place.is_s3:
        return icechunk.local_filesystem_storage(place.of("repository"))
    said = settings()
    return icechunk.s3_storage(
        bucket=place.bucket,
        prefix=f"{place.prefix}/repository",
        endpoint_url=said["endpoint"],
        region=said["region"],
        allow_http=True,
        force_path_style=True,
        from_env=True,
    )


def write(place: Place, data: bytes) -> None:
    values = numpy.frombuffer(data, "int64")
    repository = icechunk.Repository.create(storage(place))
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="value", shape=values.shape, chunks=(1 << 17,), dtype="int64")
    session.commit("an empty array")
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="value")
    array[:] = values
    session.commit("the values")


def read(place: Place) -> bytes:
    repository = icechunk.Repository.open(storage(place))
    assert len(list(repository.ancestry(branch="main"))) == 3
    session = repository.readonly_session("main")
    return zarr.open_array(session.store, path="value", mode="r")[:].tobytes()


run(write, read)
