//! Losses as sums over what they count, with the gradients of those sums; `mean` divides.
//!
//! What functions may err by (WGSL): exp 3 + 2·|x| ulp, division 2.5 ulp, log 2⁻²¹ between ½ and 2, else 3 ulp; an ulp is
//! at most 2 roundings.

use super::{Sum, dot, logistic};

/// Σ (output − target)², with its gradient 2·(output − target).
pub fn mse(output: &[f64], targets: &[f64]) -> (Sum, Vec<Sum>) {
    let pairs = || output.iter().zip(targets);
    let loss = dot(pairs().map(|(o, t)| (o - t, o - t)));
    let gradient = pairs().map(|(o, t)| Sum::of(*o).plus(Sum::of(-t)).times(2.0)).collect();
    (loss, gradient)
}

/// Σ −y·log σ(z) − (1−y)·log(1−σ(z)), with its gradient σ(z) − y.
///
/// In f32 it is max(z, 0) − z·y + log(1 + e⁻ᶻ): the logarithm's argument has the exponential's error, and its series 10
/// roundings.
pub fn bce_with_logits(output: &[f64], targets: &[f64]) -> (Sum, Vec<Sum>) {
    let (mut loss, mut gradient) = (Sum::default(), Vec::new());
    for (&z, &y) in output.iter().zip(targets) {
        let softplus = (-z.abs()).exp().ln_1p();
        loss = loss
            .plus(Sum::of(z.max(0.0)))
            .plus(Sum::of(-z * y))
            .plus(Sum { extra: softplus * (16.0 + 4.0 * z.abs()), ..Sum::of(softplus) });
        let sigma = logistic(z);
        gradient.push(Sum { value: sigma.value - y, ..sigma });
    }
    (loss, gradient)
}

/// For rows of logits z and labels t, the sum over the rows whose label is not `ignore_index` of
/// −Σ q·log softmax(z), q being 1−ε at the label plus ε/classes everywhere; its gradient softmax(z) − q, 0 in the other
/// rows; and how many rows counted.
pub fn cross_entropy(
    classes: usize,
    logits: &[f64],
    labels: &[i32],
    ignore_index: i32,
    smoothing: f64,
) -> (Sum, Vec<Sum>, usize) {
    let (mut loss, mut gradient, mut counted) = (Sum::default(), Vec::new(), 0);
    let share = smoothing / classes as f64;
    for (row, &label) in logits.chunks(classes).zip(labels) {
        if label == ignore_index {
            gradient.extend(vec![Sum::default(); classes]);
            continue;
        }
        counted += 1;
        let highest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let below: Vec<f64> = row.iter().map(|z| z - highest).collect();
        let total: f64 = below.iter().map(|z| z.exp()).sum();
        let log_total = total.ln();
        // Of each probability: the exponential of a rounded argument, the sum of all of them, and the quotient.
        let exp_error = |z: f64| 6.0 + 5.0 * z.abs();
        let total_error =
            below.iter().map(|z| z.exp() / total * exp_error(*z)).sum::<f64>() + 4.0 * (classes as f64).sqrt();
        let log_error = total_error + if total < 2.001 { 8.0 } else { 6.0 * log_total };
        for (c, &z) in below.iter().enumerate() {
            let p = z.exp() / total;
            let hit = if c as i32 == label { 1.0 - smoothing } else { 0.0 };
            let extra = p * (12.0 + exp_error(z) + total_error) + 3.0 * hit + 6.0 * share;
            gradient.push(Sum { value: p - hit - share, extra, ..Sum::default() });
            let q = hit + share;
            loss = loss.plus(Sum {
                value: -q * (z - log_total),
                abs: q * (z.abs() + log_total),
                terms: 1,
                extra: q * (log_error + 8.0 * (z.abs() + log_total)),
            });
        }
    }
    (loss, gradient, counted)
}

/// Of each row of logits: [max z, Σ exp(z − max), z of the label], over all classes.
///
/// Merging chunks multiplies exponentials, whose errors add up: 7 roundings for each chunk.
pub fn lm_head_stats(classes: usize, logits: &[f64], labels: &[i32], chunks: usize) -> Vec<[Sum; 3]> {
    let one = |(row, label): (&[f64], &i32)| {
        let highest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let part = |z: f64| (z - highest).exp() * (6.0 + 5.0 * (highest - z) + 7.0 * chunks as f64);
        let sum =
            row.iter().fold(Sum::default(), |sum, z| sum.plus(Sum { extra: part(*z), ..Sum::of((z - highest).exp()) }));
        let exact = |value| Sum { value, ..Sum::default() };
        [exact(highest), sum, exact(row[*label as usize])]
    };
    logits.chunks(classes).zip(labels).map(one).collect()
}

/// Σ max + log Σ exp(z − max) − z of the label over the rows whose label is not `ignore_index`, and their number.
pub fn lm_head_loss(stats: &[f64], labels: &[i32], ignore_index: i32) -> (Sum, usize) {
    let counted = || stats.chunks(3).zip(labels).filter(|(_, label)| **label != ignore_index);
    let part = |row: &[f64]| {
        let log_sum = row[1].ln();
        let error = if row[1] < 2.001 { 8.0 } else { 6.0 * log_sum };
        let rounding = 2.0 * (row[0] - row[2]).abs() + log_sum;
        Sum { extra: error + rounding, ..Sum::of(row[0] - row[2] + log_sum) }
    };
    (counted().fold(Sum::default(), |sum, (row, _)| sum.plus(part(row))), counted().count())
}

/// exp(z − max)/Σ exp(z − max) − 1 at the label, for the classes from `first_class` on; 0 in ignored rows.
pub fn lm_head_grad(
    width: usize,
    first_class: usize,
    logits: &[f64],
    stats: &[f64],
    labels: &[i32],
    ignore_index: i32,
) -> Vec<Sum> {
    let one = |i: usize| {
        let (row, class) = (i / width, first_class + i % width);
        if labels[row] == ignore_index {
            return Sum::default();
        }
        let z = logits[i] - stats[3 * row];
        let p = z.exp() / stats[3 * row + 1];
        let hit = if class as i32 == labels[row] { 1.0 } else { 0.0 };
        Sum { value: p - hit, extra: p * (11.0 + 5.0 * z.abs()) + hit, ..Sum::default() }
    };
    (0..logits.len()).map(one).collect()
}

/// [Σ values, Σ counts] of pairs, added to `old`.
pub fn total(partial_sums: &[f64], old: [f64; 2]) -> [Sum; 2] {
    [0, 1].map(|i| dot(partial_sums.iter().skip(i).step_by(2).map(|v| (*v, 1.0))).plus(Sum::of(old[i])))
}

/// (sum/count, gradient/count); zeros where nothing is counted. A division has 5 roundings.
pub fn mean([sum, count]: [f64; 2], gradient: &[f64]) -> (Sum, Vec<Sum>) {
    let divide = |v: f64| match count > 0.0 {
        true => Sum { value: v / count, extra: 5.0 * (v / count).abs(), ..Sum::default() },
        false => Sum::default(),
    };
    (divide(sum), gradient.iter().map(|g| divide(*g)).collect())
}
