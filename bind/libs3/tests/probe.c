/* Checks the semantics of the drop-in, point by point. usage: probe HOST ACCESS SECRET THREADS [big]
 *
 * HOST selects the lane. The program prints a line for each point, "ok NAME" or "FAILED NAME: ...". The exit status
 * is 0 if all points pass. If THREADS is greater than 1, each thread checks all points, in its own buckets.
 */
#include <pthread.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "probe.h"

static int with_big_objects;

static void buckets(Probe *p) {
    Call call = create_bucket(p, p->bucket);
    point(p, "create a bucket", ended(&call, S3StatusOK), &call);
    call = create_bucket(p, p->bucket);
    point(p, "create one's own bucket again", ended(&call, S3StatusErrorBucketAlreadyOwnedByYou), &call);
    call = test_bucket(p, p->bucket);
    point(p, "test a bucket", ended(&call, S3StatusOK), &call);
    call = test_bucket(p, "no_such_bucket_here");
    point(p, "test a missing bucket", ended(&call, S3StatusErrorNoSuchBucket), &call);
    call = create_bucket(p, "a/b");
    point(p, "create a bucket with a slash", call.complete_calls == 1 && call.status == S3StatusInvalidBucketNameCharacter,
          &call);
    call = delete_bucket(p, "no_such_bucket_here");
    point(p, "delete a missing bucket", ended(&call, S3StatusErrorNoSuchBucket), &call);
}

static void round_trips(Probe *p) {
    static const uint64_t sizes[] = {0, 1, 3901, 47008, 262143, 262144, 262145, 2097152};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char name[64];
        Call sent = put(p, "sized", sizes[i]), read = get(p, "sized");
        snprintf(name, sizeof name, "put and get %llu bytes", (unsigned long long)sizes[i]);
        point(p, name, ended(&sent, S3StatusOK) && sent.etag[0] == '"' && ended(&read, S3StatusOK) && !read.got_wrong &&
                  read.got_bytes == sizes[i] && read.length == sizes[i] && !strcmp(read.etag, sent.etag), &read);
    }
    Call call = put_with(p, "steps", (Call){.put_bytes = 300000, .put_step = 777}, NULL), read = get(p, "steps");
    point(p, "put in small steps", ended(&call, S3StatusOK) && read.got_bytes == 300000 && !read.got_wrong, &read);
    call = put_with(p, "aborted", (Call){.put_bytes = 5000, .put_abort_after = 1}, NULL), read = head(p, "aborted");
    point(p, "an aborted put makes no object",
          ended(&call, S3StatusAbortedByCallback) && ended(&read, S3StatusHttpErrorNotFound), &call);
    call = put_with(p, "steps", (Call){.put_bytes = 900000, .put_abort_after = 3}, NULL), read = get(p, "steps");
    point(p, "an aborted put leaves the old object",
          ended(&call, S3StatusAbortedByCallback) && read.got_bytes == 300000 && !read.got_wrong, &call);
    call = (Call){.text = "short", .put_bytes = 5};
    S3_put_object(&p->context, "steps", 600000, NULL, NULL, 0, &PUT, &call);
    read = get(p, "steps");
    point(p, "a short body fails and leaves the old object", call.complete_calls == 1 && call.status != S3StatusOK &&
              call.properties_calls == 0 && read.got_bytes == 300000 && !read.got_wrong, &call);
    call = (Call){.text = "short", .put_bytes = 5};
    S3_put_object(&p->context, "never", 50, NULL, NULL, 0, &PUT, &call);
    read = get(p, "never");
    point(p, "a short small body makes no object",
          call.status == S3StatusErrorIncompleteBody && ended(&read, S3StatusErrorNoSuchKey), &call);
}

/* Fills the buffer, and returns a number of bytes larger than the buffer. */
static int on_put_more(int size, char *buffer, void *data) {
    Call *call = data;
    for (int i = 0; i < size; i++) buffer[i] = (char)pattern(call->seed, call->put_asked + i);
    call->put_asked += size;
    return size + 1000;
}

static void announced_sizes(Probe *p) {
    static const S3PutObjectHandler more = {{on_properties, on_complete}, on_put_more};
    for (uint64_t size = 5; size <= 262144; size += 262139) {
        Call call = {0}, read;
        S3_put_object(&p->context, "more", size, NULL, NULL, 0, &more, &call);
        read = get(p, "more");
        point(p, "more content than announced is ignored", ended(&call, S3StatusOK) && read.got_bytes == size &&
                  !read.got_wrong && call.put_asked == size, &call);
    }
    Call call = {0};
    S3_put_object(&p->context, "more", 262145, NULL, NULL, 0, &more, &call);
    point(p, "more content than there is room for in between", ended(&call, S3StatusInternalError), &call);
    call = (Call){.put_abort_after = 1};
    S3_put_object(&p->context, "more", UINT64_MAX, NULL, NULL, 0, &PUT, &call);
    point(p, "a content size that cannot be", call.complete_calls == 1 && call.status ==
              (p->is_local ? S3StatusAbortedByCallback : S3StatusErrorEntityTooLarge), &call);
}

