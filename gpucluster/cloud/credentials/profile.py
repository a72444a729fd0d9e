"""A profile of an OCI configuration file, and what the SDK and Terraform's provider get of it.

The profile of a session (`oci session authenticate`) has a `security_token_file` and no user. The SDK takes it as it
is. Terraform's provider reads it from `.oci/config` in a home folder only, so it gets a copy of the profile there.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster.cloud.client import session_signer
from gpucluster.cloud.credentials.session_folder import SessionFolder, session_env
from gpucluster.errors import InputError


@dataclass(frozen=True)
class OciProfile:
    """One profile: the tenancy, the user, and the user's API key or session.

    Args:
        user: empty for a session.
        key_file: the path of the private key. The key itself is not read here.
        security_token_file: the path of a session's token; empty for an API key.
    """

    tenancy: str
    user: str
    fingerprint: str
    key_file: str
    region: str
    security_token_file: str = ""

    @classmethod
    def read(cls, file: Path, profile: str) -> OciProfile:
        """Read one profile.

        Raises:
            InputError: the file, the profile or one of its entries is missing.
        """
        parser = configparser.ConfigParser(interpolation=None)
        try:
            with file.open() as stream:
                parser.read_file(stream)
            section = parser[profile]
            token = section.get("security_token_file", "")
            return cls(
                section["tenancy"],
                section.get("user", "") if token else section["user"],
                section["fingerprint"],
                str(Path(section["key_file"]).expanduser()),
                section["region"],
                str(Path(token).expanduser()) if token else "",
            )
        except OSError as error:
            raise InputError(
                f"can't read the OCI configuration file: {error.strerror}",
                where=str(file),
                hint="Create it with: oci setup config",
            ) from error
        except (KeyError, configparser.Error) as error:
            raise InputError(
                f"the profile {profile} of the OCI configuration file lacks {error}",
                where=str(file),
                hint="Complete the profile, or name another one as `cloud.profile` in cluster.yml",
            ) from error

    def sdk_config(self, region: str) -> dict[str, str]:
        """The configuration of the SDK's clients."""
        return {
            "tenancy": self.tenancy,
            "user": self.user,
            "fingerprint": self.fingerprint,
            "key_file": self.key_file,
            "region": region,
            **({"security_token_file": self.security_token_file} if self.security_token_file else {}),
        }

    def signer(self) -> Any:
        """The signer of a session, which the SDK does not make of a configuration; None for an API key.

        Raises:
            InputError: the token or the key of the session can't be read.
        """
        if not self.security_token_file:
            return None
        token = Path(self.security_token_file)
        try:
            return session_signer(lambda: token.read_text().strip(), Path(self.key_file).read_text())
        except (OSError, ValueError) as error:
            raise InputError(
                f"the session of the profile can't be used: {error}",
                where=self.security_token_file,
                hint="Begin a new one with: oci session authenticate",
            ) from error

    def terraform_env(self, region: str) -> Mapping[str, str]:
        """The same for Terraform's provider, which reads it from the environment: we write no key into a file.

        The provider prefers some of the caller's variables to these. `gpucluster.environment` removes them.
        """
        if self.security_token_file:
            folder = SessionFolder.of_profile(self.sdk_config(region))
            return session_env(folder.path, region)
        return {
            "OCI_TENANCY_OCID": self.tenancy,
            "OCI_USER_OCID": self.user,
            "OCI_FINGERPRINT": self.fingerprint,
            "OCI_PRIVATE_KEY_PATH": self.key_file,
            "OCI_REGION": region,
        }

    def state_env(self) -> Mapping[str, str]:
        """Nothing: the backend `oci` reads the profile itself, by its name."""
        return {}
