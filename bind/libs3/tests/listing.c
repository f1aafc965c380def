/* Reads a listing page by page. usage: listing HOST ACCESS SECRET BUCKET PREFIX MARKER DELIMITER MAX.
 * Prints the names in order, with a "+" before each common prefix. Then prints the number of pages, and the number of
 * names on the fullest page.
 */
#include "probe.h"

static S3Status on_names(int truncated, const char *marker, int count, const S3ListBucketContent *contents, int prefixes,
                         const char **prefix, void *data) {
    Call *call = data;
    call->truncated = truncated;
    call->names += count + prefixes;
    snprintf(call->marker, sizeof call->marker, "%s", marker);
    for (int i = 0; i < count; i++) printf("%s %llu\n", contents[i].key, (unsigned long long)contents[i].size);
    for (int i = 0; i < prefixes; i++) printf("+%s\n", prefix[i]);
    return S3StatusOK;
}

int main(int count, char **words) {
    static const S3ListBucketHandler handler = {{on_properties, on_complete}, on_names};
    if (count != 9) return 2;
    S3BucketContext context = {.hostName = words[1], .accessKeyId = words[2], .secretAccessKey = words[3],
                               .bucketName = words[4], .protocol = S3ProtocolHTTP, .uriStyle = S3UriStylePath};
    char marker[1100];
    snprintf(marker, sizeof marker, "%s", words[6]);
    int pages = 0, most = 0;
    Call call;
    do {
        call = (Call){0};
        S3_list_bucket(&context, words[5], marker, words[7], atoi(words[8]), NULL, 0, &handler, &call);
        if (!ended(&call, S3StatusOK)) return fprintf(stderr, "%s\n", call.message), 1;
        snprintf(marker, sizeof marker, "%s", call.marker);
        if (call.names > most) most = call.names;
        pages++;
    } while (call.truncated);
    printf("pages %d, at most %d\n", pages, most);
    return 0;
}
