// The package as Node imports it, which fetches no files: it reads the wasm from disk. A Gpu still takes a WebGPU, which
// Node lacks unless somebody sets `navigator.gpu`.
// @ts-expect-error: Node's types are no dependency of this package
import { readFile } from "node:fs/promises";
import { ownSource } from "./wasm.js";

ownSource(() => readFile(new URL("./wasm/lora_webgpu_bg.wasm", import.meta.url)) as Promise<Uint8Array<ArrayBuffer>>);
export * from "./index.js";
