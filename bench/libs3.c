/* Measures the cost of the drop-in for a program that calls libs3 in a loop. Compares the drop-in with plain POSIX
 * calls, and with only the system calls that the drop-in makes.
 *
 * usage: libs3 DIR OBJECTS BYTES ROUNDS
 *
 * The program has one process with one thread, like the libs3 backend of IOR and mdtest. Every round runs each phase in
 * blocks of all three kinds of call, in changing order. Each round puts new objects after the objects of the previous
 * round were removed, so all kinds write to used pages. A row contains the median time of an operation for each kind,
 * and the median of the rounds' ratios POSIX / libs3 with its 95 % confidence interval. The last column is the median
 * of POSIX / calls, which is the limit.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <libs3.h>

enum { PUT, GET, GET_COPIED, HEAD, DELETE, PHASES };
enum { POSIX, CALLS, LIBS3, KINDS };
static const char *const NAMES[PHASES] = {"put", "get", "get (POSIX: and one memcpy)", "head", "delete"};

static const char *root;
static int objects, calls, locks;
static size_t bytes;
static char *content, *received, *bounce;
static S3BucketContext bucket;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* The position of a callback in the content. */
typedef struct {
    char *at;
    size_t left;
} Cursor;

static S3Status on_properties(const S3ResponseProperties *properties, void *data) {
    (void)properties, (void)data;
    return S3StatusOK;
}

static void on_complete(S3Status status, const S3ErrorDetails *details, void *data) {
    (void)data;
    if (status != S3StatusOK) fail(S3_get_status_name(status), details ? details->message : "");
}

static int on_put(int size, char *buffer, void *data) {
    Cursor *cursor = data;
    size_t now = cursor->left < (size_t)size ? cursor->left : (size_t)size;
    memcpy(buffer, cursor->at, now);
    cursor->at += now;
    cursor->left -= now;
    return now;
}

static S3Status on_get(int size, const char *buffer, void *data) {
    Cursor *cursor = data;
    memcpy(cursor->at, buffer, size);
    cursor->at += size;
    cursor->left -= size;
    return S3StatusOK;
}

static const S3ResponseHandler RESPONSE = {on_properties, on_complete};
static const S3PutObjectHandler PUT_HANDLER = {{on_properties, on_complete}, on_put};
static const S3GetObjectHandler GET_HANDLER = {{on_properties, on_complete}, on_get};

static void with_libs3(int phase, const char *key) {
    Cursor cursor = {phase == GET || phase == GET_COPIED ? received : content, bytes};
    switch (phase) {
    case PUT: S3_put_object(&bucket, key, bytes, NULL, NULL, 0, &PUT_HANDLER, &cursor); break;
    case GET:
    case GET_COPIED: S3_get_object(&bucket, key, NULL, 0, bytes, NULL, 0, &GET_HANDLER, &cursor); break;
    case HEAD: S3_head_object(&bucket, key, NULL, 0, &RESPONSE, NULL); return;
    case DELETE: S3_delete_object(&bucket, key, NULL, 0, &RESPONSE, NULL); return;
    }
    if (cursor.left) fail(NAMES[phase], "not all bytes passed");
}

static void with_posix(int phase, const char *key) {
    char path[4096];
    snprintf(path, sizeof path, "%s/posix/%s", root, key);
    if (phase == DELETE || phase == HEAD) {
        struct stat status;
        if (phase == HEAD ? stat(path, &status) : unlink(path)) fail(path, strerror(errno));
        return;
    }
    int is_write = phase == PUT;
    int file = open(path, is_write ? O_CREAT | O_WRONLY : O_RDONLY, 0666);
    ssize_t moved = is_write ? pwrite(file, content, bytes, 0)
                             : pread(file, phase == GET_COPIED ? bounce : received, bytes, 0);
    if (phase == GET_COPIED) memcpy(received, bounce, bytes);
    if (file < 0 || moved != (ssize_t)bytes || close(file)) fail(path, strerror(errno));
}

/* Makes only the system calls that the drop-in makes for an object without metadata. A library that publishes
 * atomically, and locks the names that it removes, cannot be faster. */
