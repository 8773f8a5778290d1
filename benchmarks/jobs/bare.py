"""A loop of all-reduces. Appends ``rank pid step time`` of every step to the file that is its argument."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ones = dist.get_rank(), torch.ones(1)
with open(sys.argv[1], "a", buffering=1) as log:  # noqa: PTH123
    for step in range(1_000_000):
        dist.all_reduce(ones.clone())
        log.write(f"{rank} {os.getpid()} {step} {time.time()}\n")
        print(f"step={step}", flush=True)
        time.sleep(0.02)
