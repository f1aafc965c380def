/* Checks one property of request contexts. usage: contexts HOST ACCESS SECRET BUCKET POINT [COUNT]
 *
 * POINT is the name of the property. Prints "ok POINT" and exits with status 0, or prints "FAILED POINT: line N" and
 * exits with another status. BUCKET must exist and contain the object "object" of 1000 bytes.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "probe.h"

#define CHECK(holds) do { if (!(holds)) return __LINE__; } while (0)
#define OBJECT_BYTES 1000

static Probe probe;
static int count = 64;
/* The thread that drives the context, valid while is_driving is set. Callbacks may run only on this thread and only
 * while is_driving is set; otherwise, stray is set. */
static pthread_t driver;
static int is_driving, stray;
/* The numbers of the requests, in the order in which the requests ended. */
static int order[20000], ended_count;

static void note_thread(void) {
    if (!is_driving || !pthread_equal(driver, pthread_self())) stray = 1;
}

typedef struct {
    Call call;
    int number;
    S3RequestContext *context;
    int more;                                   /* requests to add when this request ends */
    int (*in_data)(S3RequestContext *context);  /* called in the data callback */
    int in_data_failed;
} Item;

static S3Status item_properties(const S3ResponseProperties *properties, void *data) {
    note_thread();
    return on_properties(properties, data);
}

static S3Status item_data(int size, const char *buffer, void *data) {
    Item *item = data;
    note_thread();
    if (item->in_data) item->in_data_failed = item->in_data(item->context);
    return on_get(size, buffer, data);
}

static int item_content(int size, char *buffer, void *data) {
    note_thread();
    return on_put(size, buffer, data);
}

static const S3GetObjectHandler ITEM_GET;

static void item_complete(S3Status status, const S3ErrorDetails *details, void *data) {
    Item *item = data;
    note_thread();
    on_complete(status, details, data);
    order[ended_count++] = item->number;
    if (item->more > 0) {
        item->more--;
        item->call = (Call){0};
        S3_get_object(&probe.context, "object", NULL, 0, 0, item->context, 0, &ITEM_GET, item);
    }
}

static const S3GetObjectHandler ITEM_GET = {{item_properties, item_complete}, item_data};
static const S3PutObjectHandler ITEM_PUT = {{item_properties, item_complete}, item_content};
static const S3ResponseHandler ITEM_RESPONSE = {item_properties, item_complete};

static Item *items(S3RequestContext *context, int number) {
    Item *made = calloc(number, sizeof *made);
    for (int i = 0; i < number; i++) made[i].number = i, made[i].context = context;
    return made;
}

static void get_object(Item *item) {
    S3_get_object(&probe.context, "object", NULL, 0, 0, item->context, 0, &ITEM_GET, item);
}

static int is_whole(const Item *item) {
    const Call *call = &item->call;
    return ended(call, S3StatusOK) && call->got_bytes == OBJECT_BYTES && !call->got_wrong;
}

static S3Status run_all(S3RequestContext *context) {
    driver = pthread_self(), is_driving = 1;
    S3Status status = S3_runall_request_context(context);
    is_driving = 0;
    return status;
}

static S3Status run_once(S3RequestContext *context, int *remaining) {
    driver = pthread_self(), is_driving = 1;
    S3Status status = S3_runonce_request_context(context, remaining);
    is_driving = 0;
    return status;
}

static void destroy(S3RequestContext *context) {
    driver = pthread_self(), is_driving = 1;
    S3_destroy_request_context(context);
    is_driving = 0;
}

static int is_embedded(void) { return probe.host[0] == '/'; }

/* Returns the descriptor of the context, or -1. */
static int descriptor(S3RequestContext *context) {
    fd_set reading, writing, failing;
    int most = -1;
    FD_ZERO(&reading);
    FD_ZERO(&writing);
    FD_ZERO(&failing);
    if (S3_get_request_context_fdsets(context, &reading, &writing, &failing, &most) != S3StatusOK) return -1;
    return most >= 0 && FD_ISSET(most, &reading) ? most : -1;
}

