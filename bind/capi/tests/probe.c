/* Checks each promise of fordway.h.
 *
 * usage: probe URL ENDPOINT COPY MISSING THREADS  checks every point in THREADS threads; COPY is a local copy of
 *                                                 the file at URL, and no file exists at MISSING
 *        probe stalled URL                        checks reads from a server that stalls in the middle of a response
 *        probe local DIRECTORY                  checks local files of all kinds; creates files in DIRECTORY
 *        probe removed URL ENDPOINT PATH          checks reads of an open file after removing PATH; with an
 *                                                 empty PATH, the server no longer has the file after the open
 *        probe canceled URL ENDPOINT TIMES        cancels a read of the whole file, TIMES times
 *        probe refused URL ENDPOINT               checks the errors for addresses that cannot be opened
 *        probe trusted URL ENDPOINT OTHER OURS    opens URL, for which AWS_CA_BUNDLE first names the file OTHER and
 *                                                 then OURS, and prints both errors
 */
#include "fordway.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *url, *endpoint, *missing;
static unsigned char *copy;
static size_t copy_size;
static int failed;
static pthread_mutex_t output = PTHREAD_MUTEX_INITIALIZER;

static void point(int holds, const char *name)
{
    pthread_mutex_lock(&output);
    printf("%s %s%s%s\n", holds ? "ok" : "FAILED", name, holds ? "" : ": ", holds ? "" : fordway_last_error());
    failed += !holds;
    pthread_mutex_unlock(&output);
}

static int refused(int64_t result, int number)
{
    return result == -1 && errno == number && strlen(fordway_last_error()) > 10;
}

static struct fordway_options options(void)
{
    struct fordway_options options = {0};
    options.size = sizeof options;
    options.endpoint = *endpoint ? endpoint : NULL;
    options.connections = 4;
    options.ca_bundle = getenv("PROBE_CA_BUNDLE");
    options.access_key = getenv("PROBE_ACCESS_KEY");
    options.secret_key = getenv("PROBE_SECRET_KEY");
    return options;
}

static int opened(void)
{
    struct fordway_options with = options();
    return fordway_open(url, &with);
}

static int same(const struct fordway_fragment *fragments, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fragments[i].length && memcmp(fragments[i].buffer, copy + fragments[i].offset, fragments[i].length))
            return 0;
    return 1;
}

/* Returns fragments that are spread over the file and have separate buffers. */
static struct fordway_fragment *spread(size_t count, size_t length, size_t shift)
{
    struct fordway_fragment *fragments = calloc(count, sizeof *fragments);
    for (size_t i = 0; i < count; i++) {
        fragments[i].offset = (i * 7919 + shift) % (copy_size - length);
        fragments[i].length = length;
        fragments[i].buffer = malloc(length);
    }
    return fragments;
}

static int64_t bytes(const struct fordway_fragment *fragments, size_t count)
{
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += fragments[i].length;
    return sum;
}

static void release(struct fordway_fragment *fragments, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(fragments[i].buffer);
    free(fragments);
}

