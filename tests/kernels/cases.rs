//! What each kernel is given, what must come of it, and the wrong shaders that this must catch.

use std::ops::Range;

use lora_webgpu::kernels::base::add_parts::{self, Sums};
use lora_webgpu::kernels::optim::LrRatio;
use lora_webgpu::kernels::{Kernel, lora, loss, nn, optim};
use lora_webgpu::{Activation, AdamW, FrozenLoader, Gpu, Recording, Result, Tensor, WeightKind};

use crate::common::tolerance::{Expected, exact, products, roundings};
use crate::common::{Rng, f64s};
use crate::reference::nn::Function;
use crate::reference::{self, Dims, Sum, values};

/// One call of a kernel's `record`.
pub struct Case {
    pub tensors: Vec<Given>,
    pub record: Box<Record>,
    /// By the index of the tensor.
    pub expected: Vec<(usize, Vec<Expected>)>,
}

type Record = dyn Fn(&Recording, &[Tensor]) -> Result<()>;

/// A tensor before the call.
pub struct Given {
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
    /// Integers, in place of `data`.
    pub labels: Option<Vec<i32>>,
    /// Whether the bits of `data` are the words of a weight in f16.
    pub halves: bool,
}

impl Given {
    pub fn new(shape: &[usize], data: Vec<f32>) -> Given {
        Given { shape: shape.into(), data, labels: None, halves: false }
    }

    pub fn f64(&self) -> Vec<f64> {
        f64s(&self.data)
    }

    pub fn upload(&self, gpu: &Gpu, name: &str) -> Tensor {
        if self.halves {
            let mut loader = FrozenLoader::new(gpu, WeightKind::F16, self.shape[0], 2 * self.shape[1]).unwrap();
            loader.write(0, &self.data.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
            return loader.finish().unwrap().kernel_rows().remove(0).weight;
        }
        match &self.labels {
            None => Tensor::from_slice(gpu, name, &self.shape, &self.data),
            labels => Tensor::integers(gpu, name, &self.shape, labels.as_deref()),
        }
        .unwrap()
    }
}

pub struct Spec {
    pub kernel: &'static Kernel,
    pub case: fn(Dims, &mut Rng) -> Case,
    pub shapes: &'static [Dims],
    /// Which of the shapes are run twenty times: ranks 1, 3, 4, 8 and 17, where the seed system raced.
    pub repeated: Range<usize>,
    pub show: fn(&Dims) -> String,
    pub bound: &'static str,
    /// What is wrong, a text that stands in the shader once, and what to put there.
    pub mutations: &'static [(&'static str, &'static str, &'static str)],
}

pub fn case<const N: usize>(
    tensors: [Given; N],
    record: impl Fn(&Recording, [&Tensor; N]) -> Result<()> + 'static,
    expected: impl Into<Vec<(usize, Vec<Expected>)>>,
) -> Case {
    Case {
        tensors: tensors.into(),
        record: Box::new(move |rec, tensors| record(rec, std::array::from_fn(|i| &tensors[i]))),
        expected: expected.into(),
    }
}

/// Random numbers.
pub fn given(rng: &mut Rng, shape: &[usize]) -> Given {
    Given::new(shape, rng.numbers(shape.iter().product()))
}

/// What an overwriting kernel finds.
pub fn unset(shape: &[usize]) -> Given {
    Given::new(shape, vec![f32::NAN; shape.iter().product()])
}

/// Neither 1 nor its own square.
const SCALE: f32 = 1.75;

// Shapes: one of everything, a prime of everything, ranks 1, 3, 4, 8, 17 and 64, and the neighbours of each tile: 4 and 8
// tokens or slices, 8 ranks, 16 deep, 32 or 64 columns, 256 lanes.

pub const fn d(tokens: usize, in_features: usize, out_features: usize, rank: usize) -> Dims {
    Dims { tokens, in_features, out_features, rank }
}

macro_rules! tokens {
    ($($more:expr),*) => {
        &[
            d(2, 3, 5, 3), d(7, 31, 33, 17), d(2, 1, 1, 1), d(3, 65, 1, 8), d(130, 17, 13, 4), d(9, 257, 129, 1), d(5, 64, 64, 64),
            d(8, 32, 63, 9), d(17, 63, 65, 7), d(33, 128, 127, 2), d(65, 129, 130, 15), d(3, 1031, 5, 2) $(, $more)*
        ]
    };
}
const MANY_TOKENS: &[Dims] = tokens!();
const ANY_TOKENS: &[Dims] = tokens!(d(1, 1, 1, 1), d(1, 257, 130, 8), d(1, 64, 65, 17), d(1031, 5, 6, 3));
/// Tokens beside 16 and their parts, columns beside 64 and 256 and their strips, ranks beside 8.
const JOINED: &[Dims] = &[
    d(1, 4, 4, 1),
    d(7, 4, 68, 3),
    d(17, 4, 256, 8),
    d(5, 4, 64, 9),
    d(37, 4, 520, 17),
    d(33, 4, 260, 5),
    d(130, 4, 12, 4),
    d(1100, 4, 132, 7),
    d(64, 4, 1028, 2),
    d(3, 4, 2056, 6),
    d(8200, 4, 20, 8),
];
/// `tokens` parts of `out_features` elements and `in_features` of `rank`.
const PARTS: &[Dims] = &[d(1, 1, 1, 1), d(3, 2, 5, 7), d(2, 9, 129, 127), d(17, 1, 64, 64), d(1, 5, 1000, 3)];
/// For those that take four columns at a time, and share out tokens, 128 or more each, or columns, 512 or more.
const TILED: &[Dims] = &[
    d(2, 4, 8, 3),
    d(7, 32, 36, 17),
    d(2, 4, 4, 1),
    d(3, 68, 4, 8),
    d(130, 16, 12, 4),
    d(9, 260, 128, 1),
    d(5, 64, 64, 64),
    d(8, 32, 60, 9),
    d(17, 60, 64, 7),
    d(33, 128, 124, 2),
    d(65, 132, 136, 15),
    d(3, 1032, 2056, 2),
    d(1, 4, 4, 1),
    d(1, 64, 68, 17),
    d(127, 64, 64, 5),
    d(300, 68, 132, 12),
    d(517, 8, 4, 33),
];
/// Tokens × columns × rank, added to what is there or to the sum of `out_features` parts.
const ONTO: &[Dims] = &[
    d(2, 5, 0, 3),
    d(7, 33, 3, 17),
    d(2, 1, 0, 1),
    d(3, 1, 2, 8),
    d(130, 13, 5, 4),
    d(9, 129, 0, 1),
    d(5, 64, 2, 64),
    d(8, 63, 12, 9),
    d(17, 65, 0, 7),
    d(33, 127, 2, 2),
    d(65, 130, 3, 15),
    d(3, 5, 31, 2),
    d(1, 1, 0, 1),
    d(1, 130, 0, 8),
    d(1, 257, 2, 8),
    d(1, 65, 0, 17),
    d(1031, 6, 0, 3),
    d(1031, 5, 4, 3),
];
const ONE_TOKEN: &[Dims] = &[
    d(1, 3, 5, 3),
    d(1, 255, 257, 17),
    d(1, 1, 1, 1),
    d(1, 256, 256, 8),
    d(1, 257, 255, 4),
    d(1, 31, 1, 64),
    d(1, 1, 33, 1),
    d(1, 769, 640, 8),
    d(1, 17, 16, 9),
];
pub const fn len(len: usize) -> Dims {
    d(len, 1, 1, 1)
}
/// The last needs workgroups in two dimensions: 65,535 · 64 + 1.
pub const ELEMENTS: &[Dims] = &[len(3), len(63), len(1), len(64), len(65), len(131), len(4_194_241)];
/// The last has more than invocations take at first: 4096 workgroups of 256 lanes, 4 elements each.
const ROUNDS: &[Dims] = &[len(3), len(1025), len(1), len(64), len(256), len(1023), len(4_194_309)];
/// To be added to what is there.
pub const fn adding(len: usize) -> Dims {
    d(len, 1, 1, 2)
}
/// The last two have more elements than invocations take at first: 512 workgroups of 8 or 64 lanes, 8 elements each.
const REDUCED: &[Dims] = &[len(3), adding(63), len(1), len(64), adding(65), len(217), adding(32_771), len(262_147)];
/// Beside a round of 8 or 256 lanes, 4 elements each; and the last two as before, but of 256 lanes on hardware.
const LOST: &[Dims] = &[
    len(3),
    adding(63),
    len(1),
    len(31),
    adding(33),
    len(255),
    adding(257),
    len(1023),
    adding(1025),
    len(2049),
    adding(32_771),
    len(262_147),
    adding(1_048_583),
];
/// `rank` is the number of sums that there is room for.
const SQUARED: &[Dims] = &[
    d(3, 1, 1, 1),
    d(63, 1, 1, 1024),
    d(1, 1, 1, 1),
    d(64, 1, 1, 1),
    d(65, 1, 1, 1024),
    d(217, 1, 1, 3),
    d(65_537, 1, 1, 1024),
    d(524_309, 1, 1, 1024),
];
/// Rows × classes; `rank` 2 adds, `out_features` percent are smoothed. The last has more rows than there is room for sums.
const LABELLED: &[Dims] = &[
    d(5, 3, 0, 1),
    d(4, 65, 10, 2),
    d(3, 1, 0, 1),
    d(7, 2, 100, 1),
    d(2, 63, 35, 1),
    d(9, 64, 0, 2),
    d(3, 1031, 10, 1),
    d(1, 130, 10, 1),
    d(1031, 7, 10, 2),
];
/// Elements; `rank` is the function. The last has more than invocations take at first, as in `ROUNDS`.
const ACTIVATED: &[Dims] = &[
    d(131, 1, 1, 0),
    d(131, 1, 1, 1),
    d(131, 1, 1, 2),
    d(131, 1, 1, 3),
    d(1, 1, 1, 0),
    d(255, 1, 1, 2),
    d(256, 1, 1, 3),
    d(257, 1, 1, 0),
    d(1023, 1, 1, 2),
    d(1025, 1, 1, 3),
    d(4_194_309, 1, 1, 1),
];
/// Rows × features; `rank` 1 is layer norm, 2 the same with bias, 3 RMS norm, 4 with bias. The last has more rows than
/// workgroups fit in one dimension.
const NORMED: &[Dims] = &[
    d(3, 5, 1, 2),
    d(2, 65, 1, 4),
    d(3, 5, 1, 1),
    d(1, 1, 1, 3),
    d(7, 63, 1, 1),
    d(2, 64, 1, 3),
    d(130, 7, 1, 2),
    d(3, 1031, 1, 2),
    d(5, 257, 1, 3),
    d(65_537, 3, 1, 2),
];
/// Steps done before and one more (within the tables and past their ends), sums of squares, attempts before (the log has 5
/// rows), and clipping: 0 none, 1 above the norm, 2 below it.
const STEPS: &[Dims] =
    &[d(1, 1, 0, 0), d(2, 7, 4, 1), d(3, 8, 5, 2), d(5, 65, 11, 0), d(9, 513, 12, 2), d(4, 1024, 9, 2)];

/// Tokens × out_features. The last has more than one dimension of workgroups.
const COLUMNS: &[Dims] = &[
    d(2, 1, 5, 1),
    d(7, 1, 33, 1),
    d(1, 1, 1, 1),
    d(130, 1, 63, 1),
    d(33, 1, 65, 1),
    d(1, 1, 130, 1),
    d(600, 1, 67, 1),
    d(1, 1, 4_194_241, 1),
];
/// The last has more than invocations take at first.
const COLUMNS_IN_ROUNDS: &[Dims] = &[
    d(2, 1, 5, 1),
    d(7, 1, 33, 1),
    d(1, 1, 1, 1),
    d(130, 1, 63, 1),
    d(33, 1, 65, 1),
    d(1, 1, 1030, 1),
    d(65_537, 1, 65, 1),
];
/// Tokens × rank.
const ROWS: &[Dims] = &[
    d(3, 1, 1, 5),
    d(7, 1, 1, 17),
    d(1, 1, 1, 1),
    d(130, 1, 1, 3),
    d(65, 1, 1, 8),
    d(64, 1, 1, 64),
    d(4_194_241, 1, 1, 1),
];
const ADAPTED: &[Dims] =
    &[d(1, 3, 5, 3), d(1, 31, 33, 17), d(1, 7, 1, 1), d(1, 65, 63, 8), d(1, 130, 65, 4), d(1, 64, 130, 64)];
/// Tokens × out_features × rank; 1 with a bias, 2 with dropout, 3 both.
const DORA: &[Dims] = &[
    d(2, 1, 5, 3),
    d(7, 2, 33, 17),
    d(1, 3, 1, 1),
    d(3, 0, 63, 8),
    d(65, 1, 65, 4),
    d(130, 3, 13, 64),
    d(1, 0, 130, 1),
    d(1, 1, 4_194_241, 1),
];

/// in_features × out_features × rank; 1 merges, 2 the way back, 3 and 4 with DoRA.
const MERGED: &[Dims] = &[
    d(1, 3, 5, 3),
    d(2, 31, 33, 17),
    d(3, 1, 1, 1),
    d(4, 65, 13, 8),
    d(3, 64, 63, 4),
    d(4, 129, 65, 64),
    d(1, 4_194_241, 1, 1),
];

/// The same; 5 with results below the normal f16, 7 beyond them.
const MERGED_F16: &[Dims] = &[
    d(1, 3, 5, 3),
    d(2, 31, 33, 17),
    d(5, 9, 7, 1),
    d(4, 65, 13, 8),
    d(7, 64, 63, 4),
    d(3, 129, 65, 64),
    d(5, 130, 31, 2),
    d(1, 8_388_601, 1, 1),
];

/// Rows × features; `out_features` percent are dropped, `rank` 2 adds. The last has more than one dimension of workgroups.
const DROPPED: &[Dims] = &[
    d(3, 7, 35, 1),
    d(5, 33, 50, 2),
    d(1, 1, 10, 2),
    d(130, 65, 10, 1),
    d(17, 257, 90, 2),
    d(64, 5, 1, 1),
    d(4_194_241, 1, 25, 1),
];
const DROPPED_FOURS: &[Dims] = &[
    d(3, 8, 35, 1),
    d(5, 36, 50, 2),
    d(1, 4, 10, 2),
    d(130, 64, 10, 1),
    d(17, 260, 90, 2),
    d(64, 4, 1, 1),
    d(1_048_603, 4, 25, 1),
];
/// Tokens × out_features; which of output and dh is not finite, and what was so before. The last has more than the elements
/// that all invocations take at first.
const CHECKED: &[Dims] =
    &[d(3, 0, 5, 1), d(3, 0, 5, 2), d(7, 8, 33, 3), d(1, 0, 1, 1), d(65, 0, 130, 2), d(1031, 0, 1031, 3)];
const COUNTED: &[Dims] = &[len(1), len(3), len(16_777_217)];

