/* Reads baskets of a ROOT file as a TFile or an XrdCl plug-in does. The program opens the file, gets its size, and
 * reads its first bytes. It then reads all baskets in one blocking vectored read. Finally, it reads the baskets again
 * in batches, and keeps several batches in flight while it unpacks the previous batch.
 *
 * usage: baskets URL RANGES [CA_BUNDLE]
 *
 * A line of RANGES is `offset length`, as `bench/vectored/root_ranges.py --list` prints them. The vectored read
 * and the batches must return the same bytes. The program prints the number of bytes and their 64-bit FNV-1a hash. */
#include <fordway.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, UNDER_WAY = 4, HEAD_BYTES = 300 };

struct remote {
    int handle;
    int64_t size;
};

struct baskets {
    struct fordway_fragment *all;
    size_t count;
};

static int complain(const char *doing)
{
    int number = errno;
    /* ESTALE: the file has changed. A program that has read parts of the file must start again. */
    const char *then = number == ESTALE ? " (what was read before is of no use)" : "";
    fprintf(stderr, "%s: %s%s\n", doing, fordway_last_error(), then);
    return -1;
}

/* Opens the file and stores its size, as Open and Stat of XrdCl do. */
static int remote_open(struct remote *remote, const char *url, const char *ca_bundle)
{
    struct fordway_options options = {0};
    options.size = sizeof options;
    options.ca_bundle = ca_bundle;
    remote->handle = fordway_open(url, &options);
    if (remote->handle < 0)
        return complain("open");
    remote->size = fordway_size(remote->handle);
    return 0;
}

/* Reads the first bytes of the file, as Read of XrdCl and ReadBuffer of TFile do. Fails if the read returns fewer bytes
 * than requested before the end of the file. */
static int remote_head(const struct remote *remote)
{
    char head[HEAD_BYTES];
    int64_t wanted = remote->size < HEAD_BYTES ? remote->size : HEAD_BYTES;
    ssize_t got = fordway_pread(remote->handle, head, sizeof head, 0);
    if (got < 0)
        return complain("read of the head");
    return got == wanted ? 0 : -1;
}

static int64_t length_of(const struct fordway_fragment *fragments, size_t count)
{
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += fragments[i].length;
    return sum;
}

static uint64_t sum_of(uint64_t sum, const struct fordway_fragment *fragments, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned char *bytes = fragments[i].buffer;
        for (size_t at = 0; at < fragments[i].length; at++)
            sum = (sum ^ bytes[at]) * UINT64_C(1099511628211);
    }
    return sum;
}

static const uint64_t NOTHING = UINT64_C(14695981039346656037);

/* Reads all baskets in one blocking call, as VectorRead of XrdCl and ReadBuffers of TFile do. */
static int read_vector(const struct remote *remote, const struct baskets *baskets, uint64_t *sum)
{
    int64_t got = fordway_pread_vector(remote->handle, baskets->all, baskets->count);
    if (got < 0)
        return complain("vector read");
    *sum = sum_of(NOTHING, baskets->all, baskets->count);
    return got == length_of(baskets->all, baskets->count) ? 0 : -1;
}

/* Cancels the remaining batches. A submitted read owns its buffers until the program waits for the read or cancels it,
 * so the program must not free the buffers earlier. */
static int give_up(const struct remote *remote, const int64_t *tickets, size_t from, size_t to)
{
    complain("batch");
    for (; from < to; from++)
        fordway_cancel(remote->handle, tickets[from % UNDER_WAY]);
    return -1;
}

/* Reads batches as a TTreeCache reads clusters: the next batches are in flight while the program unpacks the current
 * batch. */
static int read_batches(const struct remote *remote, const struct baskets *baskets, uint64_t *sum)
{
    int64_t tickets[UNDER_WAY];
    size_t batches = (baskets->count + BATCH - 1) / BATCH, begun = 0, ended = 0;
    *sum = NOTHING;
    while (ended < batches) {
        for (; begun < batches && begun - ended < UNDER_WAY; begun++) {
            size_t first = begun * BATCH, left = baskets->count - first;
            int64_t ticket = fordway_submit(remote->handle, baskets->all + first, left < BATCH ? left : BATCH);
            if (ticket < 0)
                return give_up(remote, tickets, ended, begun);
            tickets[begun % UNDER_WAY] = ticket;
        }
        /* The ticket is invalid after the wait, even if the wait fails. */
        size_t first = ended * BATCH, left = baskets->count - first;
        if (fordway_wait(remote->handle, tickets[ended++ % UNDER_WAY]) < 0)
            return give_up(remote, tickets, ended, begun);
        *sum = sum_of(*sum, baskets->all + first, left < BATCH ? left : BATCH);
    }
    return 0;
}

static void clear(const struct baskets *baskets)
{
    for (size_t i = 0; i < baskets->count; i++)
        memset(baskets->all[i].buffer, 0, baskets->all[i].length);
}

static void release(struct baskets *baskets)
{
    for (size_t i = 0; i < baskets->count; i++)
        free(baskets->all[i].buffer);
    free(baskets->all);
}

static int load(struct baskets *baskets, const char *path)
{
    FILE *file = fopen(path, "r");
    uint64_t offset;
    size_t length;
    while (file && fscanf(file, "%" SCNu64 " %zu", &offset, &length) == 2) {
        void *grown = realloc(baskets->all, (baskets->count + 1) * sizeof *baskets->all);
        if (!grown)
            break;
        baskets->all = grown;
        struct fordway_fragment basket = {offset, length, malloc(length ? length : 1)};
        baskets->all[baskets->count++] = basket;
    }
    int is_whole = file && feof(file);
    if (file)
        fclose(file);
    if (!is_whole)
        fprintf(stderr, "%s: no list of lines `offset length`\n", path);
    return is_whole ? 0 : -1;
}

static int run(const struct remote *remote, const struct baskets *baskets)
{
    uint64_t at_once = 0, in_batches = 0;
    if (remote_head(remote) || read_vector(remote, baskets, &at_once))
        return -1;
    clear(baskets);
    if (read_batches(remote, baskets, &in_batches))
        return -1;
    if (at_once != in_batches) {
        fprintf(stderr, "the vector read and the batches returned different bytes\n");
        return -1;
    }
    int64_t bytes = length_of(baskets->all, baskets->count);
    printf("%zu baskets, %" PRId64 " bytes, %016" PRIx64 "\n", baskets->count, bytes, at_once);
    return 0;
}

int main(int count, char **words)
{
    struct baskets baskets = {NULL, 0};
    struct remote remote = {-1, 0};
    if (count < 3 || count > 4) {
        fprintf(stderr, "usage: baskets URL RANGES [CA_BUNDLE]\n");
        return 2;
    }
    int failed = load(&baskets, words[2]);
    if (!failed && !(failed = remote_open(&remote, words[1], words[3]))) {
        failed = run(&remote, &baskets);
        if (fordway_close(remote.handle))
            failed = complain("close");
    }
    release(&baskets);
    return failed ? 1 : 0;
}
