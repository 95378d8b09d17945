"""Writes schedule_values.inc: learning rates of transformers.optimization, step by step. Needs torch and transformers."""
import torch
from transformers import get_scheduler
from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup, get_wsd_schedule, get_polynomial_decay_schedule_with_warmup

ROWS = [  # kind, lr, min_lr, warmup, decay, curve length, steps
    ("constant", 0.02, 0.0, 0, 0, 9, 9), ("constant", 0.02, 0.0, 4, 0, 9, 9), ("linear", 0.001, 0.0, 2, 0, 10, 12),
    ("linear", 0.003, 0.0005, 3, 0, 11, 11), ("cosine", 0.001, 0.0, 2, 0, 10, 10), ("cosine", 0.05, 0.005, 0, 0, 10, 10),
    ("cosine", 0.004, 0.001, 3, 0, 12, 12), ("wsd", 0.01, 0.0, 2, 4, 12, 14), ("wsd", 0.01, 0.002, 3, 5, 15, 15),
]


def make(opt, kind, lr, low, warmup, decay, length):
    if kind == "constant":
        return get_scheduler("constant_with_warmup" if warmup else "constant", opt, warmup)
    if kind == "linear":
        if low:
            return get_polynomial_decay_schedule_with_warmup(opt, warmup, length, lr_end=low, power=1.0)
        return get_scheduler("linear", opt, warmup, length)
    if kind == "cosine":
        return get_cosine_with_min_lr_schedule_with_warmup(opt, warmup, length, min_lr=low)
    return get_wsd_schedule(opt, warmup, decay, num_training_steps=length, min_lr_ratio=low / lr)


with open(__file__.replace("gen_schedules.py", "schedule_values.inc"), "w") as out:
    out.write("/* Written by gen_schedules.py. kind, lr, min_lr, warmup, decay, curve length, steps, rates */\n")
    for kind, lr, low, warmup, decay, length, steps in ROWS:
        opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
        s = make(opt, kind, lr, low, warmup, decay, length)
        rates = []
        for _ in range(steps):
            rates.append(opt.param_groups[0]["lr"])
            opt.step()
            s.step()
        values = ", ".join(f"{r:.17g}" for r in rates)
        out.write(f"{{{{SCHEDULE_{kind.upper()}, {lr}, {low}, {warmup}, {decay}, {length}}}, {steps},\n {{{values}}}}},\n")
