//! The kernels of a language model: rotary embedding, attention, gated products, the loss over a large vocabulary.

use lora_webgpu::kernels::nn::{Gate, Heads};
use lora_webgpu::kernels::{loss, nn};
use lora_webgpu::{Recording, Result, Sampling, Tensor};

use crate::cases::*;
use crate::common::Rng;
use crate::common::tolerance::{Expected, exact, products};
use crate::reference::nn::Attention;
use crate::reference::{self, Dims, Sum};

fn integers(shape: &[usize], values: Vec<i32>) -> Given {
    // As they are read back: by their bits.
    let data = values.iter().map(|v| f32::from_bits(*v as u32)).collect();
    Given { labels: Some(values), ..Given::new(shape, data) }
}

/// A number below `end`.
fn below(rng: &mut Rng, end: usize) -> i32 {
    ((rng.number().abs() * end as f32) as usize).min(end - 1) as i32
}

// ── shapes ──

/// Rows × half of head_dim × heads; `rank` 2 is transposed. The last needs workgroups in two dimensions.
const ROTATED: &[Dims] =
    &[d(3, 2, 3, 1), d(5, 3, 1, 2), d(1, 1, 1, 1), d(7, 8, 9, 2), d(65, 5, 2, 1), d(4_194_241, 1, 1, 2)];

/// Elements; `rank` is the function: 0 silu, 1 relu².
const GATED: &[Dims] = &[
    d(131, 1, 1, 0),
    d(131, 1, 1, 1),
    d(1, 1, 1, 0),
    d(63, 1, 1, 1),
    d(64, 1, 1, 0),
    d(65, 1, 1, 1),
    d(4_194_241, 1, 1, 0),
];

/// Tokens × head_dim; `out_features` is 10 times the query heads and the key heads, `rank` 10 times the sequences and what
/// is masked: 0 nothing, 1 the first tokens, 2 the last ones and a whole sequence, 3 nothing, but of several segments. The
/// last needs workgroups in two dimensions.
const ATTENDED: &[Dims] = &[
    d(5, 4, 42, 21),
    d(33, 6, 31, 10),
    d(7, 16, 63, 32),
    d(1, 2, 11, 10),
    d(70, 66, 21, 13),
    d(32, 8, 55, 20),
    d(64, 10, 93, 11),
    d(129, 16, 42, 20),
    d(2, 2, 11, 655_370),
];

/// The same for tiles of 32 and 64 tokens and of 64 elements.
const TILED: &[Dims] = &[
    d(70, 66, 21, 23),
    d(33, 6, 31, 10),
    d(7, 16, 63, 32),
    d(1, 2, 11, 10),
    d(5, 4, 42, 21),
    d(64, 64, 11, 11),
    d(65, 130, 31, 13),
    d(129, 34, 62, 22),
    // So many workgroups with a dozen barriers take Chromium's software adapter minutes.
    #[cfg(not(target_arch = "wasm32"))]
    d(2, 2, 11, 655_370),
];

/// Keys × head_dim; `out_features` as above, `rank` is the room left in the cache.
const STEPPED: &[Dims] =
    &[d(5, 4, 42, 3), d(129, 6, 31, 1), d(1, 2, 11, 0), d(128, 256, 21, 0), d(300, 16, 93, 212), d(8, 34, 55, 8)];

/// Rows × width behind `out_features` rows.
const CACHED: &[Dims] = &[d(3, 5, 7, 1), d(1, 64, 1, 1), d(1, 1, 0, 1), d(13, 5, 2, 1), d(4_194_241, 1, 3, 1)];

/// Logits, cursor, seed; `rank` is the setting.
const SAMPLED: &[Dims] = &[
    d(131, 3, 1, 0),
    d(131, 3, 1, 1),
    d(131, 4, 2, 2),
    d(131, 5, 3, 3),
    d(2053, 60, 4, 4),
    d(131, 3, 1, 5),
    d(2053, 7, 5, 1),
    d(2053, 8, 6, 2),
    d(2053, 9, 7, 3),
    d(257, 10, 8, 4),
    d(255, 11, 9, 3),
    d(64, 12, 10, 1),
    d(7, 13, 11, 4),
    d(2053, 14, 12, 0),
    d(2053, 15, 13, 5),
    d(65, 16, 14, 6),
    d(131, 17, 15, 7),
];

/// Rows × features of `out_features`; `rank` 2 is a table of columns. The last needs workgroups in two dimensions.
const GATHERED: &[Dims] =
    &[d(3, 5, 7, 2), d(13, 5, 200, 1), d(1, 1, 1, 1), d(1, 64, 2, 2), d(9, 3, 4, 1), d(4_194_241, 1, 3, 2)];

/// The same, with few rows: each looks at all the others.
const SCATTERED: &[Dims] = &[
    d(3, 5, 7, 2),
    d(13, 5, 200, 1),
    d(1, 1, 1, 1),
    d(1, 64, 2, 2),
    d(65, 3, 1, 2),
    d(40, 4, 9, 1),
    d(257, 17, 130, 2),
];

/// Rows × classes in chunks of `out_features`.
const CHUNKED: &[Dims] = &[
    d(5, 7, 3, 1),
    d(4, 65, 64, 2),
    d(3, 130, 130, 1),
    d(2, 63, 5, 2),
    d(9, 8, 1, 1),
    d(3, 1031, 400, 2),
    d(2, 2053, 2053, 1),
    d(1, 1, 1, 1),
    d(65_537, 3, 2, 1),
];

/// Rows of 50 classes; `rank` 2 adds. The last has more rows than invocations take at first.
const ROWS: &[Dims] = &[len(5), adding(63), len(1), len(64), adding(65), len(33_001)];

fn show_rope(d: &Dims) -> String {
    let Dims { tokens, in_features, out_features, rank } = d;
    format!("{tokens}×{out_features}×{}{}", 2 * in_features, if *rank == 2 { " transposed" } else { "" })
}

fn show_gated(d: &Dims) -> String {
    format!("{} {}", d.tokens, ["silu", "relu²"][d.rank])
}

fn show_attention(d: &Dims) -> String {
    let [heads, kv_heads] = [d.out_features / 10, d.out_features % 10];
    let masked = ["", " padded left", " padded right", " packed"][d.rank % 10];
    format!("{}×{}×{heads}/{kv_heads}×{}{masked}", d.rank / 10, d.tokens, d.in_features)
}

fn show_step(d: &Dims) -> String {
    let [heads, kv_heads] = [d.out_features / 10, d.out_features % 10];
    format!("{} of {}×{heads}/{kv_heads}×{}", d.tokens, d.tokens + d.rank, d.in_features)
}

fn show_cached(d: &Dims) -> String {
    format!("{}×{} at {}", d.tokens, d.in_features, d.out_features)
}

