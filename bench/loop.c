// The minimum work of an upload server: receives each body over HTTP/1.1, and writes it to a new file, which replaces
// an older file. The files have no names, and no data is checked. Each connection keeps as many files open as the
// benchmark has objects per connection, so that memory is reused after the same time as with named files.
// usage: loop DIR; prints its port, and runs until it is killed.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_BYTES = 16 << 10, PIECE_BYTES = 256 << 10, KEPT = 2 };
static const char answer[] = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
static const char *directory;

// Writes `size` bytes at `offset`. Exits if the write is incomplete, because the benchmark would then be wrong.
static void put(int file, const char *data, size_t size, off_t offset) {
    if (pwrite(file, data, size, offset) != (ssize_t)size) {
        perror("loop: pwrite");
        exit(1);
    }
}

// Receives a head, and the part of the body that arrives with it. Returns the number of bytes, or 0 if the client has
// closed the connection.
static size_t receive_head(int socket, char *head, char **body) {
    size_t filled = 0;
    while (filled < HEAD_BYTES - 1) {
        ssize_t count = recv(socket, head + filled, HEAD_BYTES - 1 - filled, 0);
        if (count <= 0) return 0;
        filled += (size_t)count;
        head[filled] = 0;
        char *end = memmem(head, filled, "\r\n\r\n", 4);
        if (end) {
            *body = end + 4;
            return filled;
        }
    }
    return 0;
}

static void *serve(void *argument) {
    int socket = (int)(long)argument, on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    char *head = malloc(HEAD_BYTES), *piece = malloc(PIECE_BYTES), *body = NULL;
    int kept[KEPT] = {-1, -1}, oldest = 0;
    size_t filled;
    while (head && piece && (filled = receive_head(socket, head, &body))) {
        char *length = strcasestr(head, "content-length:");
        size_t left = length ? strtoul(length + 15, NULL, 10) : 0, ahead = filled - (size_t)(body - head);
        int file = open(directory, O_TMPFILE | O_WRONLY, 0600);
        if (file < 0) {
            perror("loop: open");
            exit(1);
        }
        memcpy(piece, body, ahead);
        size_t held = ahead;
        off_t offset = 0;
        while (left > 0) {
            size_t wanted = left < PIECE_BYTES ? left : PIECE_BYTES;
            while (held < wanted) {
                ssize_t count = recv(socket, piece + held, wanted - held, 0);
                if (count <= 0) exit(1);
                held += (size_t)count;
            }
            put(file, piece, wanted, offset);
            offset += (off_t)wanted;
            left -= wanted;
            held = 0;
        }
        if (kept[oldest] >= 0) close(kept[oldest]);
        kept[oldest] = file;
        oldest = (oldest + 1) % KEPT;
        if (send(socket, answer, sizeof answer - 1, MSG_NOSIGNAL) < 0) break;
    }
    close(socket);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    directory = arguments[1];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 64)) return 1;
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int client = accept(listener, NULL, NULL);
        pthread_t thread;
        if (client >= 0 && pthread_create(&thread, NULL, serve, (void *)(long)client) == 0) pthread_detach(thread);
    }
}
