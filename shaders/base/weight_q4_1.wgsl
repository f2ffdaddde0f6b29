// W in GGUF's q4_1: d·q + m in blocks of 32 columns, d and m in f16, q in 4 bits: the lower halves of 16 bytes are the first
// 16 columns. A row has all its q and then all its d and m, padded to 16 bytes.
@group(0) @binding(0) var<storage, read> weight: array<vec4u>; // [rows, in_features / 32 + ⌈in_features / 128⌉]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 8;
struct Packed {
    bits: vec4u,
    d: f32,
    m: f32,
}

fn load(row: u32, chunk: u32) -> Packed {
    let chunks = params.in_features / 32;
    let first = row * (chunks + (params.in_features + 127) / 128);
    let scales = unpack2x16float(weight[first + chunks + chunk / 4][chunk % 4]);
    return Packed(weight[first + chunk], scales.x, scales.y);
}

// q within a mantissa, 1 + q/128, is a float without a conversion; what is taken from it and times d is exact.
fn unpack(packed: Packed, j: u32) -> vec4f {
    let word = packed.bits[j % 4] >> (j / 4 * 4);
    let bits = vec4u(word << 16, word << 8, word, word >> 8) & vec4u(0xf0000);
    return (bitcast<vec4f>(bits | vec4u(0x3f800000)) - 1) * (128 * packed.d) + packed.m;
}
