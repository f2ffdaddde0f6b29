// W in f32, for in_features divisible by 4.
@group(0) @binding(0) var<storage, read> weight: array<vec4f>; // [rows, in_features / 4]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 1;
alias Packed = vec4f;

fn load(row: u32, chunk: u32) -> Packed {
    return weight[row * (params.in_features / 4) + chunk];
}

fn unpack(packed: Packed, j: u32) -> vec4f {
    return packed;
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
