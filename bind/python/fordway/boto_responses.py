"""Headers and errors of the responses of `fordway.boto`. A gateway's responses have the same headers and
errors.
"""

from __future__ import annotations

import http.client
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any

from fordway._fordway import S3_ERROR_FACTS, S3_ERRORS
from fordway.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from botocore.model import Shape

    from fordway import ObjectInfo
    from fordway.errors import FordwayError

    Response = dict[str, Any]

WITHOUT_BODY = {"HeadObject", "HeadBucket"}
"""Operations whose HTTP responses have no body. A client therefore receives only the status of an error."""

OK, NOT_MODIFIED = 200, 304

ENCODED = "=?UTF-8?B?"
"""The prefix of encoded text in a header value (RFC 2047)."""

DOCUMENT = {"content-type": "application/xml"}


class RefusedError(InvalidArgumentError):
    """A value that a gateway refuses before it calls the store. The message is AWS's."""

    def __init__(self, message: str, kind: str, facts: dict[str, str]) -> None:
        super().__init__(message, kind)
        self.facts = facts
        """Additional fields of the error document."""


_header_names: dict[str, tuple[dict[str, str], bool]] = {}
"""For each operation, the fields that botocore reads from headers, with the names of these headers, and
whether the response also has an XML body.
"""


def response(status: int = 200, **fields: object) -> Response:
    """Returns a response without the fields that are `None`."""
    described = {
        "RequestId": "",
        "HostId": "",
        "HTTPStatusCode": status,
        "HTTPHeaders": {},
        "RetryAttempts": 0,
    }
    answer: Response = {"ResponseMetadata": described}
    for name, value in fields.items():
        if value is not None:
            answer[name] = value
    return answer


def add_headers(client: Any, operation: str, answer: Response) -> None:  # noqa: ANN401
    """Adds the HTTP headers that botocore would have parsed into the fields of this response."""
    found = _header_names.get(operation)
    if found is None:
        shape = client.meta.service_model.operation_model(operation).output_shape
        found = _header_names[operation] = (dict(_fields(shape)), _has_document(shape))
    names, has_document = found
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    for field, value in answer.items():
        name = names.get(field)
        if name is None:
            continue
        if type(value) is dict:
            headers.update((f"{name}{key}", text) for key, text in value.items())
        else:
            headers[name] = value if type(value) is str else _text(field, value)
    headers["date"] = _present_date()
    if "ExpiresString" in answer:
        headers["expires"] = answer["ExpiresString"]
    if has_document:
        headers |= DOCUMENT
    elif answer["ResponseMetadata"]["HTTPStatusCode"] == OK:
        headers.setdefault("content-length", "0")


def _fields(shape: Shape | None) -> Iterator[tuple[str, str]]:
    for field, member in shape.members.items() if shape is not None else ():
        if member.serialization.get("location") in ("header", "headers"):
            yield field, member.serialization["name"].lower()


def _has_document(shape: Shape | None) -> bool:
    if shape is None:
        return False
    payload = shape.serialization.get("payload")
    if payload is not None:
        return shape.members[payload].type_name == "structure"
    return any("location" not in member.serialization for member in shape.members.values())


ISO_TIME = "ObjectLockRetainUntilDate"
"""The field whose header has a time in the form of S3's XML documents."""


def _text(field: str, value: object) -> str:
    if isinstance(value, datetime):
        # The store's times are in UTC.
        in_utc = value if value.tzinfo is UTC else value.astimezone(UTC)
        return _iso_time(value) if field == ISO_TIME else _date(in_utc)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def time_parser_of(client: Any) -> Callable[[str], Any] | None:  # noqa: ANN401
    """Returns the function that parses the times in a client's responses, if it is not botocore's own.
    aws-cli keeps times as text.
    """
    factory = getattr(getattr(client, "_endpoint", None), "_response_parser_factory", None)
    return getattr(factory, "_defaults", {}).get("timestamp_parser")


def parse_times(client: Any, operation: str, answer: Response, parser: Callable[[str], Any]) -> None:  # noqa: ANN401
    """Replaces each time in a response with the result of `parser` for the text of a gateway's response."""
    shape = client.meta.service_model.operation_model(operation).output_shape
    members = {} if shape is None else shape.members
    for name, value in answer.items():
        is_header = name in members and members[name].serialization.get("location") == "header"
        is_header &= name != ISO_TIME
        answer[name] = _parsed(value, parser, _date if is_header else _iso_time)


def _parsed(value: object, parser: Callable[[str], Any], text_of: Callable[[datetime], str]) -> object:
    if isinstance(value, datetime):
        return parser(text_of(value))
    if isinstance(value, list):
        return [_parsed(each, parser, text_of) for each in value]
    if isinstance(value, dict):
        return {name: _parsed(each, parser, text_of) for name, each in value.items()}
    return value


def _iso_time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z"


