"""Trains the small base model: tokenizer, teacher, model, baseline, figures. See README.md.

    python3 train.py --corpus FOLDER      FOLDER holds base/*.txt and README.md; the model is written beside this file
    python3 train.py --corpus FOLDER --quick --out SOMEWHERE      a rehearsal of a minute on a CPU
"""

import argparse
import hashlib
import json
import math
import os
import random
import re
import time
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import corpus
from llama import Llama, nats, sample
from ngram import ORDER, KneserNey

SEED, END, CONTEXT, BATCH = 1, "<|endoftext|>", 512, 64
HERE = Path(__file__).resolve().parent
LICENCE = "MIT OR Apache-2.0; trained on public-domain texts only, listed in README.md"
OPENINGS = [""] * 5 + [
    "Once upon a time", "The old sailor looked at the map and", "\"I do not believe you,\" said the girl.",
    "In the middle of the forest there stood", "The next morning",
]
CHAT = (  # plain words as markers, so that no untrained token is needed; a reply ends with the end token
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'Question: ' + m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ 'Answer: ' + m['content'] + '<|endoftext|>' }}"
    "{% else %}{{ m['content'] + '\n\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"
)


def settings(vocab_size, hidden_size, layers, heads, kv_heads, intermediate_size):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab_size, "hidden_size": hidden_size,
        "intermediate_size": intermediate_size, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": hidden_size // heads, "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "float16",
    }


def train_tokenizer(docs, vocab_size):
    """Byte-level BPE; digits stand alone, as in SmolLM2."""
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(docs, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False))
    assert tokenizer.token_to_id(END) == 0 and tokenizer.get_vocab_size() == vocab_size
    assert all(tokenizer.decode(tokenizer.encode(d).ids) == d for d in docs[:50])
    return tokenizer


