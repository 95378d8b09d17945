#!/usr/bin/env python3
"""obstacles.py BUILD - everything that is wrong with a model is told in one run, and every diagnostic is provoked by a test.

The models are those of obstacles/make.py. `many.onnx` has an obstacle of every kind: each must be told with its code, the node's path, the
module, the opset, the types of its inputs, the parameter that it cuts off, and a hint. PROVOKE has a command for each error and warning
of ir/diag.def; a row without one, or without a hint, fails. Most notes are provoked by the tests of tests/frontend that name them."""
import re
import tempfile
from common import *

MODELS = STEPS / "obstacles"
FAULTS = STEPS.parent / "frontend/models"
MANY, CUT, LAYERS = (MODELS / f"{n}.onnx" for n in ("many", "cut", "layers"))

# code, node, module, line of version and inputs, parameter that would not train
OBSTACLES = [
    ("E_OP_UNSUPPORTED", "node_foo (Foo)", "enc.act", "opset 3 of my.ops; inputs e0 f32[4,4]", "enc.w"),
    ("E_OP_UNSUPPORTED", "node_words (StringNormalizer)", "words", "opset 18; inputs s0 f32[4,4]", "words.w"),
    ("E_DYNAMIC_SHAPE", "node_nonzero (NonZero)", "mask", "opset 18; inputs n0 f32[4,4]", "mask.w"),
    ("E_DYNAMIC_SHAPE", "node_view (Reshape)", "shape", "opset 18; inputs d0 f32[4,4], sizes i64[2]", "shape.w"),
    ("E_DOT_INNER", "node_linear_4 (MatMul)", "inner", "opset 18; inputs x f32[4,4], inner.w f32[5,4]", "inner.w"),
    ("E_OP_ATTRIBUTE", "node_conv2d (Conv)", "conv", "opset 18; inputs img f32[4,3,8,8], conv.w f32[8,3,3,3]", "conv.w"),
    ("E_SHAPES", "node_add (Add)", "add", "opset 18; inputs x f32[4,4], add.b f32[7]", "add.b"),
    ("E_OP_VERSION", "node_upsample (Upsample)", "old", "opset 18; inputs o0 f32[4,4]", "old.w"),
    ("E_DTYPE", "node_embedding (Gather)", "table", "opset 18; inputs table.w f32[6,4], positions f32[3]", "table.w"),
    ("E_OP_ATTRIBUTE", "node_softmax (Softmax)", "axis", "opset 18; inputs x0 f32[4,4]", "axis.w"),
    ("E_SHAPES", "node_cat (Concat)", "cat", "opset 18; inputs img f32[4,3,8,8], cat.w f32[1,5,7,7]", "cat.w"),
    ("E_MODEL_INVALID", "node_addmm (Gemm)", "lacks", "opset 18; inputs lacks.w f32[4,4]", "lacks.w"),
    ("E_MODEL_INVALID", "node_add_1 (Add)", "undefined", "opset 18; inputs u0 f32[4,4], nowhere", "undefined.w"),
    ("E_OP_UNSUPPORTED", "node_if/node_bogus (Bogus)", None, "opset 18; inputs lm f32[4,4]", "loop.w"),
    ("E_OP_UNSUPPORTED", "node_block/node_odd (Det)", None, "opset 3 of my.ops; inputs m f32[4,4]", "block.w"),
    ("W_UNTRAINED", "node_argmax (ArgMax)", "best", "inputs f32[4,4]", "best.w"),
    ("W_UNTRAINED", "node_round (Round)", "round", "inputs f32[4,4]", "round.w"),
]

