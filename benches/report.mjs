// node benches/report.mjs [results.jsonl …]: takes what pages of the bench reported on a GPU into docs/performance.json, and writes the
// tables of docs/performance.md from it. A line of results is { page, set, report }; the page's name begins with the library's letter
// (o ours, j jax-js, t TensorFlow.js), `report` is that of benches/peers/page.html.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "../scripts/lib.mjs";

const data = join(root, "docs/performance.json"), page = join(root, "docs/performance.md");
const libraries = { o: "lora-webgpu", j: "jax-js", t: "TensorFlow.js" };
const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

const known = existsSync(data) ? JSON.parse(readFileSync(data, "utf8")) : { device: "", runs: [] };
for (const path of process.argv.slice(2)) {
  const runs = readFileSync(path, "utf8").trim().split("\n").map((line) => JSON.parse(line))
    .filter(({ report }) => report.times)
    .map(({ page, report: { firstMs, times, losses } }) => ({ library: libraries[page[0]], shape: page[1] % 2 ? "128 × 512²" : "512 × 2,048²", firstMs, times, losses: losses.slice(0, 1) }));
  known.runs = runs;
}
writeFileSync(data, `${JSON.stringify(known)}\n`);

const rows = ["128 × 512²", "512 × 2,048²"].flatMap((shape) => {
  const of = (library) => known.runs.filter((run) => run.library === library && run.shape === shape);
  const step = (runs) => median(runs.flatMap((run) => run.times)), first = (runs) => median(runs.map((run) => run.firstMs));
  const ours = of("lora-webgpu");
  return Object.values(libraries).map((library) => {
    const runs = of(library), times = runs.flatMap((run) => run.times);
    const ratio = library === "lora-webgpu" ? "" : `× ${(step(runs) / step(ours)).toFixed(1)}`;
    return `| ${shape} | ${library} | ${runs.length} × ${runs[0].times.length} | ${step(runs).toFixed(2)} | ${Math.min(...times).toFixed(2)} to ${Math.max(...times).toFixed(2)} | ${ratio} | ${first(runs).toFixed(0)} |`;
  });
});
const table = ["| tokens × width | library | steps | median, ms | range | ratio | first step, ms |", "|---|---|---|---|---|---|---|", ...rows].join("\n");
const text = readFileSync(page, "utf8");
writeFileSync(page, text.replace(/(<!-- steps -->\n)[^]*(<!-- \/steps -->)/, `$1${table}\n$2`));