static void reads(Probe *p) {
    put(p, "read", 1000);
    Call call = get_with(p, "read", (Call){0}, NULL, 990, 0);
    point(p, "get from a byte to the end", ended(&call, S3StatusOK) && call.got_bytes == 10 && call.length == 10, &call);
    call = get_with(p, "read", (Call){0}, NULL, 0, 10);
    point(p, "get the first bytes", ended(&call, S3StatusOK) && call.got_bytes == 10 && !call.got_wrong, &call);
    call = get_with(p, "read", (Call){0}, NULL, 995, 100);
    point(p, "a range beyond the end is cut", ended(&call, S3StatusOK) && call.got_bytes == 5, &call);
    call = get_with(p, "read", (Call){0}, NULL, 1000, 1);
    point(p, "a range behind the end", ended(&call, S3StatusErrorInvalidRange) && !call.got_calls, &call);
    call = get(p, "missing");
    point(p, "get a missing key", ended(&call, S3StatusErrorNoSuchKey) && call.message[0], &call);
    call = head(p, "missing");
    point(p, "head a missing key", ended(&call, S3StatusHttpErrorNotFound), &call);
    call = head(p, "read");
    point(p, "head", ended(&call, S3StatusOK) && call.length == 1000 && llabs(call.modified - time(NULL)) < 100 &&
              call.etag[0] == '"' && !call.got_calls, &call);
    S3GetConditions conditions = {-1, -1, "\"no such tag\"", NULL};
    call = get_with(p, "read", (Call){0}, &conditions, 0, 0);
    point(p, "If-Match of another tag", ended(&call, S3StatusErrorPreconditionFailed) && !call.got_calls, &call);
    char etag[128];
    snprintf(etag, sizeof etag, "%s", head(p, "read").etag);
    conditions = (S3GetConditions){-1, -1, etag, NULL};
    call = get_with(p, "read", (Call){0}, &conditions, 0, 0);
    point(p, "If-Match of the tag", ended(&call, S3StatusOK) && call.got_bytes == 1000, &call);
    conditions = (S3GetConditions){-1, -1, NULL, etag};
    call = get_with(p, "read", (Call){0}, &conditions, 0, 0);
    point(p, "If-None-Match of the tag", ended(&call, S3StatusHttpErrorUnknown) && !call.got_calls, &call);
    conditions = (S3GetConditions){-1, 1000000000, NULL, NULL};
    call = get_with(p, "read", (Call){0}, &conditions, 0, 0);
    point(p, "If-Unmodified-Since long ago", ended(&call, S3StatusErrorPreconditionFailed), &call);
    call = get_with(p, "read", (Call){.get_answer = S3StatusAbortedByCallback}, NULL, 0, 0);
    point(p, "a get that its data callback stops", call.complete_calls == 1 && call.got_calls == 1 &&
              call.status == S3StatusAbortedByCallback, &call);
    call = get_with(p, "read", (Call){.properties_answer = S3StatusOutOfMemory}, NULL, 0, 0);
    point(p, "a get that its properties callback stops",
          call.complete_calls == 1 && !call.got_calls && call.status == S3StatusOutOfMemory, &call);
    S3BucketContext elsewhere = p->context;
    elsewhere.bucketName = "no_such_bucket_here";
    call = (Call){0};
    S3_get_object(&elsewhere, "key", NULL, 0, 0, NULL, 0, &GET, &call);
    point(p, "get from a missing bucket", ended(&call, S3StatusErrorNoSuchBucket), &call);
    call = (Call){.put_bytes = 5};
    S3_put_object(&elsewhere, "key", 5, NULL, NULL, 0, &PUT, &call);
    point(p, "put into a missing bucket", ended(&call, S3StatusErrorNoSuchBucket), &call);
}

