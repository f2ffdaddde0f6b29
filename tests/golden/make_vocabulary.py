"""Golden numbers of adapters at the two ends of a language model, and of modules that are trained whole.

Usage: python3 make_vocabulary.py OUT_DIR SEED   (needs torch, peft and transformers; CPU)
writes OUT_DIR/models/<name>: LoRA on embed_tokens and lm_head, tied and not, and modules_to_save.
"""
import json, math, os, sys
import numpy as np, torch, transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

out, seed = sys.argv[1], int(sys.argv[2])
torch.manual_seed(seed)
rng = np.random.default_rng(seed)
VOCABULARY, PROMPT, GREEDY = 83, 5, 12
DIMS = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, vocab_size=VOCABULARY, max_position_embeddings=64, bos_token_id=None, eos_token_id=None)


def save(tensors, path, **metadata):
    floats = {k: (v.detach().float() if v.is_floating_point() else v).contiguous() for k, v in tensors.items()}
    save_file(floats, path, metadata={k: json.dumps(v) for k, v in metadata.items()})


def keep(model, folder):
    model.float().save_pretrained(folder)
    model.double()
    os.remove(f"{folder}/README.md")


def case(name, config, targets, tokens=19, batch=3, pad=None, steps=6, lr=4e-3, **options):
    folder = f"{out}/models/{name}"
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for key, p in model.named_parameters():
        p.data = torch.randn_like(p) * (0.3 if "norm" in key else 1.2 / math.sqrt(p.shape[-1])) + (1.0 if "norm" in key else 0.0)
    model.float().save_pretrained(folder)
    model.double()
    ids = torch.from_numpy(rng.integers(0, VOCABULARY, (batch, tokens)))
    ids[:, 3::4] = ids[:1, 3:4]  # one token many times
    mask = torch.ones_like(ids)
    if pad == "right":
        mask[1, -(tokens // 3) :] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, :4] = -100
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    inputs = dict(input_ids=ids, attention_mask=mask, position_ids=positions)
    tensors = dict(logits_base=model(**inputs).logits)
    prompt = ids[:1, :PROMPT]
    greedy = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=GREEDY, do_sample=False, pad_token_id=0)
    first, second = model(greedy).logits[0, PROMPT - 1 : -1].topk(2).values.T
    assert (first - second).min() > 3e-4 * tensors["logits_base"].abs().max(), f"{name}: a choice of tokens is too close"
    tensors["greedy_ids"] = greedy[0].to(torch.int32)

    peft = get_peft_model(model, LoraConfig(target_modules=targets, task_type="CAUSAL_LM", **options)).double()
    for key, p in peft.named_parameters():
        if "lora_" in key:  # none of them zero, so that every gradient is there
            p.data = (torch.randn_like(p) * (0.1 if "lora_A" in key else 0.2)).float().double()
    keep(peft, f"{folder}/adapter_start")
    trained = {key.replace(".modules_to_save.default", "").replace(".default", ""): p for key, p in peft.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=lr, weight_decay=0.0)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        result = peft(**inputs, labels=labels)
        result.loss.backward()
        if step == 0:
            tensors["logits_start"] = result.logits
            tensors |= {f"grad.{key}": p.grad.clone() for key, p in trained.items()}
        losses.append(result.loss.item())
        optimizer.step()
    tensors |= {f"final.{key}": p.detach().clone() for key, p in trained.items()}
    for p in trained.values():
        p.data = p.data.float().double()
    tensors["logits_end"] = peft(**inputs).logits
    keep(peft, f"{folder}/adapter_end")
    integers = dict(input_ids=ids, labels=labels, attention_mask=mask, position_ids=positions)
    save(tensors | {k: v.to(torch.int32) for k, v in integers.items()}, f"{folder}/trace.safetensors",
         losses=losses, lr=lr, weight_decay=0.0, greedy_prompt_len=PROMPT, padding=pad or "none")
    print(name, len(trained), "tensors trained, losses", losses[0], "to", losses[-1])


llama = lambda tied: transformers.LlamaConfig(**DIMS, tie_word_embeddings=tied)
qwen3 = lambda tied: transformers.Qwen3Config(**DIMS, head_dim=8, tie_word_embeddings=tied)
case("vocabulary_embed", llama(False), ["embed_tokens", "q_proj"], pad="right", r=3, lora_alpha=6)
case("vocabulary_embed_tied", llama(True), ["embed_tokens", "down_proj"], r=5, lora_alpha=5, use_rslora=True)
case("vocabulary_head", llama(False), ["lm_head", "v_proj"], pad="right", r=4, lora_alpha=6)
case("vocabulary_head_alone", llama(False), ["lm_head"], r=2, lora_alpha=3, lora_bias=True)
case("vocabulary_both_tied", qwen3(True), ["lm_head", "embed_tokens", "k_proj"], r=3, lora_alpha=4, rank_pattern={"lm_head": 6})
case("whole_modules", llama(False), ["v_proj"], pad="right", r=3, lora_alpha=6, modules_to_save=["lm_head", "norm", "embed_tokens"])
case("whole_modules_tied", qwen3(True), ["lm_head", "up_proj"], r=3, lora_alpha=6, modules_to_save=["embed_tokens", "k_norm", "layers.1.mlp.gate_proj"])
qwen2 = lambda tied: transformers.Qwen2Config(**DIMS, tie_word_embeddings=tied)
case("whole_biases", qwen2(False), ["q_proj", "o_proj"], pad="right", r=3, lora_alpha=6, bias="all")
