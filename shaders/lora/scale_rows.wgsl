// h *= factors, one factor for each row: which tokens an adapter is for.
struct Params {
    tokens: u32,
    rank: u32,
}
@group(0) @binding(0) var<storage, read> factors: array<f32>; // [tokens]
@group(0) @binding(1) var<storage, read_write> h: array<f32>; // [tokens, rank]
@group(0) @binding(2) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let i = id.x + id.y * groups.x * WORKGROUP;
    if i >= params.tokens * params.rank {
        return;
    }
    h[i] *= factors[i / params.rank];
}