fn show_product(d: &Dims) -> String {
    format!("{}×{}×{}×{}", d.tokens, d.in_features, d.out_features, d.rank)
}

fn show_onto(d: &Dims) -> String {
    let onto = if d.out_features > 0 { format!(" onto {} parts", d.out_features) } else { String::new() };
    format!("{}×{}×{}{onto}", d.tokens, d.in_features, d.rank)
}

pub fn show_len(d: &Dims) -> String {
    d.tokens.to_string()
}

fn show_sum(d: &Dims) -> String {
    format!("{}{}", d.tokens, if d.rank == 2 { " added" } else { "" })
}

fn show_squares(d: &Dims) -> String {
    format!("{} in {}", d.tokens, d.rank)
}

pub fn show_labelled(d: &Dims) -> String {
    let smoothed = if d.out_features > 0 { format!(" smoothed {}%", d.out_features) } else { String::new() };
    format!("{}×{}{smoothed}{}", d.tokens, d.in_features, if d.rank == 2 { " added" } else { "" })
}

fn show_activated(d: &Dims) -> String {
    format!("{} {}", d.tokens, format!("{:?}", FUNCTIONS[d.rank].0).to_lowercase())
}

fn show_normed(d: &Dims) -> String {
    let kind = if d.rank < 3 { "layer" } else { "RMS" };
    format!("{}×{} {kind}{}", d.tokens, d.in_features, if d.rank.is_multiple_of(2) { " with bias" } else { "" })
}

fn show_columns(d: &Dims) -> String {
    format!("{}×{}", d.tokens, d.out_features)
}

fn show_rows(d: &Dims) -> String {
    format!("{}×{}", d.tokens, d.rank)
}

fn show_adapted(d: &Dims) -> String {
    format!("{}×{}×{}", d.in_features, d.out_features, d.rank)
}

fn show_dora(d: &Dims) -> String {
    let with = ["", " with bias", " with dropout", " with bias and dropout"][d.in_features];
    format!("{}×{}×{}{with}", d.tokens, d.out_features, d.rank)
}

fn show_merged(d: &Dims) -> String {
    let how = ["", "", " back", " with DoRA", " back with DoRA", " subnormal", "", " beyond"][d.tokens];
    format!("{}×{}×{}{how}", d.in_features, d.out_features, d.rank)
}

fn show_dropped(d: &Dims) -> String {
    format!("{}×{} at {}%{}", d.tokens, d.in_features, d.out_features, if d.rank == 2 { " added" } else { "" })
}

fn show_checked(d: &Dims) -> String {
    let which = ["neither", "the output", "dh", "both"][d.rank];
    format!("{}×{} {which}{}", d.tokens, d.out_features, if d.in_features > 0 { " after another" } else { "" })
}

fn show_norm_grad(d: &Dims) -> String {
    show_normed(d).replace("with bias", "added")
}

fn show_step(d: &Dims) -> String {
    let clipping = ["", " not clipped", " clipped"][d.rank];
    format!("step {} of {} sums{clipping}", d.tokens, d.in_features)
}

pub const PRODUCTS: &str = "products";
pub const FUNCTIONS_BOUND: &str = "functions";
pub const EXACT: &str = "exact";

// ── lora ──

fn project_a(d: Dims, rng: &mut Rng) -> Case {
    let [a, x] = [given(rng, &[d.rank, d.in_features]), given(rng, &[d.tokens, d.in_features])];
    let h = reference::lora::project_a(d, &a.f64(), &x.f64());
    case(
        [a, x, unset(&[d.tokens, d.rank])],
        |rec, [a, x, h]| lora::project_a::record(rec, a, x, h),
        [(2, products(&h))],
    )
}

fn project_a_subgroups(d: Dims, rng: &mut Rng) -> Case {
    let [a, x] = [given(rng, &[d.rank, d.in_features]), given(rng, &[d.tokens, d.in_features])];
    let h = reference::lora::project_a_subgroups(d, &a.f64(), &x.f64());
    case(
        [a, x, unset(&[d.tokens, d.rank])],
        |rec, [a, x, h]| lora::project_a_subgroups::record(rec, a, x, h),
        [(2, products(&h))],
    )
}

fn project_a_tiled(d: Dims, rng: &mut Rng) -> Case {
    let [a, x] = [given(rng, &[d.rank, d.in_features]), given(rng, &[d.tokens, d.in_features])];
    let h = reference::lora::project_a_tiled(d, &a.f64(), &x.f64());
    case(
        [a, x, unset(&[d.tokens, d.rank])],
        |rec, [a, x, h]| lora::project_a_tiled::record(rec, a, x, h),
        [(2, products(&h))],
    )
}

fn project_a_gemv(d: Dims, rng: &mut Rng) -> Case {
    let [a, x] = [given(rng, &[d.rank, d.in_features]), given(rng, &[1, d.in_features])];
    let h = reference::lora::project_a_gemv(d, &a.f64(), &x.f64());
    case([a, x, unset(&[1, d.rank])], |rec, [a, x, h]| lora::project_a_gemv::record(rec, a, x, h), [(2, products(&h))])
}

fn project_b(d: Dims, rng: &mut Rng) -> Case {
    let [b, h] = [given(rng, &[d.out_features, d.rank]), given(rng, &[d.tokens, d.rank])];
    let y = reference::lora::project_b(d, &b.f64(), &h.f64());
    case(
        [b, h, unset(&[d.tokens, d.out_features])],
        |rec, [b, h, y]| lora::project_b::record(rec, b, h, y),
        [(2, products(&y))],
    )
}

/// The parts of sums `[parts, len]` that a kernel adds to, and its output, which is not there yet; with no parts its output alone.
fn onto(parts: usize, shape: &[usize; 2], rng: &mut Rng) -> [Given; 2] {
    let part = shape[0] * shape[1];
    match parts {
        0 => [Given::new(&[1, 1], vec![0.0]), given(rng, shape)],
        _ => [given(rng, &[parts, part]), unset(shape)],
    }
}

/// What is there, or the first part of it.
fn first(parts: &Given, output: &Given) -> Vec<f64> {
    let part = &parts.f64()[..parts.shape[1]];
    if output.data[0].is_nan() { part.to_vec() } else { output.f64() }
}

/// A kernel that adds to `output`, of which `sums` has the first part: right after the parts were recorded to be added up, if there
/// are any, both are one dispatch.
fn case_onto(
    [weight, input, parts, output]: [Given; 4],
    mut sums: Vec<Sum>,
    record: fn(&Recording, &Tensor, &Tensor, &Tensor, f32) -> Result<()>,
) -> Case {
    let len = output.data.len();
    let in_parts = output.data[0].is_nan();
    let rest = parts.data.iter().enumerate().skip(len);
    rest.for_each(|(i, part)| sums[i % len] = sums[i % len].plus(Sum::of((*part).into())));
    case(
        [weight, input, parts, output],
        move |rec, [weight, input, parts, output]| {
            if in_parts {
                add_parts::record(rec, parts, Sums::all_of(output))?;
            }
            record(rec, weight, input, output, SCALE)?;
            assert_eq!(rec.dispatches(), 1);
            Ok(())
        },
        [(3, products(&sums))],
    )
}

fn fused_b_add(d: Dims, rng: &mut Rng) -> Case {
    let (parts, d) = (d.out_features, Dims { out_features: d.in_features, ..d });
    let [b, h] = [given(rng, &[d.out_features, d.rank]), given(rng, &[d.tokens, d.rank])];
    let [parts, output] = onto(parts, &[d.tokens, d.out_features], rng);
    let sums = reference::lora::fused_b_add(d, &b.f64(), &h.f64(), &first(&parts, &output), SCALE.into());
    case_onto([b, h, parts, output], sums, lora::fused_b_add::record)
}

fn fused_b_add_tiled(d: Dims, rng: &mut Rng) -> Case {
    let (parts, d) = (d.out_features, Dims { out_features: d.in_features, ..d });
    let [b, h] = [given(rng, &[d.out_features, d.rank]), given(rng, &[d.tokens, d.rank])];
    let [parts, output] = onto(parts, &[d.tokens, d.out_features], rng);
    let sums = reference::lora::fused_b_add_tiled(d, &b.f64(), &h.f64(), &first(&parts, &output), SCALE.into());
    case_onto([b, h, parts, output], sums, lora::fused_b_add_tiled::record)
}

fn add_scaled(d: Dims, rng: &mut Rng) -> Case {
    let [y, output] = [given(rng, &[d.tokens, 1]), given(rng, &[d.tokens, 1])];
    let sums = reference::lora::add_scaled(&y.f64(), &output.f64(), SCALE.into());
    case([y, output], |rec, [y, output]| lora::add_scaled::record(rec, y, output, SCALE), [(1, products(&sums))])
}

/// Nothing of it is zero, nor alike.
const DRAW: reference::lora::Draw =
    reference::lora::Draw { p: 0.0, seed: 0x0123_4567_89AB_CDEF, step: 5, micro_batch: 3, layer: 2 };

/// `window` as the shaders see it.
fn window(words: [u32; 3]) -> Given {
    Given::new(&[4], [words[0], words[1], words[2], 0].map(word).into())
}

/// `out_features` percent are dropped; `rank` 2 adds.
fn dropout(d: Dims, rng: &mut Rng) -> Case {
    let draw = reference::lora::Draw { p: d.out_features as f64 / 100.0, ..DRAW };
    let shape = [d.tokens, d.in_features];
    let accumulate = d.rank == 2;
    let (x, output) = (given(rng, &shape), if accumulate { given(rng, &shape) } else { unset(&shape) });
    let sums = reference::lora::dropout(d.in_features, &x.f64(), accumulate.then_some(&output.f64()), draw);
    let mask = lora::dropout::Mask { p: draw.p, seed: draw.seed, layer: draw.layer };
    case(
        [x, state(draw.step, [0.05, 1.0, 1.0], 1.0, false), window([draw.micro_batch, 0, 0]), output],
        move |rec, [x, state, window, output]| lora::dropout::record(rec, x, state, window, output, mask, accumulate),
        [(3, products(&sums))],
    )
}

fn dropout_vec4(d: Dims, rng: &mut Rng) -> Case {
    let draw = reference::lora::Draw { p: d.out_features as f64 / 100.0, ..DRAW };
    let shape = [d.tokens, d.in_features];
    let accumulate = d.rank == 2;
    let (x, output) = (given(rng, &shape), if accumulate { given(rng, &shape) } else { unset(&shape) });
    let sums = reference::lora::dropout_vec4(d.in_features, &x.f64(), accumulate.then_some(&output.f64()), draw);
    let mask = lora::dropout::Mask { p: draw.p, seed: draw.seed, layer: draw.layer };
    case(
        [x, state(draw.step, [0.05, 1.0, 1.0], 1.0, false), window([draw.micro_batch, 0, 0]), output],
        move |rec, [x, state, window, output]| {
            lora::dropout_vec4::record(rec, x, state, window, output, mask, accumulate)
        },
        [(3, products(&sums))],
    )
}

fn bias_add(d: Dims, rng: &mut Rng) -> Case {
    let [bias, output] = [given(rng, &[d.out_features]), given(rng, &[d.tokens, d.out_features])];
    let sums = reference::lora::bias_add(&bias.f64(), &output.f64(), SCALE.into());
    case([bias, output], |rec, [bias, output]| lora::bias_add::record(rec, bias, output, SCALE), [(1, products(&sums))])
}

fn bias_grad(d: Dims, rng: &mut Rng) -> Case {
    let [d_output, d_bias] = [given(rng, &[d.tokens, d.out_features]), given(rng, &[d.out_features])];
    let sums = reference::lora::bias_grad(&d_output.f64(), &d_bias.f64(), SCALE.into());
    case(
        [d_output, d_bias],
        |rec, [d_output, d_bias]| lora::bias_grad::record(rec, d_output, d_bias, SCALE),
        [(1, products(&sums))],
    )
}

fn scale_rows(d: Dims, rng: &mut Rng) -> Case {
    let [factors, h] = [given(rng, &[d.tokens]), given(rng, &[d.tokens, d.rank])];
    let sums = reference::lora::scale_rows(&factors.f64(), &h.f64());
    case([factors, h], |rec, [factors, h]| lora::scale_rows::record(rec, factors, h), [(1, products(&sums))])
}

/// `A·Wᵀ`, `A·Aᵀ` and ‖W‖² of a real W and A, so that the argument of the root is a square.
fn weight_norm(d: Dims, rng: &mut Rng) -> Case {
    let [w, a] = [given(rng, &[d.out_features, d.in_features]), given(rng, &[d.rank, d.in_features])];
    let b = given(rng, &[d.out_features, d.rank]);
    let float = |sums: Vec<Sum>| sums.iter().map(|s| s.value as f32).collect::<Vec<f32>>();
    let squares = Given::new(&[d.out_features], float(reference::base::row_squares(d.in_features, &w.f64())));
    let by_a = |x: &Given, rows| reference::lora::project_a(Dims { tokens: rows, ..d }, &a.f64(), &x.f64());
    let wa = float(by_a(&w, d.out_features)); // [out_features, rank]
    let turned = (0..d.rank * d.out_features).map(|i| wa[i % d.out_features * d.rank + i / d.out_features]);
    let aw = Given::new(&[d.rank, d.out_features], turned.collect());
    let aa = Given::new(&[d.rank, d.rank], float(by_a(&a, d.rank)));
    let sums = reference::lora::weight_norm(d.rank, &b.f64(), &squares.f64(), &aw.f64(), &aa.f64(), SCALE.into());
    case(
        [b, squares, aw, aa, unset(&[d.out_features])],
        |rec, [b, squares, aw, aa, norm]| lora::weight_norm::record(rec, b, squares, aw, aa, norm, SCALE),
        [(4, products(&sums))],
    )
}

/// Lengths, none of them near 0.
fn lengths(rng: &mut Rng, len: usize) -> Given {
    let mut all = given(rng, &[len]);
    all.data.iter_mut().for_each(|v| *v = 0.5 + v.abs());
    all
}

/// The norms of rows of which some are zeros, whose magnitudes are mostly 0, too.
fn norms(rng: &mut Rng, magnitude: &mut Given) -> Given {
    let mut all = lengths(rng, magnitude.data.len());
    all.data.iter_mut().skip(2).step_by(7).for_each(|v| *v = 0.0);
    magnitude.data.iter_mut().skip(2).step_by(14).for_each(|v| *v = 0.0);
    all
}

