"""Limits of memory and CPU time of containers, as the kernel writes them."""

from pathlib import Path

import pytest

from server.control_groups import memory_limits, num_cores

V1 = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "memory", "cores"),
    [
        pytest.param(
            "0::/\n",
            {"memory.max": "2147483648\n", "cpu.max": "250000 100000\n"},
            [2 << 30],
            2,
            id="version 2",
        ),
        pytest.param(
            "0::/pod/container\n",
            {
                "pod/container/memory.max": "max\n",
                "pod/container/cpu.max": "max 100000\n",
                "pod/memory.max": "1000\n",
                "pod/cpu.max": "50000 100000\n",
            },
            [1000],
            1,
            id="version 2, of the group around",
        ),
        pytest.param(
            V1,
            {
                "memory/docker/abc/memory.limit_in_bytes": "4096\n",
                "cpu/docker/abc/cpu.cfs_quota_us": "150000\n",
                "cpu/docker/abc/cpu.cfs_period_us": "100000\n",
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
            [4096],
            1,
            id="version 1",
        ),
        pytest.param(V1, {}, [], 8, id="not mounted"),
    ],
)
def test_limits(
    tmp_path: Path, groups: str, files: dict[str, str], memory: list[int], cores: int
) -> None:
    root, list_of_groups = tmp_path / "cgroup", tmp_path / "groups"
    write(root, files)
    list_of_groups.write_text(groups)
    assert list(memory_limits(root, list_of_groups)) == memory
    assert num_cores(8, root, list_of_groups) == cores


def test_systems_without_control_groups_have_no_limits(tmp_path: Path) -> None:
    assert list(memory_limits(tmp_path, tmp_path / "groups")) == []
    assert num_cores(8, tmp_path, tmp_path / "groups") == 8
