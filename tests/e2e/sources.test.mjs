// Where models come from: GGUF, folders, addresses, shards, a server that answers like the Hub.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join, normalize } from "node:path";
import { after, before, test } from "node:test";
import { Tokenizer } from "@huggingface/tokenizers";
import { readGguf } from "../../dist/index.js";
import { root } from "../../scripts/lib.mjs";
import { launch, onPage } from "./browser.mjs";
import { llamaGguf, safetensors, writeGguf, writeSafetensors } from "./gguf.mjs";

const FOLDER = join(root, "tests/golden/models/llama_tied_all");
const config = readFileSync(join(FOLDER, "config.json"));
const tensors = safetensors(join(FOLDER, "model.safetensors"));
const trace = safetensors(join(FOLDER, "trace.safetensors"));
const ints = (name) => { const { bytes } = trace.find((one) => one.name === name); return Array.from({ length: bytes.length / 4 }, (_, i) => bytes.readInt32LE(4 * i)); };
const greedy = ints("greedy_ids"), PROMPT = 8;

// Three models of the Hub: in one file, in two shards, and with a shard that is not there.
const half = tensors.length >> 1;
const [one, two] = [tensors.slice(0, half), tensors.slice(half)];
const index = (second) => Buffer.from(JSON.stringify({
  metadata: {}, weight_map: Object.fromEntries([...one.map(({ name }) => [name, "model-00001-of-00002.safetensors"]), ...two.map(({ name }) => [name, second])]),
}));
const SHA = "0123456789abcdef0123456789abcdef01234567";
const tokenizer = Buffer.from('{"version":"1.0"}');
const MODELS = {
  "tiny/one": { "config.json": config, "model.safetensors": writeSafetensors(tensors), "tokenizer.json": tokenizer },
  "tiny/sharded": {
    "config.json": config, "model.safetensors.index.json": index("model-00002-of-00002.safetensors"),
    "model-00001-of-00002.safetensors": writeSafetensors(one), "model-00002-of-00002.safetensors": writeSafetensors(two),
  },
  "tiny/absent": { "config.json": config, "model.safetensors.index.json": index("model-00003-of-00003.safetensors"), "model-00001-of-00002.safetensors": writeSafetensors(one) },
  "tiny/gguf": { "model.gguf": llamaGguf(JSON.parse(config), tensors, { "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.merges": [], "tokenizer.chat_template": "{{ messages }}" }) },
};

let browser, server, url, asked = [];
before(async () => {
  const types = { html: "text/html", js: "text/javascript", wasm: "application/wasm", json: "application/json" };
  server = createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    const hub = /^\/hub\/(?:api\/models\/)?(\w+\/\w+)\/(revision|resolve)\/([^/]+)(?:\/(.+))?$/.exec(pathname);
    if (hub) asked.push(pathname.slice(5));
    let body;
    if (hub?.[2] === "revision" && hub[3] === "main") body = MODELS[hub[1]] && Buffer.from(JSON.stringify({ id: hub[1], sha: SHA }));
    else if (hub) body = [SHA, "v1"].includes(hub[3]) ? MODELS[hub[1]]?.[hub[4]] : undefined;
    else try { body = readFileSync(join(root, normalize(pathname))); } catch { body = undefined; }
    if (!body) return response.writeHead(404).end();
    response.writeHead(200, { "content-type": types[/\w+$/.exec(pathname)?.[0]] ?? "application/octet-stream", "content-length": body.length }).end(body);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  url = `http://localhost:${server.address().port}/`;
  browser = await launch();
});
after(async () => {
  await browser?.close();
  server?.closeAllConnections();
  server?.close();
});

// `missing`: what the page may ask for in vain.
const inPage = (name, work, argument, check, missing = /model\.safetensors$|nothing|revision/) => test(name, () => onPage(browser, `${url}tests/e2e/bare.html`, {}, async (page, errors) => {
  await page.waitForFunction(() => globalThis.ready);
  await page.evaluate(async () => {
    globalThis.L = await import("/dist/index.js");
    globalThis.code = (promise) => promise.then(() => "success", (error) => `${error.code}: ${error.message}`);
    globalThis.greedy = async (model, prompt, count) => {
      const ids = [];
      for await (const id of model.generate(prompt, { maxTokens: count, stopTokenIds: [] })) ids.push(id);
      return ids;
    };
    globalThis.endpoint = new URL("/hub", location.href).href;
  });
  await check(await page.evaluate(work, argument));
  const left = errors.filter((error) => !(missing.test(error) && error.startsWith("404")) && !/Failed to load resource.*404/.test(error));
  errors.length = 0;
  assert.deepEqual(left, []);
}));

