"""Which of the large models are exporters' spellings of one module: list -> files of ../models."""
SPELLINGS = {
    "llama2_7b": ["llama2_7b", "llama2_7b_folded", "llama2_7b_raw", "llama2_7b_sdpa", "llama2_7b_sdpa_folded", "llama2_7b_sdpa_op23"],
    "llama3_8b": ["llama3_8b", "llama3_8b_op23"],
    "qwen3_0p6b": ["qwen3_0p6b"],
    "gpt2_small": ["gpt2_small", "gpt2_small_train", "gpt2_small_dynamo", "gpt2_small_dynamo_train"],
    "gpt2_xl": ["gpt2_xl"],
    "bert_large": ["bert_large", "bert_large_folded", "bert_large_train", "bert_large_ts"],
    "vit_large": ["vit_large", "vit_large_folded"],
    "resnet50": ["resnet50", "resnet50_folded"],
    "t5_base": ["t5_base", "t5_base_folded"],
    "sd15_unet": ["sd15_unet", "sd15_unet_folded"],
    "whisper_small": ["whisper_small", "whisper_small_folded"],
}
