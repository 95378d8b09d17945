#!/usr/bin/env python3
"""How long trainc takes from a large ONNX graph to its differentiated, simplified form, and to the whole plan, on one core.

    python3 benchmarks/import_time.py [--trainc build/trainc] [--work build/benchmarks] [--runs 5] [NAME...]

NAME is a graph of tests/models (default: all). Its weights file is all holes. Prints medians of processor time, so that others on
the machine count little: `derived` is the whole run less the passes behind the second simplify (fuse, schedule, memplan, ...), `plan`
the whole run; `peak` is the largest resident set. The first run, which finds no page of the weights file in memory, is printed apart,
by the clock.
"""
import argparse, os, re, statistics, subprocess, sys, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "models"))
import check_model

BEHIND = {"pack", "fuse", "schedule", "memplan"}


def run_once(command):
    """Seconds by the clock, of the processor, of the processor in the passes behind, peak in MB."""
    started = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
    log = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    total = time.monotonic() - started
    if status:
        sys.exit(f"{' '.join(command)}\n{log}")
    behind = sum(float(ms) for name, ms in re.findall(r"^(\w+) +([\d.]+) ms ", log, re.M) if name in BEHIND)
    busy = usage.ru_utime + usage.ru_stime
    return total, busy, busy * behind / 1000 / total, usage.ru_maxrss / 1024


def measure(trainc, work, name, runs):
    dims, loss, _ = check_model.expectations()[name]
    files = check_model.unpack(name, work)
    command = [trainc, "plan", files[0], "--dim", dims, "--loss", loss, "--mem", "999T", "-v"]
    first = run_once(command)
    rest = [run_once(command) for _ in range(runs)]
    for f in files:
        os.remove(f)
    derived = statistics.median(busy - behind for _, busy, behind, _ in rest)
    plan = statistics.median(busy for _, busy, _, _ in rest)
    print(f"{name:26} {derived:8.3f} s {plan:8.3f} s {max(peak for *_, peak in [first] + rest):8.0f} MB {first[0]:8.3f} s", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--trainc", default="build/trainc")
    ap.add_argument("--work", default="build/benchmarks")
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("names", nargs="*")
    a = ap.parse_args()
    print(f"{'':26} {'derived':>10} {'plan':>10} {'peak':>11} {'first run':>10}")
    for name in a.names or sorted(check_model.expectations()):
        measure(a.trainc, a.work, name, a.runs)
