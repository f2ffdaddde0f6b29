//! How adapters start, for the starts that take more than a uniform A: on the CPU in f64, once per adapter.

use super::adapter::{Adapter, AdapterKind, AdapterModule};
use super::config::InitLoraWeights;
use super::linalg::{Matrix, add_scaled, qr, svd};
use crate::error::{Error, Result, room};

/// A start.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// `A [rank, in_features]`
    pub a: Vec<f32>,
    /// `B [out_features, rank]`
    pub b: Vec<f32>,
    /// The base weight `[out_features, in_features]` from now on, where it is another one: `W − scaling·B·A`.
    pub weight: Option<Vec<f32>>,
}

/// Normal numbers: SplitMix64 (Steele, Lea and Flood 2014) and Marsaglia's polar method.
struct Normal(u64);

impl Normal {
    /// In [−1, 1).
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    fn next(&mut self) -> f64 {
        loop {
            let (x, y) = (self.uniform(), self.uniform());
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * square.ln() / square).sqrt();
            }
        }
    }

    fn matrix(&mut self, rows: usize, columns: usize) -> Matrix {
        let mut out = Matrix::zeros(rows, columns);
        out.data.fill_with(|| self.next());
        out
    }
}

/// The start that `init` gives a module of the base weight `weight [out_features, in_features]`, of which PiSSA and OLoRA alone look
/// at the values. The same seed gives the same numbers.
///
/// # Errors
/// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for ranks beyond the weight's widths and odd ones where pairs are needed; [`Shape`](crate::error::ErrorKind::Shape);
/// [`Limit`](crate::error::ErrorKind::Limit) where A or B is larger than the memory; [`Unsupported`](crate::error::ErrorKind::Unsupported) for a start that needs data
/// which is not here.
pub fn initialize(
    init: &InitLoraWeights,
    weight: &[f32],
    out_features: usize,
    in_features: usize,
    rank: usize,
    scaling: f64,
    seed: u64,
) -> Result<Start> {
    if rank == 0 {
        return Err(Error::argument("rank", "at least 1", "0"));
    }
    let mut normal = Normal(seed);
    let zero_b = |value: &mut dyn FnMut() -> f64| {
        let count = |width: usize| (width as u64).saturating_mul(rank as u64);
        let (mut a, mut b) = (room("lora_A", count(in_features))?, room("lora_B", count(out_features))?);
        (0..rank * in_features).for_each(|_| a.push(value() as f32));
        b.resize(out_features * rank, 0.0);
        Ok(Start { a, b, weight: None })
    };
    let least = out_features.min(in_features);
    match init {
        InitLoraWeights::Default => {
            let bound = 1.0 / (in_features as f64).sqrt();
            zero_b(&mut || normal.uniform() * bound)
        }
        InitLoraWeights::None | InitLoraWeights::Gaussian => {
            let deviation = 1.0 / rank as f64;
            zero_b(&mut || normal.next() * deviation)
        }
        InitLoraWeights::Orthogonal => {
            if !rank.is_multiple_of(2) {
                return Err(Error::argument("rank", "an even number for orthogonal starts", rank.to_string()));
            }
            if rank > 4096 {
                return Err(Error::argument("rank", "at most 4,096 for orthogonal starts", rank.to_string()));
            }
            // The product that A is made of, its transpose and what it is made of are there at a time.
            for (name, width) in [("lora_A", in_features), ("lora_B", out_features)] {
                drop(room::<[f64; 3]>(name, (width as u64).saturating_mul(rank as u64))?);
            }
            // A is made of the odd rows of an orthogonal matrix, B of the even ones, so that B·A = 0.
            let (q, _) = qr(&normal.matrix(rank, rank), rank);
            let half = |from: usize| {
                let mut out = Matrix::zeros(rank / 2, rank);
                (0..rank / 2).for_each(|i| out.row_mut(i).copy_from_slice(q.row(2 * i + from)));
                out
            };
            let tenth = |m: Matrix| m.data.iter().map(|v| (v / 10.0) as f32).collect();
            let a = tenth(normal.matrix(in_features, rank / 2).times(&half(0)).transposed());
            let b = tenth(normal.matrix(out_features, rank / 2).times(&half(1)));
            Ok(Start { a, b, weight: None })
        }
        InitLoraWeights::Other(name) => Err(Error::unsupported(format!(
            "init_lora_weights {name:?} needs more than the base's weights; expected true, false, \"gaussian\", \"pissa\", \
             \"pissa_niter_N\", \"olora\" or \"orthogonal\""
        ))),
        InitLoraWeights::Pissa(_) | InitLoraWeights::Olora => {
            if weight.len() != out_features * in_features {
                let expected = format!("{out_features} × {in_features} numbers");
                return Err(Error::shape("weight", expected, weight.len().to_string()));
            }
            if rank > least || scaling == 0.0 || !scaling.is_finite() || weight.iter().any(|v| !v.is_finite()) {
                let expected = format!("at most {least}, with a scaling that is not 0 and finite weights");
                return Err(Error::argument("rank", &expected, rank.to_string()));
            }
            let w = Matrix::from_f32(out_features, in_features, weight);
            let (a, b) = match init {
                InitLoraWeights::Pissa(iterations) => pissa(&w, rank, scaling, *iterations, &mut normal),
                _ => {
                    let (q, r) = qr(&w, rank);
                    (r.to_f32(), q.transposed().to_f32())
                }
            };
            let weight = Some(taken_out(weight, &a, &b, rank, scaling));
            Ok(Start { a, b, weight })
        }
    }
}