const text = { prompt: greedy.slice(0, PROMPT), count: greedy.length - PROMPT };

inPage("from the Hub, whole, in shards and as GGUF; the second time from this machine", async ({ prompt, count }) => {
  const files = new Set();
  let [downloaded, whole] = [0, 0];
  const onProgress = ({ loaded, total, file, tensor }) => {
    if (file) {
      files.add(file);
      [downloaded, whole] = [loaded, total];
    } else if (!tensor) throw new Error("neither file nor tensor");
  };
  const results = {};
  for (const [hub, more] of [["tiny/one"], ["tiny/sharded"], ["tiny/gguf", { gguf: "model.gguf" }]]) {
    const model = await L.CausalLM.load(gpu, { hub, endpoint, onProgress, ...more });
    results[hub] = await greedy(model, prompt, count);
    model.dispose();
  }
  const first = [...files];
  files.clear();
  const again = await L.CausalLM.load(gpu, { hub: "tiny/sharded", endpoint, onProgress });
  const last = await greedy(again, prompt, 3);
  again.dispose();
  const kept = [...files];
  const tokenizer = await (await L.modelFile({ hub: "tiny/one", endpoint }, "tokenizer.json")).text();
  const none = await L.modelFile({ hub: "tiny/one", endpoint }, "nothing.json");
  await L.clearModelCache();
  await L.modelFile({ hub: "tiny/one", endpoint, onProgress }, "config.json");
  const cleared = [...files];
  // What a server without names of commits gives as `v1` today may be other files tomorrow.
  files.clear();
  for (let i = 0; i < 2; i++) await L.modelFile({ hub: "tiny/one", endpoint, revision: "v1", onProgress: ({ loaded, total, file }) => loaded === total && files.add(`${file} ${i}`) }, "config.json");
  const unnamed = [...files];
  let calls = 0;
  const own = (...args) => { calls++; return fetch(...args); };
  const mine = await L.CausalLM.load(gpu, { hub: "tiny/one", endpoint, fetch: own, cache: false, dtype: "q8_0" });
  const packed = mine.bytes;
  mine.dispose();
  return { results, first, kept, last, downloaded, whole, tokenizer, none: none === undefined, cleared, unnamed, calls, packed };
}, text, ({ results, first, kept, last, downloaded, whole, tokenizer, none, cleared, unnamed, calls, packed }) => {
  const expected = greedy.slice(PROMPT);
  assert.deepEqual(results, { "tiny/one": expected, "tiny/sharded": expected, "tiny/gguf": expected });
  assert.deepEqual(first.sort(), ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.gguf", "model.safetensors", "model.safetensors.index.json"]);
  assert.deepEqual(kept, [], "nothing is fetched twice");
  assert.deepEqual(last, expected.slice(0, 3));
  assert.ok(downloaded === whole && whole > 0);
  assert.equal(tokenizer, '{"version":"1.0"}');
  assert.ok(none);
  assert.deepEqual(cleared, ["config.json"]);
  assert.deepEqual(unnamed, ["config.json 0", "config.json 1"]);
  assert.equal(calls, 3);
  assert.ok(packed < 0.4 * tensors.reduce((sum, { bytes }) => sum + bytes.length, 0));
  assert.ok(asked.includes(`tiny/one/resolve/${SHA}/model.safetensors`), "a branch is resolved to its commit");
  assert.ok(asked.includes("tiny/one/resolve/v1/config.json"));
});

inPage("from a folder's address, files, a directory handle, and single addresses", async ({ prompt }) => {
  const folder = new URL("/tests/golden/models/llama_tied_all", location.href).href;
  const get = async (name) => (await fetch(`${folder}/${name}`)).blob();
  const files = [new File([await get("config.json")], "config.json"), new File([await get("model.safetensors")], "model.safetensors")];
  const handle = await (await navigator.storage.getDirectory()).getDirectoryHandle("mine", { create: true });
  for (const file of files) await file.stream().pipeTo(await (await handle.getFileHandle(file.name, { create: true })).createWritable());
  const sources = [{ folder }, { folder: files }, { folder: handle }, { config: `${folder}/config.json`, weights: new URL(`${folder}/model.safetensors`) }];
  const results = [];
  for (const source of sources) {
    const model = await L.CausalLM.load(gpu, source);
    results.push(await greedy(model, prompt, 4));
    model.dispose();
  }
  return results;
}, text, (results) => {
  for (const ids of results) assert.deepEqual(ids, greedy.slice(PROMPT, PROMPT + 4));
});

inPage("of chosen folders the one nearest to the top; options that would do nothing and names that lead elsewhere are refused", async ({ prompt }) => {
  const folder = new URL("/tests/golden/models/llama_tied_all", location.href).href;
  const get = async (name) => (await fetch(`${folder}/${name}`)).blob();
  const [config, weights] = [await get("config.json"), await get("model.safetensors")];
  const at = (path, ...parts) => Object.defineProperty(new File(parts, path.split("/").at(-1)), "webkitRelativePath", { value: path });
  const own = [at("mine/config.json", config), at("mine/model.safetensors", weights)];
  const model = await L.CausalLM.load(gpu, { folder: [...own, at("mine/checkpoint-5/config.json", "{}"), at("mine/checkpoint-5/model.safetensors", "x")] });
  const result = await greedy(model, prompt, 3);
  model.dispose();
  const load = (source) => code(L.CausalLM.load(gpu, source));
  const index = (name) => at("mine/model.safetensors.index.json", JSON.stringify({ weight_map: { a: name } }));
  const errors = {
    tie: await load({ folder: [at("a/config.json", config), at("b/config.json", config)] }),
    number: await load({ folder: 5 }), none: await load({ folder: null }), things: await load({ folder: [1] }), address: await load({ folder: "http://[" }),
    config: await load({ folder: own, config: {} }), revision: await load({ folder: own, revision: "v1" }), cache: await load({ gguf: new Blob(), cache: false }),
    elsewhere: await load({ folder: [own[0], index("https://example.org/x")] }), above: await load({ folder: [own[0], index("../x")] }),
  };
  // The server says once which commit main is, and then nothing any more.
  const ask = async (fetch) => (await L.modelFile({ hub: "tiny/one", endpoint, fetch }, "tokenizer.json")).text();
  await L.clearModelCache();
  const kept = [await ask(fetch), await ask(() => Promise.reject(new TypeError("offline")))];
  await L.clearModelCache();
  return { result, errors, kept };
}, text, ({ result, errors, kept }) => {
  assert.deepEqual(result, greedy.slice(PROMPT, PROMPT + 3));
  const expected = {
    tie: /^file: folder: a\/config\.json and b\/config\.json/, number: /^invalid-argument: folder/, none: /^invalid-argument: /, things: /^invalid-argument: folder/,
    address: /^invalid-argument: folder: expected an address/, config: /^invalid-argument: config/, revision: /^invalid-argument: revision/, cache: /^invalid-argument: cache/,
    elsewhere: /^file: .*example\.org/, above: /^file: .*\.\.\/x/,
  };
  for (const [name, pattern] of Object.entries(expected)) assert.match(errors[name], pattern, name);
  assert.deepEqual(kept, ['{"version":"1.0"}', '{"version":"1.0"}']);
});

inPage("an adapter trained on a GGUF model has Hugging Face's rows", async ({ prompt }) => {
  const bytes = new Uint8Array(await (await fetch(`${endpoint}/tiny/gguf/resolve/v1/model.gguf`)).arrayBuffer());
  const folder = new URL("/tests/golden/models/llama_tied_all", location.href).href;
  const models = [await L.CausalLM.load(gpu, { gguf: new Blob([bytes]) }), await L.CausalLM.load(gpu, { folder })];
  const inputIds = Int32Array.from(prompt), example = { inputIds, labels: inputIds };
  const saved = [];
  for (const model of models) {
    model.addAdapter({ rank: 4, targetModules: ["q_proj", "k_proj"], seed: 2 });
    const trainer = new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 0.01 }) });
    for await (const _ of trainer.train([example], { epochs: 3 }));
    saved.push(Array.from((await model.saveAdapter()).weights));
    trainer.dispose();
    model.dispose();
  }
  const info = await L.readGguf(bytes);
  return { same: String(saved[0]) === String(saved[1]), length: saved[0].length, architecture: info.metadata.get("general.architecture"), template: info.tokenizerConfig.chat_template };
}, text, ({ same, length, architecture, template }) => {
  assert.ok(same && length > 1000);
  assert.deepEqual([architecture, template], ["llama", "{{ messages }}"]);
});