static int is_readable(int fd, int wait_ms) {
    struct pollfd wanted = {fd, POLLIN, 0};
    return poll(&wanted, 1, wait_ms) == 1;
}

/* Drives the context as the event loop of a program does. Returns 0, or the line of the check that failed. */
static int select_loop(S3RequestContext *context, int *turns) {
    for (int remaining = 1; remaining; ++*turns) {
        int fd = descriptor(context);
        CHECK(fd >= 0);
        int64_t timeout_ms = S3_get_request_context_timeout(context);
        CHECK(timeout_ms >= 0);
        if (timeout_ms == 0) CHECK(is_readable(fd, 0));
        else CHECK(is_readable(fd, 20000) && S3_get_request_context_timeout(context) == 0);
        CHECK(run_once(context, &remaining) == S3StatusOK);
    }
    return 0;
}

static S3RequestContext *new_context(void) {
    S3RequestContext *context = NULL;
    S3_create_request_context(&context);
    return context;
}

static int finish(S3RequestContext *context, Item *made) {
    destroy(context);
    free(made);
    CHECK(!stray);
    return 0;
}

static int all_at_once_by_runall(void) {
    S3RequestContext *context = new_context();
    Item *made = items(context, count);
    for (int i = 0; i < count; i++) get_object(&made[i]);
    for (int i = 0; i < count; i++) CHECK(!made[i].call.complete_calls);
    CHECK(run_all(context) == S3StatusOK);
    for (int i = 0; i < count; i++) CHECK(is_whole(&made[i]));
    CHECK(ended_count == count);
    return finish(context, made);
}

static int all_at_once_by_select(void) {
    S3RequestContext *context = new_context();
    Item *made = items(context, count);
    int turns = 0, line;
    CHECK(descriptor(context) == -1 && S3_get_request_context_timeout(context) == -1);
    for (int i = 0; i < count; i++) get_object(&made[i]);
    CHECK((line = select_loop(context, &turns)) == 0);
    for (int i = 0; i < count; i++) CHECK(is_whole(&made[i]));
    CHECK(descriptor(context) == -1 && S3_get_request_context_timeout(context) == -1);
    return finish(context, made);
}

/* Checks that no call blocks although the server never responds. */
static int nothing_waits_for_a_silent_server(void) {
    S3RequestContext *context = new_context();
    Item *made = items(context, count);
    struct timespec from, to;
    for (int i = 0; i < count; i++) get_object(&made[i]);
    clock_gettime(CLOCK_MONOTONIC, &from);
    int remaining = 0, begun = 0;
    for (; begun < 10000 && S3_get_request_context_timeout(context) == 0; begun++) {
        CHECK(run_once(context, &remaining) == S3StatusOK && remaining == count);
    }
    CHECK(begun > 0 && begun < 10000 && S3_get_request_context_timeout(context) > 0);
    CHECK(!is_readable(descriptor(context), 300));
    CHECK(run_once(context, &remaining) == S3StatusOK && remaining == count && ended_count == 0);
    destroy(context);
    clock_gettime(CLOCK_MONOTONIC, &to);
    CHECK(to.tv_sec - from.tv_sec < 10);
    CHECK(ended_count == count);
    for (int i = 0; i < count; i++) CHECK(ended(&made[i].call, S3StatusInterrupted) && order[i] == i);
    usleep(100000);
    CHECK(ended_count == count && !stray);
    free(made);
    return 0;
}

static int callbacks_abort(void) {
    S3RequestContext *context = new_context();
    Item *made = items(context, 4);
    made[0].call.get_answer = S3StatusAbortedByCallback;
    made[1].call.properties_answer = S3StatusOutOfMemory;
    made[2].call = (Call){.put_bytes = 2000000, .put_abort_after = 3};
    get_object(&made[0]), get_object(&made[1]);
    S3_put_object(&probe.context, "aborted", 2000000, NULL, context, 0, &ITEM_PUT, &made[2]);
    get_object(&made[3]);
    CHECK(run_all(context) == S3StatusOK);
    CHECK(made[0].call.status == S3StatusAbortedByCallback && made[0].call.got_calls == 1);
    CHECK(made[0].call.complete_calls == 1);
    CHECK(made[1].call.status == S3StatusOutOfMemory && !made[1].call.got_calls && made[1].call.complete_calls == 1);
    CHECK(ended(&made[2].call, S3StatusAbortedByCallback));
    CHECK(is_whole(&made[3]));
    CHECK(head(&probe, "aborted").status == S3StatusHttpErrorNotFound);
    return finish(context, made);
}

