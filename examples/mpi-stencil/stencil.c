/* Heat on a ring of ranks: each step updates the own cells, exchanges the two at the ends with both neighbors,
 * and adds up the change over all ranks. Prints what it measured itself.
 *
 *   mpicc -O2 stencil.c -o stencil
 *   mpirun -n 4 ./stencil            all ranks have as many cells
 *   mpirun -n 4 ./stencil 2          rank 2 has half as many again
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { CELLS = 2000000, STEPS = 200 };

static double update(const double *old, double *new, int cells)
{
    double change = 0;
    for (int i = 1; i <= cells; i++) {
        new[i] = old[i] + 0.25 * (old[i - 1] - 2 * old[i] + old[i + 1]);
        change += fabs(new[i] - old[i]);
    }
    return change;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    int cells = argc > 1 && atoi(argv[1]) == rank ? CELLS * 3 / 2 : CELLS;
    double *old = calloc(cells + 2, sizeof *old), *new = calloc(cells + 2, sizeof *new);
    if (!old || !new) MPI_Abort(MPI_COMM_WORLD, 1);
    if (rank == 0) old[1] = 1e6;

    double computed = 0, total = 0, begin = MPI_Wtime();
    for (int step = 0; step < STEPS; step++) {
        MPI_Request requests[4];
        MPI_Irecv(&old[0], 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(&old[cells + 1], 1, MPI_DOUBLE, right, 1, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(&old[cells], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(&old[1], 1, MPI_DOUBLE, left, 1, MPI_COMM_WORLD, &requests[3]);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        double start = MPI_Wtime(), change = update(old, new, cells);
        computed += MPI_Wtime() - start;
        MPI_Allreduce(&change, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        double *swap = old;
        old = new;
        new = swap;
    }
    double wall = MPI_Wtime() - begin;

    double own[2] = {1e3 * wall / STEPS, 1e3 * computed / STEPS}, *every = NULL;
    if (rank == 0) every = malloc(2 * ranks * sizeof *every);
    MPI_Gather(own, 2, MPI_DOUBLE, every, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int i = 0; rank == 0 && i < ranks; i++)
        printf("rank %d: %.3f ms a step, %.3f ms of it computing\n", i, every[2 * i], every[2 * i + 1]);
    MPI_Finalize();
    return 0;
}
