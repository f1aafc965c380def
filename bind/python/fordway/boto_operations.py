"""The S3 operations that `fordway.boto` carries out with calls to a store."""

from __future__ import annotations

import contextlib
import functools
import io
import mmap
import os
import pwd
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from botocore.response import StreamingBody
from botocore.utils import parse_to_aware_datetime

from fordway import CommonPrefix, boto_tags
from fordway.boto_responses import RefusedError, code_of, encoded, is_encoded, response
from fordway.errors import DataError, FordwayError, InvalidArgumentError, InvalidNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fordway import ObjectInfo, PutInfo, Store

    Parameters = dict[str, Any]
    Response = dict[str, Any]
    Answer = Callable[[Store, Parameters], Response | None]

BUFFER_BYTES = 1 << 20
"""A body up to this size is read as a whole. A longer body is read in pieces of this size while the program
reads it.
"""

HEADER_NAMES = {
    "cache-control": "CacheControl",
    "content-disposition": "ContentDisposition",
    "content-encoding": "ContentEncoding",
    "content-language": "ContentLanguage",
}
"""botocore's names for the headers that are stored with an object, apart from `expires`."""

DESCRIPTION = "ContentType Metadata CacheControl ContentDisposition ContentEncoding ContentLanguage Expires"
"""The parameters that describe an object."""

DESCRIPTIVE = frozenset(DESCRIPTION.split())

REGION = "us-east-1"
"""The region of all buckets, which is a gateway's default region."""

RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))")
"""Ranges whose bounds fit into 63 bits, as the store requires. A gateway accepts larger bounds."""
CONDITIONS = frozenset({"IfMatch", "IfNoneMatch", "CopySourceIfMatch"})
CONDITION = re.compile(r'\*|(?!W/)(?:(?![",*])[!-~])+|"(?:(?![",*])[!-~])+"')
"""Conditions with one ETag, or `*`. A gateway interprets or refuses other conditions, such as lists."""
BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}")
"""Bucket names that botocore sends unchanged. The store decides which of these names are valid. botocore
interprets other names as ARNs, or refuses them.
"""
NEW_BUCKET = re.compile(r"[a-z0-9.-]{1,63}")
NOT_NEW = (
    '"{}" is not a name that S3 allows for a new bucket; '
    "use 3 to 63 lower-case letters, digits, dots and hyphens, starting with a letter or digit"
)
"""A gateway's error message for a new bucket whose name S3 would refuse."""
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
PRINTABLE = re.compile(r"[ -~]*")
TO_ITSELF = (
    "This copy request is illegal because it is trying to copy an object to itself without changing the "
    "object's metadata, storage class, website redirect location or encryption attributes."
)
"""AWS's message for a copy that changes nothing."""
OTHER_CHECKSUM = "The provided 'x-amz-content-sha256' header does not match what was computed."
"""AWS's message for a body whose checksum differs from the checksum in the request."""
MALFORMED_XML = "The XML you provided was not well-formed or did not validate against our published schema."
"""AWS's message for a list of no keys, or of too many keys."""
DIRECTIVES = ("MetadataDirective", "TaggingDirective")
SOURCE_FIELDS = {"Bucket", "Key", "VersionId"}
PAGE_MAX = 1000
"""S3's limit for the entries of a page, and for the keys of a request."""
METADATA_BYTES_MAX = 2048
"""S3's limit for the names and values of user metadata."""
NULL_VERSION, VERSION_BYTES_MIN = "null", 24
"""The ID of a version that was written while the bucket kept no versions, and the length of the shortest
other ID. A gateway refuses shorter IDs.
"""
ABSENT = "-"
"""A valid name, in place of a parameter that a call does not have."""


@dataclass(frozen=True)
class Operation:
    """An operation, and the parameters that it supports."""

    known: frozenset[str]
    needed: frozenset[str]
    answer: Answer

    def takes(self, parameters: Parameters) -> bool:
        """Returns whether all parameters are supported, the bucket and key are plain names, and all
        conditions are plain. botocore executes all other calls.
        """
        if not (self.known >= parameters.keys() >= self.needed):
            return False
        bucket, key = parameters.get("Bucket", ABSENT), parameters.get("Key", ABSENT)
        if type(bucket) is not str or type(key) is not str or not key:
            return False
        if not CONDITIONS.isdisjoint(parameters):
            conditions = map(parameters.get, CONDITIONS)
            # botocore itself refuses a condition that is not text.
            if any(type(text) is str and CONDITION.fullmatch(text) is None for text in conditions):
                return False
        return BUCKET.fullmatch(bucket) is not None


