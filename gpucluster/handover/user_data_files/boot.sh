#!/bin/sh
# cloud-init runs this at the end of every boot. The work is done by units, earlier in the boot and before Slurm; here
# they are put into force at the first boot, and what failed becomes an error in cloud-init's own result. That has no
# room for words: they are in /run/gpucluster/boot-errors.
errors=/run/gpucluster/boot-errors
rm -f "$errors"
for name in local-disk rdma-addresses; do
    unit=gpucluster-$name.service
    [ -e "/etc/systemd/system/$unit" ] || continue
    systemctl enable --quiet "$unit"
    systemctl start "$unit" && continue
    mkdir -p "${errors%/*}"
    words=$(tail -n 1 "/run/gpucluster/$name" 2> /dev/null) || words="journalctl -u $unit"
    echo "$unit failed: $words" | tee -a "$errors" >&2
done
[ ! -e "$errors" ]
