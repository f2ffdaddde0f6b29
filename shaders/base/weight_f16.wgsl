// W in f16, two to a word, rows padded with zeros to whole chunks.
@group(0) @binding(0) var<storage, read> weight: array<vec4u>; // [rows, ⌈in_features / 8⌉]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 2;
alias Packed = vec4u;

fn load(row: u32, chunk: u32) -> Packed {
    return weight[row * ((params.in_features + 7) / 8) + chunk];
}

fn unpack(packed: Packed, j: u32) -> vec4f {
    let pair = select(packed.xy, packed.zw, j == 1); // an index that is no constant would be slow
    return vec4f(unpack2x16float(pair.x), unpack2x16float(pair.y));
}

// unpack is factor·unit·codes.
fn codes(packed: Packed, j: u32) -> vec4f {
    return unpack(packed, j);
}

fn unit(j: u32) -> vec4f {
    return vec4f(1);
}

fn factor(packed: Packed) -> f32 {
    return 1.0;
}