OPERATIONS: dict[str, Operation] = {}


def operation(needed: str = "", known: str = "") -> Callable[[Answer], Answer]:
    """Registers a function under the operation's name, which is the function's name in CamelCase."""

    def register(answer: Answer) -> Answer:
        name = "".join(word.capitalize() for word in answer.__name__.split("_"))
        names = frozenset(needed.split())
        OPERATIONS[name] = Operation(names | set(known.split()), names, answer)
        return answer

    return register


def _seconds(time: datetime) -> datetime:
    # Times in HTTP headers have a precision of one second.
    return time.replace(microsecond=0)


def milliseconds(time: datetime) -> datetime:
    """Returns `time` with a precision of one millisecond, as in S3's XML documents."""
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def stated_etag(text: str | None) -> str | None:
    """Returns the ETag of a request's condition in the store's form, without quotes."""
    return text.strip('"') if text else None


def asked_version(parameters: Parameters) -> str | None:
    """Returns the version that a call names, if any. Raises a gateway's error for an invalid ID."""
    version: str | None = parameters.get("VersionId")
    if version is not None and version != NULL_VERSION and len(version.encode()) < VERSION_BYTES_MIN:
        if not version:
            why = "versionId is empty; omit it to select the latest version"
            raise InvalidArgumentError(why, "InvalidArgument", detail=why)
        facts = {"ArgumentName": "versionId", "ArgumentValue": version}
        raise RefusedError("Invalid version id specified", "InvalidArgument", facts)
    return version


def asked_algorithm(parameters: Parameters) -> str:
    """Returns the checksum algorithm of a call, which is by default the one that botocore adds."""
    return str(parameters.get("ChecksumAlgorithm", "CRC32")).upper()


def is_plain(store: Store, bucket: str) -> bool:
    """Returns whether versioning was never enabled in the bucket. For other buckets, the response must name a
    version.
    """
    return store.versioning(bucket) is None


def checksum_fields(algorithm: str | None, value: str | None) -> Response:
    """Returns the fields for a checksum; no fields if there is no checksum."""
    if algorithm is None or value is None:
        return {}
    kind = "COMPOSITE" if "-" in value else "FULL_OBJECT"
    return {f"Checksum{algorithm}": value, "ChecksumType": kind}


def _described(info: ObjectInfo, mode: str | None) -> Response:
    """Returns the fields that describe an object in the responses to `GetObject` and `HeadObject`."""
    metadata, headers = info.metadata, info.headers
    fields: Response = {
        "AcceptRanges": "bytes",
        "ContentType": info.content_type or "binary/octet-stream",
        "ETag": f'"{info.etag}"',
        "LastModified": _seconds(info.modified),
        "Metadata": {name: encoded(text) for name, text in metadata.items()} if metadata else {},
    }
    if headers:
        fields |= {HEADER_NAMES[name]: value for name, value in headers.items() if name in HEADER_NAMES}
        fields |= _expiry(headers.get("expires"))
    if info.version is not None:
        fields["VersionId"] = info.version
    if info.part_count is not None:
        fields["PartsCount"] = info.part_count
    if mode == "ENABLED" and info.checksum is not None:
        fields |= checksum_fields(*info.checksum)
    if info.retention is not None:
        fields["ObjectLockMode"], until = info.retention
        fields["ObjectLockRetainUntilDate"] = milliseconds(until)
    if info.legal_hold is not None:
        fields["ObjectLockLegalHoldStatus"] = "ON" if info.legal_hold else "OFF"
    return fields


def _null_version(store: Store, parameters: Parameters) -> Response:
    """Returns the field for the version `null`, if the call names it and the bucket keeps versions."""
    if parameters.get("VersionId") != "null" or is_plain(store, parameters["Bucket"]):
        return {}
    return {"VersionId": "null"}


