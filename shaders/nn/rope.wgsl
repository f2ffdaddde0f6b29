// Rotary embedding in place: each head's halves (a, b) become (a·cos − b·sin, b·cos + a·sin); its transpose with −sin.
struct Params {
    rows: u32,
    heads: u32,
    half_dim: u32,
    sin_factor: f32, // 1, for the transpose −1
}
@group(0) @binding(0) var<storage, read> cos_table: array<f32>; // [positions, half_dim]
@group(0) @binding(1) var<storage, read> sin_table: array<f32>; // [positions, half_dim]
@group(0) @binding(2) var<storage, read> position_ids: array<i32>; // [rows]
@group(0) @binding(3) var<storage, read_write> x: array<f32>; // [rows, heads, 2·half_dim]
@group(0) @binding(4) var<uniform> params: Params;

override WORKGROUP: u32 = 256;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    for (var i = id.x; i < params.rows * params.heads * params.half_dim; i += groups.x * WORKGROUP) {
        let head = i / params.half_dim;
        let d = i % params.half_dim;
        let at = u32(position_ids[head / params.heads]) * params.half_dim + d;
        let c = cos_table[at];
        let s = params.sin_factor * sin_table[at];
        let first = head * 2 * params.half_dim + d;
        let second = first + params.half_dim;
        let a = x[first];
        let b = x[second];
        x[first] = a * c - b * s;
        x[second] = b * c + a * s;
    }
}
