/* Cost of the kernel's copy between the page cache and memory, by the memory's offset from the start of a page.
 * Prints a table: offset in bytes, median microseconds of CPU time to read and to write 2 MiB by calls of 256 KiB, and the
 * ratio to offset 0. The offsets take turns. argv[1] is a file to create, on the file system to measure. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { TOTAL = 2 << 20, PIECE = 256 << 10, ROUNDS = 101, COUNT = 8 };
static const int offsets[COUNT] = {0, 8, 16, 32, 64, 128, 512, 2048};
static double times[2][COUNT][ROUNDS];

static double cpu_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double move(int file, char *memory, int writes) {
    double begun = cpu_us();
    for (off_t at = 0; at < TOTAL; at += PIECE) {
        ssize_t moved = writes ? pwrite(file, memory, PIECE, at) : pread(file, memory, PIECE, at);
        if (moved != PIECE) {
            perror("copy-alignment");
            exit(1);
        }
    }
    return cpu_us() - begun;
}

int main(int argc, char **argv) {
    int file = argc == 2 ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;
    char *memory = mmap(NULL, 2 * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (file < 0 || memory == MAP_FAILED) {
        fprintf(stderr, "usage: copy-alignment FILE, on a file system with 2 MiB of room\n");
        return 2;
    }
    memset(memory, 7, 2 * PIECE);
    move(file, memory, 1);
    for (int round = 0; round < ROUNDS; round++)
        for (int at = 0; at < COUNT; at++)
            for (int writes = 0; writes < 2; writes++)
                times[writes][at][round] = move(file, memory + offsets[at], writes);
    unlink(argv[1]);
    printf("offset  read us  ratio  write us  ratio\n");
    double first[2] = {0, 0};
    for (int at = 0; at < COUNT; at++) {
        double median[2];
        for (int writes = 0; writes < 2; writes++) {
            qsort(times[writes][at], ROUNDS, sizeof(double), ascending);
            median[writes] = times[writes][at][ROUNDS / 2];
            if (at == 0) first[writes] = median[writes];
        }
        printf("%6d %8.1f %6.2f %9.1f %6.2f\n", offsets[at], median[0], median[0] / first[0], median[1], median[1] / first[1]);
    }
    return 0;
}
