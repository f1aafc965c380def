/* Prints the statuses of requests that fail. usage: statuses HOST ACCESS SECRET BUCKET [KEY...]
 *
 * Without keys, the program provokes each failure that a store on a directory can report, and prints a line "NAME:
 * STATUS" for each. With keys, the program gets each key, and prints a line "KEY: STATUS" for each.
 */
#include "probe.h"

static void show(const char *name, const Call *call) {
    const char *status = S3_get_status_name(call->status);
    printf("%s: %s%s\n", name, status, call->complete_calls == 1 ? "" : " (not completed exactly once)");
}

static S3Status on_parts(int truncated, const char *marker, const char *initiator, const char *initiator_name,
                         const char *owner, const char *owner_name, const char *storage, int count, int last,
                         const S3ListPart *parts, void *data) {
    (void)truncated, (void)marker, (void)initiator, (void)initiator_name, (void)owner, (void)owner_name;
    (void)storage, (void)count, (void)last, (void)parts, (void)data;
    return S3StatusOK;
}

static S3Status on_uploads(int truncated, const char *key, const char *id, int count,
                           const S3ListMultipartUpload *uploads, int prefixes, const char **prefix, void *data) {
    (void)truncated, (void)key, (void)id, (void)count, (void)uploads, (void)prefixes, (void)prefix, (void)data;
    return S3StatusOK;
}

static void buckets(Probe *p) {
    static const S3ListMultipartUploadsHandler uploads = {{on_properties, on_complete}, on_uploads};
    Call call = create_bucket(p, p->bucket);
    show("create a bucket again", &call);
    call = create_bucket(p, "a/b");
    show("create a bucket with a slash", &call);
    call = delete_bucket(p, p->bucket);
    show("delete a bucket with objects", &call);
    Probe other = *p;
    other.context.bucketName = "ab";
    call = get(&other, "key");
    show("get from a bucket with a short name", &call);
    other.context.bucketName = "1.2.3.4";
    call = put(&other, "key", 10);
    show("put into a bucket with an address as its name", &call);
    call = (Call){0};
    S3_copy_object(&p->context, "key", "-ab", "copy", NULL, NULL, 0, NULL, NULL, 0, &RESPONSE, &call);
    show("copy to a bucket with a hyphen as its first character", &call);
    other.context.bucketName = "no-such-bucket";
    call = delete_bucket(&other, "no-such-bucket");
    show("delete a missing bucket", &call);
    call = test_bucket(&other, "no-such-bucket");
    show("test a missing bucket", &call);
    call = list_with(&other, (Call){0}, NULL, NULL, NULL, 0);
    show("list a missing bucket", &call);
    call = (Call){0};
    S3_list_multipart_uploads(&other.context, NULL, NULL, NULL, NULL, NULL, 10, NULL, 0, &uploads, &call);
    show("list the uploads of a missing bucket", &call);
    call = get(&other, "key");
    show("get from a missing bucket", &call);
    call = head(&other, "key");
    show("head in a missing bucket", &call);
    call = put(&other, "key", 10);
    show("put into a missing bucket", &call);
    call = delete_object(&other, "key");
    show("delete from a missing bucket", &call);
    call = begin_upload(&other, "key");
    show("start an upload in a missing bucket", &call);
}

/* Completes an upload from the elements `parts` of the document. */
static Call complete(Probe *p, const char *key, const char *id, const char *parts) {
    char document[4096];
    snprintf(document, sizeof document, "<CompleteMultipartUpload>%s</CompleteMultipartUpload>", parts);
    return finish_upload(p, key, id, document);
}

static Call get_if(Probe *p, const char *matches, const char *matches_not, int64_t since, int64_t not_since) {
    S3GetConditions conditions = {since, not_since, matches, matches_not};
    return get_with(p, "key", (Call){0}, &conditions, 0, 0);
}