static void misuse(int file)
{
    char buffer[16];
    struct fordway_fragment one = {0, 16, NULL};
    struct fordway_options with = options();
    point(refused(fordway_open(NULL, NULL), EINVAL), "open: no URL");
    point(refused(fordway_open("", NULL), EINVAL), "open: an empty URL");
    point(refused(fordway_open("ftp://host/x", NULL), EINVAL), "open: a scheme that is not known");
    point(refused(fordway_open("\xff\xfe", NULL), EINVAL), "open: not UTF-8");
    point(refused(fordway_open("s3://b", NULL), EINVAL), "open: a bucket without a key");
    point(refused(fordway_open("/tmp", NULL), EISDIR), "open: a directory");
    point(refused(fordway_open("file:///no/such/file", NULL), ENOENT), "open: no such local file");
    point(refused(fordway_open(missing, &with), ENOENT), "open: a missing file");
    with.size = 3;
    point(refused(fordway_open(url, &with), EINVAL), "open: options of no known size");
    with.size = sizeof with + 8;
    point(refused(fordway_open(url, &with), EINVAL), "open: options of a later version");
    with = options();
    with.access_key = with.access_key ? NULL : "half a pair";
    point(refused(fordway_open(url, &with), EINVAL), "open: half a pair of keys");
    with.size = offsetof(struct fordway_options, access_key);
    point(refused(fordway_open("/no/such/file", &with), ENOENT), "open: options of the first version");
    point(refused(fordway_size(0), EBADF) && refused(fordway_size(-1), EBADF), "size: no file");
    point(refused(fordway_size(1 << 30), EBADF), "size: a number that was never given");
    point(refused(fordway_pread(-7, buffer, 16, 0), EBADF), "pread: no file");
    point(refused(fordway_pread(file, NULL, 16, 0), EINVAL), "pread: no buffer");
    point(refused(fordway_pread_vector(-7, &one, 1), EBADF), "pread_vector: no file");
    point(refused(fordway_pread_vector(file, NULL, 1), EINVAL), "pread_vector: no fragments");
    point(refused(fordway_pread_vector(file, &one, SIZE_MAX), EINVAL), "pread_vector: too many fragments");
    point(refused(fordway_pread_vector(file, &one, 1), EINVAL), "pread_vector: no buffer");
    one.buffer = buffer;
    one.length = SIZE_MAX;
    point(refused(fordway_pread_vector(file, &one, 1), EINVAL), "pread_vector: more bytes than memory");
    one.length = 16;
    one.offset = copy_size - 15;
    point(refused(fordway_pread_vector(file, &one, 1), ERANGE), "pread_vector: behind the end");
    one.offset = UINT64_MAX - 3;
    point(refused(fordway_submit(file, &one, 1), ERANGE), "submit: an offset that overflows");
    point(refused(fordway_submit(file, NULL, 2), EINVAL), "submit: no fragments");
    point(refused(fordway_submit(-7, &one, 1), EBADF), "submit: no file");
    point(refused(fordway_wait(file, 1 << 20), EINVAL), "wait: no such ticket");
    point(refused(fordway_wait(-7, 1), EBADF), "wait: no file");
    point(refused(fordway_cancel(file, -1), EINVAL), "cancel: no such ticket");
    point(refused(fordway_advise(file, 99, NULL, 0), EINVAL), "advise: no such advice");
    point(refused(fordway_advise(-7, FORDWAY_ADVICE_NORMAL, NULL, 0), EBADF), "advise: no file");
    point(refused(fordway_close(-7), EBADF), "close: no file");
}

static void plain(int file)
{
    unsigned char *buffer = malloc(copy_size + 10);
    point(fordway_size(file) == (int64_t)copy_size, "size: that of the file");
    point(fordway_pread(file, buffer, 100, 5) == 100 && !memcmp(buffer, copy + 5, 100), "pread: some bytes");
    point(fordway_pread(file, buffer, 10, copy_size - 4) == 4 && !memcmp(buffer, copy + copy_size - 4, 4),
          "pread: short at the end");
    point(fordway_pread(file, buffer, 10, copy_size) == 0, "pread: nothing at the end");
    point(fordway_pread(file, buffer, 10, UINT64_MAX) == 0, "pread: nothing far behind it");
    point(fordway_pread(file, NULL, 0, 0) == 0, "pread: no bytes into no buffer");
    point(fordway_pread(file, buffer, copy_size + 10, 0) == (ssize_t)copy_size && !memcmp(buffer, copy, copy_size),
          "pread: the whole");
    memset(buffer, 0, copy_size);
    size_t at = 0;
    ssize_t got;
    while ((got = fordway_pread(file, buffer + at, 3000, at)) > 0)
        at += got;
    point(got == 0 && at == copy_size && !memcmp(buffer, copy, copy_size), "pread: in order, from end to end");
    int good = 1;
    for (at = 100; at + 50 < copy_size; at += 25000)
        good &= fordway_pread(file, buffer, 50, at) == 50 && !memcmp(buffer, copy + at, 50);
    point(good, "pread: records at equal distances");
    good = 1;
    for (size_t i = 1; i < 30; i++) {
        at = i * 1103515245 % (copy_size - 70);
        good &= fordway_pread(file, buffer, 70, at) == 70 && !memcmp(buffer, copy + at, 70);
    }
    point(good, "pread: without an order");
    free(buffer);
}

static void vectors(int file)
{
    struct fordway_fragment *many = spread(300, 211, 3);
    point(fordway_pread_vector(file, NULL, 0) == 0, "pread_vector: nothing");
    point(fordway_pread_vector(file, many, 300) == bytes(many, 300) && same(many, 300), "pread_vector: 300 fragments");
    release(many, 300);
    unsigned char shared[64];
    struct fordway_fragment odd[] = {{40, 20, malloc(20)}, {30, 40, malloc(40)}, {40, 20, malloc(20)},
                                     {0, 0, NULL}, {7, 1, malloc(1)}, {copy_size - 5, 5, malloc(5)}};
    point(fordway_pread_vector(file, odd, 6) == 86 && same(odd, 6), "pread_vector: overlaps, twice, empty, any order");
    for (int i = 0; i < 6; i++)
        free(odd[i].buffer);
    struct fordway_fragment twice[] = {{10, 64, shared}, {10, 64, shared}};
    point(fordway_pread_vector(file, twice, 2) == 128 && same(twice, 2), "pread_vector: two into one buffer");
}