static void metadata(Probe *p) {
    S3NameValue pair = {"Colour", "blue"};
    S3PutProperties said = {.contentType = "text/x-probe", .expires = -1, .metaDataCount = 1, .metaData = &pair};
    Call call = put_with(p, "described", (Call){.put_bytes = 10}, &said), read = head(p, "described");
    point(p, "metadata comes back", ended(&call, S3StatusOK) && read.meta_count == 1 &&
              !strcmp(read.meta, "colour=blue") && !strcmp(read.type, "text/x-probe"), &read);
    read = get(p, "described");
    point(p, "metadata comes with a get", read.meta_count == 1 && !strcmp(read.type, "text/x-probe"), &read);
    said = (S3PutProperties){.contentType = "\t text/x-probe ", .md5 = " XUFAKrxLKna5cZ2REBfFkg==", .expires = -1};
    call = put_with(p, "described", (Call){.text = "hello", .put_bytes = 5}, &said), read = head(p, "described");
    point(p, "blanks around properties do not count",
          ended(&call, S3StatusOK) && !strcmp(read.type, "text/x-probe"), &call);
    said = (S3PutProperties){.contentType = "  ", .expires = -1};
    call = put_with(p, "described", (Call){.put_bytes = 10}, &said);
    point(p, "a content type of blanks", ended(&call, S3StatusBadContentType), &call);
    S3NameValue broken = {"two words", "v"};
    said = (S3PutProperties){.expires = -1, .metaDataCount = 1, .metaData = &broken};
    call = put_with(p, "described", (Call){.put_bytes = 10}, &said);
    point(p, "a metadata name that no header can hold", ended(&call, S3StatusErrorInvalidArgument), &call);
    said = (S3PutProperties){.contentType = "text/x-probe", .expires = -1, .metaDataCount = 1, .metaData = &pair};
    put_with(p, "described", (Call){.put_bytes = 10}, &said);
    said = (S3PutProperties){.md5 = "XUFAKrxLKna5cZ2REBfFkg==", .expires = -1};
    call = put_with(p, "checked", (Call){.text = "hello", .put_bytes = 5}, &said);
    point(p, "the right MD5", ended(&call, S3StatusOK), &call);
    call = put_with(p, "checked", (Call){.text = "jello", .put_bytes = 5}, &said);
    point(p, "a wrong MD5", ended(&call, S3StatusErrorBadDigest) && head(p, "checked").length == 5, &call);
    said.md5 = "nonsense";
    call = put_with(p, "checked", (Call){.text = "hello", .put_bytes = 5}, &said);
    point(p, "an MD5 that is none", ended(&call, S3StatusErrorInvalidDigest), &call);
    said = (S3PutProperties){.expires = -1, .useServerSideEncryption = 1};
    call = put_with(p, "checked", (Call){.put_bytes = 5}, &said);
    point(p, "encryption is refused", ended(&call, S3StatusErrorNotImplemented) && call.message[0], &call);
    said = (S3PutProperties){.expires = -1, .cannedAcl = S3CannedAclPublicRead};
    call = put_with(p, "checked", (Call){.put_bytes = 5}, &said);
    point(p, "public access is refused", ended(&call, S3StatusErrorNotImplemented), &call);

    int64_t modified = -1;
    char etag[128] = "";
    call = (Call){0};
    S3_copy_object(&p->context, "described", NULL, "copied", NULL, &modified, sizeof etag, etag, NULL, 0, &RESPONSE,
                   &call);
    read = head(p, "copied");
    point(p, "copy keeps metadata", ended(&call, S3StatusOK) && !strcmp(read.type, "text/x-probe") &&
              llabs(modified - time(NULL)) < 100 && !strcmp(etag, read.etag), &call);
    said = (S3PutProperties){.contentType = "text/other", .expires = -1};
    call = (Call){0};
    S3_copy_object(&p->context, "described", p->bucket, "copied", &said, NULL, 0, NULL, NULL, 0, &RESPONSE, &call);
    read = get(p, "copied");
    point(p, "copy replaces metadata", ended(&call, S3StatusOK) && !strcmp(read.type, "text/other") &&
              read.meta_count == 0 && read.got_bytes == 10 && !read.got_wrong, &read);
    call = (Call){0};
    S3_copy_object(&p->context, "missing", NULL, "copied", NULL, &modified, sizeof etag, etag, NULL, 0, &RESPONSE,
                   &call);
    point(p, "copy of a missing key", ended(&call, S3StatusErrorNoSuchKey) && modified == -1 && !etag[0], &call);
}

