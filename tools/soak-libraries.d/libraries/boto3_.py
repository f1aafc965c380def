"""boto3: upload_file in parts, a paginator, a presigned address, and download_file."""

import tempfile
import urllib.request
from pathlib import Path

from work import Place, run


def write(place: Place, data: bytes) -> None:
    if not place.is_s3:
        Path(place.of("large")).write_bytes(data)
        return
    import boto3
    from boto3.s3.transfer import TransferConfig

    s3 = boto3.client("s3")
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=8 << 20)
        s3.upload_file(file.name, place.bucket, f"{place.prefix}/large", Config=parts)
    for number in range(12):
        s3.put_object(Bucket=place.bucket, Key=f"{place.prefix}/small/{number}", Body=b"x")


def read(place: Place) -> bytes:
    if not place.is_s3:
        return Path(place.of("large")).read_bytes()
    import boto3
    from botocore.config import Config

    s3 = boto3.client("s3", config=Config(signature_version="s3v4"))
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket=place.bucket, Prefix=f"{place.prefix}/small/", PaginationConfig={"PageSize": 5}
    )
    keys = [entry["Key"] for page in pages for entry in page["Contents"]]
    assert len(keys) == 12, keys
    asked = {"Bucket": place.bucket, "Key": keys[0]}
    with urllib.request.urlopen(s3.generate_presigned_url("get_object", asked)) as answer:
        assert answer.read() == b"x"
    with tempfile.TemporaryDirectory() as scratch:
        s3.download_file(place.bucket, f"{place.prefix}/large", f"{scratch}/large")
        return Path(f"{scratch}/large").read_bytes()


run(write, read)