def epochs(docs, generator, device):
    """Batches [BATCH, CONTEXT + 1] without end: each epoch the documents in another order, cut at another place."""
    while True:
        ids = [0]
        for i in torch.randperm(len(docs), generator=generator).tolist():
            ids += docs[i] + [0]
        ids = torch.tensor(ids)[torch.randint(CONTEXT, (1,), generator=generator).item() :]
        rows = ids[: (len(ids) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)
        assert len(rows) >= BATCH, "less text than one batch"
        rows = rows[torch.randperm(len(rows), generator=generator)].to(device)
        for i in range(0, len(rows) - BATCH + 1, BATCH):
            yield rows[i : i + BATCH]


def fit(name, model, docs, valid, o, teacher=None):
    """AdamW, a linear warm-up and a cosine down to 0; the weights with the best validation figure are kept."""
    device = model.cos.device
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": o["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=o["lr"], betas=(0.9, 0.95), fused=device.type == "cuda")
    rise = max(1, o["steps"] // 30)
    schedule = lambda s: min((s + 1) / rise, 0.5 + 0.5 * math.cos(math.pi * s / o["steps"]))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    batches = epochs(docs["train"], torch.Generator().manual_seed(SEED), device)
    bits = lambda loss: loss / math.log(2) * docs["tokens_per_byte"]  # of the training text
    curve, running, best, kept, begin = [], torch.zeros((), device=device), math.inf, None, time.time()
    for step in range(1, o["steps"] + 1):
        model.train()
        ids, labels = (batch := next(batches))[:, :-1], batch[:, 1:].flatten()
        with autocast:
            logits = model(ids).flatten(0, 1).float()
            loss = F.cross_entropy(logits, labels)
            running += loss.detach()
            if teacher:  # one share of the loss against the text, the other against the teacher's distribution
                with torch.no_grad():
                    target = teacher(ids).flatten(0, 1).float().softmax(-1)
                loss = (1 - o["distil"]) * loss + o["distil"] * F.cross_entropy(logits, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % o["every"] == 0 or step == o["steps"]:
            since = step - (curve[-1]["step"] if curve else 0)
            with autocast:
                found = nats(model, docs["valid"], 0, CONTEXT) / math.log(2) / valid
            curve.append({"step": step, "train": round(bits(running.item() / since), 4), "valid": round(found, 4)})
            running.zero_()
            if found < best:
                best, kept = found, {k: v.detach().clone() for k, v in model.state_dict().items()}
            print(f"{name:8} step {step:6} train {curve[-1]['train']:.4f} valid {found:.4f} bits per byte, "
                  f"{step * BATCH * CONTEXT / (time.time() - begin) / 1e6:.3f} M tokens a second", flush=True)
    model.load_state_dict(kept)
    return {"curve": curve, "best_valid": round(best, 4), "seconds": round(time.time() - begin, 1)}


def chart(curves, ngram):
    """An SVG of bits per byte by step."""
    width, height, left, top = 640, 360, 48, 12
    steps = max(c[-1]["step"] for c in curves.values())
    points = [p for c in curves.values() for p in c]
    high = min(3.0, max(p[k] for p in points for k in ("train", "valid")))
    low = min(p[k] for p in points for k in ("train", "valid")) - 0.05
    x = lambda s: left + s / steps * (width - left - 20)
    y = lambda b: top + (high - b) / (high - low) * (height - top - 40)
    body = []
    ticks = [round(low + i * (high - low) / 5, 2) for i in range(6)]
    for t in ticks:
        body.append(f'<path d="M{left} {y(t):.1f}H{width - 10}" stroke="#ddd"/><text x="{left - 6}" y="{y(t) + 4:.1f}" text-anchor="end">{t:.2f}</text>')
    for i in range(5):
        body.append(f'<text x="{x(steps * i / 4):.0f}" y="{height - 24}" text-anchor="middle">{round(steps * i / 4)}</text>')
    body.append(f'<path d="M{left} {y(ngram):.1f}H{width - 10}" stroke="#888" stroke-dasharray="2 3"/><text x="{width - 12}" y="{y(ngram) - 5:.1f}" text-anchor="end">{ORDER}-gram, held out</text>')
    for (name, curve), colour in zip(curves.items(), ("#b5651d", "#1d6fb5", "#2a8a4a", "#8a2a7a")):
        for key, dash in (("train", "4 3"), ("valid", "")):
            line = " ".join(f"{x(p['step']):.1f},{min(y(p[key]), height):.1f}" for p in curve if p[key] <= high)
            body.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dash}"/>')
        at = list(curves).index(name)
        body.append(f'<text x="{width - 200}" y="{top + 14 + 15 * at}" fill="{colour}">{name} (dashed: training)</text>')
    body.append(f'<text x="{(width + left) / 2:.0f}" y="{height - 6}" text-anchor="middle">step; the vertical axis is bits per byte</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
            f'<rect width="{width}" height="{height}" fill="#fff"/>{"".join(body)}</svg>\n')


def check_with_transformers(out, model, ids):
    """The written folder, opened by transformers in float32, against the model here: the largest difference of logits."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer, __version__
    except ImportError:
        return None
    other = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    mine = model.to("cpu").eval()
    with torch.no_grad():
        a, b = mine(ids), other(ids).logits
    tokens = AutoTokenizer.from_pretrained(out)("The King's daughter had 12 apples.\n")["input_ids"]
    chat = AutoTokenizer.from_pretrained(out).apply_chat_template([{"role": "user", "content": "Who?"}], tokenize=False, add_generation_prompt=True)
    assert chat == "Question: Who?\n\nAnswer:", chat
    return {"version": __version__, "max_logit": a.abs().max().item(), "max_difference": (a - b).abs().max().item(), "tokens": tokens}


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--corpus", required=True)
    flags.add_argument("--out", default=str(HERE))
    flags.add_argument("--quick", action="store_true")
    flags.add_argument("--only", choices=["teacher", "model"], help="trains this alone, without a teacher, and stops: for trials")
    for name in ("steps", "teacher_steps"):
        flags.add_argument(f"--{name}", type=int)
    for name in ("lr", "dropout", "weight_decay", "teacher_lr", "teacher_dropout", "teacher_weight_decay", "distil"):
        flags.add_argument(f"--{name}", type=float)
    a = flags.parse_args()
    o = {"steps": 3600, "lr": 2e-3, "dropout": 0.05, "weight_decay": 0.1, "distil": 0.7, "teacher_steps": 1800,
         "teacher_lr": 1e-3, "teacher_dropout": 0.2, "teacher_weight_decay": 0.3}
    if a.quick:
        o |= {"steps": 12, "teacher_steps": 8}
    o |= {k: v for k, v in vars(a).items() if k in o and v is not None}

    begin, out = time.time(), Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    random.seed(SEED)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__} on {machine}; seed {SEED}; {json.dumps(o)}")

    parts = corpus.load(a.corpus)
    if a.quick:
        parts = {k: v[: 400 if k == "train" else 6] for k, v in parts.items()}
    sizes = {k: corpus.size(v) for k, v in parts.items()}
    print("documents", {k: len(v) for k, v in parts.items()}, "bytes", sizes)
    tokenizer = train_tokenizer(parts["train"], 512 if a.quick else 2048)
    docs = {k: [e.ids for e in tokenizer.encode_batch(v)] for k, v in parts.items()}
    tokens = {k: sum(map(len, v)) for k, v in docs.items()}
    docs["tokens_per_byte"] = tokens["train"] / sizes["train"]
    print("tokens", tokens, f"bytes per token {1 / docs['tokens_per_byte']:.3f}", f"{time.time() - begin:.1f} s", flush=True)

    vocab = tokenizer.get_vocab_size()
    config = settings(vocab, 64, 2, 4, 2, 128) if a.quick else settings(vocab, 256, 6, 8, 4, 704)
    bigger = settings(vocab, 96, 2, 4, 2, 192) if a.quick else settings(vocab, 512, 8, 8, 8, 1408)
    every = 4 if a.quick else 100
    runs, teacher = {}, None
    if a.only != "model":
        torch.manual_seed(SEED)
        teacher = Llama(bigger, o["teacher_dropout"]).to(device)
        runs["teacher"] = fit("teacher", teacher, docs, sizes["valid"], {
            "steps": o["teacher_steps"], "lr": o["teacher_lr"], "weight_decay": o["teacher_weight_decay"], "every": every})
        teacher.eval()
    if a.only == "teacher":
        return
    torch.manual_seed(SEED)
    model = Llama(config, o["dropout"]).to(device)
    runs["model"] = fit("model", model, docs, sizes["valid"], {
        "steps": o["steps"], "lr": o["lr"], "weight_decay": o["weight_decay"], "distil": o["distil"], "every": every}, teacher)
    if a.only == "model":
        return

    # The files, and from here on the weights as the files hold them.
    weights = {k: v.half().cpu().contiguous() for k, v in model.state_dict().items()}
    save_file(weights, out / "model.safetensors", {"format": "pt", "license": LICENCE})
    tokenizer.save(str(out / "tokenizer.json"))
    write = lambda name, value: (out / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    write("config.json", config)
    write("generation_config.json", {"bos_token_id": 0, "eos_token_id": 0, "do_sample": True, "temperature": 0.8, "top_p": 0.95, "max_length": CONTEXT})
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END, "pad_token": END, "add_prefix_space": False,
        "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT, "chat_template": CHAT,
        "added_tokens_decoder": {"0": {"content": END, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}},
    })
    model.load_state_dict({k: v.float() for k, v in load_file(out / "model.safetensors").items()})

    per_byte = lambda m, part: nats(m, docs[part], 0, CONTEXT // 2) / math.log(2) / sizes[part]
    held_out = {name: per_byte(m, "held_out") for name, m in (("model", model), ("teacher", teacher))}
    start = time.time()
    held_out[f"{ORDER}-gram"] = KneserNey(parts["train"]).bits_per_byte(parts["held_out"])
    print("held-out bits per byte", held_out, f"({time.time() - start:.1f} s for the {ORDER}-gram)", flush=True)

    samples = []
    for i, opening in enumerate(OPENINGS):
        ids = sample(model, [0] + tokenizer.encode(opening).ids, 0, 12 if a.quick else 160, SEED + i)
        samples.append({"seed": SEED + i, "opening": opening, "text": tokenizer.decode(ids)})
        print(f"--- sample {i + 1}, seed {SEED + i}\n[{opening}]{samples[-1]['text']}", flush=True)

    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.iterdir())
               if p.name in ("model.safetensors", "tokenizer.json", "config.json", "generation_config.json", "tokenizer_config.json")}
    (out / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    curves = {name: run["curve"] for name, run in runs.items()}
    write("loss.json", curves)
    (out / "loss.svg").write_text(chart(curves, held_out[f"{ORDER}-gram"]), encoding="utf-8")
    probe = torch.tensor([([0] + docs["held_out"][0])[:64]])
    report = {
        "machine": machine, "torch": torch.__version__, "seed": SEED, "options": o,
        "parameters": sum(p.numel() for p in model.parameters()), "teacher_parameters": sum(p.numel() for p in teacher.parameters()),
        "documents": {k: len(v) for k, v in parts.items()}, "bytes": sizes, "tokens": tokens, "bytes_per_token": round(1 / docs["tokens_per_byte"], 3),
        "tokens_seen": o["steps"] * BATCH * CONTEXT, "held_out_bits_per_byte": {k: round(v, 4) for k, v in held_out.items()},
        "best_valid_bits_per_byte": {k: r["best_valid"] for k, r in runs.items()},
        "seconds": {**{k: r["seconds"] for k, r in runs.items()}, "all": None},
        "file_bytes": {name: (out / name).stat().st_size for name in digests}, "sha256": digests,
        "transformers": check_with_transformers(out, model, probe), "samples": samples, "sources": corpus.sources(a.corpus),
    }
    report["seconds"]["all"] = round(time.time() - begin, 1)
    write("report.json", report)
    print(json.dumps({k: v for k, v in report.items() if k not in ("samples", "sources")}, indent=1))
    write_readme(out, report)
    (out / "model.safetensors").chmod(0o644)


def write_readme(out, r):
    """Puts the figures between the two marks of README.md."""
    path, o = out / "README.md", r["options"]
    if not path.exists():
        return
    bits = r["held_out_bits_per_byte"]
    lines = [
        "| held-out text, bits per byte | |", "|---|---|", *(f"| {name} | {value:.4f} |" for name, value in bits.items()), "",
        f"{r['parameters']:,} parameters; {r['bytes']['train']:,} bytes of training text in {r['documents']['train']:,} documents, "
        f"{r['tokens']['train']:,} tokens ({r['bytes_per_token']} bytes each); {r['bytes']['held_out']:,} bytes held out. "
        f"{o['steps']:,} steps of {BATCH} × {CONTEXT} tokens, {r['seconds']['model']} s; the teacher of {r['teacher_parameters']:,} parameters before it {r['seconds']['teacher']} s; "
        f"{r['seconds']['all']} s in all, on {r['machine']} with torch {r['torch']}.", "",
        "![Bits per byte by step](loss.svg)", "",
        "Options: " + ", ".join(f"`{k}` {v}" for k, v in o.items()) + f", `seed` {r['seed']}.", "",
        "| file | bytes | SHA-256 |", "|---|---|---|", *(f"| `{n}` | {r['file_bytes'][n]:,} | `{d}` |" for n, d in r["sha256"].items()), "",
        *([f"transformers {r['transformers']['version']} opens the folder; its float32 logits differ from this script's by at most "
           f"{r['transformers']['max_difference']:.1e}, of {r['transformers']['max_logit']:.1f} at the largest.", ""] if r["transformers"] else []),
        "### Ten samples", "",
        "Seeds 1 to 10, none left out; temperature 0.8, top-p 0.95, at most 160 tokens. The first five begin with nothing, the others with the words in bold.", "",
        *(line for s in r["samples"] for line in (
            f"{s['seed']}. " + re.sub(r"\s*\n\s*", " / ", (f"**{s['opening']}**" if s["opening"] else "") + s["text"]).replace("_", "\\_").replace("<", "\\<"), "")),
        "### Texts", "", *(f"- {s}" for s in r["sources"]), "",
    ]
    mark = "<!-- written by train.py -->"
    head = path.read_text(encoding="utf-8").split(mark)[0]
    path.write_text(head + mark + "\n" + "\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
