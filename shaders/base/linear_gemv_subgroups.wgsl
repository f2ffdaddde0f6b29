// output = scale·W·x + bias for one token. A subgroup, which has four invocations or more, makes ROWS rows of W at a time, and adds
// them up by itself; a workgroup makes TEAMS times as many, in several rounds if it has fewer subgroups.
const TEAMS: u32 = 4;

@compute @workgroup_size(32 * TEAMS)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let lanes = subgroupAdd(1u); // the subgroup's size is how many there can be
    for (var round = 0u; round < TEAMS; round += subgroups) {
        // Subgroups that are too many repeat the last team's rows, since all must add up together; these are not written.
        let team = round + subgroup;
        let first = ((group.x + group.y * groups.x) * TEAMS + min(team, TEAMS - 1)) * ROWS;
        let total = subgroupAdd(sums(first, lane, lanes));
        let out = first + lane;
        if lane < ROWS && team < TEAMS && out < params.rows {
            put(out, select(select(total.x, total.y, lane == 1), select(total.z, total.w, lane == 3), lane >= 2));
        }
    }
}
