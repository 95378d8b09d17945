#!/usr/bin/env python3
"""Writes lists/NAME.txt: the parameters of the modules that the large models were exported from.

    make_lists.py [NAME ...]          needs torch, transformers, timm, torchvision, diffusers

One line per parameter: its names in the module's state_dict, tied ones joined by ' = ' in the state_dict's order,
then its shape. Modules are made on the meta device, so nothing is downloaded and no weight exists. What a module
freezes itself (Whisper's encoder positions) is listed too: no exporter says so."""
import sys
from pathlib import Path
import torch

from spellings import SPELLINGS


def transformers_model(name):
    import transformers as t
    configs = {
        "llama2_7b": (t.LlamaForCausalLM, t.LlamaConfig(tie_word_embeddings=False)),
        "llama3_8b": (t.LlamaForCausalLM, t.LlamaConfig(vocab_size=128256, intermediate_size=14336, num_key_value_heads=8,
                                                        tie_word_embeddings=False)),
        "qwen3_0p6b": (t.Qwen3ForCausalLM, t.Qwen3Config(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                                                         num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                                                         tie_word_embeddings=True)),
        "gpt2_small": (t.GPT2LMHeadModel, t.GPT2Config()),
        "gpt2_xl": (t.GPT2LMHeadModel, t.GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
        "bert_large": (t.BertForMaskedLM, t.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                                                       intermediate_size=4096)),
        "t5_base": (t.T5ForConditionalGeneration, t.T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12)),
        "whisper_small": (t.WhisperForConditionalGeneration,
                          t.WhisperConfig(d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
                                          decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072)),
    }
    cls, config = configs[name]
    model = cls(config)
    model.tie_weights()
    return model


def module(name):
    if name == "vit_large":
        import timm
        return timm.create_model("vit_large_patch16_224")
    if name == "resnet50":
        import torchvision
        return torchvision.models.resnet50()
    if name == "sd15_unet":
        from diffusers import UNet2DConditionModel
        return UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8)
    return transformers_model(name)


def write(name, folder):
    with torch.device("meta"):
        model = module(name)
    names, shapes = {}, {}
    for key, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(key)
        shapes[id(p)] = list(p.shape)
    lines = [f"{' = '.join(names[k])} {'x'.join(map(str, shapes[k]))}\n" for k in names]
    (folder / f"{name}.txt").write_text("".join(lines))
    print(name, len(lines), sum(torch.Size(shapes[k]).numel() for k in names))


if __name__ == "__main__":
    for n in sys.argv[1:] or SPELLINGS:
        write(n, Path(__file__).parent / "lists")
