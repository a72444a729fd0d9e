"""Rules for the state: backends, their settings, and no secret among them."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from gpucluster.spec import loads
from gpucluster.spec.rules.state import BACKENDS
from tests.spec.faults import findings, reported
from tests.spec.spec_texts import LOCAL, MARK, marked
from tests.spec.test_spec_oci import END, state

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "unknown backend": (END, state("{backend: §gcs}"), "state.backend", "must be local or oci or s3 or http"),
    "settings of the local backend": (END, state("{config: {§path: x}}"), "state.config.path", "unknown setting of the backend local. It has no settings"),
    "no bucket": (END, state("{backend: oci, config: {namespace: x}}"), "state.config.bucket", "is missing: the backend oci needs it. Add `config: {bucket: terraform}`"),
    "empty namespace": (END, state("{backend: oci, config: {bucket: x, namespace: §''}}"), "state.config.namespace", "is missing"),
    "no bucket for S3": (END, state("{backend: s3}"), "state.config.bucket", "is missing"),
    "misspelled setting": (END, state("{backend: oci, config: {bucket: x, namespace: y, §regoin: z}}"), "state.config.regoin", "unknown setting of the backend oci. Did you mean region?"),
    "list as setting": (END, state("{backend: oci, config: {bucket: x, namespace: y, key: §[z]}}"), "state.config.key", "must be text, a whole number, true or false; got a list"),
    "password in an address": (END, state("{backend: http, config: {address: §'https://me:hunter2@example.com/x'}}"), "state.config.address", "contains a user's password"),
    "token in an address": (END, state("{backend: http, config: {lock_address: §'https://hunter2@example.com/x'}}"), "state.config.lock_address", "contains a user's password"),
    "password in an endpoint": (END, state("{backend: s3, config: {bucket: x, endpoint: §'https://me:hunter2@example.com'}}"), "state.config.endpoint", "contains a user's password"),
    "pre-authenticated request": (END, state("{backend: http, config: {address: §'https://objectstorage.example.com/p/hunter2/n/x/b/y/o/z'}}"), "state.config.address", "pre-authenticated request, a secret, which this file must not contain. Delete the line, and set the environment variable TF_HTTP_ADDRESS"),
    "no URL": (END, state("{backend: http, config: {address: §'ftp://example.com'}}"), "state.config.address", "must be a URL"),
    "unlock alone": (END, state("{backend: http, config: {§unlock_address: 'https://example.com/l'}}"), "state.config.unlock_address", "has no meaning without lock_address"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


@pytest.mark.parametrize(
    ("backend", "secret"), [(name, secret) for name, backend in BACKENDS.items() for secret in backend.secrets]
)
def test_no_secret_may_stand_among_the_settings_of_a_backend(backend: str, secret: str) -> None:
    needed = "".join(f"{key}: {example}, " for key, example in BACKENDS[backend].required.items())
    text, line, column = marked(LOCAL + f"state: {{backend: {backend}, config: {{{needed}{MARK}{secret}: hunter2}}}}\n")
    ((found_line, found_column, path, words),) = findings(text)
    assert (found_line, found_column, path) == (line, column, f"state.config.{secret}")
    assert words.startswith("is a secret, which this file must not contain. Delete the line, and ")
    assert "hunter2" not in words


def test_a_setting_without_a_value_is_not_there() -> None:
    text = LOCAL + "state: {backend: oci, config: {bucket: x, namespace: null}}\n"
    assert {found[2] for found in findings(text)} == {"state.config.namespace"}


@pytest.mark.parametrize(
    "config",
    [
        "{backend: oci, config: {bucket: a, namespace: b, key: x/y.tfstate, region: eu-frankfurt-1, auth: SecurityToken}}",
        "{backend: s3, config: {bucket: a, region: us-east-1, use_path_style: true, max_retries: 3}}",
        "{backend: s3, config: {bucket: a, namespace: b}}",
        "{backend: http, config: {address: 'https://example.com/s', lock_address: 'https://example.com/l', "
        "unlock_address: 'https://example.com/l', lock_method: POST, username: me}}",
        "{backend: http}",
        "{backend: local}",
    ],
)
def test_states_elsewhere(config: str) -> None:
    assert loads(f"{LOCAL}state: {config}\n").state.backend in config
