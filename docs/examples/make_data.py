#!/usr/bin/env python3
"""Writes the data of the examples: data/digits_*.npy from scikit-learn's copy of the UCI digits, data/jargon.bin from Debian's jargon-text.

    python make_data.py PATH/jargon.txt

Every fifth digit is held out. The text is cut to ASCII lines, a tenth of it held out at the end. See data/NOTE.md for licences.
"""
import sys
import numpy as np
from sklearn.datasets import load_digits

x, y = load_digits(return_X_y=True)
x = x.reshape(-1, 1, 8, 8).astype(np.uint8)          # grey values 0..16
held = np.arange(len(x)) % 5 == 4
order = np.random.default_rng(0).permutation(np.flatnonzero(~held))
np.save("data/digits_x.npy", x[order])
np.save("data/digits_labels.npy", y[order].astype(np.uint8))
np.save("data/digits_x_eval.npy", x[held])
np.save("data/digits_labels_eval.npy", y[held].astype(np.uint8))

text = open(sys.argv[1], encoding="utf-8", errors="replace").read()
start = text.index("Welcome to the Jargon File", text.index("Welcome to the Jargon File") + 1)      # past the table of contents
kept = "".join(c if 32 <= ord(c) < 127 or c == "\n" else "" for c in text[start:])[:320_000].encode()
cut = len(kept) * 9 // 10
open("data/jargon.bin", "wb").write(kept[:cut])
open("data/jargon_eval.bin", "wb").write(kept[cut:])
