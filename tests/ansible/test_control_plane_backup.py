"""Which controllers tell the program for backups of a control plane."""

from __future__ import annotations

import pytest

from tests.ansible.loading import read
from tests.ansible.render import evaluate


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"scheduler": "slurm"}, None),
        ({"scheduler": "none"}, None),
        ({"scheduler": "kubernetes", "kubernetes_control_plane": "oke"}, None),
        (
            {"scheduler": "kubernetes", "kubernetes_control_plane": "self"},
            {"folder": "/etc/kubernetes", "config": "/etc/kubernetes/kubeadm.yaml"},
        ),
    ],
)
def test_only_a_control_plane_of_kubeadm_is_backed_up(given: dict[str, str], told: dict[str, str] | None) -> None:
    variables = read("roles/people/vars/main.yml")
    assert evaluate(variables["people_backup"]["control_plane"], {**variables, **given}) == told