inPage("a large model goes through little wasm memory; loading can be ended", async () => {
  // 24 MiB a layer in bf16, and embeddings of 64 MiB: more than 200 MiB of zeros.
  const config = { model_type: "llama", vocab_size: 32768, hidden_size: 1024, intermediate_size: 3072, num_hidden_layers: 6, num_attention_heads: 8, num_key_value_heads: 2, tie_word_embeddings: true };
  const shapes = { "model.embed_tokens.weight": [32768, 1024], "model.norm.weight": [1024] };
  for (let i = 0; i < 6; i++) {
    const own = { "self_attn.q_proj": [1024, 1024], "self_attn.k_proj": [256, 1024], "self_attn.v_proj": [256, 1024], "self_attn.o_proj": [1024, 1024], "mlp.gate_proj": [3072, 1024], "mlp.up_proj": [3072, 1024], "mlp.down_proj": [1024, 3072], input_layernorm: [1024], post_attention_layernorm: [1024] };
    for (const [name, shape] of Object.entries(own)) shapes[`model.layers.${i}.${name}.weight`] = shape;
  }
  let at = 0;
  const header = {};
  for (const [name, shape] of Object.entries(shapes)) header[name] = { dtype: "BF16", shape, data_offsets: [at, (at += 2 * shape.reduce((a, b) => a * b))] };
  const text = new TextEncoder().encode(JSON.stringify(header)), length = new DataView(new ArrayBuffer(8));
  length.setBigUint64(0, BigInt(text.length), true);
  const zeros = new Uint8Array(1 << 20), rest = [];
  for (let left = at; left > 0; left -= zeros.length) rest.push(zeros.subarray(0, Math.min(left, zeros.length)));
  const weights = new Blob([length.buffer, text, ...rest]);
  const { memory } = await (await import("/dist/wasm/lora_webgpu.js")).default();
  const before = gpu.memory().bytes;
  const model = await L.CausalLM.load(gpu, { config, weights });
  const held = [model.bytes, gpu.memory().bytes - before];
  const fitting = model.estimate({ rank: 8, tokens: 128 });
  const tight = model.estimate({ rank: 8, tokens: 512, batch: 16, checkpointing: false, budget: fitting.total * 1.2 });
  const none = model.estimate({ rank: 8, tokens: 64, budget: 1000 });
  const wrong = await code((async () => model.estimate({ rank: 8, tokens: 1e6 }))());
  model.dispose();
  const loads = [];
  const controller = new AbortController();
  const ended = await code(L.CausalLM.load(gpu, { config, weights, dtype: "q8_0", signal: controller.signal, onProgress: ({ loaded }) => { loads.push(loaded); if (loads.length === 9) controller.abort(); } }));
  return { size: weights.size, wasm: memory.buffer.byteLength, held, ended, loads: loads.length, left: gpu.memory().bytes - before, fitting, tight, none, wrong };
}, undefined, ({ size, wasm, held, ended, loads, left, fitting, tight, none, wrong }) => {
  console.log(`a model of ${size} bytes goes through ${wasm} bytes of wasm memory`);
  assert.ok(size > 200e6 && wasm < 64 * 1024 * 1024, `${size}, ${wasm}`);
  assert.ok(held[0] === held[1] && Math.abs(held[0] - size) < 1e6, String(held));
  assert.match(ended, /abort/i);
  assert.ok(loads <= 10 && left === 0, `${loads}, ${left}`);
  assert.ok(fitting.fits && fitting.advice.length === 0 && fitting.total === fitting.weights + fitting.adapter + fitting.activations);
  assert.ok(!tight.fits && tight.advice.length > 0, JSON.stringify(tight));
  assert.ok(!none.fits && /smaller model/.test(none.advice[0]), JSON.stringify(none));
  assert.match(wrong, /^invalid-argument: tokens/);
});

