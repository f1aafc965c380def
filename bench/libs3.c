/* What the drop-in costs a program that calls libs3 in a loop, beside the plain calls of POSIX.
 *
 * usage: libs3 DIR OBJECTS BYTES ROUNDS
 *
 * One process, one thread, as IOR's and mdtest's libs3 backend works: every round does each phase in
 * blocks of both kinds, in changing order. Each round puts new objects where those of the round
 * before were removed, so both kinds write to pages that were used before. A row gives the median
 * time of an operation and the median of the rounds' ratios POSIX / libs3, with the interval in
 * which that median lies with 95 % confidence.
 */
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
static const char *const NAMES[PHASES] = {"put", "get", "get (POSIX: and one memcpy)", "head", "delete"};

static const char *root;
static int objects;
static size_t bytes;
static char *content, *received, *bounce;
static S3BucketContext bucket;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* Where a callback is in the content. */
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

/* Sorts; the ranks around the median by the normal approximation of the binomial distribution. */
static void report(const char *name, double *libs3, double *posix, double *ratio, int rounds) {
    qsort(libs3, rounds, sizeof *libs3, ascending);
    qsort(posix, rounds, sizeof *posix, ascending);
    qsort(ratio, rounds, sizeof *ratio, ascending);
    int low = floor(rounds / 2.0 - 0.98 * sqrt(rounds)), high = ceil(rounds / 2.0 + 0.98 * sqrt(rounds));
    low = low < 0 ? 0 : low, high = high > rounds - 1 ? rounds - 1 : high;
    printf("%9zu B  %-28s %9.2f %9.2f   %5.2f [%.2f, %.2f]\n", bytes, name, posix[rounds / 2], libs3[rounds / 2],
           ratio[rounds / 2], ratio[low], ratio[high]);
}

static void prepare(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/posix", root);
    if (mkdir(path, 0777) && errno != EEXIST) fail(path, strerror(errno));
    snprintf(path, sizeof path, "%s/bucket", root);
    if (mkdir(path, 0777) && errno != EEXIST) fail(path, strerror(errno));
    bucket = (S3BucketContext){.hostName = root, .bucketName = "bucket", .uriStyle = S3UriStylePath};
    content = malloc(bytes), received = malloc(bytes), bounce = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) content[i] = (char)(i * 31 + i / 251);
    memset(received, 1, bytes), memset(bounce, 1, bytes);
}

int main(int count, char **words) {
    if (count != 5) return fprintf(stderr, "usage: libs3 DIR OBJECTS BYTES ROUNDS\n"), 2;
    root = words[1], objects = atoi(words[2]), bytes = atol(words[3]);
    int rounds = atoi(words[4]);
    prepare();
    double *libs3 = calloc(3 * PHASES * rounds, sizeof *libs3);
    double *posix = libs3 + PHASES * rounds, *ratio = posix + PHASES * rounds;
    for (int round = -1; round < rounds; round++) { /* one to warm up */
        for (int phase = 0; phase < PHASES; phase++) {
            double times[2];
            for (int turn = 0; turn < 2; turn++) {
                int which = (turn + round) & 1;
                times[which] = block(which ? with_libs3 : with_posix, phase);
            }
            if (phase == GET && memcmp(content, received, bytes)) fail("get", "other bytes than were put");
            if (round < 0) continue;
            posix[phase * rounds + round] = times[0], libs3[phase * rounds + round] = times[1];
            ratio[phase * rounds + round] = times[0] / times[1];
        }
    }
    for (int phase = 0; phase < PHASES; phase++)
        report(NAMES[phase], libs3 + phase * rounds, posix + phase * rounds, ratio + phase * rounds, rounds);
    return 0;
}
