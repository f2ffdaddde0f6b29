"""Opens the committed model with transformers and writes check.json: token ids, logits and greedy continuations of a few
prompts in float32, and what the base pays for each text of ../texts. Other implementations are held against it."""

import json
import math
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).resolve().parent
PROMPTS = ["Once upon a time", "<|endoftext|>The Golden", "The King's daughter had 12 apples, and\n\n\"Who\u00e9 is there?\" \u2013 said she:"]
SCORED = 256  # tokens of each text


def main():
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(HERE)
    prompts, texts = [], []
    with torch.no_grad():
        for prompt in PROMPTS:
            ids = tokenizer(prompt)["input_ids"]
            assert tokenizer.decode(ids) == prompt
            greedy, margin, first = [], math.inf, None
            while len(greedy) < 32:
                logits = model(torch.tensor([ids + greedy])).logits[0, -1]
                first = logits if first is None else first
                top = logits.topk(2)
                margin = min(margin, (top.values[0] - top.values[1]).item())
                greedy.append(top.indices[0].item())
            prompts.append({"text": prompt, "ids": ids, "logits": [round(v, 5) for v in first.tolist()[:64]], "greedy": greedy,
                            "least_margin": round(margin, 5), "continuation": tokenizer.decode(greedy)})
            print(f"{prompt!r} {ids}\n  {prompts[-1]['continuation']!r}, least margin {margin:.4f}")
        for path in sorted((HERE / "../texts").glob("*.txt")):
            ids = tokenizer(path.read_text(encoding="utf-8"), verbose=False)["input_ids"]
            some = torch.tensor([[0] + ids[:SCORED]])
            loss = model(some, labels=some).loss.item()  # mean over the SCORED tokens after the first
            bits = loss * SCORED / math.log(2) / len(tokenizer.decode(ids[:SCORED]).encode())
            texts.append({"file": path.name, "tokens": len(ids), "loss": round(loss, 6), "bits_per_byte": round(bits, 4)})
            print(texts[-1])
    value = {"transformers": transformers.__version__, "scored_tokens": SCORED, "prompts": prompts, "texts": texts}
    (HERE / "check.json").write_text(json.dumps(value, ensure_ascii=False).replace('}, {', '},\n{') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
