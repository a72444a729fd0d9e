"""Templates, launchers and jobs as data: each is whole, and a job can be read back."""

from __future__ import annotations

from gpucluster.jobs import choose, registry
from gpucluster.jobs.model import Kind, Ranks
from tests.jobs.test_render import ALL


def test_every_template_and_launcher_is_whole() -> None:
    for template in registry.templates():
        assert template.launchers
        for name in template.launchers:
            by = registry.launchers()[name]
            assert template.ranks in by.ranks, (template.name, name)
            names = [option.name for option in choose.options(template, by)]
            assert len(names) == len(set(names)), (template.name, name)
            for option in choose.options(template, by):
                if option.default != "":
                    shown = str(option.default).lower() if option.kind is Kind.FLAG else str(option.default)
                    assert option.parse(shown) == option.default, option.name
    for by in registry.launchers().values():
        # Pods have no variables of their own: their launchers set what ranks need.
        assert (by.variables is None) == (Ranks.MPI not in by.ranks or by.wrap is not None), by.name


def test_all_kinds_of_jobs_are_there() -> None:
    for template in registry.template_names():
        for launcher in registry.template(template).launchers:
            assert any(name.startswith(f"{template}-{launcher}-") for name in ALL), (template, launcher)


def test_a_job_can_be_read_back_from_its_own_description() -> None:
    for job in ALL.values():
        assert choose.from_dict(job.to_dict()) == job
