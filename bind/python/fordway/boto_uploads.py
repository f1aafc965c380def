"""The operations on multipart uploads that `fordway.boto` carries out with calls to a store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fordway.boto_operations import (
    DESCRIPTION,
    PAGE_MAX,
    asked_algorithm,
    checksum_fields,
    content_of,
    copy_source,
    is_page_size,
    is_plain,
    milliseconds,
    operation,
    process_user,
    put_arguments,
    put_response,
    same_object,
    stated_etag,
    stated_version,
    wanted_range,
)
from fordway.boto_responses import response
from fordway.errors import FordwayError, InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fordway import PartSummary, Store, Upload, UploadSummary
    from fordway.boto_operations import Parameters, Response

MOST_NUMBER = (1 << 16) - 1
"""The largest `PartNumberMarker` that a gateway accepts."""

BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
OTHER_PART = "{}: part {} does not match the stated checksum; list the parts and send what is missing"
"""The store's message for a part whose checksum differs from the checksum in the request."""


@operation("Bucket Key", f"Tagging ChecksumAlgorithm StorageClass {DESCRIPTION}")
def create_multipart_upload(store: Store, parameters: Parameters) -> Response | None:
    """Starts an upload."""
    arguments = put_arguments(parameters)
    if arguments is None:
        return None
    # botocore adds a default algorithm to parts, but not to this request.
    algorithm = asked_algorithm(parameters) if "ChecksumAlgorithm" in parameters else None
    upload = store.upload(parameters["Bucket"], parameters["Key"], **arguments | {"checksum": algorithm})
    names = {"Bucket": upload.bucket, "Key": upload.key, "UploadId": upload.id}
    # These are S3's defaults. A call with another type is sent to a gateway.
    kind = {None: None, "CRC64NVME": "FULL_OBJECT"}.get(algorithm, "COMPOSITE")
    return response(ChecksumAlgorithm=algorithm, ChecksumType=kind, **names)


@operation("Bucket Key UploadId PartNumber", "Body ChecksumAlgorithm ContentLength")
def upload_part(store: Store, parameters: Parameters) -> Response | None:
    """Sends a part."""
    number, algorithm = parameters["PartNumber"], asked_algorithm(parameters)
    upload = store.resume_upload(parameters["Bucket"], parameters["Key"], parameters["UploadId"])
    if not _is_part_number(number) or _algorithm_of(upload) not in (None, algorithm):
        return None
    content = content_of(parameters)
    if content is None:
        return None
    made = upload.put_part(number, content, checksum=algorithm)
    answer = put_response(made, parameters)
    # In S3, only the checksums of whole objects have a type.
    answer.pop("ChecksumType", None)
    return answer


def _algorithm_of(upload: Upload) -> str | None:
    """Returns the checksum algorithm that was stated when the upload began."""
    checksum = upload.parts_page(limit=1).checksum
    return None if checksum is None else checksum[0]


def _is_part_number(number: object) -> bool:
    return type(number) is int and 1 <= number <= 10_000


@operation("Bucket Key UploadId PartNumber CopySource", "CopySourceRange CopySourceIfMatch")
def upload_part_copy(store: Store, parameters: Parameters) -> Response | None:
    """Fills a part from another object."""
    source, asked = copy_source(parameters), wanted_range(parameters.get("CopySourceRange"))
    if source is None or asked is None or not _is_part_number(parameters["PartNumber"]):
        return None
    start, length = asked
    if start is None and "CopySourceRange" in parameters:
        return None
    if (start is not None and (start < 0 or length is None)) or not is_plain(store, source[0]):
        return None
    upload = store.resume_upload(parameters["Bucket"], parameters["Key"], parameters["UploadId"])
    try:
        made = upload.copy_part(
            parameters["PartNumber"],
            *source[:2],
            start=start,
            length=length,
            version=source[2],
            if_match=stated_etag(parameters.get("CopySourceIfMatch")),
        )
    except FordwayError as error:
        # The gateway's error contains the size of the source.
        if error.kind == "InvalidRange":
            return None
        raise
    part: Response = {"ETag": f'"{made.etag}"', "LastModified": milliseconds(made.modified)}
    part |= checksum_fields(_algorithm_of(upload), made.checksum)
    part.pop("ChecksumType", None)
    return response(CopyPartResult=part)


