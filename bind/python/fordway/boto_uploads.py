"""The listings of multipart uploads that `fordway.boto` carries out with calls to a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fordway.boto_operations import checksum_fields, milliseconds, operation, process_owner
from fordway.boto_responses import response

if TYPE_CHECKING:
    from collections.abc import Callable

    from fordway import PartSummary, Store, UploadSummary
    from fordway.boto_operations import Parameters, Response

PAGE_MAX = 1000
"""The maximum number of entries of a page, which is S3's limit."""

MOST_NUMBER = (1 << 16) - 1
"""The largest `PartNumberMarker` that a gateway accepts."""


def _page_size(asked: object) -> int | None:
    """Returns the size of a page, or `None` for a number that a gateway refuses."""
    return min(asked, PAGE_MAX) if type(asked) is int and asked >= 0 else None


def _upload_fields(checksum: tuple[str, str] | None) -> Response:
    """Returns the fields that describe an upload in both listings."""
    user = {"DisplayName": process_owner(), "ID": process_owner()}
    fields: Response = {"Initiator": user, "Owner": dict(user), "StorageClass": "STANDARD"}
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