static int in_data_sync(S3RequestContext *context) {
    (void)context;
    Call sent = put(&probe, "nested", 5000), read = get(&probe, "nested");
    CHECK(ended(&sent, S3StatusOK) && ended(&read, S3StatusOK) && read.got_bytes == 5000 && !read.got_wrong);
    return 0;
}

static int in_data_drive(S3RequestContext *context) {
    int remaining = -1;
    CHECK(S3_runall_request_context(context) == S3StatusInternalError);
    CHECK(S3_runonce_request_context(context, &remaining) == S3StatusInternalError && remaining > 0);
    S3RequestContext *other = new_context();
    Call read = {0};
    S3_get_object(&probe.context, "object", NULL, 0, 0, other, 0, &GET, &read);
    CHECK(S3_runall_request_context(other) == S3StatusOK && ended(&read, S3StatusOK));
    S3_destroy_request_context(other);
    return 0;
}

static Item *added;

static int in_data_add(S3RequestContext *context) {
    (void)context;
    get_object(added);
    return 0;
}

static int callbacks_make_requests(void) {
    S3RequestContext *context = new_context();
    Item *made = items(context, 5);
    made[0].more = 100;
    made[1].in_data = in_data_sync, made[2].in_data = in_data_drive, made[3].in_data = in_data_add;
    made[1].in_data_failed = made[2].in_data_failed = -1;
    added = &made[4];
    for (int i = 0; i < 4; i++) get_object(&made[i]);
    CHECK(run_all(context) == S3StatusOK);
    for (int i = 0; i < 5; i++) CHECK(is_whole(&made[i]));
    CHECK(made[0].more == 0 && ended_count == 105);
    CHECK(made[1].in_data_failed == 0);
    if (made[2].in_data_failed) return made[2].in_data_failed;
    return finish(context, made);
}

/* How a complete callback treats its own context while the context is being destroyed. */
static enum { DRIVE, REFILL } treatment;
static int treated;

static void treat_context(S3Status status, const S3ErrorDetails *details, void *data) {
    Item *item = data;
    int remaining = -1;
    item_complete(status, details, data);
    treated++;
    if (treatment == DRIVE && treated == 1) {
        if (S3_runall_request_context(item->context) != S3StatusInterrupted) stray = 1;
        if (S3_runonce_request_context(item->context, &remaining) != S3StatusInterrupted || remaining) stray = 1;
        if (descriptor(item->context) != -1 || S3_get_request_context_timeout(item->context) != -1) stray = 1;
    }
    if (treatment == REFILL) {
        static const S3ResponseHandler handler = {item_properties, treat_context};
        static Item again[8];
        if (treated >= 8) abort();
        again[treated] = (Item){.number = ended_count, .context = item->context};
        S3_head_object(&probe.context, "object", item->context, 0, &handler, &again[treated]);
    }
}

static int destroy_with(int chosen) {
    static const S3ResponseHandler handler = {item_properties, treat_context};
    S3RequestContext *context = new_context();
    Item *made = items(context, 2);
    treatment = chosen;
    for (int i = 0; i < 2; i++) S3_head_object(&probe.context, "object", context, 0, &handler, &made[i]);
    alarm(20);
    destroy(context);
    for (int i = 0; i < 2; i++) CHECK(ended(&made[i].call, S3StatusInterrupted));
    CHECK(!stray);
    free(made);
    return 0;
}

static int a_callback_drives_a_context_that_is_being_destroyed(void) {
    CHECK(destroy_with(DRIVE) == 0 && treated == 2);
    return 0;
}

static int a_callback_refills_a_context_that_is_being_destroyed(void) {
    /* The two requests, and the two that their callbacks add. */
    CHECK(destroy_with(REFILL) == 0 && treated == 4);
    return 0;
}

