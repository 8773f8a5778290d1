"""A job in the background inherits signals ignored; its workers find them as torchrun's workers do."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os, signal
from ezpz_elastic.warm.server import settle_in
for name in ("SIGHUP", "SIGINT", "SIGUSR1"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
settle_in({"cwd": os.getcwd(), "env": dict(os.environ)}, {})
print(*(signal.getsignal(getattr(signal, name)) is signal.SIG_IGN for name in ("SIGHUP", "SIGINT", "SIGUSR1")))
"""


@pytest.mark.parametrize(
    ("handled", "ignored"),
    [({}, "False False True"), ({"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGINT,SIGUSR1"}, "True False False")],
)
def test_what_the_agent_handles_is_at_its_default_in_a_worker(handled, ignored):
    done = subprocess.run([sys.executable, "-c", CODE], env=handled, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == ignored
