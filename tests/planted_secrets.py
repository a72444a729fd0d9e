"""Two hundred secrets of many kinds in the places where they turn up, for tests that look for them in what is kept.

All are made here for the tests. Real keys come from `cryptography`, the other forms from the pages that
`node_agent.rules.scrubbing` names. Ordinary text stands between them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import string
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

#: Stands in each text, and must stay.
ORDINARY = (
    "slurmctld: error: Nodes compute-[1-2] not responding, setting DOWN",
    "sshd[77]: Accepted publickey for opc from 10.0.0.4 port 52211 ssh2",
    "kernel: NVRM: Xid (PCI:0000:0f:00): 79, pid=1234, GPU has fallen off the bus.",
    "instance ocid1.instance.oc1.eu-frankfurt-1.antheljtwnzf7yqcabcdefghijklmnopqrstuvwxyz234567abc of compute-1",
)
_WORDS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class Planted:
    """One secret.

    Args:
        kind: what it is.
        text: the lines in which it stands.
        hidden: none of these may be found afterwards.
    """

    kind: str
    text: str
    hidden: tuple[str, ...]


@cache
def planted(seed: int = 31) -> tuple[Planted, ...]:
    """All of them; the same in each call of one process."""
    return tuple(_all(random.Random(seed)))


def _password(chance: random.Random, more: str = "-!") -> str:
    return "".join(chance.choices(string.ascii_lowercase + string.digits, k=9)) + chance.choice(more) + "Q7"


def _word(chance: random.Random, number: int, signs: str = _WORDS) -> str:
    return "".join(chance.choices(signs, k=number))


def _base64(chance: random.Random, number: int) -> str:
    return base64.b64encode(chance.randbytes(number)).decode()


_ASSIGNED = (
    "StoragePass={}", "export HF_TOKEN={}", "password: {}", '"password": "{}",', "bind_password = {}", "bindpw {}",
    "ldap_default_authtok = {}", "rootpw {}", "userPassword: {}", "olcRootPW: {}", "--password {}", "--token={}",
    "passphrase='{}'", "pass_phrase={}", "MYSQL_PWD={}", "RESTIC_PASSWORD='{}' restic backup", "client_secret: {}",
    'api_key = "{}"', "apikey={}", "X-Api-Key: {}", "Authorization: Bearer {}", "proxy=http://alice:{}@proxy:3128",
    "mysql://slurm:{}@localhost/slurm_acct_db", "git clone https://x-token:{}@git.example/x.git",
    "mysql -u root -p{} mysql", "ldapsearch -x -D cn=admin,dc=x -w {} -b dc=x", "curl -u alice:{} https://x.example",
    "sshpass -p {} ssh host", "machine git.example login alice password {}", "<password>{}</password>",
    "the password is {}", "password for alice: {}", "IDENTIFIED BY '{}'", "munge_key: {}", "SLURM_JWT={}",
    "echo 'alice:{}' | chpasswd", "wandb_api_key: {}", "AWS_SECRET_ACCESS_KEY={}", "secret: {}", "cookie={}",
    "smtp_auth_password={}", "Environment=GF_SECURITY_ADMIN_PASSWORD={}", "kubeadm join --certificate-key {} x:6443",
    "credential: {}", "requirepass {}", "private_token={}", "s3: {{access_key: {}, region: x}}",
    "openssl enc -k x pass:{}",
)  # fmt: skip


def _all(chance: random.Random) -> Iterator[Planted]:
    for form in _ASSIGNED:
        for before in ("", "Nov 29 01:02:03 compute-1 prog[12]: "):
            secret = _password(chance)
            yield Planted(f"{form} {before}", before + form.format(secret), (secret,))
    for number in range(10):
        secret = _password(chance)
        yield Planted(f"JSON {number}", json.dumps({"a": [{"token": secret, "name": "x"}]}), (secret,))
        secret = _password(chance)
        yield Planted(f"YAML block {number}", f"passwords:\n  - {secret}\n  - x{secret}\nname: y", (secret,))
        secret = _password(chance)
        lines = (
            "a[1]: passwords:",
            "b[2]: one",
            f"a[1]:   - {secret}",
            "b[2]: two",
            f"a[1]:   - x{secret}",
            "a[1]: name: y",
        )
        text = "\n".join(f"2026-11-29T01:02:03.123456+00:00 compute-1 {line}" for line in lines)
        yield Planted(f"YAML block in a journal {number}", text, (secret,))
    for number in range(6):
        secret = _base64(chance, 24)
        text = f"apiVersion: v1\nkind: Secret\nmetadata: {{name: x}}\ndata:\n  anything: {secret}\n"
        yield Planted(f"a Secret of Kubernetes {number}", text, (secret,))
    yield from _forms(chance)
    yield from _coded(chance)
    yield from _keys()


def _forms(chance: random.Random) -> Iterator[Planted]:
    """Without a name before them."""
    for kind in ("munge key", "WireGuard key", "OCI customer secret key", "random"):
        for length in (32, 128):
            secret = _base64(chance, length)
            yield Planted(f"{kind} {length}", f"it has read {secret} from its file", (secret, secret[4:28]))
    for number in range(5):
        head, body = (
            base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=")
            for each in ({"alg": "HS256", "typ": "JWT"}, {"sun": "root", "exp": number})
        )
        tail = _word(chance, 43)
        yield Planted(f"JWT {number}", f"scontrol token: SLURM {head}.{body}.{tail}", (tail, body))
    for prefix in ("$6$", "$y$j9T$", "$2b$12$", "$1$", "{SSHA}", "{CRYPT}$6$"):
        secret = _word(chance, 8) + "$" + _word(chance, 43)
        yield Planted(f"hash {prefix}", f"entry alice: {prefix}{secret} is in it", (secret,))
        coded = base64.b64encode(f"{prefix}{secret}".encode()).decode()
        yield Planted(f"hash in LDIF {prefix}", f"userPassword:: {coded}", (coded,))
    for number in range(5):
        secret = _word(chance, 6, string.ascii_lowercase) + "." + _word(chance, 16, string.ascii_lowercase + "123")
        yield Planted(f"kubeadm token {number}", f"the node joins with {secret} now", (secret,))
    for prefix in ("ghp_", "gho_", "glpat-", "hf_", "nvapi-", "xoxb-", "npm_", "hvs.", "sk-"):
        secret = prefix + _word(chance, 36)
        yield Planted(f"token {prefix}", f"it uses {secret} for that", (secret,))
    yield Planted("AKIA", "it uses AKIA" + (key := _word(chance, 16, string.ascii_uppercase)), (key,))
    yield Planted("PAR", f"GET https://objectstorage.x/p/{(key := _word(chance, 64))}/n/ns/b/x/o/y", (key,))
    yield Planted("MUNGE", f"credential MUNGE:{(key := _base64(chance, 90))}: was refused", (key,))
    yield Planted("MariaDB hash", f"user *{(key := hashlib.sha1(b'x').hexdigest().upper())}", (key,))


def _coded(chance: random.Random) -> Iterator[Planted]:
    for number in range(10):
        secret = _password(chance)
        coded = base64.b64encode(f"StoragePass={secret}\nStorageUser=slurm\n".encode()).decode()
        yield Planted(f"base64 {number}", f"content: {coded}", (secret, coded))
        secret = _password(chance)
        coded = base64.b64encode(f"alice:{secret}".encode()).decode()
        yield Planted(f"basic {number}", f"Authorization: Basic {coded}", (coded,))


def _keys() -> Iterator[Planted]:
    pem, openssh = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    for kind, key, form in (
        ("ssh ed25519", ed25519.Ed25519PrivateKey.generate(), openssh),
        ("ssh ecdsa", ec.generate_private_key(ec.SECP256R1()), openssh),
        ("OCI API key", rsa.generate_private_key(65537, 2048), serialization.PrivateFormat.PKCS8),
        ("key of a certificate", ec.generate_private_key(ec.SECP384R1()), serialization.PrivateFormat.PKCS8),
        ("CA's key", rsa.generate_private_key(65537, 2048), serialization.PrivateFormat.TraditionalOpenSSL),
    ):
        text = key.private_bytes(pem, form, serialization.NoEncryption()).decode()
        body = tuple(line for line in text.splitlines() if not line.startswith("-----"))
        yield Planted(kind, text, body)
        yield Planted(f"{kind} in JSON", json.dumps({"content": text}), body)
        yield Planted(f"{kind} in a journal", "\n".join(f"Nov 29 n1 x[1]: {line}" for line in text.splitlines()), body)
        coded = base64.b64encode(text.encode()).decode()
        yield Planted(f"{kind} in base64", f"client-key-data: {coded}", (coded, coded[40:120]))
        yield Planted(f"{kind} in base64 without a name", f"it is {coded} here", (coded, coded[40:120]))


def left(texts: str) -> list[str]:
    """The kinds of those that are in a text."""
    return [each.kind for each in planted() if any(part in texts for part in each.hidden)]


def texts_of(file: Path) -> dict[str, str]:
    """The texts in a support bundle, by their path."""
    with tarfile.open(file, "r:gz") as archive:
        members = archive.getmembers()
        assert all(member.isfile() and member.mode == 0o600 for member in members)
        assert len({member.name.partition("/")[0] for member in members}) == 1
        read = {member.name.partition("/")[2]: archive.extractfile(member) for member in members}
        return {name: stream.read().decode() for name, stream in read.items() if stream}