static void keys(Probe *p) {
    char longest[1025] = "", too_long[1026] = "";
    memset(longest, 'k', 1000);
    memset(too_long, 'k', 1025);
    const char *odd[] = {"a/b/c", "a/../b", "../up", "./.", "a//b", "dots...", ".hidden", "a", "a/b", "trailing/",
                         longest, "sp ace+%41?&=", "\xc3\xa9t\xc3\xa9"};
    int holds = 1;
    Call call = {0};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        put_with(p, odd[i], (Call){.put_bytes = 100 + i, .seed = i}, NULL);
        call = get_with(p, odd[i], (Call){.seed = i}, NULL, 0, 0);
        holds = holds && ended(&call, S3StatusOK) && call.got_bytes == 100 + i && !call.got_wrong;
    }
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        holds = holds && head(p, odd[i]).length == 100 + i;
        delete_object(p, odd[i]);
        call = get(p, odd[i]);
        holds = holds && call.status == S3StatusErrorNoSuchKey;
    }
    point(p, "keys that are not paths", holds, &call);
    call = put(p, too_long, 5);
    point(p, "a key that is too long", call.complete_calls == 1 && call.status == S3StatusErrorKeyTooLong, &call);
    call = put(p, "", 0);
    Call gone = delete_object(p, ""), seen = head(p, "");
    point(p, "the empty key as a directory at the top",
          ended(&call, S3StatusOK) && ended(&gone, S3StatusOK) && ended(&seen, S3StatusOK), &call);
    call = put(p, NULL, 5);
    point(p, "content needs a key", ended(&call, S3StatusErrorInvalidURI), &call);
    call = delete_object(p, "missing");
    point(p, "delete a missing key", ended(&call, S3StatusOK), &call);
    call = put(p, "\xff\xfe", 5);
    point(p, "a key that is not UTF-8", ended(&call, S3StatusErrorInvalidURI), &call);
}

static void listings(Probe *p) {
    char key[64];
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "list/%02d/%d", i / 10, i % 10);
        put(p, key, 1);
    }
    Call call = list_with(p, (Call){0}, "list/", NULL, NULL, 0);
    point(p, "list a prefix, in batches, in order",
          ended(&call, S3StatusOK) && call.names == 100 && call.batches > 1 && !call.unsorted && !call.truncated, &call);
    call = list_with(p, (Call){0}, "list/", NULL, "/", 0);
    point(p, "list with a delimiter", call.names == 0 && call.prefixes == 10 && !strcmp(call.last, "list/09/"), &call);
    call = list_with(p, (Call){0}, "list/", "list/08/9", NULL, 0);
    point(p, "list behind a marker", call.names == 10, &call);
    call = list_with(p, (Call){0}, "list/", NULL, NULL, 7);
    point(p, "list no more than requested",
          call.names == 7 && call.truncated && !strcmp(call.marker, "list/00/6"), &call);
    int names = 0, pages = 0;
    Call page = {0};
    do {
        char from[1100];
        snprintf(from, sizeof from, "%s", page.marker);
        page = list_with(p, (Call){0}, "list/", from, NULL, 7);
        names += page.names;
    } while (page.truncated && ++pages < 100);
    point(p, "pages make the whole", names == 100 && pages == 14, &page);
    call = list_with(p, (Call){0}, "no such prefix", NULL, NULL, 0);
    point(p, "list nothing", ended(&call, S3StatusOK) && call.names == 0 && !call.truncated, &call);
    call = list_with(p, (Call){.get_answer = S3StatusAbortedByCallback}, "list/", NULL, NULL, 0);
    point(p, "a listing that its callback stops",
          call.complete_calls == 1 && call.batches == 1 && call.status == S3StatusAbortedByCallback, &call);
    call = delete_bucket(p, p->bucket);
    point(p, "delete a bucket with objects", ended(&call, S3StatusErrorBucketNotEmpty), &call);
    call = list_with(p, (Call){.delete_in = &p->context}, "list/", NULL, NULL, 0);
    page = list_with(p, (Call){0}, "list/", NULL, NULL, 0);
    point(p, "delete within the list callback", ended(&call, S3StatusOK) && call.names == 100 && page.names == 0, &call);
    S3BucketContext elsewhere = p->context;
    elsewhere.bucketName = "no_such_bucket_here";
    call = (Call){0};
    S3_list_bucket(&elsewhere, NULL, NULL, NULL, 0, NULL, 0, &LIST, &call);
    point(p, "list a missing bucket", ended(&call, S3StatusErrorNoSuchBucket), &call);
}

static S3Status on_bucket(const char *owner, const char *name, const char *bucket, int64_t created, void *data) {
    Call *call = data;
    (void)owner, (void)name, (void)created;
    call->names++;
    if (!strcmp(bucket, call->text)) call->parts++;
    return S3StatusOK;
}

