// W in f16 as of weight_f16, read as such: for tiles.
enable f16;
@group(0) @binding(0) var<storage, read> weight: array<vec4<f16>>; // [rows, 2·⌈in_features / 8⌉]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 1;
alias Packed = vec4<f16>;

fn load(row: u32, chunk: u32) -> Packed {
    return weight[row * ((params.in_features + 7) / 8 * 2) + chunk];
}

fn unpack(packed: Packed, j: u32) -> vec4f {
    return vec4f(packed);
}
