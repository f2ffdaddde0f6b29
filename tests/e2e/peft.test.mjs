// Adapter files as JavaScript has them: in Node, without a GPU, and by the command; in a page with layers that are trained.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, relative, resolve } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { LoraError, combine, importAdapter, loadPeft, makePeft, merge, modelModules, savePeft } from "../../dist/node.js";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "./browser.mjs";
import { deflated } from "./zip.mjs";

const golden = process.env.LORA_GOLDEN ? resolve(process.env.INIT_CWD ?? ".", process.env.LORA_GOLDEN) : join(root, "tests/golden");
const CONFIG = "adapter_config.json", WEIGHTS = "adapter_model.safetensors";
const read = (...path) => new Uint8Array(readFileSync(join(golden, ...path)));
const text = (...path) => readFileSync(join(golden, ...path), "utf8");
/** All folders of golden adapters, as paths below `golden`. */
const folders = readdirSync(golden, { recursive: true, withFileTypes: true })
  .filter(({ name }) => name === CONFIG).map(({ parentPath }) => relative(golden, parentPath)).sort();
const load = (folder, options) => loadPeft({ config: read(folder, CONFIG), weights: read(folder, WEIGHTS) }, options);
/** A safetensors file: its header, and numbers of float32 tensors. */
const safetensors = (bytes) => {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const { __metadata__: metadata, ...tensors } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const raw = (name) => bytes.slice(8 + length + tensors[name].data_offsets[0], 8 + length + tensors[name].data_offsets[1]);
  return { metadata, tensors, raw, values: (name) => new Float32Array(raw(name).buffer) };
};
/** A safetensors file of float32 tensors `{ name: [shape, values] }`. */
const container = (tensors, metadata = { format: "pt" }) => {
  let at = 0;
  const header = { __metadata__: metadata };
  for (const [name, [shape, values]] of Object.entries(tensors)) header[name] = { dtype: "F32", shape, data_offsets: [at, at += 4 * values.length] };
  const json = Buffer.from(JSON.stringify(header)), start = Buffer.alloc(8);
  start.writeBigUInt64LE(BigInt(json.length));
  return new Uint8Array(Buffer.concat([start, json, ...Object.values(tensors).map(([, values]) => Buffer.from(Float32Array.from(values).buffer))]));
};
const same = (a, b, what) => assert.ok(Buffer.from(a).equals(Buffer.from(b)), `${what}: other bytes`);
const near = (got, expected, bound, what) => {
  assert.equal(got.length, expected.length, what);
  const largest = expected.reduce((m, v) => Math.max(m, Math.abs(v)), 0);
  got.forEach((v, i) => assert.ok(Math.abs(v - expected[i]) <= bound * largest, `${what}[${i}]: ${v}, expected ${expected[i]}`));
};
const refused = async (what, work, code, ...words) => {
  const error = await Promise.resolve().then(work).then(() => assert.fail(`${what}: nothing was thrown`), (error) => error);
  assert.ok(error instanceof LoraError, `${what}: ${error.stack}`);
  assert.equal(error.code, code, `${what}: ${error.message}`);
  for (const word of words) assert.ok(error.message.includes(word), `${what}: expected ${word} in: ${error.message}`);
};
/** What an adapter adds to each module: by name `[scaling·B·A, kind]`. */
const deltas = (adapter) => Object.fromEntries(adapter.modules.map((m) => [m.name, m.deltaWeight()]));
/** By name everything of the modules. */
const parts = (adapter) => adapter.modules.map(({ name, kind, rank, scaling, a, b, magnitude, loraBias }) => ({ name, kind, rank, scaling, a, b, magnitude, loraBias }));
/** The model that a golden adapter was made for. */
const baseOf = (folder) => {
  if (existsSync(join(golden, dirname(folder), "model.safetensors"))) return dirname(folder);
  const file = [folder, dirname(folder)].map((each) => join(golden, each, "logits.safetensors")).find(existsSync);
  return file && join("peft_files", `base_${safetensors(new Uint8Array(readFileSync(file))).metadata.base}`);
};
/** A module of the adapter that is no linear layer or embedding of its model's file: a norm, or the head of one that is tied. */
const unlisted = async (folder) => {
  const known = new Set((await modelModules(read(baseOf(folder), "model.safetensors"))).map(({ name }) => name)), adapter = await load(folder);
  const whole = adapter.tensors.map(({ name }) => name.replace(/(\.base_layer)?\.(weight|bias)$/, ""));
  return [...adapter.modules.map(({ name }) => name), ...whole].find((name) => !known.has(name));
};
const withModels = folders.filter((folder) => baseOf(folder));
const find = (what, wanted) => folders.find(wanted) ?? assert.fail(`no golden adapter ${what}`);
const fields = (folder) => JSON.parse(text(folder, CONFIG));
const simple = (folder) => {
  const { use_dora, lora_bias, bias, modules_to_save, init_lora_weights } = fields(folder);
  return !use_dora && !lora_bias && bias === "none" && !modules_to_save && init_lora_weights === true;
};

let server, own, work;
before(async () => {
  server = await serve(root, 0);
  work = mkdtempSync(join(tmpdir(), "lora-webgpu-peft-"));
  own = await serve(golden, 0);
});
after(async () => {
  await Promise.all([server?.close(), own?.close()]);
  if (work) rmSync(work, { recursive: true, force: true });
});

test("what PEFT saved is loaded, and saved again byte for byte", async () => {
  const TYPES = { F32: "float32", F16: "float16", BF16: "bfloat16" };
  for (const folder of folders) {
    const config = text(folder, CONFIG), weights = read(folder, WEIGHTS), { tensors } = safetensors(weights);
    const dtype = TYPES[Object.values(tensors)[0].dtype] ?? "float32", rounded = Object.values(tensors)[0].dtype === "F64";
    const adapter = await load(folder);
    assert.deepEqual([adapter.notes, adapter.config], [[], JSON.parse(config)], folder);
    const files = adapter.files({ dtype });
    assert.equal(files.config, config, folder);
    if (!rounded) same(files.weights, weights, folder);
    // Through the zip, too.
    const again = (await loadPeft(files.zip())).files({ dtype });
    assert.equal(again.config, config, folder);
    same(again.weights, files.weights, folder);
    const sizes = Object.values(tensors).map(({ shape }) => shape.reduce((product, d) => product * d, 1));
    assert.equal(adapter.parameters, sizes.reduce((sum, size) => sum + size, 0), folder);
    // Made anew of its modules, with its configuration.
    const made = await makePeft({ layers: adapter.modules.map((m) => ({ name: m.name, kind: m.kind, rank: m.rank, alpha: m.alpha, a: m.a, b: m.b, ...(m.magnitude && { magnitude: m.magnitude }), ...(m.loraBias && { loraBias: m.loraBias }) })), like: adapter });
    assert.deepEqual(parts(made), parts(adapter), folder);
    same(made.files({ dtype }).weights, files.weights, `${folder}, made anew`);
  }
  console.log(`# ${folders.length} adapters loaded and saved again`);
  assert.ok(folders.length > 0);
});

