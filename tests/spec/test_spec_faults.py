"""A wrong cluster.yml: each row is one error, the exact place it must be shown at (§), and words that must be in it."""
# A row of the tables is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import document, load, loads
from tests.spec.spec_texts import KEY, LOCAL, MARK, OCI, marked, public_key

SHORT_RSA = public_key("ssh-rsa", b"\1\0\1", b"\0" + b"\xff" * 128)
LIAR = KEY.replace("ssh-ed25519", "ssh-rsa", 1)
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----"

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    # --- types
    "quoted number": ("count: 2", 'count: §"2"', "pools.compute.count", "whole number; got \"2\". Write it without quotes: 2"),
    "word for number": ("count: 2", "count: §two", "pools.compute.count", "whole number"),
    "octal": ("count: 2", "count: §010", "pools.compute.count", "Write it without zeros before it: 10"),
    "sexagesimal": ("gid: 9999", "gid: §1:30", "users.gid", "whole number"),
    "underscores": ("gid: 9999", "gid: §9_876", "users.gid", "whole number"),
    "fraction": ("count: 2", "count: §2.5", "pools.compute.count", "whole number; got 2.5"),
    "huge number": ("count: 2", "count: §99999999999999999999999", "pools.compute.count", "a whole number of fewer digits"),
    "managed by nobody": ("count: 2", "count: 2\n    managed: §true", "pools.compute.managed", "only OKE has node pools that it manages"),
    "large number": ("count: 2", "count: §10001", "pools.compute.count", "at most 10000; got 10001"),
    "negative": ("count: 2", "count: §-1", "pools.compute.count", "at least 0; got -1"),
    "true for number": ("count: 2", "count: §true", "pools.compute.count", "whole number; got true"),
    "yes": ("accounting: true", "accounting: §yes", "slurm.accounting", "true or false; got \"yes\". Write true"),
    "quoted true": ("accounting: true", 'accounting: §"true"', "slurm.accounting", "Write true, without quotes"),
    "off": ("accounting: true", "accounting: §off", "slurm.accounting", "Write false"),
    "one for true": ("accounting: true", "accounting: §1", "slurm.accounting", "true or false; got 1"),
    "number for text": ("group: people", "group: §12", "users.group", 'must be text; got 12. Write it in quotes: "12"'),
    "version of an image": (
        "  memory_gb: 32",
        "  memory_gb: 32\n  image: {operating_system: Debian, version: §24.10}",
        "controller.image.version",
        'got 24.10. Write it in quotes: "24.10"',
    ),
    "text for list": ("[127.0.0.0/8]", "§127.0.0.0/8", "network.ssh_allowed_cidrs", "must be a list; got \"127.0.0.0/8\". Write ["),
    "list for mapping": ("  extra_config: {SchedulerParameters: bf_interval=30}", "  extra_config: §[a]", "slurm.extra_config", "keys with values; got a list"),
    "text for mapping": ("  timezone: UTC", "  §UTC", "software", "must be keys with values; got \"UTC\". Keys: timezone"),
    "mapping for text": ("name: demo", "name: §{a: b}", "name", "must be text; got keys with values"),
    "nothing": ("name: demo", "name:§", "name", "has no value"),
    "nothing for a section": ("  timezone: UTC", "", "", ""),
    "null for number": ("count: 2", "count: §null", "pools.compute.count", "has no value"),
    # --- GPUs of this machine
    "gpus of nobody": ("  provider: local", "  provider: local\n  local: {gpus: §some}", "cloud.local.gpus", "emulated"),
    # --- keys
    "unknown key": ("count: 2", "count: 2\n    §max_cout: 3", "pools.compute.max_cout", "unknown key. Did you mean max_count"),
    "unknown section": ("software:", "§sofware:", "sofware", "unknown key. Did you mean software?"),
    "key of another section": ("name: demo", "name: demo\n§vcn_cidr: 10.0.0.0/16", "vcn_cidr", "It belongs under network"),
    "key of the top level": ("    count: 2", "    count: 2\n    §software: {}", "pools.compute.software", "belongs under the top level"),
    "unknown without likeness": ("  timezone: UTC", "  timezone: UTC\n  §zzz: 1", "software.zzz", "unknown key. Known here: timezone"),
    "missing cloud": ("cloud:\n  provider: local\n", "", "cloud", "Write, for example, `cloud: {provider: local}`"),
    "missing key": ("  vcn_cidr: 10.77.0.0/16\n", "", "network.vcn_cidr", "is missing. Write, for example, `vcn_cidr: 10.0.0.0/16`"),
    "missing shape": ("    shape: BM.GPU4.8\n", "", "pools.compute.shape", "is missing"),
    "missing section": ("cloud:\n  provider: local\n", "", "cloud", "is missing"),
    "key twice": ("    count: 2", "    count: 2\n    §count: 3", "pools.compute.count", "occurs twice, first in line 21"),
    "section twice": ("software:\n", "§users: {}\nsoftware:\n", "users", "occurs twice"),
    "number as key": ("  compute:", "  §17:", "pools.17", 'a key must be text. Write it in quotes: "17"'),
    "list as key": ("  timezone: UTC", "  timezone: UTC\n  ? §[a]\n  : b", "software", "a key must be text"),
    "merge key": ("    count: 2", "    count: 2\n    §<<: {a: b}", "pools.compute.<<", "merge keys are not supported"),
    # --- the YAML itself
    "tab": ("    count: 2", "  §\tcount: 2", "", "a tab in the indentation. YAML requires spaces"),
    "tag": ("count: 2", "count: §!!int 2", "pools.compute.count", "tags are not supported"),
    "python tag": ("name: demo", "name: §!!python/object/apply:os.system [echo]", "name", "tags are not supported"),
    "open quote": ("timezone: UTC", 'timezone: "UTC', "", "a quote that is never closed"),
    "open list": ("[127.0.0.0/8]", "[127.0.0.0/8", "", ""),
    "colon": ("name: demo", "name: a§: b", "", "a `:` that is not allowed here"),
    "indentation": ("    count: 2", "   §count: 2", "", "indentation does not match"),
    "second document": ("software:", "§---\nsoftware:", "", "a second document"),
    "unknown alias": ("count: 2", "count: §*two", "", "the alias *two has no anchor"),
    "alias of itself": ("    count: 2", "    count: &a [§*a]", "", "is inside the value that it refers to"),
    "anchor twice": ("count: 2", "count: &a 2\n    max_count: §&a 2", "", "the anchor &a is already defined"),
    "control character": ("name: demo", "name: de§\x07mo", "", "an invisible character: U+0007"),
    "escaped control character": ("name: demo", 'name: §"de\\0mo"', "name", "an invisible character: U+0000"),
    "escaped surrogate": ("name: demo", 'name: §"\\ud800"', "name", "an invisible character: U+D800"),
    "deep": ("name: demo", "name: " + "[" * 16 + f"{MARK}[[" + "]" * 18, "", "nested more than 16 levels deep"),
    "at sign": ("name: demo", "name: §@demo", "", "can't begin a value. Put the text in quotes"),
    # --- version
    "unknown version": ("version: 1", "version: §2", "version", "this gpucluster reads version 1; got 2"),
    "quoted version": ("version: 1", 'version: §"1"', "version", "Write `version: 1`"),
    "true as version": ("version: 1", "version: §true", "version", "Write `version: 1`"),
    "no version": ("version: 1\n", "", "version", "is missing. Write, for example, `version: 1`"),
    # --- names
    "capital": ("name: demo", "name: §Demo", "name", "must be at most 15 lower-case"),
    "long name": ("name: demo", "name: §" + "a" * 16, "name", "must be at most 15"),
    "name ends with dash": ("name: demo", "name: §demo-", "name", "not ending with -"),
    "name with accent": ("name: demo", "name: §démo", "name", 'got "démo"'),
    "pool with underscore": ("  compute:", "  §com_pute:", "pools.com_pute", "name of a pool"),
    "long pool": ("  compute:", "  §" + "a" * 21 + ":", "pools." + "a" * 21, "at most 20"),
    "pool begins with a digit": ("  compute:", "  §2gpus:", "pools.2gpus", "the name of a pool begins with a letter"),
    "pool named as a node": ("  cpu:", "  §compute-1:", "pools.compute-1", "compute-1 is also the name of a node of the pool compute. Choose"),
    "pool named as an elastic node": ("  cpu:", "  §compute-e2:", "pools.compute-e2", "name of a node of the pool compute"),
    "pool named all": ("  compute:", "  §all:", "pools.all", "the name all is reserved"),
    "negative login nodes": ("storage:", "login: {count: §-1}\nstorage:", "login.count", "at least 0; got -1"),
    "shape of login nodes": ("storage:", "login: {count: 1, shape: §VM.Nothing}\nstorage:", "login.shape", "unknown shape"),
    "pool named as login nodes": ("storage:\n  home:\n    mount_path: /mnt/home\n    export_path: /mnt/home\npools:\n  compute:", "login: {count: 1}\npools:\n  §login:", "pools.login", "is a name of the login nodes"),
    "pool whose nodes are named as login nodes": ("storage:\n  home:\n    mount_path: /mnt/home\n    export_path: /mnt/home\npools:\n  compute:", "login: {count: 1}\npools:\n  §demo-login:", "pools.demo-login", "is a name of the login nodes"),
    "pool named controller": ("  compute:", "  §controller:", "pools.controller", "is reserved"),
    "pool named default": ("  compute:", "  §default:", "pools.default", "is reserved"),
    "provider": ("provider: local", "provider: §locl", "cloud.provider", 'must be local or oci; got "locl". Did you mean local'),
    "empty text": ("name: demo", 'name: §""', "name", "must be at most 15"),
    # --- cloud
    "region of the local cloud": ("provider: local", "provider: local\n  region: §us-ashburn-1", "cloud.region", "has one region"),
    "profile of the local cloud": ("provider: local", "provider: local\n  §profile: X", "cloud.profile", "no meaning"),
    # --- network
    "no network": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §ten", "network.vcn_cidr", "must be a network with its prefix"),
    "address": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.77.0.0", "network.vcn_cidr", "Write 10.77.0.0/32"),
    "host bits": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.77.1.0/16", "network.vcn_cidr", "Write 10.77.0.0/16"),
    "wrong number": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.777.0.0/16", "network.vcn_cidr", "is not a network"),
    "wrong prefix": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.77.0.0/33", "network.vcn_cidr", "is not a network"),
    "netmask": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.77.0.0/255.255.0.0", "network.vcn_cidr", "with its prefix"),
    "IPv6": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §fd00::/16", "network.vcn_cidr", "IPv4"),
    "large VCN": ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: §10.0.0.0/8", "network.vcn_cidr", "between /16 and /30; got /8"),
    "small subnet": ("10.77.0.0/24", "§10.77.0.0/31", "network.public_subnet_cidr", "between /16 and /30; got /31"),
    "outside": ("public_subnet_cidr: 10.77.0.0/24", "public_subnet_cidr: §10.78.0.0/24", "network.public_subnet_cidr", "outside of vcn_cidr"),
    "overlap": ("private_subnet_cidr: 10.77.1.0/24", "private_subnet_cidr: §10.77.0.0/23", "network.private_subnet_cidr", "overlaps public_subnet_cidr"),
    "no room": (
        "private_subnet_cidr: 10.77.1.0/24",
        "private_subnet_cidr: §10.77.1.0/29",
        "network.private_subnet_cidr",
        "10.77.1.0/29 has 8 addresses, 14 are needed: 6 nodes, 1 controller, 1 to bake an image, 3 for the mount target, 3 reserved by the cloud. "
        "Use a /28 or larger",
    ),
    "all of it": ("[127.0.0.0/8]", "[10.0.0.0/24, §0.0.0.0/0]", "network.ssh_allowed_cidrs[1]", "the whole internet"),
    "all of IPv6": ("[127.0.0.0/8]", '[§"::/0"]', "network.ssh_allowed_cidrs[0]", "the whole internet"),
    "all of IPv6, spelled out": ("[127.0.0.0/8]", '[§"0:0:0:0:0:0:0:0/0"]', "network.ssh_allowed_cidrs[0]", "the whole internet"),
    "half of it": ("[127.0.0.0/8]", "[§0.0.0.0/1]", "network.ssh_allowed_cidrs[0]", "too large: at most a /8"),
    "from nowhere": ("[127.0.0.0/8]", "§[]", "network.ssh_allowed_cidrs", "must have at least 1 entry"),
    "only a number": ("[127.0.0.0/8]", "[§5]", "network.ssh_allowed_cidrs[0]", "must be text; got 5"),
    "number in a list": ("[127.0.0.0/8]", "[127.0.0.0/8, §5]", "network.ssh_allowed_cidrs[1]", "must be text; got 5"),
    "nothing in a list": ("[127.0.0.0/8]", "[127.0.0.0/8, §null]", "network.ssh_allowed_cidrs[1]", "has no value"),
    # --- machines
    "unknown shape": ("shape: BM.GPU4.8", "shape: §BM.GPU5.8", "pools.compute.shape", "Did you mean BM.GPU4.8"),
    "unlike any shape": ("shape: BM.GPU4.8", "shape: §p5.48xlarge", "pools.compute.shape", "Known: BM.GPU3.8"),
    "size of a fixed shape": ("    count: 2", "    count: 2\n    §ocpus: 4", "pools.compute.ocpus", "BM.GPU4.8 has a fixed size"),
    "no size of a flexible shape": ("    ocpus: 8\n", "", "pools.cpu.ocpus", "is missing: VM.Standard.E5.Flex is a flexible shape. Add `ocpus: 4`"),
    "too many OCPUs": ("ocpus: 8", "ocpus: §200", "pools.cpu.ocpus", "at most 126 OCPUs; got 200"),
    "too much memory": ("memory_gb: 64", "memory_gb: §1024", "pools.cpu.memory_gb", "with 8 OCPUs has 8 to 512 GB; got 1024"),
    "too little memory": ("memory_gb: 64", "memory_gb: §4", "pools.cpu.memory_gb", "has 8 to 512 GB; got 4"),
    "small disk": ("    count: 2", "    count: 2\n    boot_volume_gb: §20", "pools.compute.boot_volume_gb", "at least 50; got 20"),
    "maximum below count": ("    count: 2", "    count: 2\n    max_count: §1", "pools.compute.max_count", "below count: 1 < 2"),
    "no nodes": ("    max_count: 4\n", "", "pools.cpu.count", "the pool has no nodes"),
    "no pools": (
        LOCAL[LOCAL.index("pools:") : LOCAL.index("users:")],
        "pools: §{}\n",
        "pools",
        "must have at least 1 entry",
    ),
    "no idle time": ("    max_count: 4", "    max_count: 4\n    idle_timeout: §0", "pools.cpu.idle_timeout", "at least 1"),
    "two defaults": (
        LOCAL[LOCAL.index("    count: 2") : LOCAL.index("users:")],
        "    count: 2\n    default: true\n  cpu:\n    shape: BM.HPC2.36\n    count: 1\n    default: §true\n",
        "pools.cpu.default",
        "a second default pool; the first is in line 22",
    ),
    "image in two ways": (
        "    count: 2",
        "    count: 2\n    image: {operating_system: Debian, version: '13', §ocid: ocid1.image.oc1..x}",
        "pools.compute.image.ocid",
        "conflicts with operating_system",
    ),
    "image without version": ("    count: 2", "    count: 2\n    image: §{operating_system: Debian}", "pools.compute.image", "lacks version"),
    "empty image": ("    count: 2", "    count: 2\n    image: §{}", "pools.compute.image", "lacks operating_system and version"),
    "image without user": ("    count: 2", "    count: 2\n    §image: {ocid: ocid1.image.oc1..x}", "pools.compute.image.login_user", "user of this image"),
    "unknown system": ("    count: 2", "    count: 2\n    §image: {operating_system: Plan 9, version: '4'}", "pools.compute.image.login_user", "user of this image"),
    "no OCID": ("    count: 2", "    count: 2\n    image: {ocid: §ami-123}", "pools.compute.image.ocid", "OCID of an image"),
    # --- home
    "relative path": ("mount_path: /mnt/home", "mount_path: §mnt/home", "storage.home.mount_path", "absolute path"),
    "slash at the end": ("mount_path: /mnt/home", "mount_path: §/mnt/home/", "storage.home.mount_path", "without a slash at the end"),
    "two slashes": ("mount_path: /mnt/home", "mount_path: §/mnt//home", "storage.home.mount_path", "absolute path"),
    "dots": ("mount_path: /mnt/home", "mount_path: §/mnt/../etc", "storage.home.mount_path", "must not contain . or .."),
    "blank in a path": ("mount_path: /mnt/home", "mount_path: §/mnt/my home", "storage.home.mount_path", "absolute path"),
    "root": ("mount_path: /mnt/home", "mount_path: §/", "storage.home.mount_path", "absolute path"),
    "home of the login user": ("mount_path: /mnt/home", "mount_path: §/home", "storage.home.mount_path", "belongs to the system"),
    "under etc": ("mount_path: /mnt/home", "mount_path: §/etc/home", "storage.home.mount_path", "belongs to the system"),
    "dots in the export": ("export_path: /mnt/home", "export_path: §/a/./b", "storage.home.export_path", "must not contain . or .."),
    # --- users
    "root as a user": ("name: alice", "name: §root", "users.people[0].name", "the user root belongs to the system"),
    "slurm as a user": ("name: alice", "name: §slurm", "users.people[0].name", "belongs to the system"),
    "login user of an image": (
        "    count: 2",
        "    count: 2\n    image: {ocid: ocid1.image.oc1..x, login_user: alice}",
        "users.people[0].name",
        "the user alice belongs to the system",
    ),
    "systemd as a user": ("name: alice", "name: §systemd-x", "users.people[0].name", "belongs to the system"),
    "capital in a user": ("name: alice", "name: §Alice", "users.people[0].name", "lower-case"),
    "user twice": ("name: bob", "name: §alice", "users.people[1].name", "alice occurs twice, first in line 32"),
    "uid twice": ("name: bob", "name: bob\n      uid: §10001", "users.people[1].uid", "10001 occurs twice, first in line 34"),
    "low uid": ("      uid: 10001", "      uid: §9999", "users.people[0].uid", "below first_uid: 9999 < 10001"),
    "uid of nobody": ("      uid: 10001", "      uid: §65534", "users.people[0].uid", "65534 belongs to the system"),
    "uid of root": ("      uid: 10001", "      uid: §0", "users.people[0].uid", "at least 2000"),
    "system gid": ("gid: 9999", "gid: §65534", "users.gid", "belongs to the system"),
    "system group": ("group: people", "group: §sudo", "users.group", "belongs to the system"),
    "everybody is privileged": ("group: people", "group: §privilege", "users.group", "which not every user may have. Choose another name here, and write `groups: [privilege]`"),
    "two groups with one gid": ("gid: 9999", "gid: §9876", "users.gid", "9876 is the id of privilege"),
    "primary group of nobody": ("- name: bob", "- name: bob\n      group: §wheels", "users.people[1].group", 'can\'t be "wheels". One of: people, privilege'),
    "group of the system": ("- name: bob", "- name: bob\n      groups: [§docker]", "users.people[1].groups[0]", "the group docker belongs to the system"),
    "group twice": ("- name: bob", "- name: bob\n      groups: [vision, §vision]", "users.people[1].groups[1]", "vision occurs twice"),
    # --- containers, releases, clusters without a scheduler
    "runtime twice": ("software:", "containers: {runtimes: [docker, §docker]}\nsoftware:", "containers.runtimes[1]", "docker occurs twice"),
    "unknown runtime": ("software:", "containers: {runtimes: [§podman]}\nsoftware:", "containers.runtimes[0]", 'must be enroot or docker or containerd; got "podman"'),
    "nobody pulls": ("software:", "containers: {runtimes: [enroot], §pull: [a/b]}\nsoftware:", "containers.pull", "needs docker or containerd among the runtimes"),
    "image with a space": ("software:", 'containers: {runtimes: [docker], pull: [§"a b"]}\nsoftware:', "containers.pull[0]", "must be the name of an image"),
    "a module that hosts need": ("timezone: UTC", "timezone: UTC\n  denied_modules: [§mlx5_core]", "software.denied_modules[0]", "hosts need mlx5_core"),
    "a module twice": ("timezone: UTC", "timezone: UTC\n  denied_modules: [rxrpc, §rxrpc]", "software.denied_modules[1]", "rxrpc occurs twice"),
    "not a module": ("timezone: UTC", "timezone: UTC\n  denied_modules: [§\"a b\"]", "software.denied_modules[0]", "must be the name of a kernel module"),
    "no mirror": ("timezone: UTC", "timezone: UTC\n  mirror: §nowhere", "software.mirror", 'there is no directory "nowhere". Create and fill it: gpucluster software fetch'),
    "mirror without a host": ("timezone: UTC", "timezone: UTC\n  mirror: §https://", "software.mirror", "is not a URL"),
    "mirror with a password": ("timezone: UTC", "timezone: UTC\n  mirror: §https://a:b@mirror.example/x", "software.mirror", "must not contain a password"),
    "no days of retention": ("software:", "monitoring: {retention_days: §0}\nsoftware:", "monitoring.retention_days", "at least 1; got 0"),
    "retention of no size": ("software:", "monitoring: {retention_gb: §0}\nsoftware:", "monitoring.retention_gb", "at least 1; got 0"),
    "Slurm asked too often": ("software:", "monitoring: {slurm_interval: §1}\nsoftware:", "monitoring.slurm_interval", "at least 10; got 1"),
    "a hang too soon": ("software:", "monitoring: {hang_seconds: §5}\nsoftware:", "monitoring.hang_seconds", "at least 30; got 5"),
    "a silent hang too soon": ("software:", "monitoring: {silent_hang_seconds: §59}\nsoftware:", "monitoring.silent_hang_seconds", "at least 60; got 59"),
    "idle too soon": ("software:", "monitoring: {idle_minutes: §4}\nsoftware:", "monitoring.idle_minutes", "at least 5; got 4"),
    "what never follows a hang": ("software:", "monitoring: {on_hang: §kill}\nsoftware:", "monitoring.on_hang", 'must be tell or requeue or cancel; got "kill"'),
    "what never follows a hang of a partition": ("software:", "monitoring: {on_hang_by_partition: {compute: §stop}}\nsoftware:", "monitoring.on_hang_by_partition.compute", 'must be tell or requeue or cancel; got "stop"'),
    "a hang in no partition": ("software:", "monitoring: {on_hang_by_partition: {§big: tell}}\nsoftware:", "monitoring.on_hang_by_partition.big", 'there is no partition "big". Known are: '),
    "idle jobs that end before they are idle": ("software:", "monitoring: {idle_minutes: 60, end_idle_jobs_minutes: §30}\nsoftware:", "monitoring.end_idle_jobs_minutes", "30 is less than monitoring.idle_minutes, which is 60"),
    "a requeue without checks": ("software:", "checks: {enabled: false}\nmonitoring: {on_hang: §requeue}\nsoftware:", "monitoring.on_hang", "the health service does this, and checks.enabled is false"),
    "stacks without checks": ("software:", "checks: {enabled: false}\nmonitoring: {hang_stacks: §true}\nsoftware:", "monitoring.hang_stacks", "the health service does this, and checks.enabled is false"),
    "stacks of no kind": ("software:", "monitoring: {hang_stacks: §py-spy}\nsoftware:", "monitoring.hang_stacks", 'must be true or false; got "py-spy"'),
    "monitoring on a node": ("software:", "monitoring: {host: §compute-1}\nsoftware:", "monitoring.host", "must be controller, or login-<n>"),
    "monitoring on a login node without any": ("software:", "monitoring: {host: §login-1}\nsoftware:", "monitoring.host", "there is no login node 1: this cluster has no login nodes"),
    "monitoring on a login node that is not there": ("software:", "login: {count: 2, shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}\nmonitoring: {host: §login-3}\nsoftware:", "monitoring.host", "there is no login node 3: login.count is 2. Write controller or login-1 to login-2"),
    "no file of Alertmanager": ("software:", "monitoring: {alertmanager_file: §nowhere.yml}\nsoftware:", "monitoring.alertmanager_file", 'there is no file "nowhere.yml"'),
    "empty file of Alertmanager": ("software:", "monitoring: {alertmanager_file: §/dev/null}\nsoftware:", "monitoring.alertmanager_file", "is empty"),
    "proxy that is no URL": ("timezone: UTC", "timezone: UTC\n  proxy: §proxy:3128", "software.proxy", "is not the URL of a proxy"),
    "proxy with a command": ("timezone: UTC", "timezone: UTC\n  proxy: §http://proxy$(id):3128", "software.proxy", "is not the URL of a proxy"),
    "proxy with a quote": ("timezone: UTC", "timezone: UTC\n  proxy: §http://proxy\";x", "software.proxy", "is not the URL of a proxy"),
    "proxy with a path": ("timezone: UTC", "timezone: UTC\n  proxy: §http://proxy.example/x", "software.proxy", "is not the URL of a proxy"),
    "proxy with a password": ("timezone: UTC", "timezone: UTC\n  proxy: §http://a:b@proxy.example:3128", "software.proxy", "must not contain a password"),
    "exceptions without a proxy": ("timezone: UTC", "timezone: UTC\n  no_proxy: §[.example]", "software.no_proxy", "has no effect without proxy"),
    "an exception of two words": ("timezone: UTC", 'timezone: UTC\n  proxy: http://p.example:1\n  no_proxy: [§"a b"]', "software.no_proxy[0]", "must be a host, a domain or a network"),
    "no certificate": ("timezone: UTC", "timezone: UTC\n  trusted_ca_files: [§nowhere.pem]", "software.trusted_ca_files[0]", 'there is no file "nowhere.pem"'),
    # --- backups
    "no certificate of backups": ("software:", "backup: {certificate: §nowhere.pem}\nsoftware:", "backup.certificate", 'there is no file "nowhere.pem"'),
    "certificate of backups that is none": ("software:", "backup: {certificate: §/dev/null}\nsoftware:", "backup.certificate", "is not a certificate in PEM"),
    "backups by month": ("software:", "backup: {schedule: §monthly}\nsoftware:", "backup.schedule", "must be hourly, daily, weekly, or days of the week and times of the day"),
    "backups at 25 o'clock": ("software:", 'backup: {schedule: §"25:00"}\nsoftware:', "backup.schedule", "must be hourly, daily, weekly"),
    "a schedule of two lines": ("software:", 'backup: {schedule: §"daily\\nExec=x"}\nsoftware:', "backup.schedule", "must be hourly, daily, weekly"),
    "no backup stays": ("software:", "backup: {keep: §0}\nsoftware:", "backup.keep", "at least 1; got 0"),
    "all backups stay": ("software:", "backup: {keep: §366}\nsoftware:", "backup.keep", "at most 365; got 366"),
    "relative directory of backups": ("software:", "backup: {directory: §backups}\nsoftware:", "backup.directory", "must be an absolute path"),
    "directory of backups with dots": ("software:", "backup: {directory: §/mnt/../etc}\nsoftware:", "backup.directory", "must not contain . or .."),
    "directory of backups that does not last": ("software:", "backup: {directory: §/tmp/demo}\nsoftware:", "backup.directory", "does not last"),
    "repository with a password": ("slurm:\n", "containers: {docker_repository: {url: §'https://a:b@m.example/x', key_url: 'https://m.example/k', key_fingerprint: '" + "A" * 40 + "'}}\nslurm:\n", "containers.docker_repository.url", "must be a URL without a password"),
    "short fingerprint": ("slurm:\n", "containers: {docker_repository: {url: 'https://m.example/x', key_url: 'https://m.example/k', key_fingerprint: §621E9F35}}\nslurm:\n", "containers.docker_repository.key_fingerprint", "must be the fingerprint of a key"),
    "two repositories of a system": ("slurm:\n", "nvidia: {repositories: [{system: Debian-12, url: 'https://m.example/x', key_url: 'https://m.example/k', key_fingerprint: '" + "A" * 40 + "'}, {system: §Debian-12, url: 'https://m.example/x', key_url: 'https://m.example/k', key_fingerprint: '" + "A" * 40 + "'}]}\nslurm:\n", "nvidia.repositories[1].system", "Debian-12 occurs twice"),
    "repository of an unknown system": ("slurm:\n", "nvidia: {repositories: [{system: §Fedora-40, url: 'https://m.example/x', key_url: 'https://m.example/k', key_fingerprint: '" + "A" * 40 + "'}]}\nslurm:\n", "nvidia.repositories[0].system", "Fedora-40"),
    "short checksum": ("timezone: UTC", "timezone: UTC\n  checksums: {a.deb: §abc}", "software.checksums.a.deb", "must be a SHA-256"),
    "file in a folder": ("timezone: UTC", f"timezone: UTC\n  checksums: {{§../a: {'0' * 64}}}", "software.checksums.../a", "is not the name of a file"),
    "version in words": ("timezone: UTC", "timezone: UTC\n  versions: {enroot: §newest}", "software.versions.enroot", "must be a version"),
    "branch in words": ("software:", "nvidia: {driver_branch: §open}\nsoftware:", "nvidia.driver_branch", "must be the number of a driver branch"),
    "colon in a full name": ("full_name: Alice Example", 'full_name: §"Alice: Example"', "users.people[0].full_name", "must not contain a colon"),
    "no key": ("      generate_key: true\n", "", "users.people[1]", "bob has no ssh key and could not log in. Add"),
    "key and key": ("      generate_key: true", f"      generate_key: §true\n      ssh_public_keys: [{KEY}]", "users.people[1].generate_key", "bob has a key already"),
    "no name": ("- name: bob\n      generate", "- §generate", "users.people[1].name", "is missing"),
    "text for a person": ("- name: bob\n      generate_key: true", "- §bob", "users.people[1]", "must be keys with values"),
    # --- keys
    "no base64": (f"- {KEY}", "- §ssh-ed25519 AAAA* alice", "users.people[0].ssh_public_keys[0]", "not base64"),
    "cut off": (f"- {KEY}", f"- §{KEY[:52]}", "users.people[0].ssh_public_keys[0]", "cut off"),
    "type alone": (f"- {KEY}", "- §ssh-ed25519", "users.people[0].ssh_public_keys[0]", "the type is there, the key is not"),
    "another type inside": (f"- {KEY}", f"- §{LIAR}", "users.people[0].ssh_public_keys[0]", "begins with ssh-rsa but holds a key of type ssh-ed25519"),
    "short RSA": (f"- {KEY}", f"- §{SHORT_RSA}", "users.people[0].ssh_public_keys[0]", "an RSA key of 1024 bits"),
    "DSA": (f"- {KEY}", "- §ssh-dss AAAA", "users.people[0].ssh_public_keys[0]", "a DSA key"),
    "certificate": (f"- {KEY}", "- §ssh-ed25519-cert-v01@openssh.com AAAA", "users.people[0].ssh_public_keys[0]", "a certificate"),
    "options": (f"- {KEY}", f"- §no-pty {KEY}", "users.people[0].ssh_public_keys[0]", "options"),
    "nonsense": (f"- {KEY}", "- §hello", "users.people[0].ssh_public_keys[0]", "not a public key. It begins with one of"),
    "empty key": (f"- {KEY}", '- §" "', "users.people[0].ssh_public_keys[0]", "the key is empty"),
    "private key": (f"- {KEY}", f"- §|\n          {PRIVATE}\n          b3Bl\n", "users.people[0].ssh_public_keys[0]", "a PRIVATE key. Never give it to anyone"),
    "two keys in one": (f"- {KEY}", f"- §|\n          {KEY}\n          {KEY}\n", "users.people[0].ssh_public_keys[0]", "more than one line"),
    "no such key file": (f"ssh_public_keys:\n        - {KEY}", "ssh_public_key_files: [§nowhere.pub]", "users.people[0].ssh_public_key_files[0]", "there is no file"),
    "home of nobody": (f"ssh_public_keys:\n        - {KEY}", "ssh_public_key_files: [§~nobody-at-all/x.pub]", "users.people[0].ssh_public_key_files[0]", "no user with the home directory"),
    "device as key file": (f"ssh_public_keys:\n        - {KEY}", "ssh_public_key_files: [§/dev/zero]", "users.people[0].ssh_public_key_files[0]", "is not a file"),
    "operator's key": ("software:", "ssh: {public_keys: [§hello]}\nsoftware:", "ssh.public_keys[0]", "the key is not a public key"),
    "private key alone": ("software:", "ssh: {private_key_file: §x}\nsoftware:", "ssh.private_key_file", "a private key without a public one"),
    # --- elastic pools
    "elastic without accounting": ("accounting: true", "accounting: §false", "slurm.accounting", "the elastic pool cpu needs it"),
    "two idle times in one partition": (
        "    max_count: 4",
        "    max_count: 4\n    partition: gpu\n  more:\n    shape: BM.GPU4.8\n    partition: gpu\n    max_count: 1\n    idle_timeout: §60",
        "pools.more.idle_timeout",
        "is 60, but 600 in pool cpu: both are in the partition gpu",
    ),
    "partition of Slurm's own": ("    max_count: 4", "    max_count: 4\n    partition: §default", "pools.cpu.partition", "the name default is reserved"),
    "partition in capitals": ("    max_count: 4", "    max_count: 4\n    partition: §GPU", "pools.cpu.partition", "lower-case"),
    "default in another partition": ("    max_count: 4", "    max_count: 4\n    partition: gpu\nslurm: {default_partition: §cpu}\nx:", "", ""),
    "unknown time": ("software:", "autoscaler: {times: {§cooldown: 1}}\nsoftware:", "autoscaler.times.cooldown", "unknown time. Did you mean cool_down"),
    "time of nothing": ("software:", "autoscaler: {times: {cool_down: §0}}\nsoftware:", "autoscaler.times.cool_down", "must be above 0"),
    "time in words": ("software:", "autoscaler: {times: {cool_down: §5m}}\nsoftware:", "autoscaler.times.cool_down", 'must be a number; got "5m"'),
    "quoted time": ("software:", 'autoscaler: {times: {cool_down: §"5"}}\nsoftware:', "autoscaler.times.cool_down", "Write it without quotes: 5"),
    "no nodes at all": ("software:", "autoscaler: {max_nodes: §0}\nsoftware:", "autoscaler.max_nodes", "at least 1"),
    "cap without prices": ("software:", "autoscaler: {§max_cost_per_hour: 10}\nsoftware:", "autoscaler.max_cost_per_hour", "needs the prices of the shapes. Add `prices_file"),
    "no price file": ("software:", "autoscaler: {prices_file: §nowhere.yml}\nsoftware:", "autoscaler.prices_file", "there is no file nowhere.yml"),
    "price file is a device": ("software:", "autoscaler: {prices_file: §/dev}\nsoftware:", "autoscaler.prices_file", "can't be read"),
    "no wheels": ("timezone: UTC", "timezone: UTC\n  wheels: §nowhere", "software.wheels", "there is no directory nowhere"),
    "jobs without a home": ("    mount_path: /mnt/home", "    mount_path: /mnt/home\n    enabled: §false", "storage.home.enabled", "Slurm jobs need it"),
    # --- checks
    "no check": ("storage:", "checks: {off: [mounts, §gpu_cout]}\nstorage:", "checks.off[1]", "there is no check gpu_cout. Did you mean gpu_count"),
    "no check and none like it": ("storage:", "checks: {off: [§xyz]}\nstorage:", "checks.off[0]", "There are: "),
    "checks all the time": ("storage:", "checks: {interval: §1}\nstorage:", "checks.interval", "at least 10; got 1"),
    "nothing may be drained": ("storage:", "checks: {max_drained_percent: §0}\nstorage:", "checks.max_drained_percent", "at least 1; got 0"),
    "more than all": ("storage:", "checks: {max_drained_percent: §101}\nstorage:", "checks.max_drained_percent", "at most 100; got 101"),
    "half in the shadow": ("storage:", "checks: {shadow: §1}\nstorage:", "checks.shadow", "true or false"),
    # --- slurm, software
    "default above the most": ("  extra_config: {SchedulerParameters: bf_interval=30}", "  default_job_hours: §200", "slurm.default_job_hours", "200 is above slurm.max_job_hours, 168"),
    "key of ours": ("{SchedulerParameters: bf_interval=30}", "{§NodeName: x}", "slurm.extra_config.NodeName", "NodeName is set by gpucluster itself"),
    "key of ours in small letters": ("{SchedulerParameters: bf_interval=30}", "{§clustername: x}", "slurm.extra_config.clustername", "ClusterName is set by"),
    "no key of Slurm": ("{SchedulerParameters: bf_interval=30}", '{§"a b": x}', "slurm.extra_config.a b", "is not a key of slurm.conf"),
    "truth for Slurm": ("{SchedulerParameters: bf_interval=30}", "{Foo: §true}", "slurm.extra_config.Foo", 'Write it in quotes, such as "YES"'),
    "a template for Ansible": ("{SchedulerParameters: bf_interval=30}", '{Foo: §"{{x}}"}', "slurm.extra_config.Foo", "Ansible would run it as a template"),
    "two lines for Slurm": ("{SchedulerParameters: bf_interval=30}", '{Foo: §"a\\nNodeName=x"}', "slurm.extra_config.Foo", "is not a valid value in slurm.conf"),
    "another key for Slurm": ("{SchedulerParameters: bf_interval=30}", '{Foo: §"a SlurmUser=root"}', "slurm.extra_config.Foo", "is not a valid value in slurm.conf"),
    "a tab for Slurm": ("{SchedulerParameters: bf_interval=30}", '{Foo: §"a\\tSlurmUser=root"}', "slurm.extra_config.Foo", "is not a valid value in slurm.conf"),
    "half a quote for Slurm": ("{SchedulerParameters: bf_interval=30}", """{Foo: §'"a" SlurmUser="root"'}""", "slurm.extra_config.Foo", "needs double quotes"),
    "list for Slurm": ("{SchedulerParameters: bf_interval=30}", "{Foo: §[a]}", "slurm.extra_config.Foo", "text or a whole number"),
    "a word for a number of Slurm": ("{SchedulerParameters: bf_interval=30}", "{killwait: §soon}", "slurm.extra_config.killwait", "Write a whole number from 0 to 65535"),
    "too much for Slurm": ("{SchedulerParameters: bf_interval=30}", "{KillWait: §70000}", "slurm.extra_config.KillWait", "not a value that Slurm takes: 70000"),
    "neither yes nor no for Slurm": ("{SchedulerParameters: bf_interval=30}", "{UsePAM: §maybe}", "slurm.extra_config.UsePAM", "Write YES or NO"),
    "nothing for Slurm": ("{SchedulerParameters: bf_interval=30}", "{Foo: §null}", "slurm.extra_config.Foo", "has no value"),
    "another spelling for Slurm": ("{SchedulerParameters: bf_interval=30}", "{§schedulerparameters: x}", "slurm.extra_config.schedulerparameters", "Write SchedulerParameters"),
    "one key of Slurm in two spellings": ("{SchedulerParameters: bf_interval=30}", "{Licenses: a, §licenses: b}", "slurm.extra_config.licenses", "is the same key as Licenses"),
    "release without quotes": ("accounting: true", "release: §25.05", "slurm.release", 'Write it in quotes: "25.05"'),
    "unknown release of Slurm": ("accounting: true", 'release: §"26.06"', "slurm.release", "26.05"),
    "unknown default": ("accounting: true", "default_partition: §comput", "slurm.default_partition", "there is no partition \"comput\". Did you mean compute"),
    "two opinions on the default": ("    count: 2", "    count: 2\n    default: true", "", ""),
    "name for Slurm": ("accounting: true", "cluster_name: §Demo", "slurm.cluster_name", "lower-case"),
    "time zone": ("timezone: UTC", "timezone: §Europe/Berlim", "software.timezone", "unknown time zone \"Europe/Berlim\". Did you mean Europe/Berlin"),
    "no time zone": ("timezone: UTC", "timezone: §9th", "software.timezone", "must be the name of a time zone"),
}  # fmt: skip
# Rows that need more than one replacement have tests of their own.
for _special in ("nothing for a section", "two opinions on the default", "open list", "default in another partition"):
    del ROWS[_special]


