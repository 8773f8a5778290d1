"""An agent that has seen much is no larger than one that has seen little."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "agent_cost.py"


@pytest.mark.soak
def test_two_hundred_restarts_and_ten_thousand_steps_leave_nothing_behind_in_the_agent():
    words = ["--workers=2", "--restarts=200", "--updates=10000", "--pace=0.001", "--seconds=0", "--check"]
    done = subprocess.run([sys.executable, BENCHMARK, *words], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "200 restarts:" in done.stdout
    assert "10000 updates:" in done.stdout
