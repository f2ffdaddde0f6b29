// W in {-1, 0, 1}, sixteen to a word, rows padded with zeros to 64. The first column has the two highest bits, sign and not
// zero: bits 31 and 30 of a float, so that they read as -2, 0 and 2. params.scale has the half of it.
@group(0) @binding(0) var<storage, read> weight: array<u32>; // [rows, 4 · ⌈in_features / 64⌉]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 4;
alias Packed = u32;

fn load(row: u32, chunk: u32) -> Packed {
    return weight[row * (4 * ((params.in_features + 63) / 64)) + chunk];
}

fn unpack(packed: Packed, j: u32) -> vec4f {
    let word = packed << (j * 8);
    return bitcast<vec4f>(vec4u(word, word << 2, word << 4, word << 6) & vec4u(0xc0000000));
}

// unpack is factor·unit·codes, these with fewer shifts where a compiler knows j: bit p in the mantissa of 128 counts 2^(p - 16),
// and what is taken from it is exact.
fn codes(packed: Packed, j: u32) -> vec4f {
    let flipped = packed ^ 0xaaaaaaaa;
    let word = vec4u(select(flipped >> 16, flipped, j >= 2));
    if j % 2 == 0 {
        let bits = word & vec4u(0xc000, 0x3000, 0xc00, 0x300);
        return bitcast<vec4f>(bits | vec4u(power())) - vec4f(128.5, 128.125, 128.03125, 128.0078125);
    }
    let bits = word & vec4u(0xc0, 0x30, 0xc, 3);
    let zeros = vec4f(128.001953125, 128.00048828125, 128.0001220703125, 128.000030517578125);
    return bitcast<vec4f>(bits | vec4u(power())) - zeros;
}

fn unit(j: u32) -> vec4f {
    return select(vec4f(2048, 8192, 32768, 131072), vec4f(8, 32, 128, 512), j % 2 == 0);
}

fn factor(packed: Packed) -> f32 {
    return 1.0;
}

// The bits of 128, not to be known to compilers: with two constants an AND and an OR would not be one operation.
fn power() -> u32 {
    return 0x43000000 | (params.in_features >> 31);
}
