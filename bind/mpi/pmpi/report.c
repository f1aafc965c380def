/* Makes the ranks of any MPI program in C or C++ report their time in MPI calls. The library is preloaded, and
 * intercepts calls through MPI's profiling interface (MPI 3.1, chapter 14). When a rank calls MPI_Finalize, it writes
 * rank-N.json into the directory that FORDWAY_RANK_REPORTS names.
 *
 * The reported time includes point-to-point messages, waits for them, and collective operations, but not one-sided
 * operations or file operations. The times of concurrent calls in several threads are added. */

#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t start_ns;
static uint64_t mpi_ns;

/* The monotonic clock is the same for all ranks of a machine, even in different network namespaces. */
static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void write_report(uint64_t end_ns)
{
    const char *directory = getenv("FORDWAY_RANK_REPORTS");
    char path[4096];
    int rank;
    if (!directory || PMPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS)
        return;
    if (snprintf(path, sizeof path, "%s/rank-%d.json", directory, rank) >= (int)sizeof path)
        return;
    FILE *file = fopen(path, "w");
    if (!file)
        return;
    fprintf(file, "{\"rank\": %d, \"start_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64 ", \"mpi_ns\": %" PRIu64 "}\n",
            rank, start_ns, end_ns, __atomic_load_n(&mpi_ns, __ATOMIC_RELAXED));
    fclose(file);
}

int MPI_Init(int *argc, char ***argv)
{
    const int code = PMPI_Init(argc, argv);
    start_ns = now_ns();
    return code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    const int code = PMPI_Init_thread(argc, argv, required, provided);
    start_ns = now_ns();
    return code;
}

int MPI_Finalize(void)
{
    write_report(now_ns());
    return PMPI_Finalize();
}

#define TIMED(name, parameters, arguments)                                                                     \
    int MPI_##name parameters                                                                                  \
    {                                                                                                          \
        const uint64_t from_ns = now_ns();                                                                     \
        const int code = PMPI_##name arguments;                                                                \
        __atomic_fetch_add(&mpi_ns, now_ns() - from_ns, __ATOMIC_RELAXED);                                     \
        return code;                                                                                           \
    }

#define SENDS(name)                                                                                            \
    TIMED(name, (const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm),                  \
          (data, n, type, to, tag, comm))
#define STARTS_SENDING(name)                                                                                   \
    TIMED(name, (const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *r),  \
          (data, n, type, to, tag, comm, r))

SENDS(Send)
SENDS(Bsend)
SENDS(Ssend)
SENDS(Rsend)
STARTS_SENDING(Isend)
STARTS_SENDING(Ibsend)
STARTS_SENDING(Issend)
STARTS_SENDING(Irsend)
TIMED(Recv, (void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status),
      (data, n, type, from, tag, comm, status))
TIMED(Irecv, (void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request),
      (data, n, type, from, tag, comm, request))
TIMED(Sendrecv,
      (const void *out, int n_out, MPI_Datatype type_out, int to, int tag_out, void *in, int n_in,
       MPI_Datatype type_in, int from, int tag_in, MPI_Comm comm, MPI_Status *status),
      (out, n_out, type_out, to, tag_out, in, n_in, type_in, from, tag_in, comm, status))
TIMED(Sendrecv_replace,
      (void *data, int n, MPI_Datatype type, int to, int tag_out, int from, int tag_in, MPI_Comm comm,
       MPI_Status *status),
      (data, n, type, to, tag_out, from, tag_in, comm, status))
TIMED(Probe, (int from, int tag, MPI_Comm comm, MPI_Status *status), (from, tag, comm, status))
TIMED(Iprobe, (int from, int tag, MPI_Comm comm, int *flag, MPI_Status *status), (from, tag, comm, flag, status))
TIMED(Mprobe, (int from, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status),
      (from, tag, comm, message, status))
TIMED(Mrecv, (void *data, int n, MPI_Datatype type, MPI_Message *message, MPI_Status *status),
      (data, n, type, message, status))

