/* Makes one request of each kind and prints its status, whether it may be retried, and its message. With a file as the
   last argument, truncates the file after the first bytes of the get have arrived. */
#include <unistd.h>

#include "probe.h"

static const char *file_to_truncate;

static S3Status truncating(int size, const char *buffer, void *data) {
    Call *call = data;
    int is_first = call->got_calls == 0;
    if (is_first && file_to_truncate && truncate(file_to_truncate, 300000) != 0) return S3StatusInternalError;
    return on_get(size, buffer, data);
}

static void show(const char *what, const Call *call) {
    const char *name = S3_get_status_name(call->status);
    printf("%s: %s, %s: %s\n", what, name, S3_status_is_retryable(call->status) ? "retryable" : "final", call->message);
}

int main(int count, char **words) {
    if (count < 5) return 2;
    S3BucketContext context = {.hostName = words[1], .accessKeyId = words[2], .secretAccessKey = words[3],
                               .bucketName = "bucket", .protocol = S3ProtocolHTTP, .uriStyle = S3UriStylePath};
    static const S3GetObjectHandler get_handler = {{on_properties, on_complete}, truncating};
    int timeout_ms = atoi(words[4]);
    file_to_truncate = count > 5 ? words[5] : NULL;
    Call call = {0};
    S3_get_object(&context, "key", NULL, 0, 0, NULL, timeout_ms, &get_handler, &call);
    show("get", &call);
    if (file_to_truncate) return 0;
    call = (Call){.put_bytes = 5};
    S3_put_object(&context, "key", 5, NULL, NULL, timeout_ms, &PUT, &call);
    show("put", &call);
    call = (Call){0};
    S3_list_bucket(&context, NULL, NULL, NULL, 0, NULL, timeout_ms, &LIST, &call);
    show("list", &call);
    call = (Call){0};
    S3_head_object(&context, "key", NULL, timeout_ms, &RESPONSE, &call);
    show("head", &call);
    call = (Call){0};
    S3_delete_object(&context, "key", NULL, timeout_ms, &RESPONSE, &call);
    show("delete", &call);
    return 0;
}
