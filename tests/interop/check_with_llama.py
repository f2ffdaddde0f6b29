"""GGUF adapters that the package writes, in llama.cpp: the logits and greedy tokens that PEFT gives.

For each golden model with a PEFT adapter: the base is written as GGUF (float32, llama.cpp's own gguf package and tensor names), the
adapter by `lora-webgpu convert --to gguf`. llama.cpp evaluates the golden text with and without the adapter and generates 24 tokens;
PEFT does the same in float64 from its own files.

Usage: python3 tests/interop/check_with_llama.py SDIST LIBRARIES   (needs torch, transformers, peft; no GPU, no network)
SDIST is the unpacked source distribution of llama-cpp-python, LIBRARIES the folder with the libllama that was built from it.
"""
import copy, ctypes, json, os, subprocess, sys, tempfile, types
import peft, torch, transformers
transformers.logging.disable_progress_bar()
from peft import PeftModel
from safetensors.torch import load_file

sdist, os.environ["LLAMA_CPP_LIB_PATH"] = sys.argv[1], os.path.abspath(sys.argv[2])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.environ.get("LORA_GOLDEN", f"{ROOT}/tests/golden")
sys.path.insert(0, f"{sdist}/vendor/llama.cpp/gguf-py")
import gguf
package = types.ModuleType("llama_cpp"); package.__path__ = [f"{sdist}/llama_cpp"]; sys.modules["llama_cpp"] = package  # without what its __init__ needs
import llama_cpp.llama_cpp as L

CASES = {  # adapter, its model
    "llama_qv": ("models/llama_qv/adapter_end", "models/llama_qv"), "llama_tied_all (rsLoRA)": ("models/llama_tied_all/adapter_end", "models/llama_tied_all"),
    "llama_patterns": ("models/llama_patterns/adapter_end", "models/llama_patterns"), "overlapping_patterns": ("models/overlapping_patterns/adapter_end", "models/overlapping_patterns"),
    "mistral (rsLoRA)": ("models/mistral/adapter_end", "models/mistral"), "qwen2_all": ("models/qwen2_all/adapter_end", "models/qwen2_all"), "qwen3_all": ("models/qwen3_all/adapter_end", "models/qwen3_all"),
    "embedding": ("peft_files/embedding", "peft_files/base_llama"), "pissa --plain": ("peft_files/pissa", "peft_files/base_llama"), "saved_bf16": ("peft_files/saved_bf16", "peft_files/base_llama"),
}
BOUND = 2e-5  # of the largest logit: float32 in another order of operations, as for whole models elsewhere

def permute(w, heads):  # as llama.cpp's converter turns rows of q and k for its rope
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)

def write_base(folder, path):
    config, tensors = transformers.AutoConfig.from_pretrained(folder), load_file(f"{folder}/model.safetensors")
    arch = gguf.MODEL_ARCH[{"mistral": "LLAMA"}.get(config.model_type, config.model_type.upper())]
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer, names = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch]), gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer.add_vocab_size(config.vocab_size); writer.add_context_length(config.max_position_embeddings); writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers); writer.add_feed_forward_length(config.intermediate_size); writer.add_head_count(heads); writer.add_head_count_kv(kv)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps); writer.add_rope_freq_base(config.rope_parameters["rope_theta"]); writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim); writer.add_value_length(head_dim); writer.add_tokenizer_model("none")
    for name, w in tensors.items():
        if arch == gguf.MODEL_ARCH.LLAMA and name.endswith("q_proj.weight"): w = permute(w, heads)
        if arch == gguf.MODEL_ARCH.LLAMA and name.endswith("k_proj.weight"): w = permute(w, kv)
        if config.tie_word_embeddings and name == "lm_head.weight": continue
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), w.float().contiguous().numpy())
    writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()

COMPLAINTS = []
@L.llama_log_callback
def log(level, text, _):
    if level >= 3: COMPLAINTS.append(text.decode().strip())  # warnings and errors
L.llama_log_set(log, ctypes.c_void_p(0)); L.llama_backend_init()

