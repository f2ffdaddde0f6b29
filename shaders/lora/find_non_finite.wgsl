// Where a step went wrong: window.bad_output = layer + 1 where `output` has an element that is not finite, and
// window.bad_gradient = layer + 1 where dh has one and no later layer had. Layers come in backward order, so that what stays
// in window.bad_output is the first of them. Whoever writes in one dispatch writes the same number.
struct Params {
    output_len: u32,
    dh_len: u32,
    layer: u32,
}
struct Window {
    micro_batches: u32,
    bad_output: u32,
    bad_gradient: u32,
    unused: u32,
}
@group(0) @binding(0) var<storage, read> output: array<f32>; // [tokens, out_features]
@group(0) @binding(1) var<storage, read> dh: array<f32>; // [tokens, rank]
@group(0) @binding(2) var<storage, read_write> window: Window;
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

// By its bits: a compiler may take x == x for granted.
fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let stride = groups.x * WORKGROUP;
    var bad_output = false;
    for (var i = id.x; i < params.output_len; i += stride) {
        bad_output = bad_output | !is_finite(output[i]); // no branch: many loads are on their way
    }
    var bad_gradient = false;
    for (var i = id.x; i < params.dh_len; i += stride) {
        bad_gradient = bad_gradient | !is_finite(dh[i]);
    }
    if bad_output {
        window.bad_output = params.layer + 1;
    }
    if bad_gradient && window.bad_gradient == 0 {
        window.bad_gradient = params.layer + 1;
    }
}
