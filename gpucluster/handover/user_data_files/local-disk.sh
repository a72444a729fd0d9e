#!/bin/sh
# The node's own NVMe drives as one xfs file system. Runs at every boot, and may be run by hand at any time: an existing
# file system is mounted, and only blank drives are ever written to. No tool is called with a force option.
# Data: /etc/gpucluster/node.conf. Result (state, then message): /run/gpucluster/local-disk.
# shellcheck disable=SC2154 # the variables that begin with local_disk come from the data
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
OUTCOME=/run/gpucluster/local-disk

end() { # state words...
    state=$1
    shift
    mkdir -p "${OUTCOME%/*}"
    printf '%s\n%s\n' "$state" "$*" > "$OUTCOME"
    echo "local disk: $state: $*"
    [ "$state" != failed ] || exit 1
    exit 0
}
fail() { end failed "$@"; }

run() { # command...
    echo "+ $*"
    words=$("$@" 2>&1 < /dev/null) || fail "$*: $(echo "$words" | tail -n 3 | tr '\n' ' ')"
}

# Not with cloud-init's `packages`: that fetches the package index at each first boot, even with nothing to install.
need() { # program package
    command -v "$1" > /dev/null && return
    if command -v apt-get > /dev/null; then
        words=$(apt-get -q update 2>&1 && DEBIAN_FRONTEND=noninteractive apt-get -qy -o DPkg::Lock::Timeout=300 install \
            --no-install-recommends "$2" 2>&1) || :
    else
        words=$(yum -qy install "$2" 2>&1) || :
    fi
    command -v "$1" > /dev/null ||
        fail "$1 is missing, and the package $2 could not be installed: $(echo "$words" | tail -n 2 | tr '\n' ' ')"
}

drives() { # the block devices that the data names, by name or by pattern
    for drive in $local_disk_devices; do [ ! -b "$drive" ] || echo "$drive"; done
}

in_container() { systemd-detect-virt --container --quiet; }

kind_of() { # drive: what is on it
    case $(blkid -p -o value -s TYPE "$1" 2> /dev/null) in
        xfs)
            if [ "$(blkid -p -o value -s LABEL "$1")" = "$local_disk_label" ]; then
                echo ours
                return
            fi
            ;;
        LVM2_member)
            # The devices file of LVM 2.03.12 hides devices that an earlier root file system knew.
            [ -n "$(group_of "$1")" ] || vgimportdevices "$local_disk_group" > /dev/null 2>&1 || :
            if [ "$(group_of "$1")" = "$local_disk_group" ]; then
                echo member
                return
            fi
            ;;
    esac
    if lsblk -nro MOUNTPOINT "$1" | grep -q .; then
        echo used
    elif signature=$(wipefs --no-act "$1" 2>&1) && [ -z "$signature" ]; then
        echo blank
    else
        echo foreign
    fi
}
group_of() { pvs --noheadings -o vg_name "$1" 2> /dev/null | tr -d ' '; }

survey() { # sorts the drives by kind, and counts those that are not in use for something else
    ours='' member='' blank='' foreign='' count=0
    for drive in $(drives); do
        case $(kind_of "$drive") in
            ours) ours="$ours $drive" ;;
            member) member="$member $drive" ;;
            blank) blank="$blank $drive" ;;
            foreign) foreign="$foreign $drive" ;;
            *) continue ;;
        esac
        count=$((count + 1))
    done
}

# A drive that appears late must not be missing from the volume permanently.
survey_patiently() {
    udevadm settle 2> /dev/null || :
    waited=0
    survey
    while [ "$count" -lt "$local_disk_count" ] && [ "$waited" -lt 30 ]; do
        sleep 1
        waited=$((waited + 1))
        survey
    done
}

make_group() { # drives...
    modprobe -q dm_mod 2> /dev/null || :
    grep -qw device-mapper /proc/misc || fail "$# drives need LVM, and this kernel has no device-mapper; nothing was changed"
    run vgcreate "$local_disk_group" "$@"
}

make_volume() { # number of drives
    # A signature at the start of a new volume of our own is left over from a removed volume.
    run lvcreate --yes --wipesignatures y --type striped --stripes "$1" --extents 100%FREE \
        --name "$local_disk_volume" "$local_disk_group"
}

