"""What the tests of whole steps share: the tools of a build folder, the cases, and failing with a sentence. Standard library only."""
import json, os, struct, subprocess, sys
from pathlib import Path

STEPS = Path(__file__).resolve().parent
CASES = STEPS.parent / "cases"
GPUS = ("gfx90a", "gfx942", "gfx1100", "gfx1151")
WAVES = ("gfx90a", "gfx1100")                     # one GPU with waves of 64, one with waves of 32
SKIPPED = 77                                      # ctest's SKIP_RETURN_CODE


class Failed(Exception):
    pass


class Build:
    """The programs of a build folder, as the tests start them."""

    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.trainc = str(self.folder / "trainc")
        self.compare = str(self.folder / "trainc-compare")
        self.hiprtc = str(self.folder / "tests/hiprtc_compile")
        self.standin = str(self.folder / "hip_host")
        self.malloc_count = str(self.folder / "toy-step/tools/libmalloc_count.so")
        self.mappings = str(self.folder / "tests/steps/libtrainc_mappings.so")

    def standin_environment(self, kernels, arch):
        return {"LD_LIBRARY_PATH": self.standin, "TRAINC_STANDIN_KERNELS": str(kernels), "TRAINC_STANDIN_ARCH": arch}


def call(args, cwd=None, env=None, timeout=900):
    """Exit status, stdout and stderr of a command."""
    p = subprocess.run([str(a) for a in args], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                       env=dict(os.environ, **(env or {})))
    return p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace")


def need(what, args, cwd=None, env=None):
    """stdout of a command that must succeed."""
    code, out, err = call(args, cwd, env)
    if code:
        raise Failed(f"{what}: exit {code}\n{out}{err}")
    return out


def spec_of(name):
    return json.loads((CASES / name / "case.json").read_text())


def data_options(run):
    """The --data options of a case's run options."""
    return [y for i, x in enumerate(run) if x == "--data" for y in ("--data", run[i + 1])]


def with_option(options, name, value):
    """The options with `name` set to `value`."""
    out = list(options)
    if name in out:
        out[out.index(name) + 1] = str(value)
        return out
    return out + [name, str(value)]


def read_log(path, without=("ms", "samples_per_s", "tokens_per_s")):
    """The log's rows without what a clock decides."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in without} for row in rows]


def same_folders(a, b):
    """Names of the files that differ or that one folder lacks."""
    files = {p.relative_to(r) for r in (Path(a), Path(b)) for p in r.rglob("*") if not p.is_dir()}

    def bytes_of(p):
        return p.read_bytes() if p.is_file() else None
    return sorted(str(f) for f in files if bytes_of(Path(a) / f) != bytes_of(Path(b) / f))


def write_npy(path, dtype, shape, values, fortran=False):
    """`dtype` as numpy spells it ("<f4"); `values` in the order of the file."""
    codes = {"f4": "f", "f8": "d", "i8": "q", "i4": "i", "u2": "H", "i2": "h", "u1": "B", "f2": "e"}
    head = f"{{'descr': '{dtype}', 'fortran_order': {fortran}, 'shape': ({''.join(f'{n}, ' for n in shape)}), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    order = ">" if dtype[0] == ">" else "<"
    Path(path).write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() +
                           struct.pack(f"{order}{len(values)}{codes[dtype[1:]]}", *values))


def finish(test):
    """Runs a test's main function; a Failed is one message and exit status 1."""
    try:
        sys.exit(test(sys.argv[1:]) or 0)
    except Failed as e:
        sys.exit(f"FAIL {e}")
