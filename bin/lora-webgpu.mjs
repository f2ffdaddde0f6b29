#!/usr/bin/env node
// npx lora-webgpu inspect|convert|merge: adapter files, without a GPU.
import { copyFile, mkdir, open, readFile, readdir, rename, rm, stat, writeFile } from "node:fs/promises";
import { basename, dirname, extname, join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { LoraError, importAdapter, loadPeft, mergeInto, modelModules } from "../dist/node.js";

const USAGE = `lora-webgpu inspect ADAPTER [--model MODEL] [--json]
    What an adapter holds, and how it fits a model.
lora-webgpu convert ADAPTER --to FORMAT --out OUT [--model MODEL] [--plain]
    Into peft (a folder, or a .zip), gguf, kohya or hesper. gguf needs --model for its config.json.
    --plain makes a plain adapter of one that starts from PiSSA or OLoRA. --dtype float16|bfloat16 for peft,
    --name NAME for gguf, --prefix PREFIX of the names for kohya.
lora-webgpu merge ADAPTER --model MODEL --out OUT
    The model with the adapter in its weights.

ADAPTER is a folder or zip of PEFT's two files, or with --from:
    --from gguf     an adapter file of llama.cpp (--model for llama and mistral)
    --from kohya    a file with lora_down and lora_up (needs --model)
    --from mlx      a folder with adapters.safetensors and adapter_config.json
    --from hesper   Hesper's binary file (needs --in-features, --q-out-features and --v-out-features)
MODEL is a folder with config.json and .safetensors files, or one .safetensors file.
--strict=false turns what is odd about an adapter from an error into a note.`;

const stop = (message) => {
  console.error(message);
  process.exit(1);
};

const isFolder = async (path) => (await stat(path)).isDirectory();

// A file of which pieces are read when they are wanted, as of a Blob.
class FilePieces {
  static opened = []; // closed at the end
  constructor(path, handle, size) {
    Object.assign(this, { path, handle, size });
  }
  static async open(path) {
    const handle = await open(path);
    FilePieces.opened.push(handle);
    return new FilePieces(path, handle, (await handle.stat()).size);
  }
  slice(start, end) {
    return {
      arrayBuffer: async () => {
        const buffer = new ArrayBuffer(Math.max(end - start, 0));
        let at = 0;
        while (at < buffer.byteLength) {
          const { bytesRead } = await this.handle.read(new Uint8Array(buffer, at), 0, buffer.byteLength - at, start + at);
          if (bytesRead === 0) break;
          at += bytesRead;
        }
        return buffer.slice(0, at);
      },
    };
  }
}

async function modelFiles(path) {
  if (!path) return [];
  if (!(await isFolder(path))) return [await FilePieces.open(path)];
  const names = (await readdir(path)).filter((name) => name.endsWith(".safetensors") && name !== "adapter_model.safetensors").sort();
  if (!names.length) stop(`${path}: expected .safetensors files, found none`);
  return Promise.all(names.map((name) => FilePieces.open(join(path, name))));
}

const modelConfig = async (path) => {
  const file = path && join((await isFolder(path)) ? path : dirname(path), "config.json");
  return file ? readFile(file).catch(() => undefined) : undefined;
};

async function readAdapter(path, options) {
  const strict = options.strict !== "false";
  const from = options.from ?? (extname(path) === ".gguf" ? "gguf" : "peft");
  const number = (name) => Number(options[name] ?? stop(`--from hesper needs --${name}`));
  switch (from) {
    case "peft": {
      if (!(await isFolder(path))) return loadPeft(await readFile(path), { strict });
      const [config, weights] = await Promise.all(["adapter_config.json", "adapter_model.safetensors"].map((name) => readFile(join(path, name))));
      return loadPeft({ config, weights }, { strict });
    }
    case "gguf":
      return importAdapter({ format: "gguf", file: await readFile(path), modelConfig: await modelConfig(options.model) });
    case "kohya": {
      if (!options.model) stop("--from kohya needs --model, by which its names are resolved");
      return importAdapter({ format: "kohya", file: await readFile(path), model: await modelModules(await modelFiles(options.model)) });
    }
    case "mlx": {
      const [config, file] = await Promise.all(["adapter_config.json", "adapters.safetensors"].map((name) => readFile(join(path, name))));
      return importAdapter({ format: "mlx", file, config });
    }
    case "hesper": {
      const widths = { inFeatures: number("in-features"), qOutFeatures: number("q-out-features"), vOutFeatures: number("v-out-features") };
      return importAdapter({ format: "hesper", file: await readFile(path), ...widths });
    }
    default:
      return stop(`--from: expected peft, gguf, kohya, mlx or hesper, got ${from}`);
  }
}

const commands = {
  async inspect(path, options) {
    const adapter = await readAdapter(path, options);
    const model = await modelFiles(options.model);
    const report = model.length ? await adapter.report(await modelModules(model), { strict: options.strict !== "false" }) : undefined;
    const { modules, tensors, notes, parameters, config } = adapter;
    const plain = modules.map(({ name, kind, rank, alpha, scaling, inFeatures, outFeatures }) => ({ name, kind, rank, alpha, scaling, inFeatures, outFeatures }));
    if (options.json) {
      const others = tensors.map(({ name, dtype, shape }) => ({ name, dtype, shape }));
      console.log(JSON.stringify({ parameters, modules: plain, tensors: others, notes, report, config }, null, 2));
      return;
    }
    const width = Math.max(6, ...plain.map(({ name }) => name.length));
    console.log(`${"module".padEnd(width)}  rank  alpha  scaling  in → out`);
    for (const m of plain) {
      const scaling = Number(m.scaling.toPrecision(6));
      console.log(`${m.name.padEnd(width)}  ${String(m.rank).padStart(4)}  ${String(m.alpha).padStart(5)}  ${String(scaling).padStart(7)}  ${m.inFeatures} → ${m.outFeatures}${m.kind === "linear" ? "" : `  ${m.kind}`}`);
    }
    for (const { name, dtype, shape } of tensors) console.log(`${name.padEnd(width)}  ${dtype} [${shape.join(", ")}]`);
    console.log(`\n${plain.length} modules, ${parameters} trained numbers${adapter.changesBase ? "; its base is changed by a decomposition of the model's weights" : ""}`);
    notes.forEach((note) => console.log(`note: ${note}`));
    if (report) {
      console.log(`fits the model: ${report.matched.length} modules matched, ${report.missing.length} missing, ${report.leftover.length} left over, ${report.replaced.length} tensors replaced`);
      for (const kind of ["missing", "leftover"]) report[kind].forEach((name) => console.log(`${kind}: ${name}`));
    }
  },

  async convert(path, options) {
    const { to, out } = options;
    if (!to || !out) stop("convert needs --to and --out");
    let adapter = await readAdapter(path, options);
    const config = await modelConfig(options.model);
    if (options.plain) adapter = await adapter.toPlain({ model: await modelFiles(options.model) });
    if (!["peft", "gguf", "kohya", "hesper"].includes(to)) stop(`--to: expected peft, gguf, kohya or hesper, got ${to}`);
    for (const [option, format] of Object.entries({ dtype: "peft", name: "gguf", prefix: "kohya" })) {
      if (options[option] !== undefined && to !== format) stop(`--${option} is for --to ${format}, got --to ${to}`);
    }
    if (to === "gguf" && !config) stop("--to gguf needs --model, whose config.json says the architecture and the heads");
    const lost = await adapter.canExport(to, { modelConfig: to === "gguf" ? config : undefined });
    if (lost.length) stop(`${to} cannot hold all of this adapter:\n${lost.map((each) => `  ${each}`).join("\n")}`);
    if (to === "peft") {
      const files = adapter.files({ dtype: options.dtype });
      if (out.endsWith(".zip")) await writeFile(out, new Uint8Array(await files.zip().arrayBuffer()));
      else {
        await mkdir(out, { recursive: true });
        await writeFile(join(out, "adapter_config.json"), files.config);
        await writeFile(join(out, "adapter_model.safetensors"), files.weights);
      }
    } else {
      const bytes = to === "gguf" ? await adapter.toGguf({ modelConfig: config, name: options.name }) : to === "kohya" ? adapter.toKohya({ prefix: options.prefix }) : adapter.toHesper();
      await writeFile(out, bytes);
    }
    console.log(`${adapter.modules.length} modules written to ${out}`);
  },

  async merge(path, options) {
    const { model, out } = options;
    if (!model || !out) stop("merge needs --model and --out");
    const adapter = await readAdapter(path, options);
    const files = await modelFiles(model);
    const folder = await isFolder(model);
    const target = (file) => (folder ? join(out, basename(file.path)) : out);
    // By the file and not by its name: links lead to the model, too.
    const identity = async (path) => { const { dev, ino } = await stat(path).catch(() => ({})); return ino && `${dev} ${ino}`; };
    for (const file of files) {
      const own = await identity(target(file));
      if (resolve(target(file)) === resolve(file.path) || (own && own === (await identity(file.path)))) stop("--out is the model itself; expected another place");
    }
    // Written beside its place and put there when it is whole; taken away where it comes to nothing.
    const part = (file) => `${target(file)}.part`;
    const handles = new Map();
    const begun = async (index) => {
      if (!handles.has(index)) {
        if (folder) await mkdir(out, { recursive: true });
        handles.set(index, await open(part(files[index]), "w"));
      }
      return handles.get(index);
    };
    const close = () => Promise.all([...handles.values()].map((handle) => handle.close()));
    try {
      await mergeInto({ adapter, model: files }, async (index, bytes) => (await begun(index)).writeFile(bytes));
    } catch (error) {
      await close();
      await Promise.all([...handles.keys()].map((index) => rm(part(files[index]))));
      throw error;
    }
    await close();
    for (const index of handles.keys()) await rename(part(files[index]), target(files[index]));
    if (folder) for (const name of await readdir(model)) if (/\.(json|txt|model|jinja)$/.test(name)) await copyFile(join(model, name), join(out, name));
    console.log(`${adapter.modules.length} modules merged into ${out}`);
  },
};

const text = { type: "string" };
try {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      model: text, out: { ...text, short: "o" }, to: text, from: text, name: text, prefix: text, dtype: text, strict: text,
      "in-features": text, "q-out-features": text, "v-out-features": text,
      plain: { type: "boolean" }, json: { type: "boolean" }, help: { type: "boolean", short: "h" },
    },
  });
  const [command, adapter, ...rest] = positionals;
  if (values.help || !command) console.log(USAGE);
  else if (!Object.hasOwn(commands, command) || !adapter || rest.length) stop(USAGE);
  else {
    await commands[command](adapter, values);
    await Promise.all(FilePieces.opened.map((handle) => handle.close()));
  }
} catch (error) {
  const expected = error instanceof LoraError || error?.code?.startsWith?.("ERR_PARSE_ARGS") || error?.syscall;
  stop(expected ? `${error.code}: ${error.message}` : error);
}
