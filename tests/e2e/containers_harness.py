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
    """What a batch job's container step says, one line for each node."""
    site.as_alice("cat > job.sh", stdin=f"#!/bin/bash\n{LOOK}\n")
    job = site.as_alice(f"rm -f out.txt; sbatch --parsable --ntasks-per-node=1 -o out.txt {' '.join(options)} job.sh")
    site.over(job)
    # The double has no home in its containers, and Slurm says so.
    return sorted(line for line in site.as_alice("cat out.txt").splitlines() if line.startswith(MARKER))
