// node benches/report.mjs [results.jsonl …] [--gpu gpu.json [--torch torch.json]]: takes what benches reported on a GPU into the docs'
// data, and writes the tables of docs/performance.md from it.
//   results.jsonl  pages of the bench in Chromium, into docs/performance.json: a line is { page, set, report }; the page's name begins
//                  with the library's letter (o ours, u ours with each batch uploaded, j jax-js, t TensorFlow.js), `report` is that of benches/peers/page.html
//   gpu.json       of npm run bench:gpu -- --json, and torch.json of benches/torch_peers.py, into docs/performance-gpu.json
import { existsSync, readFileSync, realpathSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { root } from "../scripts/lib.mjs";

const page = join(root, "docs/performance.md");
const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];
const read = (path, otherwise) => (existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : otherwise);
const table = (head, rows) => [`| ${head.join(" | ")} |`, `|${"---|".repeat(head.length)}`, ...rows.map((cells) => `| ${cells.join(" | ")} |`)].join("\n");

/** Rows of both by name: microseconds of ours, and of PyTorch's eager run and CUDA graphs. */
export function besideTorch(ours, theirs) {
  return ours.rows.flatMap(({ name, us }) => {
    const peer = theirs.rows.find((row) => row.name === name);
    return peer ? [{ name, us, eager: peer.eager_us, graphs: peer.graphs_us }] : [];
  });
}

function pages(results) {
  const data = join(root, "docs/performance.json");
  const libraries = { o: "lora-webgpu", u: "lora-webgpu, each batch uploaded", j: "jax-js", t: "TensorFlow.js" };
  const known = read(data, { device: "", runs: [] });
  for (const path of results) {
    known.runs = readFileSync(path, "utf8").trim().split("\n").map((line) => JSON.parse(line))
      .filter(({ report }) => report.times)
      .map(({ page, report: { firstMs, times, losses } }) => ({ library: libraries[page[0]], shape: page[1] % 2 ? "128 × 512²" : "512 × 2,048²", firstMs, times, losses: losses.slice(0, 1) }));
  }
  writeFileSync(data, `${JSON.stringify(known)}\n`);
  const rows = ["128 × 512²", "512 × 2,048²"].flatMap((shape) => {
    const of = (library) => known.runs.filter((run) => run.library === library && run.shape === shape);
    const step = (runs) => median(runs.flatMap((run) => run.times)), first = (runs) => median(runs.map((run) => run.firstMs));
    const ours = of("lora-webgpu");
    return Object.values(libraries).filter((library) => of(library).length).map((library) => {
      const runs = of(library), times = runs.flatMap((run) => run.times);
      const ratio = library === "lora-webgpu" ? "" : `× ${(step(runs) / step(ours)).toFixed(1)}`;
      return [shape, library, `${runs.length} × ${runs[0].times.length}`, step(runs).toFixed(2), `${Math.min(...times).toFixed(2)} to ${Math.max(...times).toFixed(2)}`, ratio, first(runs).toFixed(0)];
    });
  });
  return table(["tokens × width", "library", "steps", "median, ms", "range", "ratio", "first step, ms"], rows);
}

const time = (us) => (us >= 9_950 ? `${(us / 1e3).toFixed(1)} ms` : us >= 995 ? `${(us / 1e3).toFixed(2)} ms` : us >= 99.5 ? `${us.toFixed(0)} µs` : `${us.toFixed(1)} µs`);
const percent = (share) => (share === null || share === undefined ? "" : `${(100 * share).toFixed(0)} %`);
const rate = ({ operations, us }) => (operations / us / 1e6).toFixed(1);
const thousands = (n) => n.toLocaleString("en");

