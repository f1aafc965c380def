/* Helpers of the C test programs: synchronous calls, and a record of their callbacks. */
#ifndef PROBE_H
#define PROBE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libs3.h"

/* Each program uses only some of the functions and constants below. */
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-const-variable"

/* Instructions for the callbacks of one request, and a record of what the callbacks received. */
typedef struct {
    /* The content to send: put_bytes bytes that depend on seed, at most put_step bytes per call (0: no limit). */
    uint64_t put_bytes;
    int put_step;
    int put_abort_after; /* calls after which the callback returns -1; 0 never */
    int put_too_much;    /* the callback was offered a larger buffer than the rest of the content */
    uint64_t put_asked;
    uint32_t seed;
    const char *text; /* content to send instead of the pattern */
    /* What the callbacks received. */
    uint64_t got_bytes;
    int got_wrong;
    uint64_t got_sum; /* depends on all bytes and their order */
    int got_calls;
    S3Status get_answer;
    int properties_calls;
    S3Status properties_answer;
    int properties_late; /* the data callback or the complete callback was called before the properties callback */
    int complete_calls;
    S3Status status;
    char message[512];
    uint64_t length;
    int64_t modified;
    char etag[128];
    char type[128];
    char meta[128];
    int meta_count;
    /* Listings. */
    int names;
    int prefixes;
    int truncated;
    int batches;
    int unsorted;
    char last[1100];
    char marker[1100];
    S3BucketContext *delete_in; /* delete the listed objects */
    /* Uploads. */
    char upload[256];
    char commit_etag[128];
    char location[2048];
    int parts;
    uint64_t part_sizes;
    char part_etags[4][128];
} Call;

typedef struct {
    const char *host, *access, *secret;
    char bucket[64];
    S3BucketContext context;
    int is_local;
    int points, failures;
} Probe;

static void point(Probe *probe, const char *name, int holds, const Call *call) {
    probe->points++;
    if (holds) {
        printf("ok %s\n", name);
        return;
    }
    probe->failures++;
    printf("FAILED %s: %s, %s, complete %d, properties %d, got %llu, names %d\n", name,
           call ? S3_get_status_name(call->status) : "-", call ? call->message : "",
           call ? call->complete_calls : 0, call ? call->properties_calls : 0,
           call ? (unsigned long long)call->got_bytes : 0ULL, call ? call->names : 0);
}

static unsigned char pattern(uint32_t seed, uint64_t at) {
    uint64_t x = at * 0x9e3779b97f4a7c15ULL + seed;
    return (unsigned char)(x >> 29);
}

static S3Status on_properties(const S3ResponseProperties *properties, void *data) {
    Call *call = data;
    call->properties_calls++;
    if (call->got_calls || call->complete_calls || call->names || call->upload[0]) call->properties_late = 1;
    call->length = properties->contentLength;
    call->modified = properties->lastModified;
    call->meta_count = properties->metaDataCount;
    snprintf(call->etag, sizeof call->etag, "%s", properties->eTag ? properties->eTag : "");
    snprintf(call->type, sizeof call->type, "%s", properties->contentType ? properties->contentType : "");
    if (properties->metaDataCount > 0)
        snprintf(call->meta, sizeof call->meta, "%s=%s", properties->metaData[0].name, properties->metaData[0].value);
    return call->properties_answer;
}

static void on_complete(S3Status status, const S3ErrorDetails *details, void *data) {
    Call *call = data;
    /* Programs read the details without a check for NULL, so NULL must fail the check of complete_calls. */
    call->complete_calls += details ? 1 : 100;
    call->status = status;
    if (details && details->message) snprintf(call->message, sizeof call->message, "%s", details->message);
}

static int on_put(int size, char *buffer, void *data) {
    Call *call = data;
    if (call->put_abort_after && --call->put_abort_after == 0) return -1;
    uint64_t left = call->put_bytes - call->put_asked;
    if ((uint64_t)size > left) call->put_too_much = 1;
    int now = (uint64_t)size < left ? size : (int)left;
    if (call->put_step && now > call->put_step) now = call->put_step;
    for (int i = 0; i < now; i++)
        buffer[i] = call->text ? call->text[call->put_asked + i] : (char)pattern(call->seed, call->put_asked + i);
    call->put_asked += now;
    return now;
}

static S3Status on_get(int size, const char *buffer, void *data) {
    Call *call = data;
    call->got_calls++;
    for (int i = 0; i < size; i++) {
        if ((unsigned char)buffer[i] != pattern(call->seed, call->got_bytes + i)) call->got_wrong = 1;
        call->got_sum = call->got_sum * 1099511628211ULL + (unsigned char)buffer[i];
    }
    call->got_bytes += size;
    return call->get_answer;
}

static const S3ResponseHandler RESPONSE = {on_properties, on_complete};
static const S3PutObjectHandler PUT = {{on_properties, on_complete}, on_put};
static const S3GetObjectHandler GET = {{on_properties, on_complete}, on_get};