def findings(text: str | bytes, filename: str = "cluster.yml") -> list[tuple[int, int, str, str]]:
    with pytest.raises(InputError) as caught:
        loads(text, filename)
    assert caught.value.exit_code == 2
    found = []
    for finding in caught.value.findings:
        words = f"{finding.message}. {finding.hint}" if finding.hint else finding.message
        found.append((finding.line, finding.column, finding.path, words))
    assert found == sorted(found, key=lambda one: one[:2])
    return found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", "a file of Kubernetes"),
        ("Region: x\nHeadNode: {}\nScheduling: {}\n", "a file of AWS ParallelCluster"),
        ("blueprint_name: a\ndeployment_groups: []\n", "a file of Google Cluster Toolkit"),
        ("root: x\ndaemon: x\nbin: x\nsys: x\nname: y\n", 'begins with the keys "root", "daemon", "bin"'),
    ],
)
def test_a_file_of_something_else_gets_one_message(text: str, words: str) -> None:
    ((line, column, _, message),) = findings(text)
    assert (line, column) == (1, 1)
    assert words in message
    assert "gpucluster init" in message


def test_a_few_unknown_keys_are_named_one_by_one() -> None:
    assert len(findings(LOCAL + "one: 1\ntwo: 2\nthree: 3\nfour: 4\n")) == 4


