#!/bin/sh
# cloud-init runs this at the end of every boot. Systemd units do the work, earlier in the boot and before Slurm. This
# script enables them at the first boot and turns their failures into an error of cloud-init's own result. The result
# has no field for a message, so the messages are in /run/gpucluster/boot-errors.
errors=/run/gpucluster/boot-errors
rm -f "$errors"
for name in metadata firewall local-disk rdma-addresses; do
    unit=gpucluster-$name.service
    [ -e "/etc/systemd/system/$unit" ] || continue
    systemctl enable --quiet "$unit"
    systemctl start "$unit" && continue
    mkdir -p "${errors%/*}"
    words=$(tail -n 1 "/run/gpucluster/$name" 2> /dev/null) || words="journalctl -u $unit"
    echo "$unit failed: $words" | tee -a "$errors" >&2
done
[ ! -e "$errors" ]