static void services(Probe *p) {
    static const S3ListServiceHandler handler = {{on_properties, on_complete}, on_bucket};
    Call call = {.text = p->bucket};
    S3_list_service(S3ProtocolHTTP, p->access, p->secret, NULL, p->host, NULL, NULL, 0, &handler, &call);
    point(p, "list the buckets", ended(&call, S3StatusOK) && call.names >= 1 && call.parts == 1, &call);

    static char owner[S3_MAX_GRANTEE_USER_ID_SIZE], name[S3_MAX_GRANTEE_DISPLAY_NAME_SIZE];
    S3AclGrant *grants = calloc(S3_MAX_ACL_GRANT_COUNT, sizeof *grants);
    S3Status expected = p->is_local ? S3StatusOK : S3StatusErrorNotImplemented;
    int count = -1;
    put(p, "acl", 1);
    call = (Call){0};
    S3_get_acl(&p->context, "acl", owner, name, &count, grants, NULL, 0, &RESPONSE, &call);
    int none = -1;
    Call missing = {0};
    S3_get_acl(&p->context, "missing", owner, name, &none, grants, NULL, 0, &RESPONSE, &missing);
    point(p, "no grants of a missing key", missing.status != S3StatusOK && none == 0, &missing);
    point(p, "get an access control list", ended(&call, expected) &&
              (!p->is_local || (count == 1 && grants[0].permission == S3PermissionFullControl &&
                                   !strcmp(grants[0].grantee.canonicalUser.id, owner))), &call);
    call = (Call){0};
    S3_set_acl(&p->context, "acl", owner, name, count < 0 ? 0 : count, grants, NULL, 0, &RESPONSE, &call);
    point(p, "set the access control list that there is", ended(&call, expected), &call);
    grants[0].granteeType = S3GranteeTypeAllUsers;
    call = (Call){0};
    S3_set_acl(&p->context, "acl", owner, name, 1, grants, NULL, 0, &RESPONSE, &call);
    point(p, "grants to others are refused", ended(&call, S3StatusErrorNotImplemented), &call);
    char text[64], other[64];
    call = (Call){0};
    S3_get_lifecycle(&p->context, text, sizeof text, NULL, 0, &RESPONSE, &call);
    point(p, "there are no lifecycle rules",
          ended(&call, p->is_local ? S3StatusErrorNoSuchLifecycleConfiguration : S3StatusErrorNotImplemented), &call);
    call = (Call){0};
    S3_set_lifecycle(&p->context, "<LifecycleConfiguration/>", NULL, 0, &RESPONSE, &call);
    point(p, "lifecycle rules are refused", ended(&call, S3StatusErrorNotImplemented), &call);
    call = (Call){0};
    S3_get_server_access_logging(&p->context, text, other, &count, grants, NULL, 0, &RESPONSE, &call);
    point(p, "accesses are not logged", ended(&call, expected), &call);
    call = (Call){0};
    S3_set_server_access_logging(&p->context, "logs", "", 0, NULL, NULL, 0, &RESPONSE, &call);
    point(p, "access logs are refused", ended(&call, S3StatusErrorNotImplemented), &call);
    free(grants);
}

/* Returns whether the URL for a lifetime is valid for this many seconds. */
static int is_valid_for(Probe *p, int lifetime, const char *seconds) {
    char url[S3_MAX_AUTHENTICATED_QUERY_STRING_SIZE] = "", wanted[64];
    S3Status status = S3_generate_authenticated_query_string(url, &p->context, "a key", lifetime, NULL, "GET");
    snprintf(wanted, sizeof wanted, "X-Amz-Expires=%s&", seconds);
    return status == S3StatusOK && strstr(url, wanted);
}

static void lifetimes(Probe *p) {
    point(p, "the lifetime of a signed URL", is_valid_for(p, 0, "1") && is_valid_for(p, 60, "60") &&
              is_valid_for(p, 1 << 30, "604800") && is_valid_for(p, -1, "604800"), NULL);
}

static void utilities(Probe *p) {
    point(p, "initialize may repeat", S3_initialize(NULL, S3_INIT_ALL, p->host) == S3StatusOK &&
              S3_initialize("again", S3_INIT_ALL, p->host) == S3StatusOK, NULL);
    S3_deinitialize();
    point(p, "status names", !strcmp(S3_get_status_name(S3StatusErrorNoSuchKey), "ErrorNoSuchKey") &&
              !strcmp(S3_get_status_name(9999), "Unknown"), NULL);
    point(p, "bucket names", S3_validate_bucket_name("ior_1", S3UriStylePath) == S3StatusOK &&
              S3_validate_bucket_name("ior_1", S3UriStyleVirtualHost) == S3StatusInvalidBucketNameCharacter &&
              S3_validate_bucket_name("ab", S3UriStylePath) == S3StatusInvalidBucketNameTooShort, NULL);
    point(p, "what may be tried again", S3_status_is_retryable(S3StatusConnectionFailed) &&
              !S3_status_is_retryable(S3StatusErrorNoSuchKey), NULL);
    char acl[] = "<AccessControlPolicy><Owner><ID>o</ID><DisplayName>O</DisplayName></Owner><AccessControlList><Grant>"
                 "<Grantee><ID>u</ID><DisplayName>U</DisplayName></Grantee><Permission>READ</Permission></Grant>"
                 "</AccessControlList></AccessControlPolicy>";
    char owner[128], name[128];
    int count = 0;
    S3AclGrant grants[S3_MAX_ACL_GRANT_COUNT];
    S3Status status = S3_convert_acl(acl, owner, name, &count, grants);
    point(p, "an access control list in XML", status == S3StatusOK && count == 1 && !strcmp(owner, "o") &&
              grants[0].permission == S3PermissionRead && !strcmp(grants[0].grantee.canonicalUser.displayName, "U"),
          NULL);
    status = S3_convert_acl("<AccessControlPolicy>", owner, name, &count, grants);
    point(p, "an access control list that is no XML", status == S3StatusXmlParseFailure && count == 0 && !owner[0],
          NULL);
    char url[S3_MAX_AUTHENTICATED_QUERY_STRING_SIZE] = "";
    status = S3_generate_authenticated_query_string(url, &p->context, "a key", 60, NULL, "GET");
    point(p, "a signed URL", p->is_local ? status == S3StatusNotSupported
              : status == S3StatusOK && strstr(url, "a%20key?") && strstr(url, "X-Amz-Signature="), NULL);
    if (!p->is_local) lifetimes(p);
    S3BucketContext node = p->context;
    node.hostName = "unix:///nowhere";
    Call call = {0};
    S3_head_object(&node, "key", NULL, 0, &RESPONSE, &call);
    point(p, "a lane that there is not", call.complete_calls == 1 && call.status != S3StatusOK && call.message[0], &call);
    call = (Call){0};
    S3BucketContext own = p->context;
    own.hostName = NULL;
    put(p, "by default", 1);
    S3_head_object(&own, "by default", NULL, 0, &RESPONSE, &call);
    point(p, "the host of S3_initialize", ended(&call, S3StatusOK), &call);
}