test("an adapter comes from an address, a zip, chosen files, bytes or objects", async () => {
  const folder = folders[0], [config, weights] = [read(folder, CONFIG), read(folder, WEIGHTS)];
  const address = `${own.url}${folder.split("\\").join("/")}`;
  const packed = deflated({ [`adapter/${CONFIG}`]: config, "adapter/README.md": Buffer.from("read me"), [`adapter/${WEIGHTS}`]: weights });
  const file = (name, data) => new File([data], name);
  const sources = {
    "an address": address, "with a slash": `${address}/`, "with a query": `${address}?a=b`, "a URL": new URL(address),
    "a deflated zip": packed, "its buffer": packed.buffer.slice(packed.byteOffset, packed.byteOffset + packed.length), "as a Blob": new Blob([packed]),
    "a stored zip": (await load(folder)).files().zip(),
    "files": [file("README.md", "x"), file(CONFIG, config), file(WEIGHTS, weights)], "a set of them": new Set([file(CONFIG, config), file(WEIGHTS, weights)]),
    "a file that is a zip": [file("adapter.zip", packed)],
    "an object and bytes": { config: JSON.parse(new TextDecoder().decode(config)), weights },
    "what files() gives": (await load(folder)).files(),
    "a Blob and an address": { config: new Blob([config]), weights: `${address}/${WEIGHTS}` },
  };
  const expected = parts(await load(folder));
  for (const [what, source] of Object.entries(sources)) assert.deepEqual(parts(await loadPeft(source)), expected, what);

  // A training's folder has checkpoints below its end, and the last adapter is not theirs.
  const other = await load(folders.at(-1)).then((adapter) => adapter.files());
  const at = (path, data) => Object.defineProperty(file(lastPart(path), data), "webkitRelativePath", { value: path });
  const lastPart = (path) => path.slice(path.lastIndexOf("/") + 1);
  const tree = { [`out/checkpoint-5/${WEIGHTS}`]: other.weights, [`out/checkpoint-5/${CONFIG}`]: Buffer.from(other.config), [`out/${CONFIG}`]: config, [`out/${WEIGHTS}`]: weights, [`out/checkpoint-9/${CONFIG}`]: Buffer.from(other.config) };
  const without = (...words) => Object.fromEntries(Object.entries(tree).filter(([path]) => !words.some((word) => path.includes(word))));
  const chosen = (some) => Object.entries(some).map(([path, data]) => at(path, data));
  assert.deepEqual(parts(await loadPeft(chosen(tree))), expected);
  assert.deepEqual(parts(await loadPeft(deflated(tree))), expected);
  const two = { ...without("out/adapter"), [`out/checkpoint-9/${WEIGHTS}`]: weights };
  for (const source of [chosen(two), deflated(two)]) await refused("two adapters", () => loadPeft(source), "file", "several", "checkpoint-5", "checkpoint-9");
  await refused("files of two", () => loadPeft([...Array(2)].flatMap(() => [file(CONFIG, config), file(WEIGHTS, weights)])), "file", "several");
  await refused("halves of two", () => loadPeft(chosen(without(`checkpoint-5/${CONFIG}`, "out/adapter"))), "file", "different folders");
  await refused("nothing there", () => loadPeft(`${own.url}nothing`), "file", "404");
  await refused("no server", () => loadPeft("http://127.0.0.1:1/"), "file", "could not be fetched");
  await refused("one of two", () => loadPeft([file(CONFIG, config)]), "file", WEIGHTS);
  await refused("weights alone", () => loadPeft(weights), "file", "zip");
  await refused("half a zip", () => loadPeft(packed.subarray(0, packed.length / 2)), "file", "cut off");
  await refused("a damaged zip", () => loadPeft(deflated({ [CONFIG]: config, [WEIGHTS]: weights }, 1)), "file", CONFIG, "damaged");
  await refused("a zip of others", () => loadPeft(deflated({ "a.txt": config })), "file", CONFIG);
  await refused("a number", () => loadPeft(3), "invalid-argument", "3");
  await refused("another option", () => loadPeft(packed, { modules: [] }), "unknown-option", "modules");
  await refused("a config of another kind", () => loadPeft({ config: 3, weights }), "invalid-argument", CONFIG);
  // No byte of a zip can be changed, nor its end lost, without an error or the same numbers.
  for (let at = 0; at < packed.length; at += 1 + Math.floor(packed.length / 300)) {
    for (const bytes of [packed.slice(0, at), packed.map((byte, i) => (i === at ? byte ^ 0x41 : byte))]) {
      const got = await loadPeft(bytes).then(parts, (error) => error);
      if (!(got instanceof LoraError)) assert.deepEqual(got, expected, `byte ${at}`);
    }
  }
});

test("the report says what fits a model; what does not is an error, or with strict: false a list", async () => {
  for (const folder of withModels) {
    const model = new Blob([read(baseOf(folder), "model.safetensors")]);
    const lacking = await unlisted(folder);
    if (lacking && lacking !== "lm_head") { // the head of a tied model is one of its modules
      await refused(folder, () => load(folder, { model }), "unmatched", lacking);
      continue;
    }
    const adapter = await load(folder, { model });
    const report = await adapter.report(model);
    assert.deepEqual([report.matched, report.missing, report.leftover], [adapter.modules.map((m) => m.name), [], []], folder);
  }
  const folder = find("with a model", (each) => withModels.includes(each) && simple(each));
  const adapter = await load(folder), [first] = adapter.modules;
  const modules = adapter.modules.map(({ name, inFeatures, outFeatures }) => ({ name, inFeatures, outFeatures }));
  const more = { name: first.name.replace(/\d+/, "999"), inFeatures: first.inFeatures, outFeatures: first.outFeatures };
  const report = await adapter.report([...modules.slice(1), more], { strict: false });
  assert.deepEqual([report.matched.length, report.leftover, report.missing], [modules.length - 1, [first.name], [more.name]]);
  await refused("a module too many", () => adapter.report(modules.slice(1)), "unmatched", first.name);
  await refused("another model", () => adapter.report([more], { strict: false }), "unmatched", "none of the adapter's modules");
  await refused("no module", () => adapter.report([], { strict: false }), "unmatched");
  await refused("other widths", () => adapter.report([{ ...modules[0], inFeatures: 7 }, ...modules.slice(1)]), "shape", first.name, "7");
  await refused("on loading", () => load(folder, { model: modules.slice(1) }), "unmatched", first.name);
  assert.ok(await load(folder, { model: modules.slice(1), strict: false }));
  const listed = await modelModules(read(baseOf(folder), "model.safetensors"));
  assert.ok(listed.some(({ kind }) => kind === "embedding"));
  await refused("no model", () => modelModules(new Uint8Array(20)), "file");
  await refused("a header of terabytes", () => modelModules(new Uint8Array(20).fill(255)), "file");
});

