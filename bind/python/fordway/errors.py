"""Exceptions of all calls. Failures that a caller handles in the same way share a class.

Every class is a `FordwayError`. Most classes also derive from the built-in exception that Python programs
already catch, so code written for dictionaries or files works unchanged. `FordwayError.kind` distinguishes
failures that share a class.
"""

from __future__ import annotations

import errno

# `typing` takes longer to import than all of fordway, so only type checkers import it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, Self


class FordwayError(Exception):
    """An operation failed. The message gives the operation, its target, the cause, and what to do next."""

    _errno: ClassVar[int | None] = None
    """The value of `errno`, if the class is also an `OSError`."""

    kind: str
    """The kind of failure, one of `fordway._fordway.ERROR_KINDS`."""
    target: str
    """The URL of the target of the failed operation (`s3://bucket/key`), or an empty string."""
    detail: str
    """The message as a gateway sends it: without the lane, and without errors of the operating system."""

    def __init__(self, message: str, kind: str = "Internal", target: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.target = target
        self.detail = detail or message
        if isinstance(self, OSError):
            self.errno = self._errno
            self.strerror = message
            self.filename = target or None

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, str, str], dict[str, list[str]]]:
        # OSError keeps its attributes outside of `__dict__`, so pickle would lose them.
        notes = getattr(self, "__notes__", None)
        state = {"__notes__": notes} if notes else {}
        return type(self), (str(self), self.kind, self.target, self.detail), state

    def __str__(self) -> str:
        # KeyError would show the repr of the message, and OSError would put the errno before it.
        return str(self.args[0])


class NotFoundError(FordwayError, KeyError, FileNotFoundError):
    """The bucket, object or upload does not exist."""

    _errno = errno.ENOENT


class AlreadyExistsError(FordwayError, FileExistsError):
    """The bucket already exists."""

    _errno = errno.EEXIST


class BucketNotEmptyError(FordwayError, OSError):
    """The bucket contains objects, so it cannot be removed."""

    _errno = errno.ENOTEMPTY


class InvalidNameError(FordwayError, ValueError):
    """The name of a bucket or a key is invalid."""


class InvalidArgumentError(FordwayError, ValueError):
    """An argument, range or part is invalid for the operation."""


class PreconditionFailedError(FordwayError):
    """The condition `if_match` or `if_none_match` does not hold, or another writer finished first."""


class NotModifiedError(FordwayError):
    """The object has not changed since the caller read it."""


class DataError(FordwayError):
    """The content is damaged or truncated, in transit or on disk."""


class AccessDeniedError(FordwayError, PermissionError):
    """The kernel or the server denied access, or the credentials are invalid."""

    _errno = errno.EACCES


class NoSpaceError(FordwayError, OSError):
    """The file system is full."""

    _errno = errno.ENOSPC


class QuotaExceededError(FordwayError, OSError):
    """A quota is used up."""

    _errno = errno.EDQUOT


class ReadOnlyError(FordwayError, OSError):
    """The file system is mounted read-only."""

    _errno = errno.EROFS


class TooManyOpenFilesError(FordwayError, OSError):
    """The process or the system has no free file descriptors."""

    _errno = errno.EMFILE


class UnsupportedError(FordwayError, NotImplementedError):
    """The store does not support the operation in general, or does not support it for this object.

    Derives from `NotImplementedError` because callers of fsspec and io catch that class.
    """


class UnavailableError(FordwayError, ConnectionError):
    """The endpoint cannot be reached, requests a later retry, or does not speak S3."""

    _errno = errno.ECONNREFUSED


class DeadlineError(FordwayError, TimeoutError):
    """A deadline passed."""

    _errno = errno.ETIMEDOUT


class CallInterruptedError(FordwayError, InterruptedError):
    """The caller interrupted the operation."""

    _errno = errno.EINTR


class InputOutputError(FordwayError, OSError):
    """Any other error of the operating system; the message gives its cause."""

    _errno = errno.EIO


class InternalError(FordwayError, RuntimeError):
    """A bug in Fordway."""


BY_KIND: dict[str, type[FordwayError]] = {
    "NoSuchBucket": NotFoundError,
    "NoSuchKey": NotFoundError,
    "NoSuchUpload": NotFoundError,
    "NoSuchVersion": NotFoundError,
    "BucketAlreadyExists": AlreadyExistsError,
    "BucketAlreadyOwnedByYou": AlreadyExistsError,
    "BucketNotEmpty": BucketNotEmptyError,
    "InvalidBucketName": InvalidNameError,
    "InvalidKey": InvalidNameError,
    "KeyTooLong": InvalidNameError,
    "InvalidRange": InvalidArgumentError,
    "InvalidArgument": InvalidArgumentError,
    "InvalidTag": InvalidArgumentError,
    "NotModified": NotModifiedError,
    "PreconditionFailed": PreconditionFailedError,
    "ConditionalConflict": PreconditionFailedError,
    "BadDigest": DataError,
    "IncompleteBody": DataError,
    "EntityTooLarge": InvalidArgumentError,
    "EntityTooSmall": InvalidArgumentError,
    "InvalidPart": InvalidArgumentError,
    "InvalidPartOrder": InvalidArgumentError,
    "AccessDenied": AccessDeniedError,
    "SignatureDoesNotMatch": AccessDeniedError,
    "InvalidAccessKeyId": AccessDeniedError,
    "RequestTimeTooSkewed": AccessDeniedError,
    "NoSpace": NoSpaceError,
    "QuotaExceeded": QuotaExceededError,
    "ReadOnly": ReadOnlyError,
    "TooManyOpenFiles": TooManyOpenFilesError,
    "NotImplemented": UnsupportedError,
    "MethodNotAllowed": UnsupportedError,
    "Unavailable": UnavailableError,
    "LockTimeout": DeadlineError,
    "Timeout": DeadlineError,
    "BadResponse": UnavailableError,
    "Corrupt": DataError,
    "Interrupted": CallInterruptedError,
    "Io": InputOutputError,
    "Internal": InternalError,
}
"""The class for every kind. A test compares the keys with the list of kinds in the Rust code."""


def exception_for(kind: str, message: str, target: str, detail: str = "") -> FordwayError:
    """Returns the exception for an error of `kind`. Called from Rust."""
    return BY_KIND[kind](message, kind, target, detail)
