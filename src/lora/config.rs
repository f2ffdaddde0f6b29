//! Rank, alpha, scaling and initialisation.

use crate::error::{Error, Result, room, show_number};

/// How `A` starts; `B` is always zero, so that a new adapter changes nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Init {
    /// Uniform in `±1/√in_features`: PEFT's `kaiming_uniform_(a=√5)`.
    #[default]
    Peft,
    /// Uniform in `±√(3/in_features)`: that of Hesper, the system in Lean whose LoRA kernels are the origin of these.
    Hesper,
}

/// Configuration of one adapter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoraConfig {
    /// Inner dimension of `B·A`.
    pub rank: usize,
    /// Numerator of the scaling.
    pub alpha: f64,
    /// Scale by `alpha/√rank` instead of `alpha/rank`.
    pub use_rslora: bool,
    /// Share of the layer's input that is dropped before `A` in training steps, in `[0, 1)`: PEFT's `lora_dropout`.
    pub dropout: f64,
    /// DoRA: a trained length for each row of `W + scaling·B·A`.
    pub use_dora: bool,
    /// A trained bias beside `B`: PEFT's `lora_bias`.
    pub lora_bias: bool,
    /// Train the base's own bias, too, where it has one: PEFT's `bias`.
    pub train_bias: bool,
    /// Distribution of `A`.
    pub init: Init,
    /// The same seed gives the same bits everywhere.
    pub seed: u64,
}

impl LoraConfig {
    /// PEFT's defaults for this rank and alpha.
    pub fn new(rank: usize, alpha: f64) -> LoraConfig {
        LoraConfig {
            rank,
            alpha,
            use_rslora: false,
            dropout: 0.0,
            use_dora: false,
            lora_bias: false,
            train_bias: false,
            init: Init::default(),
            seed: 0,
        }
    }

    /// `alpha/rank`, with rsLoRA `alpha/√rank`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for rank 0 and an alpha that is not finite, or too large for f32.
    pub fn scaling(&self) -> Result<f32> {
        if self.rank == 0 {
            return Err(Error::argument("rank", "at least 1", "0"));
        }
        let divisor = if self.use_rslora { (self.rank as f64).sqrt() } else { self.rank as f64 };
        let scaling = (self.alpha / divisor) as f32;
        if !scaling.is_finite() {
            return Err(Error::argument("alpha", "a finite number", show_number(self.alpha)));
        }
        Ok(scaling)
    }

    /// # Errors
    /// As [`LoraConfig::scaling`], and for a dropout outside `[0, 1)` or DoRA with `lora_bias`.
    pub fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Error::argument("dropout", "a number in [0, 1)", show_number(self.dropout)));
        }
        if self.use_dora && self.lora_bias {
            return Err(Error::argument("lora_bias", "no bias beside B with DoRA, which has no place for it", "both"));
        }
        self.scaling().map(drop)
    }

    /// The start values of `A [rank, in_features]`.
    ///
    /// # Errors
    /// [`Limit`](crate::error::ErrorKind::Limit) where the memory has no room for them.
    pub(crate) fn initial_a(&self, in_features: usize) -> Result<Vec<f32>> {
        let bound = match self.init {
            Init::Peft => 1.0 / (in_features as f64).sqrt(),
            Init::Hesper => (3.0 / in_features as f64).sqrt(),
        };
        let mut state = self.seed;
        let mut a = room("lora_A", (self.rank as u64).saturating_mul(in_features as u64))?;
        (0..self.rank * in_features).for_each(|_| a.push(((2.0 * unit(&mut state) - 1.0) * bound) as f32));
        Ok(a)
    }
}

/// The next number in `[0, 1)`: SplitMix64 (Steele, Lea and Flood 2014), its upper 53 bits.
fn unit(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
