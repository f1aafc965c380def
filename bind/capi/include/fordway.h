/* Reads files on HTTP servers, objects on any lane, and local files. Link with -lfordway.
 *
 * A call that fails returns -1, sets errno, and stores a message for fordway_last_error().
 * This file is written by `cargo xtask header` of bind/capi/src/abi.rs and exports.rs. */

#ifndef FORDWAY_H
#define FORDWAY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* No advice: the library detects the access pattern itself. */
#define FORDWAY_ADVICE_NORMAL 0

/* Reads will be sequential. */
#define FORDWAY_ADVICE_SEQUENTIAL 1

/* Reads will be in random order: turns read-ahead off. */
#define FORDWAY_ADVICE_RANDOM 2

/* The given fragments will be read soon. Their buffers are ignored. */
#define FORDWAY_ADVICE_WILLNEED 3

/* Data that was read ahead is no longer needed. */
#define FORDWAY_ADVICE_DONTNEED 4

/* Options for opening a file. Clear the structure, for example with `= {0}`, and set `size` to its `sizeof`. Fields
 * that later versions add then keep their defaults. A field that is 0 or NULL has its default value. */
struct fordway_options {
  /* `sizeof(struct fordway_options)`. */
  size_t size;
  /* The endpoint for `s3://` URLs, in the format of the `--endpoint` option of `fordway`. If NULL, the endpoint is
   * read from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or the AWS configuration. */
  const char *endpoint;
  /* A PEM file with the certificates to trust for files and endpoints with `https://` URLs. If NULL, AWS_CA_BUNDLE,
   * X509_CERT_DIR (for files) or the AWS configuration (for endpoints) selects the certificates; otherwise, the
   * system's certificates are trusted. */
  const char *ca_bundle;
  /* The maximum memory for read-ahead, in bytes. The default, 0, means 64 MiB. */
  uint64_t read_ahead_bytes;
  /* The maximum number of simultaneous connections to one `http(s)://` server or endpoint. The default, 0, means 8.
   * Files opened with the same options share connections. */
  uint32_t connections;
  /* How long to wait for a server that sends nothing, in milliseconds. The default, 0, means a time that depends on
   * what the library is waiting for. */
  uint32_t timeout_ms;
  /* The access key for `s3://` URLs, if the endpoint requires one. If NULL, the key is read from AWS_ACCESS_KEY_ID
   * or the AWS configuration. */
  const char *access_key;
  /* The secret key that belongs to `access_key`; NULL if and only if `access_key` is NULL. */
  const char *secret_key;
  /* The session token of temporary credentials, or NULL. */
  const char *session_token;
};

/* A range of a file, and the buffer to read it into. */
struct fordway_fragment {
  /* The offset of the range in the file. */
  uint64_t offset;
  /* The number of bytes to read. */
  size_t length;
  /* A buffer of at least `length` bytes; may be NULL if `length` is 0. */
  void *buffer;
};

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/* Returns the version of the library, such as `0.1.0`. Never NULL. */
const char *fordway_version(void);

/* Returns a message about this thread's last failure: the operation, the file, the cause, and what to do. Never NULL.
 * The text is valid until the thread's next failure. */
const char *fordway_last_error(void);

/* Opens a file for reading: `http(s)://HOST/PATH`, `s3://BUCKET/KEY` at the endpoint that `options` or the environment
 * specifies, `file:///PATH`, or a path. `options` may be NULL. Returns a file number, or -1 with errno set: ENOENT,
 * EACCES, EINVAL, EHOSTUNREACH, ECONNRESET, ETIMEDOUT, EPROTO and others. All reads return bytes of the version that
 * was opened; if that version no longer exists, the reads fail with ESTALE. A local file must be a regular file. Its
 * version consists of its size and its modification time. */
int fordway_open(const char *url,
                 const struct fordway_options *options);

/* Closes a file, and cancels the submitted reads that no call has waited for. After this call returns, the library no
 * longer writes to the buffers of these reads. Returns 0, or -1 with errno EBADF. */
int fordway_close(int file);

/* Returns the size of the file in bytes, or -1 with errno EBADF. */
int64_t fordway_size(int file);

/* Reads up to `length` bytes at `offset`. Returns the number of bytes read, or -1 with errno. The number is smaller
 * than `length` only at the end of the file. If the library detects an access pattern, it reads ahead. errno is
 * ECANCELED if another thread closed the file. */
ssize_t fordway_pread(int file,
                      void *buffer,
                      size_t length,
                      uint64_t offset);

/* Reads `count` fragments, which may overlap and be in any order, in as few requests as the server allows. Returns the
 * sum of the fragments' lengths, or -1 with errno, which is ERANGE if a fragment extends past the end of the file.
 * After a failure, the content of the buffers is undefined. */
ssize_t fordway_pread_vector(int file,
                             const struct fordway_fragment *fragments,
                             size_t count);

/* Starts reading `count` fragments without waiting for the result. Returns a ticket for `fordway_wait` or
 * `fordway_cancel`, or -1 with errno. The array of fragments may be freed as soon as this function returns. The
 * fragments' buffers belong to the library until one of these two functions, or `fordway_close`, has returned. */
int64_t fordway_submit(int file,
                       const struct fordway_fragment *fragments,
                       size_t count);

/* Waits until the fragments of a ticket have been read; the file's other tickets also make progress in the meantime.
 * Returns the sum of the fragments' lengths, or -1 with errno: EINVAL if the ticket does not belong to this file,
 * ECANCELED if another thread closed the file. The ticket is invalid afterwards. */
ssize_t fordway_wait(int file,
                     int64_t ticket);

/* Cancels a ticket. After this call returns, the library no longer writes to the ticket's buffers. Returns 0, or -1
 * with errno EINVAL if the ticket does not belong to this file or another thread is waiting for the ticket. */
int fordway_cancel(int file,
                   int64_t ticket);

/* Announces future reads (`FORDWAY_ADVICE_...`), as posix_fadvise does. Only `FORDWAY_ADVICE_WILLNEED` uses
 * `fragments`, and it ignores their buffers. Returns 0, or -1 with errno. */
int fordway_advise(int file, int advice, const struct fordway_fragment *fragments, size_t count);

#ifdef __cplusplus
}  // extern "C"
#endif  /* __cplusplus */

#endif  /* FORDWAY_H */
