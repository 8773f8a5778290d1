"""A small model under DDP with Adam. Appends ``rank pid step time`` of every step to the file that is its argument."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)))
optimizer = torch.optim.Adam(model.parameters())
with open(sys.argv[1], "a", buffering=1) as log:  # noqa: PTH123
    for step in range(1_000_000):
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.write(f"{rank} {os.getpid()} {step} {time.time()}\n")
        print(f"step={step}", flush=True)
        time.sleep(0.02)
