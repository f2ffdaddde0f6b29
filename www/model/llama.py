"""A llama-type decoder with the parameter names of Hugging Face's LlamaForCausalLM, and what is done with one."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class RmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dim, width = c["head_dim"], c["hidden_size"]
        self.q_proj = nn.Linear(width, c["num_attention_heads"] * self.dim, bias=False)
        self.k_proj = nn.Linear(width, c["num_key_value_heads"] * self.dim, bias=False)
        self.v_proj = nn.Linear(width, c["num_key_value_heads"] * self.dim, bias=False)
        self.o_proj = nn.Linear(c["num_attention_heads"] * self.dim, width, bias=False)

    def forward(self, x, cos, sin):
        batch, tokens, _ = x.shape
        # [batch, heads, tokens, head_dim]
        q, k, v = (p(x).view(batch, tokens, -1, self.dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t[:, :, None].expand(-1, -1, q.shape[1] // t.shape[1], -1, -1).flatten(1, 2) for t in (k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        self.self_attn, self.mlp, self.dropout = Attention(c), Mlp(c), dropout
        self.input_layernorm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, cos, sin):
        x = x + F.dropout(self.self_attn(self.input_layernorm(x), cos, sin), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), self.dropout, self.training)


class Llama(nn.Module):
    def __init__(self, c, dropout=0.0):
        super().__init__()
        self.config, self.dropout = c, dropout
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(c["vocab_size"], c["hidden_size"]),
            "layers": nn.ModuleList(Layer(c, dropout) for _ in range(c["num_hidden_layers"])),
            "norm": RmsNorm(c["hidden_size"], c["rms_norm_eps"]),
        })
        for name, p in self.named_parameters():
            if p.ndim == 2:  # what writes into the residual stream starts smaller, as in GPT-2
                into = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * c["num_hidden_layers"]) if into else 1))
        inverse = c["rope_theta"] ** -(torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angles = torch.outer(torch.arange(c["max_position_embeddings"]).float(), inverse).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)  # [positions, head_dim]
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        """ids [batch, tokens] → logits [batch, tokens, vocab_size], by the tied embedding."""
        x = F.dropout(self.model["embed_tokens"](ids), self.dropout, self.training)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.model["layers"]:
            x = layer(x, cos, sin)
        return F.linear(self.model["norm"](x), self.model["embed_tokens"].weight)


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)


@torch.no_grad()
def nats(model, docs, end, stride):
    """Summed loss of every token of every document and of its end mark, each scored once. Windows of the whole context
    advance by `stride`, so a token has at least context − stride tokens before it, or its document's beginning."""
    context, device = model.config["max_position_embeddings"], model.cos.device
    rows = []
    for doc in docs:
        ids, scored = [end] + doc + [end], 0
        while scored < len(ids) - 1:
            start = max(0, scored + stride - context) if scored else 0
            stop = min(start + context, len(ids) - 1)
            labels = ids[start + 1 : stop + 1]
            labels[: scored - start] = [-100] * (scored - start)
            pad = context - len(labels)
            rows.append((ids[start:stop] + [end] * pad, labels + [-100] * pad))
            scored = stop
    total = 0.0
    model.eval()
    for i in range(0, len(rows), 64):
        ids, labels = (torch.tensor(t, device=device) for t in zip(*rows[i : i + 64]))
        total += F.cross_entropy(model(ids).float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum").double().item()
    return total


@torch.no_grad()
def sample(model, ids, end, count, seed, temperature=0.8, top_p=0.95):
    """Up to `count` token ids after `ids`, drawn from the smallest set of tokens that holds `top_p` of the mass."""
    draw, ids, begin = torch.Generator().manual_seed(seed), list(ids), len(ids)
    model.eval()
    while len(ids) - begin < count:
        window = torch.tensor([ids[-model.config["max_position_embeddings"] :]], device=model.cos.device)
        p, order = (model(window)[0, -1].float().cpu() / temperature).softmax(-1).sort(descending=True, stable=True)
        p[p.cumsum(0) - p >= top_p] = 0
        ids.append(order[torch.multinomial(p, 1, generator=draw)].item())
        if ids[-1] == end:
            break
    return ids[begin:]