def test_the_field_that_the_file_has_is_the_one_to_lower() -> None:
    permanent = LOCAL.replace("max_count: 4", "count: 0")
    messages = {path: message for _, _, path, message in findings(permanent.replace("count: 2", "count: 300", 1))}
    assert messages["network.private_subnet_cidr"].endswith("or lower count")


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    old, new, path, words = row
    assert LOCAL.count(old) >= 1
    text = LOCAL.replace(old, new, 1)
    line = column = None
    if MARK in text:
        text, line, column = marked(text)
    (found,) = findings(text)
    assert found[2] == path
    assert words in found[3]
    if line is not None:
        assert found[:2] == (line, column)


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ((("shape: BM.GPU4.8", "shape: BM.GPU.MI300X.8"),), "pools.compute.shape", "has AMD GPUs"),
        (
            (("count: 2", "count: 2\n    gpus: {mig: [{mig_devices: {3g.20gb: 2}}]}"),),
            "pools.compute.gpus.mig",
            "can't divide a GPU of this machine",
        ),
        (
            (("name: demo", "name: demo\nscheduler: kubernetes"),),
            "cloud.local.gpus",
            "pods of the local cloud can't use",
        ),
    ],
)
def test_gpus_of_this_machine_are_nvidias_whole_ones_for_slurm(
    changes: tuple[tuple[str, str], ...], path: str, words: str
) -> None:
    text = LOCAL.replace("  provider: local\n", "  provider: local\n  local: {gpus: real}\n")
    loads(text)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (found,) = [found for found in findings(text) if found[2] == path]
    assert words in found[3]