/// B `[width, rank]` of a new adapter on an embedding, whose A is zero: PEFT's normal numbers.
///
/// # Errors
/// [`Limit`](crate::error::ErrorKind::Limit) above 2³¹ − 1 bytes, or what the memory has.
pub fn embedding_b(width: usize, rank: usize, seed: u64) -> Result<Vec<f32>> {
    let (mut normal, elements) = (Normal(seed), (width as u64).saturating_mul(rank as u64));
    let mut b = room("lora_embedding_B", elements)?;
    b.extend((0..elements).map(|_| normal.next() as f32));
    Ok(b)
}

/// A = √(σ/s)·vᵀ, B = u·√(σ/s) of the largest singular values; with a count, those of W on the space that a random one becomes
/// after so many products with W·Wᵀ (Halko, Martinsson and Tropp 2011).
fn pissa(w: &Matrix, rank: usize, scaling: f64, iterations: Option<u32>, normal: &mut Normal) -> (Vec<f32>, Vec<f32>) {
    let (sigma, mut u, mut v) = match iterations {
        None => svd(w, rank),
        Some(iterations) => {
            let t = w.transposed();
            let space = |m: Matrix| qr(&m, rank).0; // orthonormal rows
            let mut q = space(w.times(&normal.matrix(w.columns, rank)));
            for _ in 0..iterations {
                q = space(t.times(&q.transposed())); // [rank, in]
                q = space(w.times(&q.transposed())); // [rank, out]
            }
            let (sigma, u, v) = svd(&q.times(w), rank);
            (sigma, u.times(&q), v)
        }
    };
    for (i, sigma) in sigma.iter().enumerate() {
        // A negative scaling turns one side.
        let root = (sigma / scaling.abs()).sqrt();
        u.row_mut(i).iter_mut().for_each(|x| *x *= root * scaling.signum());
        v.row_mut(i).iter_mut().for_each(|x| *x *= root);
    }
    (v.to_f32(), u.transposed().to_f32())
}

/// W − scaling·B·A, rounded once.
fn taken_out(weight: &[f32], a: &[f32], b: &[f32], rank: usize, scaling: f64) -> Vec<f32> {
    let columns = a.len() / rank;
    let a = Matrix::from_f32(rank, columns, a);
    let mut out = Vec::with_capacity(weight.len());
    for (row, b) in weight.chunks(columns).zip(b.chunks(rank)) {
        let mut row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
        b.iter().enumerate().for_each(|(r, b)| add_scaled(&mut row, -scaling * f64::from(*b), a.row(r)));
        out.extend(row.iter().map(|v| *v as f32));
    }
    out
}

impl AdapterModule {
    /// Where the adapter began: what [`initialize`] makes of this base weight `[out_features, in_features]`.
    ///
    /// # Errors
    /// Those of [`initialize`]; [`Unsupported`](crate::error::ErrorKind::Unsupported) for embeddings, which PEFT does not start so.
    pub fn start(&self, init: &InitLoraWeights, weight: &[f32]) -> Result<Start> {
        if self.kind == AdapterKind::Embedding {
            let text = format!("{}: an embedding's adapter that starts from a decomposition of its base", self.name);
            return Err(Error::unsupported(text));
        }
        initialize(init, weight, self.out_features(), self.in_features(), self.rank, self.scaling, 0)
    }
}

impl Adapter {
    /// The same function as a plain adapter on the model's own weights: PiSSA and OLoRA take `scaling·B₀·A₀` out of the
    /// base, so that what they add to it is `scaling·[B, −B₀]·[A; A₀]`, of twice the rank. `weight` gives a module's base
    /// weight `[out_features, in_features]`, with `fan_in_fan_out` the other way round.
    ///
    /// # Errors
    /// Those of `weight` and of [`initialize`]; [`Unsupported`](crate::error::ErrorKind::Unsupported) for DoRA on such a base, which no plain adapter does.
    pub fn to_plain(&self, weight: &mut dyn FnMut(&str) -> Result<Vec<f32>>) -> Result<Adapter> {
        if !self.config.init_lora_weights().changes_base() {
            return Ok(self.clone());
        }
        let mut plain = |m: &AdapterModule| self.plain_module(m, &weight(&m.name)?);
        let modules = self.modules.iter().map(&mut plain).collect::<Result<_>>()?;
        self.with_plain_modules(modules)
    }

    /// One module of [`Adapter::to_plain`].
    pub(crate) fn plain_module(&self, m: &AdapterModule, weight: &[f32]) -> Result<AdapterModule> {
        if m.magnitude.is_some() {
            let text = format!(
                "{}: DoRA on a base that PiSSA or OLoRA changed has no plain adapter that does the same",
                m.name
            );
            return Err(Error::unsupported(text));
        }
        let init = self.config.init_lora_weights();
        let (rows, columns) = (m.in_features(), m.out_features());
        let start = if self.config.fan_in_fan_out() && weight.len() == rows * columns {
            m.start(&init, &Matrix::from_f32(rows, columns, weight).transposed().to_f32())?
        } else {
            m.start(&init, weight)?
        };
        let mut plain = m.clone();
        plain.rank = 2 * m.rank;
        plain.alpha = m.scaling * plain.rank as f64;
        plain.a.extend(&start.a);
        let pairs = m.b.chunks(m.rank).zip(start.b.chunks(m.rank));
        plain.b = pairs.flat_map(|(b, b0)| b.iter().copied().chain(b0.iter().map(|v| -v))).collect();
        Ok(plain)
    }

    pub(crate) fn with_plain_modules(&self, modules: Vec<AdapterModule>) -> Result<Adapter> {
        let mut config = self.config.clone();
        config.set("init_lora_weights", "true")?;
        config.set("use_rslora", "false")?;
        Ok(Adapter::with_config(config, modules)?.beside(self))
    }
}
