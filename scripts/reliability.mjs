// Figures of reliability: `record` keeps those of a run in docs/reliability.json and writes docs/reliability.md from them.
import { readFileSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { root } from "./lib.mjs";

const JSON_FILE = join(root, "docs/reliability.json"), PAGE = join(root, "docs/reliability.md");

/** Keeps figures of a section, beside those that are there. */
export function record(section, figures) {
  const all = read();
  const sorted = Object.entries({ ...all[section], ...figures }).sort(([a], [b]) => (a < b ? -1 : 1));
  all[section] = Object.fromEntries(sorted);
  all.machine = `${cpus().length} cores of ${cpus()[0].model.trim().replace(/\s+/g, " ")}, Node ${process.versions.node}`;
  writeFileSync(JSON_FILE, `${JSON.stringify(all, null, 1)}\n`);
  writeFileSync(PAGE, page(all));
}

function read() {
  try {
    return JSON.parse(readFileSync(JSON_FILE, "utf8"));
  } catch {
    return {};
  }
}

/** What is wrong about the page: other figures than the file has. */
export const stale = () => (readFileSync(PAGE, "utf8") === page(read()) ? [] : ["docs/reliability.md has other figures than docs/reliability.json: npm run reliability"]);

const n = (value) => (value === undefined ? "–" : value.toLocaleString("en"));
const lines = (rows) => rows.map((row) => `| ${row.join(" | ")} |`).join("\n");
const table = (head, rows) => lines([head, head.map((_, i) => (i ? "--:" : "---")), ...rows]);

// What each target reads.
const READS = {
  "safetensors": "safetensors headers",
  "adapter_config": "PEFT's adapter_config.json",
  "adapter": "PEFT's two files, and all that is done with an adapter",
  "model_config": "a model's config.json",
  "gguf": "GGUF, models and adapters",
  "kohya": "Kohya's files",
  "mlx": "MLX's files",
  "hesper": "Hesper's files",
  "zip": "zip archives (JavaScript)",
  "gguf-js": "GGUF's metadata and tokenizer (JavaScript)",
  "jsonl": "JSON lines and their tokens (JavaScript)",
  "index": "the index of a model in several files (JavaScript)",
};

// Mended, each with a test that failed before.
const FOUND = [
  "The first half of a surrogate pair before another escape overflowed a number: a panic where overflows are checked.",
  "A configuration of a few bytes had patterns that took minutes, on every module; adapters of thousands of modules had their tensors looked for one by one.",
  "A zip could unpack to a thousand times its size; sizes of a model could have a product beyond 32 bits.",
  "Each epoch of a training kept some hundred bytes of heap, by the promise of the device's loss.",
  "An adapter that came and went between two steps took the trainer's activations with it.",
  "A model that was disposed of saved an empty adapter.",
  "Some hundreds of wrong values gave errors without a code.",
];

function page({ machine, fuzz = {}, runs = {} }) {
  const { soak = {}, "trainer's device lost": trainer = {}, "language model's device lost": model = {}, "concurrent calls": calls = {} } = runs;
  const { "wrong values": wrong = {}, "hostile files": hostile = {} } = runs, { begin = {}, end = {} } = soak;
  const order = Object.keys(READS);
  const rows = Object.entries(fuzz).sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
  const sum = (of) => rows.reduce((total, [, row]) => total + row[of], 0);
  const lost = [
    ["`Trainer`: step, evaluation, checkpoint, adapters", n(trainer.stages), n(trainer.hangs), n(trainer.sameBits)],
    ["`CausalLM`: load, adapter, step, checkpoint, evaluation, generation, saving", n(model.stages), n(model.hangs), n(model.sameBits)],
  ];
  const memory = [["JavaScript's heap", n(begin.heap), n(end.heap)], ["wasm memory", n(begin.wasm), n(end.wasm)], ["GPU buffers", n(begin.gpu), n(end.gpu)]];
  const targets = rows.map(([name, row]) => [`\`${name}\``, READS[name] ?? "", n(row.seconds), n(row.executions), n(row.covered)]);
  return `# Reliability

What must not happen, whatever is done to this package, and what was measured. Figures are those of \`npm run test:soak\` and
\`npm run fuzz\` on ${machine}, with Chromium's WebGPU in software. \`npm test\` repeats all of it, with
fewer steps and stages, and with the inputs that the fuzzers kept.

## A device that is lost

Everything pending rejects with \`device-lost\`, nothing hangs, and from the last state the training goes on with the same bits on
another device. The device is destroyed before or after a call of WebGPU's (an upload, a submit, a read, an error scope) at every stage.

${table(["", "stages", "hangs", "same bits after"], lost)}

What a device's limits do not allow rejects with \`limit\`, what its memory does not hold with \`out-of-memory\`. The training beside it
has the bits of one that was not disturbed, and no byte more is held.

## Steps without end

${n(soak.steps)} steps of a small network with validation, checkpoints, and adapters that are added, removed and saved, in ${n(soak.seconds)} s.
Garbage is collected before each count.

${table(["bytes", "before", "after"], memory)}

What V8 compiles lies in the heap, too: more than 256 KiB of growth there is a failure, and a byte in the other two.

## Calls at once

${n(calls.calls)} calls, a hundred at a time, in ${n(calls.seeds)} random orders: reads, writes, recordings, steps, evaluations, states, logits, texts, wrong
arguments, disposed tensors. ${n(calls.resolved)} resolved and ${n(calls.rejected)} rejected as documented; results and parameters were, bit by bit, those of the same
calls one after the other.

After \`dispose()\` what is pending ends, with its result or with \`disposed\`, and every later call rejects with \`disposed\`.

## Wrong values

Every export and method is called with each of its arguments and options of a wrong kind: ${n(wrong.calls)} calls, of which ${n(wrong.refused)} are
refused with a \`LoraError\` that has a code. The others are taken: numbers, mostly, where a number is meant.

## Files

No panic, no hang, no more memory than a small multiple of the file, and no request: an address, a path or a prototype's name in a file
is a text. ${n(hostile.files)} hostile files (claims of terabytes, nesting without end, zip bombs, names that leave the folder, addresses in every
field, and what the fuzzers kept) were given to everything that reads files: ${n(hostile.calls)} calls, ${n(hostile.refused)} of them refused by a code,
${n(hostile.requests)} requests, ${n(hostile.wasmGrowth)} bytes of wasm memory more, the slowest ${n(hostile.slowestMs)} ms.

Fuzzed, by libFuzzer where the reader is Rust and by V8's coverage where it is JavaScript:

${table(["target", "reads", "seconds", "runs", "places reached"], targets)}
${lines([["all", "", n(sum("seconds")), n(sum("executions")), ""]])}

## Found and mended

${FOUND.map((fault) => `- ${fault}`).join("\n")}
`;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) writeFileSync(PAGE, page(read()));
