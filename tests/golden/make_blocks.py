"""Weights as other programs pack them: python make_blocks.py OUT writes OUT/blocks/*.safetensors.

f16, bf16, q8_0, q4_0 and q4_1 by the `gguf` package (pip install gguf numpy safetensors; made with gguf 0.19.0), which also
says what the bytes mean; i2_s by numpy, from its definition. Each file has the weight, by each name the bytes as uint8, and
by name_values what they stand for.
"""
import os
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants
from safetensors.numpy import save_file

out = os.path.join(sys.argv[1], "blocks")
os.makedirs(out, exist_ok=True)
rng = np.random.default_rng(7)


def i2_s(codes: np.ndarray, scale: float) -> np.ndarray:
    """128 codes in 32 bytes: byte j has codes j, 32 + j, 64 + j, 96 + j from its upper bits to its lower ones; then the scale."""
    blocks = codes.reshape(-1, 4, 32).astype(np.uint8)
    packed = blocks[:, 0] << 6 | blocks[:, 1] << 4 | blocks[:, 2] << 2 | blocks[:, 3]
    return np.concatenate([packed.reshape(-1), np.frombuffer(np.float32(scale).tobytes(), np.uint8)])


for rows, columns in [(12, 256), (5, 384), (3, 32), (7, 33), (4, 1), (1, 128)]:
    weight = rng.standard_normal((rows, columns)).astype(np.float32)
    weight[0] *= 1e-6  # half precision is subnormal there
    weight[-1, ::3] *= 40
    if rows > 2:
        weight[1] = 0
    tensors = {"weight": weight}
    kinds = [("f16", T.F16), ("bf16", T.BF16)]
    if columns % 32 == 0:
        kinds += [("q8_0", T.Q8_0), ("q4_0", T.Q4_0), ("q4_1", T.Q4_1)]
    for name, kind in kinds:
        packed = quants.quantize(weight, kind)
        tensors[name] = np.frombuffer(np.ascontiguousarray(packed).tobytes(), np.uint8)
        tensors[name + "_values"] = quants.dequantize(packed, kind).astype(np.float32).reshape(rows, columns)
    if columns % 128 == 0:
        codes, scale = rng.integers(0, 3, (rows, columns)), np.float32(rng.uniform(0.01, 2))
        tensors["i2_s"] = i2_s(codes, scale)
        tensors["i2_s_values"] = (codes - 1).astype(np.float32) * scale
    save_file(tensors, os.path.join(out, f"w_out{rows}_in{columns}.safetensors"))