test("adapters are combined as PEFT does it", async () => {
  const pair = folders.filter((folder) => dirname(folder).endsWith("weighted"));
  const [a, b] = await Promise.all((pair.length === 2 ? pair : [folders[0], folders[0]]).map((folder) => load(folder)));
  const expected = Object.fromEntries(a.modules.map((m, i) => [m.name, m.deltaWeight().map((v, k) => 0.7 * v + 0.4 * b.modules[i].deltaWeight()[k])]));
  const both = [{ adapter: a, weight: 0.7 }, { adapter: b, weight: 0.4 }], rank = a.modules[0].rank + b.modules[0].rank;
  for (const options of [undefined, { type: "cat" }, { type: "svd", rank }]) {
    const combined = await combine(both, options);
    for (const [name, delta] of Object.entries(deltas(combined))) near(delta, expected[name], 2e-6, `${options?.type} ${name}`);
    assert.equal(combined.modules[0].rank, rank);
  }
  const linear = await combine(both, { type: "linear" });
  const [m, n] = [a.modules[0], b.modules[0]];
  near(linear.modules[0].a, m.a.map((v, i) => Math.sqrt(0.7 * m.scaling) * v + Math.sqrt(0.4 * n.scaling) * n.a[i]), 1e-6, "linear A");
  await refused("none", () => combine([]), "invalid-argument");
  await refused("another type", () => combine(both, { type: "ties" }), "invalid-argument", "ties");
  await refused("no adapter", () => combine([{ adapter: {}, weight: 1 }]), "invalid-argument", "PeftAdapter");
  await refused("no weight", () => combine([{ adapter: a, weight: NaN }]), "invalid-argument", "weight");
});

test("a merged model has scaling·B·A in the weights that are adapted, and all else as it was", async () => {
  for (const folder of withModels.filter(simple)) {
    const model = read(baseOf(folder), "model.safetensors"), adapter = await load(folder), changes = deltas(adapter);
    const lacking = await unlisted(folder), { tensors } = safetensors(model);
    if (lacking) {
      await refused(folder, () => merge({ adapter, model: new Blob([model]) }), "unmatched", lacking);
      continue;
    }
    if (!tensors["lm_head.weight"] && changes["model.embed_tokens"]) {
      await refused(folder, () => merge({ adapter, model: new Blob([model]) }), "unsupported", "model.embed_tokens.weight", "tied");
      continue;
    }
    const merged = new Uint8Array(await (await merge({ adapter, model: new Blob([model]) })).arrayBuffer());
    const [before, after] = [safetensors(model), safetensors(merged)];
    assert.deepEqual(after.tensors, before.tensors, folder);
    const embeddings = new Set(adapter.modules.filter(({ kind }) => kind === "embedding").map(({ name }) => name));
    for (const name of Object.keys(before.tensors)) {
      const delta = changes[name.replace(/\.weight$/, "")];
      if (!delta) same(after.raw(name), before.raw(name), `${folder}: ${name}`);
      else if (!embeddings.has(name.replace(/\.weight$/, ""))) near(after.values(name), before.values(name).map((v, i) => v + delta[i]), 3e-7, `${folder}: ${name}`);
    }
  }
  // Of several files each is merged.
  const folder = find("with a model", (each) => withModels.includes(each) && simple(each));
  const { tensors, values } = safetensors(read(baseOf(folder), "model.safetensors")), names = Object.keys(tensors);
  const shard = (some) => container(Object.fromEntries(some.map((name) => [name, [tensors[name].shape, values(name)]])));
  const adapter = await load(folder), half = names.length / 2;
  const shards = await merge({ adapter, model: [names.slice(0, half), names.slice(half)].map(shard) });
  const whole = safetensors(new Uint8Array(await (await merge({ adapter, model: shard(names) })).arrayBuffer()));
  for (const blob of shards) {
    const part = safetensors(new Uint8Array(await blob.arrayBuffer()));
    for (const name of Object.keys(part.tensors)) same(part.raw(name), whole.raw(name), name);
  }
  // The embedding of a tied model is its head, too, which an adapter of the embedding leaves alone.
  const embedding = folders.find((each) => withModels.includes(each) && fields(each).target_modules?.includes?.("embed_tokens") && safetensors(read(baseOf(each), "model.safetensors")).tensors["lm_head.weight"] && !fields(each).modules_to_save);
  if (embedding) {
    const file = safetensors(read(baseOf(embedding), "model.safetensors")), own = await load(embedding), all = Object.keys(file.tensors);
    const model = (some) => container(Object.fromEntries(some.map((name) => [name, [file.tensors[name].shape, file.values(name)]])));
    const tied = all.filter((name) => name !== "lm_head.weight"), [first, second] = [tied.slice(0, 2), tied.slice(2)];
    if (own.modules.every(({ name }) => name !== "lm_head")) {
      assert.ok(await merge({ adapter: own, model: model(all) }));
      await refused("a tied model", () => merge({ adapter: own, model: model(tied) }), "unsupported", "embed_tokens", "lm_head.weight");
      await refused("a tied model in pieces", () => merge({ adapter: own, model: [first, second].map(model) }), "unsupported", "embed_tokens", "lm_head.weight");
      assert.equal((await merge({ adapter: own, model: [tied, ["lm_head.weight"]].map(model) })).length, 2);
    }
  }
  // As saved from the model without its head, or by an adapter of that.
  const bare = (name) => name.replace(/^model\./, ""), start = "base_model.model.";
  const { [CONFIG]: config, [WEIGHTS]: weights } = Object.fromEntries([CONFIG, WEIGHTS].map((name) => [name, read(folder, name)])), own = safetensors(weights);
  const ofBare = { config, weights: container(Object.fromEntries(Object.keys(own.tensors).map((name) => [start + bare(name.slice(start.length)), [own.tensors[name].shape, own.values(name)]]))) };
  const bareModel = container(Object.fromEntries(names.map((name) => [bare(name), [tensors[name].shape, values(name)]])));
  for (const [what, adapter, model] of [["a bare model", await load(folder), bareModel], ["a bare model's adapter", await loadPeft(ofBare), shard(names)]]) {
    const merged = safetensors(new Uint8Array(await (await merge({ adapter, model })).arrayBuffer()));
    for (const name of names) same(merged.raw(what === "a bare model" ? bare(name) : name), whole.raw(name), `${what}: ${name}`);
    assert.equal((await adapter.report(model)).matched.length, adapter.modules.length, what);
  }
  const without = names.filter((name) => name !== `${adapter.modules[0].name}.weight`);
  await refused("a model without a module", () => merge({ adapter, model: shard(without) }), "unmatched", adapter.modules[0].name);
  await refused("half a model", () => merge({ adapter, model: shard(names).subarray(0, 1000) }), "file");
  await refused("no adapter", () => merge({ adapter: {}, model: shard(names) }), "invalid-argument");
});

