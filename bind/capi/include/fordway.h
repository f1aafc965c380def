/* Reads files at HTTP servers, objects on any lane, and local files. Link with -lfordway.
 *
 * A call that fails returns -1, sets errno, and has a sentence about it for fordway_last_error().
 * This file is written by `cargo xtask header` of bind/capi/src/abi.rs and exports.rs. */

#ifndef FORDWAY_H
#define FORDWAY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Nothing is known of reads to come: they are watched.
#define FORDWAY_ADVICE_NORMAL 0

// What follows a read will be read.
#define FORDWAY_ADVICE_SEQUENTIAL 1

// Reads have no order: nothing is read ahead.
#define FORDWAY_ADVICE_RANDOM 2

// The fragments given will be read; their buffers are not looked at.
#define FORDWAY_ADVICE_WILLNEED 3

// What was read ahead will not be read.
#define FORDWAY_ADVICE_DONTNEED 4

// How to open a file. Clear it, for example with `= {0}`, and set `size` to `sizeof` of it: what a later
// version adds is then left at its default. A field that is 0 or NULL has its default too.
struct fordway_options {
  // `sizeof(struct fordway_options)`.
  size_t size;
  // Where the objects of `s3://` URLs are, as `--endpoint` of the program says it; NULL is what
  // AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL and the AWS configuration say.
  const char *endpoint;
  // A PEM file of the certificates to trust in `https://` URLs, of files and of endpoints; NULL is the
  // system's.
  const char *ca_bundle;
  // Bytes of memory for what is read ahead, at most; 0 is 64 MiB.
  uint64_t read_ahead_bytes;
  // Connections to one `http(s)://` server or endpoint at once; 0 is 8. Files that are opened with the
  // same options share connections.
  uint32_t connections;
  // Milliseconds to wait for a server that says nothing; 0 is the default of each kind of waiting.
  uint32_t timeout_ms;
  // The access key for `s3://` URLs, where the endpoint wants one; NULL is what AWS_ACCESS_KEY_ID and the
  // AWS configuration say.
  const char *access_key;
  // Its secret key; NULL if and only if `access_key` is.
  const char *secret_key;
  // What goes along with temporary keys, or NULL.
  const char *session_token;
};

// A part of a file, and where it goes.
struct fordway_fragment {
  // Position of its first byte in the file.
  uint64_t offset;
  // Bytes wanted.
  size_t length;
  // Has room for `length` bytes; may be NULL if that is 0.
  void *buffer;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, as in `0.1.0`. Never NULL.
const char *fordway_version(void);

// A sentence about this thread's last failure: what failed, on what, why, and what to do. Never NULL;
// valid until the thread's next failure.
const char *fordway_last_error(void);

// Opens a file to read: `http(s)://HOST/PATH`, `s3://BUCKET/KEY` at the endpoint of `options` or of the
// environment, `file:///PATH`, or a path. `options` may be NULL. Returns the file's number, or -1 with
// errno: ENOENT, EACCES, EINVAL, EHOSTUNREACH, ETIMEDOUT, EPROTO and others. What is read later is of
// the version that was opened; where that is gone, reads fail with ESTALE.
int fordway_open(const char *url, const struct fordway_options *options);

// Closes a file. What was submitted and not waited for is given up: when this returns, nothing is
// written to its buffers any more. Returns 0, or -1 with errno EBADF.
int fordway_close(int file);

// Bytes of the file, or -1 with errno EBADF.
int64_t fordway_size(int file);

// Reads up to `length` bytes at `offset`; returns how many, which are fewer only where the file ends,
// or -1 with errno. Reads whose order can be told are read ahead.
ssize_t fordway_pread(int file, void *buffer, size_t length, uint64_t offset);

// Fills `count` fragments, which may overlap and come in any order, in as few requests as the server
// takes. Returns the bytes of all, or -1 with errno: ERANGE where one ends behind the file. What the
// buffers then hold is not defined.
ssize_t fordway_pread_vector(int file, const struct fordway_fragment *fragments, size_t count);

// Sends for `count` fragments and does not wait for them. Returns a ticket for `fordway_wait` or
// `fordway_cancel`, or -1 with errno. The list of fragments may go at once; their buffers are the
// library's until one of the two, or `fordway_close`, has returned.
int64_t fordway_submit(int file, const struct fordway_fragment *fragments, size_t count);

// Waits until the fragments of a ticket are filled; all other tickets of the file make progress
// meanwhile. Returns their bytes, or -1 with errno: EINVAL for no ticket of this file, ECANCELED where
// another thread closed the file. The ticket is gone then.
ssize_t fordway_wait(int file, int64_t ticket);

// Gives a ticket up: when this returns, nothing is written to its buffers any more. Returns 0, or -1
// with errno: EINVAL for no ticket of this file, or one that another thread waits for.
int fordway_cancel(int file, int64_t ticket);

// Says something of the reads to come (`FORDWAY_ADVICE_...`), as posix_fadvise does. `fragments` is for
// `FORDWAY_ADVICE_WILLNEED` alone; only offset and length are looked at. Returns 0, or -1 with errno.
int fordway_advise(int file, int advice, const struct fordway_fragment *fragments, size_t count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FORDWAY_H */
