"""Coroutines for programs that create a file system with `asynchronous=True`."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable


class Coroutines:
    """The coroutines of fsspec's asynchronous file systems, such as `await files._cat_file(path)`.

    With `asynchronous=True`, each method has a coroutine that runs the method on a thread. Each generator,
    such as `walk`, has an asynchronous generator that runs each step on a thread. The name of a coroutine is
    the name of its method with the prefix `_`. The methods themselves stay synchronous.
    """

    async_impl = False
    asynchronous = False

    def _offer_coroutines(self, asynchronous: bool) -> None:
        """Adds the coroutines if `asynchronous` is true."""
        if asynchronous:
            self.async_impl = self.asynchronous = True
            # fsspec's synchronous class has a method of this name, which removes one object.
            self._rm = _on_thread(self.rm)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any] | AsyncGenerator[Any, None]]:
        is_offered = name.startswith("_") and not name.startswith("__") and self.__dict__.get("async_impl")
        method = getattr(type(self), name[1:], None) if is_offered else None
        if not inspect.isfunction(method):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        offer = _steps_on_thread if inspect.isgeneratorfunction(method) else _on_thread
        return offer(functools.partial(method, self))


def _on_thread(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 (those of the method)
        return await asyncio.to_thread(method, *arguments, **options)

    return call


def _steps_on_thread(method: Callable[..., Any]) -> Callable[..., AsyncGenerator[Any, None]]:
    async def call(*arguments: Any, **options: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401 (likewise)
        items, end = method(*arguments, **options), object()
        while (item := await asyncio.to_thread(next, items, end)) is not end:
            yield item

    return call
