// Code that the peers' programs share: the fragments, the clock, and the line that is printed at the
// end.
#pragma once

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

struct Fragment {
    uint64_t offset;
    uint32_t length;
};

inline std::vector<Fragment> read_fragments(const char *path) {
    std::ifstream lines(path);
    std::vector<Fragment> fragments;
    for (Fragment fragment; lines >> fragment.offset >> fragment.length;) fragments.push_back(fragment);
    if (fragments.empty()) {
        std::fprintf(stderr, "%s has no fragments\n", path);
        std::exit(1);
    }
    return fragments;
}

[[noreturn]] inline void fail(const std::string &why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(1);
}

// The fragments of one call: [first, last).
struct Call {
    size_t first, last;
};

inline std::vector<Call> calls_of(const std::vector<Fragment> &fragments, size_t per_call) {
    std::vector<Call> calls;
    for (size_t first = 0; first < fragments.size(); first += per_call)
        calls.push_back({first, std::min(first + per_call, fragments.size())});
    return calls;
}

inline uint64_t bytes_of(const std::vector<Fragment> &fragments, Call call) {
    uint64_t bytes = 0;
    for (size_t at = call.first; at < call.last; at++) bytes += fragments[at].length;
    return bytes;
}

// Buffers that are touched before the clock starts, and are reused, so that the times do not include
// page faults.
inline std::vector<std::vector<char>> buffers_of(const std::vector<Fragment> &fragments,
                                                 const std::vector<Call> &calls, size_t count) {
    uint64_t largest = 0;
    for (Call call : calls) largest = std::max(largest, bytes_of(fragments, call));
    return std::vector<std::vector<char>>(count, std::vector<char>(largest, 1));
}

// Fails unless `buffer` contains the call's fragments, one after the other, with the file's bytes.
inline void check(const char *path, const std::vector<Fragment> &fragments, Call call, const char *buffer) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> expected;
    for (size_t at = call.first; at < call.last; at++) {
        expected.resize(fragments[at].length);
        file.seekg(fragments[at].offset);
        file.read(expected.data(), expected.size());
        if (!std::equal(expected.begin(), expected.end(), buffer))
            fail("fragment " + std::to_string(at) + " has wrong bytes");
        buffer += expected.size();
    }
}

class Stopwatch {
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    double cpu_start = cpu();

    static double cpu() {
        rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        auto seconds = [](timeval time) { return time.tv_sec + time.tv_usec / 1e6; };
        return seconds(usage.ru_utime) + seconds(usage.ru_stime);
    }

public:
    void print(uint64_t bytes) const {
        std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        std::printf("{\"bytes\": %llu, \"seconds\": %.6f, \"client_cpu_seconds\": %.6f}\n",
                    (unsigned long long)bytes, took.count(), cpu() - cpu_start);
    }
};
