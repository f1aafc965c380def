"""Checks that each operation of the installed boto3 behaves as documented: it runs in the process, goes to a
gateway, or is refused by the gateway.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import docs_blocks
import pytest
from boto_clients import two_clients

boto3 = pytest.importorskip("boto3")
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

import fordway.boto  # noqa: E402
from fordway.boto_operations import OPERATIONS  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.model import Shape

PAGE = docs_blocks.ROOT / "docs/reference/boto3.md"
IN_PROCESS, SENT, REFUSED = "Answered in the process", "Sent to a gateway", "Refused"
ROW = re.compile(r"\| `(\w+)` \| (.*) \|")
UPDATED = "boto3 has changed: decide what happens to this operation, and update docs/reference/boto3.md"


def section(title: str) -> str:
    """Returns the text below a heading of the page."""
    return PAGE.read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def stated_paths() -> dict[str, str]:
    """Returns, for each operation, the title of the section of the page that names the operation."""
    names = [(name, IN_PROCESS) for name, _ in ROW.findall(section(IN_PROCESS))]
    for title in (SENT, REFUSED):
        names += [(name, title) for name in re.findall(r"`([A-Z]\w+)`", section(title))]
    twice = [name for name, count in Counter(name for name, _ in names).items() if count > 1]
    assert not twice, f"{PAGE} names these operations twice: {twice}"
    return dict(names)


def model() -> Any:  # noqa: ANN401
    return boto3.client("s3", region_name="us-east-1").meta.service_model


def test_the_page_names_all_operations_of_boto3() -> None:
    assert sorted(stated_paths()) == sorted(model().operation_names), UPDATED


def test_the_page_names_the_parameters_of_the_operations_in_the_process() -> None:
    stated = dict(ROW.findall(section(IN_PROCESS)))
    assert stated.keys() == OPERATIONS.keys()
    for name, text in stated.items():
        required, known = set(re.findall(r"\*\*`(\w+)`\*\*", text)), set(re.findall(r"`(\w+)`", text))
        assert (required, known) == (OPERATIONS[name].needed, OPERATIONS[name].known), name
        shape = model().operation_model(name).input_shape
        assert known <= (shape.members.keys() if shape else set()), f"{name}: {UPDATED}"


def sample(name: str, shape: Shape, known: dict[str, Any]) -> Any:  # noqa: ANN401
    """Returns a value for a required parameter."""
    if name in known:
        return known[name]
    match shape.type_name:
        case "structure":
            names = shape.required_members or list(shape.members)[:1]
            return {member: sample(member, shape.members[member], known) for member in names}
        case "list":
            return [sample(name, shape.member, known)]
        case "integer" | "long":
            return 1
        case "boolean":
            return True
        case "blob":
            return b"content"
        case "timestamp":
            return "2040-01-01"
        case _:
            return shape.enum[0] if getattr(shape, "enum", None) else "value"


VALUES = {
    "KMSKeyArn": "arn:aws:kms:us-east-1:123456789012:key/1",
    "NotificationConfiguration": {},
    "ObjectOwnership": "BucketOwnerEnforced",
    "VersioningConfiguration": {"Status": "Enabled"},
}
"""Values for parameters whose first value in the model is refused by a gateway or by botocore itself."""

REFUSALS = {
    "NotImplemented",
    "AccessControlListNotSupported",
    # botocore signs the operations on directory buckets for another service.
    "AuthorizationHeaderMalformed",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client that uses the store within the process. All operations have the same host."""
    with two_clients(tmp_path_factory.mktemp("walk"), Config(inject_host_prefix=False)) as (within, _):
        yield within


def required_parameters(client: Any, operation: str, bucket: str) -> dict[str, Any]:  # noqa: ANN401
    """Returns a call of an operation with its required parameters."""
    shape = client.meta.service_model.operation_model(operation).input_shape
    if shape is None:
        return {}
    names = {"Bucket": bucket, "Key": "key"}
    known = {**VALUES, **names, "CopySource": f"{bucket}/key", "RenameSource": f"/{bucket}/key"}
    if "UploadId" in shape.members:
        known["UploadId"] = client.create_multipart_upload(**names)["UploadId"]
    if operation in ("CreateBucket", "DeleteBucket"):
        known["Bucket"] = "another"
    if operation == "CompleteMultipartUpload":
        part = client.upload_part(**names, UploadId=known["UploadId"], PartNumber=1, Body=b"x")
        known["MultipartUpload"] = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    required = {*shape.required_members, *(OPERATIONS[operation].needed if operation in OPERATIONS else ())}
    return {name: sample(name, shape.members[name], known) for name in sorted(required)}


@pytest.mark.parametrize("operation", sorted(model().operation_names))
def test_each_operation_takes_the_path_that_the_page_names(client: Any, operation: str) -> None:  # noqa: ANN401
    bucket = f"walk-{operation.lower()}"
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="key", Body=b"abc")
    parameters = required_parameters(client, operation, bucket)
    fordway.boto.answered.clear()
    try:
        client._make_api_call(operation, parameters)
        code = None
    except ClientError as error:
        code = error.response["Error"]["Code"]
    path = stated_paths().get(operation)
    way = "in process" if path == IN_PROCESS else "botocore"
    assert fordway.boto.answered == {(operation, way): 1}, UPDATED
    assert (code in REFUSALS) == (path == REFUSED), f"the gateway returned {code}; {UPDATED}"
