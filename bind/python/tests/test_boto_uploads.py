"""Tests the listings of uploads of `fordway.boto`. The responses must equal the responses of a gateway on the
same directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from boto_clients import BUCKET, clients, metadata_of

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