fn show_sampled(d: &Dims) -> String {
    let setting = [
        "greedy with penalty",
        "all",
        "top k",
        "top p",
        "top k and p with penalty",
        "greedy of equals",
        "greedy below 0",
        "all at next to no temperature",
    ];
    format!("{} {}", d.tokens, setting[d.rank])
}

fn show_gathered(d: &Dims) -> String {
    format!("{}×{} of {}{}", d.tokens, d.in_features, d.out_features, if d.rank == 2 { " columns" } else { "" })
}

fn show_chunked(d: &Dims) -> String {
    format!("{}×{} by {}", d.tokens, d.in_features, d.out_features)
}

fn show_rows(d: &Dims) -> String {
    format!("{}{}", d.tokens, if d.rank == 2 { " added" } else { "" })
}

// ── nn ──

fn rope(d: Dims, rng: &mut Rng) -> Case {
    let (rows, half_dim, heads, transposed) = (d.tokens, d.in_features, d.out_features, d.rank == 2);
    let positions = 11;
    let tables = [given(rng, &[positions, half_dim]), given(rng, &[positions, half_dim])];
    let position_ids: Vec<i32> = (0..rows).map(|_| below(rng, positions)).collect();
    let x = given(rng, &[rows, heads * 2 * half_dim]);
    let [cos, sin] = [tables[0].f64(), tables[1].f64()];
    let rotated = reference::nn::rope(half_dim, [&cos, &sin], &position_ids, &x.f64(), transposed);
    let [cos, sin] = tables;
    case(
        [cos, sin, integers(&[rows], position_ids), x],
        move |rec, [cos, sin, position_ids, x]| nn::rope::record(rec, cos, sin, position_ids, x, transposed),
        [(3, products(&rotated))],
    )
}

/// Where the sigmoid is steep and where it ends; not so large that the square or its gradient would not be finite.
const GATES: [f32; 10] = [1e4, -1e4, 100.0, -100.0, 13.5, -13.5, 0.25, -0.25, 0.0, -1e-20];

fn gate(d: Dims) -> Gate {
    [Gate::Silu, Gate::Relu2][d.rank]
}

fn gated(d: Dims, rng: &mut Rng) -> Case {
    let [gates, up] = [with_extremes(rng, &[d.tokens, 1], 4.0, &GATES), given(rng, &[d.tokens, 1])];
    let pairs = gates.f64().into_iter().zip(up.f64());
    let sums: Vec<Sum> = pairs.map(|(g, u)| reference::nn::gated(d.rank == 1, g, u)).collect();
    case(
        [gates, up, unset(&[d.tokens, 1])],
        move |rec, [gates, up, output]| nn::gated::record(rec, gate(d), gates, up, output),
        [(2, products(&sums))],
    )
}

fn gated_grad(d: Dims, rng: &mut Rng) -> Case {
    let gates = with_extremes(rng, &[d.tokens, 1], 4.0, &GATES);
    let [up, d_output] = [given(rng, &[d.tokens, 1]), given(rng, &[d.tokens, 1])];
    let both: Vec<[Sum; 2]> = (0..d.tokens)
        .map(|i| {
            let [g, u, d_output] = [gates.data[i], up.data[i], d_output.data[i]].map(f64::from);
            reference::nn::gated_grad(d.rank == 1, g, u, d_output)
        })
        .collect();
    let part = |i: usize| products(&both.iter().map(|sums| sums[i]).collect::<Vec<_>>());
    case(
        [gates, up, d_output, unset(&[d.tokens, 1]), unset(&[d.tokens, 1])],
        move |rec, [gates, up, d_output, d_gate, d_up]| {
            nn::gated_grad::record(rec, gate(d), gates, up, d_output, d_gate, d_up)
        },
        [(3, part(0)), (4, part(1))],
    )
}

/// The segments of each token.
fn segments(batch: usize, tokens: usize, masked: usize) -> Vec<i32> {
    let one = |i: usize| {
        let (sequence, token) = (i / tokens, i % tokens);
        match masked {
            1 => i32::from(token > (2 * sequence + 1) % tokens),
            2 => i32::from(sequence != 1 && token < tokens - tokens.min(sequence + 1) / 2),
            3 => (token * 5 / tokens) as i32 % 3 + 1,
            _ => 1,
        }
    };
    (0..batch * tokens).map(one).collect()
}

struct Attended {
    d: Attention,
    heads: Heads,
    qkv: [Given; 3],
    segments: Vec<i32>,
}

/// Scores large enough that the shares differ.
fn attended(d: Dims, rng: &mut Rng) -> Attended {
    let [heads, kv_heads] = [d.out_features / 10, d.out_features % 10];
    let (batch, tokens, head_dim) = (d.rank / 10, d.tokens, d.in_features);
    let rows = batch * tokens;
    let mut qkv = [heads, kv_heads, kv_heads].map(|heads| given(rng, &[rows, heads * head_dim]));
    qkv[0].data.iter_mut().for_each(|q| *q *= 6.0);
    Attended {
        d: Attention { batch, tokens, heads, kv_heads, head_dim },
        heads: Heads { heads, kv_heads, head_dim },
        qkv,
        segments: segments(batch, tokens, d.rank % 10),
    }
}

/// Pairs with the first of each from `first`.
fn interleave(first: &[Expected], second: &[Expected]) -> Vec<Expected> {
    first.iter().zip(second).flat_map(|(a, b)| [*a, *b]).collect()
}

type Attend = fn(&Recording, Heads, &Tensor, &Tensor, &Tensor, &Tensor, &Tensor, &Tensor) -> Result<()>;

fn attention(d: Dims, rng: &mut Rng) -> Case {
    attention_by(nn::attention::record, 32, d, rng)
}

fn attention_tiled(d: Dims, rng: &mut Rng) -> Case {
    attention_by(nn::attention_tiled::record, 64, d, rng)
}

/// `tile` keys at a time.
fn attention_by(record: Attend, tile: usize, d: Dims, rng: &mut Rng) -> Case {
    let Attended { d, heads, qkv: [q, k, v], segments } = attended(d, rng);
    let [output, log_sums] = reference::nn::attention(d, &q.f64(), &k.f64(), &v.f64(), &segments, tile);
    let rows = d.batch * d.tokens;
    let stats = interleave(&products(&log_sums), &exact(&vec![0.0; log_sums.len()]));
    let like_q = unset(&q.shape);
    case(
        [q, k, v, integers(&[d.batch, d.tokens], segments), like_q, unset(&[rows, heads.heads, 2])],
        move |rec, [q, k, v, segments, output, stats]| record(rec, heads, q, k, v, segments, output, stats),
        [(4, products(&output)), (5, stats)],
    )
}

/// What the backward pass is given, with numbers for `d_output`: output and the logarithms as the forward pass leaves them.
struct Backward {
    d_output: Given,
    output: Given,
    log_sums: Vec<f32>,
}

