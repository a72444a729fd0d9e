#!/bin/sh
# Fixed addresses of the RDMA interfaces, for images without the agent's plugin. Runs at every boot, and by hand.
# Interface i has, in the i-th range of the size of the private subnet, the same offset as the host in that subnet.
# Data: /etc/gpucluster/node.conf. Result (state, then message): /run/gpucluster/rdma-addresses.
# shellcheck disable=SC2154 # private_subnet, rdma_cidr and rdma_interfaces come from the data
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
OUTCOME=/run/gpucluster/rdma-addresses

end() { # state words...
    state=$1
    shift
    mkdir -p "${OUTCOME%/*}"
    printf '%s\n%s\n' "$state" "$*" > "$OUTCOME"
    echo "RDMA addresses: $state: $*"
    [ "$state" != failed ] || exit 1
    exit 0
}

number() { # address
    # shellcheck disable=SC2086
    (IFS=. && set -f && set -- $1 && echo $((($1 << 24) + ($2 << 16) + ($3 << 8) + $4)))
}

dotted() { # number
    echo "$(($1 >> 24 & 255)).$(($1 >> 16 & 255)).$(($1 >> 8 & 255)).$(($1 & 255))"
}

address() { # index-of-interface address-of-host
    size=$((1 << (32 - ${private_subnet#*/})))
    place=$(($(number "$2") - $(number "${private_subnet%/*}")))
    dotted $(($(number "${rdma_cidr%/*}") + $1 * size + place))
}

inside() { # address: succeeds if it is in the private subnet
    place=$(($(number "$1") - $(number "${private_subnet%/*}")))
    [ "$place" -ge 0 ] && [ "$place" -lt $((1 << (32 - ${private_subnet#*/}))) ]
}

primary() { # the host's address in the private subnet
    ip -4 -o address show | awk '{ sub("/.*", "", $4); print $4 }' | while read -r found; do
        if inside "$found"; then
            echo "$found"
            break
        fi
    done
}

# Images use different names: enp12s0f0, enp12s0f0np0, rdma0. The PCI address, part of the first form, is the same.
interface() { # name
    if [ -e "/sys/class/net/$1" ]; then
        echo "$1"
        return
    fi
    place=$(echo "$1" | sed -n 's/^enp\([0-9]*\)s\([0-9]*\)f\([0-9]*\)$/\1 \2 \3/p')
    [ -n "$place" ] || return 0
    # shellcheck disable=SC2086
    for found in "/sys/bus/pci/devices/$(printf '0000:%02x:%02x.%d' $place)"/net/*; do
        [ ! -e "$found" ] || echo "${found##*/}"
    done
}

addresses_of() { # interface
    ip -4 -o address show dev "$1" scope global | awk '{ print $4 }'
}

manager() {
    if grep -q '^VERSION_ID="\?7' /etc/os-release && [ -d /etc/sysconfig/network-scripts ]; then
        echo ifcfg
    elif systemctl is-active --quiet NetworkManager; then
        echo NetworkManager
    elif [ -d /etc/netplan ] && command -v netplan > /dev/null; then
        echo netplan
    elif systemctl is-active --quiet systemd-networkd; then
        echo networkd
    else
        echo none
    fi
}

write() { # file: standard input is its text
    mkdir -p "${1%/*}"
    (umask 077 && cat > "$1.new")
    chmod "${2:-600}" "$1.new"
    mv "$1.new" "$1"
}

file_of() { # manager interface: the manager's configuration file of it
    case $1 in
        ifcfg) echo "/etc/sysconfig/network-scripts/ifcfg-$2" ;;
        NetworkManager) echo "/etc/NetworkManager/system-connections/gpucluster-$2.nmconnection" ;;
        netplan) echo "/etc/netplan/60-gpucluster-$2.yaml" ;;
        networkd) echo "/etc/systemd/network/60-gpucluster-$2.network" ;;
    esac
}

keep() { # manager interface address/prefix: configures the network manager to keep this address and set no other
    file=$(file_of "$1" "$2")
    case $1 in
        ifcfg)
            write "$file" 644 << END
DEVICE=$2
TYPE=Ethernet
BOOTPROTO=none
IPADDR=${3%/*}
PREFIX=${3#*/}
DEFROUTE=no
IPV6INIT=no
ONBOOT=yes
NM_CONTROLLED=no
END
            ;;
        NetworkManager)
            write "$file" << END
[connection]
id=gpucluster-$2
type=ethernet
interface-name=$2
autoconnect-priority=100
[ipv4]
method=manual
address1=$3
never-default=true
[ipv6]
method=disabled
END
            nmcli connection load "$file" || :
            nmcli --wait 20 connection up "gpucluster-$2" || :
            ;;
        netplan)
            write "$file" << END
network: {version: 2, ethernets: {$2: {addresses: [$3], dhcp4: false, dhcp6: false, link-local: [], optional: true}}}
END
            ;;
        networkd)
            write "$file" 644 << END
[Match]
Name=$2
[Link]
RequiredForOnline=no
[Network]
Address=$3
DHCP=no
IPv6AcceptRA=no
LinkLocalAddressing=no
END
            networkctl reload || :
            ;;
    esac
}

