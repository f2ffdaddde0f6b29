// From texts to token ids and labels. Tokenising itself is the tokenizer's: a function is asked for.
import { array, callable, checkOptions, ids as tokenIds, integer, show, text as string } from "./check.js";
import { LoraError } from "./error.js";

/** One message of a chat. */
export interface ChatMessage {
  /** Who speaks: `system`, `user`, `assistant` …; replies of `assistant` are learned. */
  role: string;
  /** What is said. */
  content: string;
  /** Of a reply: 0 where it is not to be learned; default 1. */
  weight?: 0 | 1;
}

/** A prompt with what should follow it, a chat whose replies should be learned, or a text to be learned whole. */
export type TextExample = { prompt: string; completion: string } | { messages: ChatMessage[] } | { text: string };

/** Token ids, and as many labels: the same ids where they are to be learned, −100 where not. */
export interface TokenExample {
  /** Token ids `[tokens]`. */
  inputIds: Int32Array;
  /** Labels `[tokens]`, those of the tokens themselves: the trainer moves them to where they are predicted. */
  labels: Int32Array;
}

/** What a line of a JSONL file is not. */
export interface LineError {
  /** From 1. */
  line: number;
  /** What was expected there. */
  message: string;
}

/** Options of {@link tokenizeExamples}. */
export interface TokenizeOptions {
  /** Token ids of a text without special tokens added, such as `(text) => tokenizer.encode(text, { add_special_tokens: false }).ids`. */
  encode: (text: string) => readonly number[];
  /** Longer examples are cut off behind this many tokens. */
  maxTokens: number;
  /** Put before each example, of a chat before what its template writes: leave it out where that begins with one itself. */
  bosTokenId?: number;
  /** Learned at the end of each completion or text. */
  eosTokenId?: number;
  /**
   * The text of a chat as the model's template writes it; with `addGenerationPrompt` also what comes before a reply. Needed
   * for examples with `messages`.
   */
  chatTemplate?: (messages: readonly ChatMessage[], addGenerationPrompt: boolean) => string;
}

/** Examples, and what truncation dropped of them. */
export interface TokenizedExamples {
  /** What a {@link LanguageTrainer} trains on. */
  examples: TokenExample[];
  /** Examples that were cut off. */
  truncated: number;
  /** Tokens that were cut off them. */
  tokensDropped: number;
  /** Examples of which nothing was left to be learned, so that they are left out; by their number in the input, from 0. */
  dropped: number[];
}

const IGNORED = -100;

/**
 * Reads a file of one JSON object a line: `{"prompt", "completion"}`, `{"messages": [{"role", "content", "weight"?}, …]}` or
 * `{"text"}`; what is null counts as absent. Empty lines are passed over; lines that are none of these are told by their number,
 * and the rest is read.
 */
export function parseJsonl(text: string): { examples: TextExample[]; errors: LineError[] } {
  string("text", text);
  const examples: TextExample[] = [];
  const errors: LineError[] = [];
  text.replace(/^\uFEFF/, "").split(/\r\n|\n|\r/).forEach((content, i) => {
    if (content.trim() === "") return;
    try {
      examples.push(exampleOf(JSON.parse(content)));
    } catch (error) {
      errors.push({ line: i + 1, message: error instanceof LoraError ? error.message : `expected JSON: ${(error as Error).message}` });
    }
  });
  return { examples, errors };
}

/** Checks one example, whose unknown keys are left behind. */
function exampleOf(value: unknown): TextExample {
  const fail = (expected: string): never => {
    throw new LoraError("invalid-argument", `expected ${expected}`);
  };
  if (typeof value !== "object" || value === null || Array.isArray(value)) fail("a JSON object");
  // Files of several columns have null where there is none.
  const given = Object.fromEntries(Object.entries(value as object).filter(([, field]) => field !== null));
  const { prompt, completion, messages, text } = given;
  if (messages !== undefined) {
    if (!Array.isArray(messages) || messages.length === 0) fail("`messages` to be an array that is not empty");
    const checked = (messages as unknown[]).map((message, i) => {
      const { role, content, weight } = (message ?? {}) as Record<string, unknown>;
      if (typeof role !== "string" || typeof content !== "string") fail(`\`messages[${i}]\` to have a role and a content, both strings`);
      if (![0, 1, null, undefined].includes(weight as number)) fail(`\`messages[${i}]\` to have a weight of 0 or 1`);
      return { role, content, ...(weight === 0 && { weight }) } as ChatMessage;
    });
    if (!checked.some(isLearned)) fail("a message of the role `assistant`, which would be learned");
    return { messages: checked };
  }
  if (prompt !== undefined || completion !== undefined) {
    if (typeof prompt !== "string" || typeof completion !== "string") fail("`prompt` and `completion`, both strings");
    if (completion === "") fail("a `completion` that is not empty");
    return { prompt, completion } as { prompt: string; completion: string };
  }
  if (typeof text !== "string" || text === "") fail("`prompt` and `completion`, `messages`, or a `text` that is not empty");
  return { text } as { text: string };
}