/** A step's time as tokens, width or rank double: dots, and in grey twice (width: four times) the time for each doubling of the last. */
function growthPlot(rows) {
  const panels = [["tokens", "tokens", 2], ["width", "features", 4], ["rank", "rank", 2]];
  const [width, height, left, top, gap] = [230, 170, 46, 22, 22];
  const marks = rows.map(({ us }) => Math.log10(us)), low = Math.floor(Math.min(...marks)), high = Math.ceil(Math.max(...marks));
  const down = (us) => (top + height * (1 - (Math.log10(us) - low) / (high - low))).toFixed(1);
  const label = (power) => (power < 3 ? `${10 ** power} µs` : `${10 ** (power - 3)} ms`);
  const powers = Array.from({ length: high - low + 1 }, (_, i) => low + i);
  const drawn = panels.map(([by, name, factor], panel) => {
    const own = rows.filter((row) => row.by === by), from = left + panel * (width + gap);
    const across = (i) => (from + 14 + (i * (width - 28)) / (own.length - 1)).toFixed(1);
    const last = own.at(-1), ideal = own.map((_, i) => last.us / factor ** (own.length - 1 - i));
    const first = ideal.findIndex((us) => us >= 10 ** low);
    const others = by === "tokens" ? `${last.features}², rank ${last.rank}` : by === "width" ? `${last.tokens} tokens, rank ${last.rank}` : `${last.tokens} tokens, ${last.features}²`;
    return [
      `<text x="${from + width / 2}" y="14" text-anchor="middle">${by} (${others})</text>`,
      ...powers.map((power) => `<path d="M${from} ${down(10 ** power)}h${width}" opacity=".25"/>`),
      `<path d="M${across(first)} ${down(ideal[first])}L${across(own.length - 1)} ${down(last.us)}" opacity=".5" stroke-dasharray="3 3"/>`,
      `<path d="M${own.map(({ us }, i) => `${across(i)} ${down(us)}`).join("L")}"/>`,
      ...own.map(({ us }, i) => `<circle cx="${across(i)}" cy="${down(us)}" r="2.5" fill="currentColor"/>`),
      ...own.map((row, i) => `<text x="${across(i)}" y="${top + height + 14}" text-anchor="middle" font-size="9">${row[name] >= 1024 ? `${row[name] / 1024}k` : row[name]}</text>`),
    ].join("\n");
  });
  const size = [left + 3 * (width + gap), top + height + 22];
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${size.join(" ")}" color="#777" font-family="sans-serif" font-size="11" stroke-width="1.5" role="img" aria-label="Time of a step as tokens, width and rank double">`,
    '<g fill="currentColor">', ...powers.map((power) => `<text x="${left - 5}" y="${Number(down(10 ** power)) + 4}" text-anchor="end" font-size="9">${label(power)}</text>`), "</g>",
    '<g fill="none" stroke="currentColor">', ...drawn.map((panel) => panel.replaceAll("<text", '<text fill="currentColor" stroke="none"')), "</g>", "</svg>", "",
  ].join("\n");
}