def _expiry(text: str | None) -> Response:
    """Returns the fields for the `Expires` header. Like botocore, omits a time that cannot be parsed."""
    if text is None:
        return {}
    try:
        return {"ExpiresString": text, "Expires": parsedate_to_datetime(text)}
    except ValueError:
        return {"ExpiresString": text}


class RawBody:
    """Gives a file the further methods and arguments of botocore's raw body, which is a response of urllib3.

    `tell` of a closed body returns its last position.
    """

    size = 0
    """The number of bytes of the content."""
    _position = 0

    def read(
        self, amt: int | None = -1, decode_content: bool | None = None, cache_content: bool = False
    ) -> bytes:
        """Returns the next `amt` bytes. Content is never encoded in the store."""
        data: bytes = super().read(amt)
        return data

    def stream(self, amt: int = 1 << 16, decode_content: bool | None = None) -> Iterator[bytes]:
        """Yields the rest of the content in pieces of up to `amt` bytes."""
        while not self.closed and (piece := self.read(amt)):
            yield piece

    def isclosed(self) -> bool:
        """Returns whether the content was read to its end, or the body is closed."""
        return self.closed or self.tell() >= self.size

    def release_conn(self) -> None:
        """Does nothing, because the body has no connection."""

    def drain_conn(self) -> None:
        """Does nothing, because the body has no connection."""

    def close(self) -> None:
        """Keeps the position, and closes the file."""
        if not self.closed:
            self._position = super().tell()
        super().close()

    def tell(self) -> int:
        """Returns the number of bytes read so far, even after the file is closed."""
        return self._position if self.closed else super().tell()


class Content(StreamingBody):
    """The body of a response that does not come from a socket."""

    def set_socket_timeout(self, timeout: float) -> None:
        """Does nothing, because no socket is read."""


class ShortBody(RawBody, io.BytesIO):
    """A body that was read as a whole."""


class LongBody(RawBody, io.BufferedReader):
    """A body that is read in pieces while the program reads it."""


class MappedBody:
    """A mapped file, without its buffer."""

    def __init__(self, body: mmap.mmap) -> None:
        self.read = body.read


class MeasuredBody:
    """A file whose length is checked, at its end, against the length that the program specified."""

    def __init__(self, body: Any, stated_bytes: int) -> None:  # noqa: ANN401 (any readable file)
        self._body, self._stated_bytes, self._read_bytes = body, stated_bytes, 0

    def read(self, size: int = -1) -> bytes:
        """Returns the next `size` bytes, or all bytes if `size` is negative. At the end, raises the errors of
        `check_length`.
        """
        data: bytes = self._body.read(size)
        self._read_bytes += len(data)
        if not data or size < 0:
            check_length(self._read_bytes, self._stated_bytes)
        return data


def check_length(size: int, stated_bytes: int) -> None:
    """Raises the error of a gateway that receives fewer or more bytes than `Content-Length` specifies."""
    why = f"the body has {size} bytes, but ContentLength is {stated_bytes}"
    if size < stated_bytes:
        raise DataError(why, "IncompleteBody")
    if size > stated_bytes:
        # botocore sends the checksum of the whole body, but a gateway receives only the first bytes of the
        # body.
        raise RefusedError(OTHER_CHECKSUM, "XAmzContentSHA256Mismatch", {"Detail": why})


def position_of(body: object) -> int | None:
    """Returns the position of a file, or `None` for any other body."""
    # The body may be of any class, and only a repeated call needs the position.
    with contextlib.suppress(Exception):
        return body.tell()
    return None


def rewind(body: Any, position: int | None) -> bool:  # noqa: ANN401 (all that botocore takes)
    """Prepares a body to be read again, and returns whether this is possible."""
    if body is None or isinstance(body, str | bytes | bytearray):
        return True
    try:
        body.seek(position)
    except (AttributeError, OSError, TypeError, ValueError):
        return False
    return True