fn backward(a: &Attended, rng: &mut Rng) -> Backward {
    let [q, k, v] = [0, 1, 2].map(|i| a.qkv[i].f64());
    let rounded = |sums: &[Sum]| sums.iter().map(|s| s.value as f32).collect::<Vec<_>>();
    let [output, log_sums] = reference::nn::attention(a.d, &q, &k, &v, &a.segments, 32);
    Backward {
        d_output: given(rng, &a.qkv[0].shape),
        output: Given::new(&a.qkv[0].shape, rounded(&output)),
        log_sums: rounded(&log_sums),
    }
}

fn stats(d: Attention, log_sums: &[f32], deltas: &[f32]) -> Given {
    let pairs = log_sums.iter().zip(deltas).flat_map(|(a, b)| [*a, *b]).collect();
    Given::new(&[d.batch * d.tokens, d.heads, 2], pairs)
}

fn attention_grad_q(dims: Dims, rng: &mut Rng) -> Case {
    attention_grad_q_by(nn::attention_grad_q::record, dims, rng)
}

fn attention_grad_q_tiled(dims: Dims, rng: &mut Rng) -> Case {
    attention_grad_q_by(nn::attention_grad_q_tiled::record, dims, rng)
}

type AttendBack =
    fn(&Recording, Heads, &Tensor, &Tensor, &Tensor, &Tensor, &Tensor, &Tensor, &Tensor, &Tensor) -> Result<()>;

fn attention_grad_q_by(record: AttendBack, dims: Dims, rng: &mut Rng) -> Case {
    let a = attended(dims, rng);
    let Backward { d_output, output, log_sums } = backward(&a, rng);
    let Attended { d, heads, qkv: [q, k, v], segments } = a;
    let log_sums_f64: Vec<f64> = log_sums.iter().map(|v| f64::from(*v)).collect();
    let (q64, k64, v64, d64) = (q.f64(), k.f64(), v.f64(), d_output.f64());
    let inputs = reference::nn::Given {
        q: &q64,
        k: &k64,
        v: &v64,
        segments: &segments,
        d_output: &d64,
        log_sums: &log_sums_f64,
    };
    let [d_q, deltas] = reference::nn::attention_grad_q(d, inputs, &output.f64());
    let mut expected = vec![(6, interleave(&exact(&log_sums_f64), &products(&deltas)))];
    if d.tokens > 1 {
        expected.push((7, products(&d_q))); // of one token the share is 1 whatever its score
    }
    let unset_stats = stats(d, &log_sums, &vec![f32::NAN; log_sums.len()]);
    let like_q = unset(&q.shape);
    case(
        [q, k, v, integers(&[d.batch, d.tokens], segments), output, d_output, unset_stats, like_q],
        move |rec, [q, k, v, segments, output, d_output, stats, d_q]| {
            record(rec, heads, q, k, v, segments, output, d_output, stats, d_q)
        },
        expected,
    )
}

fn attention_grad_kv(dims: Dims, rng: &mut Rng) -> Case {
    attention_grad_kv_by(nn::attention_grad_kv::record, dims, rng)
}

fn attention_grad_kv_tiled(dims: Dims, rng: &mut Rng) -> Case {
    attention_grad_kv_by(nn::attention_grad_kv_tiled::record, dims, rng)
}

fn attention_grad_kv_by(record: AttendBack, dims: Dims, rng: &mut Rng) -> Case {
    let a = attended(dims, rng);
    let Backward { d_output, output, log_sums } = backward(&a, rng);
    let Attended { d, heads, qkv: [q, k, v], segments } = a;
    let log_sums_f64: Vec<f64> = log_sums.iter().map(|v| f64::from(*v)).collect();
    let (q64, k64, v64, d64) = (q.f64(), k.f64(), v.f64(), d_output.f64());
    let inputs = reference::nn::Given {
        q: &q64,
        k: &k64,
        v: &v64,
        segments: &segments,
        d_output: &d64,
        log_sums: &log_sums_f64,
    };
    let [_, deltas] = reference::nn::attention_grad_q(d, inputs, &output.f64());
    let deltas: Vec<f32> = deltas.iter().map(|delta| delta.value as f32).collect();
    let deltas_f64: Vec<f64> = deltas.iter().map(|v| f64::from(*v)).collect();
    let [d_k, d_v] = reference::nn::attention_grad_kv(d, inputs, &deltas_f64);
    let mut expected = vec![(7, products(&d_v))];
    if d.tokens > 1 {
        expected.push((6, products(&d_k)));
    }
    let stats = stats(d, &log_sums, &deltas);
    let [like_k, like_v] = [unset(&k.shape), unset(&v.shape)];
    case(
        [q, k, v, integers(&[d.batch, d.tokens], segments), d_output, stats, like_k, like_v],
        move |rec, [q, k, v, segments, d_output, stats, d_k, d_v]| {
            record(rec, heads, q, k, v, segments, d_output, stats, d_k, d_v)
        },
        expected,
    )
}

fn attention_step(d: Dims, rng: &mut Rng) -> Case {
    let [heads, kv_heads] = [d.out_features / 10, d.out_features % 10];
    let (keys, head_dim) = (d.tokens, d.in_features);
    // What lies behind the newest key must not be seen.
    let caches = [given(rng, &[keys + d.rank, kv_heads * head_dim]), given(rng, &[keys + d.rank, kv_heads * head_dim])];
    let mut q = given(rng, &[1, heads * head_dim]);
    q.data.iter_mut().for_each(|q| *q *= 6.0);
    let dims = Attention { batch: 1, tokens: keys, heads, kv_heads, head_dim };
    let used = keys * kv_heads * head_dim;
    let sums = reference::nn::attention_step(dims, &q.f64(), &caches[0].f64()[..used], &caches[1].f64()[..used], 8);
    let [k_cache, v_cache] = caches;
    case(
        [q, k_cache, v_cache, integers(&[1], vec![keys as i32 - 1]), unset(&[1, heads * head_dim])],
        move |rec, [q, k_cache, v_cache, cursor, output]| {
            let shape = Heads { heads, kv_heads, head_dim };
            nn::attention_step::record(rec, shape, q, k_cache, v_cache, cursor, output)
        },
        [(4, products(&sums))],
    )
}

fn cache_write(d: Dims, rng: &mut Rng) -> Case {
    let (rows, width, cursor) = (d.tokens, d.in_features, d.out_features);
    let [x, cache] = [given(rng, &[rows, width]), given(rng, &[rows + cursor + 2, width])];
    let after = reference::nn::cache_write(&x.f64(), cursor, width, &cache.f64());
    case(
        [x, integers(&[1], vec![cursor as i32]), cache],
        |rec, [x, cursor, cache]| nn::cache_write::record(rec, x, cursor, cache),
        [(2, exact(&after))],
    )
}

fn add(d: Dims, rng: &mut Rng) -> Case {
    let [a, b] = [given(rng, &[d.tokens, 1]), given(rng, &[d.tokens, 1])];
    let sums: Vec<Sum> = a.f64().into_iter().zip(b.f64()).map(|(a, b)| reference::nn::add(a, b)).collect();
    case(
        [a, b, unset(&[d.tokens, 1])],
        |rec, [a, b, output]| nn::add::record(rec, a, b, output),
        [(2, products(&sums))],
    )
}