static S3Status on_parts(int truncated, const char *marker, const char *initiator, const char *initiator_name,
                         const char *owner, const char *owner_name, const char *class, int count, int start,
                         const S3ListPart *parts, void *data) {
    Call *call = data;
    (void)marker, (void)initiator, (void)initiator_name, (void)owner, (void)owner_name, (void)class;
    if (start != call->parts) call->unsorted = 1;
    call->truncated = truncated;
    for (int i = 0; i < count && call->parts < 4; i++) {
        snprintf(call->part_etags[call->parts++], 128, "%s", parts[i].eTag);
        call->part_sizes += parts[i].size;
    }
    return S3StatusOK;
}

static S3Status on_uploads(int truncated, const char *key, const char *id, int count,
                           const S3ListMultipartUpload *uploads, int prefixes, const char **prefix, void *data) {
    Call *call = data;
    (void)truncated, (void)key, (void)id, (void)prefixes, (void)prefix;
    for (int i = 0; i < count; i++) {
        if (!strcmp(uploads[i].uploadId, call->text)) call->parts++;
    }
    return S3StatusOK;
}

static Call copy_part(Probe *p, const char *id, int number, unsigned long start, unsigned long count) {
    Call call = {0};
    S3_copy_object_range(&p->context, "upload/x", NULL, "upload/y", number, id, start, count, NULL, NULL, 0, NULL, NULL,
                         0, &RESPONSE, &call);
    return call;
}

/* Copies an object in parts as the program s3 does: the count is one less than the number of bytes to copy. */
static void copied_parts(Probe *p) {
    const unsigned long part = 5 << 20, whole = part + 100;
    Call begun = begin_upload(p, "upload/y");
    Call first = copy_part(p, begun.upload, 1, 0, part - 1), second = copy_part(p, begun.upload, 2, part, 99);
    char document[1024];
    snprintf(document, sizeof document,
             "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part><Part><PartNumber>2"
             "</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", first.etag, second.etag);
    Call done = finish_upload(p, "upload/y", begun.upload, document), read = get(p, "upload/y");
    Call same = get(p, "upload/x");
    point(p, "an object copied in parts", ended(&done, S3StatusOK) && read.got_bytes == whole &&
              read.got_sum == same.got_sum, &done);
    begun = begin_upload(p, "upload/y");
    Call last = copy_part(p, begun.upload, 1, whole - 1, 0), beyond = copy_part(p, begun.upload, 2, part, 100);
    snprintf(document, sizeof document,
             "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part>"
             "</CompleteMultipartUpload>", last.etag);
    done = finish_upload(p, "upload/y", begun.upload, document);
    point(p, "a part of the last byte", ended(&done, S3StatusOK) && head(p, "upload/y").length == 1, &done);
    point(p, "a part from beyond the object", ended(&beyond, S3StatusErrorInvalidRange), &beyond);
}

