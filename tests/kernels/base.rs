//! The base's products: each in every layout of the weight, over a part of its rows whose results are a part of the output.
//!
//! Wrong products are tried with weights in f32 of any width, wrong layouts where single weights are read.

use lora_webgpu::kernels::base::add_parts::Sums;
use lora_webgpu::kernels::base::{self, Bias, Layout, Rows};
use lora_webgpu::{Gpu, Recording, Result, Tensor};

use crate::base_file::File;
use crate::cases::{Case, Given, Spec, case, d, given, unset};
use crate::common::Rng;
use crate::common::tolerance::{Expected, exact, products};
use crate::reference::base as reference;
use crate::reference::{Dims, Sum};

fn upload(file: &File, gpu: &Gpu, layout: Layout, first: usize, count: usize) -> Result<Rows> {
    let mut loader = file.loader(gpu, u64::MAX)?;
    loader.write(0, &file.bytes)?;
    let rows = loader.finish()?.kernel_rows().remove(0);
    Ok(Rows { layout, first, count, ..rows })
}

// ── forward ──

const F16: usize = Layout::F16 as usize;
type Forward = fn(&Recording, &Rows, Option<Bias>, &Tensor, &Tensor, usize) -> Result<()>;
type ForwardReference = fn(Dims, &[f64], Option<&[f64]>, &[f64]) -> Vec<Sum>;

/// Rows 1 to out_features + 1 of two more, into the columns from 2 on of three more; `rank` 1 has a bias, 2 adds to what is there.
fn forward<const L: usize>(d: Dims, rng: &mut Rng, record: Forward, expected: ForwardReference) -> Case {
    let layout = Layout::ALL[L];
    let file = File::random(layout, d.out_features + 2, d.in_features, rng);
    let (tokens, count, columns) = (d.tokens, d.out_features, d.out_features + 3);
    let padded = file.columns.next_multiple_of(4);
    let x = given(rng, &[tokens, padded]); // weights past the end are 0, whatever the input is there
    let (bias, output) = (given(rng, &[count + 4]), given(rng, &[tokens, columns]));
    let has_bias = d.rank == 1;
    let d = Dims { in_features: file.columns, ..d };
    let cut: Vec<f64> = x.f64().chunks(padded).flat_map(|row| row[..file.columns].to_vec()).collect();
    let weight = &file.values[file.columns..][..count * file.columns];
    let mut sums = expected(d, weight, has_bias.then_some(&bias.f64()[3..]), &cut);
    let old = output.f64();
    if d.rank == 2 {
        let old = old.chunks(columns).flat_map(|row| &row[2..2 + count]);
        sums.iter_mut().zip(old).for_each(|(sum, old)| *sum = sum.plus(Sum::of(*old)));
    }
    let sums = products(&sums);
    let mut all = exact(&old);
    for t in 0..tokens {
        all[t * columns + 2..][..count].copy_from_slice(&sums[t * count..][..count]);
    }
    case(
        [bias, x, output],
        move |rec, [bias, x, output]| {
            let rows = upload(&file, rec.gpu(), layout, 1, count)?;
            record(rec, &rows, has_bias.then_some(Bias { bias, first: 3 }), x, output, 2)
        },
        [(2, all)],
    )
}

fn linear<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    forward::<L>(d, rng, base::linear::record, reference::linear)
}

fn linear_gemv<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    forward::<L>(d, rng, base::linear_gemv::record, reference::linear_gemv)
}

fn linear_gemv_subgroups<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    forward::<L>(d, rng, base::linear_gemv_subgroups::record, reference::linear_gemv_subgroups)
}

fn linear_half(d: Dims, rng: &mut Rng) -> Case {
    forward::<F16>(d, rng, base::linear_half::record, reference::linear_half)
}

fn linear_vec4<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    forward::<L>(d, rng, base::linear_vec4::record, reference::linear_vec4)
}

fn linear_wide<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    forward::<L>(d, rng, base::linear_wide::record, reference::linear_wide)
}

fn linear_quad(d: Dims, rng: &mut Rng) -> Case {
    let record: Forward = match d.rank {
        2 => |rec, rows, bias, x, output, first| base::linear_quad::record(rec, rows, bias, x, output, first, true),
        _ => |rec, rows, bias, x, output, first| base::linear_quad::record(rec, rows, bias, x, output, first, false),
    };
    forward::<0>(d, rng, record, reference::linear_quad)
}

fn add_parts(d: Dims, rng: &mut Rng) -> Case {
    let (first_column, width, columns) = (d.in_features, d.out_features, 2 * d.in_features + d.out_features);
    let [parts, output] = [given(rng, &[d.rank, d.tokens * width]), given(rng, &[d.tokens, columns])];
    let accumulate = first_column == 0;
    let old = output.f64();
    let place = |i: usize| i / width * columns + first_column + i % width;
    let before: Vec<f64> = (0..d.tokens * width).map(|i| if accumulate { old[place(i)] } else { 0.0 }).collect();
    let mut all = exact(&old);
    for (i, sum) in products(&reference::add_parts(&parts.f64(), &before)).into_iter().enumerate() {
        all[place(i)] = sum;
    }
    case(
        [parts, output],
        move |rec, [parts, output]| {
            let sums = Sums { output, columns, first_column, width, accumulate };
            base::add_parts::record(rec, parts, sums)
        },
        [(1, all)],
    )
}

fn show_parts(d: &Dims) -> String {
    format!("{} × {} of {}", d.tokens, d.out_features, d.rank)
}

// ── transposed ──

type Transposed = fn(&Recording, &Rows, &Tensor, &Tensor, usize, bool) -> Result<()>;

