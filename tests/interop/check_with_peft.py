"""What the package writes, loaded by safetensors and by PEFT: no warning, and the outputs of torch's own formula.

Tiny models are made here, adapters of many kinds for them by write.mjs (built package, Node) and by train_in_page.mjs (Chromium). Of each the tensors are read with
safetensors and give the model's weights by W + scaling*B*A and its relatives; PEFT's logits, PEFT's merge_and_unload() and the
package's own merged file must agree with that. The figures are the largest difference beside the largest value.

Usage: python3 tests/interop/check_with_peft.py [SEED]   (needs torch, transformers, peft, safetensors; no GPU, no network)
"""
import copy, json, logging, math, os, platform, subprocess, sys, tempfile, warnings
import peft, safetensors, torch, transformers
transformers.logging.disable_progress_bar()
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 9
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BOUND = 3e-6  # of the largest value: float32 files, sums of at most a few hundred terms
torch.manual_seed(SEED)

class Conv(torch.nn.Module):
    """A convolution of 1x1, which is a linear layer on channels, and a linear layer with a bias."""
    def __init__(self):
        super().__init__()
        self.conv, self.fc = torch.nn.Conv2d(6, 10, 1, bias=False), torch.nn.Linear(10, 7)
    def forward(self, x): return self.fc(torch.tanh(self.conv(x)).mean((2, 3)))

def llama():
    config = transformers.LlamaConfig(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, vocab_size=101,
                                      max_position_embeddings=64, tie_word_embeddings=False, attn_implementation="eager")
    return transformers.LlamaForCausalLM(config).eval()

