"""What the plugin costs torchrun users who do not want it, and the one seam it relies on."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
import torch.distributed.launcher.api as launcher_api

from ezpz_elastic.errors import UsageError
from ezpz_elastic.plugin import impossible_nnodes, seam

LIGHT = """
import sys
import torch.distributed.run
loaded = {name.partition(".")[0] for name in sys.modules}
assert "ezpz_elastic" in loaded, "torch has not loaded the plugin"
print(sorted(name for name in sys.modules if name.startswith(("ezpz_elastic", "rendezvous"))))
print(sorted(loaded & {"hyperscan", "etcd3", "msgspec", "psutil", "matplotlib", "typer", "rich", "xxhash"}))
"""


def test_the_installed_torch_builds_its_agent_where_we_put_ours():
    seam(launcher_api)


def test_a_torch_that_moved_the_seam_is_one_clear_line():
    moved = types.SimpleNamespace(launch_agent=lambda config: config, LocalElasticAgent=object)
    with pytest.raises(UsageError, match=r"no longer builds its agent in .*launch_agent; expected torch 2.13; hint"):
        seam(moved)


def test_torchrun_loads_the_plugin_and_nothing_of_weight_with_it():
    shown = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert shown == ["['ezpz_elastic', 'ezpz_elastic.plugin']", "[]"]


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("torchrun --rdzv-backend=ezpz --nnodes=3:2 s.py", True),
        ("torchrun --rdzv_backend ezpz --nnodes 0 s.py", True),
        ("torchrun --rdzv-backend=ezpz --nnodes=2:3 s.py", False),
        ("torchrun --rdzv-backend=ezpz --nnodes=4 s.py", False),
        ("torchrun --rdzv-backend=ezpz s.py", False),
        ("torchrun --rdzv-backend=c10d --nnodes=3:2 s.py", False),
        ("torchrun --nnodes", False),
        ("", False),
    ],
)
def test_only_command_lines_that_ask_for_us_are_looked_at(command, wrong):
    assert bool(impossible_nnodes(command.split())) is wrong