/// `[rows, columns]` as `[columns, rows]`.
fn transposed<T: Copy>(values: &[T], columns: usize) -> Vec<T> {
    (0..values.len()).map(|i| values[i % (values.len() / columns) * columns + i / (values.len() / columns)]).collect()
}

/// Ids with the last one among them.
fn some_ids(rng: &mut Rng, rows: usize, vocabulary: usize) -> Vec<i32> {
    let mut ids: Vec<i32> = (0..rows).map(|_| below(rng, vocabulary)).collect();
    ids[0] = vocabulary as i32 - 1;
    ids
}

fn embedding(d: Dims, rng: &mut Rng) -> Case {
    let (rows, features, vocabulary, columns) = (d.tokens, d.in_features, d.out_features, d.rank == 2);
    let mut weight = given(rng, &[vocabulary, features]);
    let ids = some_ids(rng, rows, vocabulary);
    let found = reference::nn::embedding(&weight.f64(), features, &ids);
    if columns {
        weight = Given::new(&[features, vocabulary], transposed(&weight.data, features));
    }
    case(
        [weight, integers(&[rows], ids), unset(&[rows, features])],
        move |rec, [weight, ids, output]| nn::embedding::record(rec, weight, ids, output, columns),
        [(2, exact(&found))],
    )
}

fn embedding_grad(d: Dims, rng: &mut Rng) -> Case {
    let (rows, features, vocabulary, columns) = (d.tokens, d.in_features, d.out_features, d.rank == 2);
    let (d_output, mut before) = (given(rng, &[rows, features]), given(rng, &[vocabulary, features]));
    let ids = some_ids(rng, rows, vocabulary);
    let mut sums = reference::nn::embedding_grad(&ids, &d_output.f64(), &before.f64(), features, 1.75);
    if columns {
        before = Given::new(&[features, vocabulary], transposed(&before.data, features));
        sums = transposed(&sums, features);
    }
    case(
        [integers(&[rows], ids), d_output, before],
        move |rec, [ids, d_output, d_weight]| nn::embedding_grad::record(rec, ids, d_output, d_weight, columns, 1.75),
        [(2, products(&sums))],
    )
}

/// One of several settings, by number; none of them has ties at its edge.
fn sampling(number: usize, seed: u64) -> Sampling {
    let base = Sampling { temperature: 0.7, seed, ..Sampling::default() };
    match number {
        0 => Sampling { temperature: 0.0, repetition_penalty: 1.5, ..base },
        1 => base,
        2 => Sampling { top_k: 3, ..base },
        3 => Sampling { top_p: 0.6, temperature: 1.5, ..base },
        4 => Sampling { top_k: 9, top_p: 0.8, repetition_penalty: 1.3, ..base },
        5 => Sampling { temperature: 0.0, ..base },
        7 => Sampling { temperature: 1.2e-38, ..base },
        _ => Sampling { temperature: 0.0, repetition_penalty: 40.0, ..base },
    }
}

/// `tokens` logits, the cursor `in_features`, the seed `out_features`.
fn sample(d: Dims, rng: &mut Rng) -> Case {
    let (vocabulary, cursor) = (d.tokens, d.in_features as i32);
    let sampling = sampling(d.rank, (d.out_features as u64) << 30);
    let mut logits = Given::new(&[1, vocabulary], large(rng, vocabulary));
    let mut seen = given(rng, &[vocabulary]);
    seen.data.iter_mut().for_each(|v| *v = f32::from(u8::from(*v > 0.3)));
    if d.rank == 6 {
        logits.data.iter_mut().for_each(|z| *z -= 6.5);
    }
    if d.rank == 5 {
        // The first of several.
        logits.data.iter_mut().skip(vocabulary / 3).step_by(7).for_each(|z| *z = 7.5);
    }
    let options = reference::nn::Sampling {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        penalty: sampling.repetition_penalty,
        seed: sampling.seed,
    };
    let flags: Vec<bool> = seen.data.iter().map(|v| *v > 0.0).collect();
    let token = reference::nn::sample(&logits.f64(), &flags, options, cursor);
    let mut after = seen.f64();
    after[token] = 1.0;
    let integer = |value: i32| exact(&[f64::from(f32::from_bits(value as u32))]);
    let mut expected = vec![(2, integer(cursor + 5)), (3, integer(token as i32))];
    if !flags[token] {
        expected.push((1, exact(&after)));
    }
    case(
        [logits, seen, integers(&[1], vec![cursor]), integers(&[1], vec![-7])],
        move |rec, [logits, seen, cursor, next_id]| {
            nn::sample::record(rec, logits, seen, cursor, next_id, &sampling, 5)
        },
        expected,
    )
}

// ── loss ──

fn large(rng: &mut Rng, len: usize) -> Vec<f32> {
    rng.numbers(len).iter().map(|v| 6.0 * v).collect()
}

/// Columns `first .. first + width` of rows.
fn columns(all: &[f32], row_len: usize, first: usize, width: usize) -> Vec<f32> {
    all.chunks(row_len).flat_map(|row| row[first..first + width].to_vec()).collect()
}

fn lm_head_stats(d: Dims, rng: &mut Rng) -> Case {
    let (rows, classes, chunk) = (d.tokens, d.in_features, d.out_features);
    let logits = large(rng, rows * classes);
    let labels: Vec<i32> = (0..rows).map(|_| below(rng, classes)).collect();
    let f64s: Vec<f64> = logits.iter().map(|v| f64::from(*v)).collect();
    let stats = reference::loss::lm_head_stats(classes, &f64s, &labels, classes.div_ceil(chunk));
    let expected =
        stats.iter().flat_map(|[max, sum, hit]| [exact(&[max.value]), products(&[*sum]), exact(&[hit.value])]);
    let mut tensors = vec![integers(&[rows], labels), unset(&[rows, 3])];
    for first in (0..classes).step_by(chunk) {
        let width = chunk.min(classes - first);
        tensors.push(Given::new(&[rows, width], columns(&logits, classes, first, width)));
    }
    let expected = vec![(1, expected.flatten().collect())];
    Case {
        tensors,
        expected,
        record: Box::new(move |rec, tensors| {
            (2..tensors.len()).try_for_each(|i| {
                loss::lm_head_stats::record(rec, &tensors[i], &tensors[0], &tensors[1], (i - 2) * chunk)
            })
        }),
    }
}

/// Labels of which some are ignored, not the first.
fn some_labels(rng: &mut Rng, rows: usize, classes: usize) -> Vec<i32> {
    (0..rows).map(|row| if row % 3 == 2 { IGNORED } else { below(rng, classes) }).collect()
}

