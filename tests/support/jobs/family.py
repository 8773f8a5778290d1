"""A job that keeps all kinds of descendants: DataLoader workers, a child in a session of its own, shared memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from multiprocessing import shared_memory

import torch
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    stubborn = "--stubborn" in sys.argv
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    segment = shared_memory.SharedMemory(create=True, size=1 << 20)
    segment.buf[0] = 1
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    data = TensorDataset(torch.zeros(1 << 20, 4))
    for step, _ in enumerate(DataLoader(data, batch_size=4, num_workers=2)):
        if step == 20:
            print("step=20 family complete", flush=True)
        if step > 20:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
