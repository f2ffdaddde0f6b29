//! The wasm-bindgen façade.