/// The same rows, of the columns from 2 on of three more; `rank` 1 adds to what is there, 2 takes d_output transposed.
fn transposed<const L: usize>(
    d: Dims,
    rng: &mut Rng,
    record: Transposed,
    expected: fn(Dims, &[f64], &[f64]) -> Vec<Sum>,
) -> Case {
    let layout = Layout::ALL[L];
    let file = File::random(layout, d.out_features + 2, d.in_features, rng);
    let (tokens, count, columns) = (d.tokens, d.out_features, d.out_features + 3);
    let (mut d_output, d_input) = (given(rng, &[tokens, columns]), given(rng, &[tokens, file.columns]));
    let accumulate = d.rank == 1;
    let transposed = d.rank == 2;
    let d = Dims { in_features: file.columns, ..d };
    let cut: Vec<f64> = d_output.f64().chunks(columns).flat_map(|row| row[2..2 + count].to_vec()).collect();
    let weight = &file.values[file.columns..][..count * file.columns];
    let mut sums = expected(d, weight, &cut);
    if transposed {
        let element = |i: usize| d_output.data[i % tokens * columns + i / tokens];
        d_output = Given::new(&[columns, tokens], (0..columns * tokens).map(element).collect());
    }
    if accumulate {
        sums.iter_mut().zip(d_input.f64()).for_each(|(sum, old)| *sum = sum.plus(Sum::of(old)));
    }
    case(
        [d_output, d_input],
        move |rec, [d_output, d_input]| {
            let rows = upload(&file, rec.gpu(), layout, 1, count)?;
            record(rec, &rows, d_output, d_input, 2, accumulate)
        },
        [(1, products(&sums))],
    )
}

fn linear_t<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    transposed::<L>(d, rng, base::linear_t::record, reference::linear_t)
}

fn linear_t_gemv<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    transposed::<L>(d, rng, base::linear_t_gemv::record, reference::linear_t_gemv)
}

fn linear_t_half(d: Dims, rng: &mut Rng) -> Case {
    transposed::<F16>(d, rng, base::linear_t_half::record, reference::linear_t_half)
}

fn linear_t_vec4<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    transposed::<L>(d, rng, base::linear_t_vec4::record, reference::linear_t_vec4)
}

fn linear_t_wide<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    transposed::<L>(d, rng, base::linear_t_wide::record, reference::linear_t_wide)
}

fn linear_grad(d: Dims, rng: &mut Rng) -> Case {
    let left = given(rng, &[d.tokens, d.out_features]);
    let right = given(rng, &[d.tokens, d.in_features]);
    let d_weight = given(rng, &[d.out_features, d.in_features]);
    let sums = reference::linear_grad(d, &left.f64(), &right.f64());
    let sums: Vec<Sum> = sums.iter().zip(d_weight.f64()).map(|(sum, old)| sum.times(0.5).plus(Sum::of(old))).collect();
    case(
        [left, right, d_weight],
        |rec, [left, right, d_weight]| base::linear_grad::record(rec, left, right, d_weight, 0.5),
        [(2, products(&sums))],
    )
}

fn linear_t_quad(d: Dims, rng: &mut Rng) -> Case {
    let record = match d.rank {
        2 => base::linear_t_quad::record_transposed,
        _ => base::linear_t_quad::record,
    };
    transposed::<0>(d, rng, record, reference::linear_t_quad)
}

// ── rows ──

/// The weight is the middle of three times as many rows; ids go over all of them.
fn rows<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    let layout = Layout::ALL[L];
    let file = File::random(layout, d.out_features, d.in_features, rng);
    let (tokens, columns, count) = (d.tokens, file.columns, file.rows);
    let ids: Vec<usize> = (0..tokens).map(|t| (5 * t + count) % (3 * count)).collect();
    let output = given(rng, &[tokens, columns]);
    let mut all = exact(&output.f64());
    for (t, id) in ids.iter().enumerate().filter(|(_, id)| (count..2 * count).contains(*id)) {
        let row: Vec<Expected> =
            products(&reference::rows(Dims { in_features: columns, ..d }, &file.values, &[id - count]));
        all[t * columns..][..columns].copy_from_slice(&row);
    }
    let ids = Given { labels: Some(ids.iter().map(|id| *id as i32).collect()), ..Given::new(&[tokens], Vec::new()) };
    case(
        [ids, output],
        move |rec, [ids, output]| {
            let rows = upload(&file, rec.gpu(), layout, 0, count)?;
            base::rows::record(rec, &rows, ids, output, count, 3 * count)
        },
        [(1, all)],
    )
}

/// As many squares come before and after them.
fn row_squares<const L: usize>(d: Dims, rng: &mut Rng) -> Case {
    let layout = Layout::ALL[L];
    let file = File::random(layout, d.out_features, d.in_features, rng);
    let count = file.rows;
    let squares = given(rng, &[3 * count]);
    let mut all = exact(&squares.f64());
    all.splice(count..2 * count, products(&reference::row_squares(file.columns, &file.values)));
    case(
        [squares],
        move |rec, [squares]| {
            let rows = upload(&file, rec.gpu(), layout, 0, count)?;
            base::row_squares::record(rec, &rows, squares, count)
        },
        [(0, all)],
    )
}

// ── inputs ──

fn pad_rows(d: Dims, rng: &mut Rng) -> Case {
    let x = given(rng, &[d.tokens, d.in_features]);
    let padded = reference::pad_rows(d.in_features, &x.f64());
    case(
        [x, unset(&[d.tokens, d.in_features.next_multiple_of(4)])],
        |rec, [x, output]| base::pad_rows::record(rec, x, output),
        [(1, exact(&padded))],
    )
}

