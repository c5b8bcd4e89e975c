"""Does once, with a model of a few thousand weights, what stages do, so that Python keeps the modules it compiled."""

import tempfile
from importlib import import_module

STAGES = (
    "finetuned.service.main",
    "finetuned.ctl.main",
    "finetuned.prepare.main",
    "finetuned.prepare.download",
    "finetuned.train.fit",
    "finetuned.train.artifacts.export",
    "finetuned.train.report.page",
    "matplotlib.pyplot",
)


def main() -> None:
    for module in STAGES:
        import_module(module)

    import torch
    from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    ids = torch.ones((1, 4), dtype=torch.long)
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(LlamaConfig(vocab_size=32, **shape)).save_pretrained(folder)
        base = AutoModelForCausalLM.from_pretrained(folder)
        model = get_peft_model(base, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
        model(input_ids=ids).logits.sum().backward()
        torch.optim.AdamW(model.parameters(), fused=True).step()
        model.generate(input_ids=ids, max_new_tokens=2)
        model.save_pretrained(f"{folder}/adapter")
        AutoPeftModelForCausalLM.from_pretrained(f"{folder}/adapter")


if __name__ == "__main__":
    main()