/* Starts, completes and aborts uploads. As in libs3, the callback for the result runs after the complete callback, even
 * after a failure; aborting never calls the complete callback. */
static char late_id[256], late_location[256];
static int late_calls, early_calls;

static S3Status late_upload(const char *id, void *data) {
    Item *item = data;
    note_thread();
    late_calls++, early_calls += item->call.complete_calls != 1;
    snprintf(late_id, sizeof late_id, "%s", id);
    return S3StatusInternalError; /* ignored */
}

static S3Status late_commit(const char *location, const char *etag, void *data) {
    Item *item = data;
    note_thread();
    late_calls++, early_calls += item->call.complete_calls != 1 || !location[0] != !etag[0];
    snprintf(late_location, sizeof late_location, "%s", location);
    return S3StatusInternalError;
}

static int aborted_calls;

static S3Status on_aborted_properties(const S3ResponseProperties *properties, void *data) {
    (void)properties;
    aborted_calls += data ? 100 : 1;
    return S3StatusOK;
}

static int results_of_uploads(void) {
    S3MultipartInitialHandler begin = {{item_properties, item_complete}, late_upload};
    S3MultipartCommitHandler commit = {{item_properties, item_complete}, item_content, late_commit};
    S3AbortMultipartUploadHandler abort_handler = {{on_aborted_properties, item_complete}};
    S3RequestContext *context = new_context();
    S3BucketContext elsewhere = probe.context;
    elsewhere.bucketName = "no-such-bucket-here";
    Item *made = items(context, 6);
    S3_initiate_multipart(&probe.context, "upload", NULL, &begin, context, 0, &made[0]);
    CHECK(run_all(context) == S3StatusOK && late_calls == 1 && late_id[0]);
    CHECK(ended(&made[0].call, S3StatusOK));
    char id[256];
    snprintf(id, sizeof id, "%s", late_id);
    S3_initiate_multipart(&elsewhere, "upload", NULL, &begin, context, 0, &made[1]);
    CHECK(run_all(context) == S3StatusOK && late_calls == 2 && !late_id[0]);
    CHECK(ended(&made[1].call, S3StatusErrorNoSuchBucket));
    driver = pthread_self(), is_driving = 1; /* a request that is refused ends immediately */
    S3_initiate_multipart(&probe.context, NULL, NULL, &begin, context, 0, &made[2]);
    is_driving = 0;
    CHECK(late_calls == 3 && made[2].call.complete_calls == 1 && made[2].call.status != S3StatusOK);

    Call part = send_part(&probe, "upload", id, 1, 10);
    char document[512];
    snprintf(document, sizeof document,
             "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part>"
             "</CompleteMultipartUpload>", part.etag);
    made[3].call = made[4].call = (Call){.text = document, .put_bytes = strlen(document)};
    S3_complete_multipart_upload(&probe.context, "upload", &commit, id, strlen(document), context, 0, &made[3]);
    CHECK(run_all(context) == S3StatusOK && ended(&made[3].call, S3StatusOK) && late_calls == 4 && late_location[0]);
    S3_complete_multipart_upload(&probe.context, "upload", &commit, "none", strlen(document), context, 0, &made[4]);
    CHECK(run_all(context) == S3StatusOK && late_calls == 5 && !late_location[0]);
    CHECK(made[4].call.complete_calls == 1 && made[4].call.status == S3StatusErrorNoSuchUpload);

    S3_initiate_multipart(&probe.context, "upload", NULL, &begin, context, 0, &made[5]);
    CHECK(run_all(context) == S3StatusOK && late_id[0]);
    int before = ended_count;
    S3_abort_multipart_upload(&probe.context, "upload", late_id, 0, &abort_handler);
    CHECK(aborted_calls == 1);
    S3_abort_multipart_upload(&probe.context, "upload", late_id, 0, &abort_handler);
    S3_abort_multipart_upload(&elsewhere, "upload", late_id, 0, NULL);
    part = send_part(&probe, "upload", late_id, 1, 10);
    CHECK(ended(&part, S3StatusErrorNoSuchUpload) && aborted_calls == 1 && ended_count == before && !early_calls);
    delete_object(&probe, "upload");
    return finish(context, made);
}