inPage("what a training holds is what was estimated", async ({ prompt }) => {
  const folder = new URL("/tests/golden/models/llama_tied_all", location.href).href;
  const before = gpu.memory().bytes;
  const model = await L.CausalLM.load(gpu, { folder });
  const adapter = { rank: 8, targetModules: ["q_proj", "down_proj"] };
  const estimate = model.estimate({ ...adapter, tokens: 8, batch: 3 });
  model.addAdapter(adapter);
  const inputIds = Int32Array.from(prompt), example = { inputIds, labels: inputIds };
  const trainer = new L.LanguageTrainer(model, { optimizer: L.adamw({ lr: 0.01 }), batchSize: 3 });
  for await (const _ of trainer.train([example, example, example]));
  const held = gpu.memory().bytes - before;
  trainer.dispose();
  model.dispose();
  return { estimate, held };
}, text, ({ estimate, held }) => {
  console.log(`${estimate.total} bytes estimated, ${held} held`);
  assert.ok(Math.abs(estimate.total / held - 1) < 0.1);
});

inPage("a model that the device has no memory for is refused by its tensor, and leaves nothing", async () => {
  const folder = new URL("/tests/golden/models/llama_tied_all", location.href).href;
  const before = gpu.memory().bytes;
  // A device that makes no second weight.
  const { createBuffer } = GPUDevice.prototype, { popErrorScope } = GPUDevice.prototype;
  let weights = 0, failing = 0;
  GPUDevice.prototype.createBuffer = function (descriptor) {
    if (descriptor.label === "weight" && ++weights === 2) failing = 3; // scopes around it
    return createBuffer.call(this, descriptor);
  };
  GPUDevice.prototype.popErrorScope = function () {
    const answer = popErrorScope.call(this);
    if (failing === 0) return answer;
    const which = failing--; // of validation, memory, internal
    return answer.then((error) => (which === 2 ? new GPUOutOfMemoryError("no room") : error));
  };
  const result = await code(L.CausalLM.load(gpu, { folder }));
  Object.assign(GPUDevice.prototype, { createBuffer, popErrorScope });
  return { result, left: gpu.memory().bytes - before };
}, undefined, ({ result, left }) => {
  assert.match(result, /^out-of-memory: .*tensor `model\.[\w.]+`/);
  assert.equal(left, 0);
});

