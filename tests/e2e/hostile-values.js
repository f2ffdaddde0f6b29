// Gives every file to everything that reads files. Runs on bare.html.
import * as L from "/dist/index.js";

const { gpu } = globalThis;

globalThis.tryAll = async (encoded) => {
  const files = Object.entries(encoded).map(([name, text]) => [name, Uint8Array.from(atob(text), (c) => c.charCodeAt(0))]);
  const get = (name) => files.find(([each]) => each === name)[1];
  const config = get("good.json"), weights = get("good.safetensors");
  const modelConfig = new TextEncoder().encode('{"model_type":"llama","num_attention_heads":2,"num_key_value_heads":2,"hidden_size":8,"vocab_size":9,"intermediate_size":8,"num_hidden_layers":1}');
  const modules = [{ name: "fc", inFeatures: 4, outFeatures: 4 }];
  const layers = globalThis.network(gpu), trainer = globalThis.trainerOf(gpu, layers);
  await trainer.step(globalThis.batches[0]);
  const uses = async (adapter) => {
    await adapter.report(modules, { strict: false }).catch(known);
    for (const format of ["gguf", "kohya", "hesper"]) await adapter.canExport(format);
    adapter.files().zip();
    for (const module of adapter.modules.slice(0, 4)) if (module.inFeatures * module.outFeatures < 1 << 20) module.deltaWeight();
    adapter.tensors.slice(0, 4).forEach((tensor) => { try { tensor.values(); } catch (error) { known(error); } });
  };
  const known = (error) => { if (!(error instanceof L.LoraError)) throw error; };
  const asFile = (bytes, name) => new File([bytes], name);
  const calls = {
    "loadPeft of a zip": (bytes) => L.loadPeft(bytes).then(uses),
    "loadPeft of a Blob": (bytes) => L.loadPeft(new Blob([bytes])).then(uses),
    "loadPeft, config": (bytes) => L.loadPeft({ config: bytes, weights }).then(uses),
    "loadPeft, weights": (bytes) => L.loadPeft({ config, weights: bytes }, { strict: false }).then(uses),
    "loadPeft of files": (bytes) => L.loadPeft([asFile(bytes, "adapter_config.json"), asFile(bytes, "adapter_model.safetensors")]),
    "importAdapter, GGUF": (file) => L.importAdapter({ format: "gguf", file, modelConfig }).then(uses),
    "importAdapter, GGUF's model": (bytes) => L.importAdapter({ format: "gguf", file: weights, modelConfig: bytes }),
    "importAdapter, Kohya": (file) => L.importAdapter({ format: "kohya", file, model: modules }).then(uses),
    "importAdapter, Kohya's model": (bytes) => L.importAdapter({ format: "kohya", file: weights, model: bytes }),
    "importAdapter, MLX": (file) => L.importAdapter({ format: "mlx", file, config: { lora_parameters: { scale: 2 } } }).then(uses),
    "importAdapter, Hesper": (file) => L.importAdapter({ format: "hesper", file, inFeatures: 4, qOutFeatures: 4, vOutFeatures: 4 }).then(uses),
    modelModules: (bytes) => L.modelModules([bytes]),
    "CausalLM.load, config": (bytes) => L.CausalLM.load(gpu, { config: bytes, weights }),
    "CausalLM.load, weights": (bytes) => L.CausalLM.load(gpu, { config: modelConfig, weights: bytes }),
    "CausalLM.load, GGUF": (bytes) => L.CausalLM.load(gpu, { gguf: bytes }),
    "CausalLM.load, index": (bytes) => L.CausalLM.load(gpu, { folder: [asFile(modelConfig, "config.json"), asFile(bytes, "model.safetensors.index.json")] }),
    readGguf: (bytes) => L.readGguf(bytes),
    parseJsonl: async (bytes) => L.parseJsonl(new TextDecoder().decode(bytes)),
    "Trainer.loadState": async (bytes) => trainer.loadState(bytes),
  };
  const before = globalThis.wasmMemory.buffer.byteLength;
  const outcomes = [];
  let slowest = [0];
  for (const [name, bytes] of files) {
    for (const [call, work] of Object.entries(calls)) {
      const start = performance.now();
      const late = new Promise((done) => setTimeout(done, 60_000, "hangs"));
      const code = await Promise.race([work(bytes.slice()).then(() => "success", (error) => (error instanceof L.LoraError ? error.code : `${error}`)), late]);
      const took = Math.round(performance.now() - start);
      if (took > slowest[0]) slowest = [took, name, call];
      outcomes.push([name, call, code]);
    }
  }
  const { loss } = await trainer.step(globalThis.batches[0]);
  return { names: files.map(([name]) => name), outcomes, slowest, wasm: { before, after: globalThis.wasmMemory.buffer.byteLength }, polluted: {}.polluted !== undefined || Object.prototype.text !== undefined, loss };
};