/**
 * Tokenises examples so that only completions, replies and texts are learned: what comes before them has the label −100.
 * Prompt and reply are tokenised apart, as they are when the model later answers.
 */
export function tokenizeExamples(examples: readonly TextExample[], options: TokenizeOptions): TokenizedExamples {
  checkOptions("tokenizeExamples", options, ["encode", "maxTokens", "bosTokenId", "eosTokenId", "chatTemplate"]);
  const { encode, maxTokens, bosTokenId, eosTokenId, chatTemplate } = options;
  integer("maxTokens", maxTokens, 2); // the first token is predicted by none
  array("examples", examples);
  callable("encode", encode);
  for (const [name, id] of Object.entries({ bosTokenId, eosTokenId })) if (id !== undefined) integer(name, id, 0);
  const result: TokenizedExamples = { examples: [], truncated: 0, tokensDropped: 0, dropped: [] };
  examples.forEach((given, index) => {
    const ids: number[] = bosTokenId === undefined ? [] : [bosTokenId];
    const labels: number[] = ids.map(() => IGNORED);
    const add = (text: string, learned: boolean) => {
      if (text === "") return;
      for (const id of tokenIds("encode", encode(text))) {
        ids.push(id);
        labels.push(learned ? id : IGNORED);
      }
    };
    const end = () => {
      if (eosTokenId === undefined) return;
      ids.push(eosTokenId);
      labels.push(eosTokenId);
    };
    const example = exampleOf(given);
    if ("messages" in example) {
      if (typeof chatTemplate !== "function") {
        throw new LoraError("invalid-argument", `chatTemplate: expected a function for the chat in examples[${index}], got ${show(chatTemplate)}`);
      }
      addChat(example.messages, chatTemplate, add, index);
    } else if ("text" in example) {
      add(example.text, true);
      end();
    } else {
      add(example.prompt, false);
      add(example.completion, true);
      end();
    }
    const cut = Math.max(ids.length - maxTokens, 0);
    if (cut > 0) {
      result.truncated++;
      result.tokensDropped += cut;
      ids.length = labels.length = maxTokens;
    }
    // The first label is the target of no position.
    if (labels.slice(1).every((label) => label === IGNORED)) result.dropped.push(index);
    else result.examples.push({ inputIds: Int32Array.from(ids), labels: Int32Array.from(labels) });
  });
  return result;
}

const isLearned = ({ role, weight }: ChatMessage): boolean => role === "assistant" && weight !== 0;

/** A chat in pieces: up to each reply, and the reply with what closes it. */
function addChat(
  messages: readonly ChatMessage[],
  template: NonNullable<TokenizeOptions["chatTemplate"]>,
  add: (text: string, learned: boolean) => void,
  index: number,
): void {
  let written = "";
  const extend = (text: string, learned: boolean) => {
    if (!string("chatTemplate", text).startsWith(written)) {
      throw new LoraError("invalid-argument", `chatTemplate: writes the beginning of examples[${index}] otherwise once more messages follow, so that its replies cannot be told apart`);
    }
    add(text.slice(written.length), learned);
    written = text;
  };
  messages.forEach((message, i) => {
    if (!isLearned(message)) return;
    extend(template(messages.slice(0, i), true), false);
    extend(template(messages.slice(0, i + 1), false), true);
  });
}

/**
 * Cuts a long text's token ids into examples of `length` tokens, all of them learned; a rest of at least 2 is one more. With
 * `stride` (default `length`) they overlap or leave gaps.
 */
export function chunkTokens(ids: ArrayLike<number>, options: { length: number; stride?: number }): TokenExample[] {
  checkOptions("chunkTokens", options, ["length", "stride"]);
  const length = integer("length", options.length, 2);
  const stride = integer("stride", options.stride ?? length);
  const all = tokenIds("ids", ids);
  const chunks: TokenExample[] = [];
  for (let start = 0; start + 2 <= all.length; start += stride) {
    const inputIds = all.slice(start, start + length);
    chunks.push({ inputIds, labels: inputIds.slice() });
    if (start + length >= all.length) break;
  }
  return chunks;
}
