/* Gets an object, and gets it again when the process cannot open another descriptor. Prints both statuses. */
#include <fcntl.h>
#include <sys/resource.h>

#include "probe.h"

int main(int count, char **words) {
    if (count < 4) return 2;
    S3BucketContext context = {.hostName = words[1], .accessKeyId = words[2], .secretAccessKey = words[3],
                               .bucketName = "bucket", .protocol = S3ProtocolHTTP, .uriStyle = S3UriStylePath};
    Call call = {0};
    S3_get_object(&context, "key", NULL, 0, 0, NULL, 0, &GET, &call);
    printf("first: %s\n", S3_get_status_name(call.status));
    struct rlimit limit = {100, 100};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
    while (open("/dev/null", O_RDONLY) >= 0) {}
    call = (Call){0};
    S3_get_object(&context, "key", NULL, 0, 0, NULL, 0, &GET, &call);
    printf("second: %s: %s\n", S3_get_status_name(call.status), call.message);
    return 0;
}