/** What `npm run bench:gpu` found, with PyTorch's times beside it where they are known. */
function native(given, torch) {
  const data = join(root, "docs/performance-gpu.json");
  if (given) {
    const { rows, ...head } = { ...read(given), torch: torch ? read(torch) : undefined };
    const lines = rows.map((row) => JSON.stringify(row)).join(",\n");
    writeFileSync(data, `${JSON.stringify(head).slice(0, -1)},"rows":[\n${lines}\n]}\n`); // a line for each row
  }
  const ours = read(data);
  if (!ours) return "";
  const of = (section) => ours.rows.filter((row) => row.section === section);
  const shape = ({ tokens, features, rank }) => `${thousands(tokens)} × ${thousands(features)}² r ${rank}`;
  const shapes = [...new Set(of("kernels").map(shape))];
  const kernels = [...new Set(of("kernels").map(({ name }) => name.replace(/ \d+ × .*/, "")))];
  const kernel = (name) => shapes.flatMap((at) => {
    const row = of("kernels").find((row) => row.name.startsWith(`${name} ${row.tokens} ×`) && shape(row) === at);
    return row ? [time(row.us), percent(row.share)] : ["", ""];
  });
  const layouts = [...new Set(of("bases").map(({ name }) => name.match(/\(.*\)/)[0]))];
  const kinds = [...new Set(of("bases").map(({ name }) => name.replace(/ \(.*/, "")))];
  const base = (kind) => layouts.flatMap((at) => {
    const row = of("bases").find(({ name }) => name === `${kind} ${at}`);
    if (!row) return [""];
    return [`${time(row.us)}, ${row.packed_gb_s.toFixed(0)} GB/s${row.of_copy === undefined ? `, ${rate(row)} TFLOP/s` : `, ${percent(row.of_copy)}`}`];
  });
  const adapters = of("adapters").flatMap((row, i, all) => (row.over_base ? [[row.name, time(all[i - 1].us), time(row.us), `× ${row.over_base.toFixed(2)}`]] : []));
  const parts = [
    `## Kernels and steps on a ${ours.adapter}, natively`,
    `Driver ${ours.driver}, ${ours.backend}; \`npm run bench:gpu\` with ${ours.options.length ? `the options ${ours.options.join(" ")}` : "no options"}; ${ours.timer}, medians of ${ours.repeats}. A copy moves ${thousands(Math.round(ours.copy_gb_s))} GB/s, read and written bytes both counted; the best float32 product does ${ours.product_tflop_s.toFixed(1)} TFLOP/s. The tables are written by \`node benches/report.mjs\` from [performance-gpu.json](performance-gpu.json).`,
  ];
  const section = (title, words, head, rows) => rows.length && parts.push(`### ${title}`, ...(words ? [words] : []), table(head, rows));
  section("Products", "", ["product", "time", "TFLOP/s"], of("device").filter((row) => row.operations).map((row) => [row.name.replace("product ", ""), time(row.us), rate(row)]));
  if (ours.torch) {
    const { torch: version, adapter } = ours.torch;
    const cell = (other, us) => (other ? `${time(other)}, × ${(other / us).toFixed(2)}` : "");
    section("Beside PyTorch", `PyTorch ${version} on ${adapter} in the same session, float32 without TF32: its time, and how many times ours that is.`,
      ["work", "ours", "eager", "CUDA graphs"], besideTorch(ours, ours.torch).map(({ name, us, eager, graphs }) => [name, time(us), cell(eager, us), cell(graphs, us)]));
  }
  section("Adapters on top of their base", "", ["work", "base", "with adapter", "ratio"], adapters);
  section("Bases", "With one token, distinct weights of at least 512 MiB in one pass and the share of the copy's rate, packed bytes counted.", ["kind", ...layouts], kinds.map((kind) => [kind, ...base(kind)]));
  section("Kernels", "Time, and the share of the roofline max(bytes / copy rate, operations / product rate). What fits the cache can be above 100 %; a few microseconds are the launch.",
    ["kernel", ...shapes.flatMap((at) => [at, ""])], kernels.map((name) => [name, ...kernel(name)]));
  section("Steps", "", ["work", "time", "dispatches"], of("steps").map((row) => [row.name, time(row.us), row.dispatches]));
  const growth = of("growth");
  if (growth.length) {
    writeFileSync(join(root, "docs/growth.svg"), growthPlot(growth));
    parts.push("### How the cost grows", "Forward and backward of a LoRA layer in float32; dashed, what twice the time for twice the tokens or rank, and four times for twice the width, would be. Counted, not timed, no doubling does more than that, on any device: [tests/growth.rs](../tests/growth.rs) has every kernel count its rounds, and the words that it reads and writes.",
      "![Time of a step as tokens, width and rank double](growth.svg)");
    const worst = (by) => growth.filter((row) => row.by === by).flatMap((row, i, all) => (i ? [row.us / all[i - 1].us] : []));
    section("What a doubling costs", "Times the step's time, for each doubling from the left to the right.", ["of", "from, to", "times"], ["tokens", "width", "rank"].map((by) => {
      const own = growth.filter((row) => row.by === by), name = by === "width" ? "features" : by;
      return [by, `${own[0][name]}, ${own.at(-1)[name]}`, worst(by).map((times) => times.toFixed(2)).join(", ")];
    }));
  }
  section("Language models", "Random weights in the models' shapes, adapters of rank 8 on all linear layers.", ["work", "time", "tokens/s", "dispatches", "submits", "GPU memory"],
    of("model").map((row) => [row.name, time(row.us), row.tokens_s ? thousands(row.tokens_s) : `${row.steps} steps`, row.dispatches ?? "", row.submits ?? "", row.gpu_megabytes ? `${thousands(row.gpu_megabytes)} MiB${row.estimated_megabytes ? ` (${thousands(row.estimated_megabytes)})` : ""}` : ""]));
  for (const { name, kernels } of of("model").filter((row) => row.kernels && /all kept/.test(row.name))) {
    const sum = kernels.reduce((all, [, us]) => all + us, 0);
    section(`Where the time goes: ${name}`, "Kernels one after another, each between two timestamps.", ["kernel", "time", "dispatches", "share"],
      kernels.slice(0, 12).map(([kernel, us, count]) => [kernel, time(us), count, percent(us / sum)]));
  }
  return parts.join("\n\n");
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const given = process.argv.slice(2);
  const after = (name) => given[given.indexOf(name) + 1 || given.length];
  const results = given.filter((option, i) => !option.startsWith("--") && !(given[i - 1] ?? "").startsWith("--"));
  const write = (text, name, content) => text.replace(new RegExp(`(<!-- ${name} -->\n)[^]*(<!-- /${name} -->)`), (_, begin, end) => `${begin}${content ? `${content}\n` : ""}${end}`);
  let text = write(readFileSync(page, "utf8"), "steps", pages(results));
  text = write(text, "gpu", native(after("--gpu"), after("--torch")));
  writeFileSync(page, text);
}