def content_of(parameters: Parameters) -> Any:  # noqa: ANN401 (all that botocore takes)
    """Returns the content for a put, or `None` for content that botocore must handle. Raises the errors of
    `check_length`.
    """
    body, stated_bytes = parameters.get("Body", b""), parameters.get("ContentLength")
    if stated_bytes is not None and stated_bytes < 0:
        return None
    if isinstance(body, str):
        body = body.encode()
    if isinstance(body, bytes | bytearray):
        if stated_bytes is not None:
            check_length(len(body), stated_bytes)
        return body
    if isinstance(body, mmap.mmap):
        # The store would copy a buffer as a whole. Like botocore, read it as a file, from its position.
        body = MappedBody(body)
    if not hasattr(body, "read"):
        return None
    # s3transfer reports progress only while a body is sent.
    if hasattr(body, "signal_transferring"):
        body.signal_transferring()
    return body if stated_bytes is None else MeasuredBody(body, stated_bytes)


def _description(parameters: Parameters) -> dict[str, Any] | None:
    """Returns the arguments that describe an object. Returns `None` for metadata that headers cannot contain
    or that a gateway refuses, and for a time that botocore must convert.
    """
    if parameters.keys().isdisjoint(DESCRIPTIVE):
        return {}
    metadata = {name: text.strip(" ") for name, text in parameters.get("Metadata", {}).items()}
    if not all(HEADER_NAME.fullmatch(name) and PRINTABLE.fullmatch(text) for name, text in metadata.items()):
        return None
    if sum(len(name) + len(text) for name, text in metadata.items()) > METADATA_BYTES_MAX:
        return None
    # A gateway decodes encoded words (RFC 2047), and removes `aws-chunked`.
    if any(map(is_encoded, metadata.values())) or not all(map(_is_plain_header, _described_by(parameters))):
        return None
    headers = {name: parameters[field] for name, field in HEADER_NAMES.items() if field in parameters}
    expires = parameters.get("Expires")
    if expires is not None:
        try:
            time = parse_to_aware_datetime(expires)
        except ValueError:
            return None
        headers["expires"] = format_datetime(time.astimezone(UTC), usegmt=True)
    return {
        "content_type": parameters.get("ContentType"),
        "metadata": metadata or None,
        "headers": headers or None,
    }


def _described_by(parameters: Parameters) -> list[object]:
    """Returns the values of the headers that describe an object, apart from `Expires`."""
    return [
        parameters[field]
        for field in ("ContentType", *HEADER_NAMES.values())
        if parameters.get(field) is not None
    ]


def _is_plain_header(text: object) -> bool:
    """Returns whether a gateway stores this text unchanged."""
    is_kept = type(text) is str and text.strip(" ") == text and bool(text)
    return is_kept and PRINTABLE.fullmatch(text) is not None and "aws-chunked" not in text.lower()


def put_arguments(parameters: Parameters) -> dict[str, Any] | None:
    """Returns the arguments of a put or an upload, or `None` for a call that botocore must send."""
    described = _description(parameters)
    if described is None or parameters.get("StorageClass", "STANDARD") != "STANDARD":
        return None
    tags = boto_tags.of_header(parameters.get("Tagging"))
    return {**described, "tags": tags, "checksum": asked_algorithm(parameters)}


@operation(
    "Bucket Key",
    f"Body Tagging IfNoneMatch IfMatch ChecksumAlgorithm ContentLength StorageClass {DESCRIPTION}",
)
def put_object(store: Store, parameters: Parameters) -> Response | None:
    """Stores an object with the checksum that botocore would add to the request."""
    content, arguments = content_of(parameters), put_arguments(parameters)
    if content is None or arguments is None:
        return None
    made = store.put_with_info(
        parameters["Bucket"],
        parameters["Key"],
        content,
        if_none_match=stated_etag(parameters.get("IfNoneMatch")),
        if_match=stated_etag(parameters.get("IfMatch")),
        **arguments,
    )
    return put_response(made, parameters)


def put_response(made: PutInfo, parameters: Parameters) -> Response:
    """Returns the response to a put, or to a part."""
    version, algorithm = stated_version(made), asked_algorithm(parameters)
    return response(ETag=f'"{made.etag}"', VersionId=version) | checksum_fields(algorithm, made.checksum)


def stated_version(made: PutInfo) -> str | None:
    """Returns the version in the response to a write. While versioning is suspended, S3 states none."""
    return None if made.version == "null" else made.version


