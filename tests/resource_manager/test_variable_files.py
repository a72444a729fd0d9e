"""The forms in which people have the values of a stack's variables."""

from __future__ import annotations

import json

import pytest

from gpucluster.errors import InputError
from gpucluster.resource_manager import variable_files
from tests.resource_manager.stacks import FORK, PIPELINE
from tests.spec.spec_texts import LOCAL

FLAT = {"node_count": "2", "region": "us-ashburn-1"}
STACK = {"display-name": "hpc", "freeform-tags": {}, "id": "ocid1.ormstack.oc1..a", "variables": FLAT}
FORMS = {
    "terraform.tfvars.json": json.dumps(FLAT),
    "stack get": json.dumps({"data": STACK, "etag": "a"}),
    "job get": json.dumps({"data": {"operation": "APPLY", "variables": FLAT}}),
    "the API": json.dumps(STACK),
    "a plan": json.dumps(
        {"format_version": "1.2", "variables": {name: {"value": each} for name, each in FLAT.items()}}
    ),
    "terraform.tfvars": 'node_count = "2"\nregion = "us-ashburn-1"\n',
    "env": "HOME=/root\nTF_VAR_node_count=2\nTF_VAR_region=us-ashburn-1\n",
    "a script": '# of the site\nexport TF_VAR_node_count=2 # nodes\nexport TF_VAR_region="us-ashburn-1"\n',
    "from Windows": 'node_count = "2"\r\nregion = <<EOF\r\nus-ashburn-1\r\nEOF\r\n',
    "with a byte order mark": "\ufeff" + json.dumps(FLAT),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_values(form: str) -> None:
    read = variable_files.read(FORMS[form], "v")
    assert {name: str(value).strip() for name, value in read.items()} == FLAT


def test_files_of_others_are_read() -> None:
    assert variable_files.read(PIPELINE, "v")["rdma_enabled"] == "false"
    assert variable_files.read(FORK, "v")["node_count"] == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"node_count": ', "not JSON (v:1:16)"),
        ("[" * 100_000, "not JSON (v"),
        ("[]", "a list, and not the variables of one stack (v)"),
        ('{"data": [{"variables": {"node_count": 2}}]}', "there is no variable of the HPC stack"),
        ('{"a": 1}', "there is no variable of the HPC stack"),
        ("", "there is no variable of the HPC stack"),
        ('node_count = 2\nssh_key = file("a")\n', "not the assignment of a literal value (v:2)"),
        ("a = " + "[" * 100_000, "(v"),
        ("HeadNode: {}\nScheduling: {}\n", "this is a file of AWS ParallelCluster (v)"),
        ("blueprint_name: a\ndeployment_groups: []\n", "this is a file of Google Cluster Toolkit (v)"),
        ("queues:\n  - name: compute\n", "this is queues.conf of the marketplace's HPC stack"),
        ('module "openstack" {\n  source = "git::https://example.com/magic_castle.git"\n}\n', "Magic Castle (v)"),
        ('variable "node_count" {\n  default = 2\n}\n', "this is a file of Terraform (v)"),
        (LOCAL, "this is a cluster file of gpucluster (v)"),
        ("export TF_VAR_ssh_key=$(cat ~/.ssh/id_rsa.pub)\n", "the shell computes the value of ssh_key (v:1)"),
        ('export TF_VAR_region="eu"\nexport TF_VAR_ad=`oci iam list`\n', "the shell computes the value of ad (v:2)"),
    ],
)
def test_anything_else_is_answered_with_what_it_is(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        variable_files.read(text, "v")
    assert words in str(caught.value)


def test_an_environment_keeps_spaces_quotes_and_equal_signs() -> None:
    text = "TF_VAR_ssh_key=ssh-rsa AAAA= it's me\nTF_VAR_ad='a$b'\nexport TF_VAR_region='eu'\"-1\"\n"
    assert variable_files.read(text, "v") == {"ssh_key": "ssh-rsa AAAA= it's me", "ad": "a$b", "region": "eu-1"}


def test_errors_quote_no_value() -> None:
    for text in ('{"node_count": "hunter2"', 'node_count = hunter2("hunter2")', "munge_key = hunter2"):
        with pytest.raises(InputError) as caught:
            variable_files.read(text, "v")
        assert "hunter2" not in str(caught.value)
