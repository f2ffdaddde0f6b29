//! Losses with their gradients, in the same recording.

pub mod mse;
pub mod sum;
