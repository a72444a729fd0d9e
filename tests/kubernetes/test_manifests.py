"""What the helpers for manifests make."""

from __future__ import annotations

import json

import yaml

from gpucluster.kubernetes import manifests
from tests.kubernetes.schemas import validate, validate_all
from tests.kubernetes.test_schemas import _pod


def test_what_the_helpers_make_is_valid_for_every_release() -> None:
    made = [
        manifests.namespace(manifests.SYSTEM_NAMESPACE, {"a": "b"}),
        manifests.daemon_set("d", _pod()["spec"]),
        _pod(),
    ]
    validate_all(made)
    validate(json.loads(manifests.to_json(made)))
    assert list(yaml.safe_load_all(manifests.to_yaml(made))) == made
    assert manifests.images(made) == ["example.org/a:1"]
    assert all(each["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpucluster" for each in made)
