"""Section `users.directory`: a directory that exists, instead of one of the cluster's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from gpucluster.controller.rules import names as name_rules
from gpucluster.spec.sections.fields import AbsolutePath, FileName, Resolved, SpecPart, located

#: TLS from the first byte. Plain ldap:// would send the password and all entries unencrypted.
SERVER_PATTERN = r"^ldaps://[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?(:[0-9]{1,5})?$"
#: A distinguished name (RFC 4514), without line breaks and what files of SSSD and Ansible read as something else.
DN_PATTERN = r"^[A-Za-z][A-Za-z0-9-]*=[^\x00-\x1f\x7f#;\"{}]*[^\x00-\x20\x7f#;\"{}]$"
#: Names of groups: those of Active Directory may have blanks. sshd and sudo read them as patterns and lists.
GROUP_PATTERN = r"^[A-Za-z0-9_]([A-Za-z0-9 ._-]{0,62}[A-Za-z0-9_.-])?$"
ATTRIBUTE_PATTERN = r"^[A-Za-z][A-Za-z0-9-]{0,63}$"
#: Above it are the subordinate ids of rootless containers: such a user's files would be those of other users, too.
HIGHEST_ID = name_rules.RESERVED_IDS[-1].start - 1
#: Where each kind has the public keys of a user. Active Directory has no attribute of its own for them; this one is in
#: use there.
KEY_ATTRIBUTES = {"ldap": "sshPublicKey", "ad": "altSecurityIdentities", "ipa": "ipaSshPubKey"}

Server = Annotated[str, Field(pattern=SERVER_PATTERN, max_length=255)]
DistinguishedName = Annotated[str, Field(pattern=DN_PATTERN, max_length=1024)]
GroupName = Annotated[str, Field(pattern=GROUP_PATTERN)]
Attribute = Annotated[str, Field(pattern=ATTRIBUTE_PATTERN)]
# Also below what the cluster itself assigns: a directory that exists has given its numbers already.
DirectoryId = Annotated[int, Field(ge=1000, le=HIGHEST_ID)]


class ExistingDirectory(SpecPart):
    """A directory that exists. Its users are changed there; the controller runs no directory then."""

    kind: Literal["ldap", "ad", "ipa"] = Field(
        description="`ldap`: an LDAP server with POSIX users. `ad`: Active Directory, by LDAP and without a join. "
        "`ipa`: FreeIPA, likewise.",
        examples=["ldap"],
    )
    servers: tuple[Server, ...] = Field(
        min_length=1,
        max_length=8,
        description="URLs of its servers, `ldaps://` only; the first that answers is used. Every host must resolve and "
        "reach them.",
        examples=[["ldaps://ldap1.example.com", "ldaps://ldap2.example.com"]],
    )
    base: DistinguishedName = Field(
        description="Below this entry users and groups are looked for.", examples=["dc=example,dc=com"]
    )
    bind_dn: DistinguishedName = Field(
        description="The entry with which hosts bind. It needs to read users and groups, and nothing else.",
        examples=["cn=gpucluster,ou=services,dc=example,dc=com"],
    )
    bind_password_file: FileName = Field(
        description="File on this machine with its password, relative to this file and readable by you alone: keep it "
        "out of Git. Root of every host can read the password there.",
        examples=["directory.password"],
    )
    ca_certificate: FileName = Field(
        description="File with the certificates (PEM) of the CA of its servers; hosts trust no other for it.",
        examples=["directory-ca.pem"],
    )
    ldap_schema: Literal["rfc2307", "rfc2307bis"] = Field(
        default="rfc2307",
        description="How groups of `kind: ldap` list members. `rfc2307`: names, in `memberUid`. `rfc2307bis`: entries, "
        "in `member`; groups may be nested.",
    )
    user_groups: tuple[GroupName, ...] = Field(
        min_length=1,
        max_length=50,
        description="Groups of the directory whose members are the users of the cluster: they can log in, and have a "
        "home and a Slurm association.",
        examples=[["hpc-users"]],
    )
    admin_groups: tuple[GroupName, ...] = Field(
        default=(),
        max_length=50,
        description="Groups whose members are users, too, may use `sudo` on every host with their password of the "
        "directory, and are administrators of Slurm.",
        examples=[["hpc-admins"]],
    )
    id_mapping: bool = Field(
        default=False,
        description="With `kind: ad`: whether uids and gids are computed from the SIDs. `false`: the directory has "
        "`uidNumber` and `gidNumber`. Never change it: files would have other owners.",
    )
    first_id: DirectoryId = Field(
        default=name_rules.FIRST_ID,
        description="Lowest uid and gid. Users with a lower uid or primary gid do not exist on the cluster.",
    )
    last_id: DirectoryId = Field(
        default=HIGHEST_ID,
        description="Highest uid and gid. Higher ones belong to rootless containers of users.",
    )
    shell: AbsolutePath | None = Field(
        default=None, description="Login shell of every user. `null`: that of the directory.", examples=["/bin/bash"]
    )
    ssh_key_attribute: Attribute | None = Field(
        default=None,
        description="Attribute with the public ssh keys of a user. `null`: `sshPublicKey`, with `kind: ad` "
        "`altSecurityIdentities`, with `kind: ipa` `ipaSshPubKey`.",
        examples=["sshPublicKey"],
    )
    _directory: Path | None = PrivateAttr(default=None)
    _certificates: Mapping[str, tuple[str, ...]] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Take the directory of the file, and the certificates, from the validation context."""
        if isinstance(context, Resolved):
            self._directory, self._certificates = context.directory, context.certificates

    @property
    def bind_password_path(self) -> Path:
        """The absolute path of `bind_password_file`."""
        return located(self.bind_password_file, self._directory or Path()).absolute()

    @property
    def ca_pem(self) -> str:
        """The certificates of `ca_certificate`."""
        return "\n".join(self._certificates.get(self.ca_certificate, ()))

    @property
    def key_attribute(self) -> str:
        """The attribute with the public ssh keys."""
        return self.ssh_key_attribute or KEY_ATTRIBUTES[self.kind]
