// Reads the fragments with XrdCl, using one VectorRead for each call, with WINDOW calls in flight.
// usage: xrdcl URL RANGES PER_CALL WINDOW [FILE]; with FILE, the bytes are compared with FILE, and the time has no
// meaning.

#include <XrdCl/XrdClFile.hh>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "workload.hpp"

namespace {

// The free buffers, and the last error.
struct Board {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<size_t> free;
    std::string error;
};

// Receives the result of a call, and then deletes itself, as XrdCl's own handlers do.
struct Handler : XrdCl::ResponseHandler {
    Board &board;
    size_t buffer;

    Handler(Board &board, size_t buffer) : board(board), buffer(buffer) {}

    void HandleResponse(XrdCl::XRootDStatus *status, XrdCl::AnyObject *response) override {
        {
            std::lock_guard<std::mutex> lock(board.mutex);
            if (!status->IsOK()) board.error = status->ToStr();
            board.free.push_back(buffer);
            board.changed.notify_one();
        }
        delete status;
        delete response;
        delete this;
    }
};

XrdCl::ChunkList chunks_of(const std::vector<Fragment> &fragments, Call call, char *to) {
    XrdCl::ChunkList chunks;
    for (size_t at = call.first; at < call.last; at++) {
        chunks.emplace_back(fragments[at].offset, fragments[at].length, to);
        to += fragments[at].length;
    }
    return chunks;
}

size_t take_buffer(Board &board) {
    std::unique_lock<std::mutex> lock(board.mutex);
    board.changed.wait(lock, [&] { return !board.free.empty(); });
    if (!board.error.empty()) fail("XrdCl VectorRead: " + board.error);
    size_t buffer = board.free.back();
    board.free.pop_back();
    return buffer;
}

void wait_for_all(Board &board, size_t window) {
    std::unique_lock<std::mutex> lock(board.mutex);
    board.changed.wait(lock, [&] { return board.free.size() == window; });
    if (!board.error.empty()) fail("XrdCl VectorRead: " + board.error);
}

}  // namespace

int main(int count, char **words) {
    if (count < 5) fail("usage: xrdcl URL RANGES PER_CALL WINDOW [FILE]");
    const std::vector<Fragment> fragments = read_fragments(words[2]);
    const std::vector<Call> calls = calls_of(fragments, std::stoul(words[3]));
    const size_t window = std::stoul(words[4]);
    auto buffers = buffers_of(fragments, calls, window);

    Stopwatch watch;
    XrdCl::File file;
    XrdCl::XRootDStatus status = file.Open(words[1], XrdCl::OpenFlags::Read);
    if (!status.IsOK()) fail("XrdCl Open: " + status.ToStr());
    uint64_t bytes = 0;
    Board board;
    for (size_t buffer = 0; buffer < window; buffer++) board.free.push_back(buffer);
    for (Call call : calls) {
        size_t buffer = take_buffer(board);
        char *to = buffers[buffer].data();
        if (window == 1) {
            XrdCl::VectorReadInfo *info = nullptr;
            status = file.VectorRead(chunks_of(fragments, call, to), nullptr, info);
            delete info;
            board.free.push_back(buffer);
        } else {
            status = file.VectorRead(chunks_of(fragments, call, to), nullptr, new Handler(board, buffer));
        }
        if (!status.IsOK()) fail("XrdCl VectorRead: " + status.ToStr());
        bytes += bytes_of(fragments, call);
        if (count > 5) {
            wait_for_all(board, window);
            check(words[5], fragments, call, to);
        }
    }
    wait_for_all(board, window);
    watch.print(bytes);
    if (!file.Close().IsOK()) fail("XrdCl Close");
}