def at(path: str, text: str) -> tuple[int, int]:
    """Where the one error with that path was found."""
    (place,) = [found[:2] for found in findings(text) if found[2] == path]
    return place


def test_what_is_missing_is_shown_at_its_section() -> None:
    assert at("network.vcn_cidr", LOCAL.replace("  vcn_cidr: 10.77.0.0/16\n", "")) == (5, 1)
    assert at("pools.compute.shape", LOCAL.replace("    shape: BM.GPU4.8\n", "")) == (19, 3)
    assert at("users.people[1]", LOCAL.replace("      generate_key: true\n", "")) == (37, 7)
    assert at("cloud", LOCAL.replace("cloud:\n  provider: local\n", "")) == (1, 1)


def test_limits_of_users_need_the_accounting() -> None:
    static, wrong = (
        LOCAL.replace("    max_count: 4\n", "    count: 1\n"),
        "  accounting: false\n  user_limits: {jobs: 4}\n",
    )
    assert at("slurm.user_limits", static.replace("  accounting: true\n", wrong))[1] == 16
    for right in (wrong.replace("4", "null"), wrong.replace("false", "true")):
        loads(static.replace("  accounting: true\n", right))


def test_every_fault_is_told_at_once_in_the_order_of_the_file() -> None:
    text = LOCAL
    for old, new in [
        ("name: demo", "name: Demo"),
        ("vcn_cidr: 10.77.0.0/16", "vcn_cidr: x"),
        ("[127.0.0.0/8]", "[0.0.0.0/0]"),
        ("ocpus: 4\n", 'ocpus: "4"\n'),
        ("count: 2", "count: 2\n    count: 3"),
        ("shape: BM.GPU4.8", "shape: BM.GPU5.8"),
        ("name: alice", "name: root"),
        (KEY, "ssh-ed25519"),
        ("timezone: UTC", "timezone: Nowhere/Land\n  tz: x"),
    ]:
        assert old in text
        text = text.replace(old, new, 1)
    paths = [path for _, _, path, _ in findings(text)]
    assert paths == [
        "name",
        "network.vcn_cidr",
        "network.ssh_allowed_cidrs[0]",
        "controller.ocpus",
        "pools.compute.shape",
        "pools.compute.count",
        "users.people[0].name",
        "users.people[0].ssh_public_keys[0]",
        "software.timezone",
        "software.tz",
    ]