def wanted_range(text: str | None) -> tuple[int | None, int | None] | None:
    """Returns the start and length of the range in a `Range` header, or `None` for a form that the gateway
    must handle. A range whose end is before its start counts as no range, as HTTP requires.
    """
    if text is None:
        return None, None
    found = RANGE.fullmatch(text)
    if found is None:
        return None
    first, last, count = found.groups()
    if count is not None:
        return (-int(count), None) if int(count) else None
    if last and int(last) < int(first):
        return None, None
    return int(first), int(last) - int(first) + 1 if last else None


@operation("Bucket Key", "Range VersionId ChecksumMode IfMatch IfNoneMatch")
def get_object(store: Store, parameters: Parameters) -> Response | None:
    """Opens an object. The body keeps the opened version, even if the object is replaced while the program
    reads the body.
    """
    asked = wanted_range(parameters.get("Range"))
    if asked is None:
        return None
    start, length = asked
    content, info = store.stream(
        parameters["Bucket"],
        parameters["Key"],
        start=start,
        length=length,
        version=asked_version(parameters),
        if_match=stated_etag(parameters.get("IfMatch")),
        if_none_match=stated_etag(parameters.get("IfNoneMatch")),
    )
    begin = max(info.size + start, 0) if start is not None and start < 0 else start or 0
    end = info.size if length is None else min(info.size, begin + length)
    is_short = end - begin <= BUFFER_BYTES
    body = ShortBody(content.read()) if is_short else LongBody(content, BUFFER_BYTES)
    body.size = end - begin
    # botocore requests the checksum in each get, to verify the content.
    described = _described(info, parameters.get("ChecksumMode", "ENABLED"))
    described |= _null_version(store, parameters)
    if start is None:
        status, part = 200, None
    else:
        # Checksums cover the whole object, so a response with a range has no checksum.
        described = {name: value for name, value in described.items() if not name.startswith("Checksum")}
        status, part = 206, f"bytes {begin}-{end - 1}/{info.size}"
    return response(
        status,
        Body=Content(body, end - begin),
        ContentLength=end - begin,
        ContentRange=part,
        TagCount=info.tag_count or None,
        **described,
    )


def unsent(store: Store, operation: str, parameters: Parameters, error: FordwayError) -> ObjectInfo | None:
    """Returns the object that a get did not return because of the range or a condition."""
    if operation != "GetObject" or error.kind not in ("InvalidRange", "NotModified"):
        return None
    try:
        return store.head(parameters["Bucket"], parameters["Key"], version=asked_version(parameters))
    except FordwayError:
        return None


@operation("Bucket Key", "VersionId ChecksumMode")
def head_object(store: Store, parameters: Parameters) -> Response:
    """Returns the properties of an object."""
    info = store.head(parameters["Bucket"], parameters["Key"], version=asked_version(parameters))
    described = _described(info, parameters.get("ChecksumMode")) | _null_version(store, parameters)
    return response(ContentLength=info.size, TagCount=info.tag_count or None, **described)


@operation("Bucket Key", "VersionId IfMatch")
def delete_object(store: Store, parameters: Parameters) -> Response:
    """Removes an object, or a version of it."""
    done = store.delete(
        parameters["Bucket"],
        parameters["Key"],
        version=asked_version(parameters),
        if_match=stated_etag(parameters.get("IfMatch")),
    )
    if done is None:
        return response(204)
    return response(204, VersionId=done.version, DeleteMarker=done.is_delete_marker or None)


@operation("Bucket Delete", "ChecksumAlgorithm")
def delete_objects(store: Store, parameters: Parameters) -> Response | None:
    """Removes many objects by their keys."""
    asked = parameters["Delete"]
    objects = (
        asked.get("Objects") if isinstance(asked, dict) and asked.keys() <= {"Objects", "Quiet"} else None
    )
    if objects is None or any(entry.keys() != {"Key"} for entry in objects):
        return None
    if not 1 <= len(objects) <= PAGE_MAX:
        facts = {"Detail": f"name 1 to {PAGE_MAX} keys, not {len(objects)}"}
        raise RefusedError(MALFORMED_XML, "MalformedXML", facts)
    names = [entry["Key"] for entry in objects]
    if not all(type(name) is str for name in names) or not is_plain(store, parameters["Bucket"]):
        return None
    results = _deleted(store, parameters["Bucket"], names)
    failed = [
        {"Key": name, "Code": code_of(error), "Message": error.detail}
        for name, error in zip(names, results, strict=True)
        if error is not None
    ]
    done = [{"Key": name} for name, error in zip(names, results, strict=True) if error is None]
    return response(
        Deleted=(done or None) if not asked.get("Quiet") else None,
        Errors=failed or None,
    )


