"""What the role pyxis tells the program for images."""

from __future__ import annotations

import json

from jinja2 import Environment

from gpucluster.controller.images import importer
from tests.ansible.loading import ANSIBLE


def test_the_role_states_where_imports_run() -> None:
    template = (ANSIBLE / "roles" / "pyxis" / "templates" / "images.json.j2").read_text()
    # Ansible's own filters and settings, as far as the template uses them.
    environment = Environment(trim_blocks=True, autoescape=False)
    environment.filters |= {
        "flatten": lambda lists: [one for some in lists for one in some],
        "combine": lambda one, other: {**one, **other},
        "to_nice_json": json.dumps,
    }
    node = {"Sockets": 2, "CoresPerSocket": 32, "ThreadsPerCore": 2}
    small = {"Sockets": 1, "CoresPerSocket": 2, "ThreadsPerCore": 2}
    pools = [
        {"name": "cpu", "partition": "both", "default": False, "nodes": ["cpu-1"], "elastic_nodes": "", "node": small},
        {
            "name": "a",
            "partition": "both",
            "default": True,
            "nodes": ["a-1", "a-2"],
            "elastic_nodes": "a-e[1-4]",
            "node": node,
        },
        {"name": "b", "partition": "alone", "default": False, "nodes": [], "elastic_nodes": "b-e[1-2]", "node": node},
    ]
    text = environment.from_string(template).render(
        slurm_pools=pools, home_mount_path="/mnt/home", pyxis_import_processors=8
    )
    config = json.loads(text)
    assert (config["default_pool"], config["directory"]) == ("a", "/mnt/home/.gpucluster/images")
    assert config["pools"] == {
        "cpu": {"partition": "both", "exclude": "a-1,a-2,a-e[1-4]", "cpus": 4},
        "a": {"partition": "both", "exclude": "cpu-1", "cpus": 8},
        "b": {"partition": "alone", "exclude": "", "cpus": 8},
    }
    importer.Importer(config)
