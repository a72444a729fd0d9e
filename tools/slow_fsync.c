/* Makes fsync and fdatasync slow, as a disk that is busy. Preloaded into programs by tools/stress.py.
 *
 * It does not show what a loss of power leaves: everything is written as without it.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const struct timespec DELAY = {0, 20 * 1000 * 1000}; /* ns */

int fsync(int file)
{
	nanosleep(&DELAY, NULL);
	return syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
	nanosleep(&DELAY, NULL);
	return syscall(SYS_fdatasync, file);
}
