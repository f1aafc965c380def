// Reads overlapping fragments with one preadVec of davix, and prints the number of wrong fragments.
// usage: overlap URL FILE

#include <davix.hpp>

#include <algorithm>

#include "workload.hpp"

int main(int count, char **words) {
    if (count < 3) fail("usage: overlap URL FILE");
    // One separate fragment, two that overlap, one within another, and one requested twice.
    const std::vector<Fragment> fragments = {{1'000, 500},   {100'000, 4'000}, {102'000, 4'000}, {300'000, 9'000},
                                             {302'000, 100}, {500'000, 700},   {500'000, 700}};
    std::vector<std::vector<char>> buffers;
    for (const Fragment &fragment : fragments) buffers.emplace_back(fragment.length, '\0');

    Davix::Context context;
    Davix::DavPosix posix(&context);
    Davix::RequestParams params;
    Davix::DavixError *error = nullptr;
    DAVIX_FD *file = posix.open(&params, words[1], O_RDONLY, &error);
    if (!file) fail("davix open: " + error->getErrMsg());
    std::vector<Davix::DavIOVecInput> input;
    for (size_t at = 0; at < fragments.size(); at++)
        input.push_back({buffers[at].data(), (dav_off_t)fragments[at].offset, fragments[at].length});
    std::vector<Davix::DavIOVecOuput> output(input.size());
    if (posix.preadVec(file, input.data(), output.data(), input.size(), &error) < 0) {
        std::printf("reports an error: %s\n", error->getErrMsg().c_str());
        return 0;
    }
    std::ifstream local(words[2], std::ios::binary);
    size_t wrong = 0;
    for (size_t at = 0; at < fragments.size(); at++) {
        std::vector<char> expected(fragments[at].length);
        local.seekg(fragments[at].offset);
        local.read(expected.data(), expected.size());
        wrong += expected != buffers[at];
    }
    std::printf("reports success, and %zu of %zu fragments have wrong bytes\n", wrong, fragments.size());
}
