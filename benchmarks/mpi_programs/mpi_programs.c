/* Programs of MPI that print their own truth, with and without a planted cause.
 *
 *   mpi_programs PATTERN [--steps N] [--ms MS] [--late RANK] [--serial MS] [--extra MS] [--messages N] [--bytes N]
 *
 * "Compute" sleeps, so that ranks that share a core do not disturb each other. Each rank prints the wall time
 * and the time outside MPI of a step.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int rank, ranks, steps, late, messages, bytes;
static double ms, extra, serial, computed;
static char *one, *other;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void work(double length)
{
    double start = now();
    struct timespec t = {(long)(length / 1e3), (long)((length - 1e3 * (long)(length / 1e3)) * 1e6)};
    nanosleep(&t, 0);
    computed += now() - start;
}

static double own(double length) { return length + (rank == late ? extra : 0); }

static double option(int count, char **given, const char *name, double otherwise)
{
    for (int i = 1; i + 1 < count; i++)
        if (!strcmp(given[i], name)) return atof(given[i + 1]);
    return otherwise;
}

/* A ring: receives and sends are posted, the interior is computed, then the halo. */
static void halo(int reduces)
{
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    MPI_Request q[4];
    MPI_Irecv(one, bytes, MPI_BYTE, left, 1, MPI_COMM_WORLD, q);
    MPI_Irecv(one + bytes, bytes, MPI_BYTE, right, 2, MPI_COMM_WORLD, q + 1);
    MPI_Isend(other, bytes, MPI_BYTE, right, 1, MPI_COMM_WORLD, q + 2);
    MPI_Isend(other + bytes, bytes, MPI_BYTE, left, 2, MPI_COMM_WORLD, q + 3);
    work(own(.75 * ms));
    MPI_Waitall(4, q, MPI_STATUSES_IGNORE);
    work(.25 * ms);
    double x = 1, y;
    if (reduces) MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* Blocks pass from the first rank to the last. */
static void wavefront(void)
{
    for (int block = 0; block < 4; block++) {
        if (rank) MPI_Recv(one, bytes, MPI_BYTE, rank - 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        work(own(ms / 4) - (rank == late ? .75 * extra : 0));
        if (rank < ranks - 1) MPI_Send(other, bytes, MPI_BYTE, rank + 1, 3, MPI_COMM_WORLD);
    }
}

/* The first rank serves tasks to whoever asks; a step ends when all are done. */
static void master(int step)
{
    int tasks = 3 * (ranks - 1), task = 0, asks = 0;
    MPI_Bcast(one, 8, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (!rank) {
        for (int served = 0; served < tasks + ranks - 1; served++) {
            MPI_Status status;
            MPI_Recv(&asks, 1, MPI_INT, MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, &status);
            if (serial > 0 && served < tasks) work(serial);
            task = served < tasks ? 1 + served : 0;
            MPI_Send(&task, 1, MPI_INT, status.MPI_SOURCE, 5, MPI_COMM_WORLD);
        }
    } else {
        do {
            MPI_Send(&rank, 1, MPI_INT, 0, 4, MPI_COMM_WORLD);
            MPI_Recv(&task, 1, MPI_INT, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (task) work(own(ms / 3) * (1 + .1 * ((task + step) % 3 - 1)));
        } while (task);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Transposes in rows and columns of a grid of ranks. */
static void transpose(MPI_Comm row, MPI_Comm column)
{
    int r, c;
    MPI_Comm_size(row, &r);
    MPI_Comm_size(column, &c);
    work(own(ms / 2));
    MPI_Alltoall(one, bytes / r, MPI_BYTE, other, bytes / r, MPI_BYTE, row);
    work(ms / 2);
    MPI_Alltoall(other, bytes / c, MPI_BYTE, one, bytes / c, MPI_BYTE, column);
}

/* Two reductions a step; before the second one, the first rank may work alone. */
static void reductions(void)
{
    double x[64] = {1}, y[64];
    work(own(.6 * ms));
    MPI_Allreduce(x, y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (serial > 0) {
        if (!rank) work(serial);
        MPI_Bcast(x, 64, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    }
    work(.4 * ms);
    MPI_Reduce(x, y, 8, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Bcast(y, 8, MPI_DOUBLE, 0, MPI_COMM_WORLD);
}

/* Each rank sends a buffer to the next one in so many messages. */
static void pieces(void)
{
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks, size = bytes / messages;
    work(own(ms));
    for (int i = 0; i < messages; i++)
        MPI_Sendrecv(one + i * size, size, MPI_BYTE, right, 6, other + i * size, size, MPI_BYTE, left, 6,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Even ranks send, odd ones receive; a receiver may compute first. */
static void rendezvous(void)
{
    if (rank % 2 == 0) {
        work(.3 * ms);
        MPI_Ssend(one, bytes, MPI_BYTE, rank + 1, 7, MPI_COMM_WORLD);
        work(.7 * ms);
    } else {
        work(.3 * ms + extra);
        MPI_Recv(one, bytes, MPI_BYTE, rank - 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        work(.7 * ms - extra);
    }
    double x = 1, y;
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

int main(int count, char **given)
{
    MPI_Init(&count, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *pattern = count > 1 ? given[1] : "halo";
    steps = option(count, given, "--steps", 40);
    ms = option(count, given, "--ms", 8);
    late = option(count, given, "--late", -1);
    extra = option(count, given, "--extra", 0);
    serial = option(count, given, "--serial", 0);
    messages = option(count, given, "--messages", 1);
    bytes = option(count, given, "--bytes", 32768);
    one = calloc(2, bytes);
    other = calloc(2, bytes);
    MPI_Comm row, column;
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &row);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &column);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now();
    for (int step = 0; step < steps; step++) {
        if (!strcmp(pattern, "halo")) halo(1);
        else if (!strcmp(pattern, "ring")) halo(0);
        else if (!strcmp(pattern, "wavefront")) wavefront();
        else if (!strcmp(pattern, "master")) master(step);
        else if (!strcmp(pattern, "transpose")) transpose(row, column);
        else if (!strcmp(pattern, "reductions")) reductions();
        else if (!strcmp(pattern, "pieces")) pieces();
        else if (!strcmp(pattern, "rendezvous")) rendezvous();
    }
    double wall = now() - start;
    printf("TRUTH rank %d wall_ms_per_step %.4f compute_ms_per_step %.4f\n", rank, 1e3 * wall / steps,
           1e3 * computed / steps);
    fflush(stdout);
    MPI_Finalize();
}
