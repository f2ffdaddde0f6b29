//! Several adapters as one, as PEFT's `add_weighted_adapter` defines it.

use super::adapter::{Adapter, AdapterModule};
use super::linalg::{Matrix, qr, svd};
use crate::error::{Error, Result};

/// How adapters are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combination {
    /// `A = Σ √(wᵢsᵢ)·Aᵢ`, and so B: of one rank, and an approximation, since the products of different adapters come in.
    Linear,
    /// All rows of A and all columns of B beside each other: exact, of the sum of the ranks.
    Cat,
    /// `Σ wᵢsᵢ·Bᵢ·Aᵢ` as nearly as its rank allows; by default the largest of the ranks.
    Svd {
        /// Rank of the result.
        rank: Option<usize>,
    },
}

impl Adapter {
    /// `Σ weight·adapter` as one adapter whose scaling is 1, with the configuration of the first otherwise.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for no adapter and weights that are not finite; [`Unmatched`](crate::error::ErrorKind::Unmatched) where a module differs in its
    /// widths or, for [`Combination::Linear`], in its rank; [`Unsupported`](crate::error::ErrorKind::Unsupported) for what a sum of adapters cannot hold: DoRA,
    /// biases of B, adapters whose base was changed, several that replace tensors of the base.
    pub fn combine(adapters: &[(&Adapter, f64)], combination: Combination) -> Result<Adapter> {
        let Some(((first, _), rest)) = adapters.split_first() else {
            return Err(Error::argument("adapters", "at least one", "none"));
        };
        if adapters.iter().any(|(_, weight)| !weight.is_finite()) {
            return Err(Error::argument("weights", "finite numbers", "others"));
        }
        let mut others = &first.others;
        for (adapter, _) in rest {
            if !others.is_empty() && !adapter.others.is_empty() {
                let text =
                    format!("several adapters replace tensors of the base ({}), which cannot be added", others[0].name);
                return Err(Error::unsupported(text));
            }
            others = if others.is_empty() { &adapter.others } else { others };
        }
        let mut names: Vec<&AdapterModule> = Vec::new();
        for (adapter, _) in adapters {
            if adapter.config.init_lora_weights().changes_base() {
                let text = "an adapter of PiSSA or OLoRA cannot be combined: its base is another one; convert it to a plain one first";
                return Err(Error::unsupported(text.into()));
            }
            for module in &adapter.modules {
                if module.magnitude.is_some() || module.lora_bias.is_some() {
                    let text = format!("{}: magnitudes of DoRA and biases of B cannot be combined", module.name);
                    return Err(Error::unsupported(text));
                }
                match names.iter().find(|other| other.name == module.name) {
                    None => names.push(module),
                    Some(other) => fits(other, module)?,
                }
            }
        }
        // As in PEFT: one adapter alone is weighted as it is.
        let combination = if rest.is_empty() { Combination::Linear } else { combination };
        let mut modules = Vec::new();
        for module in names {
            let own = |(adapter, weight): &(&'_ Adapter, f64)| {
                let found = adapter.modules.iter().find(|m| m.name == module.name)?;
                Some((found.clone(), weight * found.scaling))
            };
            let parts: Vec<(AdapterModule, f64)> = adapters.iter().filter_map(own).collect();
            modules.push(combined(&parts, combination)?);
        }
        let mut config = first.config.clone();
        config.set("use_rslora", "false")?;
        let mut sum = Adapter::with_config(config, modules)?;
        sum.others.clone_from(others);
        Ok(sum)
    }
}

fn fits(one: &AdapterModule, other: &AdapterModule) -> Result<()> {
    let widths = |m: &AdapterModule| (m.kind, m.in_features(), m.out_features());
    if widths(one) != widths(other) {
        return Err(Error::unmatched(format!("{}: the adapters are of different widths", one.name)));
    }
    Ok(())
}

/// One module of all adapters that have it, with what each is multiplied with.
fn combined(parts: &[(AdapterModule, f64)], combination: Combination) -> Result<AdapterModule> {
    let mut out = parts[0].0.clone();
    let (columns, rows) = (out.in_features(), out.out_features());
    match combination {
        Combination::Linear => {
            if let Some((odd, _)) = parts.iter().find(|(m, _)| m.rank != out.rank) {
                let text = format!(
                    "{}: ranks {} and {}; expected one rank for a linear combination",
                    out.name, out.rank, odd.rank
                );
                return Err(Error::unmatched(text));
            }
            let sum = |values: fn(&AdapterModule) -> &[f32], signed: bool| -> Vec<f32> {
                let factor = |s: f64| s.abs().sqrt() * if signed && s < 0.0 { -1.0 } else { 1.0 };
                let element = |i| parts.iter().map(|(m, s)| factor(*s) * f64::from(values(m)[i])).sum::<f64>() as f32;
                (0..values(&parts[0].0).len()).map(element).collect()
            };
            (out.a, out.b) = (sum(|m| &m.a, true), sum(|m| &m.b, false));
        }
        Combination::Cat => {
            let (a, b) = side_by_side(parts);
            (out.rank, out.a, out.b) = (a.rows, a.to_f32(), b.to_f32());
        }
        Combination::Svd { rank } => {
            let most = parts.iter().map(|(m, _)| m.rank).max().unwrap_or(1);
            out.rank = rank.unwrap_or(most);
            if out.rank == 0 || out.rank > rows.max(columns) {
                return Err(Error::argument("rank", "at least 1 and at most the widths", out.rank.to_string()));
            }
            // Δ = B·A = (B·R)·Q with Q·Qᵀ = 1: the decomposition of B·R, of few columns, is that of Δ.
            let (a, b) = side_by_side(parts);
            let (q, r) = qr(&a.transposed(), a.rows);
            let (sigma, mut u, v) = svd(&b.times(&r.transposed()), out.rank);
            for (i, sigma) in sigma.iter().enumerate() {
                u.row_mut(i).iter_mut().for_each(|x| *x *= sigma);
            }
            let (mut a, mut u) = (v.times(&q), u);
            // Where Δ has a lower rank than asked for, the rest is zeros.
            for (m, width) in [(&mut a, columns), (&mut u, rows)] {
                m.data.resize(out.rank * width, 0.0);
                m.rows = out.rank;
            }
            (out.a, out.b) = (a.to_f32(), u.transposed().to_f32());
        }
    }
    out.alpha = out.rank as f64;
    Ok(out)
}

/// `[s₁A₁; s₂A₂; …]` and `[B₁, B₂, …]`
fn side_by_side(parts: &[(AdapterModule, f64)]) -> (Matrix, Matrix) {
    let rank = parts.iter().map(|(m, _)| m.rank).sum();
    let (columns, rows) = (parts[0].0.in_features(), parts[0].0.out_features());
    let (mut a, mut b) = (Matrix::zeros(rank, columns), Matrix::zeros(rows, rank));
    let mut start = 0;
    for (m, scale) in parts {
        let scaled = m.a.iter().map(|v| scale * f64::from(*v));
        a.data[start * columns..].iter_mut().zip(scaled).for_each(|(to, v)| *to = v);
        for (row, from) in m.b.chunks(m.rank).enumerate() {
            b.row_mut(row)[start..].iter_mut().zip(from).for_each(|(to, v)| *to = f64::from(*v));
        }
        start += m.rank;
    }
    (a, b)
}