test("GGUF, Kohya's, MLX's and the seed's forms are written and read, and what they cannot hold is named", async () => {
  for (const folder of withModels) {
    const adapter = await load(folder), base = baseOf(folder), modelConfig = JSON.parse(text(base, "config.json"));
    const model = new Blob([read(base, "model.safetensors")]);
    const forms = {
      gguf: [() => adapter.toGguf({ modelConfig, name: "fine" }), (file) => importAdapter({ format: "gguf", file, modelConfig })],
      kohya: [() => adapter.toKohya(), (file) => importAdapter({ format: "kohya", file, model })],
    };
    for (const [format, [write, readBack]] of Object.entries(forms)) {
      const lost = await adapter.canExport(format, format === "gguf" ? { modelConfig } : {});
      if (simple(folder) && adapter.modules.every(({ kind }) => kind === "linear")) assert.deepEqual(lost, [], `${folder}: ${format}`);
      if (lost.length) {
        await refused(`${folder}: ${format}`, write, "unsupported");
        continue;
      }
      const back = await readBack(await write()), expected = deltas(adapter);
      assert.equal(back.modules.length, adapter.modules.length, folder);
      for (const [name, delta] of Object.entries(deltas(back))) near(delta, expected[name], 1e-6, `${folder}: ${format}: ${name}`);
    }
    assert.deepEqual(await adapter.canExport("peft"), []);
    if (adapter.changesBase) {
      // The plain adapter does on the model's own weights what this one does on those that it changed.
      const plain = await adapter.toPlain({ model });
      assert.deepEqual([plain.changesBase, plain.modules[0].rank], [false, 2 * adapter.modules[0].rank]);
      const [one, other] = await Promise.all([adapter, plain].map(async (each) => safetensors(new Uint8Array(await (await merge({ adapter: each, model })).arrayBuffer()))));
      for (const { name } of adapter.modules) near(other.values(`${name}.weight`), one.values(`${name}.weight`), 2e-6, name);
      assert.deepEqual(await plain.canExport("gguf", { modelConfig }), []);
    }
  }
  const losing = await Promise.all(folders.filter((folder) => !simple(folder)).map(async (folder) => (await load(folder)).canExport("kohya")));
  for (const word of ["DoRA", "biases of B", "trained biases", "modules_to_save"]) assert.ok(losing.flat().some((each) => each.includes(word)), word);

  const numbers = (length, seed) => Float32Array.from({ length }, (_, i) => (((i * 37 + seed * 101) % 29) - 14) / 16);
  const layers = ["q_proj", "v_proj"].map((name, i) => ({ name: `model.layers.0.self_attn.${name}`, rank: 2, alpha: 4, a: numbers(10, i), b: numbers(i ? 6 : 8, i + 5) }));
  const adapter = await makePeft({ layers });
  const hesper = adapter.toHesper();
  assert.deepEqual(parts(await importAdapter({ format: "hesper", file: hesper, inFeatures: 5, qOutFeatures: 4, vOutFeatures: 3 })), parts(adapter));
  const turned = (values, rows) => Float32Array.from(values, (_, i) => values[(i % rows) * (values.length / rows) + Math.floor(i / rows)]);
  const mlx = Object.fromEntries(layers.flatMap(({ name, a, b }) => [[`${name}.lora_a`, [[5, 2], turned(a, 2)]], [`${name}.lora_b`, [[2, b.length / 2], turned(b, b.length / 2)]]]));
  const config = { lora_parameters: { rank: 2, scale: 2 } };
  assert.deepEqual(parts(await importAdapter({ format: "mlx", file: container(mlx), config })), parts(adapter));

  await refused("another format", () => importAdapter({ format: "onnx", file: hesper }), "invalid-argument", "onnx");
  await refused("another's option", () => importAdapter({ format: "hesper", file: hesper, model: [] }), "unknown-option", "model");
  await refused("other widths", () => importAdapter({ format: "hesper", file: hesper, inFeatures: 6, qOutFeatures: 4, vOutFeatures: 3 }), "file");
  for (const format of ["gguf", "kohya", "mlx", "hesper"]) {
    const others = { gguf: {}, kohya: { model: [{ name: "a", inFeatures: 1, outFeatures: 1 }] }, mlx: { config: {} }, hesper: { inFeatures: 1, qOutFeatures: 1, vOutFeatures: 1 } };
    for (const file of [new Uint8Array(), new Uint8Array(40).fill(255)]) await refused(format, () => importAdapter({ format, file, ...others[format] }), "file");
  }
  await refused("GGUF without a model", () => adapter.toGguf({}), "invalid-argument", "modelConfig");
  await refused("another export", () => adapter.canExport("onnx"), "invalid-argument", "onnx");
});

