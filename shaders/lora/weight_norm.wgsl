// norm[o] = ‖W + scale·B·A‖ of row o without forming the product:
// √(‖W‖² + 2·scale·(A·Wᵀ)ᵀ·B + scale²·B·(A·Aᵀ)·Bᵀ), row by row.
struct Params {
    out_features: u32,
    rank: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> b: array<f32>; // [out_features, rank]
@group(0) @binding(1) var<storage, read> squares: array<f32>; // [out_features]: ‖W‖² by row
@group(0) @binding(2) var<storage, read> aw: array<f32>; // [rank, out_features]: A·Wᵀ
@group(0) @binding(3) var<storage, read> aa: array<f32>; // [rank, rank]: A·Aᵀ
@group(0) @binding(4) var<storage, read_write> norm: array<f32>; // [out_features]
@group(0) @binding(5) var<uniform> params: Params;

override WORKGROUP: u32 = 64;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let o = id.x + id.y * groups.x * WORKGROUP;
    if o >= params.out_features {
        return;
    }
    var sum = squares[o];
    for (var r = 0u; r < params.rank; r++) {
        var inner = 0.0;
        for (var q = 0u; q < params.rank; q++) {
            inner += aa[r * params.rank + q] * b[o * params.rank + q];
        }
        sum += params.scale * b[o * params.rank + r] * (2.0 * aw[r * params.out_features + o] + params.scale * inner);
    }
    norm[o] = sqrt(max(sum, 0.0));
}
