// Fuzzing of the readers that are JavaScript: inputs are changed at random, and kept where V8's own coverage sees code that was not
// reached before. A target may only throw LoraErrors, quickly, without holding much more than its input.
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { Session } from "node:inspector/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const dist = (name) => import(new URL(`../dist/${name}.js`, import.meta.url));
const text = (bytes) => new TextDecoder().decode(bytes);
const bytesOf = (words) => new TextEncoder().encode(words);

/** Each target: what it does, and its seeds. */
export const TARGETS = {
  zip: {
    async run(bytes) {
      const { isZip, unzip } = await dist("zip");
      isZip(bytes);
      const files = await unzip(bytes, (name) => name.length % 2 === 0);
      for (const file of files.values()) if (!(file instanceof Uint8Array)) throw new Error("no bytes");
    },
    async seeds() {
      const { zip } = await dist("zip");
      const plain = new Uint8Array(await zip({ "ab": bytesOf("hello"), "adapter_config.json1": bytesOf("{}") }).arrayBuffer());
      const { deflateRawSync } = await import("node:zlib");
      const packed = deflateRawSync(Buffer.alloc(300, 7)), deflated = new Uint8Array(await zip({ ab: packed }).arrayBuffer());
      deflated[8] = 8;
      const at = deflated.length - 22 - 46 - 2;
      deflated[at + 10] = 8;
      new DataView(deflated.buffer).setUint32(at + 24, 300, true);
      return [plain, deflated, new Uint8Array(await zip({}).arrayBuffer())];
    },
  },
  "gguf-js": {
    async run(bytes) {
      const { metadata, tokenizer } = await (await dist("gguf")).readGguf(bytes);
      JSON.stringify([[...metadata.keys()], tokenizer]);
    },
    async seeds() {
      const folder = join(root, "fuzz/corpus/gguf");
      const { writeGguf } = await import("../tests/e2e/gguf.mjs");
      const own = (model, more) => writeGguf({ "tokenizer.ggml.model": model, "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"], "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.bos_token_id": 3, "tokenizer.ggml.add_bos_token": true, ...more }, []);
      return [
        own("gpt2", { "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.merges": ["a b"] }), own("gpt2", { "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.merges": ["a b"], "tokenizer.chat_template": "{{ x }}" }),
        own("llama", { "tokenizer.ggml.scores": [0.5, 0.5, -0.5, 0.25], "tokenizer.ggml.add_space_prefix": false }),
        ...(existsSync(folder) ? readdirSync(folder).slice(0, 10).map((name) => readFileSync(join(folder, name))) : []),
      ].map((bytes) => new Uint8Array(bytes));
    },
  },
  jsonl: {
    async run(bytes) {
      const { chunkTokens, parseJsonl, tokenizeExamples } = await dist("text");
      const { examples } = parseJsonl(text(bytes));
      const { examples: tokens } = tokenizeExamples(examples, { encode: (words) => [...words].map((c) => c.codePointAt(0)), maxTokens: 16, bosTokenId: 1, eosTokenId: 2, chatTemplate: (messages, prompt) => messages.map(({ role, content }) => `<${role}>${content}</>`).join("") + (prompt ? "<assistant>" : "") });
      for (const { inputIds, labels } of tokens) if (inputIds.length !== labels.length) throw new Error("labels");
      chunkTokens(bytes, { length: 7, stride: 3 });
    },
    seeds: async () => [
      '{"prompt":"a","completion":"b"}\n{"text":"c\\u00e9"}\r\n\n{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"}]}',
      '\uFEFF{"text":""}\n[1]\nnull\n{"prompt":1}\n{"messages":[]}\n{"messages":[{"role":"assistant","content":"<assistant>"},{"role":"assistant","content":""}]}',
    ].map(bytesOf),
  },
  index: {
    async run(bytes) {
      const { openModel } = await dist("source");
      const file = (name, content) => new File([content], name);
      await openModel({ folder: [file("config.json", "{}"), file("model.safetensors.index.json", bytes), file("a.safetensors", ""), file("b-1.safetensors", "")] });
    },
    seeds: async () => ['{"metadata":{"total_size":5},"weight_map":{"x":"a.safetensors","y":"b-1.safetensors","z":"a.safetensors"}}', '{"weight_map":{"x":"../a.safetensors"}}', '{"weight_map":[]}', '{"weight_map":{"x":5,"__proto__":"a.safetensors"}}'].map(bytesOf),
  },
};

const PATIENCE = 5000, SLACK = 64 << 20;

