"""What PEFT and Python's `re` decide about module names, as tests/golden/peft_targets.json: which modules a configuration targets,
with which rank and alpha (`found`: index of the name, rank, alpha), and which words a pattern matches as a whole (a 0 or 1 for each).

Usage: python3 tests/interop/make_targets.py OUT_FILE SEED   (needs torch and peft)
"""
import itertools, json, random, re, sys
import peft, torch
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

out, rng = sys.argv[1], random.Random(int(sys.argv[2]))

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj"]
NAMES = [f"model.layers.{i}.self_attn.{p}" for i in (0, 1, 2, 10, 12) for p in LINEAR]
NAMES += [f"model.layers.{i}.mlp.{p}" for i in (0, 1, 2, 10, 12) for p in ("gate_proj", "up_proj", "down_proj")]
NAMES += [f"model.layers.1.experts.{i}.{p}" for i in (0, 1) for p in ("up_proj", "down_proj")]
NAMES += ["fc1", "fc2", "block.fc1", "block.0.fc2", "encoder.layer.3.attention.query", "h.0.attn.c_attn", "lm_head", "xq_proj", "model.xq_proj"]

configs = [
    dict(target_modules=["q_proj", "v_proj"]),
    dict(target_modules=["fc1"]),
    dict(target_modules=["0.fc2", "attention.query"]),
    dict(target_modules=["self_attn.q_proj", "model.layers.12.mlp.up_proj"]),
    dict(target_modules=NAMES[:3]),
    dict(target_modules=["q_proj", "down_proj"], layers_to_transform=[1, 12]),
    dict(target_modules=["q_proj", "fc2", "query", "c_attn"], layers_to_transform=0),
    dict(target_modules=["q_proj", "query", "c_attn"], layers_to_transform=[0, 3], layers_pattern="layer"),
    dict(target_modules=["q_proj", "query", "c_attn", "up_proj"], layers_to_transform=[0, 1], layers_pattern=["h", "layers", "experts"]),
    dict(target_modules=["q_proj", "model.layers.2.self_attn.v_proj"], layers_to_transform=[0]),
    dict(target_modules=["q_proj", "v_proj"], exclude_modules=["layers.1.self_attn.q_proj", "fc1"]),
    dict(target_modules=["q_proj", "v_proj"], exclude_modules=r".*\.1[02]?\..*"),
    dict(target_modules=["q_proj", "lm_head", "up_proj"], modules_to_save=["lm_head", "experts"]),
    dict(target_modules=r".*layers\.[02]\..*(q_proj|down_proj)"),
    dict(target_modules=r"model\.layers\.(?:1|12)\.(self_attn|mlp)\.[a-z]+_proj"),
    dict(target_modules=r".*\.\d\.self_attn\.[qk]_proj$"),
    dict(target_modules=r"fc[12]|lm_head"),
    dict(target_modules=r".*(q_proj|v_proj){1}"),
    dict(target_modules=r"(?P<all>.*)_proj"),
    dict(target_modules=["q_proj", "v_proj", "down_proj", "fc1", "fc2"],
         rank_pattern={"v_proj": 2, r"layers\.1\..*q_proj": 6, "fc1": 3, "^fc2": 5}, alpha_pattern={"layers.2.mlp.down_proj": 3.5, "down_proj": 4, "block.*": 9}),
    dict(target_modules=["q_proj", "k_proj", "up_proj"], rank_pattern={r"layers\.1\..*": 3, "q_proj": 2}, alpha_pattern={r"self_attn\..*": 5, "k_proj": 10, "1.*": 7}),
    dict(target_modules=["q_proj", "k_proj"], rank_pattern={r"(q|k)_proj": 4, r"self_attn": 9, r"\d+.self_attn.k_proj": 7}, use_rslora=True),
]
# Random ones: ends of names, and patterns made of pieces of names.
pieces = [r".*", r"\.", "self_attn", "q_proj", r"[qkv]_proj", r"\d+", r"layers", r"(mlp|self_attn)", r"1?", r"[^.]*", "down_proj", r"\w+", "model", "0", r"(?:layers\.)?", r"[0-2]", "x?"]
def pattern(): return "".join(rng.choice(pieces) for _ in range(rng.randint(1, 6)))
def compiles(text):
    try: re.compile(text); return True
    except re.error: return False
for _ in range(60):
    ends = [".".join(rng.choice(NAMES).split(".")[-rng.randint(1, 3):]) for _ in range(rng.randint(1, 4))]
    kw = dict(target_modules=sorted(set(ends)) if rng.random() < 0.6 else r".*" + pattern())
    if isinstance(kw["target_modules"], list) and rng.random() < 0.4: kw["layers_to_transform"] = sorted(rng.sample([0, 1, 2, 3, 10, 12], 2))
    if rng.random() < 0.5: kw["rank_pattern"] = {pattern(): rng.randint(1, 9) for _ in range(rng.randint(1, 3))}
    if rng.random() < 0.5: kw["alpha_pattern"] = {pattern(): rng.randint(1, 32) / 2 for _ in range(rng.randint(1, 3))}
    if rng.random() < 0.2: kw["exclude_modules"] = [".".join(rng.choice(NAMES).split(".")[-2:])]
    configs.append(kw)

cases = []
for kw in configs:
    texts = [kw["target_modules"]] if isinstance(kw["target_modules"], str) else []
    if not all(map(compiles, texts + list(kw.get("rank_pattern", {})) + list(kw.get("alpha_pattern", {})))): continue
    config = LoraConfig(r=8, lora_alpha=16, **kw)
    found = []
    for name in NAMES:
        if check_target_module_exists(config, name):
            r_key, alpha_key = get_pattern_key(config.rank_pattern.keys(), name), get_pattern_key(config.alpha_pattern.keys(), name)
            found.append([NAMES.index(name), config.rank_pattern.get(r_key, config.r), config.alpha_pattern.get(alpha_key, config.lora_alpha)])
    cases.append(dict(config=json.dumps(dict(peft_type="LORA", r=8, lora_alpha=16, **kw)), found=found))

# Patterns alone, against strings of few characters.
words = ["".join(w) for n in range(5) for w in itertools.product("ab.1", repeat=n)]
atoms = ["a", "b", r"\.", ".", "1", r"\d", r"\w", "[ab]", "[^a]", "[.1-3]", r"[\d.]", "(a|b)", "(?:ab|a)", "(a|)", "", "(a*)", "(b+|1)", "^", "$"]
repeats = ["", "", "", "*", "+", "?", "{2}", "{1,2}", "{,2}", "{1,}", "*?", "+?", "??"]
patterns = []
while len(patterns) < 400:
    def branch(): return "".join(a + (rng.choice(repeats) if a not in ("", "^", "$") else "") for a in rng.choices(atoms, k=rng.randint(1, 4)))
    text = "|".join(branch() for _ in range(rng.choice([1, 1, 2])))
    if compiles(text):
        patterns.append([text, "".join("01"[bool(re.fullmatch(text, w))] for w in words)])

json.dump(dict(peft=peft.__version__, names=NAMES, cases=cases, words=words, patterns=patterns), open(out, "w"), separators=(",", ":"))
print(len(cases), "configurations,", len(patterns), "patterns")