def _deleted(store: Store, bucket: str, names: list[str]) -> list[FordwayError | None]:
    """Removes objects, and returns the error of each, or `None`. Like a gateway, and unlike
    `Store.delete_many`, removes the other objects if a key is invalid.
    """
    try:
        return store.delete_many(bucket, names)
    except InvalidNameError:
        results = [_name_error(store, bucket, name) for name in names]
    valid = [name for name, error in zip(names, results, strict=True) if error is None]
    deleted = iter(store.delete_many(bucket, valid))
    return [next(deleted) if error is None else error for error in results]


def _name_error(store: Store, bucket: str, name: str) -> FordwayError | None:
    """Returns the error for an invalid key."""
    try:
        # This call only checks the names.
        store.resume_upload(bucket, name, ABSENT)
    except InvalidNameError as error:
        return error
    return None


def _token(after: str | None) -> str | None:
    return None if after is None else urlsafe_b64encode(after.encode()).decode().rstrip("=")


def _name_of(token: str) -> str:
    """Returns the name that `_token` encoded. Raises `ValueError` for any other text."""
    name = urlsafe_b64decode(token + "==").decode()
    # Python ignores characters that are not in the alphabet.
    if _token(name) != token:
        raise ValueError(token)
    return name


def is_page_size(asked: object) -> bool:
    """Returns whether a gateway accepts this number of entries in a page. In S3, the number has 32 bits."""
    return type(asked) is int and 0 <= asked < 1 << 31


def _page(store: Store, parameters: Parameters, after: str | None, **entry_fields: object) -> Response | None:
    """Returns the fields that both kinds of listing have, or `None` for a listing that botocore must request.

    If the listing continues, `next` is the last name of the page. `entry_fields` are added to each object.
    """
    limit = parameters.get("MaxKeys", 1000)
    if not is_page_size(limit) or parameters.get("EncodingType", "url") != "url":
        return None
    limit = min(limit, PAGE_MAX)
    prefix, delimiter = parameters.get("Prefix", ""), parameters.get("Delimiter") or None
    if limit:
        page = store.list_page(
            parameters["Bucket"], prefix, delimiter, start_after=after or None, limit=limit
        )
        entries, following = page.entries, page.next
    else:
        store.head_bucket(parameters["Bucket"])
        entries, following = [], None
    encode = quote if parameters.get("EncodingType") == "url" else str
    contents = [
        {
            "Key": encode(entry.key),
            "LastModified": milliseconds(entry.modified),
            "ETag": f'"{entry.etag}"',
            "Size": entry.size,
            "StorageClass": "STANDARD",
            **entry_fields,
        }
        for entry in entries
        if not isinstance(entry, CommonPrefix)
    ]
    prefixes = [{"Prefix": encode(entry.prefix)} for entry in entries if isinstance(entry, CommonPrefix)]
    return {
        "next": following,
        "IsTruncated": following is not None,
        "Contents": contents or None,
        "Name": parameters["Bucket"],
        "Prefix": encode(prefix),
        "Delimiter": None if delimiter is None else encode(delimiter),
        "MaxKeys": limit,
        "CommonPrefixes": prefixes or None,
        # botocore requests this encoding in every listing, and decodes the names itself.
        "EncodingType": "url",
    }


