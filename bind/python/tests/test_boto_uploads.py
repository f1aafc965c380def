"""Tests the multipart uploads of `fordway.boto`. The responses must equal the responses of a gateway on the
same directory.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from boto_clients import BUCKET, clients, compared, metadata_of, outcome

boto3 = pytest.importorskip("boto3")
from botocore.exceptions import ClientError  # noqa: E402

import fordway.boto  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["clients"]

KEYS = ["a b/ü&", "a b/z", "d/1", "e", "e"]


@pytest.fixture
def uploads(clients: tuple[Any, Any]) -> list[dict[str, str]]:
    """Uploads in progress for the keys. The first upload has three parts; the last upload has no parts."""
    within, _ = clients
    algorithms = ["SHA256", "CRC32", "CRC64NVME", "CRC32C", "CRC32"]
    made = []
    for key, algorithm in zip(KEYS, algorithms, strict=True):
        begun = within.create_multipart_upload(Bucket=BUCKET, Key=key, ChecksumAlgorithm=algorithm)
        made.append({"Bucket": BUCKET, "Key": key, "UploadId": begun["UploadId"]})
    for number in (2, 7, 9):
        body = b"abc" * number
        within.upload_part(**made[0], PartNumber=number, Body=body, ChecksumAlgorithm="SHA256")
    return made


def whole_outcome(call: Callable[..., dict[str, Any]], parameters: dict[str, Any]) -> dict[str, Any]:
    """Returns everything that a call returns or raises. Omits the headers of the request, and the names
    of the user, which differ between the gateway and the process.
    """
    try:
        response = call(**parameters)
    except ClientError as error:
        described = error.response["Error"]
        if described["Code"] == "NoSuchUpload":
            # A gateway checks the form of an ID before it calls the store.
            described.pop("Detail")
        return {"error": type(error).__name__, **described, **metadata_of(error.response)}
    for described in (response, *response.get("Uploads", ())):
        for field in described.keys() & {"Owner", "Initiator"}:
            assert described[field].keys() == {"ID", "DisplayName"}
            described[field] = "a user"
    return {**response, "ResponseMetadata": metadata_of(response)}


PARTS = [
    {},
    {"MaxParts": 1},
    {"MaxParts": 2, "PartNumberMarker": 2},
    {"MaxParts": 0},
    {"MaxParts": 5000, "PartNumberMarker": 9},
    {"UploadId": "0" * 32},
    {"UploadId": "not an ID"},
    {"Key": "e"},
    {"Bucket": "nowhere"},
]


@pytest.mark.parametrize("asked", PARTS, ids=str)
def test_parts_are_listed_as_by_a_gateway(
    clients: tuple[Any, Any], uploads: list[dict[str, str]], asked: dict[str, Any]
) -> None:
    within, through = (whole_outcome(client.list_parts, uploads[0] | asked) for client in clients)
    assert within == through
    assert fordway.boto.answered["ListParts", "in process"] == 1
    assert ("error" in within) == bool(asked.keys() & {"UploadId", "Key", "Bucket"})


def test_the_upload_without_parts_is_listed_as_by_a_gateway(
    clients: tuple[Any, Any], uploads: list[dict[str, str]]
) -> None:
    within, through = (whole_outcome(client.list_parts, uploads[-1]) for client in clients)
    assert within == through
    assert "Parts" not in within and within["ChecksumAlgorithm"] == "CRC32"


UPLOADS = [
    {},
    {"MaxUploads": 2},
    {"MaxUploads": 0},
    {"MaxUploads": 5000, "KeyMarker": "a b/z"},
    {"Prefix": "a b/"},
    {"Prefix": "a b/", "EncodingType": "url"},
    {"Delimiter": "/"},
    {"Delimiter": "/", "MaxUploads": 1},
    {"Delimiter": "/", "MaxUploads": 1, "EncodingType": "url"},
    {"Delimiter": "/", "MaxUploads": 1, "KeyMarker": "a b/"},
    {"Delimiter": "/", "Prefix": "a b/"},
    {"Delimiter": " b", "EncodingType": "url"},
    {"Delimiter": ""},
    {"Prefix": "nothing"},
    {"UploadIdMarker": "alone"},
    {"KeyMarker": "e", "UploadIdMarker": "0"},
    {"Bucket": "nowhere"},
]


@pytest.mark.parametrize("asked", UPLOADS, ids=str)
@pytest.mark.usefixtures("uploads")
def test_uploads_are_listed_as_by_a_gateway(clients: tuple[Any, Any], asked: dict[str, Any]) -> None:
    parameters = {"Bucket": BUCKET, **asked}
    within, through = (whole_outcome(client.list_multipart_uploads, parameters) for client in clients)
    assert within == through
    assert fordway.boto.answered["ListMultipartUploads", "in process"] == 1
    assert ("error" in within) == ("Bucket" in asked)


def test_paginators_and_resources_list_in_the_process(
    clients: tuple[Any, Any], uploads: list[dict[str, str]]
) -> None:
    within, _ = clients
    in_order = sorted(uploads, key=lambda upload: (upload["Key"].encode(), upload["UploadId"]))
    for size in (1, 2, 1000):
        config = {"PageSize": size}
        lister = within.get_paginator("list_multipart_uploads")
        pages = lister.paginate(Bucket=BUCKET, PaginationConfig=config)
        found = [(upload["Key"], upload["UploadId"]) for page in pages for upload in page.get("Uploads", ())]
        assert found == [(upload["Key"], upload["UploadId"]) for upload in in_order]
        pages = within.get_paginator("list_parts").paginate(**uploads[0], PaginationConfig=config)
        assert [part["PartNumber"] for page in pages for part in page["Parts"]] == [2, 7, 9]
    bucket = boto3.session.Session().resource("s3").Bucket(BUCKET)
    assert {upload.id for upload in bucket.multipart_uploads.all()} == {it["UploadId"] for it in uploads}
    found = bucket.Object(uploads[0]["Key"]).MultipartUpload(uploads[0]["UploadId"])
    assert [part.part_number for part in found.parts.all()] == [2, 7, 9]
    assert {way for _, way in fordway.boto.answered} == {"in process"}


WRONG = [
    ("list_parts", {"Key": KEYS[0], "UploadId": "0" * 32, "MaxParts": -1}),
    ("list_parts", {"Key": KEYS[0], "UploadId": "0" * 32, "PartNumberMarker": 1 << 16}),
    ("list_multipart_uploads", {"MaxUploads": -1}),
    ("list_multipart_uploads", {"MaxUploads": 1 << 31}),
    ("list_objects_v2", {"MaxKeys": 1 << 31}),
    ("list_multipart_uploads", {"EncodingType": "base64"}),
]


@pytest.mark.parametrize(("name", "parameters"), WRONG)
def test_values_that_a_gateway_refuses_are_sent_to_it(
    clients: tuple[Any, Any], name: str, parameters: dict[str, Any]
) -> None:
    with pytest.raises(ClientError) as raised:
        getattr(clients[0], name)(Bucket=BUCKET, **parameters)
    assert raised.value.response["Error"]["Code"] == "InvalidArgument"
    assert {way for _, way in fordway.boto.answered} == {"botocore"}


RIGHT, WRONG = "NSRBwg==", "AAAAAA=="


CHECKSUMS = [
    ({"ChecksumCRC32": RIGHT}, "in process"),
    ({"ChecksumCRC32": WRONG}, "in process"),
    ({"ChecksumCRC32": WRONG, "ETag": '"0123"'}, "in process"),
    ({"ChecksumCRC32": RIGHT, "PartNumber": 2}, "in process"),
    ({"ChecksumCRC32": "AAAA"}, "botocore"),
    ({"ChecksumCRC32": "!"}, "botocore"),
    ({"ChecksumCRC32C": RIGHT}, "botocore"),
    ({"ChecksumCRC32": RIGHT, "ChecksumCRC32C": WRONG}, "botocore"),
]


def test_checksums_of_parts_are_compared(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    for stated, way in CHECKSUMS:
        outcomes = []
        fordway.boto.answered.clear()
        for client in clients:
            names = {"Key": "key"}
            names["UploadId"] = within.create_multipart_upload(Bucket=BUCKET, **names)["UploadId"]
            sent = within.upload_part(Bucket=BUCKET, **names, PartNumber=1, Body=b"abc")
            listed = {"Parts": [{"PartNumber": 1, "ETag": sent["ETag"], **stated}]}
            found = outcome(client, "complete_multipart_upload", {**names, "MultipartUpload": listed})
            outcomes.append({name: value for name, value in found.items() if name != "Location"})
        assert outcomes[0] == outcomes[1]
        assert ("error" in outcomes[0]) == (stated != {"ChecksumCRC32": RIGHT})
        assert fordway.boto.answered["CompleteMultipartUpload", way] == 1


PARTS = [
    ({}, {}),
    ({}, {"ChecksumAlgorithm": "SHA1"}),
    ({"ChecksumAlgorithm": "SHA256"}, {"ChecksumAlgorithm": "SHA256"}),
    ({"ChecksumAlgorithm": "sha256"}, {"ChecksumAlgorithm": "sha256"}),
    ({"ChecksumAlgorithm": "SHA256"}, {}),
    ({"ChecksumAlgorithm": "SHA256"}, {"ChecksumAlgorithm": "SHA1"}),
]


@pytest.mark.parametrize(("begun", "sent"), PARTS)
def test_the_checksums_of_parts_are_those_of_a_gateway(
    clients: tuple[Any, Any], begun: dict[str, str], sent: dict[str, str]
) -> None:
    """A program completes an upload with the fields that it got for the part."""
    outcomes = []
    for client in clients:
        started = client.create_multipart_upload(Bucket=BUCKET, Key="key", **begun)
        upload = {"Key": "key", "UploadId": started["UploadId"]}
        part = outcome(client, "upload_part", {**upload, "PartNumber": 1, "Body": b"hello", **sent})
        fields = {name: text for name, text in part.items() if name.startswith(("ETag", "Checksum"))}
        done = outcome(
            client,
            "complete_multipart_upload",
            {**upload, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": '"0"', **fields}]}},
        )
        done.pop("Location", None)
        outcomes.append([started.get("ChecksumAlgorithm"), started.get("ChecksumType"), part, done])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_the_type_of_the_checksum_is_that_of_a_gateway(clients: tuple[Any, Any], algorithm: str) -> None:
    ours, theirs = (
        outcome(client, "create_multipart_upload", {"Key": "key", "ChecksumAlgorithm": algorithm})
        for client in clients
    )
    assert ours == theirs


class CountingFile(io.BytesIO):
    """A file that records the size of the largest read."""

    largest_read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.largest_read_bytes = max(self.largest_read_bytes, len(data))
        return data


@pytest.mark.parametrize("more", [{}, {"ContentLength": 6 << 20}])
def test_the_file_of_a_part_is_never_in_memory_as_a_whole(
    clients: tuple[Any, Any], more: dict[str, Any]
) -> None:
    within, through = clients
    names = {"Bucket": BUCKET, "Key": "key"}
    names["UploadId"] = within.create_multipart_upload(**names)["UploadId"]
    file, data = CountingFile(bytes(6 << 20)), bytes(6 << 20)
    ours = within.upload_part(**names, PartNumber=1, Body=file, **more)
    theirs = through.upload_part(**names, PartNumber=1, Body=data)
    assert compared(ours) == compared(theirs)
    assert file.largest_read_bytes <= 1 << 20


def test_a_range_beyond_the_source_of_a_part_is_refused_as_by_a_gateway(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    within.put_object(Bucket=BUCKET, Key="source", Body=b"abcdef")
    outcomes = []
    for client in clients:
        upload = {
            "Key": "key",
            "UploadId": client.create_multipart_upload(Bucket=BUCKET, Key="key")["UploadId"],
        }
        asked = {"PartNumber": 1, "CopySource": f"{BUCKET}/source", "CopySourceRange": "bytes=0-99"}
        outcomes.append(outcome(client, "upload_part_copy", {**upload, **asked}))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["Code"] == "InvalidArgument"


def test_a_completed_upload_is_completed_again(clients: tuple[Any, Any]) -> None:
    within, _ = clients
    names = {"Bucket": BUCKET, "Key": "key"}
    names["UploadId"] = within.create_multipart_upload(**names)["UploadId"]
    sent = within.upload_part(**names, PartNumber=1, Body=b"abc")
    parts = [{"PartNumber": 1, "ETag": sent["ETag"], "ChecksumCRC32": sent["ChecksumCRC32"]}]
    first, second = (
        within.complete_multipart_upload(**names, MultipartUpload={"Parts": parts})["ETag"] for _ in range(2)
    )
    assert first == second


def upload_outcomes(client: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Returns the outcomes of all calls of two uploads. The first upload has two parts, one of which is
    copied. The second upload is aborted.
    """
    begun = {"Key": "upload", "Metadata": {"run": "7"}, "ChecksumAlgorithm": "CRC32"}
    upload = {"Key": "upload", "UploadId": client.create_multipart_upload(Bucket=BUCKET, **begun)["UploadId"]}
    first = client.upload_part(Bucket=BUCKET, PartNumber=1, Body=bytes(5 << 20), **upload)
    last = {"PartNumber": 2, "CopySource": f"{BUCKET}/source", "CopySourceRange": "bytes=1-2", **upload}
    parts = [
        {"PartNumber": 1, "ETag": first["ETag"]},
        {"PartNumber": 2, "ETag": client.upload_part_copy(Bucket=BUCKET, **last)["CopyPartResult"]["ETag"]},
    ]
    listed = client.list_parts(Bucket=BUCKET, **upload)["Parts"]
    # A gateway requires these checksums. A store within the process already has these checksums.
    parts = [{**part, "ChecksumCRC32": its["ChecksumCRC32"]} for part, its in zip(parts, listed, strict=True)]
    outcomes = [
        outcome(client, "create_multipart_upload", begun),
        compared(first),
        outcome(client, "upload_part_copy", last),
        outcome(client, "complete_multipart_upload", {"MultipartUpload": {"Parts": parts[::-1]}, **upload}),
        outcome(client, "complete_multipart_upload", {"MultipartUpload": {"Parts": parts}, **upload}),
        outcome(client, "head_object", {"Key": "upload"}),
    ]
    begun = client.create_multipart_upload(Bucket=BUCKET, Key="aborted")
    upload = {"Key": "aborted", "UploadId": begun["UploadId"]}
    outcomes += [outcome(client, "abort_multipart_upload", upload) for _ in range(2)]
    for each in outcomes:
        # These fields differ between any two uploads.
        each.get("headers", {}).pop("last-modified", None)
        each.pop("Detail", None)
        each.pop("Location", None)
        if "CopyPartResult" in each:
            each["CopyPartResult"].pop("LastModified")
    return outcomes


def test_uploads_are_those_of_a_gateway(clients: tuple[Any, Any]) -> None:
    within, through = clients
    within.put_object(Bucket=BUCKET, Key="source", Body=b"abcdef")
    for ours, theirs in zip(upload_outcomes(within), upload_outcomes(through), strict=True):
        assert ours == theirs
    assert not [operation for operation, way in fordway.boto.answered if way == "botocore"]