static int descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    int number = 0;
    while (readdir(directory)) number++;
    closedir(directory);
    return number;
}

/* A program may give each request the time that is left until a deadline. */
static int timeouts_share_connections(void) {
    int before = 0;
    for (int i = 0; i < 50; i++) {
        Call seen = {0};
        S3_head_object(&probe.context, "object", NULL, 10000 - i, &RESPONSE, &seen);
        CHECK(ended(&seen, S3StatusOK));
        /* A listing of a directory keeps descriptors. The hosts of HTTP servers contain no slash. */
        for (int listing = 0; listing < 2 && strchr(probe.host, '/'); listing++) {
            Call listed = {0};
            S3_list_bucket(&probe.context, "obj", NULL, NULL, 0, NULL, 10000 - i, &LIST, &listed);
            CHECK(ended(&listed, S3StatusOK) && listed.names == 1);
        }
        if (i == 0) before = descriptors();
    }
    CHECK(descriptors() == before);
    return 0;
}

static int in_data_destroy(S3RequestContext *context) {
    S3_destroy_request_context(context);
    return 0;
}

static int a_callback_destroys_the_context(void) {
    S3RequestContext *context = new_context();
    Item *made = items(context, 8);
    made[0].in_data = in_data_destroy;
    for (int i = 0; i < 8; i++) get_object(&made[i]);
    CHECK(run_all(context) == S3StatusOK);
    CHECK(ended_count == 8 && !stray);
    for (int i = 0; i < 8; i++) CHECK(made[i].call.complete_calls == 1);
    CHECK(made[0].call.status == S3StatusInterrupted);
    free(made);
    return 0;
}

/* Destroys the context while callbacks wait to run and puts have sent part of their content. */
static int destroy_with_callbacks_waiting(void) {
    S3RequestContext *context = new_context();
    Item *made = items(context, 2 * count);
    int remaining = 0;
    for (int i = 0; i < count; i++) {
        made[count + i].call.put_bytes = 20000000;
        get_object(&made[i]);
        S3_put_object(&probe.context, "never", 20000000, NULL, context, 0, &ITEM_PUT, &made[count + i]);
    }
    while (S3_get_request_context_timeout(context) == 0 && !ended_count) run_once(context, &remaining);
    is_readable(descriptor(context), 2000);
    destroy(context);
    CHECK(ended_count == 2 * count);
    int interrupted = 0;
    for (int i = 0; i < 2 * count; i++) {
        CHECK(made[i].call.complete_calls == 1);
        interrupted += made[i].call.status == S3StatusInterrupted;
    }
    CHECK(interrupted >= count);
    usleep(50000);
    CHECK(ended_count == 2 * count && !stray);
    CHECK(head(&probe, "never").status == S3StatusHttpErrorNotFound);
    free(made);
    return 0;
}

typedef struct {
    Item *items;
    int number;
} Adder;

static void *add_slowly(void *argument) {
    Adder *adder = argument;
    for (int i = 1; i < adder->number; i++) {
        if (i % 10 == 0) usleep(2000);
        get_object(&adder->items[i]);
    }
    return NULL;
}

static int one_thread_drives_and_another_adds(void) {
    S3RequestContext *context = new_context();
    Adder adder = {items(context, 300), 300};
    pthread_t adding;
    get_object(&adder.items[0]);
    pthread_create(&adding, NULL, add_slowly, &adder);
    while (ended_count < adder.number) CHECK(run_all(context) == S3StatusOK);
    pthread_join(adding, NULL);
    for (int i = 0; i < adder.number; i++) CHECK(is_whole(&adder.items[i]));
    return finish(context, adder.items);
}