static void tickets(int file)
{
    struct fordway_fragment *sets[6];
    int64_t ticket[6];
    int good = 1;
    for (int i = 0; i < 6; i++) {
        sets[i] = spread(80, 173, i * 31);
        ticket[i] = fordway_submit(file, sets[i], 80);
        good &= ticket[i] > 0;
    }
    point(good, "submit: six without waiting");
    good = 1;
    for (int i = 5; i >= 2; i--)
        good &= fordway_wait(file, ticket[i]) == 80 * 173 && same(sets[i], 80);
    point(good, "wait: the last first");
    point(refused(fordway_wait(file, ticket[3]), EINVAL), "wait: a ticket that is gone");
    point(fordway_cancel(file, ticket[0]) == 0, "cancel: a ticket");
    release(sets[0], 80);
    point(refused(fordway_wait(file, ticket[0]), EINVAL), "wait: a ticket that was cancelled");
    point(fordway_wait(file, ticket[1]) == 80 * 173 && same(sets[1], 80), "wait: another, after a cancel");
    for (int i = 1; i < 6; i++)
        release(sets[i], 80);
    struct fordway_fragment *gone = spread(10, 100, 9);
    int64_t last = fordway_submit(file, gone, 10);
    struct fordway_fragment *list = malloc(sizeof *list);
    char byte;
    *list = (struct fordway_fragment){1, 1, &byte};
    int64_t single = fordway_submit(file, list, 1);
    free(list);
    point(fordway_wait(file, single) == 1 && byte == (char)copy[1],
          "submit: the list of fragments can be freed immediately");
    point(last > 0 && fordway_wait(file, last) == 1000 && same(gone, 10), "wait: what came meanwhile");
    release(gone, 10);
}

static void advice(int file)
{
    char buffer[50];
    struct fordway_fragment soon[] = {{90, 50, NULL}, {5000, 60, NULL}}, wrong = {copy_size, 1, NULL};
    point(fordway_advise(file, FORDWAY_ADVICE_WILLNEED, soon, 2) == 0, "advise: what will be needed");
    point(fordway_pread(file, buffer, 50, 5010) == 50 && !memcmp(buffer, copy + 5010, 50), "pread: what was announced");
    int result = fordway_advise(file, FORDWAY_ADVICE_WILLNEED, &wrong, 1);
    point(result == 0 || refused(result, ERANGE), "advise: beyond the file");
    int good = 1;
    const int all[] = {FORDWAY_ADVICE_DONTNEED, FORDWAY_ADVICE_SEQUENTIAL, FORDWAY_ADVICE_RANDOM, FORDWAY_ADVICE_NORMAL};
    for (int i = 0; i < 4; i++) {
        good &= fordway_advise(file, all[i], NULL, 0) == 0;
        good &= fordway_pread(file, buffer, 50, 4000) == 50 && !memcmp(buffer, copy + 4000, 50);
    }
    point(good, "advise: all the others");
}

static void *every_point(void *unused)
{
    int file = opened();
    point(file > 0, "open: the file");
    misuse(file);
    plain(file);
    vectors(file);
    tickets(file);
    advice(file);
    int other = opened();
    point(other > 0 && other != file, "open: a second time");
    struct fordway_fragment *left = spread(50, 1000, 1);
    point(fordway_submit(other, left, 50) > 0 && fordway_close(other) == 0, "close: with a ticket outstanding");
    release(left, 50);
    point(refused(fordway_close(other), EBADF), "close: twice");
    point(refused(fordway_size(other), EBADF), "size: of what was closed");
    point(fordway_close(file) == 0, "close: the file");
    return unused;
}

static int file_of_waiter;
static int64_t ticket_of_waiter;
static long waited, waited_errno, read_count, read_errno;

static void *waiter(void *unused)
{
    waited = fordway_wait(file_of_waiter, ticket_of_waiter);
    waited_errno = errno;
    return unused;
}

static void *reader(void *unused)
{
    char *buffer = malloc(200000);
    read_count = fordway_pread(file_of_waiter, buffer, 200000, 0);
    read_errno = errno;
    free(buffer);
    return unused;
}

static void pause_ms(int ms)
{
    struct timespec span = {0, ms * 1000000L};
    nanosleep(&span, NULL);
}

