// Reads the fragments with davix, using one preadVec for each call.
// usage: davix URL RANGES PER_CALL [FILE]; with FILE, the bytes are compared with FILE, and the time has no meaning.

#include <davix.hpp>

#include <algorithm>

#include "workload.hpp"

int main(int count, char **words) {
    if (count < 4) fail("usage: davix URL RANGES PER_CALL [FILE]");
    const std::vector<Fragment> fragments = read_fragments(words[2]);
    const std::vector<Call> calls = calls_of(fragments, std::stoul(words[3]));
    auto buffers = buffers_of(fragments, calls, 1);
    char *buffer = buffers[0].data();

    Stopwatch watch;
    Davix::Context context;
    Davix::DavPosix posix(&context);
    Davix::RequestParams params;
    Davix::DavixError *error = nullptr;
    DAVIX_FD *file = posix.open(&params, words[1], O_RDONLY, &error);
    if (!file) fail("davix open: " + error->getErrMsg());
    uint64_t bytes = 0;
    for (Call call : calls) {
        std::vector<Davix::DavIOVecInput> input;
        char *to = buffer;
        for (size_t at = call.first; at < call.last; at++) {
            const Fragment &fragment = fragments[at];
            input.push_back({to, (dav_off_t)fragment.offset, fragment.length});
            to += fragment.length;
        }
        std::vector<Davix::DavIOVecOuput> output(input.size());
        if (posix.preadVec(file, input.data(), output.data(), input.size(), &error) < 0)
            fail("davix preadVec: " + error->getErrMsg());
        bytes += bytes_of(fragments, call);
        if (count > 4) check(words[4], fragments, call, buffer);
    }
    watch.print(bytes);
    posix.close(file, &error);
}
