#!/usr/bin/env python3
"""Exports digits.onnx: a small convolutional net over 8x8 grey images, in training form (BatchNorm and dropout live)."""
import warnings
import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x / 16)))
        x = torch.relu(self.bn2(self.conv2(x)))
        x = torch.max_pool2d(x, 2)
        return self.head(self.drop(x.flatten(1)))


model = Digits().train()
torch.onnx.export(model, (torch.rand(2, 1, 8, 8),), "digits.onnx", dynamo=False, opset_version=17, do_constant_folding=False,
                  training=torch.onnx.TrainingMode.TRAINING, input_names=["image"], output_names=["logits"],
                  dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}})