/* After a fork, the child has its own context, and the requests of the parent continue in the parent. */
static int a_child_process_and_its_parent(void) {
    S3RequestContext *context = new_context();
    Item *made = items(context, count + 1);
    int remaining = 0, status = -1;
    for (int i = 0; i < count; i++) get_object(&made[i]);
    while (!ended_count) CHECK(run_once(context, &remaining) == S3StatusOK);
    int before = ended_count;
    pid_t child = fork();
    if (child == 0) {
        if (run_all(context) != S3StatusOK || ended_count != count || stray) _exit(1);
        for (int i = before; i < count; i++) {
            S3Status said = made[order[i]].call.status;
            /* Requests for local files run on the driving thread, so the child can finish them. The workers of other
             * requests do not exist in the child. */
            if (made[order[i]].call.complete_calls != 1) _exit(2);
            if (said != (is_embedded() ? S3StatusOK : S3StatusInterrupted)) _exit(3);
        }
        get_object(&made[count]);
        int turns = 0;
        if (select_loop(context, &turns) || !is_whole(&made[count])) _exit(4);
        if (finish(context, made)) _exit(5);
        exit(0);
    }
    CHECK(run_all(context) == S3StatusOK);
    for (int i = 0; i < count; i++) CHECK(is_whole(&made[i]));
    waitpid(child, &status, 0);
    if (status) return printf("the child: %d\n", status), __LINE__;
    return finish(context, made);
}

