"""A directory with buckets of two users, gateways in front of it, and signed requests."""

import contextlib
import datetime
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
import threading
import urllib.parse
from pathlib import Path

ALICE, BOB = 65533, 65532
REGION = "us-east-1"
UNSIGNED = "UNSIGNED-PAYLOAD"
# The exit code of a program that was denied access.
ACCESS_DENIED = 4


class NotTried(Exception):
    """The case cannot be set up with this program or on this machine."""


def check(holds, why):
    """Fails the case with the message `why` unless `holds` is true."""
    if not holds:
        raise AssertionError(why)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def hmac_of(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signing_key(secret, day):
    key = f"AWS4{secret}".encode()
    for part in (day, REGION, "s3", "aws4_request"):
        key = hmac_of(key, part)
    return key


def encoded(query):
    quote = urllib.parse.quote
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))


class Client:
    """Requests of one user, signed with Signature Version 4."""

    def __init__(self, address, name):
        self.address, self.access_key, self.secret_key = address, f"{name}-key", f"{name}-secret"

    def signature(self, method, path, query, headers, names, payload_hash, now):
        """Returns the hexadecimal signature of a request. The signature covers the headers `names`."""
        covered = "".join(f"{name}:{headers[name].strip()}\n" for name in names)
        request = "\n".join([method, path, encoded(query), covered, ";".join(names), payload_hash])
        scope = f"{now[:8]}/{REGION}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, digest(request.encode())])
        return hmac_of(signing_key(self.secret_key, now[:8]), text).hex()

    def headers(self, method, path, query, extra, payload_hash, names=None):
        """Returns the headers of a signed request. `names` lists the headers to sign; `None` means all headers."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = {"host": self.address, "x-amz-date": now, "x-amz-content-sha256": payload_hash} | extra
        names = sorted(headers) if names is None else names
        found = self.signature(method, path, query, headers, names, payload_hash, now)
        credential = f"{self.access_key}/{now[:8]}/{REGION}/s3/aws4_request"
        signed = f"Credential={credential}, SignedHeaders={';'.join(names)}, Signature={found}"
        return headers | {"authorization": f"AWS4-HMAC-SHA256 {signed}"}

    def presigned(self, method, path, expires_s):
        """Returns the path and query of a presigned URL."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        query = {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{self.access_key}/{now[:8]}/{REGION}/s3/aws4_request",
            "X-Amz-Date": now,
            "X-Amz-Expires": str(expires_s),
            "X-Amz-SignedHeaders": "host",
        }
        found = self.signature(method, path, query, {"host": self.address}, ["host"], UNSIGNED, now)
        return f"{path}?{encoded(query)}&X-Amz-Signature={found}"

    def send(self, method, target, headers, body=b"", timeout_s=30):
        """Returns the status and the body of the response."""
        connection = http.client.HTTPConnection(self.address, timeout=timeout_s)
        try:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in ({"host": self.address, "content-length": str(len(body))} | headers).items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def ask(self, method, path, body=b"", query=None, headers=None, timeout_s=30):
        """Encodes `path`, and sends a signed request."""
        path, query = urllib.parse.quote(path, safe="/-_.~"), query or {}
        signed = self.headers(method, path, query, headers or {}, digest(body))
        return self.send(method, f"{path}?{encoded(query)}" if query else path, signed, body, timeout_s)


class Ground:
    """The scratch directory of one case: `root` with buckets, and a copy of the program that all users may run."""

    def __init__(self, scratch, program):
        self.scratch, self.root, self.ends = scratch, scratch / "root", contextlib.ExitStack()
        self.root.mkdir()
        self.program = scratch / "fordway"
        shutil.copy(program, self.program)
        self.program.chmod(0o755)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ends.close()

    def bucket(self, name, owner, mode=0o755):
        path = self.root / name
        path.mkdir()
        os.chown(path, owner, owner)
        path.chmod(mode)
        return path

    def write(self, path, content, owner, mode=0o644):
        """Writes a file below the scratch directory; missing directories belong to the same user."""
        path = Path(path)
        for parent in reversed([parent for parent in path.parents if not parent.exists()]):
            parent.mkdir()
            os.chown(parent, owner, owner)
        path.write_bytes(content)
        os.chown(path, owner, owner)
        path.chmod(mode)
        return path

    def run(self, *words, user=0, timeout_s=60, give=b"", settings=None):
        """Runs the program as a user; returns the finished process. After `timeout_s`, kills the program."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.scratch)} | (settings or {})
        command = [self.program, *map(str, words)]
        try:
            return subprocess.run(
                command,
                check=False,
                input=give,
                capture_output=True,
                user=user,
                group=user,
                env=environment,
                cwd="/",
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{words[0]} does not end within {timeout_s} s") from late

    def collect(self):
        """Runs gc for files of any age. gc may refuse files that it did not create, but must end by itself."""
        done = self.run("gc", self.root, "--older-than", "0s", "--uploads-older-than", "0s")
        check(done.returncode in (0, ACCESS_DENIED), f"gc ends with {done.returncode}: {done.stderr!r}")

    def serve(self, users=None, root=None, options=()):
        """Starts a gateway as root for these users, or for one user without a users file; returns its address."""
        command = [self.program, "serve", root or self.root, "--listen", "127.0.0.1:0", *options]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.scratch)}
        if users:
            command += ["--credentials", self.write_users(users)]
        else:
            environment |= {"AWS_ACCESS_KEY_ID": "root-key", "AWS_SECRET_ACCESS_KEY": "root-secret"}
        log = self.ends.enter_context((self.scratch / "gateway.log").open("wb"))
        gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        self.ends.callback(self.end, gateway)
        ready = gateway.stdout.readline()
        if " at http" not in ready:
            raise NotTried(f"the gateway says {ready!r}, {(self.scratch / 'gateway.log').read_text()!r}")
        # Read the gateway's later output, so that it does not fill the pipe.
        threading.Thread(target=gateway.stdout.read, daemon=True).start()
        return ready.split(" at http://")[1].split()[0].rstrip("/")

    @staticmethod
    def end(process):
        process.kill()
        process.wait()

    def write_users(self, users):
        """Writes the users file from lines of TOML by name. Each key pair is derived from the user's name."""
        text = "".join(
            f'[[user]]\nname = "{name}"\naccess_key = "{name}-key"\nsecret_key = "{name}-secret"\n{lines}\n'
            for name, lines in users.items()
        )
        return self.write(self.scratch / "users.toml", text.encode(), 0, 0o600)

    def tenants(self):
        """Starts a gateway for Alice, Bob and root; returns a client for each."""
        ids = {"alice": ALICE, "bob": BOB, "root": 0}
        address = self.serve({name: f"uid = {uid}\ngid = {uid}" for name, uid in ids.items()})
        return [Client(address, name) for name in ids]


def snapshot(path):
    """Returns mode, owner and content of everything below a directory."""
    found = {}
    for each in sorted([path, *path.rglob("*")]):
        state = each.lstat()
        content = each.read_bytes() if each.is_file() and not each.is_symlink() else None
        found[str(each.relative_to(path))] = (state.st_mode, state.st_uid, content)
    return found


def as_user(user, act):
    """Runs a function in a child process that acts as a user; returns whether it succeeded."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            act()
            code = 0
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0
