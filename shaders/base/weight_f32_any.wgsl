// W in f32, for any in_features; what lies past the end of a row reads as 0.
@group(0) @binding(0) var<storage, read> weight: array<f32>; // [rows, in_features]

// A Packed holds 4·CHUNK columns of one row.
const CHUNK: u32 = 1;
alias Packed = vec4f;

fn load(row: u32, chunk: u32) -> Packed {
    let column = 4 * vec4u(chunk) + vec4u(0, 1, 2, 3);
    let at = row * params.in_features + min(column, vec4u(params.in_features - 1));
    let found = vec4f(weight[at.x], weight[at.y], weight[at.z], weight[at.w]);
    return select(vec4f(), found, column < vec4u(params.in_features));
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
