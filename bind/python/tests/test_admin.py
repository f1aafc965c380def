"""Tests that the `fordway admin` command and boto3 return the same settings of a bucket."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from gateways import KEYS, program, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from botocore.client import BaseClient

boto3 = pytest.importorskip("boto3")

PUBLIC = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bkt/*"}
        ],
    }
)
# For each setting: its value, the name in boto3's calls that set and get it, and the name of the argument.
SETTINGS = {
    "policy": (PUBLIC, "bucket_policy", "Policy"),
    "public-access": (
        {
            "BlockPublicAcls": True,
            "IgnorePublicAcls": False,
            "BlockPublicPolicy": False,
            "RestrictPublicBuckets": True,
        },
        "public_access_block",
        "PublicAccessBlockConfiguration",
    ),
    "ownership": (
        {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "bucket_ownership_controls",
        "OwnershipControls",
    ),
    "cors": (
        {
            "CORSRules": [
                {"ID": "one", "AllowedMethods": ["GET", "PUT"], "AllowedOrigins": ["*"], "MaxAgeSeconds": 60},
                {"AllowedHeaders": ["*"], "AllowedMethods": ["GET"], "AllowedOrigins": ["https://a.org"]},
            ]
        },
        "bucket_cors",
        "CORSConfiguration",
    ),
    "lifecycle": (
        {
            "Rules": [
                {
                    "ID": "a",
                    "Status": "Enabled",
                    "Filter": {},
                    "Expiration": {"ExpiredObjectDeleteMarker": True},
                },
                {
                    "ID": "b",
                    "Status": "Disabled",
                    "Filter": {"And": {"Prefix": "x<&>", "Tags": [{"Key": "k", "Value": "v"}]}},
                    "Expiration": {"Days": 3},
                    "NoncurrentVersionExpiration": {"NoncurrentDays": 2},
                },
            ]
        },
        "bucket_lifecycle_configuration",
        "LifecycleConfiguration",
    ),
    "events": (
        {
            "QueueConfigurations": [
                {
                    "Id": "q",
                    "QueueArn": "arn:fordway:sqs::ci:webhook",
                    "Events": ["s3:ObjectCreated:*"],
                    "Filter": {"Key": {"FilterRules": [{"Name": "Suffix", "Value": "<&>"}]}},
                }
            ]
        },
        "bucket_notification_configuration",
        "NotificationConfiguration",
    ),
    "lock": (
        {
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Years": 1}},
        },
        "object_lock_configuration",
        "ObjectLockConfiguration",
    ),
    "tags": (
        {"TagSet": [{"Key": "b", "Value": ""}, {"Key": "a", "Value": "1 2"}]},
        "bucket_tagging",
        "Tagging",
    ),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a gateway with a webhook and two buckets that keep versions."""
    with serving(tmp_path_factory.mktemp("root"), "--webhook", "ci=https://hooks.example.org/") as url:
        s3 = client(url)
        for name in ("bkt", "other"):
            s3.create_bucket(Bucket=name)
            s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        yield url


def client(url: str) -> BaseClient:
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )


def admin(url: str, *words: str) -> str:
    command = [program(), "admin", *words, "--endpoint", url]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | KEYS)
    return ran.stdout


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_are_those_of_boto3(setting: str, url: str, tmp_path: Path) -> None:
    s3 = client(url)
    value, call, argument = SETTINGS[setting]
    get = getattr(s3, f"get_{call}")
    getattr(s3, f"put_{call}")(Bucket="bkt", **{argument: value})
    told = {key: item for key, item in get(Bucket="bkt").items() if key != "ResponseMetadata"}
    # This field is returned in a header, and is not part of the document.
    told.pop("TransitionDefaultMinimumObjectSize", None)
    assert json.loads(admin(url, "get", setting, "s3://bkt", "--json")) == told
    file = tmp_path / "setting"
    # For some settings, boto3 and aws-cli print an enclosing object that their input must not have.
    taken = value if isinstance(value, str) else json.dumps(value)
    for form in (taken, json.dumps(told), admin(url, "get", setting, "s3://bkt").rstrip()):
        file.write_text(form.replace("bkt", "other"))
        admin(url, "set", setting, "s3://other", "--file", str(file))
        again = {key: get(Bucket="other")[key] for key in told}
        assert json.loads(json.dumps(again).replace("other", "bkt")) == told