inPage("sources that lack something, or contradict themselves, are refused by name", async () => {
  const gguf = new Uint8Array(await (await fetch(`${endpoint}/tiny/gguf/resolve/v1/model.gguf`)).arrayBuffer());
  const load = (source) => code(L.CausalLM.load(gpu, source));
  const before = gpu.memory().bytes;
  const other = gguf.slice();
  const at = new TextDecoder("latin1").decode(other).indexOf("token_embd.weight") + 17 + 4 + 16;
  other[at] = 24; // I8
  return {
    absent: await load({ hub: "tiny/absent", endpoint }),
    unknown: await load({ hub: "tiny/nothing", endpoint }),
    server: await load({ hub: "tiny/one", endpoint, fetch: () => Promise.reject(new TypeError("no network")), cache: false }),
    cut: await load({ gguf: gguf.slice(0, gguf.length - 100) }),
    short: await load({ gguf: gguf.slice(0, 100) }),
    kind: await load({ gguf: other }),
    both: await load({ gguf, hub: "tiny/one", weights: gguf, config: {} }),
    neither: await load({}),
    name: await load({ hub: "../x" }),
    dtype: await load({ gguf, dtype: "q5" }),
    config: await load({ weights: gguf.slice(0, 0), config: {} }),
    files: await load({ folder: [] }),
    left: gpu.memory().bytes - before,
  };
}, undefined, ({ left, ...results }) => {
  const expected = {
    absent: /^file: .*index\.json.*model-00003-of-00003\.safetensors/, unknown: /^file: .*config\.json/, server: /^file: .*no network/,
    cut: /^file: /, short: /^file: /, kind: /^(unsupported|file): .*(I8|token_embd)/, both: /^invalid-argument: source/, neither: /^invalid-argument: source/,
    name: /^invalid-argument: hub/, dtype: /^invalid-argument: dtype.*q8_0/, config: /^file: /, files: /^file: .*config\.json/,
  };
  for (const [name, pattern] of Object.entries(expected)) assert.match(results[name], pattern, name);
  assert.equal(left, 0);
}, /404/);