static int requests_given_before_a_fork(void) {
    S3RequestContext *context = new_context();
    Item *made = items(context, 3);
    int status = -1;
    for (int i = 0; i < 3; i++) get_object(&made[i]);
    pid_t child = fork();
    if (child == 0) {
        if (run_all(context) != S3StatusOK) _exit(1);
        for (int i = 0; i < 3; i++)
            if (!is_whole(&made[i])) _exit(2);
        exit(finish(context, made) != 0);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(run_all(context) == S3StatusOK);
    for (int i = 0; i < 3; i++) CHECK(is_whole(&made[i]));
    return finish(context, made);
}

/* Checks on local files that many small requests need many calls of runonce, and that one large request also needs many
 * calls. */
static int a_turn_is_bounded(void) {
    enum { HEADS = 20000 };
    const uint64_t large = 256ULL << 20;
    S3RequestContext *context = new_context();
    Item *made = items(context, HEADS);
    int remaining = HEADS, turns = 0;
    for (int i = 0; i < HEADS; i++) S3_head_object(&probe.context, "object", context, 0, &ITEM_RESPONSE, &made[i]);
    CHECK(run_once(context, &remaining) == S3StatusOK);
    CHECK(remaining > 0 && remaining < HEADS && remaining == HEADS - ended_count);
    CHECK(run_all(context) == S3StatusOK && ended_count == HEADS);
    for (int i = 0; i < HEADS; i++) CHECK(ended(&made[i].call, S3StatusOK) && order[i] == i);
    ended_count = 0;
    made[0].call = (Call){.put_bytes = large};
    S3_put_object(&probe.context, "large", large, NULL, context, 0, &ITEM_PUT, &made[0]);
    CHECK(select_loop(context, &turns) == 0 && turns > 20 && ended(&made[0].call, S3StatusOK));
    turns = 0;
    made[0].call = (Call){0};
    S3_get_object(&probe.context, "large", NULL, 0, 0, context, 0, &ITEM_GET, &made[0]);
    CHECK(select_loop(context, &turns) == 0 && turns > 20 && ended(&made[0].call, S3StatusOK));
    CHECK(made[0].call.got_bytes == large && !made[0].call.got_wrong);
    delete_object(&probe, "large");
    return finish(context, made);
}

/* Makes all other kinds of requests that have callbacks or results, in one context. */
static int every_kind_of_request(void) {
    S3RequestContext *context = new_context();
    Item *made = items(context, 6);
    int64_t modified = -1;
    char etag[128] = "", location[64] = "?", owner[128] = "?", name[128] = "?";
    int grants = -1;
    static S3AclGrant grant[S3_MAX_ACL_GRANT_COUNT];
    Call listed = {0};
    S3_copy_object(&probe.context, "object", NULL, "copied", NULL, &modified, sizeof etag, etag, context, 0,
                   &ITEM_RESPONSE, &made[0]);
    S3_test_bucket(S3ProtocolHTTP, S3UriStylePath, probe.access, probe.secret, NULL, probe.host, probe.bucket, NULL,
                   sizeof location, location, context, 0, &ITEM_RESPONSE, &made[1]);
    S3_get_acl(&probe.context, "object", owner, name, &grants, grant, context, 0, &ITEM_RESPONSE, &made[2]);
    made[3].call = (Call){.put_bytes = 3000000, .put_step = 70000};
    S3_put_object(&probe.context, "put", 3000000, NULL, context, 0, &ITEM_PUT, &made[3]);
    S3_get_object(&probe.context, "missing", NULL, 0, 0, context, 0, &ITEM_GET, &made[4]);
    S3_list_bucket(&probe.context, "obj", NULL, NULL, 0, context, 0, &LIST, &listed);
    CHECK(!etag[0] && location[0] == '?');
    CHECK(run_all(context) == S3StatusOK);
    CHECK(ended(&made[0].call, S3StatusOK) && etag[0] == '"' && modified > 0);
    CHECK(ended(&made[1].call, S3StatusOK) && !location[0]);
    CHECK(probe.is_local ? ended(&made[2].call, S3StatusOK) && grants == 1
                         : ended(&made[2].call, S3StatusErrorNotImplemented));
    CHECK(ended(&made[3].call, S3StatusOK) && head(&probe, "put").length == 3000000);
    CHECK(ended(&made[4].call, S3StatusErrorNoSuchKey) && made[4].call.message[0]);
    CHECK(ended(&listed, S3StatusOK) && listed.names == 1 && !strcmp(listed.last, "object"));
    made[5].context = context;
    S3_get_object(&probe.context, "put", NULL, 0, 0, context, 0, &ITEM_GET, &made[5]);
    CHECK(run_all(context) == S3StatusOK && ended(&made[5].call, S3StatusOK) && made[5].call.got_bytes == 3000000);
    /* The worker collects network segments into pieces before it wakes the driving thread. */
    CHECK(!made[5].call.got_wrong && made[5].call.got_calls <= 3000000 / 65536 + 1);
    delete_object(&probe, "copied"), delete_object(&probe, "put");
    return finish(context, made);
}

static const struct {
    const char *name;
    int (*check)(void);
} POINTS[] = {
#define POINT(name) {#name, name}
    POINT(all_at_once_by_runall), POINT(all_at_once_by_select), POINT(nothing_waits_for_a_silent_server),
    POINT(callbacks_abort), POINT(callbacks_make_requests), POINT(a_callback_destroys_the_context),
    POINT(destroy_with_callbacks_waiting), POINT(one_thread_drives_and_another_adds),
    POINT(a_child_process_and_its_parent), POINT(requests_given_before_a_fork), POINT(a_turn_is_bounded),
    POINT(every_kind_of_request), POINT(results_of_uploads), POINT(timeouts_share_connections),
    POINT(a_callback_drives_a_context_that_is_being_destroyed),
    POINT(a_callback_refills_a_context_that_is_being_destroyed),
};

int main(int words, char **word) {
    if (words < 6) return fprintf(stderr, "usage: contexts HOST ACCESS SECRET BUCKET POINT [COUNT]\n"), 2;
    probe = (Probe){.host = word[1], .access = word[2], .secret = word[3]};
    probe.is_local = word[1][0] == '/' || !strncmp(word[1], "unix://", 7);
    snprintf(probe.bucket, sizeof probe.bucket, "%s", word[4]);
    probe.context = (S3BucketContext){.hostName = probe.host, .bucketName = probe.bucket, .protocol = S3ProtocolHTTP,
                                      .uriStyle = S3UriStylePath, .accessKeyId = probe.access,
                                      .secretAccessKey = probe.secret};
    if (words > 6) count = atoi(word[6]);
    for (size_t i = 0; i < sizeof POINTS / sizeof *POINTS; i++) {
        if (strcmp(POINTS[i].name, word[5])) continue;
        int line = POINTS[i].check();
        printf(line ? "FAILED %s: line %d\n" : "ok %s\n", word[5], line);
        return line != 0;
    }
    return fprintf(stderr, "there is no point %s\n", word[5]), 2;
}