/* Frees each buffer as soon as a cancel or close has returned. The sanitizer reports any later write by the library. */
static void stalled(void)
{
    copy_size = 500000;
    int file = opened();
    point(file > 0, "stalled: open");
    struct fordway_fragment *given_up = spread(1, 100000, 0);
    int64_t ticket = fordway_submit(file, given_up, 1);
    point(ticket > 0 && fordway_cancel(file, ticket) == 0, "stalled: cancel");
    release(given_up, 1);
    struct fordway_fragment *closed = spread(1, 100000, 5);
    file_of_waiter = file;
    ticket_of_waiter = fordway_submit(file, closed, 1);
    pthread_t thread, reading;
    pthread_create(&thread, NULL, waiter, NULL);
    pthread_create(&reading, NULL, reader, NULL);
    pause_ms(300);
    point(refused(fordway_cancel(file, ticket_of_waiter), EINVAL), "stalled: another thread waits for it");
    struct fordway_fragment *third = spread(1, 100000, 9);
    int64_t other = fordway_submit(file, third, 1);
    point(other > 0 && fordway_cancel(file, other) == 0, "stalled: cancel while another thread waits");
    release(third, 1);
    point(fordway_close(file) == 0, "stalled: close while another thread waits");
    release(closed, 1);
    pthread_join(thread, NULL);
    point(waited == -1 && waited_errno == ECANCELED, "stalled: who waits is told");
    pthread_join(reading, NULL);
    point(read_count == -1 && read_errno == ECANCELED, "stalled: who reads is told");
}

static void write_file(const char *path, char byte)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, &byte, 1) != 1 || close(file) != 0)
        exit(2);
}

static int is_one_byte(int file)
{
    char byte;
    return file > 0 && fordway_pread(file, &byte, 1, 0) == 1;
}

static int may_end;

/* Opens and closes the file in a loop, so that a fork can occur while a lock of the library is held. */
static void *opener(void *path)
{
    while (!__atomic_load_n(&may_end, __ATOMIC_RELAXED))
        fordway_close(fordway_open(path, NULL));
    return NULL;
}

/* Returns whether 200 children, forked while other threads open files, can open and read a file. */
static int children_open(char *path)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, opener, path);
    int ended_well = 0;
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            _exit(!is_one_byte(fordway_open(path, NULL)));
        }
        int status = -1;
        waitpid(child, &status, 0);
        ended_well += status == 0;
    }
    __atomic_store_n(&may_end, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return ended_well == 200;
}

static void local(const char *directory)
{
    char path[512], other[512], byte;
    snprintf(path, sizeof path, "%s/fifo", directory);
    alarm(60);
    point(mkfifo(path, 0600) == 0 && refused(fordway_open(path, NULL), EINVAL), "local: a FIFO is refused");
    point(refused(fordway_open("/dev/zero", NULL), EINVAL), "local: a device is refused");
    point(refused(fordway_open("/proc/self/status", NULL), EINVAL), "local: a file of unknown size is refused");
    snprintf(path, sizeof path, "%s/file", directory);
    snprintf(other, sizeof other, "%s/other", directory);
    write_file(path, 'a');
    int file = fordway_open(path, NULL);
    point(rename(path, other) == 0 && is_one_byte(file), "local: a renamed file stays open");
    point(unlink(other) == 0 && is_one_byte(file), "local: a removed file stays open");
    fordway_close(file);
    write_file(path, 'a');
    file = fordway_open(path, NULL);
    pause_ms(50);
    write_file(path, 'b');
    struct fordway_fragment fragment = {0, 1, &byte};
    point(refused(fordway_pread(file, &byte, 1, 0), ESTALE), "local: pread of a changed file");
    point(refused(fordway_pread_vector(file, &fragment, 1), ESTALE), "local: pread_vector of a changed file");
    point(refused(fordway_submit(file, &fragment, 1), ESTALE), "local: submit for a changed file");
    int status = -1, mine = fordway_open(path, NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(!refused(fordway_pread(mine, &byte, 1, 0), EBADF));
    waitpid(child, &status, 0);
    point(status == 0 && is_one_byte(mine), "local: a child opens its own files");
    point(children_open(path), "local: children that are forked while other threads open files");
}

/* Every kind of read of the open file must fail with ESTALE, unlike opening a missing file. */
static void stale_reads(int file, const char *what)
{
    char buffer[16];
    struct fordway_fragment fragment = {5, 16, buffer};
    point(refused(fordway_pread(file, buffer, 16, 0), ESTALE), what);
    point(refused(fordway_pread_vector(file, &fragment, 1), ESTALE), what);
    int64_t ticket = fordway_submit(file, &fragment, 1);
    point(refused(ticket < 0 ? ticket : fordway_wait(file, ticket), ESTALE), what);
}

static void removed(const char *path)
{
    char moved[520], parent[512];
    if (!*path) {
        int file = opened();
        point(file > 0, "removed: open");
        stale_reads(file, "removed: a file that the server no longer has");
        return;
    }
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = 0;
    snprintf(moved, sizeof moved, "%s.moved", parent);
    int file = opened();
    point(file > 0, "removed: open");
    point(unlink(path) == 0, "removed: unlink");
    stale_reads(file, "removed: a removed file");
    point(refused(opened(), ENOENT), "removed: open again");
    point(rename(parent, moved) == 0, "removed: rename the bucket");
    stale_reads(file, "removed: a file of a removed bucket");
    point(refused(opened(), ENOENT), "removed: open again in a removed bucket");
    fordway_close(file);
}

/* Returns how many threads other than this one could run a handler of the program. */
static int handling_threads(void)
{
    int handling = 0;
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(threads));) {
        char name[300], line[200];
        snprintf(name, sizeof name, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = *entry->d_name == '.' || atoi(entry->d_name) == getpid() ? NULL : fopen(name, "r");
        while (status && fgets(line, sizeof line, status))
            if (!strncmp(line, "SigBlk:", 7))
                handling += !(strtoull(line + 7, NULL, 16) & (1 << (SIGALRM - 1)));
        if (status)
            fclose(status);
    }
    closedir(threads);
    return handling;
}