def _date(time: datetime) -> str:
    """Returns a time in UTC as an HTTP date. Formatting with `email.utils` would take longer than the store's
    call.
    """
    # Always in English, for instance `Thu Jan 01 00:00:00 1970`.
    text = time.ctime().replace("  ", " 0")
    return f"{text[:3]}, {text[8:10]} {text[4:7]} {text[20:]} {text[11:19]} GMT"


_present = (0.0, 0.0, "")
"""The first and the last moment of a second, and its HTTP date."""


def _present_date() -> str:
    """Returns the present time as an HTTP date. Formats it once a second, because this takes long for a small
    object.
    """
    global _present
    start, end, text = _present
    now = time()
    if not start <= now < end:
        start = now // 1
        text = _date(datetime.fromtimestamp(start, UTC))
        _present = (start, start + 1, text)
    return text


def encoded(text: str) -> str:
    """Returns a metadata value encoded for an HTTP header. Text that would not be transmitted unchanged is
    encoded (RFC 2047).
    """
    is_plain = text.isascii() and text.isprintable() and text.strip(" ") == text
    if is_plain and not is_encoded(text):
        return text
    return f"{ENCODED}{b64encode(text.encode()).decode()}?="


def is_encoded(text: str) -> bool:
    """Returns whether a gateway decodes this metadata value."""
    if not text.upper().startswith(ENCODED) or not text.endswith("?="):
        return False
    try:
        b64decode(text[len(ENCODED) : -2], validate=True).decode()
    except ValueError:
        return False
    return True


def client_error(
    client: Any,  # noqa: ANN401
    operation: str,
    error: FordwayError,
    parameters: dict[str, Any],
    described: ObjectInfo | None,
    retries: int,
) -> Exception:
    """Returns the exception that botocore raises for this error over HTTP. `described` is the object that a
    get did not return because of the range or a condition; otherwise `None`. `retries` is the number of times
    that the call was repeated.
    """
    status, code, _ = _s3_error(error)
    answer = response(status)
    answer["ResponseMetadata"]["RetryAttempts"] = retries
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    headers |= DOCUMENT | {"x-fordway-error-code": code, "date": _present_date()}
    if described is not None and status == NOT_MODIFIED:
        headers["etag"] = f'"{described.etag}"'
    elif described is not None:
        headers["content-range"] = f"bytes */{described.size}"
    if operation in WITHOUT_BODY or status == NOT_MODIFIED:
        code = str(status)
        answer["Error"] = {"Code": code, "Message": http.client.responses.get(status, "")}
    else:
        facts = _facts(code, operation, error, parameters)
        if described is not None:
            facts["ActualObjectSize"] = str(described.size)
        answer["Error"] = facts | _document(error)
    raised: Exception = client.exceptions.from_code(code)(answer, operation)
    return raised


def code_of(error: FordwayError) -> str:
    """Returns S3's code for an error."""
    return _s3_error(error)[1]


CONDITIONS = {
    "IfMatch": "If-Match",
    "IfNoneMatch": "If-None-Match",
    "CopySourceIfMatch": "x-amz-copy-source-If-Match",
}
"""AWS's names for the conditions of calls."""


def _facts(code: str, operation: str, error: FordwayError, parameters: dict[str, Any]) -> dict[str, str]:
    """Returns the parts of a call that AWS's error document for `code` repeats."""
    names = S3_ERROR_FACTS.get(code, ())
    facts = {name: _fact(name, operation, error, parameters) for name in names}
    return {name: text for name, text in facts.items() if text}


def _fact(name: str, operation: str, error: FordwayError, parameters: dict[str, Any]) -> str | None:
    source = parameters.get("CopySource", {})
    match name:
        case "BucketName" | "Key":
            # A copy has two buckets and two keys. The error names the right ones.
            bucket, _, key = error.target.removeprefix("s3://").partition("/")
            found = bucket if name == "BucketName" else key
            return found or (None if source else parameters.get(name.removesuffix("Name")))
        case "VersionId":
            return parameters.get(name) or (source.get(name) if isinstance(source, dict) else None)
        case "UploadId":
            return parameters.get(name)
        case "RangeRequested":
            return parameters.get("Range")
        case "Condition":
            stated = [text for field, text in CONDITIONS.items() if field in parameters]
            # If `IfNoneMatch` of a read does not hold, the response is not an error document.
            is_known = len(stated) == 1 or operation in ("GetObject", "HeadObject")
            return stated[0] if stated and is_known else None
    return None


def _document(error: FordwayError) -> dict[str, str]:
    """Returns the fields of an error document: AWS's message, and Fordway's own message as the detail."""
    _, code, message = _s3_error(error)
    if isinstance(error, RefusedError):
        return {"Code": code, "Message": str(error), **error.facts}
    if message is None:
        return {"Code": code, "Message": error.detail}
    return {"Code": code, "Message": message, "Detail": error.detail}


def _s3_error(error: FordwayError) -> tuple[int, str, str | None]:
    # A kind that the table does not contain is an S3 error code. The text of the error is then AWS's message.
    return S3_ERRORS.get(error.kind, (400, error.kind, str(error)))