def _fit_checksums(upload: Upload, listed: list[dict[str, Any]]) -> bool:
    """Returns whether the checksums in a list of parts are those of the upload's parts. Returns false for
    checksums that a gateway must examine. Raises the store's error for a part with another checksum.
    """
    if not any(map(_checksums, listed)):
        return True
    try:
        parts = {part.number: part for part in upload.parts()}
    except NotFoundError:
        # The upload may already be completed. The store then compares only the ETags, for a gateway too.
        return True
    for entry in listed:
        part = parts.get(entry["PartNumber"])
        # The store refuses the list if the part is missing or has another ETag.
        if part is None or part.etag != stated_etag(entry["ETag"]):
            continue
        stated, own = _checksums(entry), checksum_fields(*(part.checksum or (None, None)))
        if own.items() >= stated.items():
            continue
        if not all(map(_is_checksum, stated.values(), map(own.get, stated))):
            return False
        target = f"s3://{upload.bucket}/{upload.key}"
        raise InvalidArgumentError(OTHER_PART.format(target, part.number), "InvalidPart", target)
    return True


def _has_needed_checksums(upload: Upload, listed: list[dict[str, Any]]) -> bool:
    """Returns whether a list of parts has the checksums that S3 requires for a composite checksum. A gateway
    refuses a list without them.
    """
    if all(map(_checksums, listed)):
        return True
    try:
        checksum = upload.parts_page(limit=1).checksum
    except NotFoundError:
        # The upload may already be completed.
        return True
    return checksum is None or checksum[1] != "COMPOSITE"


def _is_checksum(text: str, own: str | None) -> bool:
    """Returns whether `text` is valid and has the algorithm of `own`, a part's own checksum."""
    return own is not None and len(text) == len(own) and BASE64.fullmatch(text) is not None


def _checksums(part: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in part.items() if name.startswith("Checksum")}


@operation("Bucket Key UploadId MultipartUpload", "IfMatch IfNoneMatch")
def complete_multipart_upload(store: Store, parameters: Parameters) -> Response | None:
    """Publishes the object that consists of the parts."""
    listed = parameters["MultipartUpload"].get("Parts")
    if not listed or any("PartNumber" not in part or "ETag" not in part for part in listed):
        return None
    bucket, key = parameters["Bucket"], parameters["Key"]
    upload = store.resume_upload(bucket, key, parameters["UploadId"])
    if not _has_needed_checksums(upload, listed) or not _fit_checksums(upload, listed):
        return None
    made = upload.complete(
        [(part["PartNumber"], stated_etag(part["ETag"]) or "") for part in listed],
        if_none_match=stated_etag(parameters.get("IfNoneMatch")),
        if_match=stated_etag(parameters.get("IfMatch")),
    )
    names = {"Bucket": bucket, "Key": key, "Location": f"/{bucket}/{quote(key)}"}
    fields = {"ETag": f'"{made.etag}"', "VersionId": stated_version(made), **names}
    # The algorithm of the checksum is known only from the published object.
    info = same_object(store, (bucket, key), made.etag, made.version)
    checksum = info.checksum if info is not None else None
    return response(**fields, **checksum_fields(*(checksum or (None, None))))


@operation("Bucket Key UploadId")
def abort_multipart_upload(store: Store, parameters: Parameters) -> Response:
    """Removes an upload."""
    store.resume_upload(parameters["Bucket"], parameters["Key"], parameters["UploadId"]).abort()
    return response(204)