def test_a_section_without_anything() -> None:
    text = LOCAL.replace("software:\n  timezone: UTC\n", "software:\n")
    (found,) = findings(text)
    assert found[2:] == ("software", "has no value. Software of every machine.")


def test_a_default_that_is_a_pool_but_no_partition() -> None:
    text = LOCAL.replace("    max_count: 4", "    max_count: 4\n    partition: gpu")
    text, line, column = marked(text.replace("  accounting", f"  default_partition: {MARK}cpu\n  accounting"))
    ((found_line, found_column, path, words),) = findings(text)
    assert (found_line, found_column, path) == (line, column, "slurm.default_partition")
    assert 'there is no partition "cpu". The pool of that name is in the partition gpu' in words


PRICED = LOCAL.replace("software:", "autoscaler: {max_cost_per_hour: 100, prices_file: prices.yml}\nsoftware:")


@pytest.mark.parametrize(
    ("prices", "file", "place", "words"),
    [
        ("", "prices.yml", (1, 1), "the file is empty"),
        (
            "BM.GPU4.8: 24\n",
            "cluster.yml",
            (42, 51),
            "has no price for VM.Standard.E5.Flex, the shape of the elastic pool cpu",
        ),
        ("VM.Standard.E5.Flex: 0\n", "prices.yml", (1, 22), "must be the price per hour, above 0; got 0"),
        ("VM.Standard.E5.Flex: much\n", "prices.yml", (1, 22), 'above 0; got "much"'),
        (
            "# $\nVM.Standard.E5.Flex: 1\nBM.GPU5.8: 2\n",
            "prices.yml",
            (3, 1),
            'unknown shape "BM.GPU5.8". Did you mean',
        ),
        ("VM.Standard.E5.Flex: [1]\n", "prices.yml", (1, 22), "above 0; got a list"),
    ],
)
def test_a_wrong_price_file(tmp_path: Path, prices: str, file: str, place: tuple[int, int], words: str) -> None:
    (tmp_path / "prices.yml").write_text(prices)
    with pytest.raises(InputError) as caught:
        loads(PRICED, str(tmp_path / "cluster.yml"))
    (found,) = caught.value.findings
    assert (Path(found.file).name, (found.line, found.column)) == (file, place)
    assert words in f"{found.message}. {found.hint}"