test("files that contradict themselves are errors that name the thing, or notes", async () => {
  const config = { peft_type: "LORA", r: 2, lora_alpha: 4, target_modules: ["fc"] };
  const A = "base_model.model.fc.lora_A.weight", B = "base_model.model.fc.lora_B.weight", ones = (n) => Array.from({ length: n }, () => 1);
  const good = { [A]: [[2, 3], ones(6)], [B]: [[4, 2], ones(8)] };
  const weights = container(good);
  const { modules: [fc], parameters } = await loadPeft({ config, weights });
  await refused("files that are none", () => loadPeft([null]), "invalid-argument", "files");
  await refused("no name", async () => (await loadPeft({ config, weights })).toGguf({ modelConfig: {}, name: 5 }), "invalid-argument", "name");
  // Two files of a zip whose bytes are the same ones.
  const twice = Buffer.from(await (await loadPeft({ config, weights })).files().zip().arrayBuffer());
  const entry = twice.indexOf("PK\x01\x02", 0, "latin1"), second = twice.indexOf("PK\x01\x02", entry + 4, "latin1");
  twice.copy(twice, second + 10, entry + 10, entry + 28);
  twice.copy(twice, second + 42, entry + 42, entry + 46);
  for (const at of [entry, second]) twice.writeUInt32LE(twice.length - 200, at + 20);
  await refused("files in one another", () => loadPeft(new Uint8Array(twice)), "file", "zip");
  assert.deepEqual([fc.name, fc.rank, fc.scaling, fc.inFeatures, fc.outFeatures, parameters, [...fc.deltaWeight()]], ["fc", 2, 2, 3, 4, 14, ones(12).map(() => 4)]);

  const header = (text, length = text.length) => new Uint8Array(Buffer.concat([Buffer.from(BigUint64Array.of(BigInt(length)).buffer), Buffer.from(text)]));
  const one = (shape, from, to) => header(JSON.stringify({ [A]: { dtype: "F32", shape, data_offsets: [from, to] } }));
  const broken = {
    nothing: new Uint8Array(), "a cut": weights.subarray(0, -1), "half": weights.subarray(0, 60), "a longer file": Uint8Array.from([...weights, 0]),
    "a header of terabytes": header("{}", 1e13), "a tensor of terabytes": one([1e12], 0, 4e12), "a shape beyond counting": one([4294967296, 4294967296, 16], 0, 8),
    "an overlap": header(JSON.stringify({ [A]: { dtype: "F32", shape: [1], data_offsets: [0, 4] }, [B]: { dtype: "F32", shape: [1], data_offsets: [2, 6] } })),
    "equal keys": header(`{"${A}":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"${A}":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`),
    "no JSON": header("{]"), "no tensors": container({}), "A alone": container({ [A]: good[A] }), "two ranks": container({ ...good, [B]: [[4, 3], ones(12)] }),
    "no adapter": container({ "fc.weight": [[1], [1]] }),
  };
  for (const [what, bytes] of Object.entries(broken)) {
    for (const strict of [true, false]) await refused(what, () => loadPeft({ config, weights: bytes }, { strict }), "file");
  }
  await refused("a kernel of 3×3", () => loadPeft({ config, weights: container({ [A]: [[2, 3, 3, 3], ones(54)], [B]: [[4, 2, 1, 1], ones(8)] }) }), "unsupported", "fc", "1×1");
  for (const text of ["", "{", "[]", "null", '{"r":2']) await refused(`config ${text}`, () => loadPeft({ config: Buffer.from(text), weights }), "file", CONFIG);
  await refused("another method", () => loadPeft({ config: { ...config, peft_type: "IA3" }, weights }), "unsupported", "IA3");
  for (const [what, options, files] of [
    ["NaN", "fc.lora_A.weight", { config, weights: container({ ...good, [A]: [[2, 3], [NaN, 1, 1, 1, 1, 1]] }) }],
    ["alpha 0", "alpha", { config: { ...config, lora_alpha: 0 }, weights }],
  ]) {
    await refused(what, () => loadPeft(files), "file", options);
    const { notes } = await loadPeft(files, { strict: false });
    assert.ok(notes.some((note) => note.includes(options)), `${what}: ${notes}`);
  }
  const { notes } = await loadPeft({ config: { ...config, r: 7 }, weights });
  assert.ok(notes.some((note) => note.includes("r is 7")), notes.join());
  const odd = await loadPeft({ config: { ...config, a_field: { of: ["tomorrow", Infinity, "é\u2028"] } }, weights });
  assert.deepEqual(JSON.parse(odd.files().config).a_field, { of: ["tomorrow", null, "é\u2028"] });

  const layer = { name: "fc", rank: 2, a: new Float32Array(6), b: new Float32Array(8) };
  for (const [what, layers, code, word] of [
    ["no name", [{ ...layer, name: "" }], "invalid-argument", "name"], ["one name twice", [layer, layer], "file", "fc"], ["a list", [layer.a], "invalid-argument", "options"],
    ["a rank that does not divide", [{ ...layer, rank: 4 }], "file", "fc"], ["rank 0", [{ ...layer, rank: 0 }], "invalid-argument", "rank"], ["alpha NaN", [{ ...layer, alpha: NaN }], "invalid-argument", "alpha"],
    ["a short magnitude", [{ ...layer, magnitude: new Float32Array(3) }], "file", "fc"], ["numbers of another kind", [{ ...layer, a: [1] }], "invalid-argument", "a"], ["another option", [{ ...layer, beta: 1 }], "unknown-option", "beta"],
    ["none", 3, "invalid-argument", "layers"],
  ]) await refused(what, () => savePeft({ layers }), code, word);
  await refused("another type", () => savePeft({ layers: [layer], dtype: "float8" }), "invalid-argument", "dtype");
  await refused("f16 beyond its range", () => savePeft({ layers: [{ ...layer, b: new Float32Array(8).fill(1e6) }], dtype: "float16" }), "file");
  const saved = await savePeft({ layers: [layer], baseModel: "some/base", config: { task_type: "CAUSAL_LM" } });
  assert.deepEqual([JSON.parse(saved.config).base_model_name_or_path, JSON.parse(saved.config).task_type], ["some/base", "CAUSAL_LM"]);
});

const command = (...args) => promisify(execFile)(process.execPath, [join(root, "bin/lora-webgpu.mjs"), ...args])
  .then(({ stdout, stderr }) => ({ code: 0, stdout, stderr }), ({ code, stdout, stderr }) => ({ code, stdout, stderr }));

