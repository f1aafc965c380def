/* Compares two builds of the drop-in for libs3 within one process, in alternating turns of a millisecond.
 *
 * usage: turns HOST_A LIBRARY_A HOST_B LIBRARY_B THREADS OBJECTS BYTES ROUNDS
 *
 * Both libraries are loaded, and each uses the bucket `bucket` of its own host: a directory (the embedded lane) or the
 * socket of a gateway (`unix://`). In a round, each of THREADS threads runs each phase on OBJECTS keys. Each turn is a
 * block of keys that takes about a millisecond. The libraries alternate in random order, so that other activity of the
 * machine affects both libraries alike. Prints a line for each phase: its name, and the median of time A / time B over
 * all pairs of blocks. A phase that can be repeated runs until it has taken 50 ms. The ratio of one process is one
 * sample, because the placement of a process's memory is random, and the same for all its blocks. The caller starts
 * many processes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libs3.h>

enum { PUT, OVERWRITE, HEAD, GET, RANGE, LIST, DELETE, PHASES };
static const char *const NAMES[PHASES] = {"put", "overwrite", "head", "get", "range", "list", "delete"};

typedef struct {
    S3BucketContext bucket;
    __typeof__(S3_put_object) *put;
    __typeof__(S3_get_object) *get;
    __typeof__(S3_head_object) *head;
    __typeof__(S3_delete_object) *delete;
    __typeof__(S3_list_bucket) *list;
} Build;

static Build builds[2];
static int threads, objects;
static uint64_t bytes;
static char *content;

/* The command of the main thread to the other threads. */
static const Build *next_build;
static int next_phase, next_from, next_to;
static pthread_barrier_t begin, end;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* The position of a thread's callbacks in their buffer. */
typedef struct {
    char *at;
    uint64_t left;
    int keys;
} Cursor;

static S3Status on_properties(const S3ResponseProperties *properties, void *data) {
    (void)properties, (void)data;
    return S3StatusOK;
}

static void on_complete(S3Status status, const S3ErrorDetails *details, void *data) {
    (void)data;
    if (status != S3StatusOK) fail("libs3", details && details->message ? details->message : "a request failed");
}

static int on_put(int size, char *buffer, void *data) {
    Cursor *cursor = data;
    int now = cursor->left < (uint64_t)size ? (int)cursor->left : size;
    memcpy(buffer, cursor->at, now);
    cursor->at += now, cursor->left -= now;
    return now;
}

static S3Status on_get(int size, const char *buffer, void *data) {
    Cursor *cursor = data;
    memcpy(cursor->at, buffer, size);
    cursor->at += size, cursor->left -= size;
    return S3StatusOK;
}

static S3Status on_list(int truncated, const char *marker, int count, const S3ListBucketContent *contents, int prefixes,
                        const char **names, void *data) {
    (void)truncated, (void)marker, (void)contents, (void)prefixes, (void)names;
    ((Cursor *)data)->keys += count;
    return S3StatusOK;
}

static const S3ResponseHandler RESPONSE = {on_properties, on_complete};
static const S3PutObjectHandler PUT_HANDLER = {{on_properties, on_complete}, on_put};
static const S3GetObjectHandler GET_HANDLER = {{on_properties, on_complete}, on_get};
static const S3ListBucketHandler LIST_HANDLER = {{on_properties, on_complete}, on_list};

static void request(const Build *build, int phase, const char *key, char *received) {
    const S3BucketContext *bucket = &build->bucket;
    uint64_t half = bytes / 2;
    Cursor to_send = {content, bytes, 0}, to_fill = {received, phase == RANGE ? bytes - half : bytes, 0};
    switch (phase) {
    case PUT:
    case OVERWRITE: build->put(bucket, key, bytes, NULL, NULL, 0, &PUT_HANDLER, &to_send); break;
    case HEAD: build->head(bucket, key, NULL, 0, &RESPONSE, NULL); return;
    case GET: build->get(bucket, key, NULL, 0, bytes, NULL, 0, &GET_HANDLER, &to_fill); break;
    case RANGE: build->get(bucket, key, NULL, half, bytes - half, NULL, 0, &GET_HANDLER, &to_fill); break;
    case LIST: build->list(bucket, NULL, NULL, NULL, 1000, NULL, 0, &LIST_HANDLER, &to_fill); break;
    case DELETE: build->delete(bucket, key, NULL, 0, &RESPONSE, NULL); return;
    }
    if (phase <= OVERWRITE ? to_send.left : phase == LIST ? !to_fill.keys : to_fill.left)
        fail(NAMES[phase], "not everything that was requested arrived");
}

static void keys_from_to(const Build *build, int phase, int thread, int from, int to, char *received) {
    char key[64];
    for (int i = from; i < to; i++) {
        snprintf(key, sizeof key, "file.%d.%08d", thread, i);
        request(build, phase, key, received);
    }
}

static void *work(void *number) {
    int thread = (int)(intptr_t)number;
    char *received = malloc(bytes + 1);
    memset(received, 1, bytes + 1);
    for (;;) {
        pthread_barrier_wait(&begin);
        if (!next_build) return free(received), NULL;
        keys_from_to(next_build, next_phase, thread, next_from, next_to, received);
        pthread_barrier_wait(&end);
    }
}