test("a GGUF's tokenizer is the one it was made of", async () => {
  const read = (name) => JSON.parse(readFileSync(join(root, "www/model", name), "utf8"));
  const theirs = read("tokenizer.json");
  const { vocab, merges } = theirs.model;
  const tokens = Object.entries(vocab).sort((a, b) => a[1] - b[1]).map(([token]) => token);
  const special = new Set(theirs.added_tokens.map(({ content }) => content));
  const file = writeGguf({
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.token_type": tokens.map((token) => (special.has(token) ? 3 : 1)), "tokenizer.ggml.merges": merges.map((merge) => (Array.isArray(merge) ? merge.join(" ") : merge)),
    "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.bos_token_id": 0,
  }, []);
  const { tokenizer, tokenizerConfig } = await readGguf(new Uint8Array(file));
  assert.equal(tokenizerConfig.eos_token, tokens[0]);
  const [own, expected] = [new Tokenizer(tokenizer, tokenizerConfig), new Tokenizer(theirs, read("tokenizer_config.json"))];
  const text = "It was 1905,\n\n  and the «Röhre» didn't sing:  naïve 漢字 🙂 <|endoftext|>The end.\t";
  assert.deepEqual(own.encode(text).ids, expected.encode(text).ids);
  assert.equal(own.decode(own.encode(text).ids, { skip_special_tokens: false }), text);
  assert.ok(own.encode(text).ids.length > 20);
});

