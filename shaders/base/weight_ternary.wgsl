// W in {-1, 0, 1}, sixteen to a word, rows padded with zeros to whole chunks. The first column has the two highest bits,
// sign and not zero: bits 31 and 30 of a float, so that they read as -2, 0 and 2. params.scale has the half of it.
@group(0) @binding(0) var<storage, read> weight: array<vec4u>; // [rows, ⌈in_features / 64⌉]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 16;
alias Packed = vec4u;

fn load(row: u32, chunk: u32) -> Packed {
    return weight[row * ((params.in_features + 63) / 64) + chunk];
}

fn unpack(packed: Packed, j: u32) -> vec4f {
    let word = packed[j / 4] << (j % 4 * 8);
    return bitcast<vec4f>(vec4u(word, word << 2, word << 4, word << 6) & vec4u(0xc0000000));
}
