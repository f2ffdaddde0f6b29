//! Learning-rate schedules, as transformers computes them.

use crate::error::{Error, Result};

/// How the learning rate changes with the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Always the same (`get_constant_schedule`).
    #[default]
    Constant,
    /// Up over `warmup` steps, then the same (`get_constant_schedule_with_warmup`).
    ConstantWithWarmup {
        /// Steps of the rise.
        warmup: usize,
    },
    /// Up over `warmup` steps, then down in a line to 0 at step `total` (`get_linear_schedule_with_warmup`).
    Linear {
        /// Steps of the rise.
        warmup: usize,
        /// Steps in all.
        total: usize,
    },
    /// Up over `warmup` steps, then down half a cosine to 0 at step `total` (`get_cosine_schedule_with_warmup`).
    Cosine {
        /// Steps of the rise.
        warmup: usize,
        /// Steps in all.
        total: usize,
    },
}

/// A table of 4 million steps is 16 MB.
const MAX_ROWS: usize = 4_000_000;

impl Schedule {
    /// The factor of the base learning rate at `step`, from 0.
    pub fn factor(self, step: usize) -> f64 {
        let rise = |warmup: usize| step as f64 / warmup.max(1) as f64;
        match self {
            Schedule::ConstantWithWarmup { warmup }
            | Schedule::Linear { warmup, .. }
            | Schedule::Cosine { warmup, .. }
                if step < warmup =>
            {
                rise(warmup)
            }
            Schedule::Constant | Schedule::ConstantWithWarmup { .. } => 1.0,
            Schedule::Linear { warmup, total } => {
                (total.saturating_sub(step) as f64 / total.saturating_sub(warmup).max(1) as f64).max(0.0)
            }
            Schedule::Cosine { warmup, total } => {
                let progress = (step - warmup) as f64 / total.saturating_sub(warmup).max(1) as f64;
                (0.5 * (1.0 + cosine(std::f64::consts::PI * progress))).max(0.0)
            }
        }
    }

    /// The learning rate of each step; the last row holds for all later ones.
    pub(crate) fn table(self, lr: f64) -> Result<Vec<f32>> {
        let last = match self {
            Schedule::Constant => 0,
            Schedule::ConstantWithWarmup { warmup } => warmup,
            Schedule::Linear { warmup, total } | Schedule::Cosine { warmup, total } => {
                if total == 0 || warmup > total {
                    return Err(Error::argument(
                        "schedule",
                        "warmup ≤ total and total ≥ 1",
                        format!("warmup {warmup}, total {total}"),
                    ));
                }
                total
            }
        };
        if last >= MAX_ROWS {
            return Err(Error::argument("schedule", "fewer than 4,000,000 steps", last.to_string()));
        }
        Ok((0..=last).map(|step| (lr * self.factor(step)) as f32).collect())
    }
}

/// In the browser by JavaScript, whose function is there already.
fn cosine(angle: f64) -> f64 {
    #[cfg(target_arch = "wasm32")]
    return js_sys::Math::cos(angle);
    #[cfg(not(target_arch = "wasm32"))]
    angle.cos()
}
