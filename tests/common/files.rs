//! Golden files: from the folder of `LORA_GOLDEN`, else `tests/golden`; in the browser from the test runner's server, to
//! which that folder was copied.

use std::collections::HashMap;

use safetensors::SafeTensors;
use serde_json::Value;

/// Paths below the folder, sorted.
#[cfg(not(target_arch = "wasm32"))]
pub async fn list() -> Vec<String> {
    fn walk(folder: &std::path::Path, prefix: &str, found: &mut Vec<String>) {
        let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("golden folder {}: {e}", folder.display()));
        for entry in entries.map(Result::unwrap) {
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => walk(&entry.path(), &format!("{name}/"), found),
                false => found.push(name),
            }
        }
    }
    let mut found = Vec::new();
    walk(&folder(), "", &mut found);
    found.sort();
    found
}

#[cfg(not(target_arch = "wasm32"))]
pub async fn bytes(path: &str) -> Vec<u8> {
    std::fs::read(folder().join(path)).unwrap_or_else(|e| panic!("golden file {path}: {e}"))
}

#[cfg(not(target_arch = "wasm32"))]
fn folder() -> std::path::PathBuf {
    std::env::var_os("LORA_GOLDEN")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden").into(), Into::into)
}

/// Paths below the folder, as `index.json` lists them.
#[cfg(target_arch = "wasm32")]
pub async fn list() -> Vec<String> {
    serde_json::from_slice(&bytes("index.json").await).unwrap()
}

#[cfg(target_arch = "wasm32")]
pub async fn bytes(path: &str) -> Vec<u8> {
    use wasm_bindgen_futures::JsFuture;
    let folder = if option_env!("LORA_GOLDEN").is_some() { "/target/golden" } else { "/tests/golden" };
    let promise = web_sys::window().unwrap().fetch_with_str(&format!("{folder}/{path}"));
    let response: web_sys::Response = JsFuture::from(promise).await.unwrap().into();
    assert!(response.ok(), "golden file {folder}/{path}: HTTP {}", response.status());
    js_sys::Uint8Array::new(&JsFuture::from(response.array_buffer().unwrap()).await.unwrap()).to_vec()
}

/// Whether there is a file whose path begins or ends so. One that the package's own folder lacks is a failure; a folder of LORA_GOLDEN may hold
/// some kinds of numbers and not others, which is said.
pub async fn given(path: &str) -> bool {
    let found = list().await.iter().any(|name| name.starts_with(path) || name.ends_with(path));
    let other = if cfg!(target_arch = "wasm32") {
        option_env!("LORA_GOLDEN").is_some()
    } else {
        std::env::var_os("LORA_GOLDEN").is_some()
    };
    assert!(found || other, "golden {path} is missing");
    if !found {
        super::say(&format!("golden {path}: NOT COMPARED, the folder of LORA_GOLDEN has none"));
    }
    found
}

/// A JSON file.
pub async fn json(path: &str) -> Value {
    serde_json::from_slice(&bytes(path).await).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A safetensors file.
pub struct File {
    pub path: String,
    tensors: HashMap<String, (Vec<usize>, Vec<f32>)>,
    metadata: HashMap<String, Value>,
}

impl File {
    pub async fn read(path: &str) -> File {
        let bytes = bytes(path).await;
        let parsed = SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let tensors = parsed.tensors().into_iter().map(|(name, view)| {
            let words = || view.data().chunks_exact(4).map(|b| <[u8; 4]>::try_from(b).unwrap());
            let floats = match view.dtype() {
                safetensors::Dtype::F32 => words().map(f32::from_le_bytes).collect(),
                safetensors::Dtype::I32 => words().map(|b| i32::from_le_bytes(b) as f32).collect(), // labels: exact
                safetensors::Dtype::U8 => view.data().iter().map(|b| f32::from(*b)).collect(),
                safetensors::Dtype::I8 => view.data().iter().map(|b| f32::from(*b as i8)).collect(),
                other => panic!("{path}: {name} is {other:?}"),
            };
            (name, (view.shape().to_vec(), floats))
        });
        // Each value is JSON, except where it was a string before.
        let value = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()));
        File {
            path: path.into(),
            tensors: tensors.collect(),
            metadata: header.metadata().iter().flatten().map(|(name, text)| (name.clone(), value(text))).collect(),
        }
    }

    /// All tensors' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    #[track_caller]
    pub fn tensor(&self, name: &str) -> &[f32] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("{}: there is no tensor {name}", self.path)).1
    }

    /// Class labels.
    #[track_caller]
    pub fn labels(&self, name: &str) -> Vec<i32> {
        self.tensor(name).iter().map(|v| *v as i32).collect()
    }

    #[track_caller]
    pub fn shape(&self, name: &str) -> &[usize] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("{}: there is no tensor {name}", self.path)).0
    }

    #[track_caller]
    pub fn meta(&self, name: &str) -> &Value {
        self.metadata.get(name).unwrap_or_else(|| panic!("{}: there is no {name} in its metadata", self.path))
    }

    #[track_caller]
    pub fn number(&self, name: &str) -> f64 {
        self.meta(name).as_f64().unwrap_or_else(|| panic!("{}: {name} is no number", self.path))
    }
}