def test_two_opinions_on_the_default() -> None:
    text = LOCAL.replace("    count: 2", "    count: 2\n    default: true")
    text, line, column = marked(text.replace("  accounting", f"  default_partition: {MARK}cpu\n  accounting"))
    assert [found[:2] for found in findings(text)] == [(line, column)]
    assert "the pool compute is already the default" in findings(text)[0][3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("---\n...\n", "the file is empty"),
        ("just text", "must contain keys with values"),
        ("- a\n- b\n", "must contain keys with values"),
        ("42", "must contain keys with values"),
        ("[", "not YAML"),
        ("{a: b", "a mapping that is never closed"),
        ("a: [b\n", "a list that is never closed"),
        ("%YAML 9.9\n---\na: b\n", "not YAML"),
        (b"\xff\xfe\x00\x00", "not UTF-8: byte 0xff"),
        (b"a: b\n\nc: \xe4\n", "not UTF-8: byte 0xe4"),
        ("a: " + "x" * document.MAX_BYTES, "the file is larger than 256 KiB"),
        ("[" * 5000, "nested more than"),
        ("{a: " * 5000, "nested more than"),
        ("- " * 5000, "nested more than"),
        ("? " * 5000, "nested more than"),
    ],
)
def test_no_cluster_file_at_all(text: str | bytes, words: str) -> None:
    found = findings(text)
    assert any(words in one[3] for one in found)


