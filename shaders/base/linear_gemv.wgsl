// output = scale·W·x + bias for one token. LANES invocations share ROWS rows of W; a workgroup has TEAMS times as many.
override LANES: u32 = 32;
override TEAMS: u32 = 4;

var<workgroup> partial: array<vec4f, LANES * TEAMS>; // [TEAMS, LANES], a component for each row

@compute @workgroup_size(LANES, TEAMS)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_id) local: vec3u,
    @builtin(local_invocation_index) index: u32,
) {
    let first = ((group.x + group.y * groups.x) * TEAMS + local.y) * ROWS;
    partial[index] = sums(first, local.x, LANES);
    workgroupBarrier();

    // One invocation for each row, LANES being no fewer.
    let out = first + local.x;
    if local.x < ROWS && out < params.rows {
        var total = 0.0;
        for (var lane = 0u; lane < LANES; lane++) {
            total += partial[local.y * LANES + lane][local.x];
        }
        put(out, total);
    }
}