class Llama:
    def __init__(self, base, adapter):
        params = L.llama_model_default_params(); params.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(base.encode(), params); assert self.model, COMPLAINTS
        params = L.llama_context_default_params(); params.n_ctx = params.n_batch = params.n_ubatch = 128; params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = 0; params.flash_attn_type = 0  # the cache in float32
        self.context = L.llama_init_from_model(self.model, params); assert self.context, COMPLAINTS
        COMPLAINTS.clear()
        self.adapter = L.llama_adapter_lora_init(self.model, adapter.encode()); assert self.adapter, COMPLAINTS
    def use(self, on):
        one = (L.llama_adapter_lora_p_ctypes * 1)(self.adapter), (ctypes.c_float * 1)(1.0)
        assert L.llama_set_adapters_lora(self.context, one[0], int(on), one[1]) == 0
    def logits(self, ids, vocab):
        L.llama_memory_clear(L.llama_get_memory(self.context), True)
        batch = L.llama_batch_init(len(ids), 0, 1); batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        assert L.llama_decode(self.context, batch) == 0
        out = torch.tensor([L.llama_get_logits_ith(self.context, i)[:vocab] for i in range(len(ids))], dtype=torch.float64)
        L.llama_batch_free(batch)
        return out

def greedy(logits, ids, count=24):
    ids = list(ids)
    for _ in range(count): ids.append(int(logits(ids)[-1].argmax()))
    return ids

def far(got, expected): return ((got - expected).abs().max() / expected.abs().max()).item()

version = open(f"{sdist}/llama_cpp/__init__.py").read().split(chr(34))[-2]
print(f"llama-cpp-python {version} (its llama.cpp, CPU), lora-webgpu {json.load(open(f'{ROOT}/package.json'))['version']}, PEFT {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}; bound {BOUND:g}\n")
print(f"{'':26} logits, of the largest   without the   greedy\n{'adapter':26} base     with adapter    adapter       tokens equal")
with tempfile.TemporaryDirectory() as work:
    done = 0
    for name, (adapter, base) in CASES.items():
        adapter, base = f"{GOLDEN}/{adapter}", f"{GOLDEN}/{base}"
        if not os.path.exists(adapter): continue
        write_base(base, f"{work}/base.gguf")
        command = ["node", f"{ROOT}/bin/lora-webgpu.mjs", "convert", adapter, "--to", "gguf", "--model", base, "--out", f"{work}/adapter.gguf"]
        subprocess.run(command + (["--plain"] if "--plain" in name else []), check=True, stdout=subprocess.DEVNULL)
        model = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager", dtype=torch.float32).eval()
        trace = next(p for p in (f"{base}/trace.safetensors", f"{adapter}/logits.safetensors") if os.path.exists(p))
        ids = [int(i) for i in load_file(trace)["input_ids"][0]]; vocab = model.config.vocab_size
        run = lambda m: lambda ids: m(input_ids=torch.tensor([ids])).logits[0].detach()
        plain = run(copy.deepcopy(model).double())(ids); tuned = PeftModel.from_pretrained(model, adapter).double().eval()
        llama = Llama(f"{work}/base.gguf", f"{work}/adapter.gguf")
        llama.use(False); without = llama.logits(ids, vocab)
        llama.use(True); got = llama.logits(ids, vocab); expected = run(tuned)(ids)
        tokens = greedy(lambda ids: llama.logits(ids, vocab), ids[:8]), greedy(run(tuned), ids[:8])
        equal = sum(a == b for a, b in zip(tokens[0][8:], tokens[1][8:]))
        print(f"{name:26} {far(without, plain):.1e}  {far(got, expected):.1e}         {far(without, expected):.1e}       {equal} of 24")
        assert far(got, expected) <= BOUND and far(without, plain) <= BOUND < far(without, expected) / 10 and equal == 24, name
        assert not COMPLAINTS, COMPLAINTS
        done += 1
    assert done
    print(f"\n{done} adapters loaded by llama.cpp without a warning; all give PEFT's logits and tokens.")
