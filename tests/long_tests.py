"""Tests that `make test-all` runs and `make test` leaves out.

They take most of the time of the suite, and prove further cases of what shorter tests prove: other orders, other
systems, other moments of a failure. ADR 0129 has the rule, tests/contract/test_long_tests.py holds it.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
# What the short run proves of it, and where; a file below this folder; and its tests, or cases of them, that are left
# out: all where none is named.
_LEFT_OUT: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "The other parts run on the old Python in node_agent/test_oldest_python.py, and vermin looks at every file.",
        "node_agent/test_oldest_python.py",
        (
            "test_the_agent_s_tests_pass[others]",
            "test_the_agent_s_tests_pass[health]",
            "test_the_agent_s_tests_pass[watch]",
            "test_the_agent_s_tests_pass[checks]",
        ),
    ),
    (
        "Other moments of the same: lifecycle/test_ownership.py keeps one of each.",
        "lifecycle/test_ownership.py",
        (
            "test_an_identity_from_the_first_apply_to_the_destroy",
            "test_a_cluster_without_an_identity_gets_an_identity_by_apply",
            "test_a_cluster_of_which_not_all_is_left_belongs_to_its_folder",
            "test_in_an_existing_network_nothing_is_made_before_the_controller_is_held",
            "test_of_first_applies_of_several_processes_exactly_one_goes_on[existing network]",
            "test_of_two_first_applies_at_once_one_makes_the_cluster[existing network, the other one is there]",
            "test_of_two_first_applies_at_once_one_makes_the_cluster[the other one is there]",
            "test_of_two_first_applies_at_once_one_makes_the_cluster[the other one comes later]",
            "test_of_two_first_applies_at_once_one_makes_the_cluster[existing network, the other one comes later]",
        ),
    ),
    (
        "One drive, and a stripe on loop devices: localcloud/test_cloud_init.py.",
        "localcloud/test_cloud_init.py",
        ("test_four_drives_become_one_file_system_that_outlives_a_reboot",),
    ),
    (
        "Other faults of the cloud, with the same daemon and Slurm: autoscaler/daemon/test_harness_faults.py.",
        "autoscaler/daemon/test_harness_faults.py",
        (
            "test_scenario_16_a_pool_whose_nodes_never_boot_is_left_alone",
            "test_scenario_02_one_of_a_gang_has_no_host_for_long",
            "test_scenario_33_no_more_nodes_than_allowed",
            "test_scenario_51_a_node_that_failed_its_checks_is_replaced_when_its_job_has_ended",
            "test_scenario_25_an_instance_is_stopped_under_a_running_job",
        ),
    ),
    (
        "Other moments of a kill, with the same daemon and Slurm: autoscaler/daemon/test_harness_crashes.py.",
        "autoscaler/daemon/test_harness_crashes.py",
        (
            "test_scenario_46_the_ledger_is_lost[q46b-spoilt]",
            "test_scenario_12_slurmctld_does_not_answer",
            "test_scenario_14_the_cloud_is_down_while_a_job_runs_and_another_comes",
        ),
    ),
    (
        "Other refusals and kills of the same Terraform: terraform/test_bad_luck.py.",
        "terraform/test_bad_luck.py",
        (
            "test_a_launch_is_refused_for_one_reason_after_the_other",
            "test_a_mount_target_of_others_holds_the_subnet",
            "test_a_configuration_that_is_in_use_stays_until_its_user_goes",
            "test_terraform_finishes_its_work_when_gpucluster_is_killed",
            "test_the_next_run_waits_for_the_terraform_of_a_killed_one",
            "test_what_was_deleted_behind_our_back_is_made_again",
        ),
    ),
    (
        "A setting that Slurm does not know, and a file that its program refuses, are tried in ansible/test_trials.py.",
        "ansible/test_trials.py",
        (
            "test_slurm_runs_again_with_the_old_files_if_it_does_not_come_up_with_the_new_ones",
            "test_limits_of_users_are_set_hold_and_are_taken_back",
            "test_a_program_tries_a_file_in_its_place[sshd---]",
            "test_a_program_tries_a_file_in_its_place[slaptest---]",
        ),
    ),
    (
        "Each command in folders of other kinds, and one remote state: cli/test_every_folder.py.",
        "cli/test_every_folder.py",
        ("test_a_fresh_clone_with_a_remote_state[True]",),
    ),
    (
        "A lost state, a kill, and an instance that still starts are in terraform/test_adoption_live.py.",
        "terraform/test_adoption_live.py",
        (
            "test_an_instance_that_still_starts_is_adopted_when_it_runs[killed while it wrote the state]",
            "test_a_control_plane_of_oke_is_not_made_twice",
            "test_a_newer_image_replaces_no_host_that_is_adopted",
            "test_a_destroy_right_after_a_kill_leaves_nothing",
        ),
    ),
    (
        "Pools of each kind grow, shrink and refuse in terraform/test_scaling_root.py.",
        "terraform/test_scaling_root.py",
        (
            "test_a_named_node_of_each_kind_is_recreated_under_its_name_and_nothing_else_changes",
            "test_an_image_of_another_distribution_makes_other_instances_of_the_same_names",
            "test_another_image_is_a_replacement_and_other_memory_a_reboot",
            "test_no_node_goes_unasked_and_a_run_that_was_killed_half_way_is_taken_up",
        ),
    ),
    (
        "A control plane and its node pools are made, upgraded and removed in terraform/test_tf_oke.py.",
        "terraform/test_tf_oke.py",
        (
            "test_add_ons_stay_at_their_version_or_follow_oke",
            "test_oracles_plugin_for_gpus_keeps_away_from_our_hosts",
            "test_the_nodes_of_this_cluster_may_join_its_control_plane",
        ),
    ),
    (
        "The same steps, in the words of one of the three platforms: cli/test_pipelines.py.",
        "cli/test_pipelines.py",
        (
            "test_a_plan_is_a_comment_and_only_that_plan_is_applied[gitlab]",
            "test_a_plan_is_a_comment_and_only_that_plan_is_applied[oci-devops]",
        ),
    ),
    (
        "Another seed: autoscaler/simulation/test_soak.py.",
        "autoscaler/simulation/test_soak.py",
        ("test_a_day_of_bad_luck_with_500_nodes[0-False-24]",),
    ),
    (
        "The exporters themselves: ansible/test_exporters_host.py.",
        "ansible/test_exporters_host.py",
        (
            "test_the_exporter_without_rights_gets_sys_of_a_pod",
            "test_the_watcher_of_jobs_and_what_reports_its_words_run",
        ),
    ),
    (
        "Every setting, and with it an image: terraform/test_tf_machines.py.",
        "terraform/test_tf_machines.py",
        (
            "test_a_custom_image_is_offered_for_another_shape",
            "test_an_image_of_the_marketplace_is_subscribed_to_once_and_kept",
        ),
    ),
    (
        "Other ways to cancel the same runs: cluster/test_cancelled_runs.py.",
        "cluster/test_cancelled_runs.py",
        ("test_ctrl_c_in_asyncio_ends_a_run_in_order",),
    ),
    (
        "Its text from Slurm's answers: controller/monitor/test_slurm_metrics.py.",
        "operations/test_monitor_slurm.py",
        (),
    ),
    (
        "What a backup has and how it is restored: controller/backup/test_jobs_slurm.py.",
        "ansible/test_backup_schedule_host.py",
        (),
    ),
    (
        "`make release` does the same. What a release consists of: tools/test_release.py.",
        "tools/test_release_build.py",
        ("test_a_release_is_built_twice_with_the_same_bytes_and_its_wheel_works",),
    ),
    (
        "Changes one by one: terraform/test_update_policies.py.",
        "terraform/test_random_changes.py",
        (),
    ),
    (
        "Its answers while it works: operations/test_drain.py.",
        "operations/test_drain.py",
        ("test_a_dead_slurmctld_is_told",),
    ),
    (
        "The SDK's pauses of 94 seconds. Other answers about the same volumes: cloud/test_boot_volumes.py.",
        "cloud/test_boot_volumes.py",
        ("test_a_refusal_and_a_rollback_are_told_apart",),
    ),
    (
        "What instances reach, and what they do not: localcloud/test_metadata_path.py.",
        "localcloud/test_reach.py",
        ("test_a_neighbour_with_a_route_reaches_neither_instance_nor_gateway",),
    ),
    (
        "The same scripts at a boot: localcloud/test_cloud_init.py; with firewalls: e2e/test_main_path.py.",
        "localcloud/test_traps.py",
        (),
    ),
    (
        "Planted faults are found by the same jobs in operations/test_measuring_slurm.py.",
        "operations/test_measuring_slurm.py",
        ("test_bad_luck_ends_with_an_answer",),
    ),
    (
        "The toolkit of a driver that stays: ansible/test_nvidia_host.py, and its unit: ansible/test_mig_host.py.",
        "ansible/test_nvidia_toolkit.py",
        (),
    ),
    (
        "Growth and removal: terraform/test_scaling_root.py; Enroot and secrets on hosts: "
        "ansible/test_enroot_host.py, controller/test_munge_keys.py, controller/test_host_keys.py; a bad node "
        "is replaced in e2e/test_elastic.py.",
        "e2e/test_changes.py",
        (),
    ),
    (
        "What differs, and what does not count: drift/test_hosts.py, controller/drift/test_slurm.py, "
        "node_agent/drift/test_recorded.py; a saved plan: cli/test_pipelines.py; what was changed by hand is "
        "put back in e2e/test_main_path.py.",
        "e2e/test_drift.py",
        (),
    ),
    (
        "The volume and the address in Terraform: terraform/test_tf_standby.py; the loss of a controller: "
        "e2e/test_main_path.py.",
        "e2e/test_standby.py",
        (),
    ),
    (
        "The volume in Terraform: terraform/test_tf_state_volume.py; the loss of a controller: e2e/test_main_path.py.",
        "e2e/test_controller_state.py",
        (),
    ),
    (
        "The local cluster of the README is built as it is in e2e/test_main_path.py, and the elastic "
        "inventory in e2e/test_elastic.py; all are checked in spec/test_spec_seeds.py.",
        "e2e/test_inventories.py",
        (),
    ),
    (
        "Boot volumes that are replaced: cloud/test_boot_volumes.py; the decisions: rollout/test_decide.py, "
        "lifecycle/test_rollout.py.",
        "e2e/test_rollout.py",
        (),
    ),
    (
        "A spent budget with real Slurm: autoscaler/daemon/test_harness_budget.py; what it costs: e2e/test_people.py.",
        "e2e/test_account_budget.py",
        (),
    ),
    (
        "Every command on one machine: e2e/test_main_path.py; other folders: cli/test_every_folder.py.",
        "e2e/test_anywhere.py",
        (),
    ),
    (
        "Containers by Docker and nerdctl: ansible/test_docker_host.py, ansible/test_containerd_host.py.",
        "e2e/test_without_scheduler.py",
        (),
    ),
    (
        "A reboot by Slurm: ansible/test_slurm_reboot.py.",
        "e2e/test_reboot.py",
        (),
    ),
    (
        "Restores with real Slurm and MariaDB, also killed ones: controller/backup/test_jobs_slurm.py.",
        "e2e/test_people.py",
        (
            "test_the_controller_makes_encrypted_backups_of_its_own",
            "test_a_damaged_backup_changes_nothing",
            "test_a_restore_brings_back_what_was_lost",
            "test_a_running_job_is_in_the_way",
            "test_a_restore_that_is_killed_leaves_a_directory_that_works",
        ),
    ),
    (
        "Each command in each kind of folder: cli/test_every_folder.py; those of a cluster: e2e/test_main_path.py.",
        "e2e/test_elastic.py",
        ("test_each_command_that_reads_works_here_or_reports_why_not",),
    ),
    (
        "Which instances get the machine's GPUs: localcloud/compute/test_machine_gpus.py.",
        "e2e/test_machine_gpus.py",
        (),
    ),
    (
        "The same commands with other words around them: e2e/test_main_path.py.",
        "e2e/test_tutorial.py",
        (),
    ),
)
#: What the short run proves of each file, or test of one (`FILE::NAME`, `FILE::NAME[CASE]`).
LONG: dict[str, str] = {
    name: why for why, file, tests in _LEFT_OUT for name in ([f"{file}::{test}" for test in tests] or [file])
}


def is_long(path: Path, name: str) -> bool:
    """Whether `make test` leaves a test out.

    Args:
        path: its file. `name`: of its function, with the case in brackets if it has several.
    """
    if not path.is_relative_to(TESTS):
        return False
    file = path.relative_to(TESTS).as_posix()
    return not LONG.keys().isdisjoint((file, f"{file}::{name}", f"{file}::{name.partition('[')[0]}"))
