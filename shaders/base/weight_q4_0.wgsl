// W in GGUF's q4_0: d·(q - 8) in blocks of 32 columns, d in f16, q in 4 bits: the lower halves of 16 bytes are the first 16
// columns. A row has all its q and then all its d, padded to 16 bytes.
@group(0) @binding(0) var<storage, read> weight: array<vec4u>; // [rows, in_features / 32 + ⌈in_features / 256⌉]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 8;
struct Packed {
    bits: vec4u,
    d: f32,
}

fn load(row: u32, chunk: u32) -> Packed {
    let chunks = params.in_features / 32;
    let first = row * (chunks + (params.in_features + 255) / 256);
    let scales = unpack2x16float(weight[first + chunks + chunk / 8][chunk / 2 % 4]);
    return Packed(weight[first + chunk], scales[chunk % 2]);
}

// q within a mantissa, 1 + q/128, is a float without a conversion; times d it is exact.
fn unpack(packed: Packed, j: u32) -> vec4f {
    let word = packed.bits[j % 4] >> (j / 4 * 4);
    let bits = vec4u(word << 16, word << 8, word, word >> 8) & vec4u(0xf0000);
    return bitcast<vec4f>(bits | vec4u(0x3f800000)) * (128 * packed.d) - 136 * packed.d;
}
