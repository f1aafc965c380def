"""What a call raises: one class for each way a caller may want to react.

Every class is a `FordwayError`; most are also the built-in exception that Python programs catch
already, so that code written for dictionaries or files works unchanged. `FordwayError.kind` tells
apart what shares a class.
"""

import errno
from typing import ClassVar


class FordwayError(Exception):
    """An operation failed. The message says what, on what, why, and what to do next."""

    _errno: ClassVar[int | None] = None
    """What `errno` is, where the class is an `OSError` too."""

    kind: str
    """The way it failed, one of `fordway._fordway.ERROR_KINDS`."""
    target: str
    """The address the operation was on (`s3://bucket/key`), or empty."""

    def __init__(self, message: str, kind: str = "Internal", target: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.target = target
        if isinstance(self, OSError):
            self.errno = self._errno
            self.strerror = message

    def __str__(self) -> str:
        # KeyError would show the message's repr, OSError its number first.
        return str(self.args[0])


class NotFoundError(FordwayError, KeyError, FileNotFoundError):
    """The bucket, object or upload does not exist."""

    _errno = errno.ENOENT


class AlreadyExistsError(FordwayError, FileExistsError):
    """The bucket exists already."""

    _errno = errno.EEXIST


class BucketNotEmptyError(FordwayError, OSError):
    """A bucket with objects in it cannot be removed."""

    _errno = errno.ENOTEMPTY


class InvalidNameError(FordwayError, ValueError):
    """The bucket's name or the key cannot be one."""


class InvalidArgumentError(FordwayError, ValueError):
    """An argument, range or part is not one the operation takes."""


class PreconditionFailedError(FordwayError):
    """`if_match` or `if_none_match` does not hold, or another writer came first."""


class NotModifiedError(FordwayError):
    """The caller's copy is current."""


class DataError(FordwayError):
    """The content is not what was stated or stored: damaged or cut on its way, or on disk."""


class AccessDeniedError(FordwayError, PermissionError):
    """The kernel or the server said no, or the credentials do not fit."""

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
    """The process or the system has no file descriptor left."""

    _errno = errno.EMFILE


class UnsupportedError(FordwayError, NotImplementedError):
    """The operation is not offered here, or does not apply to this object.

    Python's `NotImplementedError` is what callers of fsspec and io catch for that; nothing is unfinished.
    """


class UnavailableError(FordwayError, ConnectionError):
    """The endpoint cannot be reached, asks to come back later, or does not speak S3."""

    _errno = errno.ECONNREFUSED


class DeadlineError(FordwayError, TimeoutError):
    """A deadline passed."""

    _errno = errno.ETIMEDOUT


class CallInterruptedError(FordwayError, InterruptedError):
    """The caller asked to stop."""

    _errno = errno.EINTR


class InputOutputError(FordwayError, OSError):
    """Any other error of the operating system; the message tells."""

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
"""The class for every kind. A test holds the keys against the list in Rust."""


def exception_for(kind: str, message: str, target: str) -> FordwayError:
    """Returns the exception for an error of `kind`. Called from Rust."""
    return BY_KIND[kind](message, kind, target)
