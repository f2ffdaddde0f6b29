// npm run bench:gpu -- [options]: builds benches/gpu and runs it on this machine's GPU. Its own options are in the head comment of
// benches/gpu/main.rs; and there are
//   --software     run on Mesa's software adapter, with small shapes
//   --build FOLDER only build, stripped, to FOLDER/gpu: that one file can be copied to another machine
//   --torch FILE   print ratios to what benches/torch_peers.py printed on the same GPU
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { capture, main, must, run, rust, say, softwareVulkan, stop, windows } from "../scripts/lib.mjs";
import { besideTorch } from "./report.mjs";

const options = process.argv.slice(2);
const take = (name, values) => {
  const at = options.indexOf(name);
  return at < 0 ? undefined : options.splice(at, 1 + values).at(-1);
};

main(async () => {
  const folder = take("--build", 1), torch = take("--torch", 1), software = take("--software", 0);
  const pair = rust();
  const env = { ...pair.env, CARGO_PROFILE_BENCH_STRIP: "symbols" };
  const build = ["bench", "--bench", "gpu", "--no-run"];
  await must(pair.cargo, build, { env });
  const built = capture(pair.cargo, [...build, "--message-format=json"], env)?.split("\n").map((line) => JSON.parse(line))
    .find(({ executable, target }) => executable && target.name === "gpu")?.executable ?? stop("cargo names no program.");
  if (folder) {
    mkdirSync(folder, { recursive: true });
    const program = join(folder, windows ? "gpu.exe" : "gpu");
    copyFileSync(built, program);
    return say(`${program} is the bench.`);
  }
  const driver = software ? softwareVulkan() : undefined;
  const temporary = torch && !options.includes("--json") ? mkdtempSync(join(tmpdir(), "lora-bench-")) : undefined;
  if (temporary) options.push("--json", join(temporary, "gpu.json"));
  const code = await run(built, options, {
    env: {
      ...(driver && { VK_DRIVER_FILES: driver, VK_ICD_FILENAMES: driver }),
      XDG_RUNTIME_DIR: process.env.XDG_RUNTIME_DIR ?? tmpdir(), // Mesa complains without one
    },
  });
  if (code !== 0) stop(`The bench ended with ${code}; its own words are above.`);
  if (!torch) return;
  const [ours, theirs] = [options[options.indexOf("--json") + 1], torch].map((path) => JSON.parse(readFileSync(resolve(path), "utf8")));
  if (temporary) rmSync(temporary, { recursive: true });
  console.log(`\nbeside PyTorch ${theirs.torch} on ${theirs.adapter}: its times over ours`);
  for (const { name, us, eager, graphs } of besideTorch(ours, theirs)) {
    const ratio = (time) => (time ? `${time.toFixed(1)} µs, × ${(time / us).toFixed(2)}` : "");
    console.log(name.padEnd(58), `${us.toFixed(1)} µs`.padStart(14), `eager ${ratio(eager)}`.padEnd(34), graphs ? `graphs ${ratio(graphs)}` : "");
  }
});