static S3Status on_list(int truncated, const char *marker, int count, const S3ListBucketContent *contents, int prefixes,
                        const char **prefix, void *data) {
    Call *call = data;
    call->batches++;
    call->truncated = truncated;
    snprintf(call->marker, sizeof call->marker, "%s", marker ? marker : "");
    for (int i = 0; i < count; i++) {
        if (strcmp(contents[i].key, call->last) <= 0) call->unsorted = 1;
        snprintf(call->last, sizeof call->last, "%s", contents[i].key);
        if (call->delete_in) {
            Call nested = {0};
            S3_delete_object(call->delete_in, contents[i].key, NULL, 0, &RESPONSE, &nested);
            if (nested.status != S3StatusOK || nested.complete_calls != 1) return S3StatusInternalError;
        }
    }
    for (int i = 0; i < prefixes; i++) snprintf(call->last, sizeof call->last, "%s", prefix[i]);
    call->names += count;
    call->prefixes += prefixes;
    return call->get_answer;
}

static const S3ListBucketHandler LIST = {{on_properties, on_complete}, on_list};

static Call put_with(Probe *p, const char *key, Call call, const S3PutProperties *properties) {
    S3_put_object(&p->context, key, call.put_bytes, properties, NULL, 0, &PUT, &call);
    return call;
}

static Call put(Probe *p, const char *key, uint64_t bytes) {
    return put_with(p, key, (Call){.put_bytes = bytes}, NULL);
}

static Call get_with(Probe *p, const char *key, Call call, const S3GetConditions *conditions, uint64_t start,
                     uint64_t count) {
    S3_get_object(&p->context, key, conditions, start, count, NULL, 0, &GET, &call);
    return call;
}

static Call get(Probe *p, const char *key) { return get_with(p, key, (Call){0}, NULL, 0, 0); }

static Call head(Probe *p, const char *key) {
    Call call = {0};
    S3_head_object(&p->context, key, NULL, 0, &RESPONSE, &call);
    return call;
}

static Call delete_object(Probe *p, const char *key) {
    Call call = {0};
    S3_delete_object(&p->context, key, NULL, 0, &RESPONSE, &call);
    return call;
}

static Call list_with(Probe *p, Call call, const char *prefix, const char *marker, const char *delimiter, int max) {
    S3_list_bucket(&p->context, prefix, marker, delimiter, max, NULL, 0, &LIST, &call);
    return call;
}

static Call create_bucket(Probe *p, const char *bucket) {
    Call call = {0};
    S3_create_bucket(S3ProtocolHTTP, p->access, p->secret, NULL, p->host, bucket, NULL, S3CannedAclPrivate, NULL, NULL,
                     0, &RESPONSE, &call);
    return call;
}

static Call delete_bucket(Probe *p, const char *bucket) {
    Call call = {0};
    S3_delete_bucket(S3ProtocolHTTP, S3UriStylePath, p->access, p->secret, NULL, p->host, bucket, NULL, NULL, 0,
                     &RESPONSE, &call);
    return call;
}

static Call test_bucket(Probe *p, const char *bucket) {
    Call call = {0};
    char location[64];
    S3_test_bucket(S3ProtocolHTTP, S3UriStylePath, p->access, p->secret, NULL, p->host, bucket, NULL, sizeof location,
                   location, NULL, 0, &RESPONSE, &call);
    return call;
}

static S3Status on_upload(const char *id, void *data) {
    Call *call = data;
    snprintf(call->upload, sizeof call->upload, "%s", id);
    return S3StatusOK;
}

static S3Status on_commit(const char *location, const char *etag, void *data) {
    Call *call = data;
    snprintf(call->location, sizeof call->location, "%s", location);
    snprintf(call->commit_etag, sizeof call->commit_etag, "%s", etag);
    return S3StatusOK;
}

static Call begin_upload(Probe *p, const char *key) {
    static S3MultipartInitialHandler handler = {{on_properties, on_complete}, on_upload};
    Call call = {0};
    S3_initiate_multipart(&p->context, key, NULL, &handler, NULL, 0, &call);
    return call;
}

static Call send_part(Probe *p, const char *key, const char *id, int number, int bytes) {
    Call call = {.put_bytes = bytes, .seed = 0};
    S3PutObjectHandler handler = PUT;
    S3_upload_part(&p->context, key, NULL, &handler, number, id, bytes, NULL, 0, &call);
    return call;
}

static Call finish_upload(Probe *p, const char *key, const char *id, const char *document) {
    S3MultipartCommitHandler handler = {{on_properties, on_complete}, on_put, on_commit};
    Call call = {.text = document, .put_bytes = strlen(document)};
    S3_complete_multipart_upload(&p->context, key, &handler, id, strlen(document), NULL, 0, &call);
    return call;
}

/* Returns whether the call ended exactly once, with this status, and the properties callback was called only if the
 * status is OK. */
static int ended(const Call *call, S3Status status) {
    return call->complete_calls == 1 && call->status == status && !call->properties_late && !call->put_too_much &&
           call->properties_calls == (status == S3StatusOK);
}

#endif
