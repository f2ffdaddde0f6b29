//! How far a GPU result may be from the f64 reference.

use crate::reference::Sum;

/// f32 rounds to within this share.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// One element that a kernel must give.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub value: f64,
    pub bound: f64,
}

/// For sums of K products: 4·√K·2⁻²⁴·S + 2⁻²³·|ref|, and where there are functions in it, their errors; what is below
/// 2⁻¹⁰⁰ is then as good as 0, since exponents are clamped and subnormals flushed.
pub fn products(sums: &[Sum]) -> Vec<Expected> {
    let tiny = |s: &Sum| if s.extra > 0.0 || s.terms == 0 { 2f64.powi(-100) } else { 0.0 };
    let bound = |s: &Sum| U * (4.0 * (s.terms as f64).sqrt() * s.abs + s.extra + 2.0 * s.value.abs()) + tiny(s);
    sums.iter().map(|s| Expected { value: s.value, bound: bound(s) }).collect()
}

/// Where each part of a result meets at most `n` roundings: n·2⁻²⁴·S + 2⁻²³·|ref|.
pub fn roundings(n: f64, sums: &[Sum]) -> Vec<Expected> {
    sums.iter().map(|s| Expected { value: s.value, bound: n * U * s.abs + 2.0 * U * s.value.abs() }).collect()
}

/// For numbers that were rounded once more on their way into a file.
pub fn rounded_once_more(values: &[f64], expected: &[Expected]) -> Vec<Expected> {
    values.iter().zip(expected).map(|(&value, e)| Expected { value, bound: e.bound + U * value.abs() }).collect()
}

/// For results that are copied: every bit.
pub fn exact(values: &[f64]) -> Vec<Expected> {
    values.iter().map(|&value| Expected { value, bound: 0.0 }).collect()
}

/// For a parameter after some updates, each of which rounds it once: absolute + updates·2⁻²⁴·max|ref|, the maximum
/// being that of its values so far, the first to the last of `history`.
pub fn updated(absolute: f64, history: &[Vec<f64>]) -> Vec<Expected> {
    let updates = (history.len() - 1) as f64;
    let largest = |i: usize| history.iter().map(|values| values[i].abs()).fold(0.0, f64::max);
    let last = &history[history.len() - 1];
    (0..last.len()).map(|i| Expected { value: last[i], bound: absolute + updates * U * largest(i) }).collect()
}

/// The worst of some comparisons.
#[derive(Debug, Clone, Copy, Default)]
pub struct Worst {
    /// |gpu − ref| / bound
    pub share: f64,
    /// |gpu − ref|
    pub absolute: f64,
}

impl Worst {
    pub fn and(self, other: Worst) -> Worst {
        Worst { share: self.share.max(other.share), absolute: self.absolute.max(other.absolute) }
    }
}

/// Compares what the GPU wrote over `before` with what was expected.
///
/// Fails too where the comparison proves nothing: where all zeros would have passed, or `before`, left as it was.
pub fn compare(name: &str, before: &[f32], gpu: &[f32], expected: &[Expected]) -> Result<Worst, String> {
    if gpu.len() != expected.len() {
        return Err(format!("{name}: {} elements, {} expected", gpu.len(), expected.len()));
    }
    let passes = |(value, e): (&f32, &Expected)| (f64::from(*value) - e.value).abs() <= e.bound;
    if expected.iter().all(|e| e.value.abs() <= e.bound) {
        return Err(format!("{name}: a result of zeros would pass, so this shape proves nothing"));
    }
    if before.iter().zip(expected).all(passes) {
        return Err(format!("{name}: the output as it was before would pass, so this shape proves nothing"));
    }
    let mut worst = Worst::default();
    for (i, (&value, e)) in gpu.iter().zip(expected).enumerate() {
        if !value.is_finite() || !passes((&value, e)) {
            let bad = gpu.iter().zip(expected).filter(|&pair| !passes(pair)).count();
            return Err(format!(
                "{name}[{i}]: {value:e} is not {:e} ± {:e}; {bad} of {} elements are wrong",
                e.value,
                e.bound,
                gpu.len()
            ));
        }
        let absolute = (f64::from(value) - e.value).abs();
        let share = if absolute == 0.0 { 0.0 } else { absolute / e.bound };
        worst = worst.and(Worst { share, absolute });
    }
    Ok(worst)
}

/// [`compare`], panicking, for outputs that were NaN or something random before.
#[track_caller]
pub fn assert_close(name: &str, gpu: &[f32], expected: &[Expected]) -> Worst {
    compare(name, &vec![f32::NAN; gpu.len()], gpu, expected).unwrap_or_else(|failure| panic!("{failure}"))
}
