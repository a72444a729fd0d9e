"""A profile of an OCI configuration file, and what the SDK and Terraform's provider get of it."""

from __future__ import annotations

import configparser
from dataclasses import dataclass
from pathlib import Path

from gpucluster.errors import InputError


@dataclass(frozen=True)
class OciProfile:
    """One profile: the tenancy, the user, and the user's API key.

    Args:
        key_file: the path of the private key. The key itself is not read here.
    """

    tenancy: str
    user: str
    fingerprint: str
    key_file: str
    region: str

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
            return cls(
                section["tenancy"],
                section["user"],
                section["fingerprint"],
                str(Path(section["key_file"]).expanduser()),
                section["region"],
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
        }

    def terraform_env(self, region: str) -> dict[str, str]:
        """The same for Terraform's provider, which reads it from the environment: we write no key into a file.

        The provider prefers some of the caller's variables to these. `gpucluster.environment` removes them.
        """
        return {
            "OCI_TENANCY_OCID": self.tenancy,
            "OCI_USER_OCID": self.user,
            "OCI_FINGERPRINT": self.fingerprint,
            "OCI_PRIVATE_KEY_PATH": self.key_file,
            "OCI_REGION": region,
        }
