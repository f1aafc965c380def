"""A disk that records its writes and flushes: a file system of one file (FUSE, protocol 7.31), for a loop device.

The kernel passes on each write and each flush of the loop device immediately, in order. The file is an image. The log
shows which bytes of the image a power cut could have dropped: the bytes written after the last flush.

    u8 kind (0 write, 1 flush), u64 offset, u32 length, then the bytes; little-endian

usage: recorder.py IMAGE LOG MOUNTPOINT; the program exits when MOUNTPOINT is unmounted.
"""

import ctypes
import errno
import os
import stat
import struct
import sys

ROOT, DISK = 1, 2
# Operations of the protocol (linux/fuse.h).
LOOKUP, FORGET, GETATTR, SETATTR = 1, 2, 3, 4
OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = (
    14, 15, 16, 17, 18, 20, 25, 26, 27, 28, 29,
)  # fmt: skip
ACCESS, DESTROY, BATCH_FORGET = 34, 38, 42
HEADER = struct.Struct("<IIQQIIII")
RECORD = struct.Struct("<BQI")
WRITE_BYTES_MAX = 1 << 20
ENTRY_VALID_S = 3600


class Recorder:
    """Answers the kernel's requests, and writes the log."""

    def __init__(self, image, log):
        self.disk = os.open(image, os.O_RDWR)
        self.size = os.fstat(self.disk).st_size
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def record(self, kind, offset, data=b""):
        os.write(self.log, RECORD.pack(kind, offset, len(data)) + data)

    def attributes(self, node):
        """Returns `struct fuse_attr`."""
        mode, size = (stat.S_IFDIR | 0o700, 0) if node == ROOT else (stat.S_IFREG | 0o600, self.size)
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def answer(self, operation, node, body):
        """Returns the body of a response; `None` if the operation has no response. Errors: `OSError`."""
        if operation == INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 16, 8, WRITE_BYTES_MAX, 1, 256, 0, 0)
        if operation == LOOKUP:
            if body.rstrip(b"\0") != b"disk":
                raise FileNotFoundError(errno.ENOENT, "the only file is disk")
            times = struct.pack("<QQQQII", DISK, 0, ENTRY_VALID_S, ENTRY_VALID_S, 0, 0)
            return times + self.attributes(DISK)
        if operation in (GETATTR, SETATTR):
            return struct.pack("<QII", ENTRY_VALID_S, 0, 0) + self.attributes(node)
        if operation in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if operation == READ:
            _handle, offset, size = struct.unpack_from("<QQI", body)
            return os.pread(self.disk, size, offset)
        if operation == WRITE:
            _handle, offset, size = struct.unpack_from("<QQI", body)
            data = body[40 : 40 + size]
            # Write to the log first, so that every acknowledged write is in it.
            self.record(0, offset, data)
            os.pwrite(self.disk, data, offset)
            return struct.pack("<II", size, 0)
        if operation == FSYNC:
            self.record(1, 0)
            return b""
        if operation in (FLUSH, RELEASE, RELEASEDIR, ACCESS, READDIR):
            return b""
        if operation == STATFS:
            return struct.pack("<QQQQQIIII24x", 1 << 20, 1 << 19, 1 << 19, 10, 5, 4096, 255, 4096, 0)
        if operation in (FORGET, BATCH_FORGET, DESTROY):
            return None
        raise OSError(errno.ENOSYS, "not offered")

    def serve(self, device):
        while True:
            try:
                request = os.read(device, WRITE_BYTES_MAX + 65536)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            _length, operation, unique, node, *_ids = HEADER.unpack_from(request)
            try:
                body, failed = self.answer(operation, node, request[HEADER.size :]), 0
            except OSError as error:
                body, failed = b"", -error.errno
            if body is not None:
                os.write(device, struct.pack("<IiQ", 16 + len(body), failed, unique) + body)


def main():
    image, log, mountpoint = sys.argv[1:]
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read=131072"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"recorder", mountpoint.encode(), b"fuse", 0, options.encode()):
        sys.exit(f"cannot mount {mountpoint}: {os.strerror(ctypes.get_errno())}")
    print("ready", flush=True)
    Recorder(image, log).serve(device)


if __name__ == "__main__":
    main()