/** What is wrong about a target's run on an input; undefined where nothing is. */
export async function fault(target, bytes) {
  const { LoraError } = await dist("error");
  const start = performance.now(), held = process.memoryUsage();
  let wrong;
  try {
    await TARGETS[target].run(bytes);
  } catch (error) {
    if (!(error instanceof LoraError && error.code)) wrong = `threw ${error?.stack ?? error}`;
  }
  const took = performance.now() - start, now = process.memoryUsage();
  if (took > PATIENCE) wrong ??= `took ${Math.round(took)} ms`;
  if (now.arrayBuffers - held.arrayBuffers > SLACK + 64 * bytes.length) wrong ??= `held ${now.arrayBuffers - held.arrayBuffers} bytes`;
  return wrong;
}

/** SplitMix32, so that a run can be repeated. */
function random(seed) {
  return (below) => {
    let z = (seed = (seed + 0x9e3779b9) | 0);
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return ((z ^ (z >>> 15)) >>> 0) % below;
  };
}

const NUMBERS = [0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, 0x80000000, 4, 46, 22, 30];

/** The input, changed in a few places. */
function changed(input, others, draw) {
  let bytes = [...input];
  for (let time = 1 + draw(4); time > 0; time--) {
    const at = draw(bytes.length + 1), length = 1 + draw(16);
    switch (draw(8)) {
      case 0: if (bytes.length) bytes[at % bytes.length] ^= 1 << draw(8); break;
      case 1: if (bytes.length) bytes[at % bytes.length] = draw(256); break;
      case 2: bytes.splice(at, length); break;
      case 3: bytes.splice(at, 0, ...bytes.slice(draw(bytes.length + 1)).slice(0, length)); break;
      case 4: { const number = NUMBERS[draw(NUMBERS.length)], size = [1, 2, 4, 8][draw(4)]; for (let i = 0; i < size; i++) bytes[at + i] = i < 4 ? (number >>> (8 * i)) & 255 : 0; break; }
      case 5: { const other = others[draw(others.length)]; bytes.splice(at, draw(2) * length, ...other.slice(draw(other.length + 1)).slice(0, 4 * length)); break; }
      case 6: bytes = bytes.slice(0, at); break;
      default: bytes.splice(at, 0, ...bytesOf(['"', "{", "[", "]", "}", ",", ":", "\\u", "__proto__", "1e999", "\n", "null"][draw(12)])); break;
    }
  }
  return Uint8Array.from(bytes.slice(0, 4096), (byte) => byte ?? 0);
}

/** Fuzzes a target for so many seconds; `work` keeps what it learned. */
export async function fuzzJs(target, seconds, work) {
  const session = new Session();
  session.connect();
  await session.post("Profiler.enable");
  await session.post("Profiler.startPreciseCoverage", { callCount: true, detailed: true });
  const seen = new Set();
  const news = async () => {
    const { result } = await session.post("Profiler.takePreciseCoverage");
    let found = false;
    for (const { url, functions } of result) {
      if (!url.includes("/dist/")) continue;
      for (const { ranges } of functions) for (const { startOffset, endOffset, count } of ranges) {
        // How often, in powers of two.
        const key = `${url} ${startOffset} ${endOffset} ${Math.ceil(Math.log2(count + 1))}`;
        if (seen.has(key)) continue;
        seen.add(key);
        found = true;
      }
    }
    return found;
  };
  const own = join(work, "corpus", target), kept = join(root, "fuzz/corpus", target);
  mkdirSync(own, { recursive: true });
  const stored = [own, kept].filter(existsSync).flatMap((folder) => readdirSync(folder).map((name) => new Uint8Array(readFileSync(join(folder, name)))));
  const inputs = [];
  const failures = [];
  let executions = 0;
  const attempt = async (bytes) => {
    executions++;
    const why = await fault(target, bytes);
    if (why) failures.push({ bytes, why });
    if (await news()) inputs.push(bytes);
  };
  for (const bytes of [...(await TARGETS[target].seeds()), ...stored]) await attempt(bytes);
  const draw = random(Date.now() | 0), end = performance.now() + 1000 * seconds;
  while (performance.now() < end && failures.length === 0) {
    // The newest are the most promising.
    const chosen = inputs[Math.max(draw(inputs.length), draw(inputs.length))];
    await attempt(changed(chosen, inputs, draw));
  }
  await session.post("Profiler.stopPreciseCoverage");
  session.disconnect();
  inputs.forEach((bytes, i) => writeFileSync(join(own, `${String(i).padStart(5, "0")}`), bytes));
  return { executions, covered: seen.size, failures, inputs: inputs.map((_, i) => join(own, String(i).padStart(5, "0"))) };
}