static void objects(Probe *p) {
    char etag[128], longest[1026];
    snprintf(etag, sizeof etag, "%s", head(p, "key").etag);
    memset(longest, 'k', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    Call call = get(p, "missing");
    show("get a missing key", &call);
    call = head(p, "missing");
    show("head a missing key", &call);
    call = get(p, "key/below");
    show("get a key below an object", &call);
    call = get(p, longest);
    show("get a key that is too long", &call);
    call = put(p, longest, 10);
    show("put a key that is too long", &call);
    call = get_with(p, "key", (Call){0}, NULL, 1000, 1);
    show("get a range behind the end", &call);
    call = get_if(p, "\"0123\"", NULL, -1, -1);
    show("get if another ETag matches", &call);
    call = get_if(p, NULL, etag, -1, -1);
    show("get unless the ETag matches", &call);
    call = get_if(p, NULL, NULL, -1, 1000000000);
    show("get if not modified for long", &call);
    call = get_if(p, "\"01\n23\"", NULL, -1, -1);
    show("get if an ETag with a line break matches", &call);
    call = (Call){0};
    S3_copy_object(&p->context, "key", NULL, "key", NULL, NULL, 0, NULL, NULL, 0, &RESPONSE, &call);
    show("copy a key onto itself", &call);
    call = (Call){0};
    S3_copy_object(&p->context, "missing", NULL, "copy", NULL, NULL, 0, NULL, NULL, 0, &RESPONSE, &call);
    show("copy a missing key", &call);
    call = (Call){0};
    S3_copy_object(&p->context, "key", "no-such-bucket", "copy", NULL, NULL, 0, NULL, NULL, 0, &RESPONSE, &call);
    show("copy to a missing bucket", &call);
    S3PutProperties properties = {.md5 = "AAAAAAAAAAAAAAAAAAAAAA==", .expires = -1};
    call = put_with(p, "never", (Call){.put_bytes = 100}, &properties);
    show("put with a wrong MD5", &call);
    call = (Call){.put_bytes = 5};
    S3_put_object(&p->context, "never", 50, NULL, NULL, 0, &PUT, &call);
    show("put less than announced", &call);
    properties = (S3PutProperties){.expires = -1, .useServerSideEncryption = 1};
    call = put_with(p, "never", (Call){.put_bytes = 100}, &properties);
    show("put with encryption", &call);
    call = get(p, "out/passwd");
    show("get through a link out of the root", &call);
    call = get(p, "fifo");
    show("get a FIFO", &call);
}

static void uploads(Probe *p) {
    static const S3ListPartsHandler parts = {{on_properties, on_complete}, on_parts};
    static const char *nobody = "0123456789abcdef0123456789abcdef";
    const char *one = "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>";
    char first[512], second[512], both[1100];
    Call begun = begin_upload(p, "upload"), call;
    Call parts_sent[] = {send_part(p, "upload", begun.upload, 1, 10), send_part(p, "upload", begun.upload, 2, 10)};
    call = complete(p, "upload", nobody, "<Part><PartNumber>1</PartNumber><ETag>\"1\"</ETag></Part>");
    show("complete a missing upload", &call);
    call = send_part(p, "upload", nobody, 1, 10);
    show("send a part of a missing upload", &call);
    call = (Call){0};
    S3_list_parts(&p->context, "upload", NULL, nobody, NULL, 0, NULL, 0, &parts, &call);
    show("list the parts of a missing upload", &call);
    call = send_part(p, "upload", begun.upload, 10001, 10);
    show("send a part with too large a number", &call);
    call = complete(p, "upload", begun.upload, "<Part><PartNumber>7</PartNumber><ETag>\"1\"</ETag></Part>");
    show("complete with a missing part", &call);
    snprintf(first, sizeof first, one, 1, parts_sent[0].etag);
    snprintf(second, sizeof second, one, 2, parts_sent[1].etag);
    snprintf(both, sizeof both, "%s%s", second, first);
    call = complete(p, "upload", begun.upload, both);
    show("complete in descending order", &call);
    snprintf(both, sizeof both, "%s%s", first, second);
    call = complete(p, "upload", begun.upload, both);
    show("complete with small parts", &call);
    call = complete(p, "upload", begun.upload, "<Part>");
    show("complete with what is no XML", &call);
    call = (Call){0};
    S3_copy_object_range(&p->context, "key", NULL, "upload", 1, begun.upload, 1000, 10, NULL, NULL, 0, NULL, NULL, 0,
                         &RESPONSE, &call);
    show("copy a part from behind the end", &call);
}

int main(int count, char **words) {
    if (count < 5) return 2;
    Probe p = {.host = words[1], .access = words[2], .secret = words[3]};
    snprintf(p.bucket, sizeof p.bucket, "%s", words[4]);
    p.context = (S3BucketContext){.hostName = p.host, .accessKeyId = p.access, .secretAccessKey = p.secret,
                                  .bucketName = p.bucket, .protocol = S3ProtocolHTTP, .uriStyle = S3UriStylePath};
    for (int i = 5; i < count; i++) {
        Call call = get(&p, words[i]);
        show(words[i], &call);
    }
    if (count > 5) return 0;
    Call call = put(&p, "key", 1000);
    if (call.status != S3StatusOK) return fprintf(stderr, "%s\n", call.message), 1;
    buckets(&p);
    objects(&p);
    uploads(&p);
    return 0;
}