/// `rank` 1 has rows of zeros and of numbers below 10⁻⁵ among the others.
fn absmax_int8(d: Dims, rng: &mut Rng) -> Case {
    let features = d.in_features;
    let mut x = given(rng, &[d.tokens, features]);
    if d.rank == 1 {
        x.data.chunks_mut(features).skip(1).step_by(3).for_each(|row| row.fill(0.0));
        x.data.chunks_mut(features).skip(2).step_by(3).for_each(|row| row.iter_mut().for_each(|v| *v *= 3e-6));
    }
    let zero = [Expected { value: 0.0, bound: 0.0 }];
    let pad = features.next_multiple_of(4) - features;
    let sums = products(&reference::absmax_int8(features, &x.data));
    let padded = sums.chunks(features).flat_map(|row| row.iter().copied().chain(zero.repeat(pad))).collect();
    case(
        [x, unset(&[d.tokens, features.next_multiple_of(4)])],
        |rec, [x, output]| base::absmax_int8::record(rec, x, output),
        [(1, padded)],
    )
}

// ── the table ──

/// `rank` says whether there is a bias, or whether the result is added. Neighbours of the tiles: 64 tokens and outputs, 8 tokens
/// and 4 outputs, 16 deep; of the layouts: 4, 8, 16, 32, 64 columns, 256 in a row of factors.
const LINEAR_GRAD_SHAPES: &[Dims] =
    &[d(1, 1, 1, 0), d(2, 131, 3, 0), d(17, 5, 133, 0), d(130, 129, 258, 0), d(259, 64, 130, 0), d(531, 33, 7, 0)];
const WIDE_PRODUCT: &[Dims] =
    &[d(2, 3, 5, 1), d(7, 31, 33, 0), d(130, 31, 13, 1), d(131, 130, 133, 0), d(3, 518, 65, 1), d(66, 67, 517, 1)];
const PRODUCT: &[Dims] = &[
    d(2, 3, 5, 1),
    d(7, 31, 33, 0),
    d(2, 1, 1, 0),
    d(3, 129, 63, 1),
    d(65, 17, 65, 0),
    d(130, 31, 13, 1),
    d(64, 320, 129, 0),
    d(9, 128, 17, 1),
    d(8, 257, 4, 0),
    d(66, 67, 517, 1),
    d(3, 518, 65, 1),
    d(5, 33, 600, 0),
];
/// `in_features` columns before and after the `out_features` that the sums of `rank` parts go to; where there are none, they are
/// added. The last needs workgroups in two dimensions.
const PARTS: &[Dims] =
    &[d(3, 0, 1, 2), d(65, 0, 1, 12), d(1, 0, 1, 1), d(7, 3, 13, 3), d(5, 1, 64, 2), d(4_194_241, 0, 1, 2)];
/// Neighbours of 16 and 32 tokens, 8 and 16 outputs; of what a quad reads at a time, 4 columns or rows.
const QUAD: &[Dims] = &[
    d(2, 4, 5, 1),
    d(15, 12, 33, 0),
    d(1, 4, 1, 0),
    d(3, 128, 7, 2),
    d(65, 24, 15, 1),
    d(33, 32, 16, 0),
    d(32, 320, 129, 2),
    d(17, 40, 9, 1),
    d(9, 256, 8, 2),
];
/// Neighbours of 4 rows, 64 rows, 32 lanes of 4 columns.
const ONE_TOKEN: &[Dims] = &[
    d(1, 3, 5, 1),
    d(1, 31, 33, 0),
    d(1, 1, 1, 0),
    d(1, 63, 7, 1),
    d(1, 128, 64, 0),
    d(1, 129, 65, 1),
    d(1, 1025, 130, 0),
    d(1, 1, 1027, 1),
    d(1, 640, 3, 1),
];
const LOOKED_UP: &[Dims] = &[
    d(9, 3, 5, 0),
    d(7, 31, 33, 0),
    d(5, 1, 1, 0),
    d(65, 129, 7, 0),
    d(31, 320, 4, 0),
    d(3, 256, 3, 0),
    d(130, 65, 64, 0),
];
const SQUARED: &[Dims] =
    &[d(0, 3, 5, 0), d(0, 31, 33, 0), d(0, 1, 1, 0), d(0, 129, 65, 0), d(0, 320, 4, 0), d(0, 256, 130, 0)];
/// The last needs workgroups in two dimensions: 65,535 · 64 + 1.
const SQUARED_ALL: &[Dims] = &[
    d(0, 3, 5, 0),
    d(0, 31, 33, 0),
    d(0, 1, 1, 0),
    d(0, 129, 65, 0),
    d(0, 320, 4, 0),
    d(0, 256, 130, 0),
    d(0, 1, 4_194_241, 0),
];
const PADDED: &[Dims] = &[
    d(3, 5, 0, 0),
    d(7, 31, 0, 0),
    d(1, 1, 0, 0),
    d(130, 63, 0, 0),
    d(65, 66, 0, 0),
    d(2, 8, 0, 0),
    d(1_048_577, 3, 0, 0),
];
const QUANTISED: &[Dims] = &[
    d(3, 5, 0, 0),
    d(7, 31, 0, 1),
    d(1, 1, 0, 0),
    d(5, 64, 0, 1),
    d(2, 65, 0, 0),
    d(130, 63, 0, 1),
    d(4, 1031, 0, 0),
    d(65_537, 3, 0, 1),
];

fn show_dims(d: &Dims) -> String {
    format!("{}×{}×{}{}", d.tokens, d.in_features, d.out_features, ["", "+", "*"][d.rank])
}

fn show_rows(d: &Dims) -> String {
    format!("{} of {}×{}", d.tokens, d.out_features, d.in_features)
}

fn show_squared(d: &Dims) -> String {
    format!("{}×{}", d.out_features, d.in_features)
}

fn show_inputs(d: &Dims) -> String {
    format!("{}×{}{}", d.tokens, d.in_features, if d.rank == 1 { " with zeros" } else { "" })
}