make_file_system() { # device
    need mkfs.xfs xfsprogs
    # -K: the drives are blank, and discarding terabytes takes minutes.
    run mkfs.xfs -q -K -L "$local_disk_label" "$1"
    new=yes
}

striped() { # sets device: the volume over all drives of the group; completes an interrupted creation
    device=/dev/$local_disk_group/$local_disk_volume
    run vgchange --activate y "$local_disk_group"
    [ -n "$(lvs --noheadings "$local_disk_group" 2> /dev/null)" ] || make_volume "$(echo "$member" | wc -w)"
    [ -b "$device" ] || fail "the volume group $local_disk_group has no volume $local_disk_volume; nothing was changed"
    case $(kind_of "$device") in
        ours) ;;
        blank) make_file_system "$device" ;;
        *) fail "$device carries something else than xfs with the label $local_disk_label; nothing was changed" ;;
    esac
}

mounted_there() { awk -v there="$local_disk_mount_path" '$2 == there { source = $1 } END { print source }' /proc/mounts; }

note_in_fstab() {
    entry="LABEL=$local_disk_label $local_disk_mount_path xfs defaults,noatime,nofail 0 0"
    there=$(awk -v there="$local_disk_mount_path" '$1 !~ /^#/ && $2 == there' /etc/fstab)
    case $there in
        '') echo "$entry" >> /etc/fstab ;;
        "LABEL=$local_disk_label "*) ;;
        *) fail "/etc/fstab mounts something else at $local_disk_mount_path: $there" ;;
    esac
}

mount_device() { # device
    mkdir -p "$local_disk_mount_path"
    note_in_fstab
    # systemd may mount it at the same time because of the line in fstab.
    words=$(mount -t xfs -o defaults,noatime "$1" "$local_disk_mount_path" 2>&1) || [ -n "$(mounted_there)" ] ||
        fail "$1 can't be mounted at $local_disk_mount_path: $words"
    if [ -n "$new" ]; then
        # Before other users can: its owner could put files and links where root's containers will be.
        mkdir -m 755 "$local_disk_mount_path/containers"
        # Scratch space for all users, like /tmp. Later changes of this mode are kept.
        chmod 1777 "$local_disk_mount_path"
        restorecon "$local_disk_mount_path" 2> /dev/null || :
    fi
}

main() {
    # shellcheck source=/dev/null
    . /etc/gpucluster/node.conf
    new=''
    case $local_disk_devices in
        *[*?[]*) ! in_container ||
            end absent "in a container, drives that a pattern finds belong to the machine below; none is taken" ;;
    esac
    there=$(mounted_there)
    if [ -n "$there" ]; then
        [ "$(blkid -p -o value -s LABEL "$there" 2> /dev/null)" = "$local_disk_label" ] ||
            fail "$there is mounted at $local_disk_mount_path, and it has not the label $local_disk_label"
        end mounted "$there at $local_disk_mount_path"
    fi
    survey_patiently
    # shellcheck disable=SC2086
    set -- $ours
    if [ "$#" -gt 1 ]; then
        fail "several drives have the label $local_disk_label:$ours; nothing was changed"
    elif [ "$#" -eq 1 ]; then
        device=$1
    elif [ -n "$member" ]; then
        striped
    elif [ -n "$foreign" ]; then
        first=${foreign# }
        fail "not blank, so left alone:$foreign" \
            "($(wipefs --no-act --parsable "${first%% *}" | awk -F, '!/^#/ { print $NF; exit }')); nothing was changed." \
            "Save what is needed, run wipefs --all on each, then $0"
    elif [ -z "$blank" ]; then
        end absent "no drive $local_disk_devices"
    else
        # shellcheck disable=SC2086
        set -- $blank
        # One drive needs no LVM.
        if [ "$#" -eq 1 ]; then
            device=$1
            make_file_system "$device"
        else
            need vgcreate lvm2
            make_group "$@"
            member=$blank
            striped
        fi
    fi
    mount_device "$device"
    end mounted "$device at $local_disk_mount_path, drives: $count of $local_disk_count"
}

# Tests source this file for its functions.
case ${0##*/} in *local-disk*) main ;; esac