test("SentencePiece's scores become merges", async () => {
  const letters = [..."▁abcde"], pieces = ["ab", "▁ab", "cd", "cde", "▁abcde"];
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`);
  const tokens = ["<unk>", "<s>", "</s>", ...bytes, ...pieces, ...letters];
  const scores = tokens.map((token, i) => (pieces.includes(token) ? -(i - 259) : letters.includes(token) ? -100 : 0));
  const types = tokens.map((_, i) => (i === 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1));
  const written = {
    "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores.map((score) => score + 0.5), "tokenizer.ggml.token_type": types,
  };
  const read = async (more) => readGguf(new Uint8Array(writeGguf({ ...written, ...more }, [])));
  const said = { "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_bos_token": true };
  const { tokenizer, tokenizerConfig } = await read(said);
  const own = new Tokenizer(tokenizer, tokenizerConfig);
  const { metadata: _, ...silent } = await read({}); // older files say nothing, and mean this
  assert.deepEqual(silent, { tokenizer, tokenizerConfig });
  const without = await read({ ...said, "tokenizer.ggml.add_bos_token": false });
  assert.equal(without.tokenizer.post_processor, null);
  const ids = (...names) => names.map((name) => tokens.indexOf(name));
  assert.deepEqual(own.encode("abcde").ids, ids("<s>", "▁abcde"));
  assert.deepEqual(own.encode("ab cd ec").ids, ids("<s>", "▁ab", "▁", "cd", "▁", "e", "c"));
  assert.deepEqual(own.encode("é").ids, ids("<s>", "▁", "<0xC3>", "<0xA9>"));
  assert.equal(own.decode(own.encode("ab cdé").ids, { skip_special_tokens: true }), "ab cdé");
  const refused = await readGguf(new Uint8Array(writeGguf({ "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": ["a"] }, []))).catch((error) => error);
  assert.match(`${refused.code} ${refused.message}`, /unsupported .*t5.*gpt2/);
});

test("every token is read as it stands, a byte order mark before it or alone, too", async () => {
  const tokens = ["<unk>", "<s>", "</s>", "\uFEFF", "\uFEFFusing", "using"];
  const { tokenizer } = await readGguf(new Uint8Array(writeGguf({
    "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": tokens.map((_, i) => -i - 0.5),
  }, [])));
  assert.deepEqual(tokenizer.model.vocab, Object.assign(Object.create(null), Object.fromEntries(tokens.map((token, id) => [token, id]))));
});

// Files that are older than tokenizer.ggml.pre, and Microsoft's of BitNet, do not have it.
test("how a text is cut is told by the model where the file does not say, and else not guessed for a large vocabulary", async () => {
  const read = (architecture, tokens, more = {}) => readGguf(new Uint8Array(writeGguf({
    "general.architecture": architecture, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 0, ...more,
  }, []))).then(({ tokenizer }) => JSON.stringify(tokenizer), ({ code, message }) => `${code}: ${message}`);
  const said = (pre) => ({ "tokenizer.ggml.pre": pre });
  const llama3 = ["<|begin_of_text|>", "a", "b", "ab"], plain = ["x", "a", "b", "ab"];
  assert.equal(await read("llama", llama3), await read("llama", llama3, said("llama-bpe")));
  assert.equal(await read("bitnet-b1.58", llama3), await read("llama", llama3));
  assert.match(await read("llama", llama3), /"TemplateProcessing"/);
  assert.equal(await read("qwen2", plain), await read("qwen2", plain, said("qwen2")));
  assert.equal(await read("gpt2", plain), await read("gpt2", plain, said("gpt-2")));
  const many = Array.from({ length: 100_001 }, (_, i) => `t${i}`);
  assert.match(await read("llama", many), /^unsupported: tokenizer\.ggml\.pre: .*got none/);
  assert.match(await read("llama", many, said("gpt-2")), /"BPE"/);
});

test("metadata that never ends is not read to the end of the file", async () => {
  const [start, value] = [Buffer.alloc(24), Buffer.alloc(24)];
  start.write("GGUF");
  start.writeUInt32LE(3, 4);
  start.writeBigUInt64LE(1n, 16); // one entry, an array of strings without end
  value.writeUInt32LE(9, 8);
  value.writeUInt32LE(8, 12);
  value.writeBigUInt64LE(1n << 40n, 16);
  const bytes = Buffer.concat([start, value]), longest = [];
  const endless = Object.assign(new Blob(), {
    slice: (from, to) => {
      longest.push(to - from);
      const piece = new Uint8Array(to - from);
      piece.set(bytes.subarray(from, to));
      return new Blob([piece]);
    },
  });
  Object.defineProperty(endless, "size", { value: 2 ** 40 });
  const error = await readGguf(endless).catch((error) => error);
  assert.match(`${error.code}: ${error.message}`, /^file: .*metadata is longer than 32 MiB/);
  assert.equal(Math.max(...longest), 1 << 25);
});

inPage("a file that changes or goes after it was chosen is an error with its name", async (folder) => {
  const bytes = async (name) => new Uint8Array(await (await fetch(`/${folder}/${name}`)).arrayBuffer());
  const [config, weights] = await Promise.all(["config.json", "model.safetensors"].map(bytes));
  // As of a File whose bytes on the disk are others now: `after` reads are fine.
  const changing = (name, data, after) => {
    const file = new File([data], name);
    const gone = () => Promise.reject(new DOMException("The requested file could not be read", "NotReadableError"));
    file.slice = (...range) => (after-- > 0 ? Blob.prototype.slice.apply(file, range) : { arrayBuffer: gone });
    file.arrayBuffer = gone;
    return file;
  };
  const results = {}, model = await L.CausalLM.load(gpu, { config, weights });
  for (const after of [0, 1, 2, 5]) {
    results[`weights after ${after} reads`] = await code(L.CausalLM.load(gpu, { config, weights: changing("model.safetensors", weights, after) }));
  }
  results.config = await code(L.CausalLM.load(gpu, { config: changing("config.json", config, 0), weights }));
  results.gguf = await code(L.readGguf(changing("model.gguf", weights, 0)));
  model.addAdapter({ rank: 2 });
  const saved = await model.saveAdapter();
  model.removeAdapter();
  results.adapter = await code(model.loadAdapter({ config: saved.config, weights: changing("adapter_model.safetensors", saved.weights, 0) }));
  results.peft = await code(L.loadPeft({ config: saved.config, weights: changing("adapter_model.safetensors", saved.weights, 0) }));
  results.zip = await code(L.loadPeft(changing("adapter.zip", saved.weights, 0)));
  model.dispose();
  return results;
}, "tests/golden/models/llama_tied_all", (results) => {
  for (const [what, text] of Object.entries(results)) assert.match(text, /^file: .*NotReadableError/, what);
  assert.match(results["weights after 5 reads"], /model\.safetensors/);
});

inPage("a commit that cannot be kept is no reason to stop", async (endpoint) => {
  const results = [], { write } = FileSystemWritableFileStream.prototype, full = () => Promise.reject(new DOMException("full", "QuotaExceededError"));
  FileSystemWritableFileStream.prototype.write = full;
  try {
    results.push(await code(L.modelFile({ hub: "tiny/one", endpoint: new URL(endpoint, location.href).href }, "nothing.json")));
  } finally {
    FileSystemWritableFileStream.prototype.write = write;
  }
  return results;
}, "/hub", (results) => assert.deepEqual(results, ["success"]));