@operation("Bucket", "Prefix Delimiter MaxKeys StartAfter ContinuationToken EncodingType FetchOwner")
def list_objects_v2(store: Store, parameters: Parameters) -> Response | None:
    """Returns a page of a listing."""
    token = parameters.get("ContinuationToken")
    try:
        # An empty token is the start of a loop.
        after = _name_of(token) if token else parameters.get("StartAfter")
    except ValueError:
        return None
    owner = {"Owner": process_user()} if parameters.get("FetchOwner") else {}
    page = _page(store, parameters, after, **owner)
    if page is None:
        return None
    # The token has the gateway's form, because a gateway may return the next page.
    following, start = _token(page.pop("next")), parameters.get("StartAfter")
    encode = quote if parameters.get("EncodingType") == "url" else str
    return response(
        KeyCount=len(page["Contents"] or ()) + len(page["CommonPrefixes"] or ()),
        ContinuationToken=token,
        NextContinuationToken=following,
        StartAfter=None if start is None else encode(start),
        **page,
    )


@operation("Bucket", "Prefix Delimiter MaxKeys Marker EncodingType")
def list_objects(store: Store, parameters: Parameters) -> Response | None:
    """Returns a page of a listing in the older form, which boto3's resources use."""
    page = _page(store, parameters, parameters.get("Marker"), Owner=process_user())
    if page is None:
        return None
    encode = quote if parameters.get("EncodingType") == "url" else str
    following = page.pop("next")
    return response(
        Marker=encode(parameters.get("Marker", "")),
        NextMarker=None if following is None else encode(following),
        **page,
    )


@functools.cache
def process_owner() -> str:
    """Returns the name of the effective user of this process, or the user ID if the user has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def process_user() -> dict[str, str]:
    """Returns the fields for the owner of all buckets and objects."""
    return {"DisplayName": process_owner(), "ID": process_owner()}


def copy_source(parameters: Parameters) -> tuple[str, str, str | None] | None:
    """Returns the bucket, key and version of a copy's source, or `None` for a form that botocore must
    handle.
    """
    source = parameters["CopySource"]
    if isinstance(source, str):
        # In a source with a query, botocore parses the version.
        if "?" in source:
            return None
        bucket, _, key = source.removeprefix("/").partition("/")
        source = {"Bucket": bucket, "Key": key}
    if not isinstance(source, dict) or not {"Bucket", "Key"} <= source.keys() <= SOURCE_FIELDS:
        return None
    if not all(type(text) is str and text for text in source.values()):
        return None
    bucket, key, version = source["Bucket"], source["Key"], source.get("VersionId")
    return (bucket, key, version) if BUCKET.fullmatch(bucket) else None


def same_object(
    store: Store, address: tuple[str, str], etag: str, version: str | None = None
) -> ObjectInfo | None:
    """Returns the properties of an object that was just published, or `None` if another writer has replaced
    or removed it since.
    """
    try:
        info = store.head(*address, version=version)
    except FordwayError:
        return None
    return info if info.etag == etag else None


def _replacements(parameters: Parameters) -> dict[str, Any] | None:
    """Returns the arguments of a copy that replaces metadata or tags, or `None` for a call that botocore must
    send.
    """
    arguments: dict[str, Any] = {}
    if any(parameters.get(name, "COPY") not in ("COPY", "REPLACE") for name in DIRECTIVES):
        return None
    if parameters.get("MetadataDirective") == "REPLACE":
        described = _description(parameters)
        if described is None:
            return None
        arguments |= described | {"metadata": described.get("metadata") or {}}
    elif not parameters.keys().isdisjoint(DESCRIPTION.split()):
        return None
    if parameters.get("TaggingDirective") == "REPLACE":
        arguments["tags"] = boto_tags.of_header(parameters.get("Tagging")) or {}
    elif "Tagging" in parameters:
        return None
    return arguments


@operation("Bucket Key CopySource", f"MetadataDirective TaggingDirective Tagging {DESCRIPTION}")
def copy_object(store: Store, parameters: Parameters) -> Response | None:
    """Copies an object. Keeps its metadata and tags, or replaces them."""
    source, replacements = copy_source(parameters), _replacements(parameters)
    if source is None or replacements is None:
        return None
    (from_bucket, from_key, version), to = source, (parameters["Bucket"], parameters["Key"])
    if version is not None or not is_plain(store, to[0]) or not is_plain(store, from_bucket):
        return None
    try:
        etag = store.copy(from_bucket, from_key, *to, **replacements)
    except InvalidArgumentError as error:
        if error.kind == "InvalidArgument" and (from_bucket, from_key) == to and not replacements:
            # A gateway makes this check itself, so its message does not name the object.
            detail = error.detail.removeprefix(f"{error.target}: ")
            raise RefusedError(TO_ITSELF, "InvalidRequest", {"Detail": detail}) from error
        raise
    made: Response = {"ETag": f'"{etag}"', "LastModified": milliseconds(datetime.now(UTC))}
    info = same_object(store, to, etag)
    if info is not None:
        made["LastModified"] = milliseconds(info.modified)
        made |= checksum_fields(*(info.checksum or (None, None)))
    return response(CopyObjectResult=made)


def _arn(parameters: Parameters) -> str:
    return f"arn:aws:s3:::{parameters['Bucket']}"


@operation("Bucket")
def head_bucket(store: Store, parameters: Parameters) -> Response:
    """Checks that the bucket exists."""
    store.head_bucket(parameters["Bucket"])
    return response(BucketArn=_arn(parameters), BucketRegion=REGION)


@operation("Bucket", "CreateBucketConfiguration")
def create_bucket(store: Store, parameters: Parameters) -> Response | None:
    """Creates a bucket. Like a gateway, refuses names that S3 refuses, so that the bucket can be moved to
    S3, and ignores the region.
    """
    if parameters.get("CreateBucketConfiguration", {}).keys() - {"LocationConstraint"}:
        return None
    if not NEW_BUCKET.fullmatch(parameters["Bucket"]):
        raise InvalidNameError(NOT_NEW.format(parameters["Bucket"]), "InvalidBucketName")
    store.create_bucket(parameters["Bucket"])
    return response(Location=f"/{parameters['Bucket']}", BucketArn=_arn(parameters))


@operation("Bucket")
def delete_bucket(store: Store, parameters: Parameters) -> Response:
    """Removes an empty bucket."""
    store.delete_bucket(parameters["Bucket"])
    return response(204)


@operation()
def list_buckets(store: Store, _: Parameters) -> Response:
    """Returns all buckets."""
    return response(
        Buckets=[
            {"Name": bucket.name, "CreationDate": milliseconds(bucket.created), "BucketRegion": REGION}
            for bucket in store.list_buckets()
        ],
        Owner=process_user(),
    )


@operation("Bucket")
def get_bucket_location(store: Store, parameters: Parameters) -> Response:
    """Returns the region, which S3 omits for its first region (us-east-1)."""
    store.head_bucket(parameters["Bucket"])
    return {**response(), "LocationConstraint": None}


@operation("Bucket")
def get_bucket_versioning(store: Store, parameters: Parameters) -> Response:
    """Returns the bucket's versioning state."""
    state = store.versioning(parameters["Bucket"])
    return response(Status=state.capitalize() if state else None)


