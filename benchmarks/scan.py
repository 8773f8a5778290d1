"""How fast a console log is classified, beside reading it whole and running the same patterns through ``re``.

    python benchmarks/scan.py [--gib 1] [--baseline-mib 16] [--json FILE]

Writes a synthetic console log (24 ranks, progress lines full of escape sequences, one signature near the end),
classifies it in a process of its own, and prints GB/s, peak memory and the ratio. The plain way is measured on the
last ``--baseline-mib`` of the same log, as its time grows with the size and a whole GiB of it takes many minutes; both
are compared in bytes per second. Numbers are of one core of the machine they were taken on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 24
HOSTS = ("x1921c1s0b0n0", "x1921c1s1b0n0")
DOMAIN = ".hsn.cm.sunspot.alcf.anl.gov"
_ANSI = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")


def write_log(path: Path, size: int) -> None:
    """Progress lines up to ``size`` bytes, with a lost node's lines 10 KiB before the end."""
    written = step = 0
    with path.open("wb") as file:
        while written < size:
            lines = []
            for _ in range(400):
                step += 1
                lines += [
                    f"[rank{rank}]: [17:{step // 60 % 60:02d}:{step % 60:02d}][I][ezpz/history:1765:log_metrics] "
                    f"\x1b[36miter\x1b[0m=\x1b[1;36m{step}\x1b[0m \x1b[36mepoch\x1b[0m=0 \x1b[36mloss\x1b[0m="
                    f"\x1b[1;36m{13.9 / (1 + step * 1e-6):.6f}\x1b[0m \x1b[36mdt\x1b[0m=\x1b[1;36m0.372866\x1b[0m\n"
                    for rank in range(RANKS)
                ]
            block = "".join(lines).encode()
            tail = size - written <= len(block)
            if tail:
                death = (
                    f"{HOSTS[1]}{DOMAIN}: \x1b[31mshepherd died from signal \x1b[1;31m9\x1b[0m\n"
                    f"{HOSTS[0]}{DOMAIN}: rank 3 died from signal 15\n"
                ).encode()
                cut = block.rfind(b"\n", 0, max(size - written - 10240, 2)) + 1
                block = block[:cut] + death + block[cut : cut + 10240]
            file.write(block)
            written += len(block)
            if tail:
                return


def classify(path: Path) -> dict[str, object]:
    """Classify in this process; run as a child so that peak memory is its own."""
    from ezpz_elastic import classify_log
    from ezpz_elastic.observe.scanner import warm_up
    from ezpz_elastic.signatures import load_library

    began = time.perf_counter()
    warm_up(load_library())
    ready = time.perf_counter()
    cpu = time.process_time()
    verdict = classify_log(path, exit_code=143, machine="sunspot", hosts=[host + DOMAIN for host in HOSTS])
    return {
        "seconds": time.perf_counter() - ready,
        "cpu_seconds": time.process_time() - cpu,
        "compile_seconds": ready - began,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "kind": verdict.kind.value,
        "hosts": [host.name for host in verdict.hosts],
        "line": verdict.evidence[0].line,
    }


def plain(path: Path, size: int) -> float:
    """Seconds to read the last ``size`` bytes whole and run every pattern over them with ``re``."""
    from ezpz_elastic.signatures import load_library

    patterns = [
        re.compile(s.regex.pattern.encode(), s.regex.flags & ~re.UNICODE | re.MULTILINE)
        for s in load_library().signatures
    ]
    began = time.perf_counter()
    with path.open("rb") as file:
        file.seek(-size, os.SEEK_END)
        text = _ANSI.sub(b"", file.read())
    found = sum(1 for pattern in patterns for _ in pattern.finditer(text))
    if not found:
        raise SystemExit("the plain way found nothing: the benchmark is broken")
    return time.perf_counter() - began


def main() -> None:
    """Write, measure both ways, print one table and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--baseline-mib", type=float, default=16.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(classify(options.child)))
        return
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "console.log"
        write_log(log, int(options.gib * 2**30))
        size = log.stat().st_size
        runs = []
        for _ in range(options.repeat):
            child = [sys.executable, __file__, "--child", str(log)]
            runs.append(json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout))
        best = min(runs, key=lambda run: run["seconds"])
        sample = min(int(options.baseline_mib * 2**20), size)
        slow = sample / plain(log, sample)
    fast, fast_cpu = size / best["seconds"], size / best["cpu_seconds"]
    print(f"log             {size / 2**30:.2f} GiB, {RANKS} ranks")
    print(f"classify        {fast / 1e9:.2f} GB/s ({fast_cpu / 1e9:.2f} GB per CPU second), best of {len(runs)}")
    print(f"peak memory     {max(run['peak_mb'] for run in runs):.0f} MB")
    cold = size / (best["seconds"] + best["compile_seconds"])
    print(
        f"first call      {cold / 1e9:.2f} GB/s with {best['compile_seconds']:.2f} s to import and compile signatures"
    )
    print(f"verdict         {best['kind']} {best['hosts']} at line {best['line']}")
    print(f"read and re     {slow / 1e9:.4f} GB/s over the last {sample / 2**20:.0f} MiB")
    print(f"ratio           {fast / slow:.0f}x")
    if options.json:
        options.json.write_text(json.dumps({"gb_per_s": fast / 1e9, "ratio": fast / slow, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
