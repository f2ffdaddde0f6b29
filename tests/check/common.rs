//! Of what the tests share, what needs no test runner.

#[path = "../common/numbers.rs"]
mod numbers;
#[path = "../common/tolerance.rs"]
pub mod tolerance;

pub use numbers::{Rng, f64s};