type Mutation = (&'static str, &'static str, &'static str);
type Mutations = &'static [Mutation];

/// Of what kernels share, and of their own: N in all.
const fn joined<const N: usize>(shared: &[Mutation], own: &[Mutation]) -> [Mutation; N] {
    assert!(shared.len() + own.len() == N);
    let mut all = [("", "", ""); N];
    let mut i = 0;
    while i < N {
        all[i] = if i < shared.len() { shared[i] } else { own[i - shared.len()] };
        i += 1;
    }
    all
}

const LINEAR: Mutations = &[
    (
        "the last columns dropped",
        "x[token * columns4 + at], k < columns4",
        "x[token * columns4 + at], k + 1 < columns4",
    ),
    ("the sum stopping at the tile", "first_k < end + DEPTH", "first_k < first_part + 2 * DEPTH"),
    ("all parts the first", "let first_part = slice * params.part", "let first_part = 0 * params.part"),
    ("the bias in all parts", "params.has_bias == 1 && slice == 0", "params.has_bias == 1"),
    ("parts one over another", "(slice * params.tokens + token) *", "token *"),
    ("a term dropped", "sum[i] += part.z * w[2];", ""),
    ("W not transposed", "let w = transpose(", "let w = ("),
    ("only the first column tile", "tile % output_tiles * TILE", "0u"),
    ("only the first token tile", "tile / output_tiles % token_tiles * TILE", "0u"),
    ("another row of W", "params.first_row + min(first_out", "min(first_out"),
    ("another column", "params.first_column + out;", "out;"),
    ("another bias", "bias[(params.first_bias + out) * params.has_bias]", "bias[out * params.has_bias]"),
    ("the bias dropped", "sum[i][j] + offset", "sum[i][j]"),
    ("the bias always", "params.has_bias], params.has_bias == 1 && slice == 0)", "1u], true)"),
    ("accumulation", "output[at] = params.scale", "output[at] += params.scale"),
    (
        "the output transposed",
        "(slice * params.tokens + token) * params.columns + params.first_column + out;",
        "(params.first_column + out) * params.tokens + token;",
    ),
];
/// Of the products for one token.
const GEMV: [Mutation; 11] = [
    ("the last chunk dropped", "chunk < chunks;", "chunk + 1 < chunks;"),
    ("the sum stopping at the lanes", "chunk += lanes", "chunk += chunks"),
    ("a row repeated", "load(row.z, first_chunk)", "load(row.y, first_chunk)"),
    ("the next columns late", "min(chunk + lanes, chunks - 1)", "chunk"),
    ("a column left out", " + a.z * b.z", ""),
    ("only the first workgroup", "(group.x + group.y * groups.x) * TEAMS", "0 * TEAMS"),
    ("another row of W", "params.first_row + min(", "min("),
    ("another column", "output[params.first_column + out]", "output[out]"),
    ("another bias", "bias[(params.first_bias + out) * params.has_bias]", "bias[out * params.has_bias]"),
    ("the bias dropped", "total + offset", "total"),
    ("accumulation", "+ out] = params.scale", "+ out] += params.scale"),
];
const LINEAR_GEMV: Mutations = &joined::<12>(&GEMV, &[("a lane left out", "lane < LANES;", "lane + 1 < LANES;")]);
const LINEAR_GEMV_SUBGROUPS: Mutations = &joined::<16>(
    &GEMV,
    &[
        ("sums not added up", "subgroupAdd(sums(first, lane, lanes))", "sums(first, lane, lanes)"),
        ("lanes miscounted", "let lanes = subgroupAdd(1u)", "let lanes = subgroupAdd(2u)"),
        ("only the first team", "min(team, TEAMS - 1)", "0u"),
        ("two rows swapped", "total.y, lane == 1", "total.y, lane == 0"),
        ("the last row unwritten", "lane < ROWS &&", "lane + 1 < ROWS &&"),
    ],
);
const LINEAR_VEC4: Mutations = &[
    ("the last columns dropped", "k < columns4;", "k + 1 < columns4;"),
    ("stopping at the workgroup", "id.x + id.y * groups.x * WORKGROUP", "id.x % WORKGROUP"),
    ("only the first token tile", "tile / output_tiles * TOKENS", "0u"),
    ("only the first output tile", "tile % output_tiles * OUTPUTS", "0u"),
    ("a token repeated", "first_token + 3, last_token", "first_token + 2, last_token"),
    ("an output repeated", "load(low.w, chunk)", "load(low.z, chunk)"),
    ("the upper outputs like the lower ones", "u2 += v2 * w_high", "u2 += v2 * w_low"),
    ("a chunk read once", "if j == 0", "if k == 0"),
    (
        "W transposed",
        "let w_low = mat4x4f(unpack(w0, j), unpack(w1, j), unpack(w2, j), unpack(w3, j))",
        "let w_low = transpose(mat4x4f(unpack(w0, j), unpack(w1, j), unpack(w2, j), unpack(w3, j)))",
    ),
    ("another row of W", "let low = params.first_row + ", "let low = "),
    ("another column", "params.first_column + out;", "out;"),
    ("another bias", "bias[(params.first_bias + out) * params.has_bias]", "bias[out * params.has_bias]"),
    ("the bias dropped", "[j % 4] + offset", "[j % 4]"),
    ("accumulation", "output[at] = ", "output[at] += "),
];
const LINEAR_T: Mutations = &[
    ("the last row dropped", "row < params.rows)", "row + 1 < params.rows)"),
    ("the sum stopping at the tile", "first_k < end + 4 * DEPTH", "first_k < first_part + 8 * DEPTH"),
    ("a term dropped", "sum[i] += d.z * w2;", ""),
    ("rows swapped", "sum[i] += d.y * w1;", "sum[i] += d.y * w2;"),
    ("only the first column tile", "tile % input_tiles * ACROSS", "0u"),
    ("only the first token tile", "tile / input_tiles % token_tiles * TILE", "0u"),
    ("all parts the first", "let first_part = slice * params.part", "let first_part = 0 * params.part"),
    ("parts one over another", "(slice * params.tokens + token) *", "token *"),
    ("another row of W", "params.first_row + min(row, last)", "min(row, last)"),
    ("another column", "params.first_column + min(k, vec4u(last))", "min(k, vec4u(last))"),
    ("accumulation never", "params.accumulate == 1", "false"),
    ("accumulation always", "params.accumulate == 1", "true"),
    (
        "d_input transposed",
        "(slice * params.tokens + token) * params.in_features + input",
        "input * params.tokens + token",
    ),
];
const LINEAR_T_GEMV: Mutations = &[
    ("the last row dropped", "row < vec4u(params.rows)", "row + 1 < vec4u(params.rows)"),
    ("the sum stopping at the slices", "k += 4 * SLICES", "k += params.rows"),
    ("a row left out", "sum[j] += f.w * codes(w3, j);", ""),
    ("the next rows late", "row += 4 * SLICES;", ""),
    ("a column repeated", "i / 4][i % 4]", "i / 4][i % 2]"),
    ("only the first workgroup", "(group.x + group.y * groups.x) * CHUNKS", "0 * CHUNKS"),
    ("another row of W", "return params.first_row + min(", "return min("),
    ("another column", "params.first_column + min(", "min("),
    ("accumulation never", "params.accumulate == 1", "false"),
    ("accumulation always", "params.accumulate == 1", "true"),
];
const LINEAR_T_VEC4: Mutations = &[
    ("the last row dropped", "k < params.rows;", "k + 1 < params.rows;"),
    ("stopping at the workgroup", "id.x + id.y * groups.x * WORKGROUP", "id.x % WORKGROUP"),
    ("only the first token tile", "tile / pairs * TOKENS", "0u"),
    ("a token repeated", "first_token + 3, last_token", "first_token + 2, last_token"),
    ("another row of W", "load(params.first_row + k, low4", "load(k, low4"),
    ("the upper inputs like the lower ones", "u2 += d2 * w_high", "u2 += d2 * w_low"),
    (
        "another column",
        "first_token + 5, last_token) * params.columns + params.first_column",
        "first_token + 5, last_token) * params.columns",
    ),
    ("accumulation never", "params.accumulate == 1", "false"),
    ("accumulation always", "params.accumulate == 1", "true"),
    (
        "d_input transposed",
        "let at = (first_token + i) * params.in_features + input",
        "let at = input * params.tokens + first_token + i",
    ),
];
/// With those of the part that products by wide tiles share.
const fn wide(own: [Mutation; 10]) -> [Mutation; 16] {
    let shared = [
        ("a term left out", "add_four(sums, local, 2);", ""),
        ("a term twice", "left + 3 * FOURS, right + 3 * FOURS", "left + 2 * FOURS, right + 2 * FOURS"),
        ("lefts not where they were put", "(local.y ^ (2 * k))", "local.y"),
        ("rights not where they were put", "(local.x ^ (2 * k))", "local.x"),
        ("a right repeated", "(*sums)[13] += l1.z * r1;", "(*sums)[13] += l1.z * r0;"),
        ("a left repeated", "(*sums)[10] += l1.y * r0;", "(*sums)[10] += l1.x * r0;"),
    ];
    joined(&shared, &own)
}
const LINEAR_WIDE: Mutations = &wide([
    ("what is beyond the last column kept", "first_k - 4 + k4 >= columns4", "false"),
    ("the sum stopping at the tile", "first_k < end + 4", "first_k < first_part + 8"),
    ("all parts the first", "let first_part = slice * params.part", "let first_part = 0 * params.part"),
    ("the bias in all parts", "params.has_bias == 1 && slice == 0", "params.has_bias == 1"),
    ("parts one over another", "(slice * params.tokens + token) *", "token *"),
    ("W not transposed", "let columns = transpose(next)", "let columns = (next)"),
    ("only the first output tile", "tile % output_tiles * TILE", "0u"),
    ("only the first token tile", "tile / output_tiles % token_tiles * TILE", "0u"),
    ("another row of W", "params.first_row + min(first_out", "min(first_out"),
    ("another bias", "bias[(params.first_bias + out) * params.has_bias]", "bias[out * params.has_bias]"),
]);
const LINEAR_T_WIDE: Mutations = &wide([
    ("d_output beyond the last row kept", "next[2] = select(vec4f(), next[2], inside);", ""),
    ("another row repeated", "load(k.y, input4 / CHUNK)", "load(k.x, input4 / CHUNK)"),
    ("the sum stopping at the tile", "first_k < end + 16", "first_k < first_part + 32"),
    ("all parts the first", "let first_part = slice * params.part", "let first_part = 0 * params.part"),
    ("parts one over another", "(slice * params.tokens + token) *", "token *"),
    ("d_output not transposed", "let columns = transpose(next)", "let columns = (next)"),
    ("only the first input tile", "tile % input_tiles * FOURS", "0u"),
    ("only the first token tile", "tile / input_tiles % token_tiles * TILE", "0u"),
    ("another row of W", "params.first_row + min(first_k + row", "min(first_k + row"),
    ("accumulation never", "params.accumulate == 1", "false"),
]);
const LINEAR_GRAD: Mutations = &wide([
    ("tokens beyond the last kept", "next[3] = select(vec4f(), next[3], inside.w);", ""),
    ("the sum stopping at the tile", "first < end + 16", "first < first_part + 32"),
    ("all parts the first", "let first_part = slice * params.part", "let first_part = 0 * params.part"),
    ("parts one over another", "(slice * params.rows + row) *", "row *"),
    ("only the first row tile", "tile / column_tiles % row_tiles * TILE", "0u"),
    ("only the first column tile", "tile % column_tiles * TILE", "0u"),
    ("another token", "right_four(tokens.z", "right_four(tokens.y"),
    ("unscaled", "params.scale * sums", "sums"),
    ("accumulation never", "params.accumulate == 1", "false"),
    ("accumulation always", "params.accumulate == 1", "true"),
]);
const LINEAR_QUAD: Mutations = &[
    ("the last columns dropped", "k < columns4;", "k + 1 < columns4;"),
    ("only the first token tile", "tile / output_tiles * 2 * TOKENS", "0u"),
    ("only the first output tile", "tile % output_tiles * 2 * OUTPUTS", "0u"),
    ("a token repeated", "my_token + 3, last_token", "my_token + 2, last_token"),
    ("an output repeated", "weight[row.w + k]", "weight[row.z + k]"),
    ("your rows like mine", "u5 += v5 * z", "u5 += v5 * w"),
    ("my tokens twice", "quadSwapX(v5)", "v5"),
    ("rows of the wrong neighbour", "quadSwapY(w2)", "quadSwapX(w2)"),
    ("tokens of the wrong neighbour", "quadSwapX(v3)", "quadSwapY(v3)"),
    ("tokens swapped", "my_token, your_token, i", "your_token, my_token, i"),
    ("outputs swapped", "my_out, your_out, j", "your_out, my_out, j"),
    ("another row of W", "(params.first_row + min(my_out", "(min(my_out"),
    ("another column", "params.first_column + out;", "out;"),
    ("another bias", "bias[(params.first_bias + out) * params.has_bias]", "bias[out * params.has_bias]"),
    ("the bias dropped", "+ offset + old", "+ old"),
    ("accumulation never", "params.accumulate == 1", "false"),
    ("accumulation always", "params.accumulate == 1", "true"),
];
const LINEAR_T_QUAD: Mutations = &[
    ("the last row dropped", "row < vec4u(params.rows)", "row + 1 < vec4u(params.rows)"),
    ("only the first token tile", "tile / input_tiles * 2 * TOKENS", "0u"),
    ("only the first input tile", "tile % input_tiles * 2 * INPUTS", "0u"),
    ("a token repeated", "my_token + 3, last_token", "my_token + 2, last_token"),
    ("another row of W", "params.first_row * columns4 + min(", "min("),
    ("your inputs like mine", "u2 += z * v2", "u2 += w * v2"),
    ("my tokens twice", "quadSwapX(v1)", "v1"),
    ("inputs of the wrong neighbour", "quadSwapY(w3)", "quadSwapX(w3)"),
    ("tokens of the wrong neighbour", "quadSwapX(v2)", "quadSwapY(v2)"),
    ("tokens swapped", "my_token, your_token, i", "your_token, my_token, i"),
    ("inputs swapped", "my_in, your_in, j", "your_in, my_in, j"),
    ("another column", "params.first + min(my_token + 1", "min(my_token + 1"),
    ("d_output never transposed", "let d = row * params.row_stride;", "let d = row;"),
    ("accumulation never", "params.accumulate == 1", "false"),
    ("accumulation always", "params.accumulate == 1", "true"),
    ("d_input transposed", "let at = token * params.in_features + input", "let at = input * params.tokens + token"),
];
const ROWS: Mutations = &[
    ("another part's rows too", "if !mine && !missing", "if false"),
    ("the row's index in the whole", "select(row - params.first_id, 0, missing)", "select(row, 0, missing)"),
    ("stopping at the workgroup", "id.x + id.y * groups.x * WORKGROUP", "id.x % WORKGROUP"),
    ("accumulation", "4 * at + j] = ", "4 * at + j] += "),
    ("the scale twice", "params.scale * unpack", "params.scale * 2 * unpack"),
];
const ROW_SQUARES: Mutations = &[
    ("the last columns dropped", "min(CHUNK, columns4 - chunk * CHUNK)", "min(CHUNK, columns4 - 1 - chunk * CHUNK)"),
    ("no square", "sum += w * w;", "sum += w;"),
    ("another square", "squares[params.first_square + row]", "squares[row]"),
    ("accumulation", "] = params.scale", "] += params.scale"),
    ("stopping at the workgroup", "id.x + id.y * groups.x * WORKGROUP", "id.x % WORKGROUP"),
    ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
];
const NONE: Mutations = &[];
/// Of f16 that is read as such.
const HALF: Mutations = &[
    ("rows without padding", "(params.in_features + 7) / 8 * 2", "(params.in_features + 3) / 4"),
    ("another row", "row * ((params.in_features", "0 * ((params.in_features"),
    ("columns turned", "vec4f(packed)", "vec4f(packed.yxzw)"),
];

/// Of each layout, where single weights are read.
const LAYOUTS: [Mutations; 8] = [
    &[
        ("another row", "row * (params.in_features / 4) + chunk", "chunk"),
        ("columns turned", "return packed;", "return packed.yxzw;"),
    ],
    ROWS,
    &[
        ("rows without padding", "(params.in_features + 7) / 8", "params.in_features / 8"),
        ("words swapped", "unpack2x16float(pair.x)", "unpack2x16float(pair.y)"),
        ("the first half only", "j == 1", "false"),
    ],
    &[
        ("rows without padding", "(params.in_features + 7) / 8", "params.in_features / 8"),
        (
            "halves swapped",
            "vec4u(pair.x << 16, pair.x, pair.y << 16, pair.y)",
            "vec4u(pair.x, pair.x << 16, pair.y, pair.y << 16)",
        ),
        ("the neighbour's bits", "& vec4u(0xffff0000)", ""),
    ],
    &[
        ("rows without padding", "(params.in_features + 63) / 64", "params.in_features / 64"),
        (
            "columns turned",
            "vec4u(word, word << 2, word << 4, word << 6)",
            "vec4u(word << 6, word << 4, word << 2, word)",
        ),
        ("bytes turned", "(j * 8)", "(24 - j * 8)"),
        ("no sign", "vec4u(0xc0000000)", "vec4u(0x40000000)"),
    ],
    &[
        ("rows of another length", "(params.in_features + 255) / 256", "params.in_features / 256"),
        ("another block's factor", "[block / 2 % 4]", "[block % 4]"),
        ("the neighbour's factor", "scales[block % 2]", "scales[0]"),
        ("no sign", "j % 2 == 1) ^ 0x80808080", "j % 2 == 1)"),
        ("another word", "j >= 2", "j >= 3"),
        ("bytes swapped", "word << 15, word << 7", "word << 7, word << 15"),
        ("another offset", "384 * packed.d", "383 * packed.d"),
    ],
    &[
        ("rows of another length", "(params.in_features + 255) / 256", "params.in_features / 256"),
        ("another block's factor", "[block / 2 % 2]", "[block % 2]"),
        ("the neighbour's factor", "scales[block % 2]", "scales[0]"),
        ("halves of bytes swapped", ">> (j % 2 * 4)", ">> (4 - j % 2 * 4)"),
        (
            "another word",
            "select(packed.bits.x, packed.bits.y, j >= 2)",
            "select(packed.bits.x, packed.bits.y, j >= 3)",
        ),
        ("another offset", "136 * packed.d", "135 * packed.d"),
    ],
    &[
        ("rows of another length", "(params.in_features + 127) / 128", "params.in_features / 128"),
        ("another block's factor", "[block % 2]", "[block / 2 % 2]"),
        ("halves of bytes swapped", ">> (j % 2 * 4)", ">> (4 - j % 2 * 4)"),
        (
            "another word",
            "select(packed.bits.x, packed.bits.y, j >= 2)",
            "select(packed.bits.x, packed.bits.y, j >= 3)",
        ),
        ("no offset", "(128 * packed.d) + packed.m", "(128 * packed.d)"),
    ],
];

macro_rules! specs {
    ($($product:ident, $shapes:expr, $repeated:expr, $show:ident, $mutations:expr;)*) => {
        [$(
            specs!(@one $product, 0, $shapes, $repeated, $show, $mutations),
            specs!(@one $product, 1, $shapes, $repeated, $show, $mutations),
            specs!(@one $product, 2, $shapes, $repeated, $show, $mutations),
            specs!(@one $product, 3, $shapes, $repeated, $show, $mutations),
            specs!(@one $product, 4, $shapes, $repeated, $show, $mutations),
            specs!(@one $product, 5, $shapes, $repeated, $show, $mutations),
            specs!(@one $product, 6, $shapes, $repeated, $show, $mutations),
            specs!(@one $product, 7, $shapes, $repeated, $show, $mutations),
        )*]
    };
    (@one $product:ident, $layout:literal, $shapes:expr, $repeated:expr, $show:ident, $mutations:expr) => {
        Spec {
            kernel: &base::$product::KERNELS[$layout],
            case: $product::<$layout>,
            shapes: $shapes[$layout],
            repeated: $repeated,
            show: $show,
            bound: "products",
            mutations: $mutations[$layout],
        }
    };
}

/// Of each layout's quicker way to its weights; of f32 of any width those of the product.
const fn at_codes(mutations: Mutations) -> [Mutations; 8] {
    [
        NONE,
        mutations,
        NONE,
        NONE,
        &[
            (
                "halves of words swapped",
                "select(flipped >> 16, flipped, j >= 2)",
                "select(flipped, flipped >> 16, j >= 2)",
            ),
            ("no sign", " ^ 0xaaaaaaaa", ""),
            ("another offset", "128.03125, 128.0078125", "128.03125, 128.015625"),
            ("another unit", "vec4f(2048, 8192,", "vec4f(2048, 4096,"),
        ],
        &[
            ("no sign", "flipped = packed.bits[j] ^ 0x80808080", "flipped = packed.bits[j]"),
            ("bytes swapped", "0xff, 0xff00, 0xff, 0xff00", "0xff00, 0xff, 0xff, 0xff00"),
            ("the factor never", "return packed.d;", "return 1.0;"),
        ],
        &[
            ("a word repeated", "let word = packed.bits[j / 2];", "let word = packed.bits[0];"),
            ("another offset", "vec4f(128.001953125, 128.5,", "vec4f(128.001953125, 128.25,"),
            ("another unit", "vec4f(65536, 256, 1, 256)", "vec4f(65536, 256, 256, 1)"),
            ("the factor never", "return packed.d;", "return 1.0;"),
        ],
        &[
            ("a word repeated", "let word = packed.bits[j / 2];", "let word = packed.bits[0];"),
            ("no offset", "vec4f(4096, 16, 4096, 16)) + packed.m", "vec4f(4096, 16, 4096, 16))"),
        ],
    ]
}

/// Of each layout those of f32 of any width.
const fn at_any(mutations: Mutations) -> [Mutations; 8] {
    [NONE, mutations, NONE, NONE, NONE, NONE, NONE, NONE]
}

pub static PRODUCTS: [Spec; 80] = specs! {
    linear, [PRODUCT; 8], 0..2, show_dims, at_any(LINEAR);
    linear_gemv, [ONE_TOKEN; 8], 0..4, show_dims, at_codes(LINEAR_GEMV);
    linear_vec4, [PRODUCT; 8], 0..2, show_dims, at_any(LINEAR_VEC4);
    linear_wide, [WIDE_PRODUCT; 8], 0..2, show_dims, at_any(LINEAR_WIDE);
    linear_t, [PRODUCT; 8], 0..2, show_dims, at_any(LINEAR_T);
    linear_t_gemv, [ONE_TOKEN; 8], 0..4, show_dims, at_codes(LINEAR_T_GEMV);
    linear_t_vec4, [PRODUCT; 8], 0..2, show_dims, at_any(LINEAR_T_VEC4);
    linear_t_wide, [WIDE_PRODUCT; 8], 0..2, show_dims, at_any(LINEAR_T_WIDE);
    rows, [LOOKED_UP; 8], 0..2, show_rows, LAYOUTS;
    row_squares, [SQUARED, SQUARED_ALL, SQUARED, SQUARED, SQUARED, SQUARED, SQUARED, SQUARED], 0..2, show_squared, at_any(ROW_SQUARES);
};

/// Those for devices with subgroups or f16.
pub static OPTIONAL: &[Spec] = &[
    specs!(@one linear_gemv_subgroups, 0, [ONE_TOKEN; 6], 0..4, show_dims, at_any(LINEAR_GEMV_SUBGROUPS)),
    specs!(@one linear_gemv_subgroups, 1, [ONE_TOKEN; 6], 0..4, show_dims, at_any(LINEAR_GEMV_SUBGROUPS)),
    specs!(@one linear_gemv_subgroups, 2, [ONE_TOKEN; 6], 0..4, show_dims, at_any(LINEAR_GEMV_SUBGROUPS)),
    specs!(@one linear_gemv_subgroups, 3, [ONE_TOKEN; 6], 0..4, show_dims, at_any(LINEAR_GEMV_SUBGROUPS)),
    specs!(@one linear_gemv_subgroups, 4, [ONE_TOKEN; 6], 0..4, show_dims, at_any(LINEAR_GEMV_SUBGROUPS)),
    specs!(@one linear_gemv_subgroups, 5, [ONE_TOKEN; 6], 0..4, show_dims, at_any(LINEAR_GEMV_SUBGROUPS)),
    Spec {
        kernel: &base::linear_half::KERNEL,
        case: linear_half,
        shapes: PRODUCT,
        repeated: 0..2,
        show: show_dims,
        bound: "products",
        mutations: HALF,
    },
    Spec {
        kernel: &base::linear_t_half::KERNEL,
        case: linear_t_half,
        shapes: PRODUCT,
        repeated: 0..2,
        show: show_dims,
        bound: "products",
        mutations: HALF,
    },
    Spec {
        kernel: &base::linear_quad::KERNEL,
        case: linear_quad,
        shapes: QUAD,
        repeated: 0..4,
        show: show_dims,
        bound: "products",
        mutations: LINEAR_QUAD,
    },
    Spec {
        kernel: &base::linear_t_quad::KERNEL,
        case: linear_t_quad,
        shapes: QUAD,
        repeated: 0..4,
        show: show_dims,
        bound: "products",
        mutations: LINEAR_T_QUAD,
    },
];

pub static INPUTS: &[Spec] = &[
    Spec {
        kernel: &base::add_parts::KERNEL,
        case: add_parts,
        shapes: PARTS,
        repeated: 0..2,
        show: show_parts,
        bound: "products",
        mutations: &[
            ("a part left out", "part < params.parts;", "part + 1 < params.parts;"),
            ("one part again and again", "part * params.len;", "0 * params.len;"),
            ("one element twice", "parts[of_part + second]", "parts[of_part + first]"),
            ("overwriting", "params.accumulate == 1", "false"),
            ("always adding", "params.accumulate == 1", "true"),
            ("another column", " + params.first_column + i", " + i"),
            ("the columns in one piece", "i / params.width * params.columns", "i / params.width * params.width"),
            ("the last element left out", "if i < params.len", "if i + 1 < params.len"),
            ("stopping at the tile", "if i < params.len", "if i < min(params.len, WORKGROUP)"),
            ("only the first workgroup", "group.x * EACH * WORKGROUP + index", "index"),
            ("one round alone", "first += step", "first += params.len"),
        ],
    },
    Spec {
        kernel: &base::linear_grad::KERNEL,
        case: linear_grad,
        shapes: LINEAR_GRAD_SHAPES,
        repeated: 0..2,
        show: show_dims,
        bound: "products",
        mutations: LINEAR_GRAD,
    },
    Spec {
        kernel: &base::pad_rows::KERNEL,
        case: pad_rows,
        shapes: PADDED,
        repeated: 0..2,
        show: show_inputs,
        bound: "exact",
        mutations: &[
            ("no zeros", "select(0.0, found, column < params.features)", "found"),
            ("rows of another width", "i / params.padded * params.features", "i / params.padded * params.padded"),
            ("stopping at the workgroup", "id.x + id.y * groups.x * WORKGROUP", "id.x % WORKGROUP"),
            ("accumulation", "output[i] = ", "output[i] += "),
        ],
    },
    Spec {
        kernel: &base::absmax_int8::KERNEL,
        case: absmax_int8,
        shapes: QUANTISED,
        repeated: 0..4,
        show: show_inputs,
        bound: "products",
        mutations: &[
            ("half up", "round(value * s)", "floor(value * s + 0.5)"),
            ("a lane left out", "i < LANES;", "i + 1 < LANES;"),
            ("no least maximum", "var m = 1e-5;", "var m = 1e-20;"),
            ("the exponent not moved", "exponent -= 1;", ""),
            ("only the first row", "min(group.x + group.y * groups.x, params.rows - 1)", "0u"),
            ("never rounded", "round(value * s)", "(value * s)"),
        ],
    },
];