# A host has many interfaces in one fabric: each answers ARP for its own address only, and replies may use another one.
tune() { # interface
    for setting in ipv4/conf/$1/rp_filter=2 ipv4/conf/$1/arp_ignore=2 ipv4/conf/$1/arp_announce=1 \
        ipv6/conf/$1/disable_ipv6=1; do
        file=/proc/sys/net/${setting%=*}
        [ ! -e "$file" ] || echo "${setting#*=}" > "$file" || return 1
    done
}

give() { # interface address/prefix
    has=$(addresses_of "$1")
    if [ -n "$has" ] && [ "$has" != "$2" ]; then
        # Another address belongs to the agent's plugin and is kept; or it came with the disk of another host.
        file=$(file_of "$kept_by" "$1")
        if [ ! -e "$file" ]; then
            others=$((others + 1))
            return
        fi
        has=''
        rm -f "$file"
        ip -4 address flush dev "$1"
    fi
    [ -n "$has" ] || keep "$kept_by" "$1" "$2" || return 1
    tune "$1" || return 1
    ip link set dev "$1" up || return 1
    # Not `add`: the manager may have set it already.
    [ "$(addresses_of "$1")" = "$2" ] || ip address replace "$2" dev "$1" || return 1
    given=$((given + 1))
}

# A driver may take a while to show its interfaces; in a container, which has none of its own, it never does.
await_interfaces() {
    waited=0
    ! systemd-detect-virt --container --quiet || waited=30
    while [ "$waited" -lt 30 ]; do
        missing=''
        for name in $rdma_interfaces; do [ -n "$(interface "$name")" ] || missing=$name; done
        [ -n "$missing" ] || break
        sleep 1
        waited=$((waited + 1))
    done
}

main() {
    # shellcheck source=/dev/null
    . /etc/gpucluster/node.conf
    host=$(primary)
    [ -n "$host" ] || end failed "the host has no address in $private_subnet, which RDMA addresses are computed from"
    kept_by=$(manager)
    await_interfaces
    index=0 given=0 others=0 missing=''
    for name in $rdma_interfaces; do
        device=$(interface "$name")
        if [ -n "$device" ]; then
            give "$device" "$(address "$index" "$host")/${private_subnet#*/}" ||
                end failed "$device could not be given its address"
        else
            missing="$missing $name"
        fi
        index=$((index + 1))
    done
    [ $((given + others)) -gt 0 ] || end absent "none of the $index RDMA interfaces is there: $rdma_interfaces"
    [ -z "$missing" ] || end failed "of $index RDMA interfaces these are not there:$missing"
    end addressed "interfaces: $given of $index, $others with addresses of others, kept by: $kept_by"
}

# Tests source this file for its functions.
case ${0##*/} in *rdma-addresses*) main ;; esac
