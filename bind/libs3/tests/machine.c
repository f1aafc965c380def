/* Makes requests while the machine changes, or has little memory. usage:
 *   machine roots DIRECTORY                      replaces the root DIRECTORY, which has the bucket "bkt", several times
 *   machine part HOST ACCESS SECRET BUCKET MIB   sends a part of MIB mebibytes, and prints the memory in use
 *   machine bucket HOST ACCESS SECRET BUCKET     prints the bucket's location, and a URL that lists the bucket
 * Prints a line "NAME: STATUS" for each request.
 */
#include <sys/resource.h>

#include "probe.h"

static void show(const char *name, const Call *call) {
    const char *status = S3_get_status_name(call->status);
    printf("%s: %s%s\n", name, status, call->complete_calls == 1 ? "" : " (not completed exactly once)");
}

static S3Status on_bucket(const char *owner, const char *owner_name, const char *bucket, int64_t created, void *data) {
    (void)owner, (void)owner_name, (void)created, (void)data;
    printf("bucket %s\n", bucket);
    return S3StatusOK;
}

static void list_buckets(Probe *p, const char *name) {
    static const S3ListServiceHandler handler = {{on_properties, on_complete}, on_bucket};
    Call call = {0};
    S3_list_service(S3ProtocolHTTP, NULL, NULL, NULL, p->host, NULL, NULL, 0, &handler, &call);
    show(name, &call);
}

static void shell(Probe *p, const char *commands) {
    char line[1000];
    snprintf(line, sizeof line, "cd '%s/..' && %s", p->host, commands);
    if (system(line)) exit(3);
}

static void roots(Probe *p) {
    Call call = put(p, "one", 10);
    show("put", &call);
    shell(p, "rm -r root && mkdir -p root/bkt");
    call = put(p, "two", 10);
    show("put after the replacement", &call);
    shell(p, "test -f root/bkt/two && rm -r root && mkdir -p root/other");
    list_buckets(p, "list after the replacement");
    call = test_bucket(p, "other");
    show("test after the replacement", &call);
    shell(p, "rm -r root && mkdir root");
    call = create_bucket(p, "new");
    show("create after the replacement", &call);
    shell(p, "test -d root/new && mv root old && mkdir -p root/bkt");
    list_buckets(p, "list after the renaming");
    call = put(p, "three", 10);
    show("put after the renaming", &call);
    shell(p, "test -f root/bkt/three && rm -r root");
    list_buckets(p, "list without a root");
    call = create_bucket(p, "new");
    show("create without a root", &call);
    shell(p, "mkdir -p root/bkt");
    call = put(p, "four", 10);
    show("put after the restoration", &call);
}

static void part(Probe *p, int mebibytes) {
    Call begun = begin_upload(p, "key"), sent = send_part(p, "key", begun.upload, 1, mebibytes << 20), call = sent;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    show("part", &call);
    printf("mebibytes: %ld\n", usage.ru_maxrss / 1024);
    call = (Call){.put_bytes = 1 << 20, .put_abort_after = 2};
    S3PutObjectHandler handler = PUT;
    S3_upload_part(&p->context, "key", NULL, &handler, 2, begun.upload, 80 << 20, NULL, 0, &call);
    show("aborted", &call);
    call = (Call){.put_bytes = 1 << 20};
    S3_upload_part(&p->context, "key", NULL, &handler, 2, begun.upload, 80 << 20, NULL, 0, &call);
    show("short", &call);
    S3PutProperties wrong = {.md5 = "AAAAAAAAAAAAAAAAAAAAAA==", .expires = -1};
    call = (Call){.put_bytes = 80 << 20};
    S3_upload_part(&p->context, "key", &wrong, &handler, 2, begun.upload, 80 << 20, NULL, 0, &call);
    show("wrong MD5", &call);
    call = send_part(p, "key", "0123456789abcdef0123456789abcdef", 2, 80 << 20);
    show("missing upload", &call);
    char document[1000];
    snprintf(document, sizeof document,
             "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part>"
             "</CompleteMultipartUpload>", sent.etag);
    call = finish_upload(p, "key", begun.upload, document);
    show("complete", &call);
    call = get(p, "key");
    printf("get: %s, %llu bytes, %s\n", S3_get_status_name(call.status), (unsigned long long)call.got_bytes,
           call.got_wrong ? "wrong" : "right");
}

static void bucket(Probe *p) {
    Call call = {0};
    char location[64] = "-", url[S3_MAX_AUTHENTICATED_QUERY_STRING_SIZE];
    S3_test_bucket(S3ProtocolHTTP, S3UriStylePath, p->access, p->secret, NULL, p->host, p->bucket, NULL, sizeof location,
                   location, NULL, 0, &RESPONSE, &call);
    show("test", &call);
    printf("location: %s\n", location);
    S3Status status = S3_generate_authenticated_query_string(url, &p->context, NULL, -1, NULL, "GET");
    printf("url: %s\n", status ? S3_get_status_name(status) : url);
    status = S3_generate_authenticated_query_string(url, &p->context, NULL, -1, NULL, "POST");
    printf("post: %s\n", S3_get_status_name(status));
}

int main(int count, char **words) {
    if (count < 3) return 2;
    Probe p = {.host = words[2], .access = count > 3 ? words[3] : NULL, .secret = count > 4 ? words[4] : NULL};
    snprintf(p.bucket, sizeof p.bucket, "%s", count > 5 ? words[5] : "bkt");
    p.context = (S3BucketContext){.hostName = p.host, .accessKeyId = p.access, .secretAccessKey = p.secret,
                                  .bucketName = p.bucket, .protocol = S3ProtocolHTTP, .uriStyle = S3UriStylePath};
    if (!strcmp(words[1], "roots")) roots(&p);
    if (!strcmp(words[1], "part") && count == 7) part(&p, atoi(words[6]));
    if (!strcmp(words[1], "bucket") && count == 6) bucket(&p);
    return 0;
}