fn lm_head_loss(d: Dims, rng: &mut Rng) -> Case {
    let (rows, classes) = (d.tokens, 50);
    let mut stats = large(rng, 3 * rows);
    stats.chunks_mut(3).for_each(|row| row[1] = 1.0 + row[1].abs());
    stats.chunks_mut(3).step_by(5).for_each(|row| row[0] = 40.0 * row[0].abs());
    let labels = some_labels(rng, rows, classes);
    let stats = Given::new(&[rows, 3], stats);
    let (sum, counted) = reference::loss::lm_head_loss(&stats.f64(), &labels, IGNORED);
    let (totals, old) = totals(d, rng);
    case(
        [stats, integers(&[rows], labels), totals],
        move |rec, [stats, labels, totals]| {
            loss::lm_head_loss::record(rec, stats, labels, totals, d.rank == 2, classes, IGNORED)
        },
        [(2, summed(sum, counted, old))],
    )
}

/// The last chunk.
fn lm_head_grad(d: Dims, rng: &mut Rng) -> Case {
    let (rows, classes, chunk) = (d.tokens, d.in_features + 1, d.out_features);
    let logits = large(rng, rows * classes);
    let mut labels = some_labels(rng, rows, classes);
    labels[0] = classes as i32 - 1;
    let f64s: Vec<f64> = logits.iter().map(|v| f64::from(*v)).collect();
    let some: Vec<i32> = labels.iter().map(|label| (*label).max(0)).collect();
    let stats = reference::loss::lm_head_stats(classes, &f64s, &some, 1);
    let stats = Given::new(&[rows, 3], stats.iter().flat_map(|row| row.map(|sum| sum.value as f32)).collect());
    let first = (classes - 1) / chunk * chunk;
    let logits = Given::new(&[rows, classes - first], columns(&logits, classes, first, classes - first));
    let sums = reference::loss::lm_head_grad(classes - first, first, &logits.f64(), &stats.f64(), &labels, IGNORED);
    case(
        [integers(&[rows], labels), stats, logits],
        move |rec, [labels, stats, logits]| loss::lm_head_grad::record(rec, labels, stats, logits, first, IGNORED),
        [(2, products(&sums))],
    )
}

// ── the table ──