def gpt2():
    config = transformers.GPT2Config(n_embd=48, n_layer=2, n_head=4, n_positions=64, vocab_size=101, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    return transformers.GPT2LMHeadModel(config).eval()

# GPT-2's weights are [in, out]: fan_in_fan_out.
MODELS = {"llama": llama(), "gpt2": gpt2(), "conv": Conv()}
for p in [*MODELS["llama"].parameters(), *MODELS["gpt2"].parameters()]: p.data = torch.randn_like(p) * (1.2 / math.sqrt(p.shape[-1])) if p.dim() > 1 else 1 + 0.3 * torch.randn_like(p)
INPUTS = {"llama": torch.randint(0, 101, (2, 13)), "gpt2": torch.randint(0, 101, (2, 13)), "conv": torch.randn(3, 6, 4, 5)}
def run(model, kind):
    out = model.double()(INPUTS[kind].double() if kind == "conv" else INPUTS[kind])
    return (out if kind == "conv" else out.logits).detach()

class Complaints(logging.Handler):
    def emit(self, record): raise AssertionError(f"PEFT or transformers logged: {record.getMessage()}")
for name in ("peft", "transformers"): logging.getLogger(name).addHandler(Complaints(logging.WARNING))

def by_formula(kind, folder, decomposed=torch.float64):
    """The model with its weights changed as the adapter's tensors say; `decomposed`: what PiSSA and OLoRA decompose the base in."""
    model = copy.deepcopy(MODELS[kind]).double()
    state, tensors = model.state_dict(), {k.removeprefix("base_model.model."): v.double() for k, v in load_file(f"{folder}/adapter_model.safetensors").items()}
    config, said = json.load(open(f"{folder}/adapter_config.json")), {m["name"]: m for m in json.load(open(f"{folder}/said.json"))["modules"]}
    changed, seen = {}, 0
    for name, m in said.items():
        embedding, turned = m["kind"] == "embedding", m["kind"] == "embedding" or config.get("fan_in_fan_out")
        a, b = (tensors[f"{name}.{k}"] for k in (("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A.weight", "lora_B.weight")))
        a, b, seen = a.flatten(1), b.flatten(1), seen + 2
        scaling = m["alpha"] / (math.sqrt(a.shape[0]) if config.get("use_rslora") else a.shape[0])
        assert abs(scaling - m["scaling"]) < 1e-12 and a.shape[0] == m["rank"], (name, scaling, m)
        weight = state[f"{name}.weight"]
        init = str(config.get("init_lora_weights"))
        if init == "pissa" and turned: weight = weight.T
        if init == "pissa":  # the base without the largest singular values, divided as PEFT does
            u, s, v = (m.double() for m in torch.linalg.svd(weight.to(decomposed), full_matrices=False)); r = a.shape[0]
            weight = weight - (u[:, :r] * s[:r]) @ v[:r]
            if turned: weight = weight.T
        elif init == "olora":
            q, r = (m.double() for m in torch.linalg.qr(weight.to(decomposed)))
            weight = weight - scaling * q[:, :a.shape[0]] @ r[:a.shape[0]]
        delta = scaling * (b @ a)
        new = weight + (delta.T if turned else delta).reshape(weight.shape)
        if (m_ := tensors.get(f"{name}.lora_magnitude_vector")) is not None:
            new, seen = (m_ / new.norm(dim=1))[:, None] * new, seen + 1
        changed[f"{name}.weight"] = new
        if (bias := tensors.get(f"{name}.lora_B.bias")) is not None:
            seen += 1
            old = state.get(f"{name}.bias", 0)
            changed[f"{name}.bias"] = old + scaling * bias
        if (bias := tensors.get(f"{name}.base_layer.bias")) is not None:
            changed[f"{name}.bias"], seen = bias, seen + 1
    for name, value in tensors.items():  # trained whole
        if name in state and name not in changed: changed[name], seen = value, seen + 1
    assert seen == len(tensors), f"{folder}: {set(tensors) - set(changed)} are not accounted for"
    for name, value in changed.items():
        module, part = name.rsplit(".", 1)
        setattr(model.get_submodule(module), part, torch.nn.Parameter(value))
    return model, changed

def rel(got, expected): return ((got - expected).abs().max() / expected.abs().max()).item()

def check(name, folder):
    kind = json.load(open(f"{folder}/said.json"))["base"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # PEFT says so of its own files, too.
        if name == "lora_bias_no_base_bias": warnings.filterwarnings("ignore", message="`lora_bias=True` was passed")
        model = PeftModel.from_pretrained(copy.deepcopy(MODELS[kind]), folder)
    # PEFT decomposes in float32, the package in float64.
    (theirs, theirs_weights), (_, our_weights), base = by_formula(kind, folder, torch.float32), by_formula(kind, folder), run(copy.deepcopy(MODELS[kind]), kind)
    expected = run(theirs, kind)
    figures = [rel(run(model.eval(), kind), expected)]
    assert rel(base, expected) > 1e-3, "the base alone would pass"
    if os.path.exists(f"{folder}/merged.safetensors"):
        merged = load_file(f"{folder}/merged.safetensors")
        peft_state = model.merge_and_unload().state_dict()
        ours_state = {k: v.double() for k, v in merged.items()}
        figures += [max(rel(peft_state[k].double(), v) for k, v in theirs_weights.items()), max(rel(ours_state[k], v) for k, v in our_weights.items())]
        rest = [k for k in merged if k not in theirs_weights and not torch.equal(merged[k], ORIGINAL[kind][k])]
        assert not rest, f"changed though not adapted: {rest}"
    tensors = load_file(f"{folder}/adapter_model.safetensors")
    types = sorted({str(t.dtype).removeprefix("torch.") for t in tensors.values()})
    print(f"{name:30} {len(tensors):4} tensors  {','.join(types):9} " + "  ".join(f"{f:8.1e}" for f in figures))
    assert all(f <= BOUND for f in figures), name

class Net(torch.nn.Module):
    """Linear layers with tanh between them, as the page has them."""
    def __init__(self, bases):
        super().__init__()
        self.names = [base["name"] for base in bases]
        for base in bases:
            *path, last = base["name"].split("."); parent = self
            for part in path:
                if not hasattr(parent, part): parent.add_module(part, torch.nn.Module())
                parent = getattr(parent, part)
            linear = torch.nn.Linear(base["inFeatures"], base["outFeatures"])
            linear.weight.data = torch.tensor(base["weight"]).reshape(linear.weight.shape); linear.bias.data = torch.tensor(base["bias"])
            parent.add_module(last, linear)
    def forward(self, x):
        for i, name in enumerate(self.names): x = self.get_submodule(name)(torch.tanh(x) if i else x)
        return x

def check_page(name, folder):
    """What the page's layers gave, beside PEFT with the page's files on the page's weights; both computed in float32 by one of them."""
    page = json.load(open(f"{folder}/page.json"))
    net = Net(page["bases"]) if "bases" in page else copy.deepcopy(MODELS["llama"])
    x = torch.tensor(page["x"]).reshape(page["rows"], -1).double() if "bases" in page else torch.tensor([page["inputIds"]])
    outputs = lambda model: (model(x) if "bases" in page else model(input_ids=x).logits).detach().double()
    base = outputs(copy.deepcopy(net).double())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PeftModel.from_pretrained(net, folder)
    got, y = torch.tensor(page["y"]).double().reshape(base.shape), outputs(model.eval().double())
    assert rel(base, y) > 1e-2, "the base alone would pass"
    tensors = load_file(f"{folder}/adapter_model.safetensors")
    merged = outputs(model.merge_and_unload())
    print(f"{name:30} {len(tensors):4} tensors  loss {page['losses'][0]:.3f} to {page['losses'][-1]:.3f}   {rel(got, y):8.1e}  {rel(got, merged):8.1e}")
    assert rel(got, y) <= 1e-5 and rel(got, merged) <= 1e-5, name

with tempfile.TemporaryDirectory() as work:
    MODELS["llama"].save_pretrained(f"{work}/base")
    MODELS["gpt2"].save_pretrained(f"{work}/gpt2")
    save_file(MODELS["conv"].state_dict(), f"{work}/conv.safetensors", metadata={"format": "pt"})
    ORIGINAL = {"llama": load_file(f"{work}/base/model.safetensors"), "gpt2": load_file(f"{work}/gpt2/model.safetensors"), "conv": load_file(f"{work}/conv.safetensors")}
    llama = ("llama", dict(target_modules=["q_proj", "v_proj"]))
    for name, ((kind, targets), options) in dict(modules_to_save=(llama, dict(modules_to_save=["lm_head"])), pissa=(llama, dict(init_lora_weights="pissa")), olora=(llama, dict(init_lora_weights="olora")),
                                                 fan_in_fan_out=(("gpt2", dict(target_modules=["c_attn", "mlp.c_proj"])), dict(fan_in_fan_out=True)),
                                                 fan_in_fan_out_pissa=(("gpt2", dict(target_modules=["c_attn", "mlp.c_proj"])), dict(fan_in_fan_out=True, init_lora_weights="pissa"))).items():
        model = get_peft_model(copy.deepcopy(MODELS[kind]), LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=4, **targets, **options))
        for p in model.parameters():
            if p.requires_grad: p.data += 0.05 * torch.randn_like(p)
        model.save_pretrained(f"{work}/from_peft/{name}")
    subprocess.run(["node", f"{ROOT}/tests/interop/write.mjs", work, str(SEED)], check=True)
    version = json.load(open(f"{ROOT}/package.json"))["version"]
    print(f"lora-webgpu {version}, PEFT {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}, safetensors {safetensors.__version__}, "
          f"Python {platform.python_version()}; seed {SEED}, bound {BOUND:g}\n\n{'':54} PEFT's    PEFT's    our\n{'adapter':30} {'':23} logits    merge     merge")
    names = sorted(os.listdir(f"{work}/ours"))
    for name in names: check(name, f"{work}/ours/{name}")
    subprocess.run(["node", f"{ROOT}/tests/interop/train_in_page.mjs", work, str(SEED)], check=True)
    print(f"\n{'trained in a page':30} {'':37} page to   page to\n{'':30} {'':37} PEFT      its merge")
    pages = sorted(os.listdir(f"{work}/page"))
    for name in pages: check_page(name, f"{work}/page/{name}")
    names += pages
    print(f"\n{len(names)} adapters loaded by PEFT without a warning but that of lora_bias_no_base_bias; all agree with torch's formula.")