/// `tokens` is 1 to merge, 2 the way back, 3 and 4 the same with DoRA.
fn merge(d: Dims, rng: &mut Rng) -> Case {
    let (back, has_dora) = (d.tokens.is_multiple_of(2), d.tokens > 2);
    let [a, b] = [given(rng, &[d.rank, d.in_features]), given(rng, &[d.out_features, d.rank])];
    let mut magnitude = lengths(rng, d.out_features);
    let norm = norms(rng, &mut magnitude);
    let weight = given(rng, &[d.out_features, d.in_features]);
    let dora = [magnitude.f64(), norm.f64()];
    let dora = has_dora.then_some([dora[0].as_slice(), &dora[1]]);
    let sums = reference::lora::merge(d, &a.f64(), &b.f64(), dora, &weight.f64(), SCALE.into(), back);
    case(
        [a, b, magnitude, norm, weight],
        move |rec, [a, b, magnitude, norm, weight]| {
            lora::merge::record(rec, a, b, has_dora.then_some([magnitude, norm]), weight, SCALE, back)
        },
        [(4, products(&sums))],
    )
}

/// The same in f16, with numbers of which sums and products are exact; 5 with results below the normal ones, 7 beyond all.
fn merge_f16(d: Dims, rng: &mut Rng) -> Case {
    let (back, has_dora) = (d.tokens.is_multiple_of(2), matches!(d.tokens, 3 | 4));
    let mut sixteenths = |shape: &[usize], scale: f32| {
        let mut all = given(rng, shape);
        all.data.iter_mut().for_each(|v| *v = (*v * 14.0).round() / 16.0 * scale);
        all
    };
    let reach = [1.0, 1.0, 1.0, 1.0, 1.0, 2f32.powi(-18), 1.0, 2f32.powi(17)][d.tokens];
    let [a, b] = [sixteenths(&[d.rank, d.in_features], 1.0), sixteenths(&[d.out_features, d.rank], reach)];
    let w = sixteenths(&[d.out_features, d.in_features], reach.min(2f32.powi(-4)));
    let powers = |from: usize| {
        Given::new(&[d.out_features], (0..d.out_features).map(|o| [0.5, 2.0, 4.0][(o + from) % 3]).collect())
    };
    let [magnitude, mut norm] = [powers(0), powers(1)];
    norm.data.iter_mut().skip(2).step_by(7).for_each(|v| *v = 0.0);
    let dora = [magnitude.f64(), norm.f64()];
    let dora = has_dora.then_some([dora[0].as_slice(), &dora[1]]);
    let merged = reference::lora::merge_f16(d, &a.f64(), &b.f64(), dora, &w.f64(), SCALE.into(), back);
    let columns = 4 * d.in_features.div_ceil(8);
    // As the words of which the tensor is made.
    let words = |values: &[f64]| -> Vec<f32> {
        let mut words = vec![0u32; d.out_features * columns];
        for (at, value) in values.iter().enumerate() {
            let (o, i) = (at / d.in_features, at % d.in_features);
            words[o * columns + i / 2] |= u32::from(half_bits(*value)) << (16 * (i % 2));
        }
        words.into_iter().map(f32::from_bits).collect()
    };
    let weight = Given { halves: true, ..Given::new(&[d.out_features, columns], words(&w.f64())) };
    let expected = exact(&f64s(&words(&merged)));
    case(
        [a, b, magnitude, norm, weight],
        move |rec, [a, b, magnitude, norm, weight]| {
            lora::merge_f16::record(rec, a, b, has_dora.then_some([magnitude, norm]), weight, SCALE, back)
        },
        [(4, expected)],
    )
}

/// The bits of a number that f16 holds, or of infinity.
fn half_bits(value: f64) -> u16 {
    let sign = u16::from(value.is_sign_negative()) << 15;
    let size = value.abs();
    let exponent = (size.log2().floor() as i32).max(-14);
    let units = size / 2f64.powi(exponent - 10);
    assert!(size.is_infinite() || size == 0.0 || (units.fract() == 0.0 && units < 2048.0), "{value} is no f16");
    match size {
        0.0 => sign,
        _ if size.is_infinite() => sign | 0x7c00,
        _ => sign | (((exponent + 14) as u16) << 10).wrapping_add(units as u16),
    }
}

/// `in_features` is 1 with a bias, 2 where p is in u, 3 both.
fn dora(d: Dims, rng: &mut Rng) -> Case {
    let (has_bias, dropped) = (d.in_features & 1 != 0, d.in_features & 2 != 0);
    let shape = [d.tokens, d.out_features];
    let [b, h] = [given(rng, &[d.out_features, d.rank]), given(rng, &[d.tokens, d.rank])];
    let mut magnitude = lengths(rng, d.out_features);
    let norm = norms(rng, &mut magnitude);
    let (bias, output) = (given(rng, &[d.out_features]), given(rng, &shape));
    let u = if dropped { given(rng, &shape) } else { unset(&shape) };
    let [u_after, output_after] = reference::lora::dora(
        d,
        reference::lora::Dora {
            b: &b.f64(),
            h: &h.f64(),
            magnitude: &magnitude.f64(),
            norm: &norm.f64(),
            bias: has_bias.then_some(&bias.f64()),
            dropped: dropped.then_some(&u.f64()),
        },
        &output.f64(),
        SCALE.into(),
    );
    case(
        [b, h, magnitude, norm, bias, u, output],
        move |rec, [b, h, magnitude, norm, bias, u, output]| {
            let inputs = lora::dora::Inputs { b, h, magnitude, norm, bias: has_bias.then_some(bias) };
            lora::dora::record(rec, inputs, u, output, SCALE, dropped)
        },
        [(5, products(&u_after)), (6, products(&output_after))],
    )
}

fn dora_tiled(d: Dims, rng: &mut Rng) -> Case {
    let (has_bias, dropped) = (d.in_features & 1 != 0, d.in_features & 2 != 0);
    let shape = [d.tokens, d.out_features];
    let [b, h] = [given(rng, &[d.out_features, d.rank]), given(rng, &[d.tokens, d.rank])];
    let mut magnitude = lengths(rng, d.out_features);
    let norm = norms(rng, &mut magnitude);
    let (bias, output) = (given(rng, &[d.out_features]), given(rng, &shape));
    let u = if dropped { given(rng, &shape) } else { unset(&shape) };
    let [u_after, output_after] = reference::lora::dora_tiled(
        d,
        reference::lora::Dora {
            b: &b.f64(),
            h: &h.f64(),
            magnitude: &magnitude.f64(),
            norm: &norm.f64(),
            bias: has_bias.then_some(&bias.f64()),
            dropped: dropped.then_some(&u.f64()),
        },
        &output.f64(),
        SCALE.into(),
    );
    case(
        [b, h, magnitude, norm, bias, u, output],
        move |rec, [b, h, magnitude, norm, bias, u, output]| {
            let inputs = lora::dora::Inputs { b, h, magnitude, norm, bias: has_bias.then_some(bias) };
            lora::dora_tiled::record(rec, inputs, u, output, SCALE, dropped)
        },
        [(5, products(&u_after)), (6, products(&output_after))],
    )
}

fn dora_grad(d: Dims, rng: &mut Rng) -> Case {
    let shape = [d.tokens, d.out_features];
    let mut magnitude = lengths(rng, d.out_features);
    let norm = norms(rng, &mut magnitude);
    let [d_output, u, d_magnitude] = [given(rng, &shape), given(rng, &shape), given(rng, &[d.out_features])];
    let [d_m, du] =
        reference::lora::dora_grad(d, &magnitude.f64(), &norm.f64(), &d_output.f64(), &u.f64(), &d_magnitude.f64());
    case(
        [magnitude, norm, d_output, u, d_magnitude, unset(&shape)],
        |rec, [magnitude, norm, d_output, u, d_magnitude, du]| {
            lora::dora_grad::record(rec, magnitude, norm, d_output, u, d_magnitude, du)
        },
        [(4, products(&d_m)), (5, products(&du))],
    )
}

/// `rank` is which of the two is not finite, bit 0 the output and bit 1 dh, at its last element; `in_features` is the module
/// of a gradient that was not finite before, plus one.
fn find_non_finite(d: Dims, rng: &mut Rng) -> Case {
    let [mut output, mut dh] = [given(rng, &[d.tokens, d.out_features]), given(rng, &[d.tokens, 2])];
    for (bit, given, value) in [(1, &mut output, f32::NAN), (2, &mut dh, f32::NEG_INFINITY)] {
        if d.rank & bit != 0 {
            *given.data.last_mut().unwrap() = value;
        }
    }
    let before = [7, 9, d.in_features as u32];
    let after = reference::lora::find_non_finite(&output.data, &dh.data, before, 4);
    let words = exact(&[after[0], after[1], after[2], 0].map(|w| word(w).into()));
    case(
        [output, dh, window(before)],
        |rec, [output, dh, window]| lora::find_non_finite::record(rec, output, dh, window, 4),
        [(2, words)],
    )
}

fn save_activation(d: Dims, rng: &mut Rng) -> Case {
    let src = given(rng, &[d.tokens, 1]);
    let sums = reference::lora::save_activation(&src.f64());
    case(
        [src, unset(&[d.tokens, 1])],
        |rec, [src, dst]| lora::save_activation::record(rec, src, dst),
        [(1, exact(&values(&sums)))],
    )
}

fn grad_b(d: Dims, rng: &mut Rng) -> Case {
    let [d_output, h] = [given(rng, &[d.tokens, d.out_features]), given(rng, &[d.tokens, d.rank])];
    let d_b = given(rng, &[d.out_features, d.rank]);
    let sums = reference::lora::grad_b(d, &d_output.f64(), &h.f64(), &d_b.f64(), SCALE.into());
    case(
        [d_output, h, d_b],
        |rec, [d_output, h, d_b]| lora::grad_b::record(rec, d_output, h, d_b, SCALE),
        [(2, products(&sums))],
    )
}

fn grad_b_dh(d: Dims, rng: &mut Rng) -> Case {
    let [b, d_output] = [given(rng, &[d.out_features, d.rank]), given(rng, &[d.tokens, d.out_features])];
    let [h, d_b] = [given(rng, &[d.tokens, d.rank]), given(rng, &[d.out_features, d.rank])];
    let [of_b, of_h] = reference::lora::grad_b_dh(d, &b.f64(), &d_output.f64(), &h.f64(), &d_b.f64(), SCALE.into());
    case(
        [b, d_output, h, d_b, unset(&[d.tokens, d.rank])],
        |rec, [b, d_output, h, d_b, dh]| lora::grad_b_dh::record(rec, b, d_output, h, d_b, dh, SCALE),
        [(3, products(&of_b)), (4, products(&of_h))],
    )
}

/// `tokens` parts of dB, `in_features` of dh.
fn grad_b_dh_sums(d: Dims, rng: &mut Rng) -> Case {
    let counts = [d.tokens, d.in_features];
    let [d_b, dh] = [given(rng, &[d.out_features, 1]), unset(&[d.rank, 1])];
    let parts = given(rng, &[1, d.tokens * d.out_features + d.in_features * d.rank]);
    let [of_b, of_h] = reference::lora::grad_b_dh_sums(&parts.f64(), counts, &d_b.f64(), d.rank);
    case(
        [parts, d_b, dh],
        move |rec, [parts, d_b, dh]| lora::grad_b_dh_sums::record(rec, parts, counts, d_b, dh),
        [(1, products(&of_b)), (2, products(&of_h))],
    )
}

fn grad_b_tiled(d: Dims, rng: &mut Rng) -> Case {
    let [d_output, h] = [given(rng, &[d.tokens, d.out_features]), given(rng, &[d.tokens, d.rank])];
    let d_b = given(rng, &[d.out_features, d.rank]);
    let sums = reference::lora::grad_b_tiled(d, &d_output.f64(), &h.f64(), &d_b.f64(), SCALE.into());
    case(
        [d_output, h, d_b],
        |rec, [d_output, h, d_b]| lora::grad_b_tiled::record(rec, d_output, h, d_b, SCALE),
        [(2, products(&sums))],
    )
}

fn grad_dh(d: Dims, rng: &mut Rng) -> Case {
    let [b, d_output] = [given(rng, &[d.out_features, d.rank]), given(rng, &[d.tokens, d.out_features])];
    let dh = reference::lora::grad_dh(d, &b.f64(), &d_output.f64());
    case(
        [b, d_output, unset(&[d.tokens, d.rank])],
        |rec, [b, d_output, dh]| lora::grad_dh::record(rec, b, d_output, dh),
        [(2, products(&dh))],
    )
}

fn grad_dh_tiled(d: Dims, rng: &mut Rng) -> Case {
    let [b, d_output] = [given(rng, &[d.out_features, d.rank]), given(rng, &[d.tokens, d.out_features])];
    let dh = reference::lora::grad_dh_tiled(d, &b.f64(), &d_output.f64());
    case(
        [b, d_output, unset(&[d.tokens, d.rank])],
        |rec, [b, d_output, dh]| lora::grad_dh_tiled::record(rec, b, d_output, dh),
        [(2, products(&dh))],
    )
}

fn grad_dh_gemv(d: Dims, rng: &mut Rng) -> Case {
    let [b, d_output] = [given(rng, &[d.out_features, d.rank]), given(rng, &[1, d.out_features])];
    let dh = reference::lora::grad_dh_gemv(d, &b.f64(), &d_output.f64());
    case(
        [b, d_output, unset(&[1, d.rank])],
        |rec, [b, d_output, dh]| lora::grad_dh_gemv::record(rec, b, d_output, dh),
        [(2, products(&dh))],
    )
}

fn grad_a(d: Dims, rng: &mut Rng) -> Case {
    let [dh, x] = [given(rng, &[d.tokens, d.rank]), given(rng, &[d.tokens, d.in_features])];
    let d_a = given(rng, &[d.rank, d.in_features]);
    let sums = reference::lora::grad_a(d, &dh.f64(), &x.f64(), &d_a.f64(), SCALE.into());
    case([dh, x, d_a], |rec, [dh, x, d_a]| lora::grad_a::record(rec, dh, x, d_a, SCALE), [(2, products(&sums))])
}

fn grad_a_tiled(d: Dims, rng: &mut Rng) -> Case {
    let [dh, x] = [given(rng, &[d.tokens, d.rank]), given(rng, &[d.tokens, d.in_features])];
    let d_a = given(rng, &[d.rank, d.in_features]);
    let sums = reference::lora::grad_a_tiled(d, &dh.f64(), &x.f64(), &d_a.f64(), SCALE.into());
    case([dh, x, d_a], |rec, [dh, x, d_a]| lora::grad_a_tiled::record(rec, dh, x, d_a, SCALE), [(2, products(&sums))])
}

fn input_grad(d: Dims, rng: &mut Rng) -> Case {
    let parts = d.out_features;
    let [a, dh] = [given(rng, &[d.rank, d.in_features]), given(rng, &[d.tokens, d.rank])];
    let [parts, d_input] = onto(parts, &[d.tokens, d.in_features], rng);
    let sums = reference::lora::input_grad(d, &a.f64(), &dh.f64(), &first(&parts, &d_input), SCALE.into());
    case_onto([a, dh, parts, d_input], sums, lora::input_grad::record)
}

