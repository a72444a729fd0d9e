"""Names of folders that mean something to ssh or to a shell: the real ssh reads names, and no shell runs them."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.paths import ClusterPaths
from gpucluster.ssh import GATEWAY, Host, JumpHost, SshClient, ensure_key
from tests.waiting import PATIENCE_S

# `pwn` is made in the working directory if a shell reads the name.
HOSTILE = [
    "x$(touch pwn)", "`touch pwn`", "a;touch pwn;", "a&touch pwn&", "a|touch pwn", "a>pwn", "$HOME", "a b", "a'b",
    'a"b', "a\\b", "a\\", "%h", "%C", "%%", "100%", "[ab]", "*", "?", "{a,b}", "~root", "#a", "!a", "=a", "-a", "é",
    "(touch pwn)", '";touch pwn;"', "';touch pwn;'", "\\\";touch pwn;\\\"",
]  # fmt: skip
HOSTS = (
    Host("demo-controller", "127.0.0.1", "nobody", "ocid1.instance.local..c", jump=GATEWAY),
    Host("compute-1", "10.77.1.3", "nobody", "ocid1.instance.local..n", jump="demo-controller"),
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, beside which the folders are."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_of_any_name_is_only_a_name(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.parent / name))
    (place.parent / name).mkdir(mode=0o700)
    paths = ClusterPaths(place.parent / name / ".gpucluster")
    paths.create()
    key = ensure_key(paths.ssh / "operator_ed25519", "test")
    client = SshClient(paths, key)
    client.write(HOSTS)
    client.write_gateway(JumpHost("127.0.0.1", 1, "nobody", "gateway-key"))
    try:
        read = settings(client, "compute-1")
        # ssh expands ~ and tokens when it uses a file; some options show %% for a %.
        for option, file in (("identityfile", key), ("userknownhostsfile", paths.ssh / "known_hosts")):
            assert read[option] in (str(file), str(file).replace("%", "%%"))
        command = shlex.split(read["proxycommand"].replace("%h:%p", "TOKEN").replace("%%", "%"))
        assert command == ["ssh", "-F", str(client.config), "-W", "TOKEN", "demo-controller"]
        # The gateway's file is included, and the whole way is tried: it ends at a port where nothing listens.
        assert settings(client, GATEWAY)["port"] == "1"
        done = subprocess.run(
            client.argv("compute-1", ["true"]), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert (done.returncode, "closed by remote host" in done.stderr) == (255, True), done.stderr
        assert list(place.iterdir()) == []
    finally:
        client.close()


def settings(client: SshClient, host: str) -> dict[str, str]:
    """What the real ssh has read for a host."""
    argv = ["ssh", "-F", str(client.config), "-G", host]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


@pytest.mark.parametrize("name", ["a\nProxyCommand touch pwn", "a\rb", "a\tb", "a\x1b[2J", "${HOME}", "a\x7f"])
def test_what_ssh_has_no_way_to_write_is_refused(name: str, place: Path) -> None:
    (place.parent / name).mkdir()
    paths = ClusterPaths(place.parent / name / ".gpucluster")
    paths.create()
    with pytest.raises(InputError, match="ssh can't use the path") as caught:
        SshClient(paths, None).write(HOSTS)
    assert str(caught.value).isprintable() or os.linesep in str(caught.value)
    assert not (paths.ssh / "config").exists()