def test_the_place_of_a_wrong_byte() -> None:
    assert findings(b"a: b\n\nc: x\xe4\n")[0][:2] == (3, 5)


def test_aliases_that_would_explode() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    ((_, _, _, words),) = findings("\n".join(lines))
    assert "too large: more than 20000 values. Use fewer aliases" in words


def test_a_file_is_read_only_as_far_as_it_may_be_large(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    with file.open("wb") as stream:
        stream.truncate(10**10)  # a hole: it must not be read whole
    with pytest.raises(InputError) as caught:
        load(file)
    assert "larger than 256 KiB" in str(caught.value)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cluster.yml")
    with pytest.raises(InputError, match="not a regular file"):
        load(tmp_path / "cluster.yml")


# id: (what stands in OCI, what instead, path, words)
OCI_ROWS = {
    "gpus of this machine": ("  provider: oci\n", "  provider: oci\n  §local: {gpus: real}\n", "cloud.local", "has no meaning with provider oci. Delete it"),
    "distributions that differ": ("    image: {ocid: ocid1.image.oc1.iad.example, login_user: ubuntu}\n", '    image: {operating_system: Debian, version: "12"}\nslurm: {release: §distribution}\n', "slurm.release", "controller Ubuntu-24 with Slurm 23.11, pools.h100 Debian-12 with Slurm 22.05"),
    "distribution that is too old": ('version: "24.04"}\npools:', 'version: "22.04"}\nslurm: {release: §distribution}\npools:', "slurm.release", "Ubuntu-22 has Slurm 21.08, and the oldest that can be configured is 22.05"),
    "no region": ("  region: us-ashburn-1\n", "", "cloud.region", "is missing: provider oci needs it. Add `region: us-ashburn-1`"),
    "no compartment": ("  compartment_id: ocid1.compartment.oc1..exampleuniqueid\n", "", "cloud.compartment_id", "is missing"),
    "null compartment": ("ocid1.compartment.oc1..exampleuniqueid", "§null", "cloud.compartment_id", "is missing"),
    "compartment": ("ocid1.compartment.oc1..exampleuniqueid", "§my-compartment", "cloud.compartment_id", "OCID of a compartment"),
    "another OCID": ("ocid1.compartment.oc1..exampleuniqueid", "§ocid1.vcn.oc1..x", "cloud.compartment_id", "OCID of a compartment"),
    "region": ("us-ashburn-1", "§Ashburn", "cloud.region", "name of a region"),
    "no ssh": ("ssh:\n  public_key_file: operator.pub\n", "", "ssh.public_key_file", "is missing: provider oci needs it"),
    "null key": ("operator.pub", "§null", "ssh.public_key_file", "is missing"),
    "no image": ('  image: {operating_system: Canonical Ubuntu, version: "24.04"}', "  boot_volume_gb: 100", "controller.image", "is missing: provider oci needs it"),
    "generated key": (f"ssh_public_keys: [{KEY}]", "generate_key: §true", "users.people[0].generate_key", "for provider local only"),
    "no key file": ("operator.pub", "§nowhere.pub", "ssh.public_key_file", "there is no file"),
    "private key file": ("operator.pub", "§private", "ssh.public_key_file", "is a PRIVATE key. Never give it to anyone"),
    "putty key file": ("operator.pub", "§putty.ppk", "ssh.public_key_file", "is a PRIVATE key"),
    "another format": ("operator.pub", "§other.pub", "ssh.public_key_file", "ssh-keygen -i"),
    "binary": ("operator.pub", "§binary.pub", "ssh.public_key_file", "is not text"),
    "empty file": ("operator.pub", "§empty.pub", "ssh.public_key_file", "holds no key"),
    "two keys": ("operator.pub", "§two.pub", "ssh.public_key_file", "contains 2 keys; the operator has one"),
    "wrong line": ("operator.pub", "§broken.pub", "ssh.public_key_file", "broken.pub line 3 is not a public key"),
    "folder": ("operator.pub", "§folder.pub", "ssh.public_key_file", "is not a file"),
    "large file": ("operator.pub", "§large.pub", "ssh.public_key_file", "too large for a public key"),
    "name without .pub": ("operator.pub", "§operator", "ssh.public_key_file", "the name of the private key does not follow"),
    "no private file": ("operator.pub", "operator.pub\n  private_key_file: §nowhere", "ssh.private_key_file", "there is no file nowhere"),
    "a name too long": ("operator.pub", "§" + "x" * 300 + ".pub", "ssh.public_key_file", "can't be read"),
    "a file as folder": ("operator.pub", "§operator.pub/x.pub", "ssh.public_key_file", "can't be read"),
}  # fmt: skip


@pytest.fixture
def key_files(tmp_path: Path) -> Path:
    (tmp_path / "operator.pub").write_text(KEY)
    (tmp_path / "operator").write_text(KEY)
    (tmp_path / "private").write_text(f"{PRIVATE}\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n")
    (tmp_path / "putty.ppk").write_text("PuTTY-User-Key-File-3: ssh-ed25519\n")
    (tmp_path / "other.pub").write_text("---- BEGIN SSH2 PUBLIC KEY ----\n")
    (tmp_path / "binary.pub").write_bytes(b"\xff\xfe\0")
    (tmp_path / "empty.pub").write_text("# nothing\n")
    (tmp_path / "two.pub").write_text(f"{KEY}\n{KEY}\n")
    (tmp_path / "broken.pub").write_text(f"{KEY}\n\nsecret words\n")
    (tmp_path / "folder.pub").mkdir()
    (tmp_path / "large.pub").write_text("x" * 70_000)
    return tmp_path


@pytest.mark.parametrize("row", OCI_ROWS.values(), ids=OCI_ROWS.keys())
def test_faults_with_provider_oci(key_files: Path, row: tuple[str, str, str, str]) -> None:
    old, new, path, words = row
    assert old in OCI
    text = OCI.replace(old, new, 1)
    line = column = None
    if MARK in text:
        text, line, column = marked(text)
    (found,) = findings(text, str(key_files / "cluster.yml"))
    assert found[2] == path
    assert words in found[3]
    assert "secret" not in found[3], "what a file holds must not be shown"
    if line is not None:
        assert found[:2] == (line, column)


def test_a_key_file_that_may_not_be_read(key_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    (found,) = findings(OCI, str(key_files / "cluster.yml"))
    assert found[3].endswith("operator.pub can't be read: Permission denied")