pub static SPECS: &[Spec] = &[
    spec!(loss / lm_head_grad, CHUNKED 0..2, show_chunked, FUNCTIONS_BOUND, [
        ("the label dropped", " - hit;", ";"),
        ("the label in the wrong chunk", "i32(params.first_class + i % params.width)", "i32(i % params.width)"),
        ("the sum dropped", " / stats[3 * row + 1]", ""),
        ("the maximum dropped", "logits[i] - stats[3 * row]", "logits[i]"),
        ("ignored rows with a gradient", "select(gradient, 0.0, label == params.ignore_index)", "gradient"),
        ("the first row's statistics", "let row = i / params.width;", "let row = 0u;"),
        ("the last element left out", "i >= params.len", "i + 1 >= params.len"),
        ("stopping at the tile", "i >= params.len", "i >= min(params.len, WORKGROUP)"),
    ]),
    spec!(loss / lm_head_loss, ROWS 0..2, show_rows, FUNCTIONS_BOUND, [
        ("the logarithm dropped", " + log(stats[3 * row + 1])", ""),
        ("the label's logit dropped", " - stats[3 * row + 2]", ""),
        ("ignored rows counted", "if label != params.ignore_index {", "if true {"),
        ("the last row dropped", "row < params.rows;", "row + 1 < params.rows;"),
        ("the rows stopping at the tile", "row += groups.x * WORKGROUP", "row += params.rows"),
        ("a lane left out", "i < WORKGROUP;", "i + 1 < WORKGROUP;"),
    ]),
    spec!(loss / lm_head_stats, CHUNKED 0..2, show_chunked, FUNCTIONS_BOUND, [
        ("the sum before not corrected", "before.y * exp(max(before.x - now, -100.0))", "before.y"),
        ("the sum not corrected", "sum * exp(max(highest - now, -100.0))", "sum"),
        ("beginning anew with each chunk", "params.first_class > 0", "false"),
        ("never beginning anew", "params.first_class > 0", "true"),
        ("the label in the wrong chunk", "labels[row] - i32(params.first_class)", "labels[row]"),
        ("the label's logit forgotten", "stats[3 * row + 2] = before.z", "stats[3 * row + 2] = 0.0"),
        ("the maximum of one lane", "highest = max(highest, partial[i])", "highest = partial[i]"),
        ("the sums of one lane", "sum += partial[i]", "sum = partial[i]"),
        ("the sum stopping at the tile", "c += WORKGROUP) {\n            part", "c += params.width) {\n            part"),
        ("the sum stopping at its first part", "start += PART * WORKGROUP", "start += params.width"),
        ("the last class dropped", "min(start + PART * WORKGROUP, params.width)", "min(start + PART * WORKGROUP, params.width - 1)"),
        ("workgroups in one dimension", "group.x + group.y * groups.x", "group.x"),
    ]),
    spec!(nn / add, ELEMENTS 0..2, show_len, PRODUCTS, [
        ("the first alone", "a[i] + b[i]", "a[i]"),
        ("the difference", "a[i] + b[i]", "a[i] - b[i]"),
        ("accumulation", "output[i] = ", "output[i] += "),
        ("the last element left out", "i < params.len;", "i + 1 < params.len;"),
        ("stopping at the tile", "i < params.len;", "i < min(params.len, WORKGROUP);"),
        ("one round", "i += groups.x * WORKGROUP", "i += params.len"),
    ]),
    spec!(nn / attention, ATTENDED 0..3, show_attention, FUNCTIONS_BOUND, [
        ("later tokens seen", "(key <= vec2u(row[i]))", "(key < vec2u(params.tokens))"),
        ("the token itself unseen", "(key <= vec2u(row[i]))", "(key < vec2u(row[i]))"),
        ("other segments seen", "(key_segment == vec2i(segment))", "(key_segment != vec2i())"),
        ("padding seen", "(key_segment == vec2i(segment))", "(key_segment >= vec2i())"),
        ("masked rows not 0", "select(output[at] / total[r + i / 2], vec2f(), masked)", "output[at] / total[r + i / 2]"),
        ("the scale never", "params.scale * vec2f(s0[i], s1[i])", "vec2f(s0[i], s1[i])"),
        ("the scale twice", "params.scale * vec2f(s0[i], s1[i])", "params.scale * params.scale * vec2f(s0[i], s1[i])"),
        ("the last pair dropped", "d < params.pairs; d++", "d + 1 < params.pairs; d++"),
        ("two queries swapped", "dot(q1, k1), dot(q2, k1)", "dot(q2, k1), dot(q1, k1)"),
        ("the keys stopping at the tile", "first_key += KEYS", "first_key += params.tokens"),
        ("only the first tile of queries", "tile % row_tiles * ROWS", "0u"),
        ("only the first tile of dimensions", "index % dim_tiles * DIMS", "0u"),
        ("only the first sequence", "let sequence = tile / row_tiles", "let sequence = 0u"),
        ("heads not grouped", "head / (params.heads / params.kv_heads)", "head % params.kv_heads"),
        ("the sum not corrected", "total[r] * correction[r]", "total[r]"),
        ("the output not corrected", "before * correction[r + i]", "before"),
        ("added to what was there", "first_key > 0)", "true)"),
        ("the second pair dropped", "output[at + second] = sum.zw", "output[at + second] = sum.xy"),
        ("the first pair twice", "v[at + second]", "v[at]"),
        ("not divided", "output[at] / total[r + i / 2]", "output[at]"),
        ("the maximum dropped", "highest[r] + log(total[r])", "log(total[r])"),
        ("the logarithm dropped", "highest[r] + log(total[r])", "highest[r]"),
        ("workgroups in one dimension", "group.x + group.y * groups.x", "group.x"),
    ]),
    spec!(nn / attention_grad_kv, ATTENDED 0..3, show_attention, FUNCTIONS_BOUND, [
        ("earlier tokens' queries seen", "(key.xxyy <= row.xyxy)", "(row.xyxy >= vec4u())"),
        ("the token itself unseen", "(key.xxyy <= row.xyxy)", "(key.xxyy < row.xyxy)"),
        ("the last query dropped", "r < rows;", "r + 1 < rows;"),
        ("other segments seen", "(key_segment.xxyy == row_segment.xyxy)", "(key_segment.xxyy >= vec4i())"),
        ("padding seen", "(row_segment.xyxy != vec4i())", "(row_segment.xyxy >= vec4i())"),
        ("the score's scale never", "params.scale * s - log_sum", "s - log_sum"),
        ("the gradient's scale never", "params.scale * share * (p - delta)", "share * (p - delta)"),
        ("delta dropped", "(p - delta)", "p"),
        ("the logarithms dropped", " - log_sum, seen", ", seen"),
        ("the last pair dropped", "d < params.pairs; d++", "d + 1 < params.pairs; d++"),
        ("two queries swapped", "dot(k0, q1), dot(k1, q0)", "dot(k1, q0), dot(k0, q1)"),
        ("two gradients swapped", "dot(v0, g1), dot(v1, g0)", "dot(v1, g0), dot(v0, g1)"),
        ("the queries stopping at the tile", "first_row += ROWS", "first_row += params.tokens"),
        ("one head of a group", "head < first_head + head_group", "head <= first_head"),
        ("only the first tile of keys", "tile % key_tiles * KEYS", "0u"),
        ("only the first tile of dimensions", "index % dim_tiles * DIMS", "0u"),
        ("only the first sequence", "let sequence = tile / key_tiles", "let sequence = 0u"),
        ("the first pair twice", "q[at + second]", "q[at]"),
        ("the first gradient twice", "d_output[at + second]", "d_output[at]"),
        ("a key dropped", "d_k[next] = k1.xy", "d_k[next] = k0.xy"),
        ("a value dropped", "d_v[next + second] = v1.zw", "d_v[next + second] = v0.zw"),
        ("added to what was there", "head > first_head || first_row > first_key", "true"),
        ("the last head alone", "head > first_head || first_row > first_key", "first_row > first_key"),
        ("workgroups in one dimension", "group.x + group.y * groups.x", "group.x"),
    ]),
    spec!(nn / attention_grad_q, ATTENDED 0..3, show_attention, FUNCTIONS_BOUND, [
        ("later tokens seen", "(key <= vec2u(row[i]))", "(key < vec2u(params.tokens))"),
        ("the token before unseen", "(key <= vec2u(row[i]))", "(key + 1 < vec2u(row[i]))"),
        ("other segments seen", "(key_segment == vec2i(segment))", "(key_segment != vec2i())"),
        ("padding seen", " & vec2<bool>(segment != 0)", ""),
        ("the score's scale never", "params.scale * vec2f(s0[i], s1[i])", "vec2f(s0[i], s1[i])"),
        ("the gradient's scale never", "params.scale * p *", "p *"),
        ("the gradient's scale twice", "params.scale * p *", "params.scale * params.scale * p *"),
        ("delta dropped", "(vec2f(p0[i], p1[i]) - of_row.y)", "vec2f(p0[i], p1[i])"),
        ("the logarithms dropped", " - of_row.x, seen", ", seen"),
        ("delta not left", "stats[at].y = delta", "stats[at].y = 0.0"),
        ("the last pair dropped", "d++) {\n                let q0", "d += params.pairs) {\n                let q0"),
        ("delta of the first pair", "delta += dot", "delta = dot"),
        ("two queries swapped", "dot(q1, k1), dot(q2, k1)", "dot(q2, k1), dot(q1, k1)"),
        ("two gradients swapped", "dot(g1, v1), dot(g2, v1)", "dot(g2, v1), dot(g1, v1)"),
        ("the keys stopping at the tile", "first_key += KEYS", "first_key += params.tokens"),
        ("only the first tile of queries", "tile % row_tiles * ROWS", "0u"),
        ("only the first tile of dimensions", "index % dim_tiles * DIMS", "0u"),
        ("only the first sequence", "let sequence = tile / row_tiles", "let sequence = 0u"),
        ("heads not grouped", "head / (params.heads / params.kv_heads)", "head % params.kv_heads"),
        ("overwriting", "first_key > 0)", "false)"),
        ("added to what was there", "first_key > 0)", "true)"),
        ("the first pair twice", "k[at + second]", "k[at]"),
        ("workgroups in one dimension", "group.x + group.y * groups.x", "group.x"),
    ]),
    spec!(nn / attention_tiled, TILED 0..3, show_attention, FUNCTIONS_BOUND, [
        ("later tokens seen", "(key <= vec4u(first_row + row))", "(key < vec4u(params.tokens))"),
        ("the token itself unseen", "(key <= vec4u(first_row + row))", "(key < vec4u(first_row + row))"),
        ("other segments seen", "(key_segment == vec4i(segment[i]))", "(key_segment != vec4i())"),
        ("padding seen", "(key_segment == vec4i(segment[i]))", "(key_segment >= vec4i())"),
        ("masked rows not 0", "let masked = segment[i] == 0", "let masked = false"),
        ("the scale never", "params.scale * score[i], seen", "score[i], seen"),
        ("the scale twice", "params.scale * score[i], seen", "params.scale * params.scale * score[i], seen"),
        ("a head's elements stopping at the depth", "first += 2 * DEPTH", "first += params.pairs"),
        ("elements in twos", "pair + 1 < params.pairs);\n    return select(vec4f(), vec4f(k", "false);\n    return select(vec4f(), vec4f(k"),
        ("two elements swapped", "query.y * keys[1]", "query.y * keys[2]"),
        ("the keys stopping at the tile", "first_key += KEYS", "first_key += params.tokens"),
        ("only the first tile of queries", "(row_tiles - 1 - index / others) * ROWS", "0u"),
        ("only the first tile of elements", "index % dim_tiles * 2 * ACROSS", "0u"),
        ("only the first sequence", "index % others / dim_tiles / params.heads * params.tokens", "0u"),
        ("heads not grouped", "head / (params.heads / params.kv_heads)", "head % params.kv_heads"),
        ("the largest of some keys", "x < ACROSS; x++) {\n            low = max", "x < 1; x++) {\n            low = max"),
        ("the sum not corrected", "total[i] * correction +", "total[i] +"),
        ("the output not corrected", "sum[i] *= correction", "sum[i] *= 1.0"),
        ("half of the keys", "half < ACROSS; half", "half < 1; half"),
        ("one half's shares twice", "* ACROSS + half + c]", "* ACROSS + c]"),
        ("two keys swapped", "share.z * v2", "share.z * v3"),
        ("not divided", "sum[i] / total[i]", "sum[i]"),
        ("the sum of some keys", "x < ACROSS; x++) {\n        low +=", "x < 1; x++) {\n        low +="),
        ("the maximum dropped", "highest[i] + log(total[i])", "log(total[i])"),
        ("the logarithm dropped", "highest[i] + log(total[i])", "highest[i]"),
        ("workgroups in one dimension", "group.x + group.y * groups.x", "group.x"),
    ]),
    spec!(nn / attention_grad_kv_tiled, TILED 0..3, show_attention, FUNCTIONS_BOUND, [
        ("earlier tokens' queries seen", "(row >= vec4u(first_key + key)) &", ""),
        ("the token itself unseen", "(row >= vec4u(first_key + key))", "(row > vec4u(first_key + key))"),
        ("the last query again and again", "select(vec4f(), gradient, token < params.tokens)", "gradient"),
        ("other segments seen", "(row_segment == vec4i(segment[i])) &", ""),
        ("padding seen", " & (row_segment != vec4i())", ""),
        ("the score's scale never", "params.scale * score[i] - log_sum", "score[i] - log_sum"),
        ("the gradient's scale never", "params.scale * share * (d_share[i] - delta)", "share * (d_share[i] - delta)"),
        ("delta dropped", "(d_share[i] - delta)", "d_share[i]"),
        ("the logarithms dropped", " - log_sum, seen", ", seen"),
        ("a head's elements stopping at the depth", "first += 2 * DEPTH", "first += params.pairs"),
        ("two elements swapped", "value.y * gradients[1]", "value.y * gradients[2]"),
        ("the queries stopping at the tile", "first_row += ROWS", "first_row += params.tokens"),
        ("one head of a group", "head < (kv_head + 1) * head_group", "head <= kv_head * head_group"),
        ("only the first tile of keys", "index / others * KEYS", "0u"),
        ("only the first tile of elements", "index % dim_tiles * 2 * ACROSS", "0u"),
        ("only the first sequence", "index % others / dim_tiles / params.kv_heads * params.tokens", "0u"),
        ("one half's factors twice", "* ACROSS + half + c]", "* ACROSS + c]"),
        ("two queries swapped", "factor.z * r2", "factor.z * r3"),
        ("the shares for slopes", "ACROSS + local.x] = d_share[i]", "ACROSS + local.x] += 0.0 * d_share[i]"),
        ("the gradients for queries", "let query = q_quad", "let query = d_quad"),
        ("workgroups in one dimension", "group.x + group.y * groups.x", "group.x"),
    ]),
    spec!(nn / attention_grad_q_tiled, TILED 0..3, show_attention, FUNCTIONS_BOUND, [
        ("later tokens seen", "(key <= vec4u(first_row + row)) &", "(key < vec4u(params.tokens)) &"),
        ("the token before unseen", "(key <= vec4u(first_row + row))", "(key + 1 < vec4u(first_row + row))"),
        ("other segments seen", "(key_segment == vec4i(segment[i]))", "(key_segment != vec4i())"),
        ("padding seen", " & vec4<bool>(segment[i] != 0)", ""),
        ("the score's scale never", "params.scale * score[i] - log_sum[i]", "score[i] - log_sum[i]"),
        ("the gradient's scale never", "params.scale * share *", "share *"),
        ("the gradient's scale twice", "params.scale * share *", "params.scale * params.scale * share *"),
        ("delta dropped", "(d_share[i] - delta[i])", "d_share[i]"),
        ("the logarithms dropped", " - log_sum[i], seen", ", seen"),
        ("delta not left", ".y = delta[i]", ".y = 0.0"),
        ("delta of some pairs", "d < params.pairs; d += ACROSS", "d < 1; d += ACROSS"),
        ("delta of some invocations", "x < ACROSS; x++", "x + 1 < ACROSS; x++"),
        ("a head's elements stopping at the depth", "first += 2 * DEPTH", "first += params.pairs"),
        ("two elements swapped", "gradient.y * values[1]", "gradient.y * values[2]"),
        ("the keys stopping at the tile", "first_key += KEYS", "first_key += params.tokens"),
        ("only the first tile of queries", "(row_tiles - 1 - index / others) * ROWS", "0u"),
        ("only the first tile of elements", "index % dim_tiles * 2 * ACROSS", "0u"),
        ("only the first sequence", "index % others / dim_tiles / params.heads * params.tokens", "0u"),
        ("heads not grouped", "head / (params.heads / params.kv_heads)", "head % params.kv_heads"),
        ("half of the keys", "half < ACROSS; half", "half < 1; half"),
        ("one half's slopes twice", "* ACROSS + half + c]", "* ACROSS + c]"),
        ("two keys swapped", "slope.z * k2", "slope.z * k3"),
        ("workgroups in one dimension", "group.x + group.y * groups.x", "group.x"),
    ]),
    spec!(nn / attention_step, STEPPED 0..3, show_step, FUNCTIONS_BOUND, [
        ("the newest key unseen", "u32(cursor[0]) + 1", "max(u32(cursor[0]), 1)"),
        ("a key too many", "u32(cursor[0]) + 1", "u32(cursor[0]) + 2"),
        ("the scale never", "score *= params.scale;", ""),
        ("the last pair dropped", "d < params.pairs; d++", "d + 1 < params.pairs; d++"),
        ("the keys stopping at the tile", "tile < tiles;", "tile < 1;"),
        ("the sum not corrected", "total *= correction;", ""),
        ("the output not corrected", "sums[d] * correction", "sums[d]"),
        ("heads not grouped", "head / (params.heads / params.kv_heads)", "head % params.kv_heads"),
        ("not divided", "sums[d] / total", "sums[d]"),
        ("the values of one key", "(first_key + c) * kv_stride + d", "first_key * kv_stride + d"),
    ]),
    spec!(nn / cache_write, CACHED 0..2, show_cached, EXACT, [
        ("always at the start", "u32(cursor[0]) * params.width + i", "i"),
        ("the cursor in elements", "u32(cursor[0]) * params.width", "u32(cursor[0])"),
        ("the last element left out", "i >= params.len", "i + 1 >= params.len"),
        ("stopping at the tile", "i >= params.len", "i >= min(params.len, WORKGROUP)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(nn / embedding, GATHERED 0..2, show_gathered, EXACT, [
        ("the row as its id", "u32(ids[i / params.features])", "i / params.features"),
        ("the first feature", " + i % params.features * params.column_stride", ""),
        ("features side by side", "* params.column_stride", ""),
        ("ids side by side", "* params.row_stride", ""),
        ("the last element left out", "i >= params.rows * params.features", "i + 1 >= params.rows * params.features"),
        ("stopping at the tile", "i >= params.rows * params.features", "i >= min(params.rows * params.features, WORKGROUP)"),
        ("workgroups in one dimension", "id.x + id.y * groups.x * WORKGROUP", "id.x"),
    ]),
    spec!(nn / embedding_grad, SCATTERED 0..6, show_gathered, PRODUCTS, [
        ("overwriting", "] += params.scale", "] = params.scale"),
        ("the scale never", "params.scale * sum[j]", "sum[j]"),
        ("the scale twice", "params.scale * sum[j]", "params.scale * params.scale * sum[j]"),
        ("one row of each id", "row = first; row < params.rows", "row = first; row < first + 1"),
        ("the last row left out", "row = first; row < params.rows", "row = first; row + 1 < params.rows"),
        ("every row adds up all", "return;\n        }\n    }\n    // Out", "continue;\n        }\n    }\n    // Out"),
        ("all rows", "if ids[row] == token {\n            let", "if true {\n            let"),
        ("the row as its id", "u32(token) *", "first *"),
        ("features side by side", "(feature + j) * params.column_stride", "feature + j"),
        ("ids side by side", "u32(token) * params.row_stride", "u32(token)"),
        ("one feature for four", "i % parts * 4", "i % parts"),
        ("the last feature left out", "feature + j < params.features", "feature + j + 1 < params.features"),
        ("stopping at the tile", "first >= params.rows", "i >= WORKGROUP"),
    ]),
    spec!(nn / gated, GATED 0..2, show_gated, FUNCTIONS_BOUND, [
        ("up dropped", "g * sigmoid(g) * up[i]", "g * sigmoid(g)"),
        ("the gate dropped", "g * sigmoid(g) * up[i]", "sigmoid(g) * up[i]"),
        ("σ of |x|", "select(e, 1.0, x >= 0.0)", "1.0"),
        ("the functions swapped", "params.kind == 0", "params.kind == 1"),
        ("relu not squared", "relu(g) * relu(g)", "relu(g)"),
        ("the square of negatives", "relu(g) * relu(g)", "g * g"),
        ("an index swapped", "relu(g) * up[i]", "relu(g) * up[params.len - 1 - i]"),
        ("the last element left out", "i < params.len;", "i + 1 < params.len;"),
        ("stopping at the tile", "i < params.len;", "i < min(params.len, WORKGROUP);"),
        ("one round", "i += groups.x * WORKGROUP", "i += params.len"),
    ]),
    spec!(nn / gated_grad, GATED 0..2, show_gated, FUNCTIONS_BOUND, [
        ("up dropped", "slope * up[i] * d_output[i]", "slope * d_output[i]"),
        ("d_output dropped", "slope * up[i] * d_output[i]", "slope * up[i]"),
        ("the outputs swapped", "d_up[i] = value", "d_up[i] = slope"),
        ("σ's slope dropped", " * (1.0 + g * sigmoid(-g))", ""),
        ("σ of x", "g * sigmoid(-g)", "g * sigmoid(g)"),
        ("the slope of the square halved", "2.0 * positive", "positive"),
        ("the slope of negatives", "max(g, 0.0)", "g"),
        ("the functions swapped", "params.kind == 0", "params.kind == 1"),
        ("the last element left out", "i < params.len;", "i + 1 < params.len;"),
        ("stopping at the tile", "i < params.len;", "i < min(params.len, WORKGROUP);"),
        ("one round", "i += groups.x * WORKGROUP", "i += params.len"),
    ]),
    spec!(nn / rope, ROTATED 0..2, show_rope, PRODUCTS, [
        ("the sine dropped", "a * c - b * s", "a * c"),
        ("the cosine dropped", "b * c + a * s", "b + a * s"),
        ("never transposed", "params.sin_factor * sin_table[at]", "sin_table[at]"),
        ("neighbours in place of halves", "first + params.half_dim", "first + 1"),
        ("the row as its position", "u32(position_ids[head / params.heads])", "(head / params.heads % 11)"),
        ("the head's position", "position_ids[head / params.heads]", "position_ids[head % params.rows]"),
        ("a half overwritten first", "x[second] = b * c + a * s", "x[second] = b * c + x[first] * s"),
        ("the last element left out", "i < params.rows * params.heads * params.half_dim;", "i + 1 < params.rows * params.heads * params.half_dim;"),
        ("one round", "i += groups.x * WORKGROUP", "i += params.rows * params.heads * params.half_dim"),
    ]),
    spec!(nn / sample, SAMPLED 0..5, show_sampled, EXACT, [
        ("the last of equals", "keys[i] == best && other < first", "keys[i] == best && other > first"),
        ("the largest of one lane", "i < LANES; i++) {\n        let other", "i < 1; i++) {\n        let other"),
        ("the penalty dropped", "select(z, repeated, seen[i] > 0.0)", "z"),
        ("negative logits divided", "select(z * params.penalty, z / params.penalty, z > 0.0)", "z / params.penalty"),
        ("the temperature dropped", "-200.0 * params.temperature) / params.temperature", "-200.0)"),
        ("top k dropped", "params.top_k > 0 &&", "false &&"),
        ("one too many", ">= f32(params.top_k)", "> f32(params.top_k)"),
        ("top p dropped", "params.top_p < 1.0", "params.top_p < 0.0"),
        ("top p's complement", "(1.0 - params.top_p) * sums.y", "params.top_p * sums.y"),
        ("top p of all", "exp(z), key_of(z) >= least)", "exp(z), true)"),
        ("negative numbers out of order", "select(bits | 0x80000000u, ~bits, bits >= 0x80000000u)", "(bits ^ 0x80000000u)"),
        ("the random number of no seed", "vec4u(params.seed_low, params.seed_high,", "vec4u(0, 0,"),
        ("the random number of no cursor", "u32(cursor[0]), 0x73616d70u", "0u, 0x73616d70u"),
        ("always the first", "/ 16777216.0 * total", "* 0.0"),
        ("the ranges of one lane", "let begin = min(lane * range, params.vocabulary)", "let begin = 0u"),
        ("the sums before left out", "var sum = before;", "var sum = 0.0;"),
        ("the token not noted", "seen[chosen] = 1.0", "seen[chosen] += 0.0"),
        ("the cursor standing still", "cursor[0] += i32(params.advance)", "cursor[0] += 1"),
    ]),
];
