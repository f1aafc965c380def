/* Measures concurrent GETs through a request context of libs3. The program uses the libs3 of version 2.0 that the
 * loader finds.
 *
 * usage: contexts HOST BUCKET KEY REQUESTS BATCHES runall|fdsets
 *
 * Prints a line for each batch: the time of the batch and the time of the longest runonce call (0 with runall), in
 * microseconds. The first batch opens the connections. All batches use one context.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <time.h>

#include <libs3-2.0.h>

static int ended;
static uint64_t received;

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static S3Status on_properties(const S3ResponseProperties *properties, void *data) {
    (void)properties, (void)data;
    return S3StatusOK;
}

static void on_complete(S3Status status, const S3ErrorDetails *details, void *data) {
    (void)data;
    ended++;
    if (status == S3StatusOK) return;
    fprintf(stderr, "%s: %s\n", S3_get_status_name(status), details && details->message ? details->message : "");
    exit(1);
}

static S3Status on_data(int size, const char *buffer, void *data) {
    (void)buffer, (void)data;
    received += size;
    return S3StatusOK;
}

/* Works like libs3's own runall. Returns the time of the longest runonce call. */
static double by_fdsets(S3RequestContext *context) {
    int remaining = 1;
    double longest = 0;
    while (remaining) {
        fd_set reading, writing, failing;
        int most = -1;
        FD_ZERO(&reading);
        FD_ZERO(&writing);
        FD_ZERO(&failing);
        S3_get_request_context_fdsets(context, &reading, &writing, &failing, &most);
        int64_t wait_ms = S3_get_request_context_timeout(context);
        struct timeval wait = {wait_ms / 1000, wait_ms % 1000 * 1000};
        if (most != -1) select(most + 1, &reading, &writing, &failing, wait_ms == -1 ? NULL : &wait);
        double from = now_us();
        S3_runonce_request_context(context, &remaining);
        double took = now_us() - from;
        if (took > longest) longest = took;
    }
    return longest;
}

int main(int words, char **word) {
    if (words != 7) return fprintf(stderr, "usage: contexts HOST BUCKET KEY REQUESTS BATCHES runall|fdsets\n"), 2;
    int requests = atoi(word[4]), batches = atoi(word[5]), by_runall = !strcmp(word[6], "runall");
    static const S3GetObjectHandler handler = {{on_properties, on_complete}, on_data};
    S3BucketContext bucket = {.hostName = word[1], .bucketName = word[2], .protocol = S3ProtocolHTTP,
                              .uriStyle = S3UriStylePath, .accessKeyId = "key", .secretAccessKey = "secret"};
    S3RequestContext *context = NULL;
    if (S3_initialize("contexts", S3_INIT_ALL, word[1]) || S3_create_request_context(&context)) return 1;
    for (int batch = 0; batch < batches; batch++) {
        double longest = 0, from = now_us();
        ended = 0, received = 0;
        for (int i = 0; i < requests; i++) S3_get_object(&bucket, word[3], NULL, 0, 0, context, &handler, NULL);
        if (by_runall) S3_runall_request_context(context);
        else longest = by_fdsets(context);
        double took = now_us() - from;
        if (ended != requests || received == 0) return fprintf(stderr, "%d of %d ended\n", ended, requests), 1;
        printf("%.0f %.0f\n", took, longest);
    }
    S3_destroy_request_context(context);
    S3_deinitialize();
    return 0;
}