fn input_grad_tiled(d: Dims, rng: &mut Rng) -> Case {
    let parts = d.out_features;
    let [a, dh] = [given(rng, &[d.rank, d.in_features]), given(rng, &[d.tokens, d.rank])];
    let [parts, d_input] = onto(parts, &[d.tokens, d.in_features], rng);
    let sums = reference::lora::input_grad_tiled(d, &a.f64(), &dh.f64(), &first(&parts, &d_input), SCALE.into());
    case_onto([a, dh, parts, d_input], sums, lora::input_grad_tiled::record)
}

// ── loss ──

/// `totals` before, and as f64 what of it stays.
pub fn totals(d: Dims, rng: &mut Rng) -> (Given, [f64; 2]) {
    let (sum, count) = (rng.number(), 17.0);
    match d.rank {
        2 => (Given::new(&[2], vec![sum, count]), [sum.into(), count.into()]),
        _ => (unset(&[2]), [0.0; 2]),
    }
}

/// The loss as a sum, and exactly what was counted.
pub fn summed(loss: Sum, counted: usize, old: [f64; 2]) -> Vec<Expected> {
    let sum = if old[0] == 0.0 { loss } else { loss.plus(Sum::of(old[0])) };
    [products(&[sum]), exact(&[counted as f64 + old[1]])].concat()
}

type Elementwise = fn(&Recording, &Tensor, &Tensor, &Tensor, &Tensor, bool) -> Result<()>;

fn elementwise(
    d: Dims,
    rng: &mut Rng,
    [output, targets]: [Given; 2],
    record: Elementwise,
    (loss, gradient): (Sum, Vec<Sum>),
) -> Case {
    let (totals, old) = totals(d, rng);
    case(
        [output, targets, unset(&[d.tokens, 1]), totals],
        move |rec, [output, targets, d_output, totals]| record(rec, output, targets, d_output, totals, d.rank == 2),
        [(2, products(&gradient)), (3, summed(loss, d.tokens, old))],
    )
}

fn mse(d: Dims, rng: &mut Rng) -> Case {
    let given = [given(rng, &[d.tokens, 1]), given(rng, &[d.tokens, 1])];
    let expected = reference::loss::mse(&given[0].f64(), &given[1].f64());
    elementwise(d, rng, given, loss::mse::record, expected)
}

/// Logits where σ is steep, and as large as they get.
const LOGITS: [f32; 8] = [-1e4, 1e4, 100.0, -100.0, 17.0, -17.0, 0.0, 1e-3];

/// Numbers in [−scale, scale), then `extremes` where there is room.
pub fn with_extremes(rng: &mut Rng, shape: &[usize], scale: f32, extremes: &[f32]) -> Given {
    let mut all = given(rng, shape);
    all.data.iter_mut().for_each(|v| *v *= scale);
    if all.data.len() > 2 * extremes.len() {
        all.data[..extremes.len()].copy_from_slice(extremes);
    }
    all
}

/// The extremes not everywhere: beside them nothing else in a sum would show.
fn logits(d: Dims, rng: &mut Rng, shape: &[usize]) -> Given {
    with_extremes(rng, shape, 6.0, if d.rank == 2 { &LOGITS } else { &[] })
}

fn bce_with_logits(d: Dims, rng: &mut Rng) -> Case {
    let output = logits(d, rng, &[d.tokens, 1]);
    let mut targets = given(rng, &[d.tokens, 1]);
    targets.data.iter_mut().for_each(|y| *y = y.abs());
    // The hard ones too.
    targets.data.iter_mut().step_by(3).for_each(|y| *y = y.round());
    let expected = reference::loss::bce_with_logits(&output.f64(), &targets.f64());
    elementwise(d, rng, [output, targets], loss::bce_with_logits::record, expected)
}

pub const IGNORED: i32 = -7;

fn cross_entropy(d: Dims, rng: &mut Rng) -> Case {
    let (rows, classes, smoothing) = (d.tokens, d.in_features, d.out_features as f32 / 100.0);
    let logits = logits(d, rng, &[rows, classes]);
    let class = |rng: &mut Rng| ((rng.number().abs() * classes as f32) as usize).min(classes - 1) as i32;
    // The last class and the first, then any; every third row is ignored.
    let labels: Vec<i32> = (0..rows)
        .map(|row| match row {
            0 => classes as i32 - 1,
            1 => 0,
            row if row % 3 == 2 => IGNORED,
            _ => class(rng),
        })
        .collect();
    let (loss, gradient, counted) =
        reference::loss::cross_entropy(classes, &logits.f64(), &labels, IGNORED, smoothing.into());
    let (totals, old) = totals(d, rng);
    let mut expected = vec![(3, summed(loss, counted, old))];
    if classes > 1 {
        expected.push((2, products(&gradient))); // with one class all are 0, which proves nothing
    }
    case(
        [
            logits,
            Given { shape: vec![rows], data: vec![], labels: Some(labels), halves: false },
            unset(&[rows, classes]),
            totals,
        ],
        move |rec, [logits, labels, d_logits, totals]| {
            loss::cross_entropy::record(rec, logits, labels, d_logits, totals, d.rank == 2, IGNORED, smoothing)
        },
        expected,
    )
}

fn total(d: Dims, rng: &mut Rng) -> Case {
    // What lies behind the pairs must not be added.
    let all = given(rng, &[d.tokens + 3, 2]);
    let (totals, old) = totals(d, rng);
    let sums = reference::loss::total(&all.f64()[..2 * d.tokens], old);
    case(
        [all, totals],
        move |rec, [partial_sums, totals]| loss::total::record(rec, partial_sums, d.tokens, totals, d.rank == 2),
        [(1, products(&sums))],
    )
}

fn mean(d: Dims, rng: &mut Rng) -> Case {
    let totals = Given::new(&[2], vec![2.0 + rng.number(), 1.0 + d.tokens as f32]);
    let gradient = given(rng, &[d.tokens, 1]);
    let (loss, divided) = reference::loss::mean([totals.data[0].into(), totals.data[1].into()], &gradient.f64());
    case(
        [totals, gradient, unset(&[1])],
        |rec, [totals, d_output, loss]| loss::mean::record(rec, totals, d_output, loss),
        [(1, products(&divided)), (2, products(&[loss]))],
    )
}

// ── nn ──

pub const FUNCTIONS: [(Function, Activation); 4] = [
    (Function::Tanh, Activation::Tanh),
    (Function::Relu, Activation::Relu),
    (Function::Gelu, Activation::Gelu),
    (Function::Silu, Activation::Silu),
];

/// Where the kernels change their formula, and far out.
const ARGUMENTS: [f32; 18] = [
    1e4, -1e4, 100.0, -100.0, 44.0, -44.0, 13.5, -13.5, 9.0, -9.0, 0.25, -0.25, 0.249_999, -0.249_999, 1e-3, -1e-3,
    0.0, 1e-20,
];

fn activation(d: Dims, rng: &mut Rng) -> Case {
    let (function, kind) = FUNCTIONS[d.rank];
    let x = with_extremes(rng, &[d.tokens, 1], 4.0, &ARGUMENTS);
    let sums: Vec<Sum> = x.f64().iter().map(|x| reference::nn::activation(function, *x)).collect();
    case(
        [x, unset(&[d.tokens, 1])],
        move |rec, [x, output]| nn::activation::record(rec, kind, x, output),
        [(1, products(&sums))],
    )
}

fn activation_grad(d: Dims, rng: &mut Rng) -> Case {
    let (function, kind) = FUNCTIONS[d.rank];
    let x = with_extremes(rng, &[d.tokens, 1], 4.0, &ARGUMENTS);
    let d_output = given(rng, &[d.tokens, 1]);
    let pairs = x.f64().into_iter().zip(d_output.f64());
    let sums: Vec<Sum> = pairs.map(|(x, g)| reference::nn::activation_grad(function, x, g)).collect();
    case(
        [x, d_output, unset(&[d.tokens, 1])],
        move |rec, [x, d_output, d_input]| nn::activation_grad::record(rec, kind, x, d_output, d_input),
        [(2, products(&sums))],
    )
}

const EPS: f32 = 1e-2;

/// Rows whose mean is not 0, and a weight that is.
fn normed(d: Dims, rng: &mut Rng) -> [Given; 2] {
    let [mut weight, mut x] = [given(rng, &[d.in_features]), given(rng, &[d.tokens, d.in_features])];
    weight.data.iter_mut().for_each(|w| *w += 1.5);
    x.data.iter_mut().for_each(|v| *v += 0.75);
    [weight, x]
}

fn norm(d: Dims, rng: &mut Rng) -> Case {
    let [weight, x] = normed(d, rng);
    let bias = given(rng, &[d.in_features]);
    let (centered, has_bias) = (d.rank < 3, d.rank.is_multiple_of(2));
    let sums = reference::nn::norm(&weight.f64(), has_bias.then_some(&bias.f64()), &x.f64(), centered, EPS.into());
    case(
        [weight, bias, x, unset(&[d.tokens, d.in_features])],
        move |rec, [weight, bias, x, output]| {
            nn::norm::record(rec, weight, has_bias.then_some(bias), x, output, centered, EPS)
        },
        [(3, products(&sums))],
    )
}

fn norm_grad(d: Dims, rng: &mut Rng) -> Case {
    let [weight, x] = normed(d, rng);
    let d_output = given(rng, &[d.tokens, d.in_features]);
    let (centered, accumulate) = (d.rank < 3, d.rank.is_multiple_of(2));
    let mut sums = reference::nn::norm_grad(&weight.f64(), &x.f64(), &d_output.f64(), centered, EPS.into());
    let mut d_input = unset(&[d.tokens, d.in_features]);
    if accumulate {
        d_input = given(rng, &[d.tokens, d.in_features]);
        sums = sums.iter().zip(d_input.f64()).map(|(sum, before)| sum.plus(Sum::of(before))).collect();
    }
    case(
        [weight, x, d_output, d_input],
        move |rec, [weight, x, d_output, d_input]| {
            nn::norm_grad::record(rec, weight, x, d_output, d_input, centered, EPS, accumulate)
        },
        [(3, products(&sums))],
    )
}

// ── optim ──

const LR: f32 = 0.05;
const DECAY: f32 = 0.3;
const MOMENTUM: f32 = 0.8;
pub const ADAMW: AdamW = AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-3, weight_decay: DECAY as f64 };
/// The gradients are this many times too large.
const FACTOR: f32 = 0.7;
const RATIO: f32 = 2.5;

/// A number that a shader takes for u32, and Rust's f32 for a subnormal.
fn word(word: u32) -> f32 {
    f32::from_bits(word)
}

/// `state` as the shaders see it: the step's number, its learning rate and bias corrections, the factor of the gradients,
/// whether to skip, attempts, skipped steps.
pub fn state(step: u32, [lr, inv_bias1, inv_sqrt_bias2]: [f64; 3], factor: f32, skip: bool) -> Given {
    let scalars = [lr, inv_bias1, inv_sqrt_bias2].map(|v| v as f32);
    let data = [&[word(step)], &scalars[..], &[factor, word(skip.into()), word(9), word(2)]].concat();
    Given::new(&[8], data)
}

/// All but the first third learn faster.
fn group(len: usize) -> LrRatio {
    LrRatio { from: len / 3, ratio: RATIO }
}

/// The learning rate and the gradient of element i.
fn scaled(i: usize, len: usize, gradient: f32) -> (f64, f64) {
    let ratio = if i >= len / 3 { f64::from(RATIO) } else { 1.0 };
    (f64::from(LR) * ratio, f64::from(FACTOR) * f64::from(gradient))
}

fn adamw(d: Dims, rng: &mut Rng) -> Case {
    let options = reference::optim::AdamW {
        beta1: ADAMW.beta1,
        beta2: ADAMW.beta2,
        eps: ADAMW.eps,
        weight_decay: ADAMW.weight_decay,
    };
    let [grad, param, mut moments] = [given(rng, &[d.tokens]), given(rng, &[d.tokens]), given(rng, &[2, d.tokens])];
    moments.data[d.tokens..].iter_mut().for_each(|v| *v = v.abs());
    let step = 3;
    let [inv_bias1, inv_sqrt_bias2] = reference::optim::bias_corrections(ADAMW.beta1, ADAMW.beta2, step)[2];
    let updated: Vec<[Sum; 3]> = (0..d.tokens)
        .map(|i| {
            let [p, m, v] = [param.data[i], moments.data[i], moments.data[d.tokens + i]].map(f64::from);
            let (lr, g) = scaled(i, d.tokens, grad.data[i]);
            reference::optim::adamw(p, [m, v], g, lr, step as i32, options)
        })
        .collect();
    let part = |i: usize| updated.iter().map(move |u| u[i]);
    let both: Vec<Sum> = part(1).chain(part(2)).collect();
    // p: 4 roundings to lr·ratio·decay, its difference from 1 and the product: 7 of p. The step: m 4 (one of them the
    // gradient's factor), lr, its ratio and the correction 5; below it v 6, so √v 3 and the root itself 9, its correction
    // and the product 2, eps 1, their sum 1; the quotient 5: 30, and the last subtraction.
    case(
        [grad, state(step, [LR.into(), inv_bias1, inv_sqrt_bias2], FACTOR, false), param, moments],
        move |rec, [grad, state, param, moments]| {
            optim::adamw::record(rec, grad, state, param, moments, &ADAMW, group(d.tokens))
        },
        [(2, roundings(31.0, &part(0).collect::<Vec<_>>())), (3, roundings(6.0, &both))],
    )
}

fn sgd(d: Dims, rng: &mut Rng) -> Case {
    let [grad, param] = [given(rng, &[d.tokens]), given(rng, &[d.tokens])];
    let updated: Vec<Sum> = (0..d.tokens)
        .map(|i| {
            let (lr, g) = scaled(i, d.tokens, grad.data[i]);
            reference::optim::sgd(param.data[i].into(), g, lr, DECAY.into())
        })
        .collect();
    case(
        [grad, state(1, [LR.into(), 1.0, 1.0], FACTOR, false), param],
        move |rec, [grad, state, param]| optim::sgd::record(rec, grad, state, param, DECAY, group(d.tokens)),
        [(2, products(&updated))],
    )
}

fn sgd_momentum(d: Dims, rng: &mut Rng) -> Case {
    let [grad, param, velocity] = [given(rng, &[d.tokens]), given(rng, &[d.tokens]), given(rng, &[d.tokens])];
    let updated: Vec<[Sum; 2]> = (0..d.tokens)
        .map(|i| {
            let [p, v] = [param.data[i], velocity.data[i]].map(f64::from);
            let (lr, g) = scaled(i, d.tokens, grad.data[i]);
            reference::optim::sgd_momentum(p, v, g, lr, DECAY.into(), MOMENTUM.into())
        })
        .collect();
    let part = |i: usize| products(&updated.iter().map(|u| u[i]).collect::<Vec<_>>());
    case(
        [grad, state(1, [LR.into(), 1.0, 1.0], FACTOR, false), param, velocity],
        move |rec, [grad, state, param, velocity]| {
            optim::sgd_momentum::record(rec, grad, state, param, velocity, DECAY, MOMENTUM, group(d.tokens))
        },
        [(2, part(0)), (3, part(1))],
    )
}

