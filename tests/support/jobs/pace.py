"""Steps of one all-reduce each, with a heartbeat, until ``--steps``; in round 1 one rank can fall asleep or leave.

``--sleep RANK``: that rank never comes out of its own code after step 10. ``--apart``: no rank ever communicates.
``--raise RANK``: that rank fails after step 10, in every round. ``--later STEPS``: of every round but the first.
"""

from __future__ import annotations

import argparse
import os
import threading
import time

import torch
import torch.distributed as dist

from ezpz_elastic import progress

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--later", type=int, default=None)
parser.add_argument("--sleep", type=int, default=-1)
parser.add_argument("--raise", dest="fail", type=int, default=-1)
parser.add_argument("--apart", action="store_true")
options = parser.parse_args()
rank, first_life = int(os.environ["RANK"]), os.environ["EZPZ_ROUND"] == "1"
if not options.apart:
    dist.init_process_group("gloo")
for step in range(options.steps if first_life or options.later is None else options.later):
    if not options.apart:
        dist.all_reduce(torch.ones(1))
    progress(step)
    print(f"step={step} ", flush=True)
    if step == 10 and rank == options.sleep and first_life:
        threading.Event().wait()
    if step == 10 and rank == options.fail:
        raise ValueError("told to fail")
    time.sleep(0.02)
if not options.apart:
    dist.destroy_process_group()
