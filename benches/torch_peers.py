"""PyTorch at the shapes of npm run bench:gpu: eager and as CUDA graphs, float32, TF32 off. Prints one JSON object.

    python3 benches/torch_peers.py > torch.json

Rows have the names of the bench's own rows; `node benches/report.mjs --gpu gpu.json --torch torch.json` puts them side by side.
On a machine without CUDA, `--device cpu --small` tries the script itself. The language model needs transformers; PEFT is used where
it is installed, else adapters of the same arithmetic written here.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--small", action="store_true")
parser.add_argument("--repeats", type=int, default=7)
options = parser.parse_args()
device, cuda, small = options.device, options.device == "cuda", options.small
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.set_float32_matmul_precision("highest")
torch.manual_seed(0)


def finish():
    if cuda:
        torch.cuda.synchronize()


spin_data = torch.randn(1024 if cuda else 64, 1024 if cuda else 64, device=device)


def spin(count):
    for _ in range(count):
        torch.mm(spin_data, spin_data)


def measure(work, count=1):
    """Microseconds of one of `count` pieces of work: median, least and most; the GPU is kept busy before."""
    for _ in range(3):
        work()
    finish()
    times = []
    end = time.perf_counter() + (1.0 if cuda else 0.0)
    while time.perf_counter() < end:
        spin(50)
        finish()
    for _ in range(options.repeats):
        if cuda:
            spin(20)
            begin, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(count):
                work()
            done.record()
            finish()
            times.append(begin.elapsed_time(done) * 1e3 / count)
        else:
            start = time.perf_counter()
            for _ in range(count):
                work()
            times.append((time.perf_counter() - start) * 1e6 / count)
    times.sort()
    return times[len(times) // 2], times[0], times[-1]


rows = []


def row(name, **measured):
    out = {"name": name}
    for key, value in measured.items():
        if isinstance(value, tuple):
            out[f"{key}_us"], out[f"{key}_min_us"], out[f"{key}_max_us"] = value
        else:
            out[key] = value
    rows.append(out)


def graphed(work):
    """`work` as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def both(work, count):
    measured = {"eager": measure(work, count)}
    if cuda:
        measured["graphs"] = measure(graphed(work), count)
    return measured


def copy():
    source = torch.zeros((1 << 28) if cuda else (1 << 22), device=device)
    target = torch.empty_like(source)
    measured = measure(lambda: target.copy_(source), 4)
    row("copy", eager=measured, gb_s=8 * source.numel() / measured[0] / 1e3)


def products():
    n = 256 if small else 4096
    w, x = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    out = torch.empty(n, n, device=device)
    for name, a, b in [
        ("x·Wᵀ", x, w.t()),
        ("dY·W", x, w),
        ("dYᵀ·x", w.t(), x),
    ]:
        measured = measure(lambda: torch.mm(a, b, out=out), 4)
        row(f"product {name} {n}³", eager=measured, tflop_s=2 * n**3 / measured[0] / 1e6)


def layer(tokens, features, rank, count):
    """y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ, its gradients of x, A and B, and the frozen layer's alone."""
    w = torch.randn(features, features, device=device) * 0.01
    a = (torch.randn(rank, features, device=device) * 0.01).requires_grad_()
    b = (torch.randn(features, rank, device=device) * 0.01).requires_grad_()
    x = torch.randn(tokens, features, device=device, requires_grad=True)
    d_output = torch.randn(tokens, features, device=device)
    scaling = 16 / rank

    def lora():
        y = F.linear(x, w) + scaling * F.linear(F.linear(x, a), b)
        return torch.autograd.grad(y, (x, a, b), d_output)

    def frozen():
        return torch.autograd.grad(F.linear(x, w), x, d_output)

    row(f"LoRA forward + backward {tokens} × {features}² r {rank}", **both(lora, count))
    row(f"frozen forward + backward {tokens} × {features}²", **both(frozen, count))


class Lora(torch.nn.Module):
    """A frozen linear layer with an adapter, as PEFT computes it."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.a = torch.nn.Linear(base.in_features, rank, bias=False)
        self.b = torch.nn.Linear(rank, base.out_features, bias=False)
        torch.nn.init.zeros_(self.b.weight)
        self.scaling = alpha / rank

    def forward(self, x):
        return self.base(x) + self.b(self.a(x)) * self.scaling


def with_adapters(model, rank, alpha):
    try:
        import peft
    except ImportError:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if name.endswith("_proj"):
                    setattr(module, name, Lora(child, rank, alpha))
        return model, "adapters written here"
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config), f"peft {peft.__version__}"


def language_model():
    import transformers

    if small:
        name, batch, tokens = "tiny", 2, 32
        shape = dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    else:
        name, batch, tokens = "SmolLM2-135M's shape", 4, 512
        shape = dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3)
    config = transformers.LlamaConfig(**shape, max_position_embeddings=8192, tie_word_embeddings=True, use_cache=False)
    model = transformers.LlamaForCausalLM(config).to(torch.float32)
    model, adapters = with_adapters(model, 8, 16)
    model.to(device).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    ids = (torch.arange(batch * tokens, device=device) * 7919 % config.vocab_size).view(batch, tokens)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    measured = measure(step, 3)
    more = {"peak_megabytes": torch.cuda.max_memory_allocated() >> 20} if cuda else {}
    row(
        f"{name}, training {batch} × {tokens}, all kept",
        eager=measured,
        tokens_s=round(batch * tokens / measured[0] * 1e6),
        adapters=adapters,
        transformers=transformers.__version__,
        trained=sum(parameter.numel() for parameter in trained),
        **more,
    )


copy()
products()
for tokens, features, rank, count in [(1, 256, 8, 10), (64, 256, 8, 1)] if small else [(1, 2560, 8, 100), (128, 512, 8, 100), (2048, 4096, 16, 4)]:
    layer(tokens, features, rank, count)
failure = None
try:
    language_model()
except ImportError as error:
    failure = str(error)
print(json.dumps({
    "adapter": torch.cuda.get_device_name() if cuda else "CPU",
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "tf32": False,
    "repeats": options.repeats,
    "left_out": failure,
    "rows": rows,
}, ensure_ascii=False))
