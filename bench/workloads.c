/* Measures the cost of the bare system calls that IOR and mdtest make. Runs these calls in a loop, with the sizes and
 * kinds of paths that IOR and mdtest use.
 *
 *   workloads mdtest DIR FILES BYTES      prints: phase operations-per-second, a line each
 *   workloads ior DIR TRANSFERS BYTES
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char path[4096];
static char *dir, *buffer;
static long count, size;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void check(int good, const char *what) {
    if (!good) {
        perror(what);
        exit(1);
    }
}

static void name(long i) { snprintf(path, sizeof path, "%s/file.%08d.%010ld", dir, 0, i); }

static void create(long i) {
    name(i);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    check(file >= 0, path);
    if (size > 0)
        check(write(file, buffer, size) == size, path);
    check(close(file) == 0, path);
}

static void look(long i) {
    struct stat meta;
    name(i);
    check(stat(path, &meta) == 0 && meta.st_size == size, path);
}

static void read_whole(long i) {
    struct stat meta;
    name(i);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    check(file >= 0 && fstat(file, &meta) == 0, path);
    check(pread(file, buffer, size, 0) == size, path);
    check(close(file) == 0, path);
}

static void delete(long i) {
    name(i);
    check(unlink(path) == 0, path);
}

static int file;

static void write_at(long i) { check(pwrite(file, buffer, size, i * size) == size, path); }

static void read_at(long i) { check(pread(file, buffer, size, i * size) == size, path); }

static void phase(const char *title, void (*step)(long)) {
    double start = now();
    for (long i = 0; i < count; i++)
        step(i);
    printf("%s %.3f\n", title, count / (now() - start));
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: workloads mdtest|ior DIR COUNT BYTES\n");
        return 2;
    }
    dir = argv[2], count = atol(argv[3]), size = atol(argv[4]);
    buffer = malloc(size + 1);
    check(buffer != NULL, "malloc");
    memset(buffer, 'x', size + 1);
    if (strcmp(argv[1], "mdtest") == 0) {
        phase("mdtest-create", create);
        phase("mdtest-stat", look);
        phase("mdtest-read", read_whole);
        phase("mdtest-delete", delete);
        return 0;
    }
    name(0);
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    check(file >= 0, path);
    phase("ior-write", write_at);
    phase("ior-read", read_at);
    close(file);
    unlink(path);
    return 0;
}
