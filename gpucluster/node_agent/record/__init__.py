"""The record of a job on a node: what the counters of its network said before and after it.

`snapshot` reads them, `difference` compares (pure), `node` is what the prolog and the epilog run, `queue` sends records
to the controller (`gpucluster.controller.job_records`). docs/adr/0057-job-records.md has the reasons.
"""
