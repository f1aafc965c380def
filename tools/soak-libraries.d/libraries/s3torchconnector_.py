"""s3torchconnector: a PyTorch data loader over the objects below a prefix; locally a data set of files."""

from pathlib import Path

from torch.utils.data import DataLoader, Dataset
from work import Place, run, settings

PIECE = 1 << 20


class Files(Dataset):
    """The files of a directory."""

    def __init__(self, directory: str) -> None:
        self.paths = sorted(Path(directory).iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, bytes]:
        return self.paths[index].name, self.paths[index].read_bytes()


def pieces(data: bytes) -> list[tuple[str, bytes]]:
    return [(f"{at:09}", data[at : at + PIECE]) for at in range(0, len(data), PIECE)]


def write(place: Place, data: bytes) -> None:
    if not place.is_s3:
        for name, piece in pieces(data):
            Path(place.of(name)).write_bytes(piece)
        return
    from s3torchconnector import S3Checkpoint

    said = settings()
    checkpoint = S3Checkpoint(region=said["region"], endpoint=said["endpoint"])
    for name, piece in pieces(data):
        with checkpoint.writer(place.of(name)) as writer:
            writer.write(piece)


def named(entry: object) -> tuple[str, bytes]:
    return entry.key.rpartition("/")[2], entry.read()


def read(place: Place) -> bytes:
    if place.is_s3:
        from s3torchconnector import S3MapDataset

        said = settings()
        data = S3MapDataset.from_prefix(f"{place.url}/", region=said["region"], endpoint=said["endpoint"], transform=named)
    else:
        data = Files(place.url)
    return b"".join(piece for _, piece in sorted(DataLoader(data, batch_size=None)))


run(write, read)
