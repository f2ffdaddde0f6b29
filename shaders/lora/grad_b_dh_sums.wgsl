// dB += Σ of its parts and dh = Σ of its parts, which lie behind those of dB.
struct Params {
    d_b_len: u32,
    d_b_parts: u32,
    dh_len: u32,
    dh_parts: u32,
}
@group(0) @binding(0) var<storage, read> parts: array<f32>; // [d_b_parts, d_b_len] then [dh_parts, dh_len]
@group(0) @binding(1) var<storage, read_write> d_b: array<f32>; // [d_b_len]
@group(0) @binding(2) var<storage, read_write> dh: array<f32>; // [dh_len]
@group(0) @binding(3) var<uniform> params: Params;

override WORKGROUP: u32 = 128;

fn sum_up(first: u32, count: u32, len: u32) -> f32 {
    var sum = 0.0;
    for (var part = 0u; part < count; part++) {
        sum += parts[first + part * len];
    }
    return sum;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i < params.d_b_len {
        d_b[i] += sum_up(i, params.d_b_parts, params.d_b_len);
    } else if i < params.d_b_len + params.dh_len {
        let at = i - params.d_b_len;
        dh[at] = sum_up(params.d_b_parts * params.d_b_len + at, params.dh_parts, params.dh_len);
    }
}