const TABLE: usize = 5;

/// Tables of three learning rates and five bias corrections; the last rows hold for later steps. What is copied is so in
/// every bit, and so are the counters.
fn begin_step(d: Dims, rng: &mut Rng) -> Case {
    let Dims { tokens: step, in_features: partials, out_features: attempts, rank: clipping } = d;
    let lr = given(rng, &[3]);
    let table: Vec<f32> = reference::optim::bias_corrections(ADAMW.beta1, ADAMW.beta2, TABLE as u32)
        .into_iter()
        .flatten()
        .map(|v| v as f32)
        .collect();
    let rows: Vec<[f64; 2]> = table.chunks(2).map(|row| [row[0].into(), row[1].into()]).collect();
    // What lies behind the sums must not be added.
    let mut squares = given(rng, &[partials + 3]);
    squares.data.iter_mut().for_each(|v| *v = v.abs());
    let totals = Given::new(&[2], vec![3.5, 7.0]);
    let sum =
        reference::loss::total(&squares.f64()[..partials].iter().flat_map(|v| [*v, 0.0]).collect::<Vec<_>>(), [0.0; 2])
            [0];
    let norm = sum.value.sqrt() / 7.0;
    let max_norm = [0.0, 1.25 * norm, 0.3 * norm][clipping] as f32;
    let begun = reference::optim::begin_step(reference::optim::Inputs {
        steps_done: step as u32 - 1,
        lr: &lr.f64(),
        bias: &rows,
        squares: sum,
        totals: [3.5, 7.0],
        max_norm: max_norm.into(),
    });
    let words = |words: &[u32]| exact(&words.iter().map(|w| f64::from(word(*w))).collect::<Vec<_>>());
    let state = Given::new(
        &[8],
        [&[word(step as u32 - 1)], &[f32::NAN; 4][..], &[word(1), word(attempts as u32), word(3)]].concat(),
    );
    let state_after = [
        words(&[step as u32]),
        exact(&[begun.lr, begun.bias[0], begun.bias[1]]),
        products(&[begun.factor]),
        words(&[0, attempts as u32 + 1, 3]),
    ]
    .concat();
    let log = given(rng, &[TABLE, 4]);
    let mut log_after = exact(&log.f64());
    let line = [products(&[begun.loss, begun.norm]), exact(&[begun.lr, 0.0])].concat();
    log_after.splice(attempts % TABLE * 4..attempts % TABLE * 4 + 4, line);
    case(
        [lr, Given::new(&[TABLE, 2], table), squares, totals, window([1, 2, 3]), state, log],
        move |rec, [lr, bias, partial_sums, totals, window, state, log]| {
            let inputs = optim::begin_step::Inputs { lr, bias, partial_sums, partials, totals, window, max_norm };
            optim::begin_step::record(rec, inputs, state, log)
        },
        [(5, state_after), (6, log_after)],
    )
}

/// How many sums there are depends on the device, so they are added up by a second kernel.
fn end_micro_batch(d: Dims, _: &mut Rng) -> Case {
    let done = d.tokens as u32;
    let after = [reference::optim::end_micro_batch(done), 5, 6, 0];
    case(
        [window([done, 5, 6])],
        |rec, [window]| optim::end_micro_batch::record(rec, window),
        [(0, exact(&after.map(|w| word(w).into())))],
    )
}

fn grad_norm(d: Dims, rng: &mut Rng) -> Case {
    let grad = given(rng, &[d.tokens]);
    let sum = reference::optim::grad_norm(&grad.f64());
    let begun = reference::optim::begin_step(reference::optim::Inputs {
        steps_done: 0,
        lr: &[0.5],
        bias: &[[1.0; 2]],
        squares: sum,
        totals: [2.0, 4.0],
        max_norm: 0.0,
    });
    let row = [products(&[begun.loss, begun.norm]), exact(&[0.5, 0.0])].concat();
    let mut expected = vec![(6, row)];
    if d.rank == 1 {
        expected.push((1, products(&[sum])));
    }
    case(
        [
            grad,
            unset(&[d.rank]),
            Given::new(&[1], vec![0.5]),
            Given::new(&[1, 2], vec![1.0; 2]),
            Given::new(&[2], vec![2.0, 4.0]),
            window([0; 3]),
            unset(&[1, 4]),
            Given::new(&[8], vec![0.0; 8]),
        ],
        |rec, [grad, partial_sums, lr, bias, totals, window, log, state]| {
            let partials = optim::grad_norm::record(rec, grad, partial_sums)?;
            let inputs = optim::begin_step::Inputs { lr, bias, partial_sums, partials, totals, window, max_norm: 0.0 };
            optim::begin_step::record(rec, inputs, state, log)
        },
        expected,
    )
}

// ── the table ──

macro_rules! spec {
    ($group:ident / $kernel:ident, $shapes:ident $repeated:expr, $show:ident, $bound:expr, [$($mutation:expr),* $(,)?]) => {
        Spec {
            kernel: &$group::$kernel::KERNEL,
            case: $kernel,
            shapes: $shapes,
            repeated: $repeated,
            show: $show,
            bound: $bound,
            mutations: &[$($mutation),*],
        }
    };
}

pub(crate) use spec;

