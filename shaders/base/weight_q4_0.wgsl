// W in GGUF's q4_0: d·(q - 8) in blocks of 32 columns, d in f16, q in 4 bits: of 8 columns the lower halves of 4 bytes are the
// first. A row has all its q and then all its d, padded to 16 bytes.
@group(0) @binding(0) var<storage, read> weight: array<vec2u>; // [rows, in_features / 16 + 2 · ⌈in_features / 256⌉]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 4;
struct Packed {
    bits: vec2u,
    d: f32,
}

fn load(row: u32, chunk: u32) -> Packed {
    let chunks = params.in_features / 16;
    let first = row * (chunks + 2 * ((params.in_features + 255) / 256));
    let block = chunk / 2;
    let scales = unpack2x16float(weight[first + chunks + block / 4][block / 2 % 2]);
    return Packed(weight[first + chunk], scales[block % 2]);
}

// q within a mantissa, 1 + q/128, is a float without a conversion; times d it is exact.
fn unpack(packed: Packed, j: u32) -> vec4f {
    let word = select(packed.bits.x, packed.bits.y, j >= 2) >> (j % 2 * 4); // an index that is no constant would be slow
    let bits = vec4u(word << 16, word << 8, word, word >> 8) & vec4u(0xf0000);
    return bitcast<vec4f>(bits | vec4u(0x3f800000)) * (128 * packed.d) - 136 * packed.d;
}

// unpack is factor·unit·codes, these with fewer shifts where a compiler knows j: bit p in the mantissa of 128 counts 2^(p - 16),
// and what is taken from it is exact.
fn codes(packed: Packed, j: u32) -> vec4f {
    let word = packed.bits[j / 2];
    if j % 2 == 0 {
        let bits = vec4u(word, word, word, word >> 16) & vec4u(0xf, 0xf00, 0xf0000, 0xf00);
        return bitcast<vec4f>(bits | vec4u(power())) - vec4f(128.0001220703125, 128.03125, 136, 128.03125);
    }
    let bits = vec4u(word, word, word >> 16, word >> 16) & vec4u(0xf0, 0xf000, 0xf0, 0xf000);
    return bitcast<vec4f>(bits | vec4u(power())) - vec4f(128.001953125, 128.5, 128.001953125, 128.5);
}

fn unit(j: u32) -> vec4f {
    return select(vec4f(4096, 16, 4096, 16), vec4f(65536, 256, 1, 256), j % 2 == 0);
}

fn factor(packed: Packed) -> f32 {
    return packed.d;
}

// The bits of 128, not to be known to compilers: with two constants an AND and an OR would not be one operation.
fn power() -> u32 {
    return 0x43000000 | (params.in_features >> 31);
}
