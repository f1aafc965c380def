"""Calls every operation of the installed botocore's service model on a running gateway.

Each operation is called with its required parameters, then with each optional parameter, and with each value
that the model lists for the parameter. Each call must be performed, or refused with an error that is not the
server's fault. A call that is refused or only reads must leave the directory unchanged.
"""

import datetime
import hashlib
import itertools
import os

import boto3
import botocore.exceptions
from botocore.config import Config

KEY = "dir/object"
PRECIOUS, CONTENT = "precious-bucket", b"precious"
READS = ("Get", "Head", "List", "Select")


class Walk:
    def __init__(self, gateway):
        self.root = gateway.root
        self.client = boto3.client(
            "s3",
            endpoint_url=gateway.url,
            aws_access_key_id="main",
            aws_secret_access_key="main-secret",
            region_name="us-east-1",
            # Do not retry, so that no retry hides a server error. Use addresses with the bucket in the path,
            # because all operations have the same host here.
            config=Config(
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
                inject_host_prefix=False,
            ),
        )
        self.client.create_bucket(Bucket=PRECIOUS)
        self.client.put_object(Bucket=PRECIOUS, Key=KEY, Body=CONTENT)
        self.methods = {name: method for method, name in self.client.meta.method_to_api_mapping.items()}
        self.created = 0

    def operations(self):
        return sorted(self.client.meta.service_model.operation_names)

    def prepare(self, name):
        """Creates a bucket with an object for the calls of an operation."""
        self.bucket = f"model-{name.lower()}"
        self.client.create_bucket(Bucket=self.bucket)
        # Put twice, because the second put creates the lock table. Otherwise, a refused call might create the
        # table.
        for _ in range(2):
            self.client.put_object(Bucket=self.bucket, Key=KEY, Body=b"content")
        self.renew_upload()

    def renew_upload(self):
        self.upload = self.client.create_multipart_upload(Bucket=self.bucket, Key=KEY)["UploadId"]

    def snapshot(self):
        """Returns a digest of the names of all buckets, and of the names, modes, attributes and content in
        two of the buckets."""
        seen = hashlib.sha256(repr(sorted(os.listdir(self.root))).encode())
        walks = [os.walk(os.path.join(self.root, bucket)) for bucket in (self.bucket, PRECIOUS)]
        for place, directories, files in itertools.chain(*walks):
            directories.sort()
            for name in sorted(directories + files):
                path = os.path.join(place, name)
                state = os.lstat(path)
                seen.update(f"{path} {state.st_mode} {state.st_size}".encode())
                for attribute in sorted(os.listxattr(path, follow_symlinks=False)):
                    seen.update(attribute.encode() + os.getxattr(path, attribute, follow_symlinks=False))
                if name in files:
                    with open(path, "rb") as file:
                        seen.update(file.read())
        return seen.digest()

    def sample(self, name, shape, is_full=False):
        """Returns a value for a parameter of the model."""
        known = {
            "Bucket": self.bucket,
            "Key": KEY,
            "UploadId": self.upload,
            "CopySource": f"{self.bucket}/{KEY}",
            "RenameSource": f"/{self.bucket}/{KEY}",
            "PartNumber": 1,
            "ExpectedBucketOwner": "main",
            "ExpectedSourceBucketOwner": "main",
            "Policy": "{}",
        }
        if name in known:
            return known[name]
        match shape.type_name:
            case "structure":
                members = shape.members if is_full else {m: shape.members[m] for m in shape.required_members}
                if not members or getattr(shape, "is_tagged_union", False):
                    members = dict(list(shape.members.items())[:1])
                return {member: self.sample(member, inner, False) for member, inner in members.items()}
            case "list":
                return [self.sample(name, shape.member)]
            case "map":
                return {"name": "value"}
            case "blob":
                return b"content"
            case "boolean":
                return True
            case "integer" | "long":
                return 1
            case "timestamp":
                return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
            case _:
                return shape.enum[0] if getattr(shape, "enum", None) else "value"

    def variations(self, model):
        """Returns the calls of an operation: the parameter that each call tests, and all its parameters."""
        shape = model.input_shape
        if shape is None:
            return [("", {})]
        needed = {name: self.sample(name, shape.members[name]) for name in shape.required_members}
        calls = [("", needed)]
        for name, member in shape.members.items():
            if name in shape.required_members and member.type_name != "structure":
                continue
            values = [self.sample(name, member)]
            if member.type_name == "structure":
                values.append(self.sample(name, member, is_full=True))
            values += list(getattr(member, "enum", []))[1:]
            calls += [(f"{name}={value!r:.60}", needed | {name: value}) for value in values]
        return calls

    def trouble(self, name):
        """Calls an operation in each variation. Returns the problem, or an empty string."""
        model = self.client.meta.service_model.operation_model(name)
        self.prepare(name)
        for about, parameters in self.variations(model):
            if "UploadId" in parameters:
                parameters["UploadId"] = self.upload
            if name == "CreateBucket":
                self.created += 1
                parameters["Bucket"] = f"created-{self.created}"
            before = self.snapshot()
            wrong = self.call(name, parameters)
            if wrong:
                return f"{about}: {wrong}"
            if wrong is None and not name.startswith(READS):
                self.restore(name)
            elif self.snapshot() != before:
                return f"{about}: it changed the directory"
        kept = self.client.get_object(Bucket=PRECIOUS, Key=KEY)["Body"].read()
        return "" if kept == CONTENT else "the object of another bucket changed"

    def restore(self, name):
        """Restores what a performed call may have removed."""
        if name == "DeleteBucket":
            self.prepare(name)
        self.client.put_object(Bucket=self.bucket, Key=KEY, Body=b"content")
        if name in ("AbortMultipartUpload", "CompleteMultipartUpload"):
            self.renew_upload()

    def call(self, name, parameters):
        """Returns None for a performed call, "" for a refused call, and otherwise the problem."""
        try:
            answer = getattr(self.client, self.methods[name])(**parameters)
        except botocore.exceptions.ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            code = error.response["Error"]["Code"]
            refused = status < 500 or (status, code) == (501, "NotImplemented")
            return "" if refused else f"{status} {code}: {error}"
        except botocore.exceptions.HTTPClientError as error:
            return f"no response: {error}"
        except botocore.exceptions.BotoCoreError:
            # The client itself refuses the call.
            return ""
        if "Body" in answer:
            answer["Body"].read()
        return None


def walk(gateway):
    """Yields each operation with its problem."""
    walking = Walk(gateway)
    for name in walking.operations():
        try:
            yield name, walking.trouble(name)
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"