/* Returns the seconds that a block of keys takes on all threads, including the main thread. */
static double block(const Build *build, int phase, int from, int to, char *received) {
    struct timespec before, after;
    next_build = build, next_phase = phase, next_from = from, next_to = to;
    clock_gettime(CLOCK_MONOTONIC, &before);
    pthread_barrier_wait(&begin);
    keys_from_to(build, phase, 0, from, to, received);
    pthread_barrier_wait(&end);
    clock_gettime(CLOCK_MONOTONIC, &after);
    return (after.tv_sec - before.tv_sec) + (after.tv_nsec - before.tv_nsec) / 1e9;
}

/* The time ratios A / B of one phase, with one ratio for each pair of blocks. */
typedef struct {
    double *all;
    int count, room;
} Ratios;

static void add(Ratios *ratios, double ratio) {
    if (ratios->count == ratios->room) {
        ratios->room = ratios->room ? 2 * ratios->room : 1024;
        ratios->all = realloc(ratios->all, ratios->room * sizeof *ratios->all);
        if (!ratios->all) fail("ratios", "no memory is left");
    }
    ratios->all[ratios->count++] = ratio;
}

/* Runs a phase once on all keys. Returns the time in seconds. */
static double once(int phase, int step, Ratios *ratios, char *received) {
    double all = 0;
    for (int from = 0; from < objects; from += step) {
        int to = from + step < objects ? from + step : objects, first = rand() & 1;
        double seconds[2];
        for (int turn = 0; turn < 2; turn++) {
            int which = turn ^ first;
            seconds[which] = block(&builds[which], phase, from, to, received);
        }
        add(ratios, seconds[0] / seconds[1]);
        all += seconds[0] + seconds[1];
    }
    return all;
}

static void round_of(int phase, int step, Ratios *ratios, char *received) {
    double all = once(phase, step, ratios, received);
    while (phase != PUT && phase != DELETE && all < 0.05) all += once(phase, step, ratios, received);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fail(name, dlerror());
    return found;
}

static void load(Build *build, const char *host, const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(path, dlerror());
    __typeof__(S3_initialize) *initialize = symbol(library, "S3_initialize");
    if (initialize("turns", S3_INIT_ALL, host) != S3StatusOK) fail(path, "S3_initialize failed");
    build->bucket = (S3BucketContext){.hostName = host, .bucketName = "bucket", .uriStyle = S3UriStylePath};
    build->put = symbol(library, "S3_put_object"), build->get = symbol(library, "S3_get_object");
    build->head = symbol(library, "S3_head_object"), build->delete = symbol(library, "S3_delete_object");
    build->list = symbol(library, "S3_list_bucket");
}

/* The number of keys in a block, for which the slower build needs about a millisecond. */
static int step_of(int phase, char *received) {
    double slower = 0;
    for (int which = 0; which < 2; which++) {
        double seconds = block(&builds[which], phase, 0, 1, received);
        slower = seconds > slower ? seconds : slower;
    }
    int step = (int)(1e-3 / slower);
    return step < 1 ? 1 : step > objects ? objects : step;
}

int main(int count, char **words) {
    if (count != 9)
        return fputs("usage: turns HOST_A LIBRARY_A HOST_B LIBRARY_B THREADS OBJECTS BYTES ROUNDS\n", stderr), 2;
    load(&builds[0], words[1], words[2]), load(&builds[1], words[3], words[4]);
    threads = atoi(words[5]), objects = atoi(words[6]), bytes = strtoull(words[7], NULL, 10);
    int rounds = atoi(words[8]);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    srand(now.tv_nsec);

    content = malloc(bytes + 1);
    for (uint64_t i = 0; i < bytes; i++) content[i] = (char)(i * 31 + i / 251);
    char *received = malloc(bytes + 1);
    memset(received, 1, bytes + 1);
    pthread_barrier_init(&begin, NULL, threads), pthread_barrier_init(&end, NULL, threads);
    pthread_t *others = calloc(threads, sizeof *others);
    for (int i = 1; i < threads; i++) pthread_create(&others[i], NULL, work, (void *)(intptr_t)i);

    Ratios ratios[PHASES] = {{0}};
    int steps[PHASES];
    for (int round = -1; round < rounds; round++) { /* the first round is a warm-up */
        for (int phase = 0; phase < PHASES; phase++) {
            /* Deletes cannot be repeated to measure their time, so a block of deletes has as many keys as a block of
             * puts. */
            if (round <= 0) steps[phase] = phase == DELETE ? steps[PUT] : step_of(phase, received);
            if (round == 0) ratios[phase].count = 0;
            round_of(phase, steps[phase], &ratios[phase], received);
        }
    }
    for (int phase = 0; phase < PHASES; phase++) {
        qsort(ratios[phase].all, ratios[phase].count, sizeof(double), ascending);
        printf("%s %.4f\n", NAMES[phase], ratios[phase].all[ratios[phase].count / 2]);
    }
    next_build = NULL;
    pthread_barrier_wait(&begin);
    for (int i = 1; i < threads; i++) pthread_join(others[i], NULL);
    return 0;
}
