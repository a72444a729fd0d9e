"""Container steps on a local cloud: a mirror with the doubles of Enroot and Pyxis, an image, and steps in it.

What the doubles do not prove is in tests/doubles: they stand for the release files alone.
"""

from __future__ import annotations

from tests.doubles.enroot import packages as enroot
from tests.doubles.pyxis import packages as pyxis
from tests.e2e.site_harness import Site
from tests.mirror import Mirror

PLUGIN = "/usr/local/lib/slurm/spank_pyxis.so"
# What is in the image, and on no host.
MARKER = "inside"
LOOK = "srun --container-image=$HOME/box.sqsh /bin/sh -c 'read word < /marker; echo $word $SLURMD_NODENAME'"


def mirror(site: Site, *pyxis_versions: str) -> None:
    """A folder `mirror` beside the cluster.yml, with Enroot and these versions of Pyxis."""
    made = Mirror(site.folder / "mirror")
    enroot.add(made, enroot.VERSION)
    for version in pyxis_versions:
        pyxis.add(made, version)


def image(site: Site) -> None:
    """A squashfs file of alice's own: a shell and a marker."""
    libraries = "$(ldd /bin/sh | grep -o '/[^ ]*')"
    site.as_alice(
        f"rm -rf root && mkdir -p root/bin root/tmp && cp --parents -L {libraries} root && cp -L /bin/sh root/bin/ && "
        f"echo {MARKER} > root/marker && mksquashfs root box.sqsh -noappend -quiet -no-progress > /dev/null"
    )


def batch(site: Site, *options: str) -> list[str]:
    """What a batch job's container step reports, one line for each node."""
    site.as_alice("cat > job.sh", stdin=f"#!/bin/bash\n{LOOK}\n")
    job = site.as_alice(f"rm -f out.txt; sbatch --parsable --ntasks-per-node=1 -o out.txt {' '.join(options)} job.sh")
    site.over(job)
    # The double has no home in its containers, and Slurm reports it.
    return sorted(line for line in site.as_alice("cat out.txt").splitlines() if line.startswith(MARKER))


# Makes an image of a host's own Open MPI, its ssh and a program of ours. It prints the image's id.
MPI_IMAGE = r"""
set -e
umask 022
work=$(mktemp -d)
trap 'rm -rf $work' EXIT
cat > $work/ranks.c <<'C'
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int rank, size, sum;
    char name[256];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    gethostname(name, sizeof name);
    printf("rank %d of %d on %s: sum %d\n", rank, size, name, sum);
    return MPI_Finalize();
}
C
root=$work/root
mkdir -p $root/usr/bin $root/etc $root/tmp $root/root $root/var/empty
mpicc -o $root/usr/bin/ranks $work/ranks.c
{
    for name in sh bash mkdir env sed ssh mpirun prterun prte prted; do command -v $name; done
    find /usr/sbin/sshd /usr/lib/openssh -name 'sshd*'
    find /usr/lib/*/openmpi* /usr/lib/*/pmix* -name '*.so*'
    find /usr/share/openmpi /usr/share/p*rte* /usr/share/pmix* /etc/openmpi -type f 2> /dev/null || true
} > $work/files
{ cat $work/files; echo $root/usr/bin/ranks; } | xargs ldd 2> /dev/null | grep -o '/[^ :]*' | grep '\.so' | sort -u \
    >> $work/files
tar -C / --dereference --hard-dereference -c -T $work/files 2> /dev/null | tar -C $root -x
ln -s usr/bin $root/bin
printf 'root:x:0:0::/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n' > $root/etc/passwd
printf 'root:x:0:\nnogroup:x:65534:\n' > $root/etc/group
tar -C $root --owner=0 --group=0 -c . | docker import - local/mpi
"""
