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

/* A ring in which each rank sends to the next one and receives from the last one in one call. */
static void exchange(void)
{
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    work(own(ms));
    MPI_Sendrecv(one, bytes, MPI_BYTE, right, 8, other, bytes, MPI_BYTE, left, 8, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

/* Each rank needs what the ranks before it have; then all meet. */
static void prefix(int exclusive)
{
    double x = 1, y;
    work(own(ms));
    if (exclusive) MPI_Exscan(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    else MPI_Scan(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* Each rank adds to a counter of the first one under a lock, and all meet. */
static void locked(MPI_Win window)
{
    long one_more = 1;
    work(own(ms));
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
    MPI_Accumulate(&one_more, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, window);
    MPI_Win_unlock(0, window);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Each rank puts into the next one between two fences. */
static void epoch(MPI_Win window)
{
    MPI_Win_fence(0, window);
    MPI_Put(one, bytes, MPI_BYTE, (rank + 1) % ranks, 64, bytes, MPI_BYTE, window);
    work(own(ms));
    MPI_Win_fence(0, window);
}

/* The last rank puts into each other one, which exposes its window; a target may be late to do so. */
static void exposure(MPI_Win window, MPI_Group origin, MPI_Group targets)
{
    if (rank == ranks - 1) {
        work(.5 * ms);
        MPI_Win_start(targets, 0, window);
        for (int target = 0; target < ranks - 1; target++)
            MPI_Put(one, 4096, MPI_BYTE, target, 64, 4096, MPI_BYTE, window);
        MPI_Win_complete(window);
        work(.5 * ms);
    } else {
        work(own(.5 * ms));
        MPI_Win_post(origin, 0, window);
        work(.5 * ms);
        MPI_Win_wait(window);
    }
    double x = 1, y;
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* A halo of requests that are set up once. */
static void persistent(MPI_Request *q)
{
    MPI_Startall(4, q);
    work(own(.75 * ms));
    MPI_Waitall(4, q, MPI_STATUSES_IGNORE);
    work(.25 * ms);
}

/* A barrier that ranks begin, and wait for when they have worked. */
static void ibarrier(void)
{
    MPI_Request q;
    work(own(.5 * ms));
    MPI_Ibarrier(MPI_COMM_WORLD, &q);
    work(.5 * ms);
    MPI_Wait(&q, MPI_STATUS_IGNORE);
}

/* Neighbours on a ring that a topology describes. */
static void neighbors(MPI_Comm ring)
{
    double x = 1, y;
    work(own(ms));
    MPI_Neighbor_alltoall(one, bytes / 2, MPI_BYTE, other, bytes / 2, MPI_BYTE, ring);
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* Neighbours in a line exchange in pairs: first even and odd ranks, then odd and even ones. */
static void odd_even(void)
{
    for (int phase = 0; phase < 2; phase++) {
        int partner = rank % 2 == phase ? rank + 1 : rank - 1;
        work(.5 * (phase ? ms : own(ms) + (rank == late ? extra : 0)));
        if (partner >= 0 && partner < ranks)
            MPI_Sendrecv(one, bytes, MPI_BYTE, partner, 9, other, bytes, MPI_BYTE, partner, 9, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
    }
}

/* A sum on a tree of messages, and the result back on it. */
static void tree(void)
{
    work(own(ms));
    int mask = 1;
    for (; mask < ranks && !(rank & mask); mask <<= 1)
        if (rank + mask < ranks)
            MPI_Recv(one, 64, MPI_BYTE, rank + mask, 10, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank) {
        MPI_Send(one, 64, MPI_BYTE, rank - mask, 10, MPI_COMM_WORLD);
        MPI_Recv(one, 64, MPI_BYTE, rank - mask, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    for (mask >>= 1; mask; mask >>= 1)
        if (rank + mask < ranks) MPI_Send(one, 64, MPI_BYTE, rank + mask, 11, MPI_COMM_WORLD);
}

/* Pieces of a buffer pass from the first rank to the last, which all use them; then all meet. */
static void pipelined(void)
{
    work(own(ms));
    for (int piece = 0; piece < 4; piece++) {
        if (rank) MPI_Recv(one, bytes, MPI_BYTE, rank - 1, 12, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank < ranks - 1) MPI_Send(one, bytes, MPI_BYTE, rank + 1, 12, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Pairs of ranks send a message to and fro; then all meet. */
static void pingpong(void)
{
    int partner = rank ^ 1;
    work(own(ms));
    for (int turn = 0; turn < 4; turn++) {
        if ((rank + turn) % 2) MPI_Recv(one, 256, MPI_BYTE, partner, 13, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else MPI_Send(one, 256, MPI_BYTE, partner, 13, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Ranks take the next task from a counter in a window until all are done. */
static void counter(MPI_Win window)
{
    long one_more = 1, task;
    MPI_Barrier(MPI_COMM_WORLD);
    for (;;) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Fetch_and_op(&one_more, &task, MPI_LONG, 0, 8, MPI_SUM, window);
        MPI_Win_unlock(0, window);
        if (task >= 4 * ranks) break;
        work(own(ms / 4));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (!rank) {
        long none = 0;
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Put(&none, 1, MPI_LONG, 0, 8, 1, MPI_LONG, window);
        MPI_Win_unlock(0, window);
    }
}

/* Each half of the ranks gathers on its first rank, which writes a file. */
static void two_phase(MPI_Comm group)
{
    int place;
    MPI_Comm_rank(group, &place);
    work(own(ms));
    MPI_Gather(one, 1024, MPI_BYTE, other, 1024, MPI_BYTE, 0, group);
    if (!place && serial > 0) work(serial);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* All to all with sizes that change from step to step, and repeat after three. */
static void rotating(int step)
{
    int count[64], place[64];
    for (int i = 0; i < ranks; i++) count[i] = 1024 * (1 + step % 3), place[i] = 4096 * i;
    work(own(ms));
    MPI_Alltoallv(one, count, place, MPI_BYTE, other, count, place, MPI_BYTE, MPI_COMM_WORLD);
}

/* The first half of the ranks computes, and hands on to the second half over an intercommunicator. */
static void coupled(MPI_Comm between)
{
    double x = 1, y;
    work(own(ms));
    if (rank < ranks / 2) MPI_Send(one, bytes, MPI_BYTE, rank, 14, between);
    else MPI_Recv(one, bytes, MPI_BYTE, rank - ranks / 2, 14, between, MPI_STATUS_IGNORE);
    MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_SUM, between);
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
    one = calloc(2, bytes + 65536);
    other = calloc(2, bytes + 65536);
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks, last = ranks - 1, around = 1;
    MPI_Comm row, column, ring, half, between;
    MPI_Group everyone, origin, targets;
    MPI_Request q[4];
    MPI_Win window;
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &row);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &column);
    int has_window = strchr("lec", *pattern) && strcmp(pattern, "exchange") && strcmp(pattern, "exscan");
    if (has_window) MPI_Win_create(one, 2 * bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    if (!strcmp(pattern, "neighbors")) MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, &around, 0, &ring);
    if (!strcmp(pattern, "coupled")) {
        MPI_Comm_split(MPI_COMM_WORLD, 2 * rank >= ranks, rank, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 2 * rank >= ranks ? 0 : ranks / 2, 15, &between);
    }
    if (!strcmp(pattern, "exposure")) {
        MPI_Comm_group(MPI_COMM_WORLD, &everyone);
        MPI_Group_incl(everyone, 1, &last, &origin);
        MPI_Group_excl(everyone, 1, &last, &targets);
    }
    if (!strcmp(pattern, "persistent")) {
        MPI_Recv_init(other, bytes, MPI_BYTE, left, 1, MPI_COMM_WORLD, q);
        MPI_Recv_init(other + bytes, bytes, MPI_BYTE, right, 2, MPI_COMM_WORLD, q + 1);
        MPI_Send_init(one, bytes, MPI_BYTE, right, 1, MPI_COMM_WORLD, q + 2);
        MPI_Send_init(one + bytes, bytes, MPI_BYTE, left, 2, MPI_COMM_WORLD, q + 3);
    }
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
        else if (!strcmp(pattern, "exchange")) exchange();
        else if (!strcmp(pattern, "scan")) prefix(0);
        else if (!strcmp(pattern, "exscan")) prefix(1);
        else if (!strcmp(pattern, "locked")) locked(window);
        else if (!strcmp(pattern, "epoch")) epoch(window);
        else if (!strcmp(pattern, "exposure")) exposure(window, origin, targets);
        else if (!strcmp(pattern, "persistent")) persistent(q);
        else if (!strcmp(pattern, "ibarrier")) ibarrier();
        else if (!strcmp(pattern, "neighbors")) neighbors(ring);
        else if (!strcmp(pattern, "odd_even")) odd_even();
        else if (!strcmp(pattern, "tree")) tree();
        else if (!strcmp(pattern, "pipelined")) pipelined();
        else if (!strcmp(pattern, "pingpong")) pingpong();
        else if (!strcmp(pattern, "counter")) counter(window);
        else if (!strcmp(pattern, "two_phase")) two_phase(row);
        else if (!strcmp(pattern, "rotating")) rotating(step);
        else if (!strcmp(pattern, "coupled")) coupled(between);
    }
    double wall = now() - start;
    printf("TRUTH rank %d wall_ms_per_step %.4f compute_ms_per_step %.4f\n", rank, 1e3 * wall / steps,
           1e3 * computed / steps);
    fflush(stdout);
    if (has_window) MPI_Win_free(&window);
    for (int i = 0; i < 4 && !strcmp(pattern, "persistent"); i++) MPI_Request_free(q + i);
    MPI_Finalize();
}
