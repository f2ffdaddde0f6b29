//! What the test binaries share: a GPU, random tensors, the tolerance, golden files, output.
//!
//! `#[wasm_bindgen_test(unsupported = pollster::test)]` runs one async test in both places: in the browser by
//! wasm-bindgen-test, natively by cargo.
#![allow(dead_code)] // each binary takes a part

pub mod files;
pub mod gguf;
mod numbers;
pub mod tolerance;

use lora_webgpu::{Error, Gpu, GpuRequest, Profile, Result};
#[allow(unused_imports)]
pub use numbers::{Rng, f64s};

/// What kernels are chosen for; every adapter can run both.
pub const PROFILES: [Profile; 2] = [Profile::Hardware, Profile::Software];

/// What `LORA_PROFILE` asks for, in the browser when the tests are compiled: the kernels for `hardware` or `software`, or
/// `plain-hardware` or `plain-software`, which are those for devices without subgroups and f16.
fn asked() -> Option<String> {
    match cfg!(target_arch = "wasm32") {
        true => option_env!("LORA_PROFILE").map(str::to_string),
        false => std::env::var("LORA_PROFILE").ok(),
    }
}

/// A GPU with the kernels that fit it, or those that are asked for. No adapter is a failure.
pub async fn gpu() -> Gpu {
    let profile = asked().map(|name| match name.as_str() {
        "hardware" | "plain-hardware" => Profile::Hardware,
        "software" | "plain-software" => Profile::Software,
        _ => panic!("LORA_PROFILE is hardware, software, plain-hardware or plain-software, not {name}"),
    });
    shared(profile).await
}

/// A GPU with the kernels of this profile.
pub async fn gpu_as(profile: Profile) -> Gpu {
    shared(Some(profile)).await
}

/// A GPU of the caller's own.
pub async fn fresh_gpu(profile: Option<Profile>) -> Gpu {
    let plain = asked().is_some_and(|name| name.starts_with("plain"));
    #[cfg(target_arch = "wasm32")]
    if !plain {
        ask_for_features();
    }
    match Gpu::request(GpuRequest { profile, plain, ..Default::default() }).await {
        Ok(gpu) => gpu,
        Err(error) => panic!("the tests need a GPU adapter: {error}"),
    }
}

/// From now on the browser's devices have the features that kernels are chosen by, where the adapter does: the package's own
/// are asked for by the TypeScript layer, and wgpu knows of no subgroups in a browser.
#[cfg(target_arch = "wasm32")]
fn ask_for_features() {
    let work = "const own = GPUAdapter.prototype.requestDevice;
        if (own.length === 0) GPUAdapter.prototype.requestDevice = function (descriptor) {
            const more = ['subgroups', 'shader-f16'].filter((name) => this.features.has(name));
            return own.call(this, { ...descriptor, requiredFeatures: [...(descriptor.requiredFeatures ?? []), ...more] });
        };";
    js_sys::Function::new_no_args(work).call0(&wasm_bindgen::JsValue::NULL).unwrap();
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
