"""Writes optimizer_steps.inc: three steps of torch.optim in float64, what optimizer.c must reproduce. Run: python optimizer_steps.py"""
import torch

W = [0.5, -1.25, 2.0, 0.03125]
G = [[0.25, -0.5, 1.0, 0.0], [-0.125, 0.75, 0.5, 2.0], [0.0625, 0.25, -3.0, 0.5]]


class Lion(torch.optim.Optimizer):
    """The formula of the paper, in the order of the golden runs."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p -= group["lr"] * (torch.sign(b1 * m + (1 - b1) * p.grad) + group["weight_decay"] * p)
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


RUNS = [
    ("sgd", dict(lr=0.1), None, lambda p, o: torch.optim.SGD(p, **o)),
    ("sgd", dict(lr=0.1, momentum=0.9, weight_decay=0.01), None, lambda p, o: torch.optim.SGD(p, **o)),
    ("sgd", dict(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True), 1.0, lambda p, o: torch.optim.SGD(p, **o)),
    ("adam", dict(lr=0.01, betas=(0.8, 0.99), eps=1e-5, weight_decay=0.1), None, lambda p, o: torch.optim.Adam(p, **o)),
    ("adamw", dict(lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1), 0.5, lambda p, o: torch.optim.AdamW(p, **o)),
    ("lion", dict(lr=0.01, betas=(0.9, 0.98), weight_decay=0.1), None, lambda p, o: Lion(p, **o)),
    ("adafactor", dict(lr=0.6, weight_decay=0.1, eps=(2**-23, 1e-3)), 0.5, lambda p, o: torch.optim.Adafactor(p, **o)),
    ("adafactor", dict(lr=0.6, weight_decay=0.1, eps=(2**-23, 1e-3), shape=(2, 2)), None, lambda p, o: torch.optim.Adafactor(p, **o)),
]

with open("optimizer_steps.inc", "w") as f:
    f.write("/* made by optimizer_steps.py: optimizer, rank of the weight, options, clip, weights after each step, gradient norms */\n")
    for name, options, clip, make in RUNS:
        shape = options.pop("shape", (4,))
        w = torch.tensor(W, dtype=torch.float64).reshape(shape).requires_grad_()
        optimizer = make([w], options)
        weights, norms = [], []
        for g in G:
            w.grad = torch.tensor(g, dtype=torch.float64).reshape(shape)
            norms.append(torch.nn.utils.clip_grad_norm_([w], clip if clip else float("inf")).item())
            optimizer.step()
            weights.append("{" + ", ".join("%.17g" % x for x in w.flatten().tolist()) + "}")
        b1, b2 = options.get("betas", (0, 0))
        eps = options.get("eps", 0)
        f.write('{"%s", %d, %g, %g, %g, %g, %g, %g, %d, %s,\n {%s},\n {%s}},\n' % (
            name, len(shape), options["lr"], options.get("weight_decay", 0), b1, b2, 0 if isinstance(eps, tuple) else eps, options.get("momentum", 0),
            options.get("nesterov", False), "%g" % clip if clip else "INFINITY", ",\n  ".join(weights), ", ".join("%.17g" % x for x in norms)))
