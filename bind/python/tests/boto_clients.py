"""A client of boto3 within the process, and a client of a gateway on the same directory, for comparisons."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from gateways import KEYS, endpoint

boto3 = pytest.importorskip("boto3")

from botocore.exceptions import ClientError  # noqa: E402

import fordway.boto  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from botocore.config import Config

BUCKET = "bucket"


@contextlib.contextmanager
def two_clients(directory: Path, config: Config | None = None) -> Iterator[tuple[Any, Any]]:
    """Yields a client that uses the store within the process, and a client of a gateway on the same store."""
    with pytest.MonkeyPatch.context() as environment, contextlib.ExitStack() as stack:
        for name, value in {**KEYS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
            environment.setenv(name, value)
        environment.setenv("AWS_ENDPOINT_URL", stack.enter_context(endpoint("http", directory)))
        through = boto3.session.Session().client("s3", config=config)
        fordway.boto.install(f"file://{directory}/root?etag=md5")
        try:
            within = boto3.session.Session().client("s3", config=config)
            within.create_bucket(Bucket=BUCKET)
            fordway.boto.answered.clear()
            yield within, through
        finally:
            fordway.boto.uninstall()


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """A client that uses the store within the process, and a client of a gateway."""
    with two_clients(tmp_path) as both:
        yield both


@pytest.fixture
def without_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which botocore would send calls to AWS."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**KEYS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)


OF_A_REQUEST = {"connection", "date", "server", "x-amz-request-id", "x-amz-id-2"}
"""Headers of a response that a call in the process does not have, because the call sends no request."""


def metadata_of(response: dict[str, Any]) -> dict[str, Any]:
    """Returns the status and the headers of a response, without the headers of `OF_A_REQUEST`."""
    metadata = response["ResponseMetadata"]
    headers = {name: it for name, it in metadata["HTTPHeaders"].items() if name not in OF_A_REQUEST}
    if headers.get("content-type") == "application/xml":
        # The response of a call in the process has no XML document, so lengths are not compared.
        headers.pop("content-length", None)
    return {"status": metadata["HTTPStatusCode"], "headers": headers}


VARYING = {"ResponseMetadata", "LastModified", "Body", "UploadId"}
"""The fields that differ between the responses to any two requests."""


def compared(response: dict[str, Any]) -> dict[str, Any]:
    """Returns what a call in the process and a call through a gateway must have in common."""
    kept = {name: value for name, value in response.items() if name not in VARYING}
    kept |= metadata_of(response)
    if "Contents" in kept:
        kept["Contents"] = [
            {name: entry[name] for name in ("Key", "Size", "ETag")} for entry in kept["Contents"]
        ]
    if "CopyObjectResult" in kept:
        kept["CopyObjectResult"] = {
            name: value for name, value in kept["CopyObjectResult"].items() if name not in VARYING
        }
    if "Body" in response:
        kept["body"] = response["Body"].read()
    return kept


def outcome(client: Any, name: str, parameters: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Returns the response to a call as `compared` does, or the fields of its error."""
    try:
        return compared(getattr(client, name)(**{"Bucket": BUCKET, **parameters}))
    except ClientError as error:
        facts = {name: it for name, it in error.response["Error"].items() if name not in VARYING}
        return {"error": type(error).__name__, **facts, **metadata_of(error.response)}