static void uploads(Probe *p) {
    static const S3ListPartsHandler parts_handler = {{on_properties, on_complete}, on_parts};
    static const S3ListMultipartUploadsHandler uploads_handler = {{on_properties, on_complete}, on_uploads};
    const int part = 5 << 20;
    Call begun = begin_upload(p, "upload/x");
    point(p, "start an upload", ended(&begun, S3StatusOK) && begun.upload[0], &begun);
    Call first = send_part(p, "upload/x", begun.upload, 1, part);
    point(p, "send a part", ended(&first, S3StatusOK) && first.etag[0] == '"', &first);
    Call second = send_part(p, "upload/x", begun.upload, 2, 100);
    Call call = {0};
    S3_list_parts(&p->context, "upload/x", NULL, begun.upload, NULL, 0, NULL, 0, &parts_handler, &call);
    point(p, "list parts", ended(&call, S3StatusOK) && call.parts == 2 && call.part_sizes == (uint64_t)part + 100 &&
              !strcmp(call.part_etags[0], first.etag) && !strcmp(call.part_etags[1], second.etag) && !call.unsorted,
          &call);
    call = (Call){.text = begun.upload};
    S3_list_multipart_uploads(&p->context, "upload/", NULL, NULL, NULL, NULL, 0, NULL, 0, &uploads_handler, &call);
    point(p, "list uploads", ended(&call, S3StatusOK) && call.parts == 1, &call);
    call = finish_upload(p, "upload/x", begun.upload, "<Complete");
    point(p, "complete with what is no XML", ended(&call, S3StatusErrorMalformedXML), &call);
    char document[1024];
    snprintf(document, sizeof document, "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"%s\"</ETag>"
             "</Part></CompleteMultipartUpload>", "0123456789abcdef0123456789abcdef");
    call = finish_upload(p, "upload/x", begun.upload, document);
    point(p, "complete with a missing part", ended(&call, S3StatusErrorInvalidPart), &call);
    snprintf(document, sizeof document,
             "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part><Part><PartNumber>2"
             "</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", first.etag, second.etag);
    call = finish_upload(p, "upload/x", begun.upload, document);
    Call read = get_with(p, "upload/x", (Call){0}, NULL, 0, part);
    point(p, "complete an upload", ended(&call, S3StatusOK) && call.commit_etag[0] == '"' && call.location[0] &&
              read.got_bytes == (uint64_t)part && !read.got_wrong && head(p, "upload/x").length == (uint64_t)part + 100,
          &call);
    copied_parts(p);
    begun = begin_upload(p, "upload/z");
    S3AbortMultipartUploadHandler nobody = {{NULL, NULL}};
    S3_abort_multipart_upload(&p->context, "upload/z", begun.upload, 0, &nobody);
    call = send_part(p, "upload/z", begun.upload, 1, 10);
    point(p, "a part of an aborted upload", ended(&call, S3StatusErrorNoSuchUpload), &call);
}

typedef struct {
    Call call;
    Probe *probe;
    S3RequestContext *context;
    int more;
    Call added;
} Chained;

static void on_chained(S3Status status, const S3ErrorDetails *details, void *data) {
    Chained *chained = data;
    on_complete(status, details, &chained->call);
    if (chained->more-- > 0)
        S3_head_object(&chained->probe->context, "queued", chained->context, 0, &RESPONSE, &chained->added);
}

/* Drives the context with select. Returns the number of remaining requests. The number is greater than 0 only if the
 * context had nothing to wait for. */
static int drive_by_select(S3RequestContext *queue) {
    int remaining = -1, fd = -1;
    do {
        fd_set reading, writing, failing;
        FD_ZERO(&reading);
        FD_ZERO(&writing);
        FD_ZERO(&failing);
        S3_get_request_context_fdsets(queue, &reading, &writing, &failing, &fd);
        int64_t timeout_ms = S3_get_request_context_timeout(queue);
        struct timeval wait = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
        if (timeout_ms < 0 || fd < 0 || select(fd + 1, &reading, &writing, &failing, &wait) < 0) break;
        S3_runonce_request_context(queue, &remaining);
    } while (remaining);
    return remaining;
}

