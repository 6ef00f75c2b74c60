"""A small decode workload, for the peers of the tests."""

from loadtest.compare.workloads import Workload, WorkloadKind
from loadtest.tasks import Task

WORKLOAD = Workload(
    task=Task.GENERATE,
    kind=WorkloadKind.DECODE,
    label="decode",
    precision="fp32",
    lengths=(3, 3),
    num_new_tokens=4,
)