def _page_size(asked: object) -> int | None:
    """Returns the size of a page, or `None` for a number that a gateway refuses."""
    return min(asked, PAGE_MAX) if is_page_size(asked) else None


def _upload_fields(checksum: tuple[str, str] | None) -> Response:
    """Returns the fields that describe an upload in both listings."""
    fields: Response = {"Initiator": process_user(), "Owner": process_user(), "StorageClass": "STANDARD"}
    if checksum is not None:
        fields["ChecksumAlgorithm"], fields["ChecksumType"] = checksum
    return fields


def _part_fields(part: PartSummary) -> Response:
    checksum = checksum_fields(*(part.checksum or (None, None)))
    # In S3, only the checksums of whole objects have a type.
    checksum.pop("ChecksumType", None)
    return {
        "PartNumber": part.number,
        "LastModified": milliseconds(part.modified),
        "ETag": f'"{part.etag}"',
        "Size": part.size,
        **checksum,
    }


@operation("Bucket Key UploadId", "MaxParts PartNumberMarker")
def list_parts(store: Store, parameters: Parameters) -> Response | None:
    """Returns a page of the parts of an upload."""
    limit, after = _page_size(parameters.get("MaxParts", PAGE_MAX)), parameters.get("PartNumberMarker", 0)
    if limit is None or type(after) is not int or not 0 <= after <= MOST_NUMBER:
        return None
    upload = store.resume_upload(parameters["Bucket"], parameters["Key"], parameters["UploadId"])
    page = upload.parts_page(after, limit=limit)
    parts = [_part_fields(part) for part in page.parts]
    return response(
        Bucket=upload.bucket,
        Key=upload.key,
        UploadId=upload.id,
        PartNumberMarker=after,
        NextPartNumberMarker=parts[-1]["PartNumber"] if parts and page.is_truncated else None,
        MaxParts=limit,
        IsTruncated=page.is_truncated,
        Parts=parts or None,
        **_upload_fields(page.checksum),
    )


def _upload_entry(upload: UploadSummary, encode: Callable[[str], str]) -> dict[str, Any]:
    return {
        "UploadId": upload.id,
        "Key": encode(upload.key),
        "Initiated": milliseconds(upload.started),
        **_upload_fields(upload.checksum),
    }


@operation("Bucket", "Prefix Delimiter KeyMarker UploadIdMarker MaxUploads EncodingType")
def list_multipart_uploads(store: Store, parameters: Parameters) -> Response | None:
    """Returns a page of the uploads in progress."""
    limit, encoding = _page_size(parameters.get("MaxUploads", PAGE_MAX)), parameters.get("EncodingType")
    if limit is None or encoding not in (None, "url"):
        return None
    # Unlike for listings of objects, botocore neither requests this encoding nor decodes the names.
    encode = quote if encoding == "url" else str
    prefix, delimiter = parameters.get("Prefix", ""), parameters.get("Delimiter") or None
    markers = parameters.get("KeyMarker", ""), parameters.get("UploadIdMarker", "")
    after = (markers[0], markers[1] or None) if markers[0] else None
    page = store.uploads_page(parameters["Bucket"], prefix, delimiter, after=after, limit=limit)
    next_key, next_upload = page.next or (None, None)
    return response(
        Bucket=parameters["Bucket"],
        KeyMarker=encode(markers[0]),
        UploadIdMarker=markers[1],
        NextKeyMarker=None if next_key is None else encode(next_key),
        NextUploadIdMarker=next_upload,
        Prefix=encode(prefix),
        Delimiter=None if delimiter is None else encode(delimiter),
        EncodingType=encoding,
        MaxUploads=limit,
        IsTruncated=page.next is not None,
        Uploads=[_upload_entry(upload, encode) for upload in page.uploads] or None,
        CommonPrefixes=[{"Prefix": encode(found)} for found in page.prefixes] or None,
    )