static void canceled(int times)
{
    signal(SIGPIPE, SIG_DFL);
    while (times--) {
        int file = opened();
        struct fordway_fragment whole = {0, fordway_size(file), malloc(fordway_size(file))};
        int64_t ticket = fordway_submit(file, &whole, 1);
        point(file > 0 && ticket > 0, "canceled: submit");
        /* Meanwhile, the response fills the buffers of the connection. */
        usleep(300000);
        point(handling_threads() == 0, "canceled: signals");
        point(!fordway_cancel(file, ticket) && !fordway_close(file), "canceled: cancel and close");
        free(whole.buffer);
        usleep(200000);
    }
}

/* The thread has already destroyed its thread-local variables. */
static void at_exit(void)
{
    if (fordway_open("/no/such/late/file", NULL) != -1 || !strstr(fordway_last_error(), "/no/such/late/file"))
        _exit(3);
}

static void read_copy(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) || (copy_size = ftell(file)) == 0)
        exit(2);
    rewind(file);
    copy = malloc(copy_size);
    if (fread(copy, 1, copy_size, file) != copy_size)
        exit(2);
    fclose(file);
}

static void trusted(const char *bundle)
{
    setenv("AWS_CA_BUNDLE", bundle, 1);
    int file = opened();
    printf("%s\n", file >= 0 ? "opened" : fordway_last_error());
    if (file >= 0)
        fordway_close(file);
}

int main(int count, char **words)
{
    endpoint = "";
    atexit(at_exit);
    if (count == 3 && !strcmp(words[1], "local")) {
        local(words[2]);
    } else if (count == 3) {
        url = words[2];
        stalled();
    } else if (count == 4) {
        url = words[2], endpoint = words[3];
        if (opened() >= 0)
            return 1;
        printf("refused: %s\n", fordway_last_error());
        return 0;
    } else if (count == 5 && !strcmp(words[1], "canceled")) {
        url = words[2], endpoint = words[3];
        canceled(atoi(words[4]));
    } else if (count == 5 && !strcmp(words[1], "removed")) {
        url = words[2], endpoint = words[3];
        removed(words[4]);
    } else if (count == 6 && !strcmp(words[1], "trusted")) {
        url = words[2], endpoint = words[3];
        trusted(words[4]);
        trusted(words[5]);
        return 0;
    } else if (count == 6) {
        url = words[1], endpoint = words[2], missing = words[4];
        read_copy(words[3]);
        int threads = atoi(words[5]);
        pthread_t thread[64];
        for (int i = 0; i < threads && i < 64; i++)
            pthread_create(&thread[i], NULL, every_point, NULL);
        for (int i = 0; i < threads && i < 64; i++)
            pthread_join(thread[i], NULL);
        point(strchr(fordway_version(), '.') != NULL, "version: has a dot");
        free(copy);
    } else {
        return 2;
    }
    printf("%d failed\n", failed);
    return failed != 0;
}
