"""Rank 0 of the first life allocates until it is killed; in later lives nobody does."""

import os
import time

from ezpz_elastic import progress

progress(1)
print("step=1 ", flush=True)
held = []
while os.environ["EZPZ_ROUND"] == "1" and os.environ["RANK"] == "0":
    held.append(b"x" * (16 << 20))
time.sleep(1)
