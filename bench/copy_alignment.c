/* Measures the cost of copies, by the offset of a buffer from the start of a page. The kernel copies between the page
 * cache and the buffer. memcpy copies from the buffer to a block from malloc, as programs do after a library has read
 * content for them. Prints a table: offset in bytes, median microseconds of CPU time to read, to write and to copy 2
 * MiB by calls of 256 KiB, and the ratio to offset 0. The program measures the offsets in turn. argv[1] is a file to
 * create, on the file system to measure. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { TOTAL = 2 << 20, PIECE = 256 << 10, ROUNDS = 101, COUNT = 8 };
static const int offsets[COUNT] = {0, 8, 16, 32, 64, 128, 512, 2048};
enum { READ, WRITE, COPY, KINDS };
static double times[KINDS][COUNT][ROUNDS];

static double cpu_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double move(int file, char *memory, int kind, char *block) {
    double begun = cpu_us();
    for (off_t at = 0; at < TOTAL; at += PIECE) {
        ssize_t moved = PIECE;
        if (kind == COPY)
            memcpy(block + at, memory, PIECE);
        else
            moved = kind == WRITE ? pwrite(file, memory, PIECE, at) : pread(file, memory, PIECE, at);
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
    char *block = malloc(TOTAL);
    if (file < 0 || memory == MAP_FAILED || !block) {
        fprintf(stderr, "usage: copy-alignment FILE, on a file system with 2 MiB of room\n");
        return 2;
    }
    memset(memory, 7, 2 * PIECE);
    memset(block, 7, TOTAL);
    move(file, memory, WRITE, block);
    for (int round = 0; round < ROUNDS; round++)
        for (int at = 0; at < COUNT; at++)
            for (int kind = 0; kind < KINDS; kind++)
                times[kind][at][round] = move(file, memory + offsets[at], kind, block);
    unlink(argv[1]);
    printf("block of malloc: offset %d\n", (int)((uintptr_t)block % 4096));
    printf("offset  read us  ratio  write us  ratio   copy us  ratio\n");
    double first[KINDS] = {0};
    for (int at = 0; at < COUNT; at++) {
        printf("%6d", offsets[at]);
        for (int kind = 0; kind < KINDS; kind++) {
            qsort(times[kind][at], ROUNDS, sizeof(double), ascending);
            double median = times[kind][at][ROUNDS / 2];
            if (at == 0) first[kind] = median;
            printf(kind == READ ? " %8.1f %6.2f" : " %9.1f %6.2f", median, median / first[kind]);
        }
        printf("\n");
    }
    return 0;
}
