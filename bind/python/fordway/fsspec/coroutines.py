"""Coroutines for programs that create a file system with `asynchronous=True`."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Coroutines:
    """The coroutines of fsspec's asynchronous file systems, such as `await files._cat_file(path)`.

    With `asynchronous=True`, each method that does not iterate has a coroutine that runs the method on a
    thread. The coroutine's name is the method's name with a `_` before it. The methods themselves stay
    synchronous.
    """

    async_impl = False
    asynchronous = False

    def _offer_coroutines(self, asynchronous: bool) -> None:
        """Adds the coroutines if `asynchronous` is true."""
        if asynchronous:
            self.async_impl = self.asynchronous = True
            # fsspec's synchronous class has a method of this name, which removes one object.
            self._rm = _on_thread(self.rm)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        is_offered = name.startswith("_") and not name.startswith("__") and self.__dict__.get("async_impl")
        method = getattr(type(self), name[1:], None) if is_offered else None
        if not inspect.isfunction(method) or inspect.isgeneratorfunction(method):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _on_thread(functools.partial(method, self))


def _on_thread(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 (those of the method)
        return await asyncio.to_thread(method, *arguments, **options)

    return call
