"""A directory that exists, for tests: a slapd that knows nothing of gpucluster, with TLS, a CA and a schema of its own.

What this does not prove: other servers than OpenLDAP, referrals, replicas, and thousands of users.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.ansible.booted import Booted

NAME = "ldap.example.test"
BASE = "dc=example,dc=test"
BIND = f"cn=gpucluster,ou=services,{BASE}"
PASSWORD = "a%s$b=c 'd"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB1VxbV0BLLcDFhEcXBQTJKdYDO8MbWOXJTwJvOH3eO8 taro@laptop"
FOLDER = "/srv/other-directory"
#: In rfc2307bis a group of POSIX is an addition to another class, whose `member` lists entries.
_SCHEMA = f"""\
cd /etc/ldap/schema
sed '/posixGroup/,/MAY/{{s/STRUCTURAL/AUXILIARY/;s/cn [$] gidNumber/gidNumber/}}' nis.schema > {FOLDER}/bis.schema
"""
_CONF = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
include SCHEMA
include FOLDER/keys.schema
modulepath /usr/lib/ldap
moduleload back_mdb
TLSCACertificateFile FOLDER/ca.pem
TLSCertificateFile FOLDER/server.pem
TLSCertificateKeyFile FOLDER/server.key
database mdb
suffix "BASE"
rootdn "cn=root,BASE"
directory FOLDER/DATA
maxsize 1073741824
access to attrs=userPassword by anonymous auth
access to * by dn.exact="BIND" read by self read by * none
"""
_KEYS = """\
attributetype ( 1.3.6.1.4.1.24552.500.1.1.1.13 NAME 'sshPublicKey' EQUALITY octetStringMatch
  SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 )
objectclass ( 1.3.6.1.4.1.24552.500.1.1.2.0 NAME 'ldapPublicKey' SUP top AUXILIARY MAY ( sshPublicKey $ uid ) )
"""


@dataclass(frozen=True)
class Person:
    """A user of the other directory."""

    uid: str
    number: int
    full_name: str = "Example"
    gid: int = 4999
    more: str = ""

    @property
    def dn(self) -> str:
        return f"uid={self.uid},ou=staff,{BASE}"

    def ldif(self) -> str:
        return (
            f"dn: {self.dn}\nobjectClass: inetOrgPerson\nobjectClass: posixAccount\nobjectClass: shadowAccount\n"
            f"objectClass: ldapPublicKey\nuid: {self.uid}\ncn: {self.full_name}\nsn: {self.full_name}\n"
            f"uidNumber: {self.number}\ngidNumber: {self.gid}\nhomeDirectory: /elsewhere/{self.uid}\n"
            f"loginShell: /bin/sh\nuserPassword: of-{self.uid}\n{self.more}\n"
        )


PEOPLE = (
    Person("Yamada.Taro", 3001, "山田太郎", more=f"sshPublicKey: {KEY}\n"),
    Person("sato", 3002, "佐藤花子"),
    Person("prime", 3003, gid=4000),
    Person("low", 500),
    Person("ended", 3005, more="shadowExpire: 1\n"),
    Person("outsider", 3006),
    Person("boss", 3007, more=f"sshPublicKey: {KEY}\n"),
    Person("daemon", 3008),
    Person("鈴木", 3009, "鈴木一郎"),
)
_BY_NAME = {person.uid: person for person in PEOPLE}
#: Group -> gid and members. `team` is in `hpc`, where groups can be nested.
GROUPS: dict[str, tuple[int, tuple[str, ...]]] = {
    "hpc": (4000, ("Yamada.Taro", "low", "ended", "daemon", "鈴木")),
    "team": (4001, ("sato",)),
    "HPC Admins": (4002, ("boss",)),
    "everyone": (4999, ()),
}


def _group(name: str, *, bis: bool) -> str:
    number, members = GROUPS[name]
    also = "objectClass: groupOfNames\n" if bis else ""
    head = f"dn: cn={name},ou=groups,{BASE}\nobjectClass: posixGroup\n{also}cn: {name}\ngidNumber: {number}\n"
    if not bis:
        return head + "".join(f"memberUid: {each}\n" for each in members) + "\n"
    nested = [f"cn=team,ou=groups,{BASE}"] if name == "hpc" else []
    listed = [*(_BY_NAME[each].dn for each in members), *nested] or [BIND]
    return head + "".join(f"member: {each}\n" for each in listed) + "\n"


def entries(*, bis: bool) -> str:
    """The whole directory as LDIF."""
    units = "".join(f"dn: ou={each},{BASE}\nobjectClass: organizationalUnit\nou: {each}\n\n" for each in
                    ("staff", "groups", "services"))  # fmt: skip
    return (
        f"dn: {BASE}\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: example\n\n{units}"
        f"dn: {BIND}\nobjectClass: organizationalRole\nobjectClass: simpleSecurityObject\ncn: gpucluster\n"
        f"userPassword: {PASSWORD}\n\n"
        + "".join(person.ldif() for person in PEOPLE)
        + "".join(_group(name, bis=bis) for name in GROUPS)
    )


@dataclass(frozen=True)
class Certificates:
    """A CA with a key of its own, and a certificate of the server, as PEM."""

    ca: str
    server: str
    key: str


def certificates(*, name: str = NAME, days: int = 2) -> Certificates:
    """Make them. With a negative number of days the server's has expired."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Example CA")])
    now = datetime.now(UTC)

    def made(subject: x509.Name, of: ec.EllipticCurvePrivateKey, end: datetime) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(of.public_key())
        begin = now - timedelta(days=30)
        return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)

    authority = made(ca_name, ca_key, now + timedelta(days=2)).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    server = made(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), key, now + timedelta(days=days)
    ).add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    signed = [each.sign(ca_key, hashes.SHA256()).public_bytes(pem).decode() for each in (authority, server)]
    return Certificates(signed[0].strip(), signed[1], private.decode())


def install(host: Booted, which: Certificates) -> None:
    """Write both directories, without starting a server."""
    host.sh(f"mkdir -p {FOLDER}/bis {FOLDER}/plain && ip link set lo up && echo '127.0.0.1 {NAME}' >> /etc/hosts")
    host.sh(_SCHEMA)
    host.put(f"{FOLDER}/keys.schema", _KEYS)
    put_certificates(host, which)
    for data, schema in (("bis", f"{FOLDER}/bis.schema"), ("plain", "/etc/ldap/schema/nis.schema")):
        text = _CONF.replace("SCHEMA", schema).replace("DATA", data).replace("BASE", BASE).replace("BIND", BIND)
        host.put(f"{FOLDER}/{data}.conf", text.replace("FOLDER", FOLDER))
        host.put(f"{FOLDER}/{data}.ldif", entries(bis=data == "bis"))
        host.sh(f"slapadd -q -f {FOLDER}/{data}.conf -l {FOLDER}/{data}.ldif")


def put_certificates(host: Booted, which: Certificates) -> None:
    """Give the server these."""
    for name, text in (("ca.pem", which.ca), ("server.pem", which.server), ("server.key", which.key)):
        host.put(f"{FOLDER}/{name}", text)


def serve(host: Booted, data: str) -> None:
    """Start a server with one of the directories, in the place of another one."""
    host.sh("systemctl stop other-directory 2> /dev/null", check=False)
    host.sh(
        "systemd-run --quiet --collect --unit=other-directory --property=LimitNOFILE=1024 "
        f"slapd -d 0 -f {FOLDER}/{data}.conf -h ldaps://{NAME}"
    )
