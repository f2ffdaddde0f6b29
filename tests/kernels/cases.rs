//! What each kernel is given, what must come of it, and the wrong shaders that this must catch.

use std::ops::Range;

use lora_webgpu::kernels::{Kernel, base, lora, loss, optim};
use lora_webgpu::{AdamW, Recording, Result, Tensor};

use crate::common::tolerance::{Expected, exact, products, roundings};
use crate::common::{Rng, f64s};
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
}

impl Given {
    fn f64(&self) -> Vec<f64> {
        f64s(&self.data)
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

fn case<const N: usize>(
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
fn given(rng: &mut Rng, shape: &[usize]) -> Given {
    Given { shape: shape.into(), data: rng.numbers(shape.iter().product()) }
}

/// What an overwriting kernel finds.
fn unset(shape: &[usize]) -> Given {
    Given { shape: shape.into(), data: vec![f32::NAN; shape.iter().product()] }
}

/// Neither 1 nor its own square.
const SCALE: f32 = 1.75;

// Shapes: one of everything, a prime of everything, ranks 1, 3, 4, 8, 17 and 64, and the neighbours of each tile: 4 and 8
// tokens or slices, 8 ranks, 16 deep, 32 or 64 columns, 256 lanes.

const fn d(tokens: usize, in_features: usize, out_features: usize, rank: usize) -> Dims {
    Dims { tokens, in_features, out_features, rank }
}

macro_rules! tokens {
    ($($more:expr),*) => {
        &[
            d(2, 3, 5, 3), d(7, 31, 33, 17), d(2, 1, 1, 1), d(3, 65, 1, 8), d(130, 17, 13, 4), d(9, 257, 129, 1), d(5, 64, 64, 64),
            d(8, 32, 63, 9), d(17, 63, 65, 7), d(33, 128, 127, 2) $(, $more)*
        ]
    };
}
const MANY_TOKENS: &[Dims] = tokens!();
const ANY_TOKENS: &[Dims] = tokens!(d(1, 1, 1, 1), d(1, 257, 130, 8), d(1, 64, 65, 17));
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
/// `rank` says whether there is a bias.
const BASE: &[Dims] = &[
    d(2, 3, 5, 1),
    d(7, 31, 33, 0),
    d(2, 1, 1, 0),
    d(3, 15, 63, 1),
    d(65, 17, 65, 0),
    d(2, 130, 1, 1),
    d(130, 31, 13, 1),
    d(64, 33, 129, 0),
    d(9, 128, 16, 1),
];
const BASE_ONE_TOKEN: &[Dims] = &[
    d(1, 3, 5, 1),
    d(1, 31, 33, 0),
    d(1, 1, 1, 0),
    d(1, 63, 7, 1),
    d(1, 64, 8, 0),
    d(1, 65, 9, 1),
    d(1, 257, 130, 0),
    d(1, 1, 67, 1),
    d(1, 129, 1, 0),
];
/// The last has more rows than workgroups fit in one dimension.
const BASE_ROWS: &[Dims] = &[
    d(1, 3, 5, 1),
    d(1, 31, 33, 0),
    d(1, 1, 1, 0),
    d(1, 63, 7, 1),
    d(1, 64, 8, 0),
    d(1, 65, 9, 1),
    d(1, 257, 130, 0),
    d(1, 1, 65_537, 1),
];
/// in_features divisible by 4; for the transposed kernel out_features too.
const BASE_VEC4: &[Dims] = &[
    d(2, 12, 5, 1),
    d(7, 32, 33, 0),
    d(2, 4, 1, 0),
    d(9, 12, 63, 1),
    d(65, 64, 65, 0),
    d(130, 4, 13, 1),
    d(8, 132, 4, 0),
    d(1, 8, 3, 1),
];
const BASE_T_VEC4: &[Dims] = &[
    d(2, 12, 8, 0),
    d(7, 32, 36, 0),
    d(2, 4, 4, 0),
    d(9, 12, 64, 0),
    d(65, 64, 68, 0),
    d(130, 8, 12, 0),
    d(8, 132, 4, 0),
    d(1, 4, 20, 0),
];
const fn len(len: usize) -> Dims {
    d(len, 1, 1, 1)
}
/// The last needs workgroups in two dimensions: 65,535 · 64 + 1.
const ELEMENTS: &[Dims] = &[len(3), len(63), len(1), len(64), len(65), len(131), len(4_194_241)];
/// The last two have more than one element for each of the 1024 · 64 invocations.
const REDUCED: &[Dims] = &[len(3), len(63), len(1), len(64), len(65), len(217), len(65_537), len(131_101)];
/// Steps done before: within the tables and past their ends.
const STEPS: &[Dims] = &[len(1), len(2), len(3), len(5), len(9)];

fn show_product(d: &Dims) -> String {
    format!("{}×{}×{}×{}", d.tokens, d.in_features, d.out_features, d.rank)
}

/// Where `rank` says nothing.
fn show_transposed(d: &Dims) -> String {
    format!("{}×{}×{}", d.tokens, d.in_features, d.out_features)
}

fn show_base(d: &Dims) -> String {
    format!("{}{}", show_transposed(d), if d.rank == 1 { " with bias" } else { "" })
}

fn show_len(d: &Dims) -> String {
    d.tokens.to_string()
}

const PRODUCTS: &str = "products";
const EXACT: &str = "exact";

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

fn fused_b_add(d: Dims, rng: &mut Rng) -> Case {
    let [b, h] = [given(rng, &[d.out_features, d.rank]), given(rng, &[d.tokens, d.rank])];
    let output = given(rng, &[d.tokens, d.out_features]);
    let sums = reference::lora::fused_b_add(d, &b.f64(), &h.f64(), &output.f64(), SCALE.into());
    case(
        [b, h, output],
        |rec, [b, h, output]| lora::fused_b_add::record(rec, b, h, output, SCALE),
        [(2, products(&sums))],
    )
}

fn add_scaled(d: Dims, rng: &mut Rng) -> Case {
    let [y, output] = [given(rng, &[d.tokens, 1]), given(rng, &[d.tokens, 1])];
    let sums = reference::lora::add_scaled(&y.f64(), &output.f64(), SCALE.into());
    case([y, output], |rec, [y, output]| lora::add_scaled::record(rec, y, output, SCALE), [(1, products(&sums))])
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

fn grad_dh(d: Dims, rng: &mut Rng) -> Case {
    let [b, d_output] = [given(rng, &[d.out_features, d.rank]), given(rng, &[d.tokens, d.out_features])];
    let dh = reference::lora::grad_dh(d, &b.f64(), &d_output.f64());
    case(
        [b, d_output, unset(&[d.tokens, d.rank])],
        |rec, [b, d_output, dh]| lora::grad_dh::record(rec, b, d_output, dh),
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

fn input_grad(d: Dims, rng: &mut Rng) -> Case {
    let [a, dh] = [given(rng, &[d.rank, d.in_features]), given(rng, &[d.tokens, d.rank])];
    let d_input = given(rng, &[d.tokens, d.in_features]);
    let sums = reference::lora::input_grad(d, &a.f64(), &dh.f64(), &d_input.f64(), SCALE.into());
    case(
        [a, dh, d_input],
        |rec, [a, dh, d_input]| lora::input_grad::record(rec, a, dh, d_input, SCALE),
        [(2, products(&sums))],
    )
}

// ── base ──

type LinearReference = fn(Dims, &[f64], Option<&[f64]>, &[f64]) -> Vec<Sum>;
type Linear = fn(&Recording, &Tensor, Option<&Tensor>, &Tensor, &Tensor) -> Result<()>;

fn linear(d: Dims, rng: &mut Rng, record: Linear, expected: LinearReference) -> Case {
    let [weight, x] = [given(rng, &[d.out_features, d.in_features]), given(rng, &[d.tokens, d.in_features])];
    let bias = given(rng, &[d.out_features]);
    let has_bias = d.rank == 1;
    let sums = expected(d, &weight.f64(), has_bias.then_some(&bias.f64()), &x.f64());
    case(
        [weight, bias, x, unset(&[d.tokens, d.out_features])],
        move |rec, [weight, bias, x, output]| record(rec, weight, has_bias.then_some(bias), x, output),
        [(3, products(&sums))],
    )
}

fn linear_f32(d: Dims, rng: &mut Rng) -> Case {
    linear(d, rng, base::linear_f32::record, reference::base::linear_f32)
}

fn linear_f32_gemv(d: Dims, rng: &mut Rng) -> Case {
    linear(d, rng, base::linear_f32_gemv::record, reference::base::linear_f32_gemv)
}

fn linear_f32_vec4(d: Dims, rng: &mut Rng) -> Case {
    linear(d, rng, base::linear_f32_vec4::record, reference::base::linear_f32_vec4)
}

type Transposed = fn(&Recording, &Tensor, &Tensor, &Tensor) -> Result<()>;

fn transposed(d: Dims, rng: &mut Rng, record: Transposed, expected: fn(Dims, &[f64], &[f64]) -> Vec<Sum>) -> Case {
    let [weight, d_output] = [given(rng, &[d.out_features, d.in_features]), given(rng, &[d.tokens, d.out_features])];
    let sums = expected(d, &weight.f64(), &d_output.f64());
    case(
        [weight, d_output, unset(&[d.tokens, d.in_features])],
        move |rec, [weight, d_output, d_input]| record(rec, weight, d_output, d_input),
        [(2, products(&sums))],
    )
}

fn linear_f32_t(d: Dims, rng: &mut Rng) -> Case {
    transposed(d, rng, base::linear_f32_t::record, reference::base::linear_f32_t)
}

fn linear_f32_t_gemv(d: Dims, rng: &mut Rng) -> Case {
    transposed(d, rng, base::linear_f32_t_gemv::record, reference::base::linear_f32_t_gemv)
}

fn linear_f32_t_vec4(d: Dims, rng: &mut Rng) -> Case {
    transposed(d, rng, base::linear_f32_t_vec4::record, reference::base::linear_f32_t_vec4)
}

// ── loss ──

fn mse(d: Dims, rng: &mut Rng) -> Case {
    let [output, targets] = [given(rng, &[d.tokens, 1]), given(rng, &[d.tokens, 1])];
    let (loss, gradient) = reference::loss::mse(&output.f64(), &targets.f64());
    case(
        [output, targets, unset(&[d.tokens, 1]), unset(&[1])],
        |rec, [output, targets, d_output, loss]| loss::mse::record(rec, output, targets, d_output, loss),
        [(2, products(&gradient)), (3, products(&[loss]))],
    )
}

fn sum(d: Dims, rng: &mut Rng) -> Case {
    // What lies behind the values must not be added.
    let all = given(rng, &[d.tokens + 3]);
    let total = reference::loss::sum(&all.f64()[..d.tokens]);
    case(
        [all, unset(&[1])],
        move |rec, [values, total]| loss::sum::record(rec, values, d.tokens, total),
        [(1, products(&[total]))],
    )
}

// ── optim ──

const LR: f32 = 0.05;
const DECAY: f32 = 0.3;
const MOMENTUM: f32 = 0.8;
const ADAMW: AdamW = AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-3, weight_decay: DECAY as f64 };

/// `state` as the shaders see it: the step's number, its learning rate and bias corrections.
fn state(step: u32, [lr, inv_bias1, inv_sqrt_bias2]: [f64; 3]) -> Given {
    Given { shape: vec![4], data: vec![f32::from_bits(step), lr as f32, inv_bias1 as f32, inv_sqrt_bias2 as f32] }
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
    let (step, looked_up) = reference::optim::begin_step(2, &[LR.into()], ADAMW.beta1, ADAMW.beta2);
    let updated: Vec<[Sum; 3]> = (0..d.tokens)
        .map(|i| {
            let [p, m, v, g] =
                [param.data[i], moments.data[i], moments.data[d.tokens + i], grad.data[i]].map(f64::from);
            reference::optim::adamw(p, [m, v], g, LR.into(), step as i32, options)
        })
        .collect();
    let part = |i: usize| updated.iter().map(move |u| u[i]);
    let both: Vec<Sum> = part(1).chain(part(2)).collect();
    // p: 3 roundings to lr·decay, its difference from 1 and the product: 6 of p. The step: m 3, lr and the correction 4;
    // below it v 4, so √v 2 and the root itself 9, its correction and the product 2, eps 1, their sum 1; the quotient 5:
    // 27, and the last subtraction. m has 3 roundings and v 4.
    case(
        [grad, state(step, looked_up), param, moments],
        |rec, [grad, state, param, moments]| optim::adamw::record(rec, grad, state, param, moments, &ADAMW),
        [(2, roundings(28.0, &part(0).collect::<Vec<_>>())), (3, roundings(4.0, &both))],
    )
}

fn sgd(d: Dims, rng: &mut Rng) -> Case {
    let [grad, param] = [given(rng, &[d.tokens]), given(rng, &[d.tokens])];
    let updated: Vec<Sum> = (0..d.tokens)
        .map(|i| reference::optim::sgd(param.data[i].into(), grad.data[i].into(), LR.into(), DECAY.into()))
        .collect();
    case(
        [grad, state(1, [LR.into(), 1.0, 1.0]), param],
        |rec, [grad, state, param]| optim::sgd::record(rec, grad, state, param, DECAY),
        [(2, products(&updated))],
    )
}

fn sgd_momentum(d: Dims, rng: &mut Rng) -> Case {
    let [grad, param, velocity] = [given(rng, &[d.tokens]), given(rng, &[d.tokens]), given(rng, &[d.tokens])];
    let updated: Vec<[Sum; 2]> = (0..d.tokens)
        .map(|i| {
            let [p, v, g] = [param.data[i], velocity.data[i], grad.data[i]].map(f64::from);
            reference::optim::sgd_momentum(p, v, g, LR.into(), DECAY.into(), MOMENTUM.into())
        })
        .collect();
    let part = |i: usize| products(&updated.iter().map(|u| u[i]).collect::<Vec<_>>());
    case(
        [grad, state(1, [LR.into(), 1.0, 1.0]), param, velocity],
        |rec, [grad, state, param, velocity]| {
            optim::sgd_momentum::record(rec, grad, state, param, velocity, DECAY, MOMENTUM)
        },
        [(2, part(0)), (3, part(1))],
    )
}

/// Tables of three learning rates and five bias corrections; the last rows hold for later steps. `lr` is copied in every
/// bit, and so is the step's number, whose bits make a subnormal f32.
fn begin_step(d: Dims, rng: &mut Rng) -> Case {
    let done = d.tokens as u32 - 1;
    let lr = given(rng, &[3]);
    let corrections = |row: u32| reference::optim::begin_step(row, &[1.0], ADAMW.beta1, ADAMW.beta2).1;
    let bias = (0..5).flat_map(|row| corrections(row)[1..].to_vec()).map(|v| v as f32).collect();
    let (step, [lr_now, ..]) = reference::optim::begin_step(done, &lr.f64(), ADAMW.beta1, ADAMW.beta2);
    let [_, inv_bias1, inv_sqrt_bias2] = corrections(done.min(4)).map(|v| f64::from(v as f32));
    let expected = [f32::from_bits(step).into(), lr_now, inv_bias1, inv_sqrt_bias2];
    case(
        [lr, Given { shape: vec![5, 2], data: bias }, state(done, [f64::NAN; 3])],
        |rec, [lr, bias, state]| optim::begin_step::record(rec, lr, bias, state),
        [(2, exact(&expected))],
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

pub static SPECS: &[Spec] = &[
    spec!(base / linear_f32, BASE 0..2, show_base, PRODUCTS, [
        ("the last term dropped", "first_k + k < params.in_features", "first_k + k + 1 < params.in_features"),
        ("the sum stopping at the tile", "first_k += DEPTH", "first_k += params.in_features"),
        ("only the first column tile", "tile % column_tiles * TILE", "0u"),
        ("only the first token tile", "tile / column_tiles * TILE", "0u"),
        ("the bias dropped", "select(0.0, bias[out * params.has_bias], params.has_bias == 1)", "0.0"),
        ("the bias always", "select(0.0, bias[out * params.has_bias], params.has_bias == 1)", "bias[out]"),
        ("accumulation", "output[token * params.out_features + out] =", "output[token * params.out_features + out] +="),
        ("the output transposed", "output[token * params.out_features + out]", "output[out * params.tokens + token]"),
        ("W transposed", "min(first_out + row, params.out_features - 1) * params.in_features + at", "at * params.out_features + min(first_out + row, params.out_features - 1)"),
    ]),
    spec!(base / linear_f32_gemv, BASE_ROWS 0..5, show_base, PRODUCTS, [
        ("the last term dropped", "k < params.in_features;", "k + 1 < params.in_features;"),
        ("the sum stopping at the tile", "k += LANES", "k += params.in_features"),
        ("one lane's sum only", "i < LANES; i++", "i < 1; i++"),
        ("only the first row", "group.x + group.y * groups.x", "0u"),
        ("workgroups in one dimension", "group.x + group.y * groups.x", "group.x"),
        ("the bias dropped", "select(0.0, bias[out * params.has_bias], params.has_bias == 1)", "0.0"),
        ("accumulation", "output[out] =", "output[out] +="),
        ("W transposed", "weight[row + k]", "weight[k * params.out_features + out]"),
    ]),
    spec!(base / linear_f32_t, BASE 0..2, show_transposed, PRODUCTS, [
        ("the last term dropped", "params.out_features + at], k < params.out_features", "params.out_features + at], k + 1 < params.out_features"),
        ("the sum stopping at the tile", "first_k += DEPTH", "first_k += params.out_features"),
        ("only the first column tile", "tile % column_tiles * TILE", "0u"),
        ("only the first token tile", "tile / column_tiles * TILE", "0u"),
        ("accumulation", "d_input[token * params.in_features + input] =", "d_input[token * params.in_features + input] +="),
        ("d_input transposed", "d_input[token * params.in_features + input]", "d_input[input * params.tokens + token]"),
        ("W transposed", "weight[at * params.in_features + input]", "weight[input * params.out_features + at]"),
    ]),
    spec!(base / linear_f32_t_gemv, BASE_ONE_TOKEN 0..5, show_transposed, PRODUCTS, [
        ("the last term dropped", "k < params.out_features;", "k + 1 < params.out_features;"),
        ("the sum stopping at the tile", "k += SLICES", "k += params.out_features"),
        ("a slice left out", "slice < SLICES;", "slice + 1 < SLICES;"),
        ("only the first column tile", "(group.x + group.y * groups.x) * COLUMNS + local.x", "local.x"),
        ("accumulation", "d_input[column] =", "d_input[column] +="),
        ("W transposed", "weight[k * params.in_features + input]", "weight[input * params.out_features + k]"),
    ]),
    spec!(base / linear_f32_t_vec4, BASE_T_VEC4 0..2, show_transposed, PRODUCTS, [
        ("the last terms dropped", "k < depth;", "k + 1 < depth;"),
        ("one term dropped", " + d5.w * w3", ""),
        ("stopping at the workgroup", "id.x + id.y * groups.x * WORKGROUP", "id.x % WORKGROUP"),
        ("only the first token tile", "tile / columns * TOKENS", "0u"),
        ("a token repeated", "first_token + 3, last_token", "first_token + 2, last_token"),
        ("an index swapped", "d1.y * w1 + d1.z * w2", "d1.z * w1 + d1.y * w2"),
        ("accumulation", "] = sums[i]", "] += sums[i]"),
        ("d_input transposed", "d_input[(first_token + i) * columns + column]", "d_input[column * params.tokens + first_token + i]"),
    ]),
    spec!(base / linear_f32_vec4, BASE_VEC4 0..2, show_base, PRODUCTS, [
        ("the last terms dropped", "k < depth;", "k + 1 < depth;"),
        ("stopping at the workgroup", "id.x + id.y * groups.x * WORKGROUP", "id.x % WORKGROUP"),
        ("only the first token tile", "tile / output_tiles * TOKENS", "0u"),
        ("only the first output tile", "tile % output_tiles * OUTPUTS", "0u"),
        ("a token repeated", "first_token + 3, last_token", "first_token + 2, last_token"),
        ("an output repeated", "first_out + 3, last_out", "first_out + 2, last_out"),
        ("W transposed", "mat4x4f(weight[w0 + k], weight[w1 + k], weight[w2 + k], weight[w3 + k])", "transpose(mat4x4f(weight[w0 + k], weight[w1 + k], weight[w2 + k], weight[w3 + k]))"),
        ("the bias dropped", "sums[i][j] + offset", "sums[i][j]"),
        ("accumulation", "] = sums[i][j]", "] += sums[i][j]"),
        ("the output transposed", "output[(first_token + i) * params.out_features + out]", "output[out * params.tokens + first_token + i]"),
    ]),
    spec!(lora / add_scaled, ELEMENTS 0..2, show_len, PRODUCTS, [
        ("the scale twice", "params.scale * y[i]", "params.scale * params.scale * y[i]"),
        ("the scale never", "params.scale * y[i]", "y[i]"),
        ("overwriting", "output[i] += ", "output[i] = "),
        ("the last element left out", "i >= params.len", "i + 1 >= params.len"),
        ("an index swapped", "* y[i]", "* y[params.len - 1 - i]"),
        ("stopping at the tile", "i >= params.len", "i >= min(params.len, WORKGROUP)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(lora / fused_b_add, ANY_TOKENS 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "r < params.rank;", "r + 1 < params.rank;"),
        ("the scale twice", "params.scale * sum[i]", "params.scale * params.scale * sum[i]"),
        ("the scale never", "params.scale * sum[i]", "sum[i]"),
        ("overwriting", "+= params.scale", "= params.scale"),
        ("only the first column tile", "tile % column_tiles * COLUMNS", "0u"),
        ("only the first token tile", "tile / column_tiles * TOKENS", "0u"),
        ("B transposed", "b[column * params.rank + r]", "b[r * params.out_features + column]"),
        ("h transposed", "min(first_token + i, params.tokens - 1) * params.rank + r", "r * params.tokens + min(first_token + i, params.tokens - 1)"),
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
    ]),
    spec!(lora / grad_dh, MANY_TOKENS 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "k < params.out_features;", "k + 1 < params.out_features;"),
        ("the sum stopping at the tile", "k += LANES", "k += params.out_features"),
        ("a lane left out", "lane < LANES;", "lane + 1 < LANES;"),
        ("accumulation", "dh[token * params.rank + rank] =", "dh[token * params.rank + rank] +="),
        ("only the first token tile", "tile / rank_tiles * TOKENS", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("dh transposed", "dh[token * params.rank + rank]", "dh[rank * params.tokens + token]"),
        ("B transposed", "b[k * params.rank + min(first_rank + j, params.rank - 1)]", "b[min(first_rank + j, params.rank - 1) * params.out_features + k]"),
    ]),
    spec!(lora / grad_dh_gemv, ONE_TOKEN 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "k < params.out_features;", "k + 1 < params.out_features;"),
        ("the sum stopping at the tile", "k += LANES", "k += params.out_features"),
        ("one lane of each group only", "partial[lane * GROUP + i]", "partial[lane * GROUP]"),
        ("accumulation", "dh[rank] =", "dh[rank] +="),
        ("only the first rank", "group.x + group.y * groups.x", "0u"),
        ("B transposed", "b[k * params.rank + column]", "b[column * params.out_features + k]"),
    ]),
    spec!(lora / input_grad, ANY_TOKENS 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "r < params.rank;", "r + 1 < params.rank;"),
        ("the scale twice", "params.scale * sum[i]", "params.scale * params.scale * sum[i]"),
        ("the scale never", "params.scale * sum[i]", "sum[i]"),
        ("overwriting", "+= params.scale", "= params.scale"),
        ("only the first column tile", "tile % column_tiles * COLUMNS", "0u"),
        ("only the first token tile", "tile / column_tiles * TOKENS", "0u"),
        ("A transposed", "a[r * params.in_features + column]", "a[column * params.rank + r]"),
        ("dh transposed", "min(first_token + i, params.tokens - 1) * params.rank + r", "r * params.tokens + min(first_token + i, params.tokens - 1)"),
    ]),
    spec!(lora / project_a, MANY_TOKENS 0..5, show_product, PRODUCTS, [
        ("the last term dropped", "k < params.in_features;", "k + 1 < params.in_features;"),
        ("the sum stopping at the tile", "k += LANES", "k += params.in_features"),
        ("a lane left out", "lane < LANES;", "lane + 1 < LANES;"),
        ("accumulation", "h[token * params.rank + rank] =", "h[token * params.rank + rank] +="),
        ("only the first token tile", "tile / rank_tiles * TOKENS", "0u"),
        ("only the first rank tile", "tile % rank_tiles * RANKS", "0u"),
        ("h transposed", "h[token * params.rank + rank]", "h[rank * params.tokens + token]"),
        ("A transposed", "min(first_rank + j, params.rank - 1) * params.in_features + k", "k * params.rank + min(first_rank + j, params.rank - 1)"),
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
        ("the last term dropped", "r < params.rank;", "r + 1 < params.rank;"),
        ("accumulation", "column] = sum[i]", "column] += sum[i]"),
        ("only the first column tile", "tile % column_tiles * COLUMNS", "0u"),
        ("only the first token tile", "tile / column_tiles * TOKENS", "0u"),
        ("B transposed", "b[column * params.rank + r]", "b[r * params.out_features + column]"),
        ("y transposed", "y[(first_token + i) * params.out_features + column]", "y[column * params.tokens + first_token + i]"),
    ]),
    spec!(lora / save_activation, ELEMENTS 0..2, show_len, EXACT, [
        ("accumulation", "dst[i] = ", "dst[i] += "),
        ("the last element left out", "i >= params.len", "i + 1 >= params.len"),
        ("an index swapped", "= src[i]", "= src[params.len - 1 - i]"),
        ("stopping at the tile", "i >= params.len", "i >= min(params.len, WORKGROUP)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(loss / mse, REDUCED 0..2, show_len, PRODUCTS, [
        ("the last term dropped", "i < params.len;", "i + 1 < params.len;"),
        ("the sum stopping at the tile", "i += groups.x * WORKGROUP", "i += params.len"),
        ("a lane left out", "i < WORKGROUP;", "i + 1 < WORKGROUP;"),
        ("the loss not divided", "sum * params.inv_len", "sum"),
        ("the gradient divided twice", "2.0 * params.inv_len", "2.0 * params.inv_len * params.inv_len"),
        ("the gradient halved", "2.0 * params.inv_len", "params.inv_len"),
        ("the difference negated", "output[i] - targets[i]", "targets[i] - output[i]"),
        ("accumulation", "d_output[i] = ", "d_output[i] += "),
    ]),
    spec!(loss / sum, REDUCED 0..2, show_len, PRODUCTS, [
        ("the last term dropped", "i < params.len;", "i + 1 < params.len;"),
        ("a term too many", "i < params.len;", "i <= params.len;"),
        ("the sum stopping at the tile", "i += WORKGROUP", "i += params.len"),
        ("a lane left out", "i < WORKGROUP;", "i + 1 < WORKGROUP;"),
        ("accumulation", "total[0] = ", "total[0] += "),
    ]),
    spec!(optim / adamw, ELEMENTS 0..2, show_len, "28 roundings", [
        ("the first bias correction dropped", "state.inv_bias1 * m", "m"),
        ("the second bias correction dropped", "sqrt(v) * state.inv_sqrt_bias2", "sqrt(v)"),
        ("eps inside the root", "sqrt(v) * state.inv_sqrt_bias2 + params.eps", "sqrt(v + params.eps) * state.inv_sqrt_bias2"),
        ("eps dropped", " + params.eps", ""),
        ("the decay dropped", "(1.0 - state.lr * params.weight_decay)", "1.0"),
        ("the decay twice", "state.lr * params.weight_decay", "2.0 * state.lr * params.weight_decay"),
        ("lr twice", "state.lr * state.inv_bias1", "state.lr * state.lr * state.inv_bias1"),
        ("g not squared", "* g * g", "* g"),
        ("the moments swapped", "params.beta2 * moments[params.len + i]", "params.beta2 * moments[i]"),
        ("m forgotten", "moments[i] = m", "moments[i] = 0.0"),
        ("v overwritten", "params.beta2 * moments[params.len + i] + ", ""),
        ("the last element left out", "i >= params.len", "i + 1 >= params.len"),
        ("stopping at the tile", "i >= params.len", "i >= min(params.len, WORKGROUP)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(optim / begin_step, STEPS 0..5, show_len, EXACT, [
        ("the counter standing still", "step + 1", "step"),
        ("the table read past its end", "min(step, params.bias_rows - 1)", "0u"),
        ("the first learning rate always", "min(step, params.lr_rows - 1)", "0u"),
        ("the corrections swapped", "bias[2 * row + 1]", "bias[2 * row]"),
        ("lr one step late", "lr[min(step,", "lr[min(step - min(step, 1),"),
    ]),
    spec!(optim / sgd, ELEMENTS 0..2, show_len, PRODUCTS, [
        ("the decay dropped", " + params.weight_decay * p", ""),
        ("lr twice", "state.lr * (", "state.lr * state.lr * ("),
        ("lr never", "state.lr * (", "("),
        ("the gradient overwriting", "p - state.lr", "-state.lr"),
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
        ("lr twice", "state.lr * v", "state.lr * state.lr * v"),
        ("an index swapped", "grad[i]", "grad[params.len - 1 - i]"),
        ("the last element left out", "i >= params.len", "i + 1 >= params.len"),
        ("stopping at the tile", "i >= params.len", "i >= min(params.len, WORKGROUP)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
];
