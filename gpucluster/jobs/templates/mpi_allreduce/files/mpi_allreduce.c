/* An all-reduce of MPI: how fast it is, and whether every sum is right. Prints one JSON object a line.
 *
 *     mpi_allreduce RANKS SMALLEST LARGEST ITERATIONS
 *
 * RANKS: how many there must be. Without a common way to find each other (PMIx), each rank is alone, and its result looks
 * good; so another number is an error. SMALLEST, LARGEST: bytes of a message; each size is twice the one before.
 * Ends with 0, with 2 if something is wrong, with 64 for wrong arguments. MPI 2.2 and later.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BAD_ARGUMENTS 64
#define BAD_RESULT 2
#define WARM_UP 2
/* Whole numbers up to 2^53 are exact in a double: the sums of all ranks stay far below. */
#define VALUES 1009

static double value(long index, int rank) { return (double)((index + 31L * rank) % VALUES); }

/* How many different hosts the ranks are on; right in rank 0. */
static int count_hosts(int rank, int size)
{
    char name[MPI_MAX_PROCESSOR_NAME] = "";
    char *all = NULL;
    int length, hosts = 0;
    MPI_Get_processor_name(name, &length);
    if (rank == 0 && (all = malloc((size_t)size * MPI_MAX_PROCESSOR_NAME)) == NULL)
        MPI_Abort(MPI_COMM_WORLD, BAD_RESULT);
    MPI_Gather(name, MPI_MAX_PROCESSOR_NAME, MPI_CHAR, all, MPI_MAX_PROCESSOR_NAME, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int one = 0; rank == 0 && one < size; one++) {
        int known = 0;
        for (int other = 0; other < one && !known; other++)
            known = !strcmp(all + (size_t)one * MPI_MAX_PROCESSOR_NAME, all + (size_t)other * MPI_MAX_PROCESSOR_NAME);
        hosts += !known;
    }
    free(all);
    return hosts;
}

/* The number of wrong sums, at all ranks together. */
static long count_wrong(const double *sums, long count, int size)
{
    long wrong = 0, all = 0;
    for (long index = 0; index < count; index++) {
        double right = 0;
        for (int rank = 0; rank < size; rank++)
            right += value(index, rank);
        wrong += sums[index] != right;
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    int rank, size, hosts;
    long wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int ranks = argc == 5 ? atoi(argv[1]) : 0;
    long smallest = argc == 5 ? atol(argv[2]) : 0, largest = argc == 5 ? atol(argv[3]) : 0;
    int iterations = argc == 5 ? atoi(argv[4]) : 0;
    if (ranks < 1 || smallest < (long)sizeof(double) || largest < smallest || iterations < 1) {
        if (rank == 0)
            fprintf(stderr, "mpi_allreduce RANKS SMALLEST LARGEST ITERATIONS: sizes in bytes, 8 or more\n");
        MPI_Finalize();
        return BAD_ARGUMENTS;
    }
    hosts = count_hosts(rank, size);
    if (size != ranks) {
        if (rank == 0)
            printf("{\"ranks\": %d, \"wanted\": %d, \"hosts\": %d}\n", size, ranks, hosts);
        MPI_Finalize();
        return BAD_RESULT;
    }
    long most = largest / (long)sizeof(double);
    double *mine = malloc((size_t)most * sizeof(double)), *sums = malloc((size_t)most * sizeof(double));
    if (mine == NULL || sums == NULL) {
        fprintf(stderr, "mpi_allreduce: rank %d: no memory for two messages of %ld bytes\n", rank, largest);
        MPI_Abort(MPI_COMM_WORLD, BAD_RESULT);
    }
    for (long index = 0; index < most; index++)
        mine[index] = value(index, rank);
    for (long bytes = smallest; bytes <= largest; bytes *= 2) {
        long count = bytes / (long)sizeof(double);
        double began, mean, slowest;
        memset(sums, 0, (size_t)count * sizeof(double));
        for (int each = 0; each < WARM_UP; each++)
            MPI_Allreduce(mine, sums, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        began = MPI_Wtime();
        for (int each = 0; each < iterations; each++)
            MPI_Allreduce(mine, sums, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        mean = (MPI_Wtime() - began) / iterations;
        MPI_Allreduce(&mean, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        long bad = count_wrong(sums, count, size);
        wrong += bad;
        if (rank == 0) {
            double gigabytes = (double)count * sizeof(double) / slowest / 1e9;
            /* As nccl-tests define it: what the hardware must have carried. */
            printf("{\"bytes\": %ld, \"seconds\": %.9f, \"algbw\": %.6f, \"busbw\": %.6f, \"wrong\": %ld}\n",
                   count * (long)sizeof(double), slowest, gigabytes, gigabytes * 2 * (size - 1) / size, bad);
            fflush(stdout);
        }
    }
    if (rank == 0)
        printf("{\"ranks\": %d, \"wanted\": %d, \"hosts\": %d, \"wrong\": %ld}\n", size, ranks, hosts, wrong);
    free(mine);
    free(sums);
    MPI_Finalize();
    return wrong ? BAD_RESULT : 0;
}
