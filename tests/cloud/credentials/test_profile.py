"""Profiles of an OCI configuration file: an API key. One with a session: test_session.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.cloud.credentials import OciProfile
from gpucluster.errors import InputError

TEXT = "[OPS]\ntenancy=t\nuser=u\nfingerprint=aa:bb\nkey_file=/k.pem\nregion=us-ashburn-1\n"


def test_a_key_needs_no_signer_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(TEXT)
    profile = OciProfile.read(tmp_path / "config", "OPS")
    assert profile.signer() is None
    assert profile.state_env() == {}
    assert "security_token_file" not in profile.sdk_config("us-ashburn-1")
    assert profile.terraform_env("uk-london-1")["OCI_REGION"] == "uk-london-1"


@pytest.mark.parametrize("missing", ["tenancy", "user", "fingerprint", "key_file", "region"])
def test_a_missing_entry_is_named(missing: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("\n".join(line for line in TEXT.splitlines() if not line.startswith(missing)))
    with pytest.raises(InputError, match=f"lacks '{missing}'"):
        OciProfile.read(tmp_path / "config", "OPS")