@operation("Bucket Key", "VersionId")
def get_object_tagging(store: Store, parameters: Parameters) -> Response:
    """Returns an object's tags."""
    version = asked_version(parameters)
    tags = store.tags(parameters["Bucket"], parameters["Key"], version=version)
    entries = [{"Key": name, "Value": value} for name, value in tags.items()]
    return response(VersionId=version, TagSet=entries)


@operation("Bucket Key Tagging", "VersionId ChecksumAlgorithm")
def put_object_tagging(store: Store, parameters: Parameters) -> Response | None:
    """Replaces an object's tags."""
    version, asked = asked_version(parameters), parameters["Tagging"]
    entries = asked.get("TagSet") if isinstance(asked, dict) and asked.keys() == {"TagSet"} else None
    if entries is None or any(entry.keys() != {"Key", "Value"} for entry in entries):
        return None
    listed = [(entry["Key"], entry["Value"]) for entry in entries]
    if not all(type(text) is str for tag in listed for text in tag):
        return None
    boto_tags.check(listed)
    store.set_tags(parameters["Bucket"], parameters["Key"], dict(listed), version=version)
    return response(VersionId=version)


@operation("Bucket Key", "VersionId")
def delete_object_tagging(store: Store, parameters: Parameters) -> Response:
    """Removes an object's tags."""
    version = asked_version(parameters)
    store.set_tags(parameters["Bucket"], parameters["Key"], {}, version=version)
    return response(204, VersionId=version)
