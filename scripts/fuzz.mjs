// npm run fuzz [-- SECONDS [TARGET…]]: searches for files that make a reader panic, hang or take too much memory, for so many seconds
// each (default 300: an hour in all). libFuzzer for the Rust targets, in one process at low priority; fuzz/js.mjs for JavaScript's own readers.
// What it finds is put into fuzz/corpus, which npm test replays; figures go into docs/reliability.md.
import { copyFileSync, existsSync, mkdirSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { constants, setPriority } from "node:os";
import { join } from "node:path";
import { TARGETS, fuzzJs } from "../fuzz/js.mjs";
import { capture, main, must, root, run, rust, say, stop, targetDir } from "./lib.mjs";
import { record } from "./reliability.mjs";

// libFuzzer's instrumentation, which a stable compiler has as well.
const FLAGS = [
  "-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4", "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
  "-Cllvm-args=-sanitizer-coverage-pc-table", "-Cllvm-args=-sanitizer-coverage-trace-compares", "--cfg=fuzzing", "-Ccodegen-units=1",
];
const KEPT = 12 << 10; // bytes of a target's kept inputs, of which none is longer than an eighth

/** Puts inputs that reach everything which was reached into the corpus: small ones, as many as fit; what was found before stays. */
export function keep(target, inputs) {
  const folder = join(root, "fuzz/corpus", target);
  mkdirSync(folder, { recursive: true });
  for (const name of readdirSync(folder)) if (!name.startsWith("found-")) rmSync(join(folder, name));
  let bytes = 0;
  for (const path of inputs) {
    const { size } = statSync(path);
    if (size > KEPT / 8 || bytes + size > KEPT) continue;
    bytes += size;
    copyFileSync(path, join(folder, path.split(/[/\\]/).pop().slice(0, 12)));
  }
}

const files = (folder) => existsSync(folder) ? readdirSync(folder).sort().map((name) => join(folder, name)) : [];

/** Runs a Rust target; resolves to its figures, and what it found. */
async function fuzz(binary, target, seconds, work) {
  const [own, found, merged] = ["corpus", "artifacts", "merged"].map((name) => join(work, name, target));
  for (const folder of [own, found, merged]) mkdirSync(folder, { recursive: true });
  for (const path of [...files(found), ...files(merged)]) rmSync(path);
  let log = "";
  const output = (chunk) => { log += chunk; };
  const kept = join(root, "fuzz/corpus", target);
  const limits = ["-max_len=8192", "-timeout=10", "-rss_limit_mb=2048", `-dict=${join(root, "fuzz/words.dict")}`, `-artifact_prefix=${found}/`, "-print_final_stats=1"];
  await run(binary, [`-max_total_time=${seconds}`, ...limits, own, ...(existsSync(kept) ? [kept] : [])], { output });
  const executions = Number(log.match(/stat::number_of_executed_units:\s*(\d+)/)?.[1]);
  const covered = Number([...log.matchAll(/ cov: (\d+)/g)].pop()?.[1]);
  if (!executions) stop(`${target} did not run:\n${log.slice(-2000)}`);
  const failures = files(found).map((path) => ({ path, why: log.match(/panicked at[^\n]*\n[^\n]*|ERROR: libFuzzer: (?!deadly)[^\n]*/)?.[0] ?? "" }));
  if (!failures.length) {
    await run(binary, ["-merge=1", "-max_len=8192", merged, own], { output: () => {} });
    keep(target, files(merged));
  }
  return { executions, covered, failures };
}

/** The same of a target in JavaScript. */
async function inNode(target, seconds, work) {
  const { inputs, failures, ...figures } = await fuzzJs(target, seconds, work);
  const written = failures.map(({ bytes, why }) => {
    const path = join(work, `crash-${createHash("sha1").update(bytes).digest("hex")}`);
    writeFileSync(path, bytes);
    return { path, why };
  });
  if (!failures.length) keep(target, inputs);
  return { ...figures, failures: written };
}

main(async () => {
  const [seconds = 300, ...only] = process.argv.slice(2).map((word) => Number(word) || word);
  setPriority(0, constants.priority.PRIORITY_LOW);
  const pair = rust(), work = join(targetDir, "fuzz");
  const host = capture(pair.rustc, ["-vV"]).match(/host: (\S+)/)[1];
  const manifest = join(root, "fuzz/Cargo.toml");
  const all = readdirSync(join(root, "fuzz/fuzz_targets")).map((name) => name.replace(".rs", ""));
  const wanted = (names) => names.filter((name) => only.length === 0 || only.includes(name));
  const chosen = [...wanted(all), ...wanted(Object.keys(TARGETS))];
  if (wanted(all).length) {
    say("Building the targets and writing the seeds.");
    await must(pair.cargo, ["build", "--release", "--manifest-path", manifest, "--target", host, "--target-dir", work], { env: { ...pair.env, RUSTFLAGS: FLAGS.join(" ") } });
    await must(pair.cargo, ["test", "--quiet", "--test", "fuzz", "seeds_are_written"], { env: { ...pair.env, LORA_WRITE_SEEDS: join(work, "corpus") } });
  }
  let bad = 0;
  for (const target of chosen) {
    say(`${target}, ${seconds} s`);
    const { failures, ...figures } = all.includes(target) ? await fuzz(join(work, host, "release", target), target, seconds, work) : await inNode(target, seconds, work);
    for (const { path, why } of failures) {
      const name = `found-${path.split("-").pop().slice(0, 8)}`;
      mkdirSync(join(root, "fuzz/corpus", target), { recursive: true });
      copyFileSync(path, join(root, "fuzz/corpus", target, name));
      console.error(`✗ ${target}: fuzz/corpus/${target}/${name}\n  ${why}`);
      bad++;
    }
    console.log(`  ${figures.executions.toLocaleString("en")} runs, ${figures.covered} places reached`);
    if (!failures.length) record("fuzz", { [target]: { seconds, ...figures } });
  }
  if (bad) stop(`${bad} found; cargo test --test fuzz repeats them.`);
});
