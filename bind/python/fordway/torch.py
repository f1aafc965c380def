"""Objects as data sets of PyTorch, for `torch.utils.data.DataLoader` with any number of workers.

>>> data = fordway.torch.ObjectDataset("images", "train/", endpoint="file:///data", transform=decoded)
>>> loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=8)

`ObjectDataset` lists its keys once, and then gives access to any object by its number, as shuffling needs.
`ObjectIterableDataset` reads the objects in the order of their keys, and lists them as it reads.
`transform(key, content)` runs in the worker; the content is `bytes`. Empty objects whose keys end with a
slash (directory markers) are not items of the dataset. Needs PyTorch.
"""

from __future__ import annotations

import itertools
import zlib
from typing import TYPE_CHECKING, Generic, TypeVar

from torch.utils.data import Dataset, IterableDataset, get_worker_info

import fordway
from fordway.errors import FordwayError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

__all__ = ["ObjectDataset", "ObjectIterableDataset"]

T = TypeVar("T")

READ_KEYS = 64
"""The number of objects that `ObjectIterableDataset` reads in one call, unless `batch` says otherwise."""


def _key_and_content(key: str, content: bytes) -> tuple[str, bytes]:
    return key, content


class ObjectDataset(Dataset, Generic[T]):
    """The objects of a bucket by number: all keys that begin with `prefix`, or the given `keys`.

    `endpoint` is passed to `fordway.open`; without it, the environment determines the endpoint. Each item is
    `transform(key, content)`; without `transform`, it is the pair itself. A batch is read in as few requests
    as the lane allows.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        keys: Sequence[str] | None = None,
        endpoint: str | PathLike[str] | None = None,
        transform: Callable[[str, bytes], T] = _key_and_content,  # type: ignore[assignment]
    ) -> None:
        self.bucket, self.transform = bucket, transform
        self.store = fordway.open(endpoint)
        self.keys = list(_listed(self.store, bucket, prefix) if keys is None else keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, number: int) -> T:
        key = self.keys[number]
        return self.transform(key, self.store.get(self.bucket, key))

    def __getitems__(self, numbers: Sequence[int]) -> list[T]:
        """Returns the items of a batch. Called by `DataLoader`."""
        keys = [self.keys[number] for number in numbers]
        return list(_items(self.store, self.bucket, keys, self.transform))


class ObjectIterableDataset(IterableDataset, Generic[T]):
    """The objects of a bucket whose keys begin with `prefix`, in byte order of their keys.

    Each of the workers of a `DataLoader` reads its share of the objects. `part` divides the objects among
    several loaders, for instance the loaders of all ranks: `part=(rank, ranks)`. A hash of the key determines
    the share, so each object is read once, even if objects are added or removed meanwhile. Shares differ in
    size by chance. `batch` is the number of objects that are read in one call, and kept in memory together.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | PathLike[str] | None = None,
        transform: Callable[[str, bytes], T] = _key_and_content,  # type: ignore[assignment]
        part: tuple[int, int] = (0, 1),
        batch: int = READ_KEYS,
    ) -> None:
        if not 0 <= part[0] < part[1]:
            why = f"part is (number, count) with 0 <= number < count, and not {part}"
            raise InvalidArgumentError(why, "InvalidArgument")
        if batch < 1:
            raise InvalidArgumentError(f"batch is at least 1, and not {batch}", "InvalidArgument")
        self.bucket, self.prefix, self.transform = bucket, prefix, transform
        self.part, self.batch = part, batch
        self.store = fordway.open(endpoint)

    def __iter__(self) -> Iterator[T]:
        worker = get_worker_info()
        number, count = self.part
        if worker is not None:
            number, count = number + worker.id * count, count * worker.num_workers
        listed = _listed(self.store, self.bucket, self.prefix)
        keys = (key for key in listed if zlib.crc32(key.encode()) % count == number)
        while batch := list(itertools.islice(keys, self.batch)):
            yield from _items(self.store, self.bucket, batch, self.transform)


def _listed(store: fordway.Store, bucket: str, prefix: str) -> Iterator[str]:
    """Yields the keys that begin with `prefix`, except the keys of empty objects that mark directories, which
    consoles and other programs create.
    """
    for entry in store.list(bucket, prefix):
        if isinstance(entry, fordway.ObjectSummary) and not (entry.key.endswith("/") and entry.size == 0):
            yield entry.key


def _items(
    store: fordway.Store, bucket: str, keys: Sequence[str], transform: Callable[[str, bytes], T]
) -> Iterator[T]:
    """Yields the items of `keys`. Raises the error of the first object that cannot be read."""
    for key, content in zip(keys, store.get_many(bucket, keys), strict=True):
        if isinstance(content, FordwayError):
            raise content
        yield transform(key, content)
