// W in bf16, the upper half of an f32, two to a word, rows padded with zeros to whole chunks.
@group(0) @binding(0) var<storage, read> weight: array<vec4u>; // [rows, ⌈in_features / 8⌉]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 2;
alias Packed = vec4u;

fn load(row: u32, chunk: u32) -> Packed {
    return weight[row * ((params.in_features + 7) / 8) + chunk];
}

fn unpack(packed: Packed, j: u32) -> vec4f {
    let pair = select(packed.xy, packed.zw, j == 1); // an index that is no constant would be slow
    return bitcast<vec4f>(vec4u(pair.x << 16, pair.x, pair.y << 16, pair.y) & vec4u(0xffff0000));
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
