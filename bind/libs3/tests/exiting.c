/* Makes requests when a thread has destroyed its thread-local variables: in an exit handler and in a destructor of
 * thread-specific data. usage: exiting HOST ACCESS SECRET BUCKET
 *
 * The main thread and another thread first make the same requests while they run normally, so that the library's
 * thread-local variables exist. Prints "ok" and exits with status 0, or prints "FAILED WHEN: line N" for the first
 * check that failed, and exits with status 1. BUCKET must exist.
 */
#include <pthread.h>
#include <unistd.h>

#include "probe.h"

#define CHECK(holds) do { if (!(holds)) return __LINE__; } while (0)
#define BYTES 1000

static Probe probe;
static pthread_key_t key;
static int key_ran;

static S3Status drive_in_data(int size, const char *buffer, void *data) {
    Call *call = data;
    int remaining = -1;
    S3RequestContext *context = (S3RequestContext *)call->text;
    if (S3_runonce_request_context(context, &remaining) != S3StatusInternalError || remaining < 1) call->got_wrong = 1;
    return on_get(size, buffer, data);
}

/* Makes two requests in a context, one of which fails. A callback tries to drive the context that it belongs to. */
static int in_a_context(const char *name) {
    static const S3GetObjectHandler handler = {{on_properties, on_complete}, drive_in_data};
    S3RequestContext *context = NULL;
    CHECK(S3_create_request_context(&context) == S3StatusOK);
    Call read = {.text = (const char *)context}, none = {0};
    S3_get_object(&probe.context, name, NULL, 0, 0, context, 0, &handler, &read);
    S3_head_object(&probe.context, "missing", context, 0, &RESPONSE, &none);
    CHECK(!read.complete_calls && !none.complete_calls);
    CHECK(S3_runall_request_context(context) == S3StatusOK);
    CHECK(ended(&read, S3StatusOK) && read.got_bytes == BYTES && !read.got_wrong);
    CHECK(ended(&none, S3StatusHttpErrorNotFound));
    S3_destroy_request_context(context);
    return 0;
}

/* A failure's message and a listing's marker stay readable after the callback, as IOR expects. */
static const char *kept_message, *kept_marker;

static void keep_message(S3Status status, const S3ErrorDetails *details, void *data) {
    kept_message = details->message;
    on_complete(status, details, data);
}

static S3Status keep_marker(int truncated, const char *marker, int count, const S3ListBucketContent *contents,
                            int prefixes, const char **prefix, void *data) {
    kept_marker = marker;
    return on_list(truncated, marker, count, contents, prefixes, prefix, data);
}

static int kept_texts(void) {
    static const S3ResponseHandler head_handler = {on_properties, keep_message};
    static const S3ListBucketHandler list_handler = {{on_properties, on_complete}, keep_marker};
    Call none = {0}, listed = {0};
    S3_head_object(&probe.context, "missing", NULL, 0, &head_handler, &none);
    CHECK(ended(&none, S3StatusHttpErrorNotFound) && none.message[0] && !strcmp(kept_message, none.message));
    S3_list_bucket(&probe.context, NULL, NULL, NULL, 1, NULL, 0, &list_handler, &listed);
    CHECK(ended(&listed, S3StatusOK) && listed.names == 1 && listed.truncated);
    CHECK(listed.marker[0] && !strcmp(kept_marker, listed.marker));
    return 0;
}

static int requests(const char *name) {
    Call call = put(&probe, name, BYTES);
    CHECK(ended(&call, S3StatusOK));
    call = put(&probe, name, BYTES);
    CHECK(ended(&call, S3StatusOK));
    call = head(&probe, name);
    CHECK(ended(&call, S3StatusOK) && call.length == BYTES);
    call = get(&probe, name);
    CHECK(ended(&call, S3StatusOK) && call.got_bytes == BYTES && !call.got_wrong);
    int line = in_a_context(name);
    if (line) return line;
    CHECK((line = kept_texts()) == 0);
    call = delete_object(&probe, name);
    CHECK(ended(&call, S3StatusOK));
    call = head(&probe, name);
    CHECK(ended(&call, S3StatusHttpErrorNotFound));
    return 0;
}

static void check(const char *when, const char *name) {
    int line = requests(name);
    if (!line) return;
    printf("FAILED %s: line %d\n", when, line);
    fflush(stdout);
    _exit(1);
}

static void at_exit(void) {
    check("in an exit handler", "late");
    printf("ok\n");
}

static void of_key(void *value) {
    (void)value;
    check("in a destructor of thread-specific data", "late/thread");
    key_ran = 1;
}

static void *thread(void *value) {
    pthread_setspecific(key, value);
    check("in a thread", "thread");
    return NULL;
}

int main(int words, char **word) {
    if (words != 5) return fprintf(stderr, "usage: exiting HOST ACCESS SECRET BUCKET\n"), 2;
    probe = (Probe){.host = word[1], .access = word[2], .secret = word[3]};
    probe.context = (S3BucketContext){.hostName = probe.host, .bucketName = word[4], .protocol = S3ProtocolHTTP,
                                      .uriStyle = S3UriStylePath, .accessKeyId = probe.access,
                                      .secretAccessKey = probe.secret};
    /* Two objects that stay, so that a listing of one entry has a marker. */
    put(&probe, "a", 1), put(&probe, "b", 1);
    atexit(at_exit);
    check("in the main thread", "main");
    pthread_t other;
    pthread_key_create(&key, of_key);
    pthread_create(&other, NULL, thread, &probe);
    pthread_join(other, NULL);
    return !key_ran;
}