static void contexts(Probe *p) {
    S3RequestContext *queue = NULL;
    point(p, "create a request context", S3_create_request_context(&queue) == S3StatusOK && queue, NULL);
    Call sent = {.put_bytes = 100}, read = {0}, seen = {0};
    char key[] = "queued";
    S3_put_object(&p->context, key, 100, NULL, queue, 0, &PUT, &sent);
    memset(key, '?', 3);
    point(p, "queued requests wait", !sent.complete_calls && !sent.put_asked, &sent);
    int remaining = drive_by_select(queue);
    point(p, "runonce carries out what waits", remaining == 0 && ended(&sent, S3StatusOK), &sent);
    S3_get_object(&p->context, "queued", NULL, 0, 0, queue, 0, &GET, &read);
    S3_head_object(&p->context, "queued", queue, 0, &RESPONSE, &seen);
    remaining = drive_by_select(queue);
    point(p, "runonce carries out several", remaining == 0 && ended(&read, S3StatusOK) && read.got_bytes == 100 &&
              !read.got_wrong && ended(&seen, S3StatusOK), &read);
    point(p, "an empty context has nothing to wait for", S3_get_request_context_timeout(queue) == -1, NULL);
    Chained chained = {.probe = p, .context = queue, .more = 1};
    S3ResponseHandler handler = {NULL, on_chained};
    S3_head_object(&p->context, "queued", queue, 0, &handler, &chained);
    S3_runall_request_context(queue);
    point(p, "runall carries out what a callback adds",
          chained.call.complete_calls == 1 && ended(&chained.added, S3StatusOK), &chained.added);
    seen = (Call){0};
    S3_head_object(&p->context, "queued", queue, 0, &RESPONSE, &seen);
    do {
        S3_process_request_context(queue);
    } while (S3_get_request_context_timeout(queue) != -1 && !usleep(1000));
    point(p, "process carries out what is ready", ended(&seen, S3StatusOK), &seen);
    sent = (Call){.put_bytes = 100}, read = (Call){0};
    S3_put_object(&p->context, "interrupted", 100, NULL, queue, 0, &PUT, &sent);
    S3_get_object(&p->context, "queued", NULL, 0, 0, queue, 0, &GET, &read);
    S3_destroy_request_context(queue);
    point(p, "destroy interrupts what waits", ended(&sent, S3StatusInterrupted) && ended(&read, S3StatusInterrupted) &&
              head(p, "interrupted").status == S3StatusHttpErrorNotFound, &sent);
}

static void forks(Probe *p) {
    put(p, "parent", 1000);
    pid_t child = fork();
    if (child == 0) {
        Call read = get(p, "parent"), sent = put(p, "child", 500), again = put(p, "child", 501);
        _exit(!(ended(&read, S3StatusOK) && ended(&sent, S3StatusOK) && ended(&again, S3StatusOK)));
    }
    Call call = put(p, "parent", 1001);
    int status = -1;
    waitpid(child, &status, 0);
    Call read = get(p, "child");
    point(p, "a child process works on, and so does its parent",
          status == 0 && ended(&call, S3StatusOK) && read.got_bytes == 501 && get(p, "parent").got_bytes == 1001, &read);
}

static void big_objects(Probe *p) {
    const uint64_t bytes = 150ULL << 20;
    Call call = put(p, "big", bytes), read = get(p, "big");
    point(p, "150 MiB", ended(&call, S3StatusOK) && ended(&read, S3StatusOK) && read.got_bytes == bytes &&
              !read.got_wrong, &read);
    delete_object(p, "big");
}

static void *run(void *argument) {
    Probe *p = argument;
    buckets(p);
    round_trips(p);
    announced_sizes(p);
    reads(p);
    metadata(p);
    keys(p);
    listings(p);
    services(p);
    utilities(p);
    uploads(p);
    contexts(p);
    if (with_big_objects) big_objects(p);
    list_with(p, (Call){.delete_in = &p->context}, NULL, NULL, NULL, 0);
    Call call = delete_bucket(p, p->bucket);
    point(p, "delete a bucket", ended(&call, S3StatusOK), &call);
    return NULL;
}

int main(int count, char **words) {
    if (count < 5) return fprintf(stderr, "usage: probe HOST ACCESS SECRET THREADS [big]\n"), 2;
    int threads = atoi(words[4]), points = 0, failures = 0;
    with_big_objects = count > 5;
    setvbuf(stdout, NULL, _IOLBF, 0);
    Probe *probes = calloc(threads, sizeof *probes);
    pthread_t *running = calloc(threads, sizeof *running);
    for (int i = 0; i < threads; i++) {
        Probe *p = &probes[i];
        p->host = words[1], p->access = words[2], p->secret = words[3], p->is_local = words[1][0] == '/' || !strncmp(words[1], "unix://", 7);
        snprintf(p->bucket, sizeof p->bucket, "probe-%d", i);
        p->context = (S3BucketContext){.hostName = p->host, .bucketName = p->bucket, .protocol = S3ProtocolHTTP,
                                       .uriStyle = S3UriStylePath, .accessKeyId = p->access,
                                       .secretAccessKey = p->secret};
    }
    Probe forking = probes[0];
    forking.context.bucketName = "probe-fork";
    create_bucket(&forking, "probe-fork");
    forks(&forking);
    for (int i = 0; i < threads; i++) pthread_create(&running[i], NULL, run, &probes[i]);
    for (int i = 0; i < threads; i++) pthread_join(running[i], NULL);
    for (int i = 0; i < threads; i++) points += probes[i].points, failures += probes[i].failures;
    points += forking.points, failures += forking.failures;
    printf("%d points, %d failed\n", points, failures);
    free(probes), free(running);
    return failures != 0;
}