PLAN = ["--dim", "batch=4"]
PROVOKE = {
    "E_DOT_INNER": (4, [MANY, *PLAN]), "E_SHAPES": (4, [MANY, *PLAN]), "E_DTYPE": (4, [MANY, *PLAN]),
    "E_MODEL_READ": (4, ["nowhere.onnx"]), "E_MODEL_INVALID": (4, [MANY, *PLAN]),
    "E_WEIGHTS_READ": (4, [FAULTS / "external_missing.onnx"]),
    "E_OP_UNSUPPORTED": (4, [MANY, *PLAN]), "E_OP_VERSION": (4, [MANY, *PLAN]), "E_OP_ATTRIBUTE": (4, [MANY, *PLAN]),
    "E_DYNAMIC_SHAPE": (4, [MANY, *PLAN]),
    "E_NO_GRADIENT": (4, [CUT, *PLAN, "--loss", "mse", "--freeze", "fc.weight"]),
    "E_DIM_UNBOUND": (2, [CUT, "--loss", "mse"]), "E_DIM_UNKNOWN": (2, [CUT, *PLAN, "--dim", "batsh=3", "--loss", "mse"]),
    "E_DIM_CONFLICT": (2, [CUT, *PLAN, "--dim", "batch=5", "--loss", "mse"]),
    "E_GLOB_UNMATCHED": (2, [CUT, *PLAN, "--loss", "mse", "--freeze", "fd.weight"]),
    "E_LOSS_CHOICE": (2, [CUT, *PLAN]), "E_LOSS_UNKNOWN": (2, [CUT, *PLAN, "--loss", "msr"]),
    "E_LOSS_TENSOR": (2, [CUT, *PLAN, "--loss", "mse:yy"]), "E_LOSS_SHAPE": (2, [CUT, *PLAN, "--loss", "causal_lm:y"]),
    "E_LOSS_PROBS": (2, [MODELS / "probs.onnx", *PLAN, "--loss", "cross_entropy"]),
    "E_BATCH": (2, [CUT, *PLAN, "--loss", "mse", "--micro-batch", "3"]),
    "E_OPTIMIZER": (2, [CUT, *PLAN, "--loss", "mse", "--optimizer", "adm"]),
    "E_OPTION": (2, [CUT, *PLAN, "--loss", "mse", "--set", "z=3"]),
    "E_NOTHING_TRAINS": (2, [CUT, *PLAN, "--loss", "mse", "--freeze", "*"]),
    "E_DOES_NOT_FIT": (3, [CUT, *PLAN, "--loss", "mse", "--mem", "1K"]),
    "N_LORA": (0, [CUT, *PLAN, "--loss", "mse", "--lora", "2:fc*"]),
    "W_UNTRAINED": (0, [CUT, *PLAN, "--loss", "mse"]),
    "W_OUTPUT": (0, [FAULTS / "beside_scalar.onnx", "--dim", "batch=2"]),
    "W_BATCHNORM": (0, [FAULTS / "inference_norm.onnx", "--batch", "8", "--loss", "mse"]),
}
# provoked where a user cannot: a rule that does not build, a compiler or a folder that fails
ELSEWHERE = {"E_RULE": "tests/ir/rule.c", "E_TOOL": "tests/codegen/library.c", "E_OUTPUT": "tests/codegen/library.c"}

# what was misspelt, in the words that must be there
NEAR = [
    (["plan", CUT, *PLAN, "--loss", "msr"], "did you mean mse?"),
    (["plan", CUT, *PLAN, "--loss", "mse:m00"], "did you mean m0?"),
    (["plan", CUT, "--dim", "bacth=4", "--loss", "mse"], "did you mean batch?"),
    (["plan", CUT, *PLAN, "--loss", "mse", "--set", "xx=1"], "did you mean x?"),
    (["plan", CUT, *PLAN, "--loss", "mse", "--freeze", "fc.wieght"], "did you mean fc.weight?"),
    (["plan", CUT, *PLAN, "--loss", "mse", "--train", "bets.weight"], "did you mean best.weight?"),
    (["plan", CUT, *PLAN, "--loss", "mse", "--train", "bets*"], "names like "),
    (["plan", CUT, *PLAN, "--loss", "mse", "--tie", "fc.weight=round.wait"], "did you mean round.weight?"),
    (["plan", CUT, *PLAN, "--loss", "mse", "--rename", "rename.json"], "did you mean less.weight?"),
    (["plan", CUT, *PLAN, "--loss", "mse", "--optimizer", "adamww"], "did you mean adamw?"),
    (["plan", CUT, *PLAN, "--loss", "mse", "--target", "gfx92a"], "did you mean gfx90a?"),
    (["plan", CUT, *PLAN, "--loss", "mse", "--batchnorm", "tain"], "did you mean train?"),
    (["plan", CUT, *PLAN, "--los", "mse"], "did you mean --loss?"),
    (["paln", CUT], "did you mean trainc plan?"),
    (["help", "evl"], "did you mean trainc eval?"),
    (["eval", CUT, "--data", "x1=x.npy", "--engine", "interp", *PLAN], "did you mean x?"),
    (["eval", CUT, "--data", "x=x.npy", "--expect", "yy=x.npy", "--engine", "interp"], "did you mean y?"),
]

# files that no exporter should write: obstacles/broken_NAME.onnx, what is said of each, and the dims
BATCH = ["--dim", "batch=4"]
BROKEN = [
    ("cycle", "nothing before this node defines its input b", BATCH), ("twice", "y is defined twice", BATCH),
    ("input_made", "x is defined twice", BATCH), ("no_opset", "whose opset the model does not import", BATCH),
    ("empty", "no outputs", []), ("no_nodes", "nothing defines output y", BATCH), ("huge", "input x has impossible dims", []),
    ("type_99", "type number 99", BATCH), ("no_rank", "input x is no tensor of known rank", BATCH),
    ("short_weight", "tensor w holds 60 bytes, its dims say 64", BATCH), ("huge_weight", "tensor w has impossible dims", BATCH),
    ("negative_weight", "tensor w has impossible dims", BATCH), ("weight_twice", "two initializers are called 'w'", BATCH),
    ("attribute", "perm", BATCH),
]


def blocks(err):
    """The diagnostics of a run: code and lines."""
    found = []
    for line in err.splitlines():
        head = re.match(r"(error|warning|note)\[(\w+)\]: ", line)
        if head:
            found.append((head[2], [line]))
        elif found:
            found[-1][1].append(line.strip())
    return found


def hint_of(lines):
    return next((x[6:] for x in lines if x.startswith("hint: ")), "")


