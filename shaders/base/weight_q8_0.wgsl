// W in GGUF's q8_0: d·q in blocks of 32 columns, d in f16, q in i8. A row has all its q and then all its d, padded to 16 bytes.
@group(0) @binding(0) var<storage, read> weight: array<vec4u>; // [rows, in_features / 16 + ⌈in_features / 256⌉]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 4;
struct Packed {
    bits: vec4u,
    d: f32,
}

fn load(row: u32, chunk: u32) -> Packed {
    let chunks = params.in_features / 16;
    let first = row * (chunks + (params.in_features + 255) / 256);
    let block = chunk / 2;
    let scales = unpack2x16float(weight[first + chunks + block / 8][block / 2 % 4]);
    return Packed(weight[first + chunk], scales[block % 2]);
}

// q + 128 as the upper bits of a mantissa, 1 + (q + 128)/256, is a float without a conversion; times d it is exact.
fn unpack(packed: Packed, j: u32) -> vec4f {
    let pair = select(packed.bits.xy, packed.bits.zw, j >= 2); // an index that is no constant would be slow
    let word = select(pair.x, pair.y, j % 2 == 1) ^ 0x80808080;
    let bits = vec4u(word << 15, word << 7, word >> 1, word >> 9) & vec4u(0x7f8000);
    return bitcast<vec4f>(bits | vec4u(0x3f800000)) * (256 * packed.d) - 384 * packed.d;
}

// unpack is factor·unit·codes, these with fewer shifts where a compiler knows j: bit p in the mantissa of 128 counts 2^(p - 16),
// and what is taken from it is exact.
fn codes(packed: Packed, j: u32) -> vec4f {
    let flipped = packed.bits[j] ^ 0x80808080;
    let bits = vec4u(flipped, flipped, flipped >> 16, flipped >> 16) & vec4u(0xff, 0xff00, 0xff, 0xff00);
    return bitcast<vec4f>(bits | vec4u(power())) - vec4f(128.001953125, 128.5, 128.001953125, 128.5);
}

fn unit(j: u32) -> vec4f {
    return vec4f(65536, 256, 65536, 256);
}

fn factor(packed: Packed) -> f32 {
    return packed.d;
}

// The bits of 128, not to be known to compilers: with two constants an AND and an OR would not be one operation.
fn power() -> u32 {
    return 0x43000000 | (params.in_features >> 31);
}