static void with_calls(int phase, const char *key) {
    struct stat status;
    int file = -1;
    ssize_t moved = bytes;
    switch (phase) {
    case PUT:
        file = openat(calls, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 01666);
        moved = pwrite(file, content, bytes, 0);
        struct timespec times[2] = {{0, UTIME_OMIT}, {0, 0}};
        clock_gettime(CLOCK_REALTIME, &times[1]);
        if (futimens(file, times) || fstat(file, &status)) moved = -1;
        if (linkat(file, "", calls, key, AT_EMPTY_PATH)) moved = -1;
        break;
    case GET:
    case GET_COPIED:
        file = openat(calls, key, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC);
        if (fstat(file, &status)) moved = -1;
        moved = pread(file, bounce, bytes, 0);
        memcpy(received, bounce, bytes);
        break;
    case HEAD:
        if (fstatat(calls, key, &status, AT_SYMLINK_NOFOLLOW)) fail(key, strerror(errno));
        return;
    case DELETE: {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 7, .l_len = 1};
        fcntl(locks, F_OFD_SETLKW, &lock);
        if (fstat(calls, &status) || unlinkat(calls, key, 0)) fail(key, strerror(errno));
        lock.l_type = F_UNLCK;
        fcntl(locks, F_OFD_SETLK, &lock);
        return;
    }
    }
    if (moved != (ssize_t)bytes || close(file)) fail(key, strerror(errno));
}

static double block(void (*with)(int, const char *), int phase) {
    struct timespec from, to;
    char key[64];
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < objects; i++) {
        snprintf(key, sizeof key, "file.mdtest.%08d", i);
        with(phase, key);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / objects / 1e3;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

/* Prints the medians, and the 95 % interval of the median ratio. The ranks of the interval's bounds come from the
 * normal approximation of the binomial distribution. */
static void report(const char *name, double *times[KINDS], double *ratio, double *limit, int rounds) {
    qsort(ratio, rounds, sizeof *ratio, ascending);
    int low = floor(rounds / 2.0 - 0.98 * sqrt(rounds)), high = ceil(rounds / 2.0 + 0.98 * sqrt(rounds));
    low = low < 0 ? 0 : low, high = high > rounds - 1 ? rounds - 1 : high;
    printf("%9zu B  %-28s %9.2f %9.2f %9.2f   %5.2f [%.2f, %.2f] %9.2f\n", bytes, name, median(times[POSIX], rounds),
           median(times[CALLS], rounds), median(times[LIBS3], rounds), ratio[rounds / 2], ratio[low], ratio[high],
           median(limit, rounds));
}

static void prepare(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/posix", root);
    if (mkdir(path, 0777) && errno != EEXIST) fail(path, strerror(errno));
    snprintf(path, sizeof path, "%s/bucket", root);
    if (mkdir(path, 0777) && errno != EEXIST) fail(path, strerror(errno));
    bucket = (S3BucketContext){.hostName = root, .bucketName = "bucket", .uriStyle = S3UriStylePath};
    snprintf(path, sizeof path, "%s/calls", root);
    if (mkdir(path, 0777) && errno != EEXIST) fail(path, strerror(errno));
    calls = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(path, sizeof path, "%s/calls.locks", root);
    locks = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    if (calls < 0 || locks < 0) fail(path, strerror(errno));
    content = malloc(bytes), received = malloc(bytes), bounce = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) content[i] = (char)(i * 31 + i / 251);
    memset(received, 1, bytes), memset(bounce, 1, bytes);
}

int main(int count, char **words) {
    if (count != 5) return fprintf(stderr, "usage: libs3 DIR OBJECTS BYTES ROUNDS\n"), 2;
    root = words[1], objects = atoi(words[2]), bytes = atol(words[3]);
    int rounds = atoi(words[4]);
    prepare();
    void (*const with[KINDS])(int, const char *) = {with_posix, with_calls, with_libs3};
    double *times[PHASES][KINDS], *ratio[PHASES], *limit[PHASES];
    for (int phase = 0; phase < PHASES; phase++) {
        for (int kind = 0; kind < KINDS; kind++) times[phase][kind] = calloc(rounds, sizeof(double));
        ratio[phase] = calloc(rounds, sizeof(double)), limit[phase] = calloc(rounds, sizeof(double));
    }
    for (int round = -1; round < rounds; round++) { /* the first round is a warm-up */
        for (int phase = 0; phase < PHASES; phase++) {
            double took[KINDS];
            for (int turn = 0; turn < KINDS; turn++) {
                int kind = (turn + round + KINDS) % KINDS;
                took[kind] = block(with[kind], phase);
                if (phase == GET && memcmp(content, received, bytes)) fail("get", "not the bytes that were put");
            }
            if (round < 0) continue;
            for (int kind = 0; kind < KINDS; kind++) times[phase][kind][round] = took[kind];
            ratio[phase][round] = took[POSIX] / took[LIBS3], limit[phase][round] = took[POSIX] / took[CALLS];
        }
    }
    for (int phase = 0; phase < PHASES; phase++)
        report(NAMES[phase], times[phase], ratio[phase], limit[phase], rounds);
    return 0;
}
