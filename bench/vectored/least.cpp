// Measures the minimum CPU time for reading the fragments: from the page cache, by `pread`; or from a server, by a loop
// that receives responses and searches only for the end of each response.
// usage: least pread FILE RANGES PER_CALL | least receive HOST PORT PATH RANGES

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "workload.hpp"

namespace {

// The number of ranges that fit into a request head that nginx accepts.
constexpr size_t PER_REQUEST = 200;
// The kernel wakes the loop when this many bytes have arrived, and returns at most this many bytes in one call.
constexpr size_t PIECE_BYTES = 1 << 20;

std::string request_for(const std::vector<Fragment> &fragments, Call call, const std::string &host, const std::string &path) {
    std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nRange: bytes=";
    for (size_t at = call.first; at < call.last; at++) {
        const auto [offset, length] = fragments[at];
        request += std::to_string(offset) + "-" + std::to_string(offset + length - 1) + (at + 1 < call.last ? "," : "");
    }
    return request + "\r\n\r\n";
}

int connect_to(const std::string &host, const std::string &port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(std::stoi(port));
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1 ||
        connect(connection, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0)
        fail("no connection to " + host + ":" + port);
    return connection;
}

void wake_for(int connection, size_t bytes) {
    int low_water = bytes;
    setsockopt(connection, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water);
}

// Receives a head. Returns the number of bytes of the body that have not arrived yet.
size_t receive_head(int connection) {
    std::string head(4096, 0);
    size_t received = 0, end;
    wake_for(connection, 1);
    while ((end = head.substr(0, received).find("\r\n\r\n")) == std::string::npos) {
        ssize_t got = recv(connection, &head[received], head.size() - received, 0);
        if (got <= 0) fail("the server closed the connection within a head");
        received += got;
    }
    const char *length = strcasestr(head.c_str(), "content-length:");
    if (!length || head.compare(9, 3, "206") != 0) fail("the server answered otherwise: " + head.substr(0, end));
    return std::strtoull(length + 15, nullptr, 10) - (received - end - 4);
}

void receive_body(int connection, size_t left, std::vector<char> &memory, size_t &at) {
    while (left > 0) {
        wake_for(connection, std::min(left, PIECE_BYTES));
        pollfd waited{connection, POLLIN, 0};
        poll(&waited, 1, -1);
        for (ssize_t got = 1; got > 0 && left > 0;) {
            if (at + PIECE_BYTES > memory.size()) at = 0;
            got = recv(connection, memory.data() + at, std::min(left, PIECE_BYTES), MSG_DONTWAIT);
            if (got == 0) fail("the server closed the connection within an answer");
            if (got > 0) at += got, left -= got;
        }
    }
}

void receive(char **words) {
    const std::vector<Fragment> fragments = read_fragments(words[5]);
    const std::vector<Call> calls = calls_of(fragments, PER_REQUEST);
    std::vector<std::string> requests;
    for (Call call : calls) requests.push_back(request_for(fragments, call, words[2], words[4]));
    // Use as much memory as two calls of the other clients.
    auto memory = std::move(buffers_of(fragments, {{0, std::min<size_t>(4 * PER_REQUEST, fragments.size())}}, 1)[0]);
    memory.resize(std::max(memory.size(), PIECE_BYTES), 1);
    const int connection = connect_to(words[2], words[3]);
    size_t at = 0;

    Stopwatch watch;
    for (const std::string &request : requests) {
        if (write(connection, request.data(), request.size()) != ssize_t(request.size())) fail("a request was not sent");
        receive_body(connection, receive_head(connection), memory, at);
    }
    watch.print(bytes_of(fragments, {0, fragments.size()}));
}

void pread_all(char **words) {
    const std::vector<Fragment> fragments = read_fragments(words[3]);
    const std::vector<Call> calls = calls_of(fragments, std::stoul(words[4]));
    auto buffer = std::move(buffers_of(fragments, calls, 1)[0]);
    const int file = open(words[2], O_RDONLY);

    Stopwatch watch;
    for (Call call : calls) {
        char *to = buffer.data();
        for (size_t at = call.first; at < call.last; to += fragments[at++].length)
            if (pread(file, to, fragments[at].length, fragments[at].offset) != fragments[at].length)
                fail(std::string(words[2]) + " has less than fragment " + std::to_string(at));
    }
    watch.print(bytes_of(fragments, {0, fragments.size()}));
}

}  // namespace

int main(int count, char **words) {
    if (count == 5 && std::string(words[1]) == "pread") pread_all(words);
    else if (count == 6 && std::string(words[1]) == "receive") receive(words);
    else fail("usage: least pread FILE RANGES PER_CALL | least receive HOST PORT PATH RANGES");
}
