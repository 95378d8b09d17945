#!/usr/bin/env python3
"""Exports chargpt.onnx: transformers' GPT-2, two layers of 128, one token per byte of ASCII text."""
import warnings
import torch
import transformers

warnings.filterwarnings("ignore")
torch.manual_seed(0)
config = transformers.GPT2Config(vocab_size=128, n_positions=128, n_embd=128, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
                                 attn_pdrop=0, use_cache=False, attn_implementation="eager", bos_token_id=0, eos_token_id=0)


class Logits(torch.nn.Module):
    """Logits alone, under the parameter names of GPT2LMHeadModel."""

    def __init__(self, gpt):
        super().__init__()
        self.transformer, self.lm_head = gpt.transformer, gpt.lm_head

    def forward(self, input_ids):
        return self.lm_head(self.transformer(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).last_hidden_state)


model = Logits(transformers.GPT2LMHeadModel(config)).train()
with torch.no_grad():
    for p in model.parameters():                      # exporters merge parameters of equal content: make them differ
        p.add_(1e-4 * torch.randn_like(p))
torch.onnx.export(model, (torch.arange(32).reshape(2, 16),), "chargpt.onnx", dynamo=False, opset_version=17,
                  do_constant_folding=False, training=torch.onnx.TrainingMode.TRAINING, input_names=["input_ids"],
                  output_names=["logits"], dynamic_axes={"input_ids": {0: "batch", 1: "sequence"},
                                                         "logits": {0: "batch", 1: "sequence"}})