pub static SPECS: &[Spec] = &[
    spec!(lora / add_scaled, ROUNDS 0..2, show_len, PRODUCTS, [
        ("the scale twice", "params.scale * vec4f", "params.scale * params.scale * vec4f"),
        ("the scale never", "params.scale * vec4f", "vec4f"),
        ("overwriting", "before + params.scale", "params.scale"),
        ("the last element left out", "i[j] < len", "i[j] + 1 < len"),
        ("two indices swapped", "y[at.y], y[at.z]", "y[at.z], y[at.y]"),
        ("three of four", "j < 4;", "j < 3;"),
        ("stopping at the tile", "first < len;", "first < min(len, WORKGROUP);"),
        ("one round", "first += groups.x * 4 * WORKGROUP", "first += len"),
    ]),
    spec!(lora / fused_b_add, ONTO 0..5, show_onto, PRODUCTS, [
        ("the last term dropped", "r < params.rank;", "r + 1 < params.rank;"),
        ("the scale twice", "params.scale * sum[i]", "params.scale * params.scale * sum[i]"),
        ("the scale never", "params.scale * sum[i]", "sum[i]"),
        ("overwriting", "before[i] + params.scale", "params.scale"),
        ("only the first column tile", "tile % column_tiles * COLUMNS", "0u"),
        ("only the first token tile", "tile / column_tiles * TOKENS", "0u"),
        ("B transposed", "b[column * params.rank + r]", "b[r * params.columns + column]"),
        ("h transposed", "rows + r", "rows / params.rank + r * params.tokens"),
        ("the last part left out", "part < params.parts;", "part + 1 < params.parts;"),
        ("the first part left out", "part = 0u;", "part = 1u;"),
        ("one part again and again", "part * params.tokens", "0u"),
        ("the parts on each other", "part * params.tokens + ", "part + "),
        ("parts added to what is there", "if params.parts == 0", "if true"),
        ("what is there left out", "if params.parts == 0", "if params.parts == 1"),
        ("two tokens of a part swapped", "parts[at.y], parts[at.z]", "parts[at.z], parts[at.y]"),
    ]),
    spec!(lora / fused_b_add_tiled, ONTO 0..5, show_onto, PRODUCTS, [
        ("the last rank dropped", "r < vec4u(ranks)", "r + 1 < vec4u(ranks)"),
        ("the ranks stopping at the tile", "first_rank += RANKS", "first_rank += params.rank"),
        ("the scale twice", "params.scale * sum[i]", "params.scale * params.scale * sum[i]"),
        ("the scale never", "params.scale * sum[i]", "sum[i]"),
        ("the scale never to parts", "sum[i] *= params.scale;", ""),
        ("overwriting", "vec4f(output[at.x], output[at.y], output[at.z], output[at.w]) + params.scale", "params.scale"),
        ("only the first column tile", "tile % column_tiles * 4 * COLUMNS", "0u"),
        ("only the first token tile", "tile / column_tiles * DOWN * TOKENS", "0u"),
        ("B transposed", "b[column * params.rank + rank]", "b[rank * params.columns + column]"),
        ("two ranks swapped", "value.z * weight[2]", "value.z * weight[3]"),
        ("two columns swapped", "vec2f(b_tile[at], b_tile[at + COLUMNS])", "vec2f(b_tile[at + COLUMNS], b_tile[at])"),
        ("one token's ranks", "(local.y + i * DOWN) * (RANKS / 4)", "local.y * (RANKS / 4)"),
        ("the last part left out", "part < params.parts;", "part + 1 < params.parts;"),
        ("the first part left out", "part = 0u;", "part = 1u;"),
        ("one part again and again", "part * params.tokens", "0u"),
        ("the parts on each other", "part * params.tokens + ", "part + "),
        ("parts added to what is there", "if params.parts == 0", "if true"),
        ("what is there left out", "if params.parts == 0", "if params.parts == 1"),
        ("two columns of a part swapped", "parts[at.y], parts[at.z]", "parts[at.z], parts[at.y]"),
    ]),
    spec!(lora / grad_a, ANY_TOKENS 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "t < params.tokens;", "t + 1 < params.tokens;"),
        ("the sum stopping at the tile", "t += SLICES", "t += params.tokens"),
        ("a slice left out", "slice < SLICES;", "slice + 1 < SLICES;"),
        ("the scale twice", "params.scale * total", "params.scale * params.scale * total"),
        ("the scale never", "params.scale * total", "total"),
        ("overwriting", "+= params.scale", "= params.scale"),
        ("only the first column tile", "tile / rank_tiles * COLUMNS", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("dA transposed", "d_a[rank * params.in_features + input]", "d_a[input * params.rank + rank]"),
        ("x transposed", "x[t * params.in_features + column]", "x[column * params.tokens + t]"),
        ("ranks swapped", "dh[row + low.x], dh[row + low.y]", "dh[row + low.y], dh[row + low.x]"),
        ("the upper ranks left out", "sum_high[j]", "0.0"),
    ]),
    spec!(lora / grad_a_tiled, TILED 0..5, show_product, PRODUCTS, [
        ("the last token dropped", "vec4<bool>(token < end)", "vec4<bool>(token + 1 < end)"),
        ("the tokens stopping at the tile", "first += TOKENS", "first += params.tokens"),
        ("the slices' first four tokens", "t += EACH * SLICES", "t += params.tokens"),
        ("a slice left out", "slice < SLICES;", "slice + 1 < SLICES;"),
        ("the scale twice", "params.scale * total[j]", "params.scale * params.scale * total[j]"),
        ("the scale never", "params.scale * total[j]", "total[j]"),
        ("overwriting", "params.accumulate == 1", "false"),
        ("only the first column tile", "tile / rank_tiles % column_tiles * 4 * COLUMNS", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("dA transposed", "(part * params.rank + rank) * params.in_features + column", "part * params.rank * params.in_features + column * params.rank + rank"),
        ("two tokens swapped", "sum[4 * j + r] += now[i][j] * value", "sum[4 * j + r] += now[i ^ 1][j] * value"),
        ("two ranks swapped", "vec4f(dh[small.x], dh[small.y]", "vec4f(dh[small.y], dh[small.x]"),
        ("the second column left out", "partial[all + index] = b;", "partial[all + index] = vec4f();"),
        ("the upper ranks left out", "if ranks > 8 {", "if false {"),
    ]),
    spec!(lora / grad_b, ANY_TOKENS 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "t < params.tokens;", "t + 1 < params.tokens;"),
        ("the sum stopping at the tile", "t += SLICES", "t += params.tokens"),
        ("a slice left out", "slice < SLICES;", "slice + 1 < SLICES;"),
        ("the scale twice", "params.scale * total", "params.scale * params.scale * total"),
        ("the scale never", "params.scale * total", "total"),
        ("overwriting", "+= params.scale", "= params.scale"),
        ("only the first column tile", "tile / rank_tiles * COLUMNS", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("dB transposed", "d_b[out * params.rank + rank]", "d_b[rank * params.out_features + out]"),
        ("d_output transposed", "d_output[t * params.out_features + column]", "d_output[column * params.tokens + t]"),
        ("ranks swapped", "h[row + low.x], h[row + low.y]", "h[row + low.y], h[row + low.x]"),
        ("the upper ranks left out", "sum_high[j]", "0.0"),
    ]),
    spec!(lora / grad_b_dh, JOINED 0..5, show_product, PRODUCTS, [
        ("the last token dropped", "vec4<bool>(token < end)", "vec4<bool>(token + 1 < end)"),
        ("the tokens stopping at the tile", "first += TOKENS", "first += params.tokens"),
        ("the first four tokens alone", "t += EACH", "t += TOKENS"),
        ("the scale twice", "params.scale * sum[j][k]", "params.scale * params.scale * sum[j][k]"),
        ("the scale never", "params.scale * sum[j][k]", "sum[j][k]"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("only the first strip", "tile / rank_tiles % strips", "0u"),
        ("only the first part", "tile / rank_tiles / strips", "0u"),
        ("dB transposed", "(part * params.out_features + 4 * block + j) * params.rank + rank[k]", "part * params.out_features * params.rank + rank[k] * params.out_features + 4 * block + j"),
        ("two tokens of dB swapped", "sum[j] += now[i][j] * value", "sum[j] += now[i ^ 1][j] * value"),
        ("two tokens of dh swapped", "product[i] += now[i][j] * weight[j]", "product[i] += now[i ^ 1][j] * weight[j]"),
        ("the columns past the end counting", "vec4<bool>(block < blocks)", "vec4<bool>(true)"),
        ("ranks of the next row", "min(rank, vec4u(params.rank - 1))", "min(rank, vec4u(0))"),
        ("a neighbour's sums lost", "quadSwapX(select(product[2], product[0], right))", "select(product[2], product[0], right)"),
        ("the wrong neighbour", "quadSwapY(", "quadSwapX("),
        ("a quad left out", "q < WORKGROUP / 4;", "q + 2 < WORKGROUP / 4;"),
        ("the lower ranks twice", "quad % 2 * 4 + vec4u", "0 * 4 + vec4u"),
        ("dh over dB", "let after = ", "let after = 0 * "),
    ]),
    spec!(lora / grad_b_dh_sums, PARTS 0..5, show_product, PRODUCTS, [
        ("overwriting dB", "d_b[i] +=", "d_b[i] ="),
        ("accumulation of dh", "dh[at] =", "dh[at] +="),
        ("a part left out", "part < count;", "part + 1 < count;"),
        ("the first part alone", "first + part * len", "first"),
        ("dh from the parts of dB", "params.d_b_parts * params.d_b_len + at", "at"),
        ("the last element of dh", "i < params.d_b_len + params.dh_len", "i + 1 < params.d_b_len + params.dh_len"),
    ]),
    spec!(lora / grad_b_tiled, TILED 0..5, show_product, PRODUCTS, [
        ("the last token dropped", "vec4<bool>(token < end)", "vec4<bool>(token + 1 < end)"),
        ("the tokens stopping at the tile", "first += TOKENS", "first += params.tokens"),
        ("the slices' first four tokens", "t += EACH * SLICES", "t += params.tokens"),
        ("a slice left out", "slice < SLICES;", "slice + 1 < SLICES;"),
        ("the scale twice", "params.scale * total[j]", "params.scale * params.scale * total[j]"),
        ("the scale never", "params.scale * total[j]", "total[j]"),
        ("overwriting", "params.accumulate == 1", "false"),
        ("only the first column tile", "tile / rank_tiles % column_tiles * 4 * COLUMNS", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("dB transposed", "(part * params.out_features + column) * params.rank + rank", "part * params.rank * params.out_features + rank * params.out_features + column"),
        ("two tokens swapped", "sum[4 * j + r] += now[i][j] * value", "sum[4 * j + r] += now[i ^ 1][j] * value"),
        ("two ranks swapped", "vec4f(h[small.x], h[small.y]", "vec4f(h[small.y], h[small.x]"),
        ("the second column left out", "partial[all + index] = b;", "partial[all + index] = vec4f();"),
        ("the upper ranks left out", "if ranks > 8 {", "if false {"),
    ]),
    spec!(lora / grad_dh, MANY_TOKENS 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "column < vec4u(params.out_features)", "column + 1 < vec4u(params.out_features)"),
        ("the sum stopping at the tile", "first < params.out_features + 4 * LANES", "first < 8 * LANES"),
        ("a lane left out", "lane < LANES;", "lane + 1 < LANES;"),
        ("accumulation", "rank] = total", "rank] += total"),
        ("only the first token tile", "tile / rank_tiles * TOKENS * EACH", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("dh transposed", "dh[token * params.rank + rank]", "dh[rank * params.tokens + token]"),
        ("B's rows on each other", "b[o * params.rank", "b[o"),
        ("two rows of B swapped", "low[r] += pool[at + LANES] * part[1]", "low[r] += pool[at + LANES] * part[2]"),
        ("one token twice", "select(v.z, v.w, i == 3)", "select(v.w, v.w, i == 3)"),
        ("the upper ranks left out", "component(high[r], i)", "0.0"),
    ]),
    spec!(lora / grad_dh_tiled, TILED 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "first + lane < count", "first + lane + 1 < count"),
        ("the sum stopping at the tile", "first < count + LANES", "first < 2 * LANES"),
        ("a lane left out", "l < LANES;", "l + 1 < LANES;"),
        ("accumulation", "rank] = total[j]", "rank] += total[j]"),
        ("only the first token tile", "tile / rank_tiles % token_tiles * EACH * DOWN", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("all parts the first", "min(part * params.part / 4, blocks)", "0u"),
        ("parts one over another", "(part * params.tokens + token)", "token"),
        ("dh transposed", "(part * params.tokens + token) * params.rank + rank", "(part * params.rank + rank) * params.tokens + token"),
        ("B transposed", "(row + vec4u(0, 1, 2, 3)) * params.rank + min(first_rank + e % RANKS, params.rank - 1)", "row + vec4u(0, 1, 2, 3) + min(first_rank + e % RANKS, params.rank - 1) * params.out_features"),
        ("B of the first part", "4 * (begin + min(", "4 * (min("),
        ("d_output of the first part", "params.tokens - 1) * blocks + begin", "params.tokens - 1) * blocks"),
        ("two columns swapped", "low[r * EACH + i] += of_b[k] * of_d[i][k]", "low[r * EACH + i] += of_b[k] * of_d[i][k ^ 1]"),
        ("one token twice", "select(c, d, i == 3)", "select(c, c, i == 3)"),
        ("the upper ranks left out", "+ place] = of_high", "+ place] = vec4f()"),
    ]),
    spec!(lora / grad_dh_gemv, ONE_TOKEN 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "k < params.out_features;", "k + 1 < params.out_features;"),
        ("the sum stopping at the tile", "k += LANES", "k += params.out_features"),
        ("one lane of each group only", "partial[lane * GROUP + i]", "partial[lane * GROUP]"),
        ("accumulation", "dh[rank] =", "dh[rank] +="),
        ("only the first rank", "group.x + group.y * groups.x", "0u"),
        ("B transposed", "b[k * params.rank + column]", "b[column * params.out_features + k]"),
    ]),
    spec!(lora / input_grad, ONTO 0..5, show_onto, PRODUCTS, [
        ("the last term dropped", "r < params.rank;", "r + 1 < params.rank;"),
        ("the scale twice", "params.scale * sum[i]", "params.scale * params.scale * sum[i]"),
        ("the scale never", "params.scale * sum[i]", "sum[i]"),
        ("overwriting", "before[i] + params.scale", "params.scale"),
        ("only the first column tile", "tile % column_tiles * COLUMNS", "0u"),
        ("only the first token tile", "tile / column_tiles * TOKENS", "0u"),
        ("A transposed", "a[r * params.columns + column]", "a[column * params.rank + r]"),
        ("dh transposed", "rows + r", "rows / params.rank + r * params.tokens"),
        ("the last part left out", "part < params.parts;", "part + 1 < params.parts;"),
        ("the first part left out", "part = 0u;", "part = 1u;"),
        ("one part again and again", "part * params.tokens", "0u"),
        ("the parts on each other", "part * params.tokens + ", "part + "),
        ("parts added to what is there", "if params.parts == 0", "if true"),
        ("what is there left out", "if params.parts == 0", "if params.parts == 1"),
        ("two tokens of a part swapped", "parts[at.y], parts[at.z]", "parts[at.z], parts[at.y]"),
    ]),
    spec!(lora / input_grad_tiled, ONTO 0..5, show_onto, PRODUCTS, [
        ("the last rank dropped", "r < vec4u(ranks)", "r + 1 < vec4u(ranks)"),
        ("the ranks stopping at the tile", "first_rank += RANKS", "first_rank += params.rank"),
        ("the scale twice", "params.scale * sum[i]", "params.scale * params.scale * sum[i]"),
        ("the scale never", "params.scale * sum[i]", "sum[i]"),
        ("the scale never to parts", "sum[i] *= params.scale;", ""),
        ("overwriting", "vec4f(d_input[at.x], d_input[at.y], d_input[at.z], d_input[at.w]) + params.scale", "params.scale"),
        ("only the first column tile", "tile % column_tiles * 4 * COLUMNS", "0u"),
        ("only the first token tile", "tile / column_tiles * DOWN * TOKENS", "0u"),
        ("A transposed", "a[rank * params.columns + column]", "a[column * params.rank + rank]"),
        ("two ranks swapped", "value.z * weight[2]", "value.z * weight[3]"),
        ("two columns swapped", "vec2f(a_tile[at], a_tile[at + COLUMNS])", "vec2f(a_tile[at + COLUMNS], a_tile[at])"),
        ("one token's ranks", "(local.y + i * DOWN) * (RANKS / 4)", "local.y * (RANKS / 4)"),
        ("the last part left out", "part < params.parts;", "part + 1 < params.parts;"),
        ("the first part left out", "part = 0u;", "part = 1u;"),
        ("one part again and again", "part * params.tokens", "0u"),
        ("the parts on each other", "part * params.tokens + ", "part + "),
        ("parts added to what is there", "if params.parts == 0", "if true"),
        ("what is there left out", "if params.parts == 0", "if params.parts == 1"),
        ("two columns of a part swapped", "parts[at.y], parts[at.z]", "parts[at.z], parts[at.y]"),
    ]),
    spec!(lora / project_a, MANY_TOKENS 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "column < vec4u(params.in_features)", "column + 1 < vec4u(params.in_features)"),
        ("the sum stopping at the tile", "first < params.in_features + 4 * LANES", "first < 8 * LANES"),
        ("a lane left out", "lane < LANES;", "lane + 1 < LANES;"),
        ("accumulation", "rank] = total", "rank] += total"),
        ("only the first token tile", "tile / rank_tiles * TOKENS * EACH", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("h transposed", "h[token * params.rank + rank]", "h[rank * params.tokens + token]"),
        ("A's rows on each other", "params.rank - 1) * params.in_features", "params.rank - 1)"),
        ("two columns swapped", "low[r] += pool[at + LANES] * part[1]", "low[r] += pool[at + LANES] * part[2]"),
        ("one token twice", "select(v.z, v.w, i == 3)", "select(v.w, v.w, i == 3)"),
        ("the upper ranks left out", "component(high[r], i)", "0.0"),
    ]),
    spec!(lora / project_a_subgroups, TILED 0..5, show_product, PRODUCTS, [
        ("the last block dropped", "k < blocks;", "k + 1 < blocks;"),
        ("the sum stopping at the workgroup", "k += WORKGROUP", "k += blocks"),
        ("a subgroup left out", "s < subgroups;", "s + 1 < max(subgroups, 2);"),
        ("one invocation's sum", "subgroupAdd(sum[i])", "sum[i]"),
        ("accumulation", "rank] = total", "rank] += total"),
        ("only the first tokens", "tile / rank_tiles * EACH", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("h transposed", "h[token * params.rank + rank]", "h[rank * params.tokens + token]"),
        ("A's rows on each other", "params.rank - 1) * blocks + k", "params.rank - 1) + k"),
        ("one token twice", "min(first_token + i, params.tokens - 1)", "min(first_token, params.tokens - 1)"),
        ("two ranks swapped", "vec4f(dot(of_a[0], of_x), dot(of_a[1], of_x)", "vec4f(dot(of_a[1], of_x), dot(of_a[0], of_x)"),
        ("the upper ranks left out", "sum[2 * i + 1] +=", "sum[2 * i] +="),
    ]),
    spec!(lora / project_a_tiled, TILED 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "first + lane < count", "first + lane + 1 < count"),
        ("the sum stopping at the tile", "first < count + LANES", "first < 2 * LANES"),
        ("a lane left out", "l < LANES;", "l + 1 < LANES;"),
        ("accumulation", "rank] = total[j]", "rank] += total[j]"),
        ("only the first token tile", "tile / rank_tiles % token_tiles * EACH * DOWN", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("all parts the first", "min(part * params.part / 4, blocks)", "0u"),
        ("parts one over another", "(part * params.tokens + token)", "token"),
        ("h transposed", "(part * params.tokens + token) * params.rank + rank", "(part * params.rank + rank) * params.tokens + token"),
        ("A's rows on each other", "params.rank - 1) * blocks", "params.rank - 1)"),
        ("A of the first part", "params.rank - 1) * blocks + begin", "params.rank - 1) * blocks"),
        ("x of the first part", "params.tokens - 1) * blocks + begin", "params.tokens - 1) * blocks"),
        ("two columns swapped", "low[r * EACH + i] += of_a[k] * of_x[i][k]", "low[r * EACH + i] += of_a[k] * of_x[i][k ^ 1]"),
        ("one token twice", "select(c, d, i == 3)", "select(c, c, i == 3)"),
        ("the upper ranks left out", "+ place] = of_high", "+ place] = vec4f()"),
    ]),
    spec!(lora / project_a_gemv, ONE_TOKEN 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "k < params.in_features;", "k + 1 < params.in_features;"),
        ("the sum stopping at the tile", "k += LANES", "k += params.in_features"),
        ("one lane of each group only", "partial[lane * GROUP + i]", "partial[lane * GROUP]"),
        ("accumulation", "h[rank] =", "h[rank] +="),
        ("only the first rank", "group.x + group.y * groups.x", "0u"),
        ("A transposed", "a[row + k]", "a[k * params.rank + rank]"),
    ]),
    spec!(lora / project_b, ANY_TOKENS 0..5, show_product, PRODUCTS, [
        ("the last rank dropped", "r < vec4u(ranks)", "r + 1 < vec4u(ranks)"),
        ("the ranks stopping at the tile", "first_rank += RANKS", "first_rank += params.rank"),
        ("accumulation", "column] = sum[i][j]", "column] += sum[i][j]"),
        ("only the first column tile", "tile % column_tiles * 4 * COLUMNS", "0u"),
        ("only the first token tile", "tile / column_tiles * DOWN * TOKENS", "0u"),
        ("B transposed", "b[column * params.rank + rank]", "b[rank * params.out_features + column]"),
        ("two ranks swapped", "value.z * weight[2]", "value.z * weight[3]"),
        ("two columns swapped", "vec2f(b_tile[at], b_tile[at + COLUMNS])", "vec2f(b_tile[at + COLUMNS], b_tile[at])"),
        ("one token's ranks", "(local.y + i * DOWN) * (RANKS / 4)", "local.y * (RANKS / 4)"),
        ("y transposed", "y[token * params.out_features + column]", "y[column * params.tokens + token]"),
    ]),
    spec!(lora / save_activation, ROUNDS 0..2, show_len, EXACT, [
        ("accumulation", "= value[j]", "+= value[j]"),
        ("the last element left out", "i[j] < len", "i[j] + 1 < len"),
        ("two indices swapped", "src[at.y], src[at.z]", "src[at.z], src[at.y]"),
        ("three of four", "j < 4;", "j < 3;"),
        ("stopping at the tile", "first < len;", "first < min(len, WORKGROUP);"),
        ("one round", "first += groups.x * 4 * WORKGROUP", "first += len"),
    ]),
    spec!(loss / bce_with_logits, LOST 0..2, show_sum, FUNCTIONS_BOUND, [
        ("the last term dropped", "i[j] < len", "i[j] + 1 < len"),
        ("three of four", "j < 4;", "j < 3;"),
        ("the sum stopping at the tile", "first += groups.x * 4 * WORKGROUP", "first += len"),
        ("a lane left out", "i < WORKGROUP;", "i + 1 < WORKGROUP;"),
        ("a lane of those with sums left out", "i < SUMS;", "i + 1 < SUMS;"),
        ("a lane twice", "i = 1u;", "i = 0u;"),
        ("two indices of the targets swapped", "targets[at.y], targets[at.z]", "targets[at.z], targets[at.y]"),
        ("one element too many counted", "log_1p(e), 1.0)", "log_1p(e), 2.0)"),
        ("the gradient of the wrong sign", "/ (1.0 + e) - y", "/ (1.0 + e) + y"),
        ("σ of |z|", "select(e, 1.0, z >= 0.0)", "1.0"),
        ("σ of −z", "z >= 0.0", "z < 0.0"),
        ("the logit dropped", "max(z, 0.0) - z * y", "max(z, 0.0)"),
        ("the logarithm dropped", " + log_1p(e)", ""),
        ("the exponential overflowing", "exp(-abs(z))", "exp(-z)"),
        ("a coefficient of the series", "1.0 / 5.0", "1.0 / 4.0"),
        ("accumulation", "d_output[i[j]] = ", "d_output[i[j]] += "),
    ]),
    spec!(loss / cross_entropy, LABELLED 0..5, show_labelled, FUNCTIONS_BOUND, [
        ("the last row dropped", "row < params.rows;", "row + 1 < params.rows;"),
        ("the rows stopping at the workgroups", "row += groups.x", "row += params.rows"),
        ("the largest class left out", "highest = max(highest, logits[first + c])", "highest = logits[first]"),
        ("the largest not subtracted", "let z = logits[first + c] - highest;", "let z = logits[first + c];"),
        ("the smoothing dropped", "let share = params.smoothing / f32(classes);", "let share = 0.0;"),
        ("the smoothing not shared", "params.smoothing / f32(classes)", "params.smoothing"),
        ("the label's share whole", "select(0.0, 1.0 - params.smoothing, i32(c) == label)", "select(0.0, 1.0, i32(c) == label)"),
        ("the label off by one", "i32(c) == label", "i32(c) + 1 == label"),
        ("the label dropped", " - hit - share;", " - share;"),
        ("ignored rows with a gradient", "select(0.0, select(infinite, gradient, valid), counted)", "gradient"),
        ("ignored rows counted", "if counted {", "if counted || true {"),
        ("the logarithm dropped", " - highest - log_sum", " - highest"),
        ("the mean of the logarithms dropped", " * hit - smoothed;", " * hit;"),
        ("classes without their logarithm", "sums.y - f32(classes) * log_sum", "sums.y"),
        ("accumulation", "d_logits[first + c] = ", "d_logits[first + c] += "),
        ("the sums of one lane", "sums += partial[i]", "sums = partial[i]"),
    ]),
    spec!(loss / mean, ELEMENTS 0..2, show_len, FUNCTIONS_BOUND, [
        ("the gradient not divided", "d_output[i] / count", "d_output[i]"),
        ("the loss not divided", "totals[0].x / count", "totals[0].x"),
        ("the loss twice divided", "totals[0].x / count", "totals[0].x / count / count"),
        ("the last element left out", "i >= params.len", "i + 1 >= params.len"),
        ("stopping at the tile", "i >= params.len", "i >= min(params.len, WORKGROUP)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(loss / mse, LOST 0..2, show_sum, PRODUCTS, [
        ("the last term dropped", "i[j] < len", "i[j] + 1 < len"),
        ("three of four", "j < 4;", "j < 3;"),
        ("the sum stopping at the tile", "first += groups.x * 4 * WORKGROUP", "first += len"),
        ("a lane left out", "i < WORKGROUP;", "i + 1 < WORKGROUP;"),
        ("a lane of those with sums left out", "i < SUMS;", "i + 1 < SUMS;"),
        ("a lane twice", "i = 1u;", "i = 0u;"),
        ("two indices of the targets swapped", "targets[at.y], targets[at.z]", "targets[at.z], targets[at.y]"),
        ("one element too many counted", "difference[j], 1.0)", "difference[j], 2.0)"),
        ("the loss halved", "vec2f(difference[j]", "vec2f(0.5 * difference[j]"),
        ("the gradient halved", "2.0 * difference[j]", "difference[j]"),
        ("the difference negated", "values - wanted", "wanted - values"),
        ("accumulation", "d_output[i[j]] = ", "d_output[i[j]] += "),
    ]),
    spec!(loss / total, REDUCED 0..2, show_sum, PRODUCTS, [
        ("the last term dropped", "i < params.len;", "i + 1 < params.len;"),
        ("a term too many", "i < params.len;", "i <= params.len;"),
        ("the sum stopping at the tile", "i += WORKGROUP", "i += params.len"),
        ("a lane left out", "i < WORKGROUP;", "i + 1 < WORKGROUP;"),
        ("never accumulating", "params.accumulate == 1", "false"),
        ("always accumulating", "params.accumulate == 1", "true"),
        ("sum and count swapped", "+ sum;\n    }\n}", "+ sum.yx;\n    }\n}"),
    ]),
    spec!(nn / activation, ACTIVATED 0..4, show_activated, FUNCTIONS_BOUND, [
        ("tanh of a large argument not finite", "exp(-2.0 * min(abs(x), 44.0))", "exp(2.0 * abs(x))"),
        ("tanh even", "sign(x) * (1.0 - e)", "(1.0 - e)"),
        ("tanh cancelling near 0", "abs(x) >= 0.25", "true"),
        ("tanh's series too far", "abs(x) >= 0.25", "abs(x) >= 1.0"),
        ("a term of tanh's series dropped", " - s * (17.0 / 315.0 - s * 62.0 / 2835.0)", ""),
        ("relu leaking", "select(value, 0.0, bits", "select(value, 0.01 * value, bits"),
        ("relu reversed", "bits > 0x80000000u &&", "bits < 0x80000000u &&"),
        ("gelu without its factor", "value * normal_cdf(value)", "normal_cdf(value)"),
        ("Φ of x, not x/√2", "abs(x) * 0.70710678", "abs(x)"),
        ("Φ of |x|", "select(half_erfc, 1.0 - half_erfc, x >= 0.0)", "1.0 - half_erfc"),
        ("a coefficient of Φ", "1.48851587", "1.48851"),
        ("silu without its factor", "value * sigmoid(value)", "sigmoid(value)"),
        ("σ of |x|", "select(e, 1.0, x >= 0.0)", "1.0"),
        ("two functions swapped", "case 1u", "case 7u"),
        ("accumulation", "output[i[j]] =", "output[i[j]] +="),
        ("the last element left out", "i[j] < len", "i[j] + 1 < len"),
        ("two indices swapped", "x[at.y], x[at.z]", "x[at.z], x[at.y]"),
        ("three of four", "j < 4;", "j < 3;"),
        ("stopping at the tile", "first < len;", "first < min(len, WORKGROUP);"),
        ("one round", "first += groups.x * 4 * WORKGROUP", "first += len"),
    ]),
    spec!(nn / activation_grad, ACTIVATED 0..4, show_activated, FUNCTIONS_BOUND, [
        ("tanh's slope halved", "4.0 * e", "2.0 * e"),
        ("tanh's slope not squared below", "((1.0 + e) * (1.0 + e))", "(1.0 + e)"),
        ("relu's slope everywhere", "select(0.0, 1.0, value > 0.0)", "1.0"),
        ("relu's slope at 0", "value > 0.0", "value >= 0.0"),
        ("gelu's density dropped", " + value * 0.39894228 * exp(-0.5 * z * z)", ""),
        ("gelu's density without x", "value * 0.39894228", "0.39894228"),
        ("gelu's clamp too near", "min(abs(value), 13.0)", "min(abs(value), 3.0)"),
        ("silu's product dropped", " * (1.0 + value * sigmoid(-value))", ""),
        ("silu's σ of x", "sigmoid(-value)", "sigmoid(value)"),
        ("d_output dropped", "slope * above[j]", "slope"),
        ("an index swapped", "d_output[at.y], d_output[at.z]", "d_output[at.z], d_output[at.y]"),
        ("accumulation", "d_input[i[j]] =", "d_input[i[j]] +="),
        ("the last element left out", "i[j] < len", "i[j] + 1 < len"),
        ("two indices swapped", "x[at.y], x[at.z]", "x[at.z], x[at.y]"),
        ("three of four", "j < 4;", "j < 3;"),
        ("stopping at the tile", "first < len;", "first < min(len, WORKGROUP);"),
        ("one round", "first += groups.x * 4 * WORKGROUP", "first += len"),
    ]),
    spec!(nn / norm, NORMED 0..3, show_normed, FUNCTIONS_BOUND, [
        ("never centered", "params.centered == 1", "false"),
        ("always centered", "params.centered == 1", "true"),
        ("eps dropped", " + params.eps", ""),
        ("eps outside the root", "inv_features + params.eps)", "inv_features) + params.eps"),
        ("the weight dropped", " * weight[i]", ""),
        ("the bias dropped", " + offset", ""),
        ("the bias always", "select(0.0, bias[i * params.has_bias], params.has_bias == 1)", "bias[i]"),
        ("the unbiased variance", "vec2f(sum, 0.0)).x * inv_features + params.eps", "vec2f(sum, 0.0)).x / max(f32(params.features) - 1.0, 1.0) + params.eps"),
        ("a lane left out", "i < WORKGROUP;", "i + 1 < WORKGROUP;"),
        ("one lane's sum only", "sum += partial[i]", "sum = partial[i]"),
        ("the mean stopping at the tile", "i += WORKGROUP) {\n        sum += x", "i += params.features) {\n        sum += x"),
        ("the output stopping at the tile", "i += WORKGROUP) {\n        let offset", "i += params.features) {\n        let offset"),
        ("only the first row", "let index = group.x + group.y * groups.x;", "let index = 0u;"),
        ("workgroups in one dimension", "group.x + group.y * groups.x", "group.x"),
        ("accumulation", "output[first + i] =", "output[first + i] +="),
    ]),
    spec!(nn / norm_grad, NORMED 0..3, show_norm_grad, FUNCTIONS_BOUND, [
        ("the mean kept", "select(0.0, sum_up(lane, vec2f(sum, 0.0)).x * inv_features, params.centered == 1)", "0.0 * sum_up(lane, vec2f(sum, 0.0)).x"),
        ("the mean of g dropped", "g - mean_g - ", "g - "),
        ("the mean of g always", "select(0.0, sums.x, params.centered == 1)", "sums.x"),
        ("the part along x̂ dropped", " - (x[first + i] - mean) * inv_deviation * sums.y", ""),
        ("the part along x̂ without its deviation", "(x[first + i] - mean) * inv_deviation * sums.y", "(x[first + i] - mean) * sums.y"),
        ("the last division dropped", "sums.y) * inv_deviation", "sums.y)"),
        ("eps dropped", " + params.eps", ""),
        ("the sums not divided", "sum_up(lane, sums) * inv_features", "sum_up(lane, sums)"),
        ("a lane left out", "i < WORKGROUP;", "i + 1 < WORKGROUP;"),
        ("one lane's sum only", "sum += partial[i]", "sum = partial[i]"),
        ("the weight dropped", "let g = weight[i] * d_output[first + i];\n        let before", "let g = d_output[first + i];\n        let before"),
        ("the sums without weight", "let g = weight[i] * d_output[first + i];\n        sums", "let g = d_output[first + i];\n        sums"),
        ("only the first row", "let index = group.x + group.y * groups.x;", "let index = 0u;"),
        ("workgroups in one dimension", "group.x + group.y * groups.x", "group.x"),
        ("accumulation always", "params.accumulate == 1", "true"),
        ("accumulation never", "params.accumulate == 1", "false"),
    ]),
    spec!(optim / adamw, ELEMENTS 0..2, show_len, "31 roundings", [
        ("the first bias correction dropped", "state.inv_bias1 * m", "m"),
        ("the second bias correction dropped", "sqrt(v) * state.inv_sqrt_bias2", "sqrt(v)"),
        ("eps inside the root", "sqrt(v) * state.inv_sqrt_bias2 + params.eps", "sqrt(v + params.eps) * state.inv_sqrt_bias2"),
        ("eps dropped", " + params.eps", ""),
        ("the decay dropped", "(1.0 - lr * params.weight_decay)", "1.0"),
        ("the decay twice", "lr * params.weight_decay", "2.0 * lr * params.weight_decay"),
        ("lr twice", "lr * state.inv_bias1", "lr * lr * state.inv_bias1"),
        ("the gradient's factor dropped", "state.grad_scale * grad[i]", "grad[i]"),
        ("the ratio dropped", "select(1.0, params.lr_ratio, i >= params.ratio_from)", "1.0"),
        ("the ratio always", "i >= params.ratio_from", "true"),
        ("the ratio one element late", "i >= params.ratio_from", "i > params.ratio_from"),
        ("g not squared", "* g * g", "* g"),
        ("the moments swapped", "params.beta2 * moments[params.len + i]", "params.beta2 * moments[i]"),
        ("m forgotten", "moments[i] = m", "moments[i] = 0.0"),
        ("v overwritten", "params.beta2 * moments[params.len + i] + ", ""),
        ("the last element left out", "i >= params.len", "i + 1 >= params.len"),
        ("stopping at the tile", "i >= params.len", "i >= min(params.len, WORKGROUP)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(lora / bias_add, COLUMNS_IN_ROUNDS 0..2, show_columns, PRODUCTS, [
        ("overwriting", "before + params.scale", "params.scale"),
        ("the scale dropped", "params.scale * vec4f", "vec4f"),
        ("the scale twice", "params.scale * vec4f", "params.scale * params.scale * vec4f"),
        ("one bias for all", "at % params.out_features", "at * 0"),
        ("by token", "at % params.out_features", "min(at / params.out_features, vec4u(params.out_features - 1))"),
        ("the last element left out", "i[j] < len", "i[j] + 1 < len"),
        ("three of four", "j < 4;", "j < 3;"),
        ("one round", "first += groups.x * 4 * WORKGROUP", "first += len"),
    ]),
    spec!(lora / bias_grad, COLUMNS 0..2, show_columns, PRODUCTS, [
        ("overwriting", "d_bias[o] +=", "d_bias[o] ="),
        ("the scale dropped", "params.scale * sum", "sum"),
        ("the last token left out", "token < params.tokens;", "token + 1 < params.tokens;"),
        ("rows for columns", "token * params.out_features + o", "min(o * params.tokens + token, params.tokens * params.out_features - 1)"),
        ("the last column left out", "o >= params.out_features", "o + 1 >= params.out_features"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(lora / scale_rows, ROWS 0..2, show_rows, PRODUCTS, [
        ("overwriting", "h[i] *=", "h[i] ="),
        ("by column", "i / params.rank", "i % params.rank % params.tokens"),
        ("one factor for all", "i / params.rank", "0"),
        ("the last element left out", "i >= params.tokens * params.rank", "i + 1 >= params.tokens * params.rank"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(lora / weight_norm, ADAPTED 0..2, show_adapted, FUNCTIONS_BOUND, [
        ("the square", "sqrt(max(sum, 0.0))", "sum"),
        ("W's own norm", "var sum = squares[o];", "var sum = 0.0;"),
        ("the cross term once", "2.0 * aw", "aw"),
        ("the cross term without its scale", "params.scale * b[o * params.rank + r] *", "b[o * params.rank + r] *"),
        ("the square's scale once", "params.scale * inner", "inner"),
        ("A·Aᵀ's diagonal only", "inner += aa[r * params.rank + q] * b[o * params.rank + q]", "inner = aa[r * params.rank + r] * b[o * params.rank + r]"),
        ("the last rank left out", "r < params.rank;", "r + 1 < params.rank;"),
        ("A·Wᵀ transposed", "r * params.out_features + o", "o * params.rank + r"),
        ("accumulation", "norm[o] = sqrt", "norm[o] += sqrt"),
    ]),
    spec!(lora / dora, DORA 0..3, show_dora, FUNCTIONS_BOUND, [
        ("the bias scaled, too", "var p = output[i] - offset;", "var p = output[i];"),
        ("the bias always", "select(0.0, bias[o * params.has_bias], params.has_bias == 1)", "bias[o]"),
        ("p from u never", "params.dropped == 1", "false"),
        ("p from u always", "params.dropped == 1", "true"),
        ("the adapter without its scale", "p + params.scale * sum[j]", "p + sum[j]"),
        ("the last rank left out", "r < params.rank;", "r + 1 < params.rank;"),
        ("p not taken away", " * changed - p", " * changed"),
        ("p overwriting", "output[i] += factor", "output[i] = factor"),
        ("divided by 0", "norm[o] == 0.0", "false"),
        ("not divided", "magnitude[o] / norm[o]", "magnitude[o]"),
        ("the wrong way round", "magnitude[o] / norm[o]", "norm[o] / magnitude[o]"),
        ("u without the adapter", "u[i] = changed", "u[i] = p"),
        ("u scaled", "u[i] = changed", "u[i] = magnitude[o] / norm[o] * changed"),
        ("the last element left out", "min(4, params.tokens - first)", "min(4, params.tokens - first - 1)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(lora / dora_tiled, DORA 0..3, show_dora, FUNCTIONS_BOUND, [
        ("the bias scaled, too", "base[k] = old[k] - offset;", "base[k] = old[k];"),
        ("the bias always", "params.has_bias == 1", "true"),
        ("p from u never", "params.dropped == 1", "false"),
        ("p from u always", "params.dropped == 1", "true"),
        ("the adapter without its scale", "params.scale * sum[i + k]", "sum[i + k]"),
        ("one token's products", "params.scale * sum[i + k]", "params.scale * sum[i]"),
        ("the last rank left out", "r < vec4u(ranks)", "r + 1 < vec4u(ranks)"),
        ("the ranks stopping at the tile", "first_rank += RANKS", "first_rank += params.rank"),
        ("p not taken away", "(factor * changed - base[k])", "factor * changed"),
        ("p overwriting", "old[k] + (factor", "(factor"),
        ("divided by 0", "select(wanted / length, vec4f(), length == vec4f())", "wanted / length"),
        ("not divided", "wanted / length", "wanted"),
        ("the wrong way round", "wanted / length", "length / wanted"),
        ("u without the adapter", "= changed[j];", "= base[k][j];"),
        ("only the first column tile", "tile % column_tiles * 4 * COLUMNS", "0u"),
        ("only the first token tile", "tile / column_tiles * DOWN * TOKENS", "0u"),
        ("two columns swapped", "vec2f(b_tile[at], b_tile[at + COLUMNS])", "vec2f(b_tile[at + COLUMNS], b_tile[at])"),
    ]),
    spec!(lora / dora_grad, COLUMNS 0..2, show_columns, FUNCTIONS_BOUND, [
        ("overwriting", "params.accumulate == 1", "false"),
        ("du accumulating", "du[at[j]] =", "du[at[j]] +="),
        ("not divided", "total / norm[o]", "total"),
        ("divided by the magnitude", "total / norm[o]", "total / magnitude[o]"),
        ("the factor dropped", "factor * d;", "d;"),
        ("divided by 0", "norm[o] == 0.0", "false"),
        ("the factor upside down", "magnitude[o] / norm[o]", "norm[o] / magnitude[o]"),
        ("the last token left out", "params.part, params.tokens);", "params.part, params.tokens - 1);"),
        ("the last token many times", "select(vec4f(), product, tokens < vec4u(end))", "product"),
        ("all parts the first", "let first = i / params.out_features * params.part", "let first = i / params.out_features * 0"),
        ("parts one over another", "d_magnitude[i] = select", "d_magnitude[o] = select"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(lora / merge, MERGED 0..4, show_merged, FUNCTIONS_BOUND, [
        ("the scale dropped", "weight[at] + params.scale * sum", "weight[at] + sum"),
        ("the scale dropped on the way back", "factor - params.scale * sum", "factor - sum"),
        ("the way back never", "params.back == 1", "false"),
        ("the way back always", "params.back == 1", "true"),
        ("DoRA never", "params.has_magnitude == 1", "false"),
        ("DoRA always", "params.has_magnitude == 1", "true"),
        ("the first row's factor", "o * params.has_magnitude", "0 * params.has_magnitude"),
        ("the weight overwritten", "factor * (weight[at] + ", "factor * ("),
        ("only the product scaled", "factor * (weight[at] + params.scale * sum)", "weight[at] + factor * params.scale * sum"),
        ("times the factor on the way back", "weight[at] / factor", "weight[at] * factor"),
        ("the last rank left out", "r < params.rank;", "r + 1 < params.rank;"),
        ("divided by 0", " && norm[row] != 0.0", ""),
        ("the last element left out", "at >= params.out_features * params.in_features", "at + 1 >= params.out_features * params.in_features"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(lora / merge_f16, MERGED_F16 0..4, show_merged, EXACT, [
        ("the scale dropped", "old + params.scale * sum", "old + sum"),
        ("the scale dropped on the way back", "factor - params.scale * sum", "factor - sum"),
        ("the way back never", "params.back == 1", "false"),
        ("the way back always", "params.back == 1", "true"),
        ("DoRA never", "params.has_magnitude == 1", "false"),
        ("DoRA always", "params.has_magnitude == 1", "true"),
        ("the first row's factor", "o * params.has_magnitude", "0 * params.has_magnitude"),
        ("the weight overwritten", "factor * (old + ", "factor * ("),
        ("times the factor on the way back", "old / factor", "old * factor"),
        ("the last rank left out", "r < params.rank;", "r + 1 < params.rank;"),
        ("the last column left out", "i >= params.in_features", "i + 1 >= params.in_features"),
        ("divided by 0", " && norm[row] != 0.0", ""),
        ("the halves swapped", "f16_bits(merged(o, i, old.x)) |", "f16_bits(merged(o, i, old.y)) |"),
        ("cut off", "+ (1u << (places - 1)) - 1 + ((long >> places) & 1)", ""),
        ("half upwards", "- 1 + ((long >> places) & 1)", ""),
        ("half downwards", "- 1 + ((long >> places) & 1)", "- 1"),
        ("none below the normal ones", "min(max(126, exponent + 13) - exponent, 25)", "select(25u, 13u, normal)"),
        ("beyond infinity", "min(short, 0x7c00)", "short"),
        ("without signs", "((bits >> 16) & 0x8000) |", ""),
        ("rows not padded", "(params.in_features + 7) / 8 * 4", "(params.in_features + 1) / 2"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(lora / dropout, DROPPED 0..2, show_dropped, PRODUCTS, [
        ("dropped and kept swapped", "random[k] >= params.threshold", "random[k] < params.threshold"),
        ("the scale dropped", "x[at] * params.scale", "x[at]"),
        ("the scale twice", "x[at] * params.scale", "x[at] * params.scale * params.scale"),
        ("never accumulating", "params.accumulate == 1", "false"),
        ("always accumulating", "params.accumulate == 1", "true"),
        ("half of the seed only", "params.seed_low, params.seed_high,", "params.seed_low, 0,"),
        ("the step left out", "state.step, window.micro_batches", "0, window.micro_batches"),
        ("the micro-batch left out", "state.step, window.micro_batches", "state.step, 0"),
        ("the layer left out", "params.layer, 0))", "0, 0))"),
        ("every row alike", "vec4u(row, block", "vec4u(0, block"),
        ("every four columns alike", "vec4u(row, block", "vec4u(row, 0"),
        ("a block dropped or kept as one", "random[k]", "random[0]"),
        ("the last column left out", "column < params.features", "column + 1 < params.features"),
        ("the last row left out", "i < params.rows * blocks;", "i < (params.rows - 1) * blocks;"),
        ("one round", "i += groups.x * WORKGROUP", "i += params.rows * blocks"),
    ]),
    spec!(lora / dropout_vec4, DROPPED_FOURS 0..2, show_dropped, PRODUCTS, [
        ("dropped and kept swapped", "random >= vec4u(params.threshold)", "random < vec4u(params.threshold)"),
        ("the scale dropped", "x[i] * params.scale", "x[i]"),
        ("the scale twice", "x[i] * params.scale", "x[i] * params.scale * params.scale"),
        ("never accumulating", "params.accumulate == 1", "false"),
        ("always accumulating", "params.accumulate == 1", "true"),
        ("half of the seed only", "params.seed_low, params.seed_high,", "params.seed_low, 0,"),
        ("the step left out", "state.step, window.micro_batches", "0, window.micro_batches"),
        ("the micro-batch left out", "state.step, window.micro_batches", "state.step, 0"),
        ("the layer left out", "params.layer, 0))", "0, 0))"),
        ("every row alike", "vec4u(i / blocks, i % blocks", "vec4u(0, i % blocks"),
        ("every four columns alike", "vec4u(i / blocks, i % blocks", "vec4u(i / blocks, 0"),
        ("a block dropped or kept as one", "random >= vec4u", "random.xxxx >= vec4u"),
        ("the last row left out", "i < params.rows * blocks;", "i < (params.rows - 1) * blocks;"),
        ("one round", "i += groups.x * WORKGROUP", "i += params.rows * blocks"),
    ]),
    spec!(lora / find_non_finite, CHECKED 0..2, show_checked, EXACT, [
        ("an element of the output left out", "i < params.output_len", "i + 1 < params.output_len"),
        ("an element of dh left out", "i < params.dh_len", "i + 1 < params.dh_len"),
        ("the output stopping at the tile", "i += stride) {\n        bad_output", "i += params.output_len) {\n        bad_output"),
        ("infinity finite", "!= 0x7f800000u", "!= 0x7fc00000u"),
        ("all of them bad", "if bad_output {", "if !bad_output {"),
        ("a later gradient overwriting", "bad_gradient && window.bad_gradient == 0", "bad_gradient"),
        ("the wrong layer", "window.bad_output = params.layer + 1", "window.bad_output = params.layer"),
        ("the gradient's layer wrong", "window.bad_gradient = params.layer + 1", "window.bad_gradient = params.layer"),
        ("the two swapped", "window.bad_output = params.layer", "window.bad_gradient = params.layer"),
    ]),
    spec!(optim / end_micro_batch, COUNTED 0..2, show_len, EXACT, [
        ("standing still", "window.micro_batches += params.count", "window.micro_batches += 0"),
        ("twice", "window.micro_batches += params.count", "window.micro_batches += 2 * params.count"),
        ("overwriting", "window.micro_batches += params.count", "window.micro_batches = params.count"),
    ]),
    spec!(optim / begin_step, STEPS 0..5, show_step, FUNCTIONS_BOUND, [
        ("the counter standing still", "select(step + 1, step, skip)", "step"),
        ("the table read past its end", "min(step, params.bias_rows - 1)", "0u"),
        ("the first learning rate always", "min(step, params.lr_rows - 1)", "0u"),
        ("the corrections swapped", "bias[2 * row + 1]", "bias[2 * row]"),
        ("lr one step late", "lr[min(step,", "lr[min(step - min(step, 1),"),
        ("a sum too many", "i < params.partials;", "i <= params.partials;"),
        ("the last sum dropped", "i < params.partials;", "i + 1 < params.partials;"),
        ("the sums stopping at the tile", "i += WORKGROUP", "i += params.partials"),
        ("a lane left out", "i < WORKGROUP;", "i + 1 < WORKGROUP;"),
        ("the norm of the sums", "sqrt(sum) * inv_count", "sqrt(sum)"),
        ("the norm not a root", "sqrt(sum)", "sum"),
        ("the loss not a mean", "totals[0] * inv_count", "totals[0]"),
        ("never clipping", "min(1.0, params.max_norm / (norm + 1e-6))", "1.0"),
        ("scaling up to the norm", "min(1.0, params.max_norm / (norm + 1e-6))", "params.max_norm / (norm + 1e-6)"),
        ("always clipping", "params.max_norm > 0.0", "true"),
        ("the gradients not means", "inv_count * clip", "clip"),
        ("always skipping", "state.skip = u32(skip)", "state.skip = 1"),
        ("counting every step as skipped", "state.skipped += u32(!finite)", "state.skipped += 1"),
        ("the log never wrapping", "state.attempts % params.log_rows", "min(state.attempts, params.log_rows - 1)"),
        ("the log by steps", "state.attempts % params.log_rows", "step % params.log_rows"),
        ("attempts standing still", "state.attempts += 1;", ""),
        ("every step an accident", "if !finite {", "if true {"),
    ]),
    spec!(optim / grad_norm, SQUARED 0..2, show_squares, FUNCTIONS_BOUND, [
        ("the last term dropped", "i < params.len;", "i + 1 < params.len;"),
        ("the sum stopping at the tile", "i += groups.x * WORKGROUP", "i += params.len"),
        ("a lane left out", "i < WORKGROUP;", "i + 1 < WORKGROUP;"),
        ("not squared", "grad[i] * grad[i]", "abs(grad[i])"),
        ("the first sum only", "partial_sums[group.x] = sum", "partial_sums[group.x] = select(0.0, sum, group.x == 0)"),
    ]),
    spec!(optim / sgd, ELEMENTS 0..2, show_len, PRODUCTS, [
        ("the decay dropped", " + params.weight_decay * p", ""),
        ("lr twice", "lr * (g", "lr * lr * (g"),
        ("lr never", "lr * (g", "(g"),
        ("the gradient overwriting", "p - lr", "-lr"),
        ("the gradient's factor dropped", "state.grad_scale * grad[i]", "grad[i]"),
        ("the ratio dropped", "select(1.0, params.lr_ratio, i >= params.ratio_from)", "1.0"),
        ("the ratio always", "i >= params.ratio_from", "true"),
        ("the ratio one element late", "i >= params.ratio_from", "i > params.ratio_from"),
        ("an index swapped", "grad[i]", "grad[params.len - 1 - i]"),
        ("the last element left out", "i >= params.len", "i + 1 >= params.len"),
        ("stopping at the tile", "i >= params.len", "i >= min(params.len, WORKGROUP)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(optim / sgd_momentum, ELEMENTS 0..2, show_len, PRODUCTS, [
        ("the decay dropped", " + params.weight_decay * p", ""),
        ("momentum never", "params.momentum * velocity[i]", "velocity[i]"),
        ("the velocity forgotten", "velocity[i] = v", "velocity[i] = 0.0"),
        ("the velocity overwritten", "params.momentum * velocity[i] + ", ""),
        ("lr twice", "lr * v;", "lr * lr * v;"),
        ("the gradient's factor dropped", "state.grad_scale * grad[i]", "grad[i]"),
        ("the ratio dropped", "select(1.0, params.lr_ratio, i >= params.ratio_from)", "1.0"),
        ("the ratio always", "i >= params.ratio_from", "true"),
        ("the ratio one element late", "i >= params.ratio_from", "i > params.ratio_from"),
        ("an index swapped", "grad[i]", "grad[params.len - 1 - i]"),
        ("the last element left out", "i >= params.len", "i + 1 >= params.len"),
        ("stopping at the tile", "i >= params.len", "i >= min(params.len, WORKGROUP)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
];