test("npx lora-webgpu inspects, converts and merges", async () => {
  const folder = find("with a model", (each) => withModels.includes(each) && simple(each) && existsSync(join(golden, dirname(each), "model.safetensors")));
  const adapter = join(golden, folder), model = join(golden, baseOf(folder)), at = (name) => join(work, name);
  const ok = async (...args) => {
    const { code, stdout, stderr } = await command(...args);
    assert.equal(code, 0, stderr);
    assert.equal(stderr, "");
    return stdout;
  };
  for (const [option, to] of [["dtype", "gguf"], ["name", "peft"], ["prefix", "hesper"]]) {
    const { code, stderr } = await command("convert", adapter, "--to", to, "--model", model, "--out", at("none"), `--${option}`, "float16");
    assert.ok(code > 0 && stderr.includes(`--${option} is for --to`), `--${option} with ${to}: ${stderr}`);
  }
  assert.match(await ok(), /--dtype .* for peft,\s+--name .* gguf, --prefix .* kohya/);
  const loaded = await load(folder);
  const [words, json] = await Promise.all([ok("inspect", adapter, "--model", model), ok("inspect", adapter, "--model", join(model, "model.safetensors"), "--json")]);
  assert.match(words, new RegExp(`${loaded.modules.length} modules, ${loaded.parameters} trained numbers`));
  assert.match(words, new RegExp(`${loaded.modules.length} modules matched, 0 missing`));
  const said = JSON.parse(json);
  assert.deepEqual([said.parameters, said.modules.length, said.report.matched], [loaded.parameters, loaded.modules.length, loaded.modules.map(({ name }) => name)]);

  await Promise.all([
    ok("convert", adapter, "--to", "peft", "--out", at("again")), ok("convert", adapter, "--to", "peft", "-o", at("again.zip")),
    ok("convert", adapter, "--to", "gguf", "--out", at("a.gguf"), "--model", model), ok("convert", adapter, "--to", "kohya", "--out", at("kohya.safetensors")),
    ok("convert", adapter, "--to", "peft", "--dtype", "bfloat16", "--out", at("half.zip")), ok("merge", adapter, "--model", model, "--out", at("merged")),
    ok("merge", adapter, "--model", join(model, "model.safetensors"), "--out", at("merged.safetensors")),
  ]);
  const { config, weights } = loaded.files();
  for (const [name, bytes] of [[CONFIG, Buffer.from(config)], [WEIGHTS, weights]]) same(readFileSync(join(work, "again", name)), bytes, name);
  assert.deepEqual(parts(await loadPeft(new Uint8Array(readFileSync(at("again.zip"))))), parts(loaded));
  assert.equal(Object.values(safetensors((await loadPeft(new Uint8Array(readFileSync(at("half.zip"))))).files({ dtype: "bfloat16" }).weights).tensors)[0].dtype, "BF16");
  const merged = new Uint8Array(await (await merge({ adapter: loaded, model: read(baseOf(folder), "model.safetensors") })).arrayBuffer());
  same(readFileSync(join(work, "merged/model.safetensors")), merged, "merged");
  same(readFileSync(at("merged.safetensors")), merged, "merged alone");
  assert.ok(existsSync(join(work, "merged/config.json")));
  // And back.
  await Promise.all([
    ok("convert", at("a.gguf"), "--model", model, "--to", "peft", "--out", at("from-gguf")), ok("convert", at("kohya.safetensors"), "--from", "kohya", "--model", model, "--to", "peft", "--out", at("from-kohya")),
  ]);
  const expected = deltas(loaded);
  for (const name of ["from-gguf", "from-kohya"]) {
    const back = await loadPeft({ config: new Uint8Array(readFileSync(join(work, name, CONFIG))), weights: new Uint8Array(readFileSync(join(work, name, WEIGHTS))) });
    for (const [module, delta] of Object.entries(deltas(back))) near(delta, expected[module], 1e-6, `${name}: ${module}`);
  }
  const pissa = withModels.find((each) => fields(each).init_lora_weights === "pissa");
  if (pissa) {
    const base = join(golden, baseOf(pissa));
    await ok("convert", join(golden, pissa), "--plain", "--model", base, "--to", "gguf", "--out", at("plain.gguf"));
    assert.match((await command("convert", join(golden, pissa), "--model", base, "--to", "gguf", "--out", at("x.gguf"))).stderr, /pissa/);
  }
  assert.match(await ok(), /inspect ADAPTER/);
  assert.match(await ok("--help"), /merge ADAPTER/);
});

test("a command that cannot be done says why, on one line where it can, and leaves no file", async () => {
  const folder = withModels[0], adapter = join(golden, folder), model = join(golden, baseOf(folder)), out = join(work, "nothing");
  mkdirSync(join(work, "empty"));
  writeFileSync(join(work, "half.zip"), read(folder, WEIGHTS).subarray(0, 50));
  const linked = join(work, "linked"), copied = join(work, "copied");
  cpSync(model, copied, { recursive: true });
  symlinkSync(copied, linked);
  const wide = find("of more than q and v", (each) => fields(each).target_modules.includes("down_proj"));
  const other = find("of another model", (each) => !withModels.includes(each));
  const cases = [
    [["destroy", adapter], /inspect ADAPTER/], [["inspect"], /inspect ADAPTER/], [["inspect", adapter, adapter], /inspect ADAPTER/], [["inspect", adapter, "--deep"], /--deep/],
    [["inspect", join(work, "missing")], /ENOENT/], [["inspect", join(work, "empty")], /ENOENT.*adapter_config/], [["inspect", join(work, "half.zip")], /^file: .*zip/],
    [["inspect", adapter, "--model", join(work, "empty")], /expected .safetensors files/], [["inspect", adapter, "--from", "onnx"], /expected peft, gguf/],
    [["inspect", join(golden, other), "--model", model], /^unmatched: /], [["inspect", adapter, "--from", "hesper"], /--in-features/], [["inspect", adapter, "--from", "kohya"], /needs --model/],
    [["convert", adapter, "--out", out], /needs --to/], [["convert", adapter, "--to", "peft"], /--out/], [["convert", adapter, "--to", "onnx", "--out", out], /expected peft, gguf/],
    [["convert", adapter, "--to", "gguf", "--out", out], /needs --model/], [["convert", adapter, "--to", "peft", "--dtype", "float8", "--out", out], /float8/], [["convert", join(golden, wide), "--to", "hesper", "--out", out], /q_proj and v_proj|hesper cannot hold/],
    [["merge", adapter, "--model", model], /--out/], [["merge", adapter, "--out", out], /--model/], [["merge", adapter, "--model", model, "--out", model], /is the model itself/],
    [["merge", adapter, "--model", copied, "--out", linked], /is the model itself/],
    [["merge", join(golden, other), "--model", model, "--out", out], /^unmatched: /],
  ];
  for (let i = 0; i < cases.length; i += 4) {
    await Promise.all(cases.slice(i, i + 4).map(async ([args, words]) => {
      const { code, stderr, stdout } = await command(...args);
      assert.equal(code, 1, `${args}: ${stdout}`);
      assert.match(stderr, words, args.join(" "));
      assert.ok(!/^\s+at /m.test(stderr), `${args}: ${stderr}`);
    }));
  }
  assert.ok(!existsSync(out), "something was written");
  assert.deepEqual(readFileSync(join(copied, "model.safetensors")), readFileSync(join(model, "model.safetensors")), "the model that --out led to is as it was");
});

