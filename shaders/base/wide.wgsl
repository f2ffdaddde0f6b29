// What products by wide tiles share: a workgroup of 256 makes TILE × TILE results, `left` factors by `right` ones, from 16 terms of
// both at a time; one invocation makes 8 × 8 of them: two fours of lefts, TILE / 2 apart, by two fours of rights.
const TILE: u32 = 128;
const FOURS: u32 = 32; // TILE / 4

// 16 terms of the left factor, then of the right one, each [16, FOURS]: against bank conflicts, the fours of term k are at their
// index ^ 2·(k / 4).
var<workgroup> tiles: array<vec4f, 1024>;

alias Sums = array<vec4f, 16>; // [8, 2]: a left by four rights

// Adds the products of one term, whose first fours are at these places.
fn add_term(sums: ptr<function, Sums>, left: u32, right: u32) {
    let l0 = tiles[left];
    let l1 = tiles[left + FOURS / 2];
    let r0 = tiles[right];
    let r1 = tiles[right + FOURS / 2];
    (*sums)[0] += l0.x * r0;
    (*sums)[1] += l0.x * r1;
    (*sums)[2] += l0.y * r0;
    (*sums)[3] += l0.y * r1;
    (*sums)[4] += l0.z * r0;
    (*sums)[5] += l0.z * r1;
    (*sums)[6] += l0.w * r0;
    (*sums)[7] += l0.w * r1;
    (*sums)[8] += l1.x * r0;
    (*sums)[9] += l1.x * r1;
    (*sums)[10] += l1.y * r0;
    (*sums)[11] += l1.y * r1;
    (*sums)[12] += l1.z * r0;
    (*sums)[13] += l1.z * r1;
    (*sums)[14] += l1.w * r0;
    (*sums)[15] += l1.w * r1;
}

// Adds those of terms 4·k to 4·k + 3.
fn add_four(sums: ptr<function, Sums>, local: vec2u, k: u32) {
    let left = 4 * k * FOURS + (local.y ^ (2 * k));
    let right = (16 + 4 * k) * FOURS + (local.x ^ (2 * k));
    add_term(sums, left, right);
    add_term(sums, left + FOURS, right + FOURS);
    add_term(sums, left + 2 * FOURS, right + 2 * FOURS);
    add_term(sums, left + 3 * FOURS, right + 3 * FOURS);
}

// Adds those of all 16 terms.
fn add_tiles(sums: ptr<function, Sums>, local: vec2u) {
    add_four(sums, local, 0);
    add_four(sums, local, 1);
    add_four(sums, local, 2);
    add_four(sums, local, 3);
}

// Which fours an invocation has, of 8 × 4 of them for 32 neighbours: right, left.
fn place(index: u32) -> vec2u {
    return vec2u(index / 32 % 2 * 8 + index % 8, index / 64 * 4 + index / 8 % 4);
}
