//! What the test binaries share: a GPU, random tensors, the tolerance, golden files, output.
//!
//! `#[wasm_bindgen_test(unsupported = pollster::test)]` runs one async test in both places: in the browser by
//! wasm-bindgen-test, natively by cargo.
#![allow(dead_code)] // each binary takes a part

pub mod files;
pub mod tolerance;

use lora_webgpu::{Error, Gpu, GpuRequest, Profile, Result, Tensor};

/// What kernels are chosen for; every adapter can run both.
pub const PROFILES: [Profile; 2] = [Profile::Hardware, Profile::Software];

/// A GPU with the kernels that fit it. No adapter is a failure.
pub async fn gpu() -> Gpu {
    shared(None).await
}

/// A GPU with the kernels of this profile.
pub async fn gpu_as(profile: Profile) -> Gpu {
    shared(Some(profile)).await
}

/// A GPU of the caller's own.
pub async fn fresh_gpu(profile: Option<Profile>) -> Gpu {
    match Gpu::request(GpuRequest { profile, ..Default::default() }).await {
        Ok(gpu) => gpu,
        Err(error) => panic!("the tests need a GPU adapter: {error}"),
    }
}

/// In the browser all tests of a binary share.
#[cfg(target_arch = "wasm32")]
async fn shared(profile: Option<Profile>) -> Gpu {
    use std::cell::RefCell;
    thread_local!(static SHARED: RefCell<Vec<(Option<Profile>, Gpu)>> = const { RefCell::new(Vec::new()) });
    let found = SHARED.with_borrow(|all| all.iter().find(|(p, _)| *p == profile).map(|(_, gpu)| gpu.clone()));
    match found {
        Some(gpu) => gpu,
        None => {
            let gpu = fresh_gpu(profile).await;
            SHARED.with_borrow_mut(|all| all.push((profile, gpu.clone())));
            gpu
        }
    }
}

/// Natively each test has a thread of its own, at whose end it is too late to drop what wgpu holds.
#[cfg(not(target_arch = "wasm32"))]
async fn shared(profile: Option<Profile>) -> Gpu {
    fresh_gpu(profile).await
}

/// Random numbers of the tests, the same in every run.
pub struct Rng(pub u64);

impl Rng {
    /// In [-1, 1), with 24 bits.
    pub fn number(&mut self) -> f32 {
        // SplitMix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z >> 40) as i32 - (1 << 23)) as f32 / (1 << 23) as f32
    }

    pub fn numbers(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.number()).collect()
    }

    /// A tensor on the GPU with its values.
    pub fn tensor(&mut self, gpu: &Gpu, label: &str, shape: &[usize]) -> (Tensor, Vec<f64>) {
        let data = self.numbers(shape.iter().product());
        (Tensor::from_slice(gpu, label, shape, &data).unwrap(), f64s(&data))
    }
}

pub fn f64s(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Equality that tells NaNs and signs of zero apart.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// That `result` is an error of this code whose message has all `words`.
#[track_caller]
pub fn refused<T>(what: &str, result: Result<T>, code: &str, words: &[&str]) -> Error {
    let error = match result {
        Ok(_) => panic!("{what}: expected the error {code}, got success"),
        Err(error) => error,
    };
    assert_eq!(error.code(), code, "{what}: {error}");
    for word in words {
        assert!(error.to_string().contains(word), "{what}: the message should name «{word}»: {error}");
    }
    error
}

/// Prints a line even where the test passes.
pub fn say(line: &str) {
    #[cfg(target_arch = "wasm32")]
    wasm_bindgen_test::console_log!("{line}");
    #[cfg(not(target_arch = "wasm32"))]
    {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "{line}"); // libtest captures only the print macros
    }
}