def all_in_one_run(build):
    code, _, err = call([build.trainc, "plan", MANY, *PLAN])
    told, wrong = blocks(err), []
    for want, node, module, about, parameter in OBSTACLES:
        lines = [f"node {node}" + (f", module {module}" if module else ""), about, f"no gradient: {parameter} would not train"]
        if not any(c == want and hint_of(b) and all(x in b for x in lines) for c, b in told):
            wrong.append(f"{want} at {node} is not told as it should be")
    n = len([c for c, _ in told if c[0] != "N"])
    if code != 4 or n != len(OBSTACLES):
        wrong.append(f"exit status {code}, {n} obstacles; expected 4, {len(OBSTACLES)}")
    return [f"{w}\n{err}" for w in wrong]


def usage_and_model(build):
    """What the user said wrong is told beside what the model has; alone it is exit status 2."""
    wrong = []
    said = ["--dim", "bacth=4", "--freeze", "nothing*", "--loss", "msr", "--optimizer", "adm"]
    usage = ("E_DIM_UNKNOWN", "E_DIM_UNBOUND", "E_GLOB_UNMATCHED", "E_LOSS_UNKNOWN", "E_OPTIMIZER")
    for model, codes in ((CUT, usage), (MANY, usage + ("E_OP_UNSUPPORTED", "E_DYNAMIC_SHAPE", "E_OP_VERSION"))):
        status, _, err = call([build.trainc, "plan", model, *said])
        missing = set(codes) - {c for c, _ in blocks(err)}
        if status != 2 or missing:
            wrong.append(f"{model.name}: exit status {status}, not told: {sorted(missing)}\n{err}")
    status, _, err = call([build.trainc, "plan", LAYERS, *PLAN, "--loss", "mse:o99x"])
    if status != 4 or err.count("E_OP_UNSUPPORTED") != 1 or "and 99 more: node_odd_1, " not in err or "did you mean o99?" not in err:
        wrong.append(f"a hundred equal layers: exit status {status}\n{err}")
    return wrong


def same_words(build):
    """A parameter that ops without gradient cut off is told alike with and without other obstacles."""
    def untrained(model, *more):
        return [[x.replace(".weight", ".w") for x in b] for c, b in blocks(call([build.trainc, "plan", model, *PLAN, *more])[2])
                if c == "W_UNTRAINED" and "less" not in b[0]]
    alone, beside = untrained(CUT, "--loss", "mse"), untrained(MANY)
    return [] if alone == beside and len(alone) == 2 else [f"differ: {alone}\n{beside}"]


def every_row(build):
    rows = re.findall(r'^DIAG\((\w+),\s*(\w+),\s*(\d), (.*)\)$', (STEPS.parents[1] / "ir/diag.def").read_text(), re.M)
    others = "".join(p.read_text() for kind in ("*.c", "*.tir", "*.py") for p in sorted(STEPS.parent.rglob(kind))
                     if p.name != "obstacles.py")
    wrong = [] if len(rows) > 40 else ["ir/diag.def is not read"]
    for code, severity, status, rest in rows:
        if severity != "NOTE" and rest.endswith('""'):
            wrong.append(f"{code} has no hint")
        if code in PROVOKE:
            expected, args = PROVOKE[code]
            got, _, err = call([build.trainc, "plan", *args])
            if got != expected or (expected and expected != int(status)) or not any(c == code and (severity == "NOTE" or hint_of(b)) for c, b in blocks(err)):
                wrong.append(f"{code} is not provoked with a hint, exit status {got}, by plan {' '.join(map(str, args))}\n{err}")
        elif code in ELSEWHERE or severity == "NOTE":
            if not re.search(rf"\b{code}\b", others):
                wrong.append(f"no test provokes {code}")
        elif not re.search(rf"\b{code}\b", others):
            wrong.append(f"{code} needs a command in PROVOKE that provokes it")
    return wrong


def broken_files(build):
    wrong = []
    for name, words, dims in BROKEN:
        status, _, err = call([build.trainc, "plan", MODELS / f"broken_{name}.onnx", *dims, "--loss", "mse"])
        if status != 4 or not any(words in b[0] and hint_of(b) for _, b in blocks(err)):
            wrong.append(f"broken_{name}: exit status {status}, no {words!r} in\n{err}")
    return wrong


def near_names(build):
    wrong = []
    for args, words in NEAR:
        status, _, err = call([build.trainc, *args])
        if status != 2 or words not in err:
            wrong.append(f"{' '.join(map(str, args))}: exit status {status}, no {words!r} in\n{err}")
    return wrong


def test(argv):
    build = Build(argv[0])
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        write_npy("x.npy", "<f4", (4, 4), [0.5] * 16)
        Path("rename.json").write_text('{"lss.weight": "a"}')
        wrong = [w for part in (all_in_one_run, usage_and_model, same_words, every_row, broken_files, near_names) for w in part(build)]
        os.chdir("/")
    if wrong:
        raise Failed(f"{len(wrong)}:\n" + "\n".join(wrong))
    print(f"PASS {len(OBSTACLES)} obstacles in one run, {len(PROVOKE)} diagnostics provoked, {len(BROKEN)} broken files, {len(NEAR)} names nearly right")


finish(test)