test("in a page an adapter is trained, saved, loaded into new layers, and gives the same outputs", async () => {
  const browser = await launch();
  try {
    await onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
      await page.waitForFunction(() => globalThis.ready);
      const { results, atomic } = await page.evaluate(async () => {
        const results = [];
        for (const variant of [{}, { useRslora: true, alpha: 3 }, { useDora: true }, { loraBias: true, trainBias: true }]) {
          const layers = (more) => [["block.0.fc", 6, 7], ["head", 7, 5]].map(([name, inFeatures, outFeatures], i) => new LoraLinear(gpu, {
            name, inFeatures, outFeatures, rank: 2 + i, alpha: 4, seed: i, weight: numbers(inFeatures * outFeatures, i).map((v) => v / 4), bias: numbers(outFeatures, i + 7), ...variant, ...more,
          }));
          const forward = async ([first, second]) => {
            const rec = gpu.record(), output = second.forward(rec, first.forward(rec, tensor("x", [3, 6], numbers(18, 4))));
            await rec.submit();
            return [...(await output.read())];
          };
          const train = async (network, steps) => {
            const trainer = new Trainer(gpu, { layers: network, loss: mse(), optimizer: adamw({ lr: 0.02 }) });
            const losses = [];
            for (let i = 0; i < steps; i++) losses.push((await trainer.step({ x: numbers(18, 4), target: numbers(15, 5) })).loss);
            trainer.dispose();
            return losses;
          };
          const [trained, fresh] = [layers(), layers()];
          const start = await forward(trained);
          const losses = await train(trained, 5);
          const saved = await savePeft({ layers: trained, baseModel: "base" });
          const zip = new File([saved.zip()], "adapter.zip");
          const adapter = await loadPeft([zip], { model: trained.map(({ name, inFeatures, outFeatures }) => ({ name, inFeatures, outFeatures })) });
          adapter.applyTo(fresh);
          const outputs = [await forward(trained), await forward(fresh)];
          if (variant.trainBias) {
            // PEFT before 0.7 had no base_layer in its names.
            const { weights } = saved, end = 8 + Number(new DataView(weights.buffer, weights.byteOffset).getBigUint64(0, true));
            const header = new TextEncoder().encode(new TextDecoder().decode(weights.subarray(8, end)).replaceAll(".base_layer.bias", ".bias"));
            const older = new Uint8Array(8 + header.length + weights.length - end), named = layers();
            new DataView(older.buffer).setBigUint64(0, BigInt(header.length), true);
            older.set(header, 8);
            older.set(weights.subarray(end), 8 + header.length);
            const files = await loadPeft({ config: saved.config, weights: older });
            if (!files.tensors.every(({ name }) => name.endsWith(".bias") && !name.includes("base_layer"))) throw new Error("the names are older ones");
            files.applyTo(named);
            outputs[1] = await forward(named);
            named.forEach((layer) => layer.dispose());
          }
          const scalings = fresh.map((layer, i) => [layer.scaling, trained[i].scaling, adapter.modules[i].scaling]);
          // Training goes on, and what is saved keeps the configuration.
          const again = await train(fresh, 5);
          const second = await savePeft({ layers: fresh, like: adapter });
          const wrong = [
            await failure(() => adapter.applyTo(fresh.slice(1))), await failure(() => adapter.applyTo([...fresh, new LoraLinear(gpu, { name: "more", inFeatures: 1, outFeatures: 1, rank: 1, weight: new Float32Array(1) })])),
            await failure(() => adapter.applyTo(fresh.map((layer) => new LoraLinear(gpu, { name: layer.name, inFeatures: layer.inFeatures, outFeatures: layer.outFeatures, rank: 1, weight: new Float32Array(layer.inFeatures * layer.outFeatures) })))),
            await failure(() => savePeft({ layers: [new LoraLinear(gpu, { inFeatures: 1, outFeatures: 1, rank: 1, weight: new Float32Array(1) })] })),
          ];
          const fixed = layers({ trainBias: false }); // a trained bias has no place in them
          const lost = await failure(() => adapter.applyTo(fixed)), untouched = await forward(fixed);
          adapter.applyTo(fixed, { strict: false });
          // All of it or nothing.
          const kept = layers(), [one, two] = kept, values = async () => String(await Promise.all(kept.flatMap(({ a, b }) => [a.read(), b.read()]))), numbersBefore = await values();
          const refusals = [await failure(() => adapter.applyTo([one, two, layers()[1]]))];
          const short = await makePeft({ layers: adapter.modules.map((module, i) => ({ name: module.name, rank: module.rank, alpha: module.alpha, a: module.a, b: module.b, ...(module.magnitude && { magnitude: module.magnitude }), ...(module.loraBias && { loraBias: module.loraBias }), ...(i && variant.trainBias && { bias: numbers(4, 1) }) })), like: adapter });
          if (variant.trainBias) refusals.push(await failure(() => short.applyTo(kept)));
          await two.merge();
          refusals.push(await failure(() => adapter.applyTo(kept)));
          await two.unmerge();
          const unchanged = (await values()) === numbersBefore;
          const gone = layers();
          gone[1].dispose();
          refusals.push(await failure(() => adapter.applyTo([one, gone[1]])));
          const still = (await values()) === numbersBefore;
          one.adapter().scale = 0;
          adapter.applyTo(kept);
          const { scale } = one.adapter();
          [...kept, gone[0]].forEach((layer) => layer.dispose());
          results.atomic ??= [];
          results.atomic.push({ refusals, unchanged, still, scale });
          results.push({ start, losses, again, outputs, scalings, config: JSON.parse(saved.config), second: JSON.parse(second.config), wrong, lost, untouched });
          [...trained, ...fresh, ...fixed].forEach((layer) => layer.dispose());
        }
        return { results, atomic: results.atomic };
      });
      for (const { refusals, unchanged, still, scale } of atomic) {
        const codes = refusals.map(({ code }) => code);
        assert.deepEqual(codes, codes.length === 4 ? ["invalid-argument", "shape", "invalid-argument", "disposed"] : ["invalid-argument", "invalid-argument", "disposed"], JSON.stringify(refusals));
        assert.ok(unchanged && still);
        assert.equal(scale, 1);
      }
      for (const { start, losses, again, outputs, scalings, config, second, wrong, lost, untouched } of results) {
        assert.equal(lost.code, config.bias === "lora_only" ? "unmatched" : "none");
        if (lost.code === "unmatched") assert.deepEqual(untouched, start, "a refused adapter leaves the layers as they were");
        assert.deepEqual(outputs[0], outputs[1]);
        assert.notDeepEqual(outputs[0], start);
        assert.ok(again.at(-1) < losses.at(-1) && losses.at(-1) < losses[0], `${losses}, ${again}`);
        for (const [layer, other, file] of scalings) assert.ok(layer === other && Math.abs(layer - file) <= 1e-6 * layer, scalings.join());
        assert.deepEqual(second, config);
        assert.deepEqual(wrong.map(({ code }) => code), ["unmatched", "unmatched", "shape", "invalid-argument"]);
      }
      assert.deepEqual(results.map(({ config }) => [config.use_rslora ?? false, config.use_dora ?? false, config.lora_bias ?? false, config.bias]),
        [[false, false, false, "none"], [true, false, false, "none"], [false, true, false, "none"], [false, false, true, "lora_only"]]);
    });
    await onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
      await page.waitForFunction(() => globalThis.ready);
      const results = await page.evaluate(async () => {
        const results = [];
        const weight = numbers(42, 3), x = tensor("x", [3, 6], numbers(18, 4));
        const layer = (options) => new LoraLinear(gpu, { name: "fc", inFeatures: 6, outFeatures: 7, weight, rank: 2, alpha: 3, seed: 5, ...options });
        const forward = async (layer) => {
          const rec = gpu.record(), output = layer.forward(rec, x);
          await rec.submit();
          return [...(await output.read())];
        };
        for (const init of ["peft", "gaussian", "orthogonal", "pissa", "pissa_niter_8", "olora"]) {
          const own = layer({ init }), plainLayer = layer();
          const start = { base: await forward(plainLayer), own: await forward(own), a: await own.a.read(), b: await own.b.read() };
          const trainer = new Trainer(gpu, { layers: [own], loss: mse(), optimizer: adamw({ lr: 0.05 }) });
          for (let i = 0; i < 4; i++) await trainer.step({ x: numbers(18, 4), target: numbers(21, 5) });
          trainer.dispose();
          own.adapter().scale = 0.75;
          const scaled = await failure(() => savePeft({ layers: [own] }));
          if (init === "olora") own.adapter().scale = 1;
          const saved = await savePeft({ layers: [own] }), plain = await savePeft({ layers: [own], plain: true });
          const again = layer({ init, seed: 8 }), asPlain = layer({ rank: plain.config.match(/"r": (\d+)/)[1] * 1 });
          (await loadPeft(saved.zip())).applyTo([again]);
          (await loadPeft(plain.zip())).applyTo([asPlain]);
          const mismatch = await failure(async () => (await loadPeft(saved.zip())).applyTo([layer({ rank: 2 })]));
          own.addAdapter("second", { rank: 2 });
          const second = [await failure(() => savePeft({ layers: [own], adapter: "second" })), await failure(() => savePeft({ layers: [own], adapter: "second", plain: true }))];
          results.push({ init, start: { ...start, a: [...start.a], b: [...start.b] }, outputs: [await forward(own), await forward(again), await forward(asPlain)], config: JSON.parse(saved.config), plain: JSON.parse(plain.config), weights: [...saved.weights], plainWeights: [...plain.weights], mismatch, second, scaled });
          [own, plainLayer, again, asPlain].forEach((each) => each.dispose());
        }
        const base = new FrozenLinear(gpu, { kind: "q8_0", inFeatures: 32, outFeatures: 7, weight: numbers(224, 1) });
        const failures = {
          "another": [await failure(() => layer({ init: "eva" })), "eva"], "a quantised base": [await failure(() => new LoraLinear(gpu, { base, inFeatures: 32, outFeatures: 7, rank: 2, init: "pissa" })), "float32"],
          "a rank too large": [await failure(() => layer({ rank: 7, init: "pissa" })), "at most 6"], "an odd one": [await failure(() => layer({ rank: 3, init: "orthogonal" })), "even"], "DoRA": [await failure(() => layer({ useDora: true, init: "olora" })), "DoRA"],
          "a second adapter": [await failure(() => layer({}).addAdapter("b", { rank: 2, init: "pissa" })), "first adapter"], "A and B alone": [await failure(() => new LoraWeight(gpu, { inFeatures: 6, outFeatures: 7, rank: 2, init: "olora" })), "LoraLinear"],
        };
        const onBase = new LoraLinear(gpu, { base, inFeatures: 32, outFeatures: 7, rank: 2, init: "orthogonal", seed: 2 });
        const alone = new LoraWeight(gpu, { inFeatures: 32, outFeatures: 7, rank: 2, init: "orthogonal", seed: 2 });
        const same = [await onBase.b.read(), await alone.b.read()].map((values) => [...values]);
        return { results, failures, same, weight: [...weight] };
      });
      for (const { init, start, outputs, config, plain, weights, plainWeights, mismatch, second, scaled } of results.results) {
        near(start.own, start.base, 1e-6, `${init}: an adapter starts with what the base gives`);
        const changes = /pissa|olora/.test(init);
        assert.equal(scaled.code, init === "olora" ? "invalid-argument" : "none", init);
        assert.equal(start.b.some((v) => v !== 0), changes || init === "orthogonal", init);
        assert.deepEqual([config.init_lora_weights, config.r, plain.init_lora_weights, plain.r], [changes ? init : true, 2, true, changes ? 4 : 2]);
        near(outputs[1], outputs[0], 1e-6, `${init}: loaded as it is`);
        near(outputs[2], outputs[0], 2e-6, `${init}: loaded as a plain one`);
        if (!changes) continue;
        assert.equal(mismatch.code, "unmatched");
        assert.deepEqual(second.map(({ code }) => code), ["invalid-argument", "none"]);
        // Node makes the same plain adapter of the file.
        const file = await loadPeft({ config, weights: Uint8Array.from(weights) });
        const there = await file.toPlain({ model: container({ "fc.weight": [[7, 6], results.weight] }) }), here = await loadPeft({ config: plain, weights: Uint8Array.from(plainWeights) });
        near(there.modules[0].deltaWeight(), here.modules[0].deltaWeight(), 1e-5, init);
      }
      for (const [what, [{ code, message }, word]] of Object.entries(results.failures)) assert.ok(code === "invalid-argument" && message.includes(word), `${what}: ${code}: ${message}`);
      assert.deepEqual(results.same[0], results.same[1]);
    });
    // PEFT's own adapters of y = fc2(tanh(fc1(x))), by their address.
    const ends = folders.filter((folder) => basename(folder) === "end" && existsSync(join(golden, dirname(folder), "trace.safetensors")));
    await onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
      await page.waitForFunction(() => globalThis.ready);
      for (const folder of ends) {
        const { values, tensors } = safetensors(read(dirname(folder), "trace.safetensors"));
        const given = ["base.fc1.weight", "base.fc1.bias", "base.fc2.weight", "base.fc2.bias", "x"].filter((name) => tensors[name]).map((name) => [name, tensors[name].shape, [...values(name)]]);
        const files = [CONFIG, WEIGHTS].map((name) => [...read(folder, name)]);
        const y = await page.evaluate(async ([given, [config, weights]]) => {
          const t = Object.fromEntries(given.map(([name, shape, data]) => [name, { shape, data: Float32Array.from(data) }]));
          const adapter = await loadPeft({ config: Uint8Array.from(config), weights: Uint8Array.from(weights) });
          const layers = ["fc1", "fc2"].map((name) => {
            const [outFeatures, inFeatures] = t[`base.${name}.weight`].shape, bias = t[`base.${name}.bias`]?.data;
            const module = adapter.modules.find((module) => module.name === name);
            return new LoraLinear(gpu, { name, inFeatures, outFeatures, rank: module?.rank ?? 1, alpha: module?.alpha ?? 1, useRslora: adapter.config.use_rslora ?? false, useDora: module?.magnitude !== undefined, weight: t[`base.${name}.weight`].data, ...(bias && { bias }) });
          });
          adapter.applyTo(layers, { strict: false });
          const forward = async (layer, x, inFeatures) => {
            const rec = gpu.record(), output = layer.forward(rec, tensor("x", [x.length / inFeatures, inFeatures], x));
            await rec.submit();
            return output.read();
          };
          const [fc1, fc2] = layers;
          const y = [...(await forward(fc2, (await forward(fc1, t.x.data, fc1.inFeatures)).map(Math.tanh), fc2.inFeatures))];
          layers.forEach((layer) => layer.dispose());
          return y;
        }, [given, files]);
        near(y, values("y_end"), 1e-5, folder);
      }
      assert.ok(ends.length > 0);
    });
  } finally {
    await browser.close();
  }
});