TIMED(Start, (MPI_Request *request), (request))
TIMED(Startall, (int n, MPI_Request *all), (n, all))
TIMED(Wait, (MPI_Request *request, MPI_Status *status), (request, status))
TIMED(Waitall, (int n, MPI_Request *all, MPI_Status *statuses), (n, all, statuses))
TIMED(Waitany, (int n, MPI_Request *all, int *which, MPI_Status *status), (n, all, which, status))
TIMED(Waitsome, (int n, MPI_Request *all, int *count, int *which, MPI_Status *statuses),
      (n, all, count, which, statuses))
TIMED(Test, (MPI_Request *request, int *flag, MPI_Status *status), (request, flag, status))
TIMED(Testall, (int n, MPI_Request *all, int *flag, MPI_Status *statuses), (n, all, flag, statuses))
TIMED(Testany, (int n, MPI_Request *all, int *which, int *flag, MPI_Status *status), (n, all, which, flag, status))
TIMED(Testsome, (int n, MPI_Request *all, int *count, int *which, MPI_Status *statuses),
      (n, all, count, which, statuses))

TIMED(Barrier, (MPI_Comm comm), (comm))
TIMED(Ibarrier, (MPI_Comm comm, MPI_Request *request), (comm, request))
TIMED(Bcast, (void *data, int n, MPI_Datatype type, int root, MPI_Comm comm), (data, n, type, root, comm))
TIMED(Reduce, (const void *out, void *in, int n, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
      (out, in, n, type, op, root, comm))

#define COMBINES(name)                                                                                         \
    TIMED(name, (const void *out, void *in, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm),               \
          (out, in, n, type, op, comm))

COMBINES(Allreduce)
COMBINES(Scan)
COMBINES(Exscan)
COMBINES(Reduce_scatter_block)
TIMED(Iallreduce,
      (const void *out, void *in, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *request),
      (out, in, n, type, op, comm, request))
TIMED(Reduce_scatter,
      (const void *out, void *in, const int *n, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
      (out, in, n, type, op, comm))

#define EXCHANGES(name)                                                                                        \
    TIMED(name,                                                                                                \
          (const void *out, int n_out, MPI_Datatype type_out, void *in, int n_in, MPI_Datatype type_in,        \
           MPI_Comm comm),                                                                                     \
          (out, n_out, type_out, in, n_in, type_in, comm))
#define GATHERS(name)                                                                                          \
    TIMED(name,                                                                                                \
          (const void *out, int n_out, MPI_Datatype type_out, void *in, int n_in, MPI_Datatype type_in,        \
           int root, MPI_Comm comm),                                                                           \
          (out, n_out, type_out, in, n_in, type_in, root, comm))

EXCHANGES(Allgather)
EXCHANGES(Alltoall)
GATHERS(Gather)
GATHERS(Scatter)
TIMED(Gatherv,
      (const void *out, int n_out, MPI_Datatype type_out, void *in, const int *n_in, const int *starts,
       MPI_Datatype type_in, int root, MPI_Comm comm),
      (out, n_out, type_out, in, n_in, starts, type_in, root, comm))
TIMED(Scatterv,
      (const void *out, const int *n_out, const int *starts, MPI_Datatype type_out, void *in, int n_in,
       MPI_Datatype type_in, int root, MPI_Comm comm),
      (out, n_out, starts, type_out, in, n_in, type_in, root, comm))
TIMED(Allgatherv,
      (const void *out, int n_out, MPI_Datatype type_out, void *in, const int *n_in, const int *starts,
       MPI_Datatype type_in, MPI_Comm comm),
      (out, n_out, type_out, in, n_in, starts, type_in, comm))
TIMED(Alltoallv,
      (const void *out, const int *n_out, const int *starts_out, MPI_Datatype type_out, void *in,
       const int *n_in, const int *starts_in, MPI_Datatype type_in, MPI_Comm comm),
      (out, n_out, starts_out, type_out, in, n_in, starts_in, type_in, comm))
