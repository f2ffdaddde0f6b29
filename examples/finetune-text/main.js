// Fine-tunes a language model on a pasted text, and prints what it writes before and after.
import { Tokenizer } from "@huggingface/tokenizers";
import { adamw, CausalLM, chunkTokens, Gpu, LanguageTrainer, linearSchedule, modelFile, readGguf } from "../../dist/index.js";

const $ = (id) => document.getElementById(id);
const LENGTH = 64, BATCH = 4, ADAPTER = { rank: 8, alpha: 16, seed: 1 };
const base = new URL("../../www/model", import.meta.url);
$("text").value = await (await fetch(new URL("../../www/texts/ships_log.txt", import.meta.url))).text();

/** Model and tokenizer: of a GGUF file both are in it. */
async function load(gpu, file) {
  const onProgress = ({ loaded, total }) => ($("status").value = `loading: ${((100 * loaded) / (total || loaded)).toFixed(0)} %`);
  if (file) {
    const { tokenizer, tokenizerConfig } = await readGguf(file);
    return { model: await CausalLM.load(gpu, { gguf: file, onProgress }), tokenizer: new Tokenizer(tokenizer, tokenizerConfig) };
  }
  const json = async (name) => JSON.parse(await (await modelFile({ folder: base }, name)).text());
  const tokenizer = new Tokenizer(await json("tokenizer.json"), await json("tokenizer_config.json"));
  return { model: await CausalLM.load(gpu, { folder: base, onProgress }), tokenizer };
}

/** Two samples from the text's first words, drawn by the same seeds before and after. */
async function samples(model, tokenizer, prompt, output) {
  output.textContent = "";
  for (const seed of [1, 2]) {
    const ids = [];
    for await (const id of model.generate(prompt, { maxTokens: 24, temperature: 0.8, topP: 0.95, seed })) ids.push(id);
    output.textContent += `${tokenizer.decode([...prompt, ...ids], { skip_special_tokens: true })}\n\n`;
  }
}

let stopped;
async function run() {
  const gpu = await Gpu.request();
  let model;
  try {
    const { tokenizer, ...loaded } = await load(gpu, $("gguf").files[0]);
    model = loaded.model;
    const { ids } = tokenizer.encode($("text").value.trim(), { add_special_tokens: false });
    const length = Math.min(LENGTH, model.maxPositions);
    const examples = chunkTokens(ids, { length });
    const { fits, total, advice } = model.estimate({ ...ADAPTER, tokens: length, batch: BATCH });
    if (!fits) throw new Error(`this needs ${(total / 2 ** 20).toFixed(0)} MiB of GPU memory and does not fit; try ${advice.join(" or ")}`);
    await samples(model, tokenizer, ids.slice(0, 5), $("before"));

    model.addAdapter(ADAPTER);
    const epochs = Number($("epochs").value), steps = epochs * Math.ceil(examples.length / BATCH);
    const trainer = new LanguageTrainer(model, {
      optimizer: adamw({ lr: 5e-3 }), schedule: linearSchedule({ warmup: Math.min(5, steps - 1), total: steps }), batchSize: BATCH, maxGradNorm: 1,
    });
    stopped = new AbortController();
    $("stop").disabled = false;
    for await (const { step, loss } of trainer.train(examples, { epochs, signal: stopped.signal })) $("status").value = `step ${step} of ${steps}: loss ${loss.toFixed(3)}`;
    $("stop").disabled = true;
    const { perplexity } = await trainer.evaluate(examples);
    trainer.dispose();
    await samples(model, tokenizer, ids.slice(0, 5), $("after"));
    const { config, weights } = await model.saveAdapter();
    $("files").replaceChildren(...[["adapter_config.json", config], ["adapter_model.safetensors", weights]].flatMap(([download, content]) =>
      [Object.assign(document.createElement("a"), { download, textContent: download, href: URL.createObjectURL(new Blob([content])) }), " "]));
    $("status").value = `learned: perplexity ${perplexity.toFixed(2)} on the text`;
    return "done";
  } catch (error) {
    $("status").value = `${error.code ?? "error"}: ${error.message}`;
    return "failed";
  } finally {
    model?.dispose();
    gpu.dispose();
  }
}
$("stop").onclick = () => stopped.abort();
$("start").onclick = async () => {
  $("start").disabled = true;
  document.documentElement.dataset.state = "running";
  document.documentElement.dataset.state = await run();
  $("start").disabled = false;
};
document.documentElement.dataset.state = "ready";
